package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/bodies"
	"github.com/weirgate/weir/proxy/caller"
)

// people is an upstream whose users have several tokens. A user at a limit gets a secondary limit error.
type people struct {
	mu      sync.Mutex
	ids     map[string]int // by token
	limited map[int]bool
	named   bool // limit errors name the user
}

func (p *people) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id := p.ids[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
	setFields(w, "Content-Type: application/json; charset=utf-8", "Cache-Control: no-store")
	switch {
	case p.limited[id]:
		w.Header().Set("Retry-After", "60")
		w.WriteHeader(http.StatusForbidden)
		message := "You have exceeded a secondary rate limit"
		if p.named {
			message += fmt.Sprintf(" for user ID %d", id)
		}
		_, _ = fmt.Fprintf(w, `{"message": "%s."}`, message)
	case r.URL.Path == "/user":
		_, _ = fmt.Fprintf(w, `{"login": "octo-%d", "id": %d, "plan": {"id": 5}, "bio": "%s"}`, id, id, strings.Repeat("x", bodies.MaxPeek))
	case r.Method == http.MethodPost:
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"token": "tok-%d", "expires_at": "2026-01-01T00:00:00Z"}`, time.Now().UnixNano())
	default:
		if strings.HasSuffix(r.URL.Path, "/labels") {
			setFields(w, fresh)
		}
		_, _ = fmt.Fprint(w, `{}`)
	}
}

func (p *people) limit(id int, limited bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limited = map[int]bool{id: limited}
}

func withPeople(t *testing.T, run func(w *world, p *people), options ...option) {
	p := &people{ids: map[string]int{"a": 123, "b": 123, "c": 7}, named: true}
	accountOf := func(c *Config) { c.AccountOf = func(token string) string { return "account of Bearer " + token } }
	setup(p.ServeHTTP, append(options, accountOf)...).run(t, func(w *world) { run(w, p) })
}

// as sends a request with a token, and returns the status.
func (w *world) as(token, path string) int {
	w.Helper()
	return w.get(path, "Authorization: Bearer "+token, "Prefer: wait=0").StatusCode
}

// checkRefused checks that Weir refuses a token during the cool-down.
func (w *world) checkRefused(token string) {
	w.Helper()
	before := w.upstreamSaw()
	r := w.get("/repos/o/r/tags", "Authorization: Bearer "+token, "Prefer: wait=0")
	w.want("status of token "+token, r.StatusCode, http.StatusTooManyRequests)
	w.want("requests of token "+token, w.upstreamSaw()-before, 0)
	status := r.Header.Get("Cache-Status")
	failIf(w, !strings.Contains(status, "cooldown"), "token %s was refused with %q, want a cool-down", token, status)
}

// GET /user names the user of each token. A limit error of one token then starts a cool-down of the other token.
func TestCooldownReachesTheTokensOfAUser(t *testing.T) {
	withPeople(t, func(w *world, p *people) {
		p.named = false
		for _, token := range []string{"a", "b", "c"} {
			r := w.get("/user", "Authorization: Bearer "+token)
			stopIf(t, r.StatusCode != http.StatusOK || !strings.HasSuffix(r.body, `x"}`), "GET /user: %d, %d bytes", r.StatusCode, len(r.body))
		}
		for account, login := range map[string]string{"user:123": "octo-123", "user:7": "octo-7", "user:8": ""} {
			w.want("login of "+account, w.gateway.Identities.Login(account), login)
		}
		p.limit(123, true)
		w.want("status of the limit error", w.as("a", "/repos/o/r/tags"), http.StatusForbidden)
		w.checkRefused("b")
		w.checkRefused("a")
		w.want("status of another user", w.as("c", "/repos/o/r/tags"), http.StatusOK)
	})
}

// After the merge of an account, records have its new name: of a hit, a miss and a refusal.
func TestRecordsNameTheMergedAccount(t *testing.T) {
	withPeople(t, func(w *world, p *people) {
		w.get("/user", bearer("a"))
		for _, c := range []struct{ path, field, cache string }{
			{"/repos/o/r/tags", "Accept: */*", "weir; fwd=uri-miss*"}, {"/repos/o/r/labels", "Accept: */*", "weir; fwd=uri-miss*"}, {"/repos/o/r/labels", "Accept: */*", "weir; hit*"},
			{"/repos/o/r/tags", "Weir-Tag: !", "weir; detail=tag"}, {"/repos/o/r/tags", "Cache-Control: only-if-cached", "weir; detail=only-if-cached"},
		} {
			w.wantFields(c.path, w.get(c.path, bearer("a"), c.field).Header, "Cache-Status: "+c.cache)
			w.want("account of "+c.cache, w.last().Account, "user:123")
		}
	})
}

// Limit errors name the user. After the error of the second token, both tokens are one account.
func TestLimitErrorsJoinTheTokensOfAUser(t *testing.T) {
	withPeople(t, func(w *world, p *people) {
		p.limit(123, true)
		w.want("status of token a", w.as("a", "/repos/o/r/tags"), http.StatusForbidden)
		w.want("status of token b", w.as("b", "/repos/o/r/tags"), http.StatusForbidden) // Weir cannot know its user yet
		p.limit(123, false)
		time.Sleep(3 * time.Minute)
		w.want("status of the probe", w.as("b", "/repos/o/r/tags"), http.StatusOK)
		time.Sleep(10 * time.Minute)
		p.limit(123, true)
		w.want("status of the next limit error", w.as("a", "/repos/o/r/tags"), http.StatusForbidden)
		w.checkRefused("b")
		list := w.accounts(10)
		failIf(w, len(list) != 1 || list[0].Name != "user:123", "accounts: %+v", list)
	})
}

// A renewed installation token continues the account of the earlier token.
func TestRenewedInstallationTokenKeepsItsAccount(t *testing.T) {
	installation := identifying(func(r *http.Request, id *caller.Identity) {
		if strings.HasPrefix(r.Header.Get("Authorization"), "Bearer tok-") {
			id.Kind = policy.Installation
		}
	})
	withPeople(t, func(w *world, _ *people) {
		mint := func() string {
			r := w.do(http.MethodPost, "/app/installations/456/access_tokens", nil, "Authorization: Bearer assertion")
			token, _ := field([]byte(r.body), "token").(string)
			stopIf(t, r.StatusCode != http.StatusCreated || token == "", "new token: %d %s", r.StatusCode, r.body)
			return token
		}
		first := mint()
		for range 5 {
			w.want("status", w.as(first, "/repos/o/r/tags"), http.StatusOK)
			time.Sleep(2 * time.Second)
		}
		second := mint()
		w.want("status", w.as(second, "/repos/o/r/tags"), http.StatusOK)
		points := map[string]int{}
		for _, a := range w.accounts(10) {
			for _, b := range a.Budgets {
				if strings.HasPrefix(b.Resource, "points:") {
					points[a.Name] += b.Used
				}
			}
		}
		delete(points, "account of Bearer assertion")
		w.want("spent points", fmt.Sprint(points), "map[installation:456:6]")
	}, installation)
}

// Identities of other kinds, of workflows and of content are not learned.
func TestIdentityIsNotLearnedFromOtherResponses(t *testing.T) {
	primary := func(limit int, kind string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			setRate(w.Header(), "", limit, limit, time.Now().Add(time.Hour))
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprintf(w, `{"message": "API rate limit exceeded for %s ID 5."}`, kind)
		}
	}
	for name, c := range map[string]struct {
		kind     policy.CallerKind
		upstream http.HandlerFunc
		want     string
	}{
		"a user":                    {policy.User, primary(5000, "user"), "user:5"},
		"an installation":           {policy.Installation, primary(5000, "installation"), "installation:5"},
		"a workflow":                {policy.Installation, primary(1000, "installation"), "x"},
		"another kind":              {policy.Installation, primary(5000, "user"), "x"},
		"an app":                    {policy.OAuthApp, primary(5000, "user"), "x"},
		"an address":                {policy.Unauthenticated, primary(60, "user"), "x"},
		"content that names a user": {policy.User, replies(`{"message": "user ID 5"}`), "x"},
		"a refusal that names a user": {policy.User, func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no access for user ID 5", http.StatusForbidden)
		}, "x"},
		"a user without a JSON number": {policy.User, replies(`{"id": "5"}`), "x"},
	} {
		setup(c.upstream, func(config *Config) {
			config.Identify = func(*http.Request) (*caller.Identity, error) {
				return &caller.Identity{Caller: policy.Caller{Kind: c.kind, Account: "x", Class: "x"}}, nil
			}
		}).sub(t, name, func(w *world) {
			w.as("x", "/user")
			w.want("account", w.gateway.Ledger.Canonical("x"), c.want)
		})
	}
}

func TestUnlimitedLedgerMergesNothing(t *testing.T) {
	withPeople(t, func(w *world, p *people) {
		w.want("status", w.as("a", "/user"), http.StatusOK)
		p.limit(123, true)
		w.want("status", w.as("a", "/user"), http.StatusForbidden)
		w.want("status", w.as("b", "/user"), http.StatusForbidden)
	}, withLedger(limits.Unlimited{}))
}
