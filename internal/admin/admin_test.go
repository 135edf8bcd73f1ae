package admin

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/limits"
)

func TestEndpointsRespondWithDataOrProblem(t *testing.T) {
	for _, c := range []struct {
		name, request, field, token string
		broken, stopping            bool
		status                      int
		contains                    string
	}{
		{name: "index", request: "GET /", status: 200, contains: "/api/v1/accounts"},
		{name: "health", request: "GET /healthz", status: 200, contains: "ok"},
		{name: "readiness", request: "GET /readyz", status: 200, contains: "ok"},
		{name: "readiness during shutdown", request: "GET /readyz", stopping: true, status: 503, contains: "stopping"},
		{name: "health during shutdown", request: "GET /healthz", stopping: true, status: 200, contains: "ok"},
		{name: "accounts", request: "GET /api/v1/accounts", status: 200, contains: `"account": "ci"`},
		{name: "accounts without a store", request: "GET /api/v1/accounts", broken: true, status: 503, contains: "the store is lost"},
		{name: "requests", request: "GET /api/v1/requests", status: 200, contains: `"one"`},
		{name: "configuration", request: "GET /api/v1/config", status: 200, contains: "•••"},
		{name: "cache", request: "GET /api/v1/cache", status: 200, contains: `"keys": 3`},
		{name: "reload", request: "POST /api/v1/reload", status: 200, contains: `"reloaded": true`},
		{name: "reload of an invalid file", request: "POST /api/v1/reload", broken: true, status: 422, contains: "weir.yaml:3:1"},
		{name: "audit trail", request: "GET /api/v1/audit", status: 200, contains: "[]"},
		{name: "purge with a body that is too large", request: `POST /api/v1/cache/purge {"tag": "` + strings.Repeat("a", maxBody) + `"}`, status: 400, contains: "too large"},
		{name: "purge by tag", request: `POST /api/v1/cache/purge {"tag": "op:x"}`, status: 200, contains: `"entries": 4`},
		{name: "purge by URL", request: `POST /api/v1/cache/purge {"url": "/a", "hard": true}`, status: 200, contains: `"entries": 2`},
		{name: "purge without a target", request: `POST /api/v1/cache/purge {}`, status: 400, contains: "either tag or url"},
		{name: "purge by tag and URL", request: `POST /api/v1/cache/purge {"tag": "t", "url": "/a"}`, status: 400, contains: "either tag or url"},
		{name: "purge with an unknown field", request: `POST /api/v1/cache/purge {"tags": ["t"]}`, status: 400, contains: "tags"},
		{name: "purge without JSON", request: `POST /api/v1/cache/purge tag=t`, status: 400, contains: "send {"},
		{name: "purge by an invalid URL", request: `POST /api/v1/cache/purge {"url": "http://["}`, status: 400, contains: "no URL"},
		{name: "open a closed account", request: `POST /api/v1/accounts/open {"account": "ci"}`, status: 200, contains: `"opened": true`},
		{name: "open an account that is not closed", request: `POST /api/v1/accounts/open {"account": "other"}`, status: 400, contains: "not closed"},
		{name: "open without a store", request: `POST /api/v1/accounts/open {"account": "ci"}`, broken: true, status: 503, contains: "the store is lost"},
		{name: "open without a name", request: `POST /api/v1/accounts/open {}`, status: 400, contains: "send {"},
		{name: "open with an unknown field", request: `POST /api/v1/accounts/open {"name": "ci"}`, status: 400, contains: "name"},
		{name: "unknown path with a known prefix", request: "GET /api/v1/configuration", status: 404},
		{name: "health needs no token", request: "GET /healthz", token: "secret", status: 200, contains: "ok"},
		{name: "with a wrong token", request: "GET /api/v1/accounts", field: "Authorization: Bearer secre", token: "secret", status: 401, contains: "token"},
		{name: "with the token", request: "GET /api/v1/accounts", field: "Authorization: Bearer secret", token: "secret", status: 200, contains: "ci"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := sources()
			if c.broken {
				s.Accounts = func(context.Context, int) ([]limits.Account, error) { return nil, errLost }
				s.Reload = func() error { return errors.New("weir.yaml:3:1: unknown key") }
				s.Open = func(context.Context, string) error { return errLost }
			}
			s.Ready = func() bool { return !c.stopping }
			w := expectResponse(t, Handler(Access{Token: credential.Secret(c.token)}, s), c.request, c.status, c.contains, c.field)
			challenge := w.Header().Get("WWW-Authenticate")
			failIf(t, (challenge != "") != (c.status == 401), "the challenge is %q", challenge)
		})
	}
}

// TestEveryEndpointIsProtected sends requests of other sites and requests without the token to each endpoint.
func TestEveryEndpointIsProtected(t *testing.T) {
	s := sources()
	changes := []string{
		"POST /api/v1/reload", `POST /api/v1/cache/purge {"tag": "t"}`, `POST /api/v1/accounts/open {"account": "ci"}`,
	}
	for _, request := range append(changes, "GET /api/v1/audit", "GET /api/v1/trends?range=7d", "GET /api/v1/accounts") {
		expectResponse(t, Handler(Access{Token: "secret"}, s), request, 401, "token")
	}
	for _, request := range changes {
		for _, field := range []string{"Sec-Fetch-Site: cross-site", "Origin: http://evil.test"} {
			expectResponse(t, Handler(Access{}, s), request, 403, "", field)
		}
	}
	equal(t, "audit trail", s.Trail.Last(), []Change{})
	for _, path := range []string{"/api/v1/reload", "/api/v1/cache/purge", "/api/v1/accounts/open"} {
		expectResponse(t, Handler(Access{}, s), "GET "+path, 405, "")
	}
}

// Text of clients and of the upstream appears as escaped JSON strings, which a browser cannot interpret as HTML.
func TestJSONEscapesHTML(t *testing.T) {
	const evil = `</script><script>alert(1)</script><img src=x onerror="alert(1)">&`
	hostile := sources()
	hostile.Accounts = func(context.Context, int) ([]limits.Account, error) { return []limits.Account{{Name: evil}}, nil }
	hostile.Requests = func() any { return []map[string]string{{evil: evil}} }
	hostile.Config = func() any { return evil }
	for _, path := range []string{"/api/v1/accounts", "/api/v1/requests", "/api/v1/config"} {
		w := send(Handler(Access{}, hostile), "GET "+path)
		if w.Header().Get("Content-Type") != "application/json; charset=utf-8" || !strings.Contains(w.Body.String(), "alert(1)") ||
			strings.ContainsAny(w.Body.String(), "<>&") {
			t.Errorf("%s: want escaped JSON, got %d %v %s", path, w.Code, w.Header(), w.Body)
		}
	}
}

// A request whose body ends early changes nothing, even if the bytes that arrived are valid JSON.
func TestHalfRequestsChangeNothing(t *testing.T) {
	changed := 0
	s := sources()
	s.Purge = func(Purge) (int, error) { changed++; return 0, nil }
	s.Open = func(context.Context, string) error { changed++; return nil }
	s.Reload = func() error { changed++; return nil }
	h := Handler(Access{}, s)
	for _, request := range []string{
		`POST /api/v1/cache/purge {"tag": "op:user/get"}`, `POST /api/v1/accounts/open {"account": "ci"}`, `POST /api/v1/reload {}`,
	} {
		r := newRequest(request)
		r.Body = io.NopCloser(io.MultiReader(r.Body, iotest.ErrReader(io.ErrUnexpectedEOF)))
		w := serve(h, r)
		failIf(t, w.Code != http.StatusBadRequest, "%s: got %d %q, want 400", request, w.Code, w.Body)
	}
	equal(t, "changes", changed, 0)
}
