package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// States of the upstream of failingIn. Other states are statuses of errors.
const (
	healthy     = 0
	exhausted   = 1 // the primary limit is exhausted
	unreachable = -1
)

// failingIn returns an upstream whose responses depend on a state.
func failingIn(control string, state *atomic.Int32) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		used := 1
		s := int(state.Load())
		switch s {
		case exhausted:
			used = 60
		case unreachable:
			panic(http.ErrAbortHandler)
		}
		setFields(w, append(rates(60, used, time.Hour), "X-RateLimit-Resource: core", "Cache-Control: "+control, `Etag: "one"`)...)
		if s >= 100 {
			w.WriteHeader(s)
		}
		_, _ = fmt.Fprint(w, "answer")
	}
}

func TestStaleResponsesReplaceErrorsWhereAllowed(t *testing.T) {
	const path = "/users/octocat"
	for _, c := range []struct {
		name    string
		control string // in addition to a lifetime of 10 s
		fields  []string
		state   int
		status  int
		cache   string // Cache-Status of a request 20 s after the first
	}{
		{"unreachable (RFC 9111 4.2.4)", "", nil, unreachable, 200, "weir; fwd=stale; ttl=-10; detail=upstream"},
		{"unreachable, must-revalidate (RFC 9111 5.2.2.2)", ", must-revalidate", nil, unreachable, 504, "weir; detail=upstream"},
		{"unreachable, no-cache (RFC 9111 5.2.2.4)", ", no-cache", nil, unreachable, 504, "weir; detail=upstream"},
		{"unreachable, client sends no-cache (RFC 9111 5.2.1.4)", "", lines("Cache-Control: no-cache"), unreachable, 502, "weir; detail=upstream"},
		{"unreachable, client sends max-age (RFC 9111 5.2.1.1)", "", lines("Cache-Control: max-age=5"), unreachable, 502, "weir; detail=upstream"},
		{"error, stale-if-error allows it (RFC 5861 4)", ", stale-if-error=60", nil, 503, 200, "weir; fwd=stale; fwd-status=503; ttl=-10; detail=stale-if-error"},
		{"error, the request allows it (RFC 5861 4)", "", lines("Cache-Control: stale-if-error=60"), 500, 200, "weir; fwd=stale; fwd-status=500; ttl=-10; detail=stale-if-error"},
		{"error, too old for stale-if-error", ", stale-if-error=5", nil, 503, 503, "weir; fwd=stale; fwd-status=503"},
		{"error, no directive allows it", "", nil, 503, 503, "weir; fwd=stale; fwd-status=503"},
		{"501 is never replaced", ", stale-if-error=60", nil, 501, 501, "weir; fwd=stale; fwd-status=501"},
		{"max-stale (RFC 9111 5.2.1.2)", "", lines("Cache-Control: max-stale=15"), healthy, 200, "weir; hit; ttl=-10"},
		{"max-stale without a bound", "", lines("Cache-Control: max-stale"), healthy, 200, "weir; hit; ttl=-10"},
		{"max-stale is exceeded", "", lines("Cache-Control: max-stale=5"), healthy, 200, "weir; fwd=stale; fwd-status=200; stored; ttl=10"},
		{"max-stale and must-revalidate", ", must-revalidate", lines("Cache-Control: max-stale=15"), healthy, 200, "weir; fwd=stale; fwd-status=200; stored; ttl=10"},
		{"primary limit exhausted", "", nil, exhausted, 200, "weir; hit; ttl=-10; detail=primary"},
		{"primary limit exhausted, must-revalidate", ", must-revalidate", nil, exhausted, 429, "weir; detail=primary"},
	} {
		var state atomic.Int32
		setup(failingIn("max-age=10"+c.control, &state)).sub(t, c.name, func(w *world) {
			w.get(path, bearer("a"))
			time.Sleep(20 * time.Second)
			state.Store(int32(c.state))
			if c.state == exhausted {
				w.get("/users/hubot", bearer("a")) // the response reports that no quota is left
			}
			got := w.get(path, append(c.fields, bearer("a"), "Prefer: wait=0")...)
			w.want("status", got.StatusCode, c.status)
			w.want("Cache-Status", got.Header.Get("Cache-Status"), c.cache)
			if c.status == http.StatusOK && c.state != healthy {
				w.want("body", got.body, "answer")
				w.want("age", got.Header.Get("Age"), "20")
			}
		})
	}
}

// A stale response is served until the documented second, and only if Cache-Control allows a stale response.
func TestStaleResponsesEndAtTheDocumentedSecond(t *testing.T) {
	const lifetime, soon = 10 * time.Second, 11 * time.Second
	for _, c := range []struct {
		control string
		after   time.Duration // since the response was stored
		state   int
		stale   bool
		token   string
	}{
		{"max-age=10, stale-if-error=60", lifetime + time.Minute, 503, true, ""},
		{"max-age=10, stale-if-error=60", lifetime + time.Minute + time.Second, 503, false, ""},
		{"max-age=10, stale-if-error=0", soon, 503, false, ""},
		{"max-age=10, stale-if-error=60, must-revalidate", soon, 503, false, ""},
		{"no-cache, max-age=10, stale-if-error=60", time.Second, 503, false, ""},
		{"max-age=10, stale-if-error=60, no-cache", soon, unreachable, false, ""},
		{"max-age=10, must-revalidate", soon, unreachable, false, ""},
		{"max-age=10, must-revalidate, stale-while-revalidate=60", soon, unreachable, false, ""},
		{"s-maxage=10", soon, unreachable, false, ""},
		{"s-maxage=10, max-age=10, stale-if-error=60", soon, 503, false, ""},
		{"max-age=10, proxy-revalidate", soon, unreachable, false, ""},
		{"max-age=10, must-revalidate", soon, unreachable, false, "Bearer a"},
		{"max-age=10", soon, unreachable, true, ""},
		{"max-age=10", lifetime - time.Second, unreachable, true, ""}, // fresh
	} {
		var state atomic.Int32
		setup(failingIn(c.control, &state)).sub(t, fmt.Sprint(c.control, " ", c.token, " ", c.after, " ", c.state), func(w *world) {
			w.get("/users/octocat", "Authorization: "+c.token)
			time.Sleep(c.after)
			state.Store(int32(c.state))
			requests := lines("Prefer: wait=1")
			if strings.Contains(c.control, "revalidate") || strings.Contains(c.control, "s-maxage") { // a client cannot accept stale responses
				requests = append(requests, "Cache-Control: max-stale")
			}
			for _, field := range requests {
				r := w.get("/users/octocat", "Authorization: "+c.token, field)
				w.want("stale for "+field+" ("+r.Header.Get("Cache-Status")+")", r.body == "answer" && r.StatusCode == http.StatusOK, c.stale)
			}
		})
	}
}

func TestStaleResponses(t *testing.T) {
	expiring := lines("Cache-Control: max-age=10")
	// The responses to writes name another resource (RFC 9111 section 4.4).
	for name, c := range map[string]struct {
		field string
		stale bool
	}{
		"Location":              {"Location: /base/users/octocat", true},
		"Content-Location":      {"Content-Location: /base/users/octocat", true},
		"absolute":              {"Location: " + upstreamURL + "/users/octocat", true},
		"another spelling":      {"Location: " + upstreamURL + "/users/%6Fctocat?x=1", true},
		"another host":          {"Location: http://other.test/base/users/octocat", false},
		"outside the base path": {"Location: /users/octocat", false},
		"invalid URL":           {"Location: http://[", false},
	} {
		runScenarios(t, scenario{name: "location of a write: " + name, path: "/users/octocat", response: lines(fresh), steps: []step{
			{}, {method: http.MethodPost, path: "/made-up", response: lines(fresh, c.field)}, {cached: !c.stale},
		}})
	}
	// The directive must-revalidate and a purge end stale-while-revalidate (RFC 9111 section 5.2.2.2).
	for name, c := range map[string]struct {
		control string
		do      func(*world)
	}{
		"must-revalidate": {", must-revalidate", func(*world) {}},
		"purge":           {"", func(w *world) { w.gateway.Cache.Purge(w.Context(), "url:/users/octocat") }},
	} {
		runScenarios(t, scenario{
			name: "stale-while-revalidate ends: " + name, path: "/users/octocat",
			response: lines("Cache-Control: max-age=10, stale-while-revalidate=60" + c.control),
			steps:    []step{{}, {after: 15 * time.Second, do: c.do}, {body: "2"}},
		})
	}
	// The first request gets the limit error, and the second request is not sent.
	for _, status := range []int{http.StatusForbidden, http.StatusTooManyRequests} {
		wait := lines("Prefer: wait=0")
		runScenarios(t, scenario{name: fmt.Sprint("limit error ", status), path: "/users/octocat", steps: []step{
			{response: append(expiring, `Etag: "one"`), text: "good"},
			{
				after: 20 * time.Second, request: wait, status: status, response: lines("Cache-Control: max-age=10", `Etag: "one"`, "Retry-After: 60"),
				text: `{"message":"You have exceeded a secondary rate limit"}`, code: 200, body: "good", cache: "*detail=cooldown",
			},
			{request: wait, cached: true, body: "good", cache: "*detail=cooldown"},
		}})
	}
	runScenarios(t,
		scenario{name: "stale until the upstream is back", path: "/users/octocat", response: expiring, steps: []step{
			{}, {after: 20 * time.Second, status: aborted, has: lines("Age: 20")}, {lacks: lines("Age")},
		}},
		// A request with only-if-cached sends no revalidation (RFC 9111 section 5.2.1.7). A HEAD that finds a stale response causes a
		// revalidation by GET.
		scenario{
			name: "only-if-cached sends no revalidation", path: "/users/octocat",
			response: lines("Cache-Control: max-age=10, stale-while-revalidate=1000"), steps: []step{
				{}, {after: 15 * time.Second, request: lines("Cache-Control: only-if-cached"), cached: true, body: "1"},
				{do: func(w *world) {
					synctest.Wait()
					w.want("requests upstream", w.upstreamSaw(), 1)
					w.do(http.MethodHead, "/users/octocat", nil)
					synctest.Wait()
					w.want("method of the revalidation", w.seen.all()[1].Method, http.MethodGet)
				}},
			},
		},
	)
}

// With stale-while-revalidate, Weir serves a stale response and refreshes the entry (RFC 5861 section 3).
func TestStaleWhileRevalidateServesAndRefreshes(t *testing.T) {
	const path = "/users/octocat"
	var n atomic.Int32
	upstream := delayed(repliesWith(func(*http.Request) string { return fmt.Sprint("version ", n.Add(1)) }, "Cache-Control: max-age=10, stale-while-revalidate=20"))
	setup(upstream).run(t, func(w *world) {
		w.get(path)
		time.Sleep(14 * time.Second)
		for _, r := range w.concurrently(5, path, "Cache-Control: max-age=60") {
			w.want("body", r.body, "version 1")
			w.want("Cache-Status", r.Header.Get("Cache-Status"), "weir; hit; ttl=-5")
		}
		time.Sleep(2 * time.Second)
		w.want("after the revalidation", w.get(path).body, "version 2")
		w.want("Cache-Control of the revalidation", w.seen.all()[1].Header.Get("Cache-Control"), "")
		w.want("record of the revalidation is marked", w.recent()[1].Background, true)
		time.Sleep(time.Minute)
		w.want("too old for stale-while-revalidate", w.get(path).body, "version 3")
		w.want("requests upstream", w.upstreamSaw(), 3)
		time.Sleep(15 * time.Second)
		w.want("client sends no-cache", w.get(path, "Cache-Control: no-cache").body, "version 4")
	})
}
