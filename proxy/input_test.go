package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/caller"
	"github.com/weirgate/weir/proxy/screen"
	"github.com/weirgate/weir/proxy/wire"
)

// refused checks the status of an error response, the format of the body and a part of the message.
func (w *world) refused(r got, status int, message string) {
	w.Helper()
	w.want("status", r.StatusCode, status)
	var body struct {
		Message       string `json:"message"`
		Documentation string `json:"documentation_url"`
		Status        string `json:"status"`
	}
	err := json.Unmarshal([]byte(r.body), &body)
	failIf(w, err != nil, "body %q: %v", r.body, err)
	failIf(w, !strings.Contains(body.Message, message) || body.Documentation == "" || w.gateway.Dialect.StatusMember && body.Status != fmt.Sprint(status), "body %s: want a documentation_url, the status and a message with %q", r.body, message)
	w.want("the response has a request ID", r.Header.Get("X-Service-Request-Id")+r.Header.Get("X-GitHub-Request-Id") != "", true)
}

func nothing(http.ResponseWriter, *http.Request) {}

func parseResponse(t *testing.T, text string) got {
	t.Helper()
	head, body, ok := strings.Cut(text, "\r\n\r\n")
	var status int
	_, err := fmt.Sscanf(head, "HTTP/1.1 %d", &status)
	stopIf(t, err != nil || !ok, "not a response: %q", text)
	h := http.Header{}
	for _, line := range strings.Split(head, "\r\n")[1:] {
		name, value, _ := strings.Cut(line, ": ")
		h.Add(name, value)
	}
	return got{&http.Response{StatusCode: status, Header: h}, body, nil}
}

// TestInvalidRequestsAreRejected covers attacks 5, 7, 16 and 17 of docs/internals/attacks.md. The test sends raw bytes, because
// http.Client normalizes targets.
func TestInvalidRequestsAreRejected(t *testing.T) {
	const connect = "CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n"
	get := func(target string) string { return "GET " + target + " HTTP/1.1\r\nHost: gateway.test\r\n" }
	for _, c := range []struct {
		name, request string
		status        int
		message       string
	}{
		// Ambiguous targets.
		{"encoded dot segment", get("/repos/acme/%2e%2e/user"), 400, "dot segment"},
		{"dot segment in the middle of an escape", get("/repos/acme/.%2E/user"), 400, "dot segment"},
		{"encoded slash", get("/gitignore/templates%2fGo"), 400, "encoded slash"},
		{"encoded slash in a name", get("/repos/acme%2Fwidgets/subscribers"), 400, "encoded slash"},
		{"encoded backslash", get("/repos/acme/%5cwidgets"), 400, "backslash"},
		{"encoded NUL", get("/gitignore/templates/Go%00"), 400, "control character"},
		{"10,001 parameters", get("/user?" + strings.Repeat("&", 10_000) + "q=1"), 414, "URI Too Long"},
		{"1,001 parameters", get("/user?" + strings.Repeat("a&", 1000) + "q=1"), 400, "1,000 parameters"},
		{"long target", get("/user?q=" + strings.Repeat("a", screen.MaxTarget)), 414, "URI Too Long"},
		// Unsupported requests.
		{"CONNECT", connect, 405, "CONNECT"},
		{"CONNECT with a body", connect + "Content-Length: 4\r\n", 405, "CONNECT"},
		{"TRACE", "TRACE / HTTP/1.1\r\nHost: gateway.test\r\n", 405, "TRACE"},
		{"absolute form to another host", get("http://evil.test/user"), 400, "forward proxy"},
		{"Weir's own paths", get("/_weir/other"), 404, "Not Found"},
		{"Weir's own paths as /api/v3/_weir/other", get("/api/v3/_weir/other"), 404, "Not Found"},
		{"Weir's own paths as //_weir/other", get("//_weir/other"), 404, "Not Found"},
		{"Weir's own paths as //api/v3//_weir/other", get("//api/v3//_weir/other"), 404, "Not Found"},
		{"Weir's own paths as /api/v3/_weir", get("/api/v3/_weir"), 404, "Not Found"},
		{"Weir's own paths as /_weir", get("/_weir"), 404, "Not Found"},
		{"Weir's own paths as /%5Fweir/other", get("/%5Fweir/other"), 404, "Not Found"},
		{"Weir's own paths as /api/v3/%5fweir/other", get("/api/v3/%5fweir/other"), 404, "Not Found"},
		{"Weir's own paths as /api%2Fv3/_weir/other", get("/api%2Fv3/_weir/other"), 404, "Not Found"},
		{"Weir's own paths as /%61pi/v3/_weir%2Fother", get("/%61pi/v3/_weir%2Fother"), 404, "Not Found"},
		{"large header", get("/") + "X-A: " + strings.Repeat("a", screen.MaxHeader) + "\r\n", 431, "32 KiB"},
	} {
		setup(nothing).sub(t, c.name, func(w *world) {
			r := parseResponse(w.T, w.raw(c.request+"Connection: close\r\n\r\n"))
			w.refused(r, c.status, c.message)
			w.want("Cache-Status", r.Header.Get("Cache-Status"), "weir; detail=form")
			w.want("the response has the field Allow", r.Header.Get("Allow") != "", c.status == 405)
			w.want("requests upstream", w.upstreamSaw(), 0)
		})
	}
}

// TestUnusualTargetsAreForwarded sends targets that programs build by mistake, and that the API answers.
func TestUnusualTargetsAreForwarded(t *testing.T) {
	setup(nothing).run(t, func(w *world) {
		for target, want := range map[string]string{
			"//user": "/user", "/repos//acme/widgets//labels": "/repos/acme/widgets/labels", "//api/v3//user": "/user", "/made///up": "/made/up",
			"/search/issues?q=a;b": "/search/issues?q=a%3Bb", "/search/issues?q=100%&page=2": "/search/issues?page=2&q=100%25", "/made/up?a=%zz;": "/made/up?a=%25zz%3B",
		} {
			r := parseResponse(w.T, w.raw("GET "+target+" HTTP/1.1\r\nHost: gateway.test\r\nAuthorization: Bearer a\r\nConnection: close\r\n\r\n"))
			w.want(target, r.StatusCode, http.StatusOK)
			w.want(target, w.lastSeen().URL.RequestURI(), want)
		}
	})
}

// TestSlowBodyEndsWith408 covers attack 46 of docs/internals/attacks.md.
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
		response := w.raw("GET / HTTP/1.1\r\nHost: gateway.test\r\nX-A: " + strings.Repeat("a", 2*screen.MaxHeaderBytes) + "\r\n\r\n")
		w.want("status line", response[:min(13, len(response))], "HTTP/1.1 431 ")
	})
}

// failing replaces the transport with f.
func failing(f func(*http.Request) (*http.Response, error)) option {
	return func(c *Config) { c.Transport = roundTripper(f) }
}

// identityFails makes Identify return an error, or panic.
func identityFails(err error) option {
	return func(c *Config) {
		c.Identify = func(*http.Request) (*caller.Identity, error) {
			if err == nil {
				panic("a bug")
			}
			return nil, err
		}
	}
}

func TestFailureIsReported(t *testing.T) {
	upstreamFails := func(err error) option {
		return failing(func(*http.Request) (*http.Response, error) { return nil, err })
	}
	dialFails := func(err error) option { return upstreamFails(&net.OpError{Op: "dial", Net: "tcp", Err: err}) }
	unknownName := &net.DNSError{Err: "no such host", Name: "secret.internal", IsNotFound: true}
	unavailable := fmt.Errorf("%w: issuer https://issuer.internal is away", caller.ErrIdentityUnavailable)
	for _, c := range []struct {
		name    string
		option  option
		status  int
		message string
		fields  []string
	}{
		{"connection refused", dialFails(syscall.ECONNREFUSED), 502, "refuses connections", nil},
		{"unknown host name", dialFails(unknownName), 502, "name cannot be resolved", nil},
		{"no route to the host", dialFails(syscall.EHOSTUNREACH), 502, "cannot be reached", nil},
		{"connection reset", upstreamFails(syscall.ECONNRESET), 502, "broke the connection", nil},
		{"connection closed", upstreamFails(io.ErrUnexpectedEOF), 502, "broke the connection", nil},
		{"malformed response", upstreamFails(errors.New("malformed HTTP response")), 502, "no valid answer", nil},
		{"unknown client", identityFails(fmt.Errorf("%w: unknown key", caller.ErrUnauthenticated)), 401, "This gateway refuses the credential", []string{"Cache-Status: weir; detail=key", `WWW-Authenticate: Bearer realm="weir"`}},
		{
			"unavailable identity provider", identityFails(unavailable), 503, "Service Unavailable: identity provider unavailable",
			[]string{"Retry-After: 10", "Cache-Status: weir; detail=identity"},
		},
		{"panic", identityFails(nil), 500, "Internal Server Error", nil},
	} {
		setup(nothing, c.option, github).sub(t, c.name, func(w *world) {
			r := w.get("/user", bearer("a"))
			w.refused(r, c.status, c.message)
			w.wantHeader(r, c.fields...)
			w.want("requests upstream", w.upstreamSaw(), 0)
			failIf(w, strings.Contains(r.body, ".internal"), "the body contains an internal address: %s", r.body)
		})
	}
}

// TestRefusedCredentialHasNoBudget sends a token that the upstream refuses, twice: the second 401 may be the gateway's.
func TestRefusedCredentialHasNoBudget(t *testing.T) {
	setup(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }).run(t, func(w *world) {
		for range 2 {
			r := w.get("/user", bearer("wrong"))
			w.want("status", r.StatusCode, http.StatusUnauthorized)
			w.wantHeader(r, "X-RateLimit-Limit: ", "X-RateLimit-Remaining: ")
		}
	})
}

func TestHangingUpstreamEndsWith504(t *testing.T) {
	setup(hang).run(t, func(w *world) {
		began := time.Now()
		w.refused(w.get("/gitignore/templates/Go", "Prefer: wait=300"), 504, "in time")
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
		failIf(w, r.err == nil, "got the complete body %q, want an aborted response", r.body)
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

// scoped identifies every caller as the client "builds" with this scope.
func scoped(s policy.Scope) option {
	return identifying(func(_ *http.Request, id *caller.Identity) {
		id.Client, id.Scope = "builds", &s
	})
}

func TestCallOutsideTheScopeIsRefusedLocally(t *testing.T) {
	setup(nothing, scoped(policy.Scope{Methods: []string{"GET"}, Operations: []string{"watching/*", "gitignore/get-template"}})).run(t, func(w *world) {
		for _, c := range []struct{ method, path, call string }{
			{"GET", "/user", "GET unknown"},
			{"HEAD", "/search/code?q=x", "HEAD search/code"},
			{"GET", "/api/v3/search/code?q=x", "GET search/code"},
			{"PUT", "/user/subscriptions/acme/widgets", "PUT unknown"},
			{"POST", "/graphql", "POST graphql"},
			{"GET", "/rate_limit", "GET rate-limit/get"},
			{"GET", "/gitignore/templates", "GET gitignore/list-templates"},
			{"GET", "/search/code", "GET search/code"}, // the scope is checked before preflight
		} {
			r := w.do(c.method, c.path, nil, "Authorization: Bearer a", "Prefer: wait=0")
			failIf(w, r.StatusCode != 403 || r.Header.Get("Cache-Status") != "weir; detail=scope", "%s %s: got %d, %s, want 403 for the scope", c.method, c.path, r.StatusCode, r.Header.Get("Cache-Status"))
			want := fmt.Sprintf(`does not let its client \"builds\" call %s"`, c.call)
			failIf(w, c.method != "HEAD" && !strings.Contains(r.body, want), "%s %s: got %s, want %s", c.method, c.path, r.body, want)
		}
		w.want("requests upstream", w.upstreamSaw(), 0)
		used := func() string {
			return w.get("/gitignore/templates/Go", "Authorization: Bearer a").Header.Get("X-Ratelimit-Used")
		}
		w.want("quota used after the first allowed call", used(), "1")
		w.want("requests upstream", w.upstreamSaw(), 1)
	})
}

func TestScopeAppliesToStoredResponses(t *testing.T) {
	setup(nothing, identifying(func(r *http.Request, id *caller.Identity) {
		if strings.HasSuffix(r.Header.Get("Authorization"), "scoped") {
			id.Scope = &policy.Scope{Operations: []string{"search/*"}}
		}
	})).run(t, func(w *world) {
		w.want("status of an allowed client", w.get("/gitignore/templates", "Authorization: Bearer a").StatusCode, 200)
		w.want("status of a scoped client", w.get("/gitignore/templates", "Authorization: Bearer scoped").StatusCode, 403)
	})
}

func TestLoopIsAnsweredWith508(t *testing.T) {
	for _, gateways := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			listeners := map[string]*testservers.PipeListener{}
			names := []string{"a.test", "b.test", "c.test"}[:gateways]
			transport := wire.NewTransport()
			defer transport.CloseIdleConnections()
			transport.DialContext = func(ctx context.Context, _, address string) (net.Conn, error) {
				return listeners[address].Dial(ctx, "", "")
			}
			for i, name := range names {
				w := newWorld(t, nothing, func(c *Config) {
					c.Upstream = &url.URL{Scheme: "http", Host: names[(i+1)%gateways]}
					c.Transport = transport
				})
				address := name + ":80"
				listeners[address] = testservers.ServePipe(t, testservers.PipeAddress(address), &http.Server{Handler: w.gateway})
			}
			client := http.Client{Transport: transport}
			for _, path := range []string{"/repos/acme/widgets", "/made/up"} {
				began := time.Now()
				r, err := client.Get("http://a.test" + path)
				noError(t, err)
				_ = r.Body.Close()
				took := time.Since(began)
				failIf(t, r.StatusCode != http.StatusLoopDetected || took > time.Second, "%d gateways, %s: got %d after %v, want 508 within a second", gateways, path, r.StatusCode, took)
			}
		})
	}
}

func TestViaNamesTheProtocolOfTheClient(t *testing.T) {
	setup(nothing).run(t, func(w *world) {
		w.get("/users/a")
		r := receive(w.http2Client().Do(w.newRequest(context.Background(), http.MethodGet, "https://gateway.test/users/b", nil)))
		w.wantReply("HTTP/2", r, http.StatusOK)
		_ = w.raw("GET /users/c HTTP/1.0\r\nHost: gateway.test\r\n\r\n")
		_ = w.raw("GET /users/d HTTP/1.2\r\nHost: gateway.test\r\nConnection: close\r\n\r\n")
		for i, version := range []string{"1.1", "2.0", "1.0", "1.1"} {
			w.want("Via", w.seen.all()[i].Header.Get("Via"), version+" "+w.gateway.screen.Name)
		}
	})
}

// RFC 9110 section 7.6.2.
func TestMaxForwardsOfOptions(t *testing.T) {
	setup(responds(http.StatusNoContent, "Allow: GET")).run(t, func(w *world) {
		for _, c := range []struct{ method, sent, forwarded, allow string }{
			{http.MethodOptions, "0", "none", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"},
			{http.MethodOptions, "00", "none", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"},
			{http.MethodOptions, "1", "0", "GET"},
			{http.MethodOptions, "70", "69", "GET"},
			{http.MethodOptions, "", "", "GET"},
			{http.MethodOptions, "-1", "", "GET"},
			{http.MethodOptions, "x", "", "GET"},
			{http.MethodGet, "0", "", "GET"},
			{http.MethodTrace, "1", "none", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"},
		} {
			before := w.upstreamSaw()
			r := w.do(c.method, "/users/a", nil, "Max-Forwards: "+c.sent)
			got := "none"
			if w.upstreamSaw() > before {
				got = w.lastSeen().Header.Get("Max-Forwards")
			}
			w.want(c.method+" "+c.sent+" Allow", r.Header.Get("Allow"), c.allow)
			w.want(c.method+" "+c.sent+" forwarded", got, c.forwarded)
		}
	})
}

func TestViaOfTheClientIsKept(t *testing.T) {
	setup(nothing).run(t, func(w *world) {
		for _, path := range []string{"/users/a", "/made/up"} {
			w.get(path, "Via: 1.0 fred, 1.1 weir-other", "Via: HTTP/2 edge (a, b)")
		}
		for _, r := range w.seen.all() {
			want := []string{"1.0 fred, 1.1 weir-other", "HTTP/2 edge (a, b)", "1.1 " + w.gateway.screen.Name}
			failIf(w, !slices.Equal(r.Header["Via"], want), "%s: the upstream got Via %q, want %q", r.URL.Path, r.Header["Via"], want)
		}
	})
}
