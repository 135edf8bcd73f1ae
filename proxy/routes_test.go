package proxy

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/service"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/tags"
)

// wholeAPI makes a world use the github dialect, with the limits that change adjusts.
func wholeAPI(t *testing.T, change func(*policy.Limits)) option {
	t.Helper()
	dialect, err := policy.LoadDialect("github")
	noError(t, err)
	return func(c *Config) {
		l := policy.DefaultLimits()
		change(&l)
		ledger := limits.NewMemory(limits.Rules{Limits: l})
		c.Catalogue, c.Dialect, c.Ledger, c.Limiter = policy.CatalogueOf("github"), dialect, ledger, limits.NewLimiter(ledger)
	}
}

func unchanged(*policy.Limits) {}

const owner = "Authorization: Bearer tok-owner"

// inWholeAPI describes a world of the github dialect.
func inWholeAPI(t *testing.T, upstream http.HandlerFunc, change func(*policy.Limits)) worldSetup {
	t.Helper()
	return setup(upstream, wholeAPI(t, change))
}

// respondFresh answers every request with a fresh response.
var respondFresh = replies("fresh", "Cache-Control: private, max-age=60", `Etag: "1"`)

// wantStale requests paths and checks that the responses are not hits, or are hits.
func (w *world) wantStale(stale bool, paths ...string) {
	w.Helper()
	for _, path := range paths {
		w.get(path, owner)
		outcome := string(w.recent()[0].Outcome)
		w.want("stale response of "+path+" ("+outcome+")", outcome != "hit", stale)
	}
}

// TestWriteMakesRelatedReadsStale writes to routes outside the documents. Afterwards the listed reads must reach the
// upstream, and the others must still be hits. R stands for the repository acme/widgets.
func TestWriteMakesRelatedReadsStale(t *testing.T) {
	for _, c := range []struct {
		write, stale, fresh string
	}{
		{"PATCH R/issues/3", "R/issues/3 R/issues?state=open R /repositories/7/issues?page=2 R/pulls/3", "/repos/acme/other/issues/3 /user/keys /orgs/acme/hooks"},
		{"POST R/issues/3/comments", "R/issues/3 R/issues/3/comments R/issues/comments R/issues", "/repos/acme/other/issues R/keys"},
		{"PUT R/pulls/3/merge", "R/pulls/3 R/pulls R/commits R/branches/main R/git/ref/heads/main R/contents/a.txt R/issues/3", "/repos/acme/other/pulls"},
		{"PUT R/contents/docs/a.txt", "R/contents/docs R/commits?per_page=1 R/branches/main R/readme", "/repos/acme/other/readme"},
		{"DELETE R/git/refs/heads/x", "R/branches/x R/branches", "/repos/acme/other/branches"},
		{"PATCH /repositories/7/issues/3", "R/issues/3 /repositories/7/issues", "/user/keys"},
		{"POST /orgs/acme/repos", "/orgs/acme/repos /user/repos", "/orgs/other/repos"},
		{"PUT /user/starred/acme/widgets", "/user/starred R/stargazers R", "/orgs/acme/hooks"},
		{"PUT /orgs/acme/teams/core/memberships/octo", "/orgs/acme/teams /organizations/12/team/34/members?page=2", "/orgs/other/teams"},
		{"PUT /organizations/12/team/34/memberships/octo", "/orgs/acme/teams/core/members", "/user/keys"},
		{"PATCH /repos/123/widgets/issues/3", "/repos/123/widgets/issues", "R/issues"},
		{"POST R/forks", "/repos/alice/widgets", "/user/keys"},
		{"PUT R/pages", "R/pages R /orgs/acme/repos /user/subscriptions /users/octo/starred", "R/keys"},
		{"PATCH R/properties/values", "R/properties/values R /user/repos /user/subscriptions", "R/keys"},
		{"PATCH /orgs/acme/properties/values", "/orgs/acme/repos R /user/subscriptions", "/user/keys"},
		{"POST /orgs/acme/hooks/5", "/orgs/acme/hooks/5", "/orgs/acme/teams"},
	} {
		expand := func(paths string) []string {
			return strings.Fields(strings.ReplaceAll(paths, "R", "/repos/acme/widgets"))
		}
		method, target, _ := strings.Cut(c.write, " ")
		inWholeAPI(t, respondFresh, unchanged).sub(t, c.write, func(w *world) {
			for _, path := range expand(c.stale + " " + c.fresh) {
				w.get(path, owner)
				w.wantStale(false, path)
			}
			w.do(method, expand(target)[0], strings.NewReader("{}"), owner)
			w.wantStale(true, expand(c.stale)...)
			w.wantStale(false, expand(c.fresh)...)
		})
	}
}

// TestPurgeAndEventsReachEveryRoute covers tags of routes outside the documents.
func TestPurgeAndEventsReachEveryRoute(t *testing.T) {
	operator := func(tag string) func(*Gateway) []string {
		return func(*Gateway) []string { return tags.OfOperator(tag) }
	}
	event := func(name, repository, organization string) func(*Gateway) []string {
		return func(g *Gateway) []string { return tags.OfEvent(g.Catalogue, name, repository, organization, false) }
	}
	const ofOthers, ofNumber = "/repos/beta/widgets/issues/3", "/repositories/7/keys"
	for name, c := range map[string]struct {
		tags  func(*Gateway) []string
		fresh []string
	}{
		"a repository":       {operator("repo:Acme/Widgets"), lines(ofOthers)},
		"an organization":    {operator("org:acme"), lines(ofOthers)},
		"a collection":       {operator("repo:acme/widgets/issues"), lines(ofOthers)},
		"an operation":       {func(*Gateway) []string { return lines("op:issues/get", "op:issues/list-for-repo") }, nil},
		"an issue comment":   {event("issue_comment", "acme/widgets", "acme"), lines(ofOthers, ofNumber)},
		"an unlisted event":  {event("made_up", "acme/widgets", "acme"), lines(ofOthers)},
		"a repository event": {event("issues", "Acme/Widgets", ""), lines(ofOthers, ofNumber)},
	} {
		inWholeAPI(t, respondFresh, unchanged).sub(t, name, func(w *world) {
			stale := lines("/repos/acme/widgets/issues/3", "/repositories/7/issues?page=2")
			for _, path := range append(stale, ofOthers, ofNumber) {
				w.get(path, owner)
			}
			w.gateway.Cache.Purge(w.Context(), c.tags(w.gateway)...)
			w.wantStale(true, stale...)
			w.wantStale(false, c.fresh...)
		})
	}
}

// TestPointsCountPerEndpoint sends requests for many files, and for many paths of a route outside the catalogue (L3 of
// the list of defects). The upstream must never get more points in a minute than the limit of one endpoint.
func TestPointsCountPerEndpoint(t *testing.T) {
	few := func(l *policy.Limits) { l.Points.REST = 20 }
	for _, path := range []string{"/repos/o/r/contents/f%d.txt", "/repos/o/r/contents/dir/f%d/x", "/repos/o/r/new-route/f%d.txt", "/new/f%d"} {
		inWholeAPI(t, nothing, few).sub(t, path, func(w *world) {
			for i := range 30 {
				w.get(fmt.Sprintf(path, i), owner, "Prefer: wait=0")
			}
			w.want("requests in a minute", w.upstreamSaw(), 20)
		})
	}
}

// TestNamedResourceAdmitsTheNextRequest lets the upstream name a resource that the catalogue does not predict (L1 and
// L2 of the list of defects). Once the window of that resource is exhausted, the operation is not sent, and other
// operations are.
func TestNamedResourceAdmitsTheNextRequest(t *testing.T) {
	used := 0
	inWholeAPI(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/hooks") {
			setFields(w, append(rates(5000, 1, time.Hour), "X-Ratelimit-Resource: core")...)
			return
		}
		used++
		setFields(w, append(rates(3, min(used, 3), time.Hour), "X-Ratelimit-Resource: special")...)
	}, unchanged).run(t, func(w *world) {
		for range 6 {
			w.get("/repos/o/r/hooks", owner, "Prefer: wait=0")
		}
		w.want("requests of the exhausted resource", used, 3)
		for path, want := range map[string]struct {
			status   int
			resource string
		}{"/repos/o/r/hooks": {http.StatusTooManyRequests, "special"}, "/repos/o/r": {http.StatusOK, "core"}} {
			r := w.get(path, owner, "Prefer: wait=0")
			w.want("status of "+path, r.StatusCode, want.status)
			w.want("resource of "+path, r.Header.Get("X-Ratelimit-Resource"), want.resource)
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
		upstream, err := service.New(service.Config{Limits: l})
		noError(t, err)
		defer upstream.Close()
		var received *service.Operation
		w := newWorld(t, func(_ http.ResponseWriter, r *http.Request) {
			received = upstream.Match(r.Method, r.URL.EscapedPath())
		}, wholeAPI(t, change))
		random := rand.New(rand.NewPCG(1, 2))
		operations := upstream.Operations()
		w.want("operations", len(operations), 1223)
		for _, op := range operations {
			method, target, body := upstream.Sample(op.ID, random)
			received = nil
			w.do(method, target, bytes.NewReader(body), owner, "Cache-Control: no-cache")
			rec := w.recent()[0]
			known := w.gateway.Catalogue.Operation(rec.Operation)
			switch {
			case received == nil || received.ID != op.ID:
				t.Errorf("%s %s: the upstream received %v, want %s", method, target, received, op.ID)
			case known == nil || rec.Operation != op.ID && known.Category != "":
				t.Errorf("%s %s: the record has the operation %s, want %s", method, target, rec.Operation, op.ID)
			}
		}
	})
}

// TestLearnedResourceCannotBeForced lets clients with wrong tokens name core for searches. The searches of other clients
// must still be admitted against the search limit.
// One response in thousands names another resource. Its window says nothing about the operation.
func TestOneOutlierDoesNotMoveAnOperation(t *testing.T) {
	answers, used := 0, 0
	inWholeAPI(t, func(w http.ResponseWriter, _ *http.Request) {
		if answers++; answers%5 == 0 || answers > 21 {
			setFields(w, append(rates(60, 60, time.Hour), "X-Ratelimit-Resource: special")...)
			return
		}
		used++
		setFields(w, append(rates(5000, used, time.Hour), "X-Ratelimit-Resource: core")...)
	}, unchanged).run(t, func(w *world) {
		for range 23 {
			w.wantReply("confirmed", w.get("/repos/o/r/hooks", owner, "Prefer: wait=0"), http.StatusOK)
		}
		w.wantReply("moved", w.get("/repos/o/r/hooks", owner, "Prefer: wait=0"), http.StatusTooManyRequests, "X-Ratelimit-Resource: special")
		time.Sleep(61 * time.Minute)
		w.wantReply("after the end of the window", w.get("/repos/o/r/hooks", owner, "Prefer: wait=0"), http.StatusOK)
	})
}

func TestLearnedResourceCannotBeForced(t *testing.T) {
	inWholeAPI(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer wrong" {
			setFields(w, append(rates(60, 1, time.Hour), "X-Ratelimit-Resource: core")...)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		setFields(w, append(rates(30, 1, time.Hour), "X-Ratelimit-Resource: search")...)
	}, unchanged).run(t, func(w *world) {
		sent := 0
		for i := range 50 {
			w.get(fmt.Sprint("/search/users?q=a", i), bearer("wrong"), "Prefer: wait=0")
			if w.get(fmt.Sprint("/search/users?q=b", i), owner, "Prefer: wait=0").StatusCode == http.StatusOK {
				sent++
			}
		}
		w.want("searches in a minute", sent <= 30, true)
	})
}

// TestRateLimitStatusIsAnsweredWhileTheBudgetIsExhausted requests the status long after the last response.
func TestRateLimitStatusIsAnsweredWhileTheBudgetIsExhausted(t *testing.T) {
	inWholeAPI(t, func(w http.ResponseWriter, _ *http.Request) {
		setFields(w, append(rates(5000, 5000, time.Hour), "X-Ratelimit-Resource: core")...)
	}, unchanged).run(t, func(w *world) {
		w.get("/user", owner)
		for range 5 {
			time.Sleep(10 * time.Minute)
			w.want("status", w.get("/rate_limit", owner).StatusCode, http.StatusOK)
		}
	})
}
