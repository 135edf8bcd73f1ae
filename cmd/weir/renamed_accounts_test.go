package main

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/testservers"
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
			got := w.Header().Get("Cache-Status")
			failIf(t, arrived.Load() != 1 || !strings.Contains(got, "detail=cooldown"), "%d requests arrived, Cache-Status %q; want 1, and a refusal in the cool-down", arrived.Load(), got)
		})
	}
}

// The API counts all tokens of a user together, so a token that a program passes respects the guarantees of the clients that use
// another token of the user.
func TestGuaranteesHoldAgainstPassedTokensOfTheSameUser(t *testing.T) {
	const limit = 100
	person := clientOf("person", "key-of-person", "bot")
	person.Guarantee, person.Limit = 0.5, 0.9
	for name, clients := range map[string][]config.Client{
		"of one of several clients": {person, clientOf("ci", "key-of-ci", "bot")},
		"of the only client":        {person},
	} {
		for passed, token := range map[string]string{"the held token": "tok-held", "another token": "tok-passed"} {
			t.Run(name+", "+passed, func(t *testing.T) {
				var used atomic.Int64
				reset := time.Now().Add(50 * time.Minute).Unix()
				up := serveAPI(t, func(w http.ResponseWriter, _ *http.Request) {
					n := used.Add(1)
					for field, value := range map[string]int64{"Limit": limit, "Used": n, "Remaining": limit - n, "Reset": reset} {
						w.Header().Set("X-Ratelimit-"+field, strconv.FormatInt(value, 10))
					}
					w.Header().Set("Content-Type", "application/json")
					_, _ = w.Write([]byte(`{"login":"bot","id":5}`))
				})
				g := open(t, configure(up, trusting, func(c *config.Config) {
					c.Credentials, c.Clients = []config.Credential{userToken("bot", "", "tok-held")}, clients
				}))
				for _, credential := range []string{"key-of-person", token} { // the API names the user
					sendTo(g, http.MethodGet, "/user", "", "Authorization: Bearer "+credential)
				}
				send := func(credential string, n int) *httptest.ResponseRecorder {
					return sendTo(g, http.MethodGet, fmt.Sprint("/repos/acme/", credential, n), "", "Authorization: Bearer "+credential, "Prefer: wait=0")
				}
				refused := ""
				for n := range limit {
					if w := send(token, n); w.Code != http.StatusOK {
						refused = w.Header().Get("Cache-Status")
					}
				}
				failIf(t, !strings.Contains(refused, "detail=client"), "the last refusal of the passed token has Cache-Status %q, want detail=client", refused)
				for n := range limit/2 - 2 {
					w := send("key-of-person", n)
					stopIf(t, w.Code != http.StatusOK, "request %d of the person: %d, %s", n, w.Code, w.Header().Get("Cache-Status"))
				}
			})
		}
	}
}

// A gateway may start with another name for the account of a token, as in a rolling update or its rollback. The upstream still counts
// one account, so all names share its limits.
func TestStartKeepsWhatARenamedAccountSpent(t *testing.T) {
	const points, key = 10, "key-of-ci"
	for name, c := range map[string]struct {
		url      string
		together bool // the gateways with the earlier names continue
	}{
		"ledger file":              {"memory:" + filepath.Join(t.TempDir(), "ledger"), false},
		"redis":                    {"unix://" + testservers.Redis(t), false},
		"redis, replicas together": {"unix://" + testservers.Redis(t), true},
	} {
		t.Run(name, func(t *testing.T) {
			var arrived atomic.Int64
			up := serveAPI(t, func(http.ResponseWriter, *http.Request) { arrived.Add(1) })
			var running []*gateway
			for start, account := range []string{"bot", "robot", "bot", "robot", ""} {
				g := must(newGateway(configure(up, trusting, func(cfg *config.Config) {
					cfg.Store.URL, cfg.Limits.Points.REST, cfg.Limits.Wait = c.url, points, 2*time.Second
					cfg.Credentials = []config.Credential{userToken("ci", account, "tok-one")}
					cfg.Clients = []config.Client{clientOf("ci", key, "ci")}
				}), io.Discard, slog.LevelInfo))(t)
				if running = append(running, g); !c.together {
					running = running[len(running)-1:]
				}
				for n, g := range running {
					for i := range points / 2 * (start + 1) {
						sendTo(g, http.MethodGet, fmt.Sprintf("/repos/acme/%d-%d-%d", start, n, i), "", "Authorization: Bearer "+key)
					}
				}
				got := arrived.Load()
				failIf(t, got > points || got < min(points-2, points/2*int64(start+1)), "start %d: %d requests arrived within a minute, want at most %d", start, got, points)
				if !c.together {
					noError(t, g.close())
				}
			}
			for _, g := range running {
				if c.together {
					noError(t, g.close())
				}
			}
		})
	}
}
