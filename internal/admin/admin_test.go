package admin

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weirgate/weir/limits"
)

func sources() Sources {
	return Sources{
		Accounts: func(context.Context, int) ([]limits.Account, error) { return []limits.Account{{Name: "ci"}}, nil },
		Requests: func() any { return []string{"one"} },
		Config:   func() any { return map[string]string{"token": "•••"} },
		Reload:   func() error { return nil },
		Cache:    func() (int, uint64) { return 3, 4096 },
	}
}

func TestPages(t *testing.T) {
	broken := sources()
	broken.Accounts = func(context.Context, int) ([]limits.Account, error) { return nil, errors.New("the store is lost") }
	broken.Reload = func() error { return errors.New("weir.yaml:3:1: unknown key") }
	for _, c := range []struct {
		name, method, path string
		sources            Sources
		fields             []string
		token              string
		status             int
		says               string
	}{
		{"index", "GET", "/", sources(), nil, "", 200, "/api/v1/accounts"},
		{"health", "GET", "/healthz", sources(), nil, "", 200, "ok"},
		{"readiness", "GET", "/readyz", sources(), nil, "", 200, "ok"},
		{"accounts", "GET", "/api/v1/accounts", sources(), nil, "", 200, `"account": "ci"`},
		{"accounts without a store", "GET", "/api/v1/accounts", broken, nil, "", 503, "the store is lost"},
		{"requests", "GET", "/api/v1/requests", sources(), nil, "", 200, `"one"`},
		{"configuration", "GET", "/api/v1/config", sources(), nil, "", 200, "•••"},
		{"cache", "GET", "/api/v1/cache", sources(), nil, "", 200, `"keys": 3`},
		{"reload", "POST", "/api/v1/reload", sources(), nil, "", 200, `"reloaded": true`},
		{"reload of an invalid file", "POST", "/api/v1/reload", broken, nil, "", 422, "weir.yaml:3:1"},
		{"reload by GET", "GET", "/api/v1/reload", sources(), nil, "", 405, ""},
		{"reload from another site", "POST", "/api/v1/reload", sources(), []string{"Sec-Fetch-Site: cross-site"}, "", 403, ""},
		{"reload from another origin", "POST", "/api/v1/reload", sources(), []string{"Origin: http://evil.test"}, "", 403, ""},
		{"a path that only begins alike", "GET", "/api/v1/configuration", sources(), nil, "", 404, ""},
		{"health needs no token", "GET", "/healthz", sources(), nil, "secret", 200, "ok"},
		{"without the token", "GET", "/api/v1/accounts", sources(), nil, "secret", 401, "token"},
		{"with a wrong token", "GET", "/api/v1/accounts", sources(), []string{"Authorization: Bearer secre"}, "secret", 401, "token"},
		{"with the token", "GET", "/api/v1/accounts", sources(), []string{"Authorization: Bearer secret"}, "secret", 200, "ci"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest(c.method, "http://127.0.0.1:9090"+c.path, nil)
			for _, f := range c.fields {
				name, value, _ := strings.Cut(f, ": ")
				r.Header.Set(name, value)
			}
			w := httptest.NewRecorder()
			Handler(c.token, c.sources).ServeHTTP(w, r)
			if w.Code != c.status || !strings.Contains(w.Body.String(), c.says) {
				t.Errorf("got %d %q", w.Code, w.Body)
			}
		})
	}
}

func TestUnauthorizedSaysHow(t *testing.T) {
	w := httptest.NewRecorder()
	Handler("secret", sources()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Header().Get("WWW-Authenticate") == "" {
		t.Error("401 without WWW-Authenticate")
	}
}
