package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/weirgate/weir/policy"
)

// scoped identifies every caller as the client "builds" with this scope.
func scoped(s policy.Scope) option {
	return identifying(func(id *Identity, _ *http.Request) {
		id.Caller.Client, id.Scope = "builds", &s
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
			if r.StatusCode != 403 || r.Header.Get("Cache-Status") != "weir; detail=scope" {
				w.Errorf("%s %s: got %d, %s, want 403 for the scope", c.method, c.path, r.StatusCode, r.Header.Get("Cache-Status"))
			}
			if want := fmt.Sprintf(`does not let its client \"builds\" call %s"`, c.call); c.method != "HEAD" && !strings.Contains(r.body, want) {
				w.Errorf("%s %s: got %s, want %s", c.method, c.path, r.body, want)
			}
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
	setup(nothing, identifying(func(id *Identity, r *http.Request) {
		if strings.HasSuffix(r.Header.Get("Authorization"), "scoped") {
			id.Scope = &policy.Scope{Operations: []string{"search/*"}}
		}
	})).run(t, func(w *world) {
		w.want("status of an allowed client", w.get("/gitignore/templates", "Authorization: Bearer a").StatusCode, 200)
		w.want("status of a scoped client", w.get("/gitignore/templates", "Authorization: Bearer scoped").StatusCode, 403)
	})
}
