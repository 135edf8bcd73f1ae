package admin

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/history"
	"github.com/weirgate/weir/limits"
)

func sources() Sources {
	return Sources{
		Ready:    func() bool { return true },
		History:  history.New(history.Sources{Waiting: func() map[limits.ClientResource]int { return nil }}),
		Accounts: func(context.Context, int) ([]limits.Account, error) { return []limits.Account{{Name: "ci"}}, nil },
		Requests: func() any { return []string{"one"} },
		Config:   func() any { return map[string]string{"token": "•••"} },
		Reload:   func() error { return nil },
		Cache:    func() (int, uint64) { return 3, 4096 },
		Trail:    NewTrail(slog.New(slog.DiscardHandler)),
		Purge: func(p Purge) (int, error) {
			if p.URL == "http://[" {
				return 0, errors.New("no URL")
			}
			return len(p.Tag + p.URL), nil
		},
		Open: func(_ context.Context, account string) error {
			if account != "ci" {
				return limits.ErrNotClosed
			}
			return nil
		},
	}
}

func TestEndpointsRespondWithDataOrProblem(t *testing.T) {
	broken := sources()
	broken.Accounts = func(context.Context, int) ([]limits.Account, error) { return nil, errors.New("the store is lost") }
	broken.Reload = func() error { return errors.New("weir.yaml:3:1: unknown key") }
	broken.Open = func(context.Context, string) error { return errors.New("the store is lost") }
	stopping := sources()
	stopping.Ready = func() bool { return false }
	for _, c := range []struct {
		name, method, path string
		sources            Sources
		fields             []string
		token              string
		status             int
		contains           string
	}{
		{"index", "GET", "/", sources(), nil, "", 200, "/api/v1/accounts"},
		{"health", "GET", "/healthz", sources(), nil, "", 200, "ok"},
		{"readiness", "GET", "/readyz", sources(), nil, "", 200, "ok"},
		{"readiness during shutdown", "GET", "/readyz", stopping, nil, "", 503, "stopping"},
		{"health during shutdown", "GET", "/healthz", stopping, nil, "", 200, "ok"},
		{"accounts", "GET", "/api/v1/accounts", sources(), nil, "", 200, `"account": "ci"`},
		{"accounts without a store", "GET", "/api/v1/accounts", broken, nil, "", 503, "the store is lost"},
		{"requests", "GET", "/api/v1/requests", sources(), nil, "", 200, `"one"`},
		{"configuration", "GET", "/api/v1/config", sources(), nil, "", 200, "•••"},
		{"cache", "GET", "/api/v1/cache", sources(), nil, "", 200, `"keys": 3`},
		{"reload", "POST", "/api/v1/reload", sources(), nil, "", 200, `"reloaded": true`},
		{"reload of an invalid file", "POST", "/api/v1/reload", broken, nil, "", 422, "weir.yaml:3:1"},
		{"audit trail", "GET", "/api/v1/audit", sources(), nil, "", 200, "[]"},
		{"audit trail without the token", "GET", "/api/v1/audit", sources(), nil, "secret", 401, "token"},
		{"purge with a body that is too large", "POST", `/api/v1/cache/purge {"tag": "` + strings.Repeat("a", maxBody) + `"}`, sources(), nil, "", 400, "too large"},
		{"trends without the token", "GET", "/api/v1/trends?range=7d", sources(), nil, "secret", 401, "token"},
		{"reload by GET", "GET", "/api/v1/reload", sources(), nil, "", 405, ""},
		{"reload from another site", "POST", "/api/v1/reload", sources(), []string{"Sec-Fetch-Site: cross-site"}, "", 403, ""},
		{"reload from another origin", "POST", "/api/v1/reload", sources(), []string{"Origin: http://evil.test"}, "", 403, ""},
		{"purge by tag", "POST", `/api/v1/cache/purge {"tag": "op:x"}`, sources(), nil, "", 200, `"entries": 4`},
		{"purge by URL", "POST", `/api/v1/cache/purge {"url": "/a", "hard": true}`, sources(), nil, "", 200, `"entries": 2`},
		{"purge without a target", "POST", `/api/v1/cache/purge {}`, sources(), nil, "", 400, "either tag or url"},
		{"purge by tag and URL", "POST", `/api/v1/cache/purge {"tag": "t", "url": "/a"}`, sources(), nil, "", 400, "either tag or url"},
		{"purge with an unknown field", "POST", `/api/v1/cache/purge {"tags": ["t"]}`, sources(), nil, "", 400, "tags"},
		{"purge without JSON", "POST", `/api/v1/cache/purge tag=t`, sources(), nil, "", 400, "send {"},
		{"purge by an invalid URL", "POST", `/api/v1/cache/purge {"url": "http://["}`, sources(), nil, "", 400, "no URL"},
		{"purge by GET", "GET", `/api/v1/cache/purge`, sources(), nil, "", 405, ""},
		{"purge from another site", "POST", `/api/v1/cache/purge {"tag": "t"}`, sources(), []string{"Sec-Fetch-Site: cross-site"}, "", 403, ""},
		{"purge without the token", "POST", `/api/v1/cache/purge {"tag": "t"}`, sources(), nil, "secret", 401, "token"},
		{"open a closed account", "POST", `/api/v1/accounts/open {"account": "ci"}`, sources(), nil, "", 200, `"opened": true`},
		{"open an account that is not closed", "POST", `/api/v1/accounts/open {"account": "other"}`, sources(), nil, "", 400, "not closed"},
		{"open without a store", "POST", `/api/v1/accounts/open {"account": "ci"}`, broken, nil, "", 503, "the store is lost"},
		{"open without a name", "POST", `/api/v1/accounts/open {}`, sources(), nil, "", 400, "send {"},
		{"open with an unknown field", "POST", `/api/v1/accounts/open {"name": "ci"}`, sources(), nil, "", 400, "name"},
		{"open by GET", "GET", `/api/v1/accounts/open`, sources(), nil, "", 405, ""},
		{"open from another site", "POST", `/api/v1/accounts/open {"account": "ci"}`, sources(), []string{"Sec-Fetch-Site: cross-site"}, "", 403, ""},
		{"open without the token", "POST", `/api/v1/accounts/open {"account": "ci"}`, sources(), nil, "secret", 401, "token"},
		{"unknown path with a known prefix", "GET", "/api/v1/configuration", sources(), nil, "", 404, ""},
		{"health needs no token", "GET", "/healthz", sources(), nil, "secret", 200, "ok"},
		{"without the token", "GET", "/api/v1/accounts", sources(), nil, "secret", 401, "token"},
		{"with a wrong token", "GET", "/api/v1/accounts", sources(), []string{"Authorization: Bearer secre"}, "secret", 401, "token"},
		{"with the token", "GET", "/api/v1/accounts", sources(), []string{"Authorization: Bearer secret"}, "secret", 200, "ci"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path, body, _ := strings.Cut(c.path, " ")
			r := httptest.NewRequest(c.method, "http://127.0.0.1:9090"+path, strings.NewReader(body))
			for _, f := range c.fields {
				name, value, _ := strings.Cut(f, ": ")
				r.Header.Set(name, value)
			}
			w := httptest.NewRecorder()
			Handler(Access{Token: credential.Secret(c.token)}, c.sources).ServeHTTP(w, r)
			if w.Code != c.status || !strings.Contains(w.Body.String(), c.contains) {
				t.Errorf("got %d %q", w.Code, w.Body)
			}
		})
	}
}

func TestUnauthorizedResponseHasAChallenge(t *testing.T) {
	w := httptest.NewRecorder()
	Handler(Access{Token: "secret"}, sources()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/", nil))
	if w.Header().Get("WWW-Authenticate") == "" {
		t.Error("401 without WWW-Authenticate")
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
		w := respond(Handler(Access{}, hostile), http.MethodGet, "http://localhost"+path, nil)
		if w.Header().Get("Content-Type") != "application/json; charset=utf-8" || !strings.Contains(w.Body.String(), "alert(1)") || strings.ContainsAny(w.Body.String(), "<>&") {
			t.Errorf("%s: want escaped JSON, got %d %v %s", path, w.Code, w.Header(), w.Body)
		}
	}
}
