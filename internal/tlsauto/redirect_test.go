package tlsauto

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"

	"github.com/weirgate/weir/internal/testservers"
)

// challengeStorage is a storage in which another replica has stored a challenge.
type challengeStorage struct {
	Storage
	challenge []byte
	loads     atomic.Int32 // of challenges
	unbounded atomic.Int32 // loads without a deadline
}

func newChallengeStorage(t *testing.T) *challengeStorage {
	t.Helper()
	challenge, err := json.Marshal(acme.Challenge{
		Type: acme.ChallengeTypeHTTP01, Token: "to-ken_1", KeyAuthorization: "to-ken_1.thumb", Identifier: acme.Identifier{Type: "dns", Value: name},
	})
	noError(t, err)
	return &challengeStorage{Storage: NewMemory(), challenge: challenge}
}

// Load implements certmagic.Storage.
func (c *challengeStorage) Load(ctx context.Context, key string) ([]byte, error) {
	if !strings.Contains(key, "/challenge_tokens/") {
		return c.Storage.Load(ctx, key)
	}
	c.loads.Add(1)
	if _, ok := ctx.Deadline(); !ok {
		c.unbounded.Add(1)
	}
	return c.challenge, nil
}

// Only requests that can be a challenge of a configured name cause a look-up, and each look-up has a deadline.
func TestRedirectServesOnlyPendingChallenges(t *testing.T) {
	storage := newChallengeStorage(t)
	own, _, _ := writePair(t, t.TempDir(), 1, newKey(t), "own.example.com")
	s := newSite(t, Config{Storage: storage, CA: "https://127.0.0.1:1/directory"}, Names{Domains: []string{name}, Pairs: []Pair{own}})
	s.serve(true)
	misdirected := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusMisdirectedRequest) })
	h := s.Redirect(s.secure.Addr(), s.plain.Addr(), misdirected)
	const path = "/.well-known/acme-challenge/"
	for _, c := range []struct {
		name, method, host, target string
		status                     int
		loads                      int32
	}{
		{"pending challenge", "GET", name, path + "to-ken_1", 200, 1},
		{"host with port, in capitals", "GET", "WEIR.example.com:80", path + "to-ken_1", 200, 1},
		{"another token", "GET", name, path + "to-ken_2", 308, 1},
		{"longer token", "GET", name, path + "to-ken_1x", 308, 1},
		{"another method", "POST", name, path + "to-ken_1", 308, 0},
		{"path below", "GET", name, path + "to-ken_1/x", 308, 0},
		{"path with dot segments", "GET", name, path + "../to-ken_1", 308, 0},
		{"encoded token", "GET", name, path + "%74o-ken_1", 308, 0},
		{"token with a dot", "GET", name, path + "to-ken_1.", 308, 0},
		{"no token", "GET", name, path, 308, 0},
		{"oversized token", "GET", name, path + strings.Repeat("x", 129), 308, 0},
		{"path without token", "GET", name, "/.well-known/acme-challenge", 308, 0},
		{"name of an operator's certificate", "GET", "own.example.com", path + "to-ken_1", 308, 0},
		{"name that is not configured", "GET", "other.example.com", path + "to-ken_1", 421, 0},
		{"IP address", "GET", "127.0.0.1", path + "to-ken_1", 421, 0},
	} {
		r := httptest.NewRequestWithContext(context.Background(), c.method, c.target, nil)
		r.Host = c.host
		w := httptest.NewRecorder()
		before := storage.loads.Load()
		h.ServeHTTP(w, r)
		loads := storage.loads.Load() - before
		failIf(t, w.Code != c.status || loads != c.loads, "%s: status %d, %d look-ups", c.name, w.Code, loads)
		body := w.Body.String()
		failIf(t, (body == "to-ken_1.thumb") != (c.status == 200), "%s: body %q", c.name, body)
	}
	n := storage.unbounded.Load()
	failIf(t, n > 0, "%d look-ups without a deadline", n)
}

// A connection that answers a TLS-ALPN-01 challenge carries no requests.
func TestChallengeConnectionServesNoRequests(t *testing.T) {
	s := newSite(t, Config{Storage: newChallengeStorage(t), CA: "https://127.0.0.1:1/directory"}, Names{Domains: []string{name}}).serve(true)
	for server, completes := range map[string]bool{name: true, "sub." + name: false, "other.example.com": false, "": false} {
		raw, err := net.Dial("tcp", s.secure.Addr().String())
		noError(t, err)
		_ = raw.SetDeadline(time.Now().Add(time.Minute)) // a TCP connection has deadlines
		conn := tls.Client(raw, &tls.Config{ServerName: server, InsecureSkipVerify: true, NextProtos: []string{acmez.ACMETLS1Protocol}})
		if err := conn.HandshakeContext(t.Context()); (err == nil) != completes {
			t.Errorf("handshake for %q: %v", server, err)
		}
		if completes {
			_, _ = io.WriteString(conn, "GET /user HTTP/1.1\r\nHost: "+name+"\r\n\r\n")
			text, _ := io.ReadAll(conn)
			failIf(t, len(text) > 0, "%q: the challenge connection responded with %s", server, text)
		}
		_ = conn.Close()
	}
}

// A target that does not begin with a slash could extend the host of the redirect.
func TestRedirectKeepsTheHost(t *testing.T) {
	s := newSite(t, Config{Storage: NewMemory(), CA: "https://127.0.0.1:1/directory"}, Names{Domains: []string{name}}).serve(true)
	for target, want := range map[string]string{
		"/user":                          "308 https://" + name + "/user",
		"http://" + name + "/user":       "308 https://" + name + "/user",
		"//evil.test/user":               "308 https://" + name + "//evil.test/user",
		`/\evil.test`:                    "308 https://" + name + "/%5Cevil.test",
		"/@evil.test":                    "308 https://" + name + "/@evil.test",
		"http:@evil.test/":               "421 ",
		"http:.evil.test/":               "421 ",
		"x:y":                            "421 ",
		"*":                              "421 ",
		"http://evil.test/":              "421 ",
		"http://" + name + "@evil.test/": "421 ",
	} {
		conn, err := net.Dial("tcp", s.plain.Addr().String())
		noError(t, err)
		_, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", target, name)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		noError(t, err)
		_ = conn.Close()
		got := fmt.Sprint(resp.StatusCode, " ", resp.Header.Get("Location"))
		failIf(t, got != want, "%s: %s, want %s", target, got, want)
	}
}

func TestPlainHTTPIsRedirectedToHTTPS(t *testing.T) {
	s := newSite(t, Config{Storage: NewMemory(), CA: "https://127.0.0.1:1/directory"}, Names{Domains: []string{name}}).serve(true)
	secure, plain := strconv.Itoa(port(s.secure)), strconv.Itoa(port(s.plain))
	client := &http.Client{Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, c := range []struct{ name, method, host, target, want string }{
		{"port of the listener", "GET", name + ":" + plain, "/user?a=b%2Fc", "308 https://" + name + ":" + secure + "/user?a=b%2Fc"},
		{"mapped port", "GET", name, "/user", "308 https://" + name + "/user"},
		{"POST", "POST", name, "/graphql", "308 https://" + name + "/graphql"},
		{"capitals and trailing dot", "GET", "WEIR.Example.com.", "/", "308 https://" + name + "/"},
		{"unknown challenge", "GET", name, "/.well-known/acme-challenge/x", "308 https://" + name + "/.well-known/acme-challenge/x"},
		{"unknown name", "GET", "other.example.com", "/", "421 "},
		{"challenge of an unknown name", "GET", "other.example.com", "/.well-known/acme-challenge/x", "421 "},
		{"two slashes", "GET", name, "//evil.example/x", "308 https://" + name + "//evil.example/x"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), c.method, "http://"+s.plain.Addr().String()+c.target, nil)
		noError(t, err)
		r.Host = c.host
		resp, err := client.Do(r)
		noError(t, err)
		_ = resp.Body.Close()
		testservers.Equal(t, c.name, fmt.Sprint(resp.StatusCode, " ", resp.Header.Get("Location")), c.want)
	}
}
