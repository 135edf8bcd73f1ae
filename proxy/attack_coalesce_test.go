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

// Followers with another credential or another representation get their own response. Clients do not share errors.
func TestCoalescedCallIsSharedOnlyByIdenticalRequests(t *testing.T) {
	for _, status := range []int{200, 401, 403, 404, 429, 500} {
		bubble(t, fmt.Sprint(status), func(t *testing.T) {
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
			send := func(token, accept string, want int) {
				for _, g := range list {
					clients.Go(func() {
						r := sendTo(g, watchers, "Authorization", token, "Accept", accept)
						w.want("status of "+token, r.Code, want)
						if want < 400 || want == 404 {
							w.want("body of "+token, r.Body.String(), token+accept)
							w.want("scopes of "+token, r.Header().Get("X-Oauth-Scopes"), token)
						}
					})
				}
			}
			send("Bearer leader", "*/*", status)
			synctest.Wait()
			send("Bearer b", "*/*", 200)
			send("Bearer c", "text/plain", 200)
			send("Bearer b", "application/vnd.service.raw+json", 200)
			send("", "*/*", 404)
			clients.Wait()
		})
	}
}

// Responses that cannot be shared must not serialize their clients. Each client waits for at most one other request.
func TestUnsharableResponsesDoNotSerializeClients(t *testing.T) {
	for name, fields := range map[string][]string{
		"no-store": lines("Cache-Control: no-store"),
		"private":  lines("Cache-Control: private, max-age=60"),
		"cookie":   lines("Set-Cookie: a=b", "Cache-Control: max-age=60"),
	} {
		bubble(t, name, func(t *testing.T) {
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
			w.get("/emojis") // the first response reports the limit, so concurrent requests are allowed afterwards
			var clients sync.WaitGroup
			for range 60 {
				time.Sleep(170 * time.Millisecond)
				clients.Go(func() {
					start := time.Now()
					w.want("status", w.get(watchers).StatusCode, 200)
					if took := time.Since(start); took > 2*time.Second {
						t.Errorf("got the response after %v", took)
					}
				})
			}
			clients.Wait()
			w.want("requests upstream", w.upstreamSaw(), 61)
		})
	}
}

// A replica renews its fetch lease during a long request.
func TestLongRequestsAreCoalescedAcrossReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(20 * time.Second) // longer than the lease of 3 s
			slowly("all")(w, r)
		})
		list, _ := w.replicas(3)
		for _, r := range sendToAll(list, 9, watchers) {
			w.want("body", r.Body.String(), "all")
		}
		w.want("requests upstream", w.upstreamSaw(), 1)
	})
}

// Without Redis each replica sends at most one request, and all clients get a response in time.
func TestCoalescingSurvivesAPauseOfRedis(t *testing.T) {
	setup(slowly("all")).run(t, func(w *world) {
		list, tier := w.replicas(3)
		pause := func(away bool) {
			tier.mu.Lock()
			defer tier.mu.Unlock()
			tier.away = away
		}
		time.AfterFunc(500*time.Millisecond, func() { pause(true) })
		time.AfterFunc(5500*time.Millisecond, func() { pause(false) })
		for i := range 4 {
			start := time.Now()
			for _, r := range sendToAll(list, 30, fmt.Sprint("/users/", i)) {
				w.want("body", r.Body.String(), "all")
			}
			if took := time.Since(start); took > 5*time.Second {
				w.Errorf("got the response after %v", took)
			}
		}
		if n := w.upstreamSaw(); n > 4*len(list) {
			w.Errorf("%d requests upstream, for 4 responses and %d replicas", n, len(list))
		}
	})
}
