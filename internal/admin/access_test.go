package admin

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// respond returns the response of a handler to one request.
func respond(h http.Handler, method, target string, change func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(`{"tag":"op:x"}`))
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestChangesFromOtherSitesAreRefused(t *testing.T) {
	header := func(fields ...string) func(*http.Request) {
		return func(r *http.Request) {
			for i := 0; i < len(fields); i += 2 {
				r.Header.Set(fields[i], fields[i+1])
			}
		}
	}
	for _, c := range []struct {
		name   string
		host   string
		change func(*http.Request)
		status int
	}{
		{"not a browser", "127.0.0.1:9090", nil, 200},
		{"same origin", "localhost:9090", header("Origin", "http://localhost:9090", "Sec-Fetch-Site", "same-origin"), 200},
		{"same origin in a browser without fetch metadata", "localhost:9090", header("Origin", "http://localhost:9090"), 200},
		{"cross-site", "localhost:9090", header("Origin", "http://evil.test", "Sec-Fetch-Site", "cross-site"), 403},
		{"cross-site in a browser without fetch metadata", "localhost:9090", header("Origin", "http://evil.test"), 403},
		{"another port of the same host", "localhost:9090", header("Origin", "http://localhost:3000", "Sec-Fetch-Site", "same-site"), 403},
		{"sandboxed frame", "localhost:9090", header("Origin", "null"), 403},
		{"JSON sent by a form", "localhost:9090", header("Origin", "http://evil.test", "Content-Type", "text/plain"), 403},
		{"DNS rebinding", "evil.test:9090", header("Origin", "http://evil.test:9090", "Sec-Fetch-Site", "same-origin"), 403},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := sources()
			purged := false
			s.Purge = func(Purge) (int, error) { purged = true; return 1, nil }
			w := respond(Handler(Access{}, s), http.MethodPost, "http://"+c.host+"/api/v1/cache/purge", c.change)
			if w.Code != c.status || purged != (c.status == 200) {
				t.Errorf("%d %s, purged: %v", w.Code, w.Body, purged)
			}
		})
	}
}

func TestUnknownHostsAreRefused(t *testing.T) {
	for host, status := range map[string]int{
		"localhost": 200, "LOCALHOST:9090": 200, "127.0.0.1": 200, "[::1]:9090": 200, "10.1.2.3:9090": 200, "[fe80::1]": 200,
		"weir.internal:9090": 200, "Weir.Internal": 200,
		"evil.test": 403, "localhost.evil.test:9090": 403, "127.0.0.1.evil.test": 403, "localhost.": 403, "weir.internal.evil.test": 403, "": 403, "0x7f000001": 403,
	} {
		for _, target := range []string{"/", "/api/v1/accounts", "/none"} {
			w := respond(Handler(Access{Hosts: []string{"weir.internal"}}, sources()), http.MethodGet, target, func(r *http.Request) { r.Host = host })
			want := status
			if want == 200 && target == "/none" {
				want = 404
			}
			if w.Code != want {
				t.Errorf("%s at %q: %d %s", target, host, w.Code, w.Body)
			}
		}
		if w := respond(Handler(Access{}, sources()), http.MethodGet, "/healthz", func(r *http.Request) { r.Host = host }); w.Code != 200 {
			t.Errorf("health at %q: %d", host, w.Code)
		}
	}
}

func TestPathsMatchExactly(t *testing.T) {
	for target, want := range map[string]int{
		"/api/v1/config": 200, "/api/v1/config?x=1": 200,
		"/api/v1/config/": 404, "/api/v1/config/0": 404, "/api/v1/config00": 404, "/api/v1": 404, "/api/v1/": 404,
		"//api/v1/config": 404, "/api//v1/config": 404, "/api/v1/../v1/config": 404, "/./api/v1/config": 404, "/healthz/../api/v1/config": 404,
		"/api/v1/%63onfig": 404, "/api%2Fv1%2Fconfig": 404, "/api/v1/config%00": 404, "/API/v1/config": 404, "/healthz/": 404, "/healthz;/api/v1/config": 404,
	} {
		for _, c := range []struct {
			token string
			want  int
		}{{"secret", want}, {"wrong", 401}} {
			w := respond(Handler(Access{Token: "secret"}, sources()), http.MethodGet, "http://localhost"+target, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+c.token) })
			if w.Code != c.want {
				t.Errorf("%s with the token %q: %d, want %d", target, c.token, w.Code, c.want)
			}
		}
	}
}

func TestWrongMethodListsTheAllowedMethods(t *testing.T) {
	for path, allow := range map[string]string{"/": "GET, HEAD", "/healthz": "GET, HEAD", "/api/v1/config": "GET, HEAD", "/api/v1/reload": "POST", "/api/v1/cache/purge": "POST"} {
		for _, method := range []string{"PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "FOO"} {
			if w := respond(Handler(Access{}, sources()), method, "http://localhost"+path, nil); w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != allow {
				t.Errorf("%s %s: %d, Allow %q", method, path, w.Code, w.Header().Get("Allow"))
			}
		}
	}
}

func TestEveryResponseForbidsScriptsAndFraming(t *testing.T) {
	broken := sources()
	broken.Reload = func() error { return errors.New("<script>alert(1)</script>") }
	h := Handler(Access{}, broken)
	for _, c := range []struct{ method, target string }{
		{"GET", "http://localhost/"}, {"GET", "http://localhost/healthz"}, {"GET", "http://localhost/api/v1/config"}, {"GET", "http://localhost/none"},
		{"PUT", "http://localhost/"}, {"POST", "http://localhost/api/v1/reload"}, {"GET", "http://evil.test/"},
	} {
		w := respond(h, c.method, c.target, nil)
		csp := w.Header().Get("Content-Security-Policy")
		for name, want := range map[string]string{"X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store", "Access-Control-Allow-Origin": ""} {
			if got := w.Header().Get(name); got != want {
				t.Errorf("%s %s: %s is %q, want %q", c.method, c.target, name, got, want)
			}
		}
		if !strings.Contains(csp, "default-src 'none'") || !strings.Contains(csp, "frame-ancestors 'none'") || strings.Contains(csp, "unsafe") || strings.Contains(w.Header().Get("Content-Type"), "html") {
			t.Errorf("%s %s: the header allows scripts or frames: %v", c.method, c.target, w.Header())
		}
	}
}

func TestChangesAreAudited(t *testing.T) {
	var log bytes.Buffer
	s := sources()
	s.Trail = NewTrail(slog.New(slog.NewTextHandler(&log, nil)))
	s.Reload = func() error { return errors.New("weir.yaml:1:1: no") }
	s.Purge = func(p Purge) (int, error) { return len(p.Tag), nil }
	own := newAuthority(t)
	ops := own.connection(&x509.Certificate{Subject: pkix.Name{CommonName: "ops\nlevel=ERROR"}})
	h := Handler(Access{Token: "secret", Authorities: own.pool}, s)
	respond(h, http.MethodPost, "http://localhost/api/v1/reload", func(r *http.Request) { r.Header.Set("Authorization", "Bearer secret") })
	respond(h, http.MethodPost, "http://localhost/api/v1/cache/purge", func(r *http.Request) { r.TLS = ops })
	respond(h, http.MethodPost, "http://localhost/api/v1/cache/purge", nil) // without authentication the purge is refused
	got := fmt.Sprint(len(s.Trail.Last()))
	for _, c := range s.Trail.Last() {
		got += fmt.Sprintf("\n%s|%s|%s|%s|%s|%v", c.Operator, c.Address, c.Action, c.Target, c.Outcome, c.Time.IsZero())
	}
	want := "2\ncertificate CN=ops\nlevel=ERROR|192.0.2.1:1234|purge|op:x|4 entries|false\ntoken|192.0.2.1:1234|reload|configuration|failed: weir.yaml:1:1: no|false"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if lines := strings.Split(strings.TrimSpace(log.String()), "\n"); len(lines) != 2 || !strings.Contains(lines[0], `msg=audit operator=token address=192.0.2.1:1234 action=reload target=configuration outcome="failed: weir.yaml:1:1: no"`) {
		t.Errorf("audit log: %s", log.String())
	}
}

func TestTrailIsBounded(t *testing.T) {
	trail := NewTrail(slog.New(slog.DiscardHandler))
	for i := range maxChanges + 10 {
		trail.Record(Change{Action: fmt.Sprint(i), Target: strings.Repeat("x", 2*maxText)})
	}
	last := trail.Last()
	if len(last) != maxChanges || last[0].Action != fmt.Sprint(maxChanges+9) || last[maxChanges-1].Action != "10" || len(last[0].Target) != maxText {
		t.Errorf("%d, from %s to %s, %d bytes", len(last), last[0].Action, last[len(last)-1].Action, len(last[0].Target))
	}
}
