package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// rawUpstream starts an upstream that writes raw bytes. The function answer gets each request with its body unread, and
// reports whether the connection continues.
func rawUpstream(t *testing.T, answer func(r *http.Request, w net.Conn) (on bool)) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer func() { _ = conn.Close() }()
				_ = conn.SetDeadline(time.Now().Add(time.Minute)) // real time, because the connection is TCP
				read := bufio.NewReader(conn)
				for {
					r, err := http.ReadRequest(read)
					if err != nil || !answer(r, conn) {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); serving.Wait() })
	return "http://" + l.Addr().String()
}

// echo writes a response that contains the method and the target of the request.
func echo(w io.Writer, r *http.Request) {
	body := r.Method + " " + r.RequestURI
	_, _ = fmt.Fprintf(w, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// TestConnectAndTraceAreNotForwarded checks that neither the request nor its body reaches the upstream. The next
// request must get its own response.
func TestConnectAndTraceAreNotForwarded(t *testing.T) {
	a := startAttacked(t)
	a.send("GET /before HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n") // opens a connection to the upstream
	for _, head := range []string{
		"CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n",
		"CONNECT /user HTTP/1.1\r\nHost: g\r\n",
		"TRACE / HTTP/1.1\r\nHost: g\r\n",
	} {
		for _, body := range []string{
			"\r\n", fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(hidden), hidden), fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(hidden), hidden),
		} {
			answer := a.send(head + "Connection: close\r\n" + body)
			if !strings.HasPrefix(answer, "HTTP/1.1 405 ") || strings.Count(answer, "HTTP/1.1 ") != 1 {
				t.Errorf("%q: got %.200q", head+body, answer)
			}
		}
	}
	if got := a.responses(a.send("GET /after HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n")); fmt.Sprint(got) != `[200 GET /after ""]` {
		t.Errorf("the next request got %q", got)
	}
	if seen := a.received(); seen != "GET /before \"\"\nGET /after \"\"" {
		t.Errorf("upstream received %s", seen)
	}
}

// TestExpectationIsHandledByGateway checks that Expect is never forwarded, so that the
// upstream always gets the body.
func TestExpectationIsHandledByGateway(t *testing.T) {
	for _, status := range []string{"417 Expectation Failed", "413 Content Too Large", "200 OK", "302 Found"} {
		for name, on := range map[string]bool{" and goes on": true, " and closes": false} {
			t.Run(status+name, func(t *testing.T) {
				a := &attackedGateway{T: t}
				a.serve(rawUpstream(t, func(r *http.Request, w net.Conn) bool {
					if r.Method != http.MethodPut {
						echo(w, r)
						return true
					}
					if r.Header.Get("Expect") != "" {
						return false
					}
					_, _ = fmt.Fprintf(w, "HTTP/1.1 %s\r\nContent-Length: 5\r\n\r\nfinal", status)
					if on {
						_, _ = io.Copy(io.Discard, r.Body)
					}
					return on
				}))
				stream := a.send(fmt.Sprintf("PUT /repos/a/b/subscription HTTP/1.1\r\nHost: g\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n%sGET /users/x HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n", len(hidden), hidden))
				got := a.responses(strings.TrimPrefix(stream, "HTTP/1.1 100 Continue\r\n\r\n"), http.MethodPut)
				if len(got) == 0 || got[0] != status[:3]+" final" || len(got) > 1 && got[1] != "200 GET /users/x" || len(got) > 2 {
					t.Errorf("got %q", got)
				}
				for i := range 5 {
					path := fmt.Sprint("/users/", i)
					if got := a.responses(a.send("GET " + path + " HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n")); fmt.Sprint(got) != "[200 GET "+path+"]" {
						t.Errorf("%s: got %q", path, got)
					}
				}
			})
		}
	}
	t.Run("another expectation", func(t *testing.T) { // RFC 9110 section 10.1.1
		a := startAttacked(t)
		answer := a.send("PUT /a HTTP/1.1\r\nHost: g\r\nExpect: 200-ok\r\nContent-Length: 4\r\n\r\nbody" + hidden)
		if !strings.HasPrefix(answer, "HTTP/1.1 417 ") || strings.Count(answer, "HTTP/1.1 ") != 1 || a.received() != "" {
			t.Errorf("got %.200q; upstream received %s", answer, a.received())
		}
	})
}

// TestTargetNeverSelectsHost checks that a request target is a path at the upstream, or is
// refused.
func TestTargetNeverSelectsHost(t *testing.T) {
	a := startAttacked(t)
	for name, c := range map[string]struct{ head, want string }{
		"absolute, https, another host":  {"GET https://evil.test/user HTTP/1.1\r\nHost: g", "400"},
		"absolute, http, another host":   {"GET http://evil.test/user HTTP/1.1\r\nHost: " + a.address, "400"},
		"absolute, own host":             {"GET http://" + a.address + "/user HTTP/1.1\r\nHost: evil.test", `200 GET /user ""`},
		"absolute, with credentials":     {"GET http://u:p@" + a.address + "/user HTTP/1.1\r\nHost: g", "400"},
		"absolute, another scheme":       {"GET file:///etc/passwd HTTP/1.1\r\nHost: g", "400"},
		"absolute, no host":              {"GET http:///user HTTP/1.1\r\nHost: g", "400"},
		"opaque":                         {"GET http:user HTTP/1.1\r\nHost: g", "400"},
		"host after two slashes":         {"GET //evil.test/user HTTP/1.1\r\nHost: g", "400"},
		"user information after slashes": {"GET //u@evil.test/user HTTP/1.1\r\nHost: g", "400"},
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
		t.Run(name, func(t *testing.T) {
			got := a.responses(a.send(c.head + "\r\nConnection: close\r\n\r\n"))
			if len(got) != 1 || got[0] != c.want && (c.want != "400" || !strings.HasPrefix(got[0], "400 ")) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
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
			var sent atomic.Int64
			a := &attackedGateway{T: t}
			a.serve(rawUpstream(t, func(_ *http.Request, w net.Conn) bool {
				begin := "HTTP/1.1 200 OK\r\nX-A: "
				if name == "interim responses" {
					begin = "HTTP/1.1 103 Early Hints\r\nX-A: "
				}
				_, err := io.WriteString(w, begin)
				for err == nil && sent.Load() < most {
					var n int
					n, err = io.WriteString(w, endless)
					sent.Add(int64(n))
				}
				return false
			}))
			stream := a.send("GET /gitignore/templates HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n")
			final := stream[strings.LastIndex(stream, "HTTP/1.1 "):]
			if got := a.responses(final); len(got) != 1 || !strings.HasPrefix(got[0], "502 ") {
				t.Errorf("got %.300q", got)
			}
			if sent.Load() >= most {
				t.Errorf("the gateway read %d bytes of header", sent.Load())
			}
		})
	}
}
