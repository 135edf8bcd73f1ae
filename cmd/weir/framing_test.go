package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// attackedGateway is a gateway with the production settings, and an upstream that records its requests, in virtual time.
type attackedGateway struct {
	*testing.T
	dial   func() net.Conn
	answer http.HandlerFunc // of the upstream
	mu     sync.Mutex
	seen   []string // method, target and body
}

// attack runs a test with an upstream that echoes each request.
func attack(t *testing.T, test func(a *attackedGateway)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := &attackedGateway{T: t}
		a.answer = a.echo
		_, a.dial = dialVirtual(t, 0, func(w http.ResponseWriter, r *http.Request) { a.answer(w, r) })
		test(a)
	})
}

// echo responds with the method, the target and the body of a request.
func (a *attackedGateway) echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	text := fmt.Sprintf("%s %s %q", r.Method, r.RequestURI, body)
	if err != nil {
		return // an incomplete request does not count
	}
	a.mu.Lock()
	a.seen = append(a.seen, text)
	a.mu.Unlock()
	_, _ = io.WriteString(w, text)
}

// wantReceived checks the requests that the upstream has received since the last call.
func (a *attackedGateway) wantReceived(want ...string) {
	a.Helper()
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	failIf(a, !slices.Equal(a.seen, want), "upstream received %q, want %q", a.seen, want)
	a.seen = nil
}

// send writes bytes to a new connection. It returns all bytes that the gateway sends until it closes the connection.
func (a *attackedGateway) send(request string) string {
	a.Helper()
	conn := a.dial()
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	go func() { _, _ = io.WriteString(conn, request) }()
	text, err := io.ReadAll(conn)
	failIf(a, errors.Is(err, os.ErrDeadlineExceeded), "the gateway did not close the connection after %q", text)
	return string(text)
}

// wantRefused checks that the only response to a request has one of the statuses.
func (a *attackedGateway) wantRefused(name, request string, statuses ...string) {
	a.Helper()
	answer := a.send(request)
	refused := slices.ContainsFunc(statuses, func(status string) bool { return strings.HasPrefix(answer, "HTTP/1.1 "+status+" ") })
	failIf(a, !refused || strings.Count(answer, "HTTP/1.1 ") != 1, "%s: got %.200q", name, answer)
}

// responses parses a stream of responses to the given methods, and returns their statuses and bodies.
func (a *attackedGateway) responses(stream string, methods ...string) (all []string) {
	a.Helper()
	r := bufio.NewReader(strings.NewReader(stream))
	for i := 0; ; i++ {
		method := http.MethodGet
		if i < len(methods) {
			method = methods[i]
		}
		resp, err := http.ReadResponse(r, &http.Request{Method: method})
		if err != nil {
			rest, _ := io.ReadAll(r)
			failIf(a, !errors.Is(err, io.ErrUnexpectedEOF) || len(rest) > 0, "invalid data after %q: %v, %q", all, err, rest)
			return all
		}
		body, err := io.ReadAll(resp.Body)
		failIf(a, err != nil, "body: %v", err)
		all = append(all, fmt.Sprint(resp.StatusCode, " ", string(body)))
	}
}

// hidden is a request inside other data. The gateway must not parse it as a request.
const hidden = "GET /hidden HTTP/1.1\r\nHost: g\r\n\r\n"

// last returns a GET request that ends its connection.
func last(target string) string {
	return "GET " + target + " HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n"
}

func TestAmbiguousFramingIsRejected(t *testing.T) {
	attack(t, func(a *attackedGateway) {
		for name, fields := range map[string]string{
			"two lengths that differ":               "Content-Length: 4\r\nContent-Length: 5",
			"two lengths in one field":              "Content-Length: 4, 5",
			"two equal lengths in one field":        "Content-Length: 4, 4",
			"a length with a sign":                  "Content-Length: +4",
			"a negative length":                     "Content-Length: -4",
			"a length in hexadecimal":               "Content-Length: 0x4",
			"a length that overflows":               "Content-Length: 99999999999999999999",
			"an empty length":                       "Content-Length:",
			"an unknown coding":                     "Transfer-Encoding: xchunked",
			"an unknown coding and a length":        "Transfer-Encoding: xchunked\r\nContent-Length: 4",
			"chunked is not the last coding":        "Transfer-Encoding: chunked, identity",
			"chunks of another coding":              "Transfer-Encoding: gzip, chunked",
			"identity":                              "Transfer-Encoding: identity",
			"chunks twice":                          "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
			"chunks and another coding, two fields": "Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
			"chunks behind a vertical tab":          "Transfer-Encoding: \x0bchunked",
			"no coding":                             "Transfer-Encoding:",
			"a coding on a folded line":             "Transfer-Encoding:\r\n xchunked",
			"a coding behind a space":               "Transfer-Encoding : chunked",
			"a length behind a space":               "Content-Length : 4",
			"HTTP/0.9: chunks without a version":    "Transfer-Encoding: chunked",
		} {
			line := "POST /a HTTP/1.1"
			if strings.HasPrefix(name, "HTTP/0.9") {
				line = "POST /a"
			}
			a.wantRefused(name, line+"\r\nHost: g\r\n"+fields+"\r\n\r\n0\r\n\r\n"+hidden, "400", "501")
		}
		a.wantReceived()
	})
}

// TestChunkedRequestIsForwardedWithOneFraming checks requests with both Content-Length and
// chunked coding (RFC 9112, section 6.1). The gateway forwards one framing, and does not parse
// the following bytes as a request.
func TestChunkedRequestIsForwardedWithOneFraming(t *testing.T) {
	attack(t, func(a *attackedGateway) {
		for name, fields := range map[string]string{
			"CL.TE":                     "Content-Length: 100\r\nTransfer-Encoding: chunked",
			"TE.CL":                     "Transfer-Encoding: chunked\r\nContent-Length: 4",
			"a coding on a folded line": "Content-Length: 4\r\nTransfer-Encoding:\r\n chunked",
			"chunks alone":              "Transfer-Encoding: chunked",
			"in capitals":               "Content-Length: 4\r\nTRANSFER-ENCODING: CHUNKED",
		} {
			answer := a.responses(a.send("POST /a HTTP/1.1\r\nHost: g\r\n"+fields+"\r\n\r\n0\r\n\r\n"+hidden), http.MethodPost)
			want := `200 POST /a ""`
			failIf(t, len(answer) != 1 || answer[0] != want, "%s: got %q, want only %q", name, answer, want)
			a.wantReceived(`POST /a ""`)
		}
		// Equal lengths are one (RFC 9110 section 8.6).
		stream := a.send("POST /a HTTP/1.1\r\nHost: g\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\nbody" + last("/hidden"))
		got := fmt.Sprint(a.responses(stream, http.MethodPost))
		failIf(t, got != `[200 POST /a "body" 200 GET /hidden ""]`, "equal lengths: got %s", got)
		a.wantReceived(`POST /a "body"`, `GET /hidden ""`)
		answer := a.send("POST /a HTTP/1.0\r\nHost: g\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n0\r\n\r\n" + hidden)
		failIf(t, strings.Count(answer, "HTTP/1.") != 1 || strings.Contains(fmt.Sprint(a.seen), "/hidden"), "chunks in HTTP/1.0: got %.200q; upstream received %q", answer, a.seen)
	})
}

func TestInvalidChunksAreRejected(t *testing.T) {
	attack(t, func(a *attackedGateway) {
		for name, body := range map[string]string{
			"a size that ends in LF":          "4\nbody\r\n0\r\n\r\n",
			"an extension that ends in LF":    "4;a\nbody\r\n0\r\n\r\n",
			"a body that ends in LF":          "4\r\nbody\n0\r\n\r\n",
			"a last size that ends in LF":     "4\r\nbody\r\n0\n\r\n",
			"CR within an extension":          "4;a\rb\r\nbody\r\n0\r\n\r\n",
			"a size with a sign":              "+4\r\nbody\r\n0\r\n\r\n",
			"a size with a prefix 0x":         "0x4\r\nbody\r\n0\r\n\r\n",
			"a size that overflows":           "10000000000000004\r\nbody\r\n0\r\n\r\n",
			"no size":                         "\r\nbody\r\n0\r\n\r\n",
			"a size too small":                "3\r\nbody\r\n0\r\n\r\n",
			"a long extension":                "4;" + strings.Repeat("a", 64<<10) + "\r\nbody\r\n0\r\n\r\n",
			"long extensions of short chunks": strings.Repeat("1;"+strings.Repeat("a", 1<<10)+"\r\nx\r\n", 100) + "0\r\n\r\n",
			"a trailer without a colon":       "4\r\nbody\r\n0\r\nno field\r\n\r\n",
			"a trailer without end":           "4\r\nbody\r\n0\r\nA: " + strings.Repeat("a", 1<<20) + "\r\n\r\n",
		} {
			a.wantRefused(name, "POST /a HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n"+body+hidden, "400")
		}
		a.wantReceived()
	})
}

func TestBodyOfCachedRequestIsNotParsed(t *testing.T) {
	attack(t, func(a *attackedGateway) {
		const page = "/gitignore/templates"
		first := a.send(last(page))
		for name, body := range map[string]string{
			"with a length": "Content-Length: " + fmt.Sprint(len(hidden)) + "\r\n\r\n" + hidden,
			"in chunks":     "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(hidden), hidden),
			"long":          fmt.Sprintf("Content-Length: %d\r\n\r\n", 30_000*len(hidden)) + strings.Repeat(hidden, 30_000),
		} {
			stream := a.send("GET " + page + " HTTP/1.1\r\nHost: g\r\n" + body + strings.Replace(last(page), "GET", "HEAD", 1))
			hits := a.responses(stream, http.MethodGet, http.MethodHead)
			failIf(t, len(hits) == 0 || hits[0] != `200 GET /gitignore/templates ""` || len(hits) > 2 || len(hits) == 2 && hits[1] != "200 ", "%s: first %q, then %q", name, first, hits)
		}
		stream := a.send("GET " + page + " HTTP/1.1\r\nHost: g\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat(hidden, 1000))
		got := a.responses(stream)
		failIf(t, len(got) != 1 || !strings.HasPrefix(got[0], "408 "), "a body that does not arrive: got %q", got)
		a.wantReceived(`GET /gitignore/templates ""`)
	})
}

func TestUpgradeOpensNoTunnel(t *testing.T) {
	attack(t, func(a *attackedGateway) {
		for _, fields := range []string{"Connection: upgrade\r\nUpgrade: websocket", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__"} {
			got := a.responses(a.send("GET /up HTTP/1.1\r\nHost: g\r\n" + fields + "\r\n\r\n" + last("/two/%2e%2e/ways")))
			failIf(t, len(got) != 2 || got[0] != `200 GET /up ""` || !strings.HasPrefix(got[1], "400 "), "got %q; the following bytes were not parsed as a request", got)
			a.wantReceived(`GET /up ""`)
		}
	})
}

func TestInvalidFieldsAreRejected(t *testing.T) {
	attack(t, func(a *attackedGateway) {
		for name, head := range map[string]string{
			"a space before the colon":     "Host: g\r\nX-A : b",
			"a name with a space":          "Host: g\r\nX A: b",
			"a name with a control":        "Host: g\r\nX\x01A: b",
			"a name with NUL":              "Host: g\r\nX\x00A: b",
			"a name beyond ASCII":          "Host: g\r\nXé: b",
			"no name":                      "Host: g\r\n: b",
			"no colon":                     "Host: g\r\nX-A",
			"a folded first line":          " X-A: b\r\nHost: g",
			"NUL in a value":               "Host: g\r\nX-A: a\x00b",
			"CR in a value":                "Host: g\r\nX-A: a\rX-B: b",
			"a control in a value":         "Host: g\r\nX-A: a\x0bb",
			"DEL in a value":               "Host: g\r\nX-A: a\x7fb",
			"no host":                      "X-A: b",
			"two hosts":                    "Host: g\r\nHost: evil",
			"a host with a path":           "Host: g/evil",
			"a host with a line":           "Host: g\r evil",
			"a host with user information": "Host: u@g",
			"a host with a space":          "Host: g evil",
		} {
			a.wantRefused(name, "GET /a HTTP/1.1\r\n"+head+"\r\n\r\n", "400")
		}
		a.wantReceived()
	})
}

// TestConnectAndTraceAreNotForwarded checks that neither the request nor its body reaches the upstream. The next
// request must get its own response.
func TestConnectAndTraceAreNotForwarded(t *testing.T) {
	attack(t, func(a *attackedGateway) {
		a.send(last("/before")) // opens a connection to the upstream
		for _, head := range []string{
			"CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n",
			"CONNECT /user HTTP/1.1\r\nHost: g\r\n",
			"TRACE / HTTP/1.1\r\nHost: g\r\n",
		} {
			for _, body := range []string{
				"\r\n", fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(hidden), hidden),
				fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(hidden), hidden),
			} {
				a.wantRefused(head, head+"Connection: close\r\n"+body, "405")
			}
		}
		got := a.responses(a.send(last("/after")))
		failIf(t, fmt.Sprint(got) != `[200 GET /after ""]`, "the next request got %q", got)
		a.wantReceived(`GET /before ""`, `GET /after ""`)
	})
}

// TestExpectationIsHandledByGateway checks that Expect is never forwarded, so that the
// upstream always gets the body.
func TestExpectationIsHandledByGateway(t *testing.T) {
	for _, status := range []string{"417 Expectation Failed", "413 Content Too Large", "200 OK", "302 Found"} {
		for name, on := range map[string]bool{" and goes on": true, " and closes": false} {
			t.Run(status+name, func(t *testing.T) {
				attack(t, func(a *attackedGateway) {
					a.answer = func(w http.ResponseWriter, r *http.Request) {
						if r.Method != http.MethodPut {
							a.echo(w, r)
							return
						}
						failIf(a, r.Header.Get("Expect") != "", "the upstream received Expect")
						c := http.NewResponseController(w)
						noError(a, c.EnableFullDuplex()) // the response begins before the body is read
						if !on {
							conn, body, err := c.Hijack()
							noError(a, err)
							_, _ = fmt.Fprintf(conn, "HTTP/1.1 %s\r\nContent-Length: 5\r\n\r\nfinal", status)
							_, _ = io.CopyN(io.Discard, body, int64(len(hidden))) // a connection in memory has no buffer for the body
							_ = conn.Close()
							return
						}
						code, _ := strconv.Atoi(status[:3])
						w.Header().Set("Content-Length", "5")
						w.WriteHeader(code)
						_, _ = io.WriteString(w, "final")
						_ = c.Flush()
						_, _ = io.Copy(io.Discard, r.Body)
					}
					stream := a.send(fmt.Sprintf("PUT /repos/a/b/subscription HTTP/1.1\r\nHost: g\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n%s%s",
						len(hidden), hidden, last("/users/x")))
					got := a.responses(strings.TrimPrefix(stream, "HTTP/1.1 100 Continue\r\n\r\n"), http.MethodPut)
					failIf(t, len(got) == 0 || got[0] != status[:3]+" final" || len(got) > 1 && got[1] != `200 GET /users/x ""` || len(got) > 2, "got %q", got)
					for i := range 5 {
						path := fmt.Sprint("/users/", i)
						got := a.responses(a.send(last(path)))
						failIf(t, fmt.Sprint(got) != "[200 GET "+path+` ""]`, "%s: got %q", path, got)
					}
				})
			})
		}
	}
	t.Run("another expectation", func(t *testing.T) { // RFC 9110 section 10.1.1
		attack(t, func(a *attackedGateway) {
			a.wantRefused("200-ok", "PUT /a HTTP/1.1\r\nHost: g\r\nExpect: 200-ok\r\nContent-Length: 4\r\n\r\nbody"+hidden, "417")
			a.wantReceived()
		})
	})
}

// TestTargetNeverSelectsHost checks that a request target is a path at the upstream, or is
// refused.
func TestTargetNeverSelectsHost(t *testing.T) {
	attack(t, func(a *attackedGateway) {
		for name, c := range map[string]struct{ head, want string }{
			"absolute, https, another host":  {"GET https://evil.test/user HTTP/1.1\r\nHost: g", "400"},
			"absolute, http, another host":   {"GET http://evil.test/user HTTP/1.1\r\nHost: gateway.test:80", "400"},
			"absolute, own host":             {"GET http://gateway.test:80/user HTTP/1.1\r\nHost: evil.test", `200 GET /user ""`},
			"absolute, with credentials":     {"GET http://u:p@gateway.test:80/user HTTP/1.1\r\nHost: g", "400"},
			"absolute, another scheme":       {"GET file:///etc/passwd HTTP/1.1\r\nHost: g", "400"},
			"absolute, no host":              {"GET http:///user HTTP/1.1\r\nHost: g", "400"},
			"opaque":                         {"GET http:user HTTP/1.1\r\nHost: g", "400"},
			"host after two slashes":         {"GET //evil.test/user HTTP/1.1\r\nHost: g", `200 GET /evil.test/user ""`},
			"user information after slashes": {"GET //u@evil.test/user HTTP/1.1\r\nHost: g", `200 GET /u%40evil.test/user ""`},
			"an asterisk":                    {"GET * HTTP/1.1\r\nHost: g", "400"},
			"empty target":                   {"GET  HTTP/1.1\r\nHost: g", "400"},
			"an authority":                   {"GET evil.test:80 HTTP/1.1\r\nHost: g", "400"},
			"no slash":                       {"GET user HTTP/1.1\r\nHost: g", "400"},
			"only a query":                   {"GET ?a HTTP/1.1\r\nHost: g", "400"},
			"a fragment":                     {"GET /user#/repos HTTP/1.1\r\nHost: g", `200 GET /user%23/repos ""`},
			"an at sign":                     {"GET /@evil.test/user HTTP/1.1\r\nHost: g", `200 GET /%40evil.test/user ""`},
			"another Host":                   {"GET /user HTTP/1.1\r\nHost: evil.test", `200 GET /user ""`},
			"empty Host":                     {"GET /user HTTP/1.1\r\nHost:", `200 GET /user ""`},
		} {
			got := a.responses(a.send(c.head + "\r\nConnection: close\r\n\r\n"))
			failIf(t, len(got) != 1 || got[0] != c.want && (c.want != "400" || !strings.HasPrefix(got[0], "400 ")), "%s: got %q, want %q", name, got, c.want)
		}
	})
}

// TestHeaderOfUpstreamIsBounded sends endless header fields and endless interim responses.
func TestHeaderOfUpstreamIsBounded(t *testing.T) {
	for name, endless := range map[string]string{
		"one field":         strings.Repeat("a", 1<<10),
		"many fields":       "a\r\nX-A: " + strings.Repeat("b", 1<<10),
		"interim responses": "a\r\n\r\nHTTP/1.1 103 Early Hints\r\nX-A: " + strings.Repeat("b", 1<<10),
	} {
		t.Run(name, func(t *testing.T) {
			const most = 10 << 20
			attack(t, func(a *attackedGateway) {
				var sent atomic.Int64
				a.answer = func(w http.ResponseWriter, _ *http.Request) {
					conn, _, err := http.NewResponseController(w).Hijack()
					noError(a, err)
					defer func() { _ = conn.Close() }()
					begin := "HTTP/1.1 200 OK\r\nX-A: "
					if name == "interim responses" {
						begin = "HTTP/1.1 103 Early Hints\r\nX-A: "
					}
					for _, err = io.WriteString(conn, begin); err == nil && sent.Load() < most; {
						var n int
						n, err = io.WriteString(conn, endless)
						sent.Add(int64(n))
					}
				}
				stream := a.send(last("/gitignore/templates"))
				final := stream[strings.LastIndex(stream, "HTTP/1.1 "):]
				got := a.responses(final)
				failIf(t, len(got) != 1 || !strings.HasPrefix(got[0], "502 "), "got %.300q", got)
				failIf(t, sent.Load() >= most, "the gateway read %d bytes of header", sent.Load())
			})
		})
	}
}
