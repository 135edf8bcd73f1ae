package proxy

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Followers with another credential or another representation get their own response. Clients do not share errors.
func TestCoalescedCallIsSharedOnlyByIdenticalRequests(t *testing.T) {
	for _, status := range []int{200, 401, 403, 404, 429, 500} {
		setup(delayed(func(w http.ResponseWriter, r *http.Request) {
			token := r.Header.Get("Authorization")
			setFields(w, "Cache-Control: private, max-age=60", "X-Oauth-Scopes: "+token)
			switch token {
			case "Bearer leader":
				w.WriteHeader(status)
			case "":
				w.WriteHeader(http.StatusNotFound)
			}
			_, _ = fmt.Fprint(w, token, r.Header.Get("Accept"))
		})).sub(t, fmt.Sprint(status), func(w *world) {
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
		"cookie":   lines("Set-Cookie: a=b", fresh),
	} {
		setup(delayed(func(w http.ResponseWriter, _ *http.Request) {
			setFields(w, append(rates(5000, 1, time.Hour), fields...)...)
		})).sub(t, name, func(w *world) {
			w.get("/emojis") // the first response reports the limit, so concurrent requests are allowed afterwards
			var clients sync.WaitGroup
			for range 60 {
				time.Sleep(170 * time.Millisecond)
				clients.Go(func() {
					start := time.Now()
					w.want("status", w.get(watchers).StatusCode, 200)
					took := time.Since(start)
					failIf(w, took > 2*time.Second, "got the response after %v", took)
				})
			}
			clients.Wait()
			w.want("requests upstream", w.upstreamSaw(), 61)
		})
	}
}

// A replica renews its fetch lease during a request that takes longer than the lease of 3 s.
func TestLongRequestsAreCoalescedAcrossReplicas(t *testing.T) {
	setup(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(20 * time.Second)
		replies("all", fresh)(w, r)
	}).run(t, func(w *world) {
		list, _ := w.replicas(3)
		for _, r := range sendToAll(list, 9, watchers) {
			w.want("body", r.Body.String(), "all")
		}
		w.want("requests upstream", w.upstreamSaw(), 1)
	})
}
