package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestAttack25WaitersGetTheirOwnAnswer: whatever the first one is told, nobody else is told
// it, of another credential or representation; and an error is for nobody else at all.
func TestAttack25WaitersGetTheirOwnAnswer(t *testing.T) {
	for _, status := range []int{200, 401, 403, 404, 429, 500} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
					time.Sleep(time.Second)
					w.Header().Set("Cache-Control", "private, max-age=60")
					w.Header().Set("X-Oauth-Scopes", r.Header.Get("Authorization"))
					switch token := r.Header.Get("Authorization"); token {
					case "Bearer leader":
						w.WriteHeader(status)
					case "":
						w.WriteHeader(http.StatusNotFound)
					}
					_, _ = fmt.Fprint(w, r.Header.Get("Authorization"), r.Header.Get("Accept"))
				})
				list, _ := w.replicas(2)
				var clients sync.WaitGroup
				ask := func(token, accept string, want int) {
					for _, g := range list {
						clients.Go(func() {
							r := asks(g, watchers, "Authorization", token, "Accept", accept)
							w.want("status of "+token, r.Code, want)
							if want < 400 || want == 404 {
								w.want("body of "+token, r.Body.String(), token+accept)
								w.want("scopes of "+token, r.Header().Get("X-Oauth-Scopes"), token)
							}
						})
					}
				}
				ask("Bearer leader", "*/*", status)
				synctest.Wait()
				ask("Bearer b", "*/*", 200)
				ask("Bearer c", "text/plain", 200)
				ask("Bearer b", "application/vnd.service.raw+json", 200)
				ask("", "*/*", 404)
				clients.Wait()
			})
		})
	}
}

// TestAttack27NobodyWaitsInLine: clients that come one after the other, all the time, for
// what is for nobody else, wait for one of the others at most.
func TestAttack27NobodyWaitsInLine(t *testing.T) {
	for name, fields := range map[string][]string{
		"no-store": one("Cache-Control: no-store"),
		"private":  one("Cache-Control: private, max-age=60"),
		"a cookie": one("Set-Cookie: a=b", "Cache-Control: max-age=60"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
					time.Sleep(time.Second)
					w.Header().Set("X-RateLimit-Limit", "5000")
					w.Header().Set("X-RateLimit-Used", "1")
					w.Header().Set("X-RateLimit-Reset", fmt.Sprint(time.Now().Add(time.Hour).Unix()))
					for _, f := range fields {
						name, value, _ := strings.Cut(f, ": ")
						w.Header().Set(name, value)
					}
				})
				w.get("/emojis") // now the limit is known, and many may go at once
				var clients sync.WaitGroup
				for range 60 {
					time.Sleep(170 * time.Millisecond)
					clients.Go(func() {
						began := time.Now()
						w.want("status", w.get(watchers).StatusCode, 200)
						if took := time.Since(began); took > 2*time.Second {
							t.Errorf("after %v", took)
						}
					})
				}
				clients.Wait()
				w.want("requests upstream", w.upstreamSaw(), 61)
			})
		})
	}
}

// TestAttack29AQuestionThatTakesLongIsAskedOnce: the claim on it is renewed for as long as
// its replica lives.
func TestAttack29AQuestionThatTakesLongIsAskedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(20 * time.Second) // a claim lives for 3
			slowly("all")(w, r)
		})
		list, _ := w.replicas(3)
		for _, r := range crowds(list, 9, watchers) {
			w.want("body", r.Body.String(), "all")
		}
		w.want("requests upstream", w.upstreamSaw(), 1)
	})
}

// TestAttack29RedisPausesMeanwhile: each replica asks once at most, and all are answered
// in time.
func TestAttack29RedisPausesMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, slowly("all"))
		list, tier := w.replicas(3)
		pause := func(away bool) {
			tier.mu.Lock()
			defer tier.mu.Unlock()
			tier.away = away
		}
		time.AfterFunc(500*time.Millisecond, func() { pause(true) })
		time.AfterFunc(5500*time.Millisecond, func() { pause(false) })
		for i := range 4 {
			began := time.Now()
			for _, r := range crowds(list, 30, fmt.Sprint("/users/", i)) {
				w.want("body", r.Body.String(), "all")
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("after %v", took)
			}
		}
		if n := w.upstreamSaw(); n > 4*len(list) {
			t.Errorf("%d requests upstream, for 4 answers of %d replicas", n, len(list))
		}
	})
}
