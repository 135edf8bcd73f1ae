package proxy

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// failingIn returns an upstream with responses that are fresh for ten seconds. The state is 0 (healthy), -1
// (unreachable), 1 (primary limit exhausted), or the status of an error.
func failingIn(control string, state *atomic.Int32) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "max-age=10"+control)
		h.Set("Etag", `"one"`)
		h.Set("X-RateLimit-Limit", "60")
		h.Set("X-RateLimit-Remaining", "59")
		h.Set("X-RateLimit-Used", "1")
		h.Set("X-RateLimit-Reset", strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10))
		h.Set("X-RateLimit-Resource", "core")
		switch s := int(state.Load()); s {
		case 0:
		case 1:
			h.Set("X-RateLimit-Remaining", "0")
			h.Set("X-RateLimit-Used", "60")
		case -1:
			panic(http.ErrAbortHandler)
		default:
			w.WriteHeader(s)
		}
		_, _ = fmt.Fprint(w, "answer")
	}
}

func TestStaleResponsesReplaceErrorsWhereAllowed(t *testing.T) {
	const path = "/users/octocat"
	for _, c := range []struct {
		name    string
		control string
		fields  []string
		state   int
		status  int
		cache   string // Cache-Status of a request 20 s after the first
	}{
		{"unreachable (RFC 9111 4.2.4)", "", nil, -1, 200, "weir; fwd=stale; ttl=-10; detail=upstream"},
		{"unreachable, must-revalidate (RFC 9111 5.2.2.2)", ", must-revalidate", nil, -1, 504, "weir; detail=upstream"},
		{"unreachable, no-cache (RFC 9111 5.2.2.4)", ", no-cache", nil, -1, 504, "weir; detail=upstream"},
		{"unreachable, client sends no-cache (RFC 9111 5.2.1.4)", "", []string{"Cache-Control: no-cache"}, -1, 502, "weir; detail=upstream"},
		{"unreachable, client sends max-age (RFC 9111 5.2.1.1)", "", []string{"Cache-Control: max-age=5"}, -1, 502, "weir; detail=upstream"},
		{"error, stale-if-error allows it (RFC 5861 4)", ", stale-if-error=60", nil, 503, 200, "weir; fwd=stale; fwd-status=503; ttl=-10; detail=stale-if-error"},
		{"error, the request allows it (RFC 5861 4)", "", []string{"Cache-Control: stale-if-error=60"}, 500, 200, "weir; fwd=stale; fwd-status=500; ttl=-10; detail=stale-if-error"},
		{"error, too old for stale-if-error", ", stale-if-error=5", nil, 503, 503, "weir; fwd=stale; fwd-status=503"},
		{"error, no directive allows it", "", nil, 503, 503, "weir; fwd=stale; fwd-status=503"},
		{"501 is never replaced", ", stale-if-error=60", nil, 501, 501, "weir; fwd=stale; fwd-status=501"},
		{"max-stale (RFC 9111 5.2.1.2)", "", []string{"Cache-Control: max-stale=15"}, 0, 200, "weir; hit; ttl=-10"},
		{"max-stale without a bound", "", []string{"Cache-Control: max-stale"}, 0, 200, "weir; hit; ttl=-10"},
		{"max-stale is exceeded", "", []string{"Cache-Control: max-stale=5"}, 0, 200, "weir; fwd=stale; fwd-status=200; stored; ttl=10"},
		{"max-stale and must-revalidate", ", must-revalidate", []string{"Cache-Control: max-stale=15"}, 0, 200, "weir; fwd=stale; fwd-status=200; stored; ttl=10"},
		{"primary limit exhausted", "", nil, 1, 200, "weir; hit; ttl=-10; detail=primary"},
		{"primary limit exhausted, must-revalidate", ", must-revalidate", nil, 1, 429, "weir; detail=primary"},
	} {
		bubble(t, c.name, func(t *testing.T) {
			var state atomic.Int32
			w := newWorld(t, failingIn(c.control, &state))
			token := "Authorization: Bearer a"
			w.get(path, token)
			time.Sleep(20 * time.Second)
			state.Store(int32(c.state))
			if c.state == 1 {
				w.get("/users/hubot", token) // the response reports that no quota is left
			}
			got := w.get(path, append(c.fields, token, "Prefer: wait=0")...)
			w.want("status", got.StatusCode, c.status)
			w.want("Cache-Status", got.Header.Get("Cache-Status"), c.cache)
			if c.status == http.StatusOK && c.state != 0 {
				w.want("body", got.body, "answer")
				w.want("age", got.Header.Get("Age"), "20")
			}
		})
	}
}

func TestStaleResponsesEndWhenTheUpstreamIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var state atomic.Int32
		w := newWorld(t, failingIn("", &state))
		w.get("/users/octocat")
		time.Sleep(20 * time.Second)
		state.Store(-1)
		w.want("age while unreachable", w.get("/users/octocat").Header.Get("Age"), "20")
		state.Store(0)
		w.want("age afterwards", w.get("/users/octocat").Header.Get("Age"), "")
	})
}

// A write invalidates the resource in Location (RFC 9111 section 4.4).
func TestWriteInvalidatesItsLocation(t *testing.T) {
	for _, c := range []struct {
		name, field string
		stale       bool
	}{
		{"Location", "Location: /base/users/octocat", true},
		{"Content-Location", "Content-Location: /base/users/octocat", true},
		{"absolute", "Location: " + upstreamURL + "/users/octocat", true},
		{"another spelling", "Location: " + upstreamURL + "/users/%6Fctocat?x=1", true},
		{"another host", "Location: http://other.test/base/users/octocat", false},
		{"outside the base path", "Location: /users/octocat", false},
		{"invalid URL", "Location: http://[", false},
	} {
		bubble(t, c.name, func(t *testing.T) {
			name, value, _ := strings.Cut(c.field, ": ")
			w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60")
				if r.Method == http.MethodPost {
					w.Header().Set(name, value)
				}
				_, _ = fmt.Fprint(w, "answer")
			})
			w.get("/users/octocat")
			w.do(http.MethodPost, "/made-up", nil)
			w.get("/users/octocat")
			want := 2
			if c.stale {
				want = 3
			}
			w.want("requests upstream", w.upstreamSaw(), want)
		})
	}
}

// With stale-while-revalidate, Weir serves a stale response and refreshes the entry (RFC 5861 section 3).
func TestStaleWhileRevalidateServesAndRefreshes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			n++ // requests are sequential
			body := fmt.Sprint("version ", n)
			time.Sleep(time.Second)
			w.Header().Set("Cache-Control", "max-age=10, stale-while-revalidate=20")
			_, _ = fmt.Fprint(w, body)
		})
		const path = "/users/octocat"
		w.get(path)
		time.Sleep(14 * time.Second)
		for _, r := range w.concurrently(5, path, "Cache-Control: max-age=60") {
			w.want("body", r.body, "version 1")
			w.want("Cache-Status", r.Header.Get("Cache-Status"), "weir; hit; ttl=-5")
		}
		time.Sleep(2 * time.Second)
		w.want("after the revalidation", w.get(path).body, "version 2")
		w.want("Cache-Control of the revalidation", w.seen.all()[1].Header.Get("Cache-Control"), "")
		w.want("record of the revalidation is marked", w.gateway.Recent()[1].Background, true)
		time.Sleep(time.Minute)
		w.want("too old for stale-while-revalidate", w.get(path).body, "version 3")
		w.want("requests upstream", w.upstreamSaw(), 3)
		time.Sleep(15 * time.Second)
		w.want("client sends no-cache", w.get(path, "Cache-Control: no-cache").body, "version 4")
	})
}

// The directive must-revalidate and a purge end stale-while-revalidate (RFC 9111 section 5.2.2.2).
func TestStaleWhileRevalidateEndsWithMustRevalidateOrPurge(t *testing.T) {
	for _, c := range []struct {
		control string
		purge   bool
	}{{", must-revalidate", false}, {"", true}} {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
				n++
				w.Header().Set("Cache-Control", "max-age=10, stale-while-revalidate=60"+c.control)
				_, _ = fmt.Fprint(w, "version ", n)
			})
			w.get("/users/octocat")
			time.Sleep(15 * time.Second)
			if c.purge {
				w.gateway.Cache.Purge(t.Context(), "url:/users/octocat")
			}
			w.want("body", w.get("/users/octocat").body, "version 2")
		})
	}
}

func TestLimitErrorDoesNotRemoveTheStoredResponse(t *testing.T) {
	for _, status := range []int{http.StatusForbidden, http.StatusTooManyRequests} {
		synctest.Test(t, func(t *testing.T) {
			var limited atomic.Bool
			w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Cache-Control", "max-age=10")
				w.Header().Set("Etag", `"one"`)
				if limited.Load() {
					w.Header().Set("Retry-After", "60")
					w.WriteHeader(status)
					_, _ = fmt.Fprint(w, `{"message":"You have exceeded a secondary rate limit"}`)
					return
				}
				_, _ = fmt.Fprint(w, "good")
			})
			w.get("/users/octocat")
			time.Sleep(20 * time.Second)
			limited.Store(true)
			for range 2 { // the first request gets the limit error, and the second request is not sent
				r := w.get("/users/octocat", "Prefer: wait=0")
				w.want("body", r.body, "good")
				w.want("detail is cooldown", strings.HasSuffix(r.Header.Get("Cache-Status"), "detail=cooldown"), true)
			}
			w.want("requests upstream", w.upstreamSaw(), 2)
		})
	}
}

// A request with only-if-cached sends no revalidation (RFC 9111 section 5.2.1.7). A HEAD that finds a stale response
// causes a revalidation by GET.
func TestOnlyIfCachedSendsNoRevalidation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "max-age=10, stale-while-revalidate=1000")
			_, _ = fmt.Fprint(w, "good")
		})
		w.get("/users/octocat")
		time.Sleep(15 * time.Second)
		w.want("body", w.get("/users/octocat", "Cache-Control: only-if-cached").body, "good")
		synctest.Wait()
		w.want("requests upstream", w.upstreamSaw(), 1)
		w.do(http.MethodHead, "/users/octocat", nil)
		synctest.Wait()
		w.want("method of the revalidation", w.seen.all()[1].Method, http.MethodGet)
	})
}
