package main

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weirgate/weir/internal/config"
)

// A reload that changes how the configuration names the account of a token forgets nothing: the upstream still counts one account.
func TestReloadKeepsWhatARenamedAccountSpent(t *testing.T) {
	const token, key = "tok-one", "key-of-ci"
	account := func(name string) func(*config.Config) {
		return func(c *config.Config) {
			c.Credentials = []config.Credential{userToken("ci", name, token)}
			c.Clients = []config.Client{clientOf("ci", key, "ci")}
		}
	}
	none := func(c *config.Config) { c.Credentials, c.Clients = nil, nil }
	for name, c := range map[string]struct {
		before, after func(*config.Config)
		first, second string // credential of the request
	}{
		"passed token gets a name":    {none, account("bot"), token, key},
		"passed token without a name": {none, account(""), token, key},
		"held token gets a name":      {account(""), account("bot"), key, key},
		"held token gets another":     {account("bot"), account("robot"), key, key},
		"held token loses its name":   {account("bot"), account(""), key, key},
		"held token is passed":        {account("bot"), none, key, token},
	} {
		t.Run(name, func(t *testing.T) {
			var arrived atomic.Int64
			up := serveAPI(t, func(w http.ResponseWriter, _ *http.Request) {
				arrived.Add(1)
				w.Header().Set("Retry-After", "600")
				w.WriteHeader(http.StatusForbidden)
				_, _ = w.Write([]byte(`{"message":"You have exceeded a secondary rate limit.","documentation_url":"https://docs.example.com/rest#secondary-rate-limits"}`))
			})
			g := open(t, configure(up, trusting, c.before))
			sendTo(g, http.MethodGet, "/user", "", "Authorization: Bearer "+c.first)
			reloadChanged(t, g, c.after)
			w := sendTo(g, http.MethodGet, "/user", "", "Authorization: Bearer "+c.second)
			if got := w.Header().Get("Cache-Status"); arrived.Load() != 1 || !strings.Contains(got, "detail=cooldown") {
				t.Errorf("%d requests arrived, Cache-Status %q; want 1, and a refusal in the cool-down", arrived.Load(), got)
			}
		})
	}
}
