package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/caller"
)

// counter is an upstream with one fixed window per resource. The first request opens a window. Requests above the limit
// are refused and counted as violations.
type counter struct {
	mu         sync.Mutex
	limit      map[string]int
	span       map[string]time.Duration
	used       map[string]int
	reset      map[string]time.Time
	violations int
}

func newCounter() *counter {
	return &counter{
		limit: map[string]int{"core": 5000, "search": 30, "code_search": 10},
		span:  map[string]time.Duration{"core": time.Hour, "search": time.Minute, "code_search": time.Minute},
		used:  map[string]int{}, reset: map[string]time.Time{},
	}
}

func (c *counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := "core"
	switch r.URL.Path {
	case "/search/commits", "/search/issues":
		resource = "search"
	case "/search/code":
		resource = "code_search"
	}
	c.mu.Lock()
	now := time.Now()
	if !now.Before(c.reset[resource]) {
		c.used[resource], c.reset[resource] = 0, now.Add(c.span[resource])
	}
	c.used[resource]++
	over := c.used[resource] > c.limit[resource]
	if over {
		c.violations++
	}
	used, limit, reset := c.used[resource], c.limit[resource], c.reset[resource]
	c.mu.Unlock()

	setRate(w.Header(), resource, limit, used, reset)
	w.Header().Set("Cache-Control", "no-cache")
	if over {
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprint(w, `{"message":"API rate limit exceeded"}`)
		return
	}
	_, _ = fmt.Fprint(w, `{"items":[]}`)
}

func TestSearchAboveTheLimitIsRefusedLocally(t *testing.T) {
	up := newCounter()
	setup(up.ServeHTTP).run(t, func(w *world) {
		search := func() got { return w.get("/search/commits?q=fix", "Authorization: Bearer a") }
		for i := range 30 {
			r := search()
			stopIf(w, r.StatusCode != 200, "search %d: %d %s", i+1, r.StatusCode, r.body)
			time.Sleep(100 * time.Millisecond)
		}
		r, refused := search(), time.Now()
		w.want("status", r.StatusCode, 429)
		w.want("Retry-After", r.Header.Get("Retry-After"), "58") // one second after the reset
		w.want("reset", r.Header.Get("X-RateLimit-Reset"), strconv.FormatInt(refused.Add(58*time.Second).Unix(), 10))
		w.wantHeader(r, "X-RateLimit-Remaining: 0", "X-RateLimit-Resource: search", "Cache-Status: weir; detail=primary")
		w.want("requests upstream", w.upstreamSaw(), 30)
		w.refused(r, 429, "")
		w.want("classification", r.limitKind(), policy.LimitPrimary)

		time.Sleep(58 * time.Second)
		w.want("status after Retry-After", search().StatusCode, 200)
		w.want("violations", up.violations, 0)
	})
}

func TestRequestWaitsForABudgetWithinItsDeadline(t *testing.T) {
	for _, c := range []struct {
		name, prefer string
		until        time.Duration // from the first search to the 31st
		status       int
		wait         time.Duration
	}{
		{"longer than limits.wait", "", 10 * time.Second, 429, 0},
		{"within limits.wait", "", 55 * time.Second, 200, 6 * time.Second},
		{"Prefer: wait", "wait=60", 10 * time.Second, 200, 51 * time.Second},
		{"no wait", "respond-async", 59 * time.Second, 429, 0},
	} {
		up := newCounter()
		setup(up.ServeHTTP).sub(t, c.name, func(w *world) {
			began := time.Now()
			for range 30 {
				w.get("/search/commits?q=fix")
			}
			// Anonymous callers have ten searches per minute until the upstream reports another limit.
			time.Sleep(c.until - time.Since(began))
			start := time.Now()
			r := w.wantReply("", w.get("/search/commits?q=fix", "Prefer: "+c.prefer), c.status)
			w.want("wait", time.Since(start), c.wait)
			if c.wait > 0 && c.prefer != "" {
				w.want("Preference-Applied", r.Header.Get("Preference-Applied"), c.prefer)
			}
			w.want("violations", up.violations, 0)
		})
	}
}

func TestConcurrentRequestsDoNotExceedTheLimit(t *testing.T) {
	up := newCounter()
	up.limit["core"] = 50
	setup(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(time.Duration(len(r.URL.RawQuery)*37%500) * time.Millisecond)
		up.ServeHTTP(w, r)
	}).run(t, func(w *world) {
		var served, refused atomic.Int64
		together(200, func(i int) {
			switch w.get(fmt.Sprintf("/repos/acme/widgets/pulls?n=%0*d", i%40+1, i), bearer("a")).StatusCode {
			case 200:
				served.Add(1)
			case 429:
				refused.Add(1)
			}
		})
		w.want("violations", up.violations, 0)
		w.want("served", served.Load(), int64(50))
		w.want("refused", refused.Load(), int64(150))
	})
}

func TestRateLimitStatusComesFromTheLedger(t *testing.T) {
	up := newCounter()
	setup(up.ServeHTTP).run(t, func(w *world) {
		for range 3 {
			w.get("/search/commits?q=fix", "Authorization: Bearer a")
		}
		before := w.upstreamSaw()
		r := w.get("/rate_limit", "Authorization: Bearer a")
		type budget struct{ Limit, Used, Remaining, Reset int }
		var status struct {
			Resources map[string]budget `json:"resources"`
			Rate      budget            `json:"rate"`
		}
		noError(w, json.Unmarshal([]byte(r.body), &status))
		w.want("search used", status.Resources["search"].Used, 3)
		w.want("search remaining", status.Resources["search"].Remaining, 27)
		w.want("core", status.Resources["core"], status.Rate)
		w.want("members", len(status.Resources), len(policy.Resources()))
		w.want("requests upstream", w.upstreamSaw(), before)
		w.get("/rate_limit", "Authorization: Bearer a", "Cache-Control: no-cache")
		w.want("requests upstream after no-cache", w.upstreamSaw(), before+1)
	})
}

// secondaryLimitOnce returns an upstream whose first response is a secondary limit error.
func secondaryLimitOnce() http.HandlerFunc {
	var limited sync.Once
	return func(w http.ResponseWriter, _ *http.Request) {
		limited.Do(func() {
			w.Header().Set("Retry-After", "30")
			w.WriteHeader(http.StatusForbidden)
		})
		_, _ = fmt.Fprint(w, `{"message":"You have exceeded a secondary rate limit."}`)
	}
}

func TestSecondaryLimitStartsACoolDown(t *testing.T) {
	setup(secondaryLimitOnce()).run(t, func(w *world) {
		w.want("status from the upstream", w.get("/user", bearer("a")).StatusCode, 403)
		r := w.wantReply("during the cool-down", w.get("/user", bearer("a")), 429)
		w.want("Retry-After", r.Header.Get("Retry-After"), "31") // one second is added, because the upstream may round down
		w.want("classification", r.limitKind(), policy.LimitSecondary)
		w.want("requests upstream", w.upstreamSaw(), 1)
		w.want("status of another account", w.get("/user", bearer("b")).StatusCode, 200)
		time.Sleep(31 * time.Second)
		w.want("status after the cool-down", w.get("/user", bearer("a")).StatusCode, 200)
	})
}

func TestSafeRequestIsRetriedAfterASecondaryLimit(t *testing.T) {
	for _, c := range []struct {
		name, method, prefer string
		status, sent         int
		duration             time.Duration
	}{
		{"deadline after the cool-down", http.MethodGet, "wait=60", 200, 2, 31 * time.Second},
		{"deadline during the cool-down", http.MethodGet, "wait=20", 403, 1, 0},
		{"unsafe request", http.MethodPut, "wait=60", 403, 1, 0},
	} {
		setup(secondaryLimitOnce()).sub(t, c.name, func(w *world) {
			began := time.Now()
			w.wantReply("", w.do(c.method, "/repos/a/b/subscription", nil, bearer("a"), "Prefer: "+c.prefer), c.status)
			w.want("duration", time.Since(began), c.duration)
			w.want("requests upstream", w.upstreamSaw(), c.sent)
		})
	}
}

func TestRateLimitFieldsDescribeTheBudget(t *testing.T) {
	for _, status := range []int{http.StatusTooManyRequests, http.StatusForbidden} {
		up := newCounter()
		up.limit["core"] = 2
		setup(up.ServeHTTP, func(c *Config) { c.RateLimitFields, c.RefusalStatus = true, status }).run(t, func(w *world) {
			w.wantHeader(w.get("/user", bearer("a")), `RateLimit-Policy: "core";q=2;w=3600`, `RateLimit: "core";r=1;t=3600`)
			w.get("/user", bearer("a"))
			r := w.get("/user", bearer("a"))
			w.refused(r, status, "API rate limit exceeded")
			w.wantHeader(r, `RateLimit: "core";r=0;t=3602`, "Retry-After: 3602")
			w.want("number of RateLimit fields", len(r.Header.Values("RateLimit")), 1)
			head := w.wantReply("HEAD", w.do(http.MethodHead, "/user", nil, bearer("a")), status)
			w.want("HEAD has no body", head.body, "")
			w.want("violations", up.violations, 0)
		})
	}
}

// TestOneLimitHasOneStatus checks the status of the first refusal, and that after a limit error of the upstream.
func TestOneLimitHasOneStatus(t *testing.T) {
	byDefault := func(c *Config) { c.RefusalStatus = 0 }
	client := identifying(func(_ *http.Request, id *caller.Identity) { id.RefusalStatus = 403 })
	for _, c := range []struct {
		name             string
		options          []option
		upstream, before int // statuses of limit errors; before is that of a refusal without one of the upstream
		after            int
	}{
		{"documents", []option{byDefault}, 403, 429, 403},
		{"documents, 429", []option{byDefault}, 429, 429, 429},
		{"github", []option{byDefault, github}, 403, 403, 403},
		{"github, 429", []option{byDefault, github}, 429, 403, 429},
		{"setting", nil, 403, 429, 429},
		{"client", []option{client}, 429, 403, 403},
	} {
		setup(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") == "Bearer limited" {
				setFields(w, "Retry-After: 60")
				w.WriteHeader(c.upstream)
				_, _ = io.WriteString(w, `{"message":"You have exceeded a secondary rate limit. Please wait a few minutes before you try again."}`)
				return
			}
			setFields(w, rates(1, 0, time.Hour)...)
		}, c.options...).sub(t, c.name, func(w *world) {
			w.get("/user", bearer("spent"))
			r := w.get("/user", bearer("spent"))
			w.want("first refusal", r.StatusCode, c.before)
			w.want("limit error", w.get("/user", bearer("limited")).StatusCode, c.upstream)
			w.want("refusal after it", w.get("/user/repos", bearer("limited")).StatusCode, c.after)
		})
	}
}

// rateStatus is a decoded rate limit status.
type rateStatus struct {
	Resources map[string]struct{ Limit, Used, Remaining int }
}

func (w *world) rateStatus() (s rateStatus) {
	w.Helper()
	r := w.get("/rate_limit", "Authorization: Bearer a")
	err := json.Unmarshal([]byte(r.body), &s)
	stopIf(w, err != nil, "%q: %v", r.body, err)
	return s
}

// naming returns an upstream that names a resource in each response, and reports a rising use of a limit.
func naming(limit int, name func(n int) string) http.HandlerFunc {
	used := 0
	return func(w http.ResponseWriter, _ *http.Request) {
		used++
		w.Header().Set("Cache-Control", "no-cache")
		setRate(w.Header(), name(used), limit, min(used, limit), time.Now().Add(time.Hour))
	}
}

// always returns the same name of a resource.
func always(name string) func(int) string { return func(int) string { return name } }

func TestResourceNamedByTheUpstreamIsAWindowOfItsOwn(t *testing.T) {
	for _, c := range []struct {
		name, path, upstream string
		resource, limit      string // in responses
		own                  int    // windows besides those of the documents
	}{
		{"new", "/orgs/acme/audit-log", "audit_log", "audit_log", "3", 1},
		{"invalid name, like no fields", "/repos/acme/widgets", "Audit log", "core", "5000", 0},
	} {
		setup(naming(3, always(c.upstream))).sub(t, c.name, func(w *world) {
			for i := range 3 {
				r := w.get(c.path, bearer("a"))
				w.want("status", r.StatusCode, 200)
				w.wantHeader(r, "X-Ratelimit-Resource: "+c.resource, "X-Ratelimit-Limit: "+c.limit, fmt.Sprint("X-Ratelimit-Used: ", i+1))
			}
			w.want("status of a request that core counts", w.get("/repos/acme/widgets", bearer("a")).StatusCode, 200)
			status := w.rateStatus()
			w.want("members", len(status.Resources), len(policy.Resources())+c.own)
			if c.own > 0 {
				core, own := status.Resources["core"], status.Resources[c.resource]
				w.want("core", fmt.Sprint(core.Limit, core.Used), "5000 0")
				w.want("limit and remaining", fmt.Sprint(own.Limit, own.Remaining), "3 0")
			}
		})
	}
}

func TestUpstreamCannotCreateWindowsWithoutBound(t *testing.T) {
	setup(naming(5000, func(n int) string { return fmt.Sprint("invented-", n) })).run(t, func(w *world) {
		for range 250 {
			w.want("status", w.get("/repos/acme/widgets", bearer("a")).StatusCode, 200)
		}
		w.want("members", len(w.rateStatus().Resources), len(policy.Resources())+100)
	})
}

func TestRateLimitStatusOfADialectHasItsResources(t *testing.T) {
	setup(newCounter().ServeHTTP, asGitHub).run(t, func(w *world) {
		w.get("/repos/acme/widgets", bearer("a"))
		status := w.rateStatus()
		w.want("audit_log", status.Resources["audit_log"].Limit, 1750)
		w.want("members", len(status.Resources), len(policy.Resources())+5)
	})
}

// withoutLimits is an upstream without rate limits. It answers the rate limit status with 404.
func withoutLimits(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-cache")
	if r.URL.Path == "/rate_limit" {
		w.WriteHeader(http.StatusNotFound)
		_, _ = fmt.Fprint(w, `{"message":"Rate limiting is not enabled."}`)
	}
}

func TestUpstreamWithoutRateHeadersHasNoLimit(t *testing.T) {
	limit := policy.DefaultLimits()
	limit.Primary.User = 10
	setup(withoutLimits, limited(limit)).run(t, func(w *world) {
		for i := range 200 {
			r := w.wantReply("", w.get("/repos/acme/widgets", "Authorization: Bearer a"), 200)
			_, shown := r.Header["X-Ratelimit-Limit"]
			stopIf(w, shown != (i < 2), "response %d: rate headers %v", i+1, r.Header)
		}
		r := w.wantReply("/rate_limit", w.get("/rate_limit", "Authorization: Bearer a"), 404)
		w.want("body of /rate_limit", r.body, `{"message":"Rate limiting is not enabled."}`)
	})
}

func TestLimiterThatIsOffSendsImmediately(t *testing.T) {
	const widgets, members = "/repos/acme/widgets", "/orgs/acme/members"
	own := []string{
		"X-Ratelimit-Limit: 7", "X-Ratelimit-Remaining: 0", "X-Ratelimit-Used: 9", "X-Ratelimit-Reset: 12345", "X-Ratelimit-Resource: Made Up",
	}
	setup(byPath(responds(200, "Cache-Control: no-cache"), map[string]http.HandlerFunc{
		"/user": responds(http.StatusTooManyRequests, "Retry-After: 5"),
		widgets: func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(time.Second)
			setFields(w, append(own, "Cache-Control: no-cache")...)
		},
	}), withLedger(limits.Unlimited{})).run(t, func(w *world) {
		began := time.Now()
		together(300, func(i int) { // three times limits.concurrent
			w.want("status", w.get(fmt.Sprint(widgets, "?n=", i), bearer("a")).StatusCode, 200)
		})
		w.want("duration of 300 requests", time.Since(began), time.Second)
		w.wantHeader(w.get(widgets, bearer("a")), append(own, "Ratelimit: ")...)
		before := w.upstreamSaw()
		w.wantHeader(w.get(members, bearer("a")), "X-Ratelimit-Limit: ")
		w.get("/rate_limit", bearer("a"))
		w.want("the rate limit status is forwarded", w.upstreamSaw()-before, 2)
		began = time.Now()
		w.wantReply("a limit error", w.get("/user", bearer("a"), "Prefer: wait=60"), 429, "Retry-After: 5")
		w.want("duration of a limit error", time.Since(began), time.Duration(0))
		w.want("requests after a limit error", w.upstreamSaw()-before, 3)
		w.want("status of another request after a limit error", w.get(members, bearer("a")).StatusCode, 200)
	})
}

// refuseOtherTokens refuses every token but tok-owner, as the upstream does.
func refuseOtherTokens(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer tok-owner" {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if v := r.Header.Get("X-Github-Api-Version"); v == "1999-01-01" {
		w.WriteHeader(http.StatusBadRequest)
	}
}

// TestRateLimitStatusDependsOnTheCredential covers C3 of the list of defects.
func TestRateLimitStatusDependsOnTheCredential(t *testing.T) {
	setup(refuseOtherTokens, wholeAPI(t, unchanged)).run(t, func(w *world) {
		for range 2 {
			w.want("status for a refused token", w.get("/rate_limit", "Authorization: Bearer wrong").StatusCode, http.StatusUnauthorized)
		}
		w.want("status without a credential", w.get("/rate_limit").StatusCode, http.StatusOK)
		w.want("requests", w.upstreamSaw(), 1) // the refusal is remembered
		w.get("/user", owner)
		w.want("status for an accepted token", w.get("/rate_limit", owner).StatusCode, http.StatusOK)
		w.want("requests with an accepted token", w.upstreamSaw(), 2)
	})
}

func TestRateLimitStatusHasTheShapeOfTheVersion(t *testing.T) {
	setup(refuseOtherTokens, wholeAPI(t, unchanged)).run(t, func(w *world) {
		w.get("/user", owner)
		for version, rate := range map[string]bool{"": true, "2022-11-28": true, "2026-03-10": false} {
			r := w.get("/rate_limit", owner, "X-GitHub-Api-Version: "+version)
			w.want("member rate in version "+version, strings.Contains(r.body, `"rate":`), rate)
			again := w.get("/rate_limit", owner, "X-GitHub-Api-Version: "+version, "If-None-Match: "+r.Header.Get("Etag"))
			w.want("status with the same ETag", again.StatusCode, http.StatusNotModified)
			w.want("body with the same ETag", again.body, "")
		}
		w.want("requests", w.upstreamSaw(), 1)
		w.want("status of an unknown version", w.get("/rate_limit", owner, "X-GitHub-Api-Version: 1999-01-01").StatusCode, http.StatusBadRequest)
	})
}

// TestClosedAccountIsRefusedAtOnce checks that requests of a closed account do not wait, and that the response names
// the remedy.
func TestClosedAccountIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ledger := limits.NewMemory(limits.Rules{Limits: policy.DefaultLimits(), Probes: 1})
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			responds(http.StatusForbidden, "Retry-After: 60")(w, nil)
			_, _ = fmt.Fprint(w, `{"message":"You have exceeded a secondary rate limit"}`)
		}, withLedger(ledger))
		for range 2 { // the limit error and the failed probe
			w.get("/users/octocat", "Prefer: wait=0")
			time.Sleep(5 * time.Minute)
		}
		seen, began := w.upstreamSaw(), time.Now()
		r := w.get("/users/octocat")
		w.want("wait", time.Since(began), time.Duration(0))
		w.want("requests upstream", w.upstreamSaw(), seen)
		w.want("status", r.StatusCode, http.StatusTooManyRequests)
		w.wantHeader(r, "Retry-After: 3600", "Cache-Status: weir; detail=closed")
		failIf(t, !strings.Contains(r.body, "secondary rate limit") || !strings.Contains(r.body, "An operator must open it"), "body %s", r.body)
		noError(t, ledger.Open(context.Background(), "egress:test"))
		w.get("/users/octocat", "Prefer: wait=0")
		w.want("requests upstream after the opening", w.upstreamSaw(), seen+1)
	})
}
