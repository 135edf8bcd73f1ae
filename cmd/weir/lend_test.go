package main

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/weirgate/weir/internal/config"
)

// TestAnonymousClientsReadWithTheLentCredential checks which requests get the lent credential. All other requests of
// clients without a credential are forwarded without one, or refused.
func TestAnonymousClientsReadWithTheLentCredential(t *testing.T) {
	const lent, none, refused = "Bearer tok-lent", "", "refused"
	for _, passThrough := range []bool{true, false} {
		var got atomic.Value
		up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got.Store(r.Header.Get("Authorization"))
			w.Header().Set("Cache-Control", "no-store")
		}))
		t.Cleanup(up.Close)
		cfg := config.Default()
		cfg.Upstream.URL, cfg.Upstream.Dialect, cfg.Limits.ColdStart, cfg.Callers.PassThrough = up.URL, "github", "trust", passThrough
		cfg.Credentials = []config.Credential{
			{Name: "public", Kind: "user", Account: "bot", Token: "tok-lent"}, {Name: "private", Kind: "user", Account: "ci", Token: "tok-private"},
		}
		cfg.Clients = []config.Client{{Name: "builds", Key: keyHash("weir_key"), Share: 1, Limit: 0.9, Priority: "normal", Pace: "burst", Credentials: []string{"private"}}}
		cfg.Callers.Anonymous = config.Lending{Credential: "public", Operations: []string{"*"}}
		g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(g.close)
		otherwise := refused
		if passThrough {
			otherwise = none
		}
		for _, c := range []struct{ method, target, authorization, want string }{
			{"GET", "/repos/acme/widgets", "", lent},
			{"HEAD", "/repos/acme/widgets", "", lent},
			{"GET", "/repos/acme/widgets/releases/latest", "", lent},
			{"GET", "/repos/acme/widgets", "Bearer weir_key", "Bearer tok-private"},
			{"GET", "/repos/acme/widgets", "Bearer weir_WRONGKEYWRONGKEYWRONGKEY12", refused},
			{"GET", "/repos/acme/widgets", "Negotiate x", refused},
			{"GET", "/issues", "", otherwise},
			{"GET", "/user", "", otherwise},
			{"GET", "/user/repos", "", otherwise},
			{"GET", "/notifications", "", otherwise},
			{"GET", "/made/up", "", otherwise},
			{"GET", "/repos/acme/widgets/made-up", "", otherwise},
			{"GET", "/repos/acme/widgets/hooks", "", otherwise},
			{"GET", "/repos/acme/widgets/hooks/1/deliveries", "", otherwise},
			{"GET", "/repos/acme/widgets/keys", "", otherwise},
			{"GET", "/repos/acme/widgets/traffic/views", "", otherwise},
			{"GET", "/repos/acme/widgets/traffic/popular/referrers", "", otherwise},
			{"GET", "/repos/acme/widgets/collaborators", "", otherwise},
			{"GET", "/repos/acme/widgets/invitations", "", otherwise},
			{"GET", "/repos/acme/widgets/actions/secrets", "", otherwise},
			{"GET", "/repos/acme/widgets/actions/variables", "", otherwise},
			{"GET", "/repos/acme/widgets/actions/permissions", "", otherwise},
			{"GET", "/repos/acme/widgets/code-scanning/alerts", "", otherwise},
			{"GET", "/repos/acme/widgets/dependabot/alerts", "", otherwise},
			{"GET", "/repos/acme/widgets/secret-scanning/alerts", "", otherwise},
			{"GET", "/repos/acme/widgets/vulnerability-alerts", "", otherwise},
			{"GET", "/repos/acme/widgets/branches/main/protection", "", otherwise},
			{"GET", "/repos/acme/widgets/teams", "", otherwise},
			{"GET", "/orgs/acme/members", "", otherwise},
			{"GET", "/orgs/acme/hooks", "", otherwise},
			{"GET", "/orgs/acme/invitations", "", otherwise},
			{"GET", "/orgs/acme/teams", "", otherwise},
			{"GET", "/users/octocat/events", "", otherwise},
			{"GET", "/repos/acme/widgets/issues", "", lent},
			{"GET", "/repos/acme/widgets/contents/README.md", "", lent},
			{"GET", "/users/octocat", "", lent},
			{"DELETE", "/repos/acme/widgets", "", otherwise},
			{"PATCH", "/repos/acme/widgets", "", otherwise},
			{"POST", "/graphql", "", refused}, // GraphQL has no anonymous access
		} {
			got.Store(refused)
			r := httptest.NewRequest(c.method, c.target, nil)
			if c.authorization != "" {
				r.Header.Set("Authorization", c.authorization)
			}
			w := httptest.NewRecorder()
			g.ServeHTTP(w, r)
			if got.Load() != c.want || c.want == refused && w.Code != http.StatusUnauthorized {
				t.Errorf("pass_through %v, %s %s with %q: upstream got %q, want %q; status %d", passThrough, c.method, c.target, c.authorization, got.Load(), c.want, w.Code)
			}
			if last := g.current.Load().proxy.Recent()[0]; (last.Client == config.AnonymousClient) != (c.want == lent) {
				t.Errorf("%s %s: recorded as client %q", c.method, c.target, last.Client)
			}
		}
	}
}

// TestAnonymousClientsHaveNoPrivateClass checks that the cache does not give anonymous clients the responses for another
// credential.
func TestAnonymousClientsHaveNoPrivateClass(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "private, max-age=60")
		_, _ = fmt.Fprintf(w, "for %s", r.Header.Get("Authorization"))
	}))
	t.Cleanup(up.Close)
	cfg := config.Default()
	cfg.Upstream.URL, cfg.Limits.ColdStart, cfg.Callers.PassThrough = up.URL, "trust", false
	cfg.Credentials = []config.Credential{
		{Name: "public", Kind: "user", Account: "bot", Token: "tok-lent"}, {Name: "private", Kind: "user", Account: "ci", Token: "tok-private"},
	}
	cfg.Clients = []config.Client{{Name: "builds", Key: keyHash("weir_key"), Share: 1, Limit: 0.9, Priority: "normal", Pace: "burst", Credentials: []string{"private"}}}
	cfg.Callers.Anonymous = config.Lending{Credential: "public", Operations: []string{"watching/*"}}
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	for i, want := range []string{"for Bearer tok-private", "for Bearer tok-lent", "for Bearer tok-private", "for Bearer tok-lent"} {
		r := httptest.NewRequest("GET", "/repos/acme/widgets/subscribers", nil)
		if i%2 == 0 {
			r.Header.Set("Authorization", "Bearer weir_key")
		}
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		if w.Body.String() != want {
			t.Errorf("request %d: got %q, want %q", i, w.Body, want)
		}
	}
}
