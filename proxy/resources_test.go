package proxy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
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
				w.wantFields(r, "X-Ratelimit-Resource: "+c.resource, "X-Ratelimit-Limit: "+c.limit, fmt.Sprint("X-Ratelimit-Used: ", i+1))
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
	const widgets, members = "/repos/acme/widgets", "/orgs/acme/members"
	own := []string{
		"X-Ratelimit-Limit: 7", "X-Ratelimit-Remaining: 0", "X-Ratelimit-Used: 9", "X-Ratelimit-Reset: 12345", "X-Ratelimit-Resource: Made Up",
	}
	setup(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-cache")
		switch r.URL.Path {
		case "/user":
			responds(http.StatusTooManyRequests, "Retry-After: 5")(w, r)
		case widgets:
			time.Sleep(time.Second)
			setFields(w, own...)
		}
	}, withLedger(limits.Unlimited{})).run(t, func(w *world) {
		began := time.Now()
		together(300, func(i int) { // three times limits.concurrent
			w.want("status", w.get(fmt.Sprint(widgets, "?n=", i), bearer("a")).StatusCode, 200)
		})
		w.want("duration of 300 requests", time.Since(began), time.Second)
		w.wantFields(w.get(widgets, bearer("a")), append(own, "Ratelimit: ")...)
		before := w.upstreamSaw()
		w.wantFields(w.get(members, bearer("a")), "X-Ratelimit-Limit: ")
		w.get("/rate_limit", bearer("a"))
		w.want("the rate limit status is forwarded", w.upstreamSaw()-before, 2)
		began = time.Now()
		r := w.get("/user", bearer("a"), "Prefer: wait=60")
		w.want("status of a limit error", r.StatusCode, 429)
		w.wantFields(r, "Retry-After: 5")
		w.want("duration of a limit error", time.Since(began), time.Duration(0))
		w.want("requests after a limit error", w.upstreamSaw()-before, 3)
		w.want("status of another request after a limit error", w.get(members, bearer("a")).StatusCode, 200)
	})
}
