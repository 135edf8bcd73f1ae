package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// refused checks the status of an error response, the format of the body and a part of the message.
func (w *world) refused(r got, status int, message string) {
	w.Helper()
	w.want("status", r.StatusCode, status)
	var body struct {
		Message       string `json:"message"`
		Documentation string `json:"documentation_url"`
	}
	if err := json.Unmarshal([]byte(r.body), &body); err != nil {
		w.Errorf("body %q: %v", r.body, err)
	}
	if !strings.Contains(body.Message, message) || body.Documentation == "" {
		w.Errorf("body %s: want a documentation_url and a message with %q", r.body, message)
	}
}

func nothing(http.ResponseWriter, *http.Request) {}

// TestAmbiguousTargetsAreRejected covers attacks 16 and 17 of docs/attacks.md.
func TestAmbiguousTargetsAreRejected(t *testing.T) {
	for _, c := range []struct{ name, path, message string }{
		{"encoded dot segment", "/repos/acme/%2e%2e/user", "dot segment"},
		{"dot segment in the middle of an escape", "/repos/acme/.%2E/user", "dot segment"},
		{"encoded slash", "/gitignore/templates%2fGo", "encoded slash"},
		{"encoded slash in a name", "/repos/acme%2Fwidgets/subscribers", "encoded slash"},
		{"encoded backslash", "/repos/acme/%5cwidgets", "backslash"},
		{"encoded NUL", "/gitignore/templates/Go%00", "control character"},
		{"empty segment", "/repos//widgets", "empty segment"},
		{"semicolon in the query", "/search/code?q=a;b", "%3B"},
		{"broken escape in the query", "/search/code?q=%zz", "percent-escape"},
		{"10,001 parameters", "/user?" + strings.Repeat("&", 10_000) + "q=1", "URI Too Long"},
		{"1,001 parameters", "/user?" + strings.Repeat("a&", 1000) + "q=1", "1,000 parameters"},
		{"long target", "/user?q=" + strings.Repeat("a", maxTarget), "URI Too Long"},
	} {
		setup(nothing).sub(t, c.name, func(w *world) {
			status := http.StatusBadRequest
			if c.message == "URI Too Long" {
				status = http.StatusRequestURITooLong
			}
			// The test sends raw bytes, because http.Client normalizes targets.
			response := w.raw("GET " + c.path + " HTTP/1.1\r\nHost: gateway.test\r\nConnection: close\r\n\r\n")
			w.refused(parseResponse(w.T, response), status, c.message)
			w.want("requests upstream", w.upstreamSaw(), 0)
		})
	}
}

func parseResponse(t *testing.T, text string) got {
	t.Helper()
	head, body, ok := strings.Cut(text, "\r\n\r\n")
	var status int
	if _, err := fmt.Sscanf(head, "HTTP/1.1 %d", &status); err != nil || !ok {
		t.Fatalf("not a response: %q", text)
	}
	h := http.Header{}
	for _, line := range strings.Split(head, "\r\n")[1:] {
		name, value, _ := strings.Cut(line, ": ")
		h.Add(name, value)
	}
	return got{&http.Response{StatusCode: status, Header: h}, body, nil}
}

// TestUnsupportedRequestsAreRejected covers attacks 5 and 7 of docs/attacks.md.
func TestUnsupportedRequestsAreRejected(t *testing.T) {
	for _, c := range []struct {
		name, request string
		status        int
		message       string
	}{
		{"CONNECT", "CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n", 405, "CONNECT"},
		{"CONNECT with a body", "CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\nContent-Length: 4\r\n", 405, "CONNECT"},
		{"TRACE", "TRACE / HTTP/1.1\r\nHost: gateway.test\r\n", 405, "TRACE"},
		{"absolute form to another host", "GET http://evil.test/user HTTP/1.1\r\nHost: gateway.test\r\n", 400, "forward proxy"},
		{"Weir's own paths", "GET /_weir/other HTTP/1.1\r\nHost: gateway.test\r\n", 404, "Not Found"},
		{"Weir's own paths as /api/v3/_weir/other", "GET /api/v3/_weir/other HTTP/1.1\r\nHost: gateway.test\r\n", 404, "Not Found"},
		{"Weir's own paths as /api/v3/_weir", "GET /api/v3/_weir HTTP/1.1\r\nHost: gateway.test\r\n", 404, "Not Found"},
		{"Weir's own paths as /_weir", "GET /_weir HTTP/1.1\r\nHost: gateway.test\r\n", 404, "Not Found"},
		{"Weir's own paths as /%5Fweir/other", "GET /%5Fweir/other HTTP/1.1\r\nHost: gateway.test\r\n", 404, "Not Found"},
		{"Weir's own paths as /api/v3/%5fweir/other", "GET /api/v3/%5fweir/other HTTP/1.1\r\nHost: gateway.test\r\n", 404, "Not Found"},
		{"Weir's own paths as /api%2Fv3/_weir/other", "GET /api%2Fv3/_weir/other HTTP/1.1\r\nHost: gateway.test\r\n", 404, "Not Found"},
		{"Weir's own paths as /%61pi/v3/_weir%2Fother", "GET /%61pi/v3/_weir%2Fother HTTP/1.1\r\nHost: gateway.test\r\n", 404, "Not Found"},
		{"large header", "GET / HTTP/1.1\r\nHost: gateway.test\r\nX-A: " + strings.Repeat("a", maxHeader) + "\r\n", 431, "32 KiB"},
	} {
		setup(nothing).sub(t, c.name, func(w *world) {
			r := parseResponse(w.T, w.raw(c.request+"Connection: close\r\n\r\n"))
			w.refused(r, c.status, c.message)
			if c.status == 405 && r.Header.Get("Allow") == "" {
				w.Error("405 without Allow")
			}
			w.want("requests upstream", w.upstreamSaw(), 0)
		})
	}
}

// TestBodyOfAHitIsNotParsedAsARequest covers attack 3 of docs/attacks.md. The body contains another request.
func TestBodyOfAHitIsNotParsedAsARequest(t *testing.T) {
	setup(templates).run(t, func(w *world) {
		w.get("/gitignore/templates")
		smuggled := "GET /evil HTTP/1.1\r\nHost: gateway.test\r\n\r\n"
		responses := w.raw("GET /gitignore/templates HTTP/1.1\r\nHost: gateway.test\r\nContent-Length: " + fmt.Sprint(len(smuggled)) + "\r\n\r\n" + smuggled +
			"HEAD /gitignore/templates HTTP/1.1\r\nHost: gateway.test\r\nConnection: close\r\n\r\n")
		w.want("responses", strings.Count(responses, "HTTP/1.1 200 OK"), 2)
		w.want("hits", strings.Count(responses, "weir; hit"), 2)
		w.want("requests upstream", w.upstreamSaw(), 1)
	})
}

// TestSlowBodyEndsWith408 covers attack 46 of docs/attacks.md.
func TestSlowBodyEndsWith408(t *testing.T) {
	for _, head := range []string{"PUT /repos/a/b/subscription", "POST /graphql"} {
		setup(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }).run(t, func(w *world) {
			began := time.Now()
			response := w.raw(head + " HTTP/1.1\r\nHost: g\r\nConnection: close\r\nContent-Length: 100\r\n\r\nhalf")
			w.refused(parseResponse(w.T, response), http.StatusRequestTimeout, "the body arrives too slowly")
			w.want("duration", time.Since(began).Round(time.Second), 30*time.Second)
			time.Sleep(10 * time.Second) // the upstream may still process the request
			w.want("permits in flight", w.inFlight(), 0)
		})
	}
}

func TestServerRejectsHugeHeader(t *testing.T) {
	setup(nothing).run(t, func(w *world) {
		response := w.raw("GET / HTTP/1.1\r\nHost: gateway.test\r\nX-A: " + strings.Repeat("a", 2*MaxHeaderBytes) + "\r\n\r\n")
		if !strings.HasPrefix(response, "HTTP/1.1 431 ") {
			w.Errorf("got %.100q, want status 431", response)
		}
	})
}

// failing returns an option that replaces the transport with f.
func failing(f func(*http.Request) (*http.Response, error)) option {
	return func(c *Config) { c.Transport = roundTripper(f) }
}

func TestUpstreamFailureIsReported(t *testing.T) {
	dial := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	for _, c := range []struct {
		name    string
		err     error
		status  int
		message string
	}{
		{"connection refused", dial(syscall.ECONNREFUSED), 502, "refuses connections"},
		{"unknown host name", dial(&net.DNSError{Err: "no such host", Name: "secret.internal", IsNotFound: true}), 502, "name cannot be resolved"},
		{"no route to the host", dial(syscall.EHOSTUNREACH), 502, "cannot be reached"},
		{"connection reset", syscall.ECONNRESET, 502, "broke the connection"},
		{"connection closed", io.ErrUnexpectedEOF, 502, "broke the connection"},
		{"malformed response", errors.New("malformed HTTP response"), 502, "no valid answer"},
	} {
		setup(nothing, failing(func(*http.Request) (*http.Response, error) { return nil, c.err })).sub(t, c.name, func(w *world) {
			r := w.get("/user", "Authorization: Bearer a")
			w.refused(r, c.status, c.message)
			if strings.Contains(r.body, "secret.internal") {
				w.Errorf("the body contains the upstream's address: %s", r.body)
			}
		})
	}
}

func TestHangingUpstreamEndsWith504(t *testing.T) {
	setup(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }).run(t, func(w *world) {
		began := time.Now()
		w.refused(w.get("/user", "Prefer: wait=300"), 504, "in time")
		w.want("duration", time.Since(began), 30*time.Second)
		w.want("requests upstream, without a retry", w.upstreamSaw(), 1)
	})
}

func TestStalledUpstreamBodyAbortsTheResponse(t *testing.T) {
	setup(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, "half")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}).run(t, func(w *world) {
		began := time.Now()
		r := w.get("/gitignore/templates")
		if r.err == nil {
			w.Errorf("got the complete body %q, want an aborted response", r.body)
		}
		w.want("duration", time.Since(began), 30*time.Second)
	})
}

func TestSlowUpstreamBodyWithoutStallsIsComplete(t *testing.T) {
	setup(func(w http.ResponseWriter, r *http.Request) {
		flush := http.NewResponseController(w).Flush
		time.Sleep(20 * time.Second)
		w.WriteHeader(http.StatusOK)
		_ = flush()
		for range 10 {
			time.Sleep(20 * time.Second)
			_, _ = fmt.Fprint(w, "part ")
			_ = flush()
		}
	}).run(t, func(w *world) {
		r := w.get("/user/migrations/1/archive", "Authorization: Bearer a")
		w.want("body", r.body, strings.Repeat("part ", 10))
		w.want("error", r.err, nil)
	})
}

func TestRequestsThatTheUpstreamWouldRejectAreNotForwarded(t *testing.T) {
	setup(nothing).run(t, func(w *world) {
		r := w.get("/search/commits?q=a+AND+b+AND+c+AND+d+AND+e+AND+f+AND+g", "Authorization: Bearer a")
		w.refused(r, 422, "Validation Failed")
		w.want("status of an anonymous code search", w.get("/search/code?q=x").StatusCode, 401)
		w.want("requests upstream", w.upstreamSaw(), 0)
	})
}

func TestUnauthenticatedClientsAreRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nothing, func(c *Config) {
			c.Identify = func(*http.Request) (Identity, error) {
				return Identity{}, fmt.Errorf("%w: unknown key", ErrUnauthenticated)
			}
		})
		r := w.get("/user", "Authorization: Bearer stolen")
		w.refused(r, 401, "Requires authentication")
		w.want("requests upstream", w.upstreamSaw(), 0)
	})
}

func TestPanicEndsWith500(t *testing.T) {
	setup(nothing, func(c *Config) {
		c.Identify = func(*http.Request) (Identity, error) { panic("a bug") }
	}).run(t, func(w *world) {
		w.refused(w.get("/user"), 500, "Internal Server Error")
	})
}

func TestParsePrefer(t *testing.T) {
	for _, c := range []struct {
		value string
		want  preference
	}{
		{"", preference{}},
		{"wait=5", preference{5 * time.Second, true, "wait=5"}},
		{"return=minimal, wait=7", preference{7 * time.Second, true, "wait=7"}},
		{`wait="3"`, preference{3 * time.Second, true, "wait=3"}},
		{"respond-async, wait=9", preference{0, true, "respond-async"}},
		{"wait=-1", preference{}},
		{"wait=soon", preference{}},
		{"wait=99999999", preference{maxPreferWait, true, "wait=99999999"}},
	} {
		if got := parsePrefer([]string{c.value}); got != c.want {
			t.Errorf("%q: got %+v, want %+v", c.value, got, c.want)
		}
	}
}
