package proxy

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/service/wholeapi"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// wholeAPI makes a world use the github dialect, with the limits that change adjusts.
func wholeAPI(t *testing.T, change func(*policy.Limits)) option {
	t.Helper()
	dialect, err := policy.LoadDialect("github")
	if err != nil {
		t.Fatal(err)
	}
	return func(c *Config) {
		l := policy.DefaultLimits()
		change(&l)
		ledger := limits.NewMemory(limits.Rules{Limits: l})
		c.Catalogue, c.Dialect, c.Ledger, c.Limiter = policy.CatalogueOf("github"), dialect, ledger, limits.NewLimiter(ledger)
	}
}

func unchanged(*policy.Limits) {}

const owner = "Authorization: Bearer tok-owner"

// respondFresh answers every request with a fresh response.
func respondFresh(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "private, max-age=60")
	w.Header().Set("Etag", `"1"`)
	_, _ = fmt.Fprint(w, r.URL.Path)
}

// TestWriteMakesRelatedReadsStale writes to routes outside the documents. Afterwards the listed reads must reach the
// upstream, and the others must still be hits.
func TestWriteMakesRelatedReadsStale(t *testing.T) {
	const repo = "/repos/acme/widgets"
	for _, c := range []struct {
		write string
		stale string
		fresh string
	}{
		{"PATCH " + repo + "/issues/3", repo + "/issues/3 " + repo + "/issues?state=open " + repo + " /repositories/7/issues?page=2 " + repo + "/pulls/3", "/repos/acme/other/issues/3 /user/keys /orgs/acme/hooks"},
		{"POST " + repo + "/issues/3/comments", repo + "/issues/3 " + repo + "/issues/3/comments " + repo + "/issues/comments " + repo + "/issues", "/repos/acme/other/issues /repos/acme/widgets/keys"},
		{"PUT " + repo + "/pulls/3/merge", repo + "/pulls/3 " + repo + "/pulls " + repo + "/commits " + repo + "/branches/main " + repo + "/git/ref/heads/main " + repo + "/contents/a.txt " + repo + "/issues/3", "/repos/acme/other/pulls"},
		{"PUT " + repo + "/contents/docs/a.txt", repo + "/contents/docs " + repo + "/commits?per_page=1 " + repo + "/branches/main " + repo + "/readme", "/repos/acme/other/readme"},
		{"DELETE /repos/acme/widgets/git/refs/heads/x", repo + "/branches/x " + repo + "/branches", "/repos/acme/other/branches"},
		{"PATCH /repositories/7/issues/3", repo + "/issues/3 /repositories/7/issues", "/user/keys"},
		{"POST /orgs/acme/repos", "/orgs/acme/repos /user/repos", "/orgs/other/repos"},
		{"PUT /user/starred/acme/widgets", "/user/starred " + repo + "/stargazers " + repo, "/orgs/acme/hooks"},
		{"PUT /orgs/acme/teams/core/memberships/octo", "/orgs/acme/teams /organizations/12/team/34/members?page=2", "/orgs/other/teams"},
		{"PUT /organizations/12/team/34/memberships/octo", "/orgs/acme/teams/core/members", "/user/keys"},
		{"PATCH /repos/123/widgets/issues/3", "/repos/123/widgets/issues", "/repos/acme/widgets/issues"},
		{"POST /repos/acme/widgets/forks", "/repos/alice/widgets", "/user/keys"},
		{"POST /orgs/acme/hooks/5", "/orgs/acme/hooks/5", "/orgs/acme/teams"},
	} {
		setup(respondFresh, wholeAPI(t, unchanged)).sub(t, c.write, func(w *world) {
			reads := strings.Fields(c.stale + " " + c.fresh)
			for _, path := range reads {
				w.get(path, owner)
				w.want("outcome of "+path+" before the write", w.lastOutcome(path), "hit")
			}
			method, path, _ := strings.Cut(c.write, " ")
			w.do(method, path, strings.NewReader("{}"), owner)
			for _, path := range strings.Fields(c.stale) {
				w.want("outcome of "+path, w.lastOutcome(path) != "hit", true)
			}
			for _, path := range strings.Fields(c.fresh) {
				w.want("outcome of "+path, w.lastOutcome(path), "hit")
			}
		})
	}
}

// lastOutcome requests a path and returns the outcome of the request.
func (w *world) lastOutcome(path string) string {
	w.Helper()
	w.get(path, owner)
	return w.gateway.Recent()[0].Outcome
}

// TestPurgeAndEventsReachEveryRoute covers tags of routes outside the documents.
func TestPurgeAndEventsReachEveryRoute(t *testing.T) {
	for name, tags := range map[string]func(*Gateway) []string{
		"a repository":       func(*Gateway) []string { return TagsOfOperator("repo:Acme/Widgets") },
		"an organization":    func(*Gateway) []string { return TagsOfOperator("org:acme") },
		"a collection":       func(*Gateway) []string { return TagsOfOperator("repo:acme/widgets/issues") },
		"an operation":       func(*Gateway) []string { return []string{"op:issues/get", "op:issues/list-for-repo"} },
		"an issue comment":   func(g *Gateway) []string { return g.TagsOfEvent("issue_comment", "acme/widgets", "acme", false) },
		"an unlisted event":  func(g *Gateway) []string { return g.TagsOfEvent("made_up", "acme/widgets", "acme", false) },
		"a repository event": func(g *Gateway) []string { return g.TagsOfEvent("issues", "Acme/Widgets", "", false) },
	} {
		setup(respondFresh, wholeAPI(t, unchanged)).sub(t, name, func(w *world) {
			stale := []string{"/repos/acme/widgets/issues/3", "/repositories/7/issues?page=2"}
			for _, path := range append(stale, "/repos/beta/widgets/issues/3") {
				w.get(path, owner)
			}
			w.get("/repositories/7/keys", owner)
			w.gateway.Cache.Purge(w.Context(), tags(w.gateway)...)
			if strings.HasSuffix(name, "issue comment") || name == "a repository event" {
				w.want("outcome of another collection by number", w.lastOutcome("/repositories/7/keys"), "hit")
			}
			for _, path := range stale {
				w.want("outcome of "+path, w.lastOutcome(path) != "hit", true)
			}
			if name != "an operation" {
				w.want("outcome of another repository", w.lastOutcome("/repos/beta/widgets/issues/3"), "hit")
			}
		})
	}
}

// TestPointsCountPerEndpoint sends requests for many files, and for many paths of a route outside the catalogue (L3 of
// the list of defects). The upstream must never get more points in a minute than the limit of one endpoint.
func TestPointsCountPerEndpoint(t *testing.T) {
	for _, path := range []string{"/repos/o/r/contents/f%d.txt", "/repos/o/r/contents/dir/f%d/x", "/repos/o/r/new-route/f%d.txt", "/new/f%d"} {
		bubble(t, path, func(t *testing.T) {
			var sent atomic.Int32
			w := newWorld(t, func(http.ResponseWriter, *http.Request) { sent.Add(1) }, wholeAPI(t, func(l *policy.Limits) { l.Points.REST = 20 }))
			for i := range 30 {
				w.get(fmt.Sprintf(path, i), owner, "Prefer: wait=0")
			}
			w.want("requests in a minute", sent.Load(), int32(20))
		})
	}
}

// TestNamedResourceAdmitsTheNextRequest lets the upstream name a resource that the catalogue does not predict (L1 and
// L2 of the list of defects). Once the window of that resource is exhausted, the operation is not sent, and other
// operations are.
func TestNamedResourceAdmitsTheNextRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reset := time.Now().Add(time.Hour)
		used := 0
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			h := w.Header()
			h.Set("X-Ratelimit-Reset", fmt.Sprint(reset.Unix()))
			h.Set("X-Ratelimit-Resource", "core")
			h.Set("X-Ratelimit-Limit", "5000")
			h.Set("X-Ratelimit-Used", "1")
			if strings.HasSuffix(r.URL.Path, "/hooks") {
				used++
				h.Set("X-Ratelimit-Resource", "special")
				h.Set("X-Ratelimit-Limit", "3")
				h.Set("X-Ratelimit-Used", fmt.Sprint(min(used, 3)))
			}
		}, wholeAPI(t, unchanged))
		for range 6 {
			w.get("/repos/o/r/hooks", owner, "Prefer: wait=0")
		}
		w.want("requests of the exhausted resource", used, 3)
		refused := w.get("/repos/o/r/hooks", owner, "Prefer: wait=0")
		w.want("status of the exhausted resource", refused.StatusCode, http.StatusTooManyRequests)
		w.want("resource of the refusal", refused.Header.Get("X-Ratelimit-Resource"), "special")
		other := w.get("/repos/o/r", owner)
		w.want("status of another operation", other.StatusCode, http.StatusOK)
		w.want("resource of another operation", other.Header.Get("X-Ratelimit-Resource"), "core")
	})
}

func TestResourcesAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards the next two variables
		shared, fails := map[string]string{}, true
		exchange := func(_ context.Context, changed map[string]string) (map[string]string, error) {
			mu.Lock()
			defer mu.Unlock()
			if fails {
				return nil, context.DeadlineExceeded
			}
			maps.Copy(shared, changed)
			return maps.Clone(shared), nil
		}
		var first, second Resources
		first.learn("repos/get", policy.User, "core", "special")
		first.learn("graphql", policy.User, policy.GraphQL, "core")
		first.learn("repos/delete", policy.User, "core", "refused")
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		accepts := func(name string) bool { return name != "refused" }
		go first.Share(ctx, accepts, exchange)
		go second.Share(ctx, accepts, exchange)
		time.Sleep(5 * shareInterval / 2) // between two exchanges
		if got := second.of("repos/get", policy.User, "core"); got != "core" {
			t.Errorf("without exchange: got %s, want core", got)
		}
		mu.Lock()
		fails = false
		mu.Unlock()
		time.Sleep(5 * shareInterval / 2) // between two exchanges
		for _, r := range []*Resources{&first, &second} {
			if got := r.of("repos/get", policy.User, "core"); got != "special" {
				t.Errorf("got %s, want special", got)
			}
			if got := r.of("graphql", policy.User, policy.GraphQL); got != policy.GraphQL {
				t.Errorf("got %s for GraphQL", got)
			}
			if got := r.of("repos/get", policy.Unauthenticated, "core"); got != "core" {
				t.Errorf("got %s for another kind of caller", got)
			}
		}
		if got := second.of("repos/delete", policy.User, "core"); got != "core" {
			t.Errorf("got the refused name %s", got)
		}
		time.Sleep(namedFor)
		if got := second.of("repos/get", policy.User, "core"); got != "core" {
			t.Errorf("after %v: got %s, want core", namedFor, got)
		}
	})
}

// TestEveryOperationReachesTheUpstream sends a sample of each of the 1,223 operations through the gateway. The service
// finds the operation of the received request with its own matcher, and the gateway's record must name the same row.
func TestEveryOperationReachesTheUpstream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		change := func(l *policy.Limits) {
			l.Primary.User, l.Points.REST, l.Content = 1_000_000, 1_000_000, nil
			l.Search.Authenticated, l.Search.Code = 1000, 1000
		}
		l := policy.DefaultLimits()
		change(&l)
		service, err := wholeapi.New(wholeapi.Config{Limits: l})
		if err != nil {
			t.Fatal(err)
		}
		var received *wholeapi.Operation
		w := newWorld(t, func(_ http.ResponseWriter, r *http.Request) {
			received = service.Match(r.Method, r.URL.EscapedPath())
		}, wholeAPI(t, change))
		random := rand.New(rand.NewPCG(1, 2))
		operations := service.Operations()
		w.want("operations", len(operations), 1223)
		for _, op := range operations {
			method, target, body := service.Sample(op.ID, random)
			received = nil
			w.do(method, target, bytes.NewReader(body), owner, "Cache-Control: no-cache")
			record := w.gateway.Recent()[0]
			known := w.gateway.Catalogue.Operation(record.Operation)
			switch {
			case received == nil || received.ID != op.ID:
				t.Errorf("%s %s: the upstream received %v, want %s", method, target, received, op.ID)
			case known == nil || record.Operation != op.ID && !known.Documented():
				t.Errorf("%s %s: the record has the operation %s, want %s", method, target, record.Operation, op.ID)
			}
		}
	})
}

// TestLearnedResourceCannotBeForced lets clients with wrong tokens name core for searches. The searches of other clients
// must still be admitted against the search limit.
func TestLearnedResourceCannotBeForced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Ratelimit-Limit", "60")
			w.Header().Set("X-Ratelimit-Used", "1")
			w.Header().Set("X-Ratelimit-Reset", fmt.Sprint(time.Now().Add(time.Hour).Unix()))
			w.Header().Set("X-Ratelimit-Resource", "core")
			if r.Header.Get("Authorization") != "Bearer tok-owner" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			w.Header().Set("X-Ratelimit-Limit", "30")
			w.Header().Set("X-Ratelimit-Resource", "search")
		}, wholeAPI(t, unchanged))
		sent := 0
		for i := range 50 {
			w.get(fmt.Sprint("/search/users?q=a", i), "Authorization: Bearer wrong", "Prefer: wait=0")
			if w.get(fmt.Sprint("/search/users?q=b", i), owner, "Prefer: wait=0").StatusCode == http.StatusOK {
				sent++
			}
		}
		w.want("searches in a minute", sent <= 30, true)
	})
}

// TestRateLimitStatusIsAnsweredWhileTheBudgetIsExhausted requests the status long after the last response.
func TestRateLimitStatusIsAnsweredWhileTheBudgetIsExhausted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Ratelimit-Limit", "5000")
			w.Header().Set("X-Ratelimit-Used", "5000")
			w.Header().Set("X-Ratelimit-Reset", fmt.Sprint(time.Now().Add(time.Hour).Unix()))
			w.Header().Set("X-Ratelimit-Resource", "core")
		}, wholeAPI(t, unchanged))
		w.get("/user", owner)
		for range 5 {
			time.Sleep(10 * time.Minute)
			w.want("status", w.get("/rate_limit", owner).StatusCode, http.StatusOK)
		}
	})
}
