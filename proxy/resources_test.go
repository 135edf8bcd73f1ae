package proxy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// rateStatus is a decoded rate limit status.
type rateStatus struct {
	Resources map[string]struct{ Limit, Used, Remaining int }
}

func (w *world) rateStatus() (s rateStatus) {
	w.Helper()
	r := w.get("/rate_limit", "Authorization: Bearer a")
	if err := json.Unmarshal([]byte(r.body), &s); err != nil {
		w.Fatalf("%q: %v", r.body, err)
	}
	return s
}

// naming returns an upstream that names a resource in each response, and reports a rising use of a limit.
func naming(limit int, name func(n int) string) http.HandlerFunc {
	used := 0
	return func(w http.ResponseWriter, _ *http.Request) {
		used++
		h := w.Header()
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Ratelimit-Limit", strconv.Itoa(limit))
		h.Set("X-Ratelimit-Used", strconv.Itoa(min(used, limit)))
		h.Set("X-Ratelimit-Reset", strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10))
		h.Set("X-Ratelimit-Resource", name(used))
	}
}

func TestResourceNamedByTheUpstreamIsAWindowOfItsOwn(t *testing.T) {
	setup(naming(3, func(int) string { return "audit_log" })).run(t, func(w *world) {
		for i := range 3 {
			r := w.get("/orgs/acme/audit-log", "Authorization: Bearer a")
			w.want("status", r.StatusCode, 200)
			w.wantFields(r, "X-Ratelimit-Resource: audit_log", "X-Ratelimit-Limit: 3")
			w.want("used", r.Header.Get("X-Ratelimit-Used"), strconv.Itoa(i+1))
		}
		r := w.get("/repos/acme/widgets", "Authorization: Bearer a")
		w.want("status of a request that core counts", r.StatusCode, 200)
		status := w.rateStatus()
		w.want("core limit", status.Resources["core"].Limit, 5000)
		w.want("core used", status.Resources["core"].Used, 0)
		w.want("audit_log limit", status.Resources["audit_log"].Limit, 3)
		w.want("audit_log remaining", status.Resources["audit_log"].Remaining, 0)
		w.want("members", len(status.Resources), len(policy.Resources())+1)
	})
}

func TestInvalidResourceNameCountsLikeNoHeaders(t *testing.T) {
	setup(naming(3, func(int) string { return "Audit log" })).run(t, func(w *world) {
		for i := range 3 {
			r := w.get("/repos/acme/widgets", "Authorization: Bearer a")
			w.want("status", r.StatusCode, 200)
			w.wantFields(r, "X-Ratelimit-Resource: core", "X-Ratelimit-Limit: 5000")
			w.want("used", r.Header.Get("X-Ratelimit-Used"), strconv.Itoa(i+1))
		}
		w.want("status after three responses", w.get("/repos/acme/widgets", "Authorization: Bearer a").StatusCode, 200)
		w.want("members", len(w.rateStatus().Resources), len(policy.Resources()))
	})
}

func TestUpstreamCannotCreateWindowsWithoutBound(t *testing.T) {
	setup(naming(5000, func(n int) string { return fmt.Sprint("invented-", n) })).run(t, func(w *world) {
		for range 250 {
			w.want("status", w.get("/repos/acme/widgets", "Authorization: Bearer a").StatusCode, 200)
		}
		w.want("members", len(w.rateStatus().Resources), len(policy.Resources())+100)
	})
}

func TestRateLimitStatusOfADialectHasItsResources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		github, err := policy.LoadDialect("github")
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, newCounter().ServeHTTP, func(c *Config) { c.Dialect = github })
		w.get("/repos/acme/widgets", "Authorization: Bearer a")
		status := w.rateStatus()
		w.want("audit_log", status.Resources["audit_log"].Limit, 1750)
		w.want("members", len(status.Resources), len(policy.KnownResources()))
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
			r := w.get("/repos/acme/widgets", "Authorization: Bearer a")
			w.want("status", r.StatusCode, 200)
			if _, shown := r.Header["X-Ratelimit-Limit"]; shown != (i < 2) {
				w.Fatalf("response %d: rate headers %v", i+1, r.Header)
			}
		}
		r := w.get("/rate_limit", "Authorization: Bearer a")
		w.want("status of /rate_limit", r.StatusCode, 404)
		w.want("body of /rate_limit", r.body, `{"message":"Rate limiting is not enabled."}`)
	})
}

func TestLimiterThatIsOffSendsImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		off := func(c *Config) { c.Ledger, c.Limiter = limits.Unlimited{}, limits.NewLimiter(limits.Unlimited{}) }
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			h := w.Header()
			h.Set("Cache-Control", "no-cache")
			switch r.URL.Path {
			case "/user":
				h.Set("Retry-After", "5")
				w.WriteHeader(http.StatusTooManyRequests)
			case "/repos/acme/widgets":
				h.Set("X-Ratelimit-Limit", "7")
				h.Set("X-Ratelimit-Remaining", "0")
				h.Set("X-Ratelimit-Used", "9")
				h.Set("X-Ratelimit-Reset", "12345")
				h.Set("X-Ratelimit-Resource", "Made Up")
			}
			if r.URL.Path != "/user" {
				time.Sleep(time.Second)
			}
		}, off)
		began := time.Now()
		var group sync.WaitGroup
		for i := range 300 { // three times limits.concurrent
			group.Go(func() {
				w.want("status", w.get(fmt.Sprintf("/repos/acme/widgets?n=%d", i), "Authorization: Bearer a").StatusCode, 200)
			})
		}
		group.Wait()
		w.want("duration of 300 requests", time.Since(began), time.Second)
		r := w.get("/repos/acme/widgets", "Authorization: Bearer a")
		for name, want := range map[string]string{"Limit": "7", "Remaining": "0", "Used": "9", "Reset": "12345", "Resource": "Made Up"} {
			w.want(name, r.Header.Get("X-Ratelimit-"+name), want)
		}
		w.want("RateLimit", r.Header.Get("Ratelimit"), "")
		before := w.upstreamSaw()
		r = w.get("/orgs/acme/members", "Authorization: Bearer a")
		w.want("added headers", r.Header.Get("X-Ratelimit-Limit"), "")
		w.get("/rate_limit", "Authorization: Bearer a")
		w.want("the rate limit status is forwarded", w.upstreamSaw()-before, 2)
		began = time.Now()
		r = w.get("/user", "Authorization: Bearer a", "Prefer: wait=60")
		w.want("status of a limit error", r.StatusCode, 429)
		w.want("Retry-After", r.Header.Get("Retry-After"), "5")
		w.want("duration of a limit error", time.Since(began), time.Duration(0))
		w.want("requests after a limit error", w.upstreamSaw()-before, 3)
		w.want("status of another request after a limit error", w.get("/orgs/acme/members", "Authorization: Bearer a").StatusCode, 200)
	})
}
