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
