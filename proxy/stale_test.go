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

// ailing is an upstream whose answers are fresh for ten seconds, until it is down
// (-1), answers with an error (its status), or has no budget left (1).
func ailing(control string, state *atomic.Int32) http.HandlerFunc {
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

func TestStaleIsBetterThanNothing(t *testing.T) {
	const path = "/users/octocat"
	for _, c := range []struct {
		name    string
		control string
		ask     []string
		state   int
		status  int
		cache   string // of a request twenty seconds after the first
	}{
		{"upstream is down (RFC 9111 4.2.4)", "", nil, -1, 200, "weir; fwd=stale; ttl=-10; detail=upstream"},
		{"and the answer must be validated (RFC 9111 5.2.2.2)", ", must-revalidate", nil, -1, 504, "weir; detail=upstream"},
		{"and the answer may not be used unasked (RFC 9111 5.2.2.4)", ", no-cache", nil, -1, 504, "weir; detail=upstream"},
		{"and the client wants it validated (RFC 9111 5.2.1.4)", "", []string{"Cache-Control: no-cache"}, -1, 502, "weir; detail=upstream"},
		{"and the client wants it young (RFC 9111 5.2.1.1)", "", []string{"Cache-Control: max-age=5"}, -1, 502, "weir; detail=upstream"},
		{"upstream errs, and stale-if-error allows it (RFC 5861 4)", ", stale-if-error=60", nil, 503, 200, "weir; fwd=stale; fwd-status=503; ttl=-10; detail=stale-if-error"},
		{"upstream errs, and the request allows it (RFC 5861 4)", "", []string{"Cache-Control: stale-if-error=60"}, 500, 200, "weir; fwd=stale; fwd-status=500; ttl=-10; detail=stale-if-error"},
		{"upstream errs, and it is too old", ", stale-if-error=5", nil, 503, 503, "weir; fwd=stale; fwd-status=503"},
		{"upstream errs, and nothing allows it", "", nil, 503, 503, "weir; fwd=stale; fwd-status=503"},
		{"no error that stale answers stand in for", ", stale-if-error=60", nil, 501, 501, "weir; fwd=stale; fwd-status=501"},
		{"max-stale (RFC 9111 5.2.1.2)", "", []string{"Cache-Control: max-stale=15"}, 0, 200, "weir; hit; ttl=-10"},
		{"max-stale without a bound", "", []string{"Cache-Control: max-stale"}, 0, 200, "weir; hit; ttl=-10"},
		{"max-stale that is too little", "", []string{"Cache-Control: max-stale=5"}, 0, 200, "weir; fwd=stale; fwd-status=200; stored; ttl=10"},
		{"max-stale against must-revalidate", ", must-revalidate", []string{"Cache-Control: max-stale=15"}, 0, 200, "weir; fwd=stale; fwd-status=200; stored; ttl=10"},
		{"the budget is out", "", nil, 1, 200, "weir; hit; ttl=-10; detail=primary"},
		{"the budget is out, and it must be validated", ", must-revalidate", nil, 1, 429, "weir; detail=primary"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var state atomic.Int32
				w := newWorld(t, ailing(c.control, &state))
				token := "Authorization: Bearer a"
				w.get(path, token)
				time.Sleep(20 * time.Second)
				state.Store(int32(c.state))
				if c.state == 1 {
					w.get("/users/hubot", token) // it tells that nothing is left
				}
				got := w.get(path, append(c.ask, token, "Prefer: wait=0")...)
				w.want("status", got.StatusCode, c.status)
				w.want("Cache-Status", got.Header.Get("Cache-Status"), c.cache)
				if c.status == http.StatusOK && c.state != 0 {
					w.want("body", got.body, "answer")
					w.want("age", got.Header.Get("Age"), "20")
				}
			})
		})
	}
}

func TestUpstreamsReturnEndsTheStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var state atomic.Int32
		w := newWorld(t, ailing("", &state))
		w.get("/users/octocat")
		time.Sleep(20 * time.Second)
		state.Store(-1)
		w.want("while it is down", w.get("/users/octocat").Header.Get("Age"), "20")
		state.Store(0)
		w.want("when it is back", w.get("/users/octocat").Header.Get("Age"), "")
	})
}

// TestAWriteMakesStaleWhereItSaysItDidSomething: RFC 9111 section 4.4.
func TestAWriteMakesStaleWhereItSaysItDidSomething(t *testing.T) {
	for _, c := range []struct {
		name, field string
		stale       bool
	}{
		{"Location", "Location: /base/users/octocat", true},
		{"Content-Location", "Content-Location: /base/users/octocat", true},
		{"absolute", "Location: " + upstreamURL + "/users/octocat", true},
		{"another spelling of it", "Location: " + upstreamURL + "/users/%6Fctocat?x=1", true},
		{"another host", "Location: http://other.test/base/users/octocat", false},
		{"outside of the API", "Location: /users/octocat", false},
		{"no URL", "Location: http://[", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
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
		})
	}
}

// TestStaleWhileItIsValidated: RFC 5861 section 3.
func TestStaleWhileItIsValidated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			n++ // one at a time
			body := fmt.Sprint("version ", n)
			time.Sleep(time.Second)
			w.Header().Set("Cache-Control", "max-age=10, stale-while-revalidate=20")
			_, _ = fmt.Fprint(w, body)
		})
		const path = "/users/octocat"
		w.get(path)
		time.Sleep(14 * time.Second)
		for _, r := range w.crowd(5, path, "Cache-Control: max-age=60") {
			w.want("stale", r.body, "version 1")
			w.want("and says so", r.Header.Get("Cache-Status"), "weir; hit; ttl=-5")
		}
		time.Sleep(2 * time.Second)
		w.want("validated meanwhile", w.get(path).body, "version 2")
		w.want("in nobody's words", w.seen.all()[1].Header.Get("Cache-Control"), "")
		w.want("for nobody", w.gateway.Recent()[1].Background, true)
		time.Sleep(time.Minute)
		w.want("too old", w.get(path).body, "version 3")
		w.want("requests upstream", w.upstreamSaw(), 3)
		time.Sleep(15 * time.Second)
		w.want("the client wants it validated", w.get(path, "Cache-Control: no-cache").body, "version 4")
	})
}

// TestAttack40StaleIsNotUsedWhereItMustNot: RFC 9111 section 5.2.2.2, and what was purged.
func TestAttack40StaleIsNotUsedWhereItMustNot(t *testing.T) {
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
			w.want("asked", w.get("/users/octocat").body, "version 2")
		})
	}
}

// TestALimitErrorLeavesWhatIsHeld: it says nothing of the answer.
func TestALimitErrorLeavesWhatIsHeld(t *testing.T) {
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
			for range 2 { // the first meets the limit, the second is not sent
				r := w.get("/users/octocat", "Prefer: wait=0")
				w.want("instead", r.body, "good")
				w.want("why", strings.HasSuffix(r.Header.Get("Cache-Status"), "detail=cooldown"), true)
			}
			w.want("requests upstream", w.upstreamSaw(), 2)
		})
	}
}

// TestNothingIsSentBehindOnlyIfCached: RFC 9111 section 5.2.1.7; and what a HEAD
// finds stale is validated whole.
func TestNothingIsSentBehindOnlyIfCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "max-age=10, stale-while-revalidate=1000")
			_, _ = fmt.Fprint(w, "good")
		})
		w.get("/users/octocat")
		time.Sleep(15 * time.Second)
		w.want("stale", w.get("/users/octocat", "Cache-Control: only-if-cached").body, "good")
		synctest.Wait()
		w.want("requests upstream", w.upstreamSaw(), 1)
		w.do(http.MethodHead, "/users/octocat", nil)
		synctest.Wait()
		w.want("asked in the background", w.seen.all()[1].Method, http.MethodGet)
	})
}
