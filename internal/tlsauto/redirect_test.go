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
)

// challenged is a storage in which another replica has left a challenge for the name.
type challenged struct {
	Storage
	answer []byte
	asked  atomic.Int32 // for challenges
	free   atomic.Int32 // of these, those that nothing ends
}

func newChallenged(t *testing.T) *challenged {
	t.Helper()
	answer, err := json.Marshal(acme.Challenge{
		Type: acme.ChallengeTypeHTTP01, Token: "to-ken_1", KeyAuthorization: "to-ken_1.thumb", Identifier: acme.Identifier{Type: "dns", Value: name},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &challenged{Storage: NewMemory(), answer: answer}
}

// Load implements certmagic.Storage.
func (c *challenged) Load(ctx context.Context, key string) ([]byte, error) {
	if !strings.Contains(key, "/challenge_tokens/") {
		return c.Storage.Load(ctx, key)
	}
	c.asked.Add(1)
	if _, ends := ctx.Deadline(); !ends {
		c.free.Add(1)
	}
	return c.answer, nil
}

// TestAttack49ChallengesAreAnsweredAlone: at their path to its end, for names that are
// ordered. Nothing else has the storage asked, and it is not waited for without end.
func TestAttack49ChallengesAreAnsweredAlone(t *testing.T) {
	storage := newChallenged(t)
	own, _, _ := writePair(t, t.TempDir(), 1, newKey(t), "own.example.com")
	s := newSite(t, Config{Storage: storage, CA: "https://127.0.0.1:1/directory"}, Names{Domains: []string{name}, Pairs: []Pair{own}})
	s.begin(true)
	misdirected := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusMisdirectedRequest) })
	h := s.Redirect(s.secure.Addr(), s.plain.Addr(), misdirected)
	const path = "/.well-known/acme-challenge/"
	for _, c := range []struct {
		what, method, host, target string
		status                     int
		asks                       int32
	}{
		{"the challenge", "GET", name, path + "to-ken_1", 200, 1},
		{"with a port, in capitals", "GET", "WEIR.example.com:80", path + "to-ken_1", 200, 1},
		{"another token", "GET", name, path + "to-ken_2", 308, 1},
		{"a token that only begins so", "GET", name, path + "to-ken_1x", 308, 1},
		{"another method", "POST", name, path + "to-ken_1", 308, 0},
		{"below it", "GET", name, path + "to-ken_1/x", 308, 0},
		{"up from it", "GET", name, path + "../to-ken_1", 308, 0},
		{"encoded", "GET", name, path + "%74o-ken_1", 308, 0},
		{"with a dot", "GET", name, path + "to-ken_1.", 308, 0},
		{"no token", "GET", name, path, 308, 0},
		{"one that is too long", "GET", name, path + strings.Repeat("x", 129), 308, 0},
		{"a path that begins alike", "GET", name, "/.well-known/acme-challenge", 308, 0},
		{"a name of one's own certificate", "GET", "own.example.com", path + "to-ken_1", 308, 0},
		{"a name that is not listed", "GET", "other.example.com", path + "to-ken_1", 421, 0},
		{"an address", "GET", "127.0.0.1", path + "to-ken_1", 421, 0},
	} {
		r := httptest.NewRequestWithContext(context.Background(), c.method, c.target, nil)
		r.Host = c.host
		w := httptest.NewRecorder()
		before := storage.asked.Load()
		h.ServeHTTP(w, r)
		if asked := storage.asked.Load() - before; w.Code != c.status || asked != c.asks {
			t.Errorf("%s: %d, asked %d times", c.what, w.Code, asked)
		}
		if body := w.Body.String(); (body == "to-ken_1.thumb") != (c.status == 200) {
			t.Errorf("%s: %s", c.what, body)
		}
	}
	if n := storage.free.Load(); n > 0 {
		t.Errorf("%d times the storage may take as long as it likes", n)
	}
}

// TestAttack49AChallengeIsNoWayIn: a connection on which a challenge by TLS is answered
// carries nothing else, and other names have none.
func TestAttack49AChallengeIsNoWayIn(t *testing.T) {
	s := newSite(t, Config{Storage: newChallenged(t), CA: "https://127.0.0.1:1/directory"}, Names{Domains: []string{name}})
	s.begin(true)
	for server, answered := range map[string]bool{name: true, "sub." + name: false, "other.example.com": false, "": false} {
		raw, err := net.Dial("tcp", s.secure.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = raw.SetDeadline(time.Now().Add(time.Minute)) // it is TCP
		conn := tls.Client(raw, &tls.Config{ServerName: server, InsecureSkipVerify: true, NextProtos: []string{acmez.ACMETLS1Protocol}})
		if err := conn.HandshakeContext(t.Context()); (err == nil) != answered {
			t.Errorf("%q: %v", server, err)
		}
		if answered {
			_, _ = io.WriteString(conn, "GET /user HTTP/1.1\r\nHost: "+name+"\r\n\r\n")
			if text, _ := io.ReadAll(conn); len(text) > 0 {
				t.Errorf("%q: %s", server, text)
			}
		}
		_ = conn.Close()
	}
}

// TestAttack7RedirectsLeadToTheHostThatWasAsked: what stands for a path and is none is
// not put behind a host, whose end it would be.
func TestAttack7RedirectsLeadToTheHostThatWasAsked(t *testing.T) {
	s := newSite(t, Config{Storage: NewMemory(), CA: "https://127.0.0.1:1/directory"}, Names{Domains: []string{name}})
	s.begin(true)
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
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", target, name)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		if got := fmt.Sprint(resp.StatusCode, " ", resp.Header.Get("Location")); got != want {
			t.Errorf("%s: %s, want %s", target, got, want)
		}
	}
}

func TestPlainHTTPIsRedirected(t *testing.T) {
	s := newSite(t, Config{Storage: NewMemory(), CA: "https://127.0.0.1:1/directory"}, Names{Domains: []string{name}})
	s.begin(true)
	secure, plain := strconv.Itoa(port(s.secure)), strconv.Itoa(port(s.plain))
	client := &http.Client{Timeout: 10 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, c := range []struct {
		what, method, host, target string
		status                     int
		location                   string
	}{
		{"at the port itself", "GET", name + ":" + plain, "/user?a=b%2Fc", 308, "https://" + name + ":" + secure + "/user?a=b%2Fc"},
		{"behind something that maps ports", "GET", name, "/user", 308, "https://" + name + "/user"},
		{"a write", "POST", name, "/graphql", 308, "https://" + name + "/graphql"},
		{"in capitals, with a dot", "GET", "WEIR.Example.com.", "/", 308, "https://" + name + "/"},
		{"no challenge that was asked for", "GET", name, "/.well-known/acme-challenge/x", 308, "https://" + name + "/.well-known/acme-challenge/x"},
		{"another name", "GET", "other.example.com", "/", 421, ""},
		{"another name's challenge", "GET", "other.example.com", "/.well-known/acme-challenge/x", 421, ""},
		{"two slashes", "GET", name, "//evil.example/x", 308, "https://" + name + "//evil.example/x"},
	} {
		t.Run(c.what, func(t *testing.T) {
			r, err := http.NewRequestWithContext(t.Context(), c.method, "http://"+s.plain.Addr().String()+c.target, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Host = c.host
			resp, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if got := resp.Header.Get("Location"); resp.StatusCode != c.status || got != c.location {
				t.Errorf("%d to %q", resp.StatusCode, got)
			}
		})
	}
}
