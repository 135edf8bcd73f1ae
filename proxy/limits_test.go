package proxy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
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
			if r := search(); r.StatusCode != 200 {
				w.Fatalf("search %d: %d %s", i+1, r.StatusCode, r.body)
			}
			time.Sleep(100 * time.Millisecond)
		}
		r, refused := search(), time.Now()
		w.want("status", r.StatusCode, 429)
		w.want("Retry-After", r.Header.Get("Retry-After"), "58") // one second after the reset
		w.want("reset", r.Header.Get("X-RateLimit-Reset"), strconv.FormatInt(refused.Add(58*time.Second).Unix(), 10))
		w.wantFields(r, "X-RateLimit-Remaining: 0", "X-RateLimit-Resource: search", "Cache-Status: weir; detail=primary")
		w.want("requests upstream", w.upstreamSaw(), 30)
		w.refused(r, 429, "")
		w.want("classification", r.limitKind(), limits.PrimaryLimit)

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
			r := w.get("/search/commits?q=fix", "Prefer: "+c.prefer)
			w.want("status", r.StatusCode, c.status)
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
		if err := json.Unmarshal([]byte(r.body), &status); err != nil {
			w.Fatal(err)
		}
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
		r := w.get("/user", bearer("a"))
		w.want("status during the cool-down", r.StatusCode, 429)
		w.want("Retry-After", r.Header.Get("Retry-After"), "31") // one second is added, because the upstream may round down
		w.want("classification", r.limitKind(), limits.SecondaryLimit)
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
			r := w.do(c.method, "/repos/a/b/subscription", nil, bearer("a"), "Prefer: "+c.prefer)
			w.want("status", r.StatusCode, c.status)
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
			w.wantFields(w.get("/user", bearer("a")), `RateLimit-Policy: "core";q=2;w=3600`, `RateLimit: "core";r=1;t=3600`)
			w.get("/user", bearer("a"))
			r := w.get("/user", bearer("a"))
			w.refused(r, status, "API rate limit exceeded")
			w.wantFields(r, `RateLimit: "core";r=0;t=3602`, "Retry-After: 3602")
			w.want("number of RateLimit fields", len(r.Header.Values("RateLimit")), 1)
			head := w.do(http.MethodHead, "/user", nil, bearer("a"))
			w.want("HEAD", head.StatusCode, status)
			w.want("HEAD has no body", head.body, "")
			w.want("violations", up.violations, 0)
		})
	}
}
