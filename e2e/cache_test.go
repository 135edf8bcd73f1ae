//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// cacheStatus sends a request to a replica and returns its Cache-Status field.
func (f *fleet) cacheStatus(replica int, path string) string {
	f.Helper()
	resp, _ := get(f.T, f.replicas[replica].url+path, "Authorization: Bearer tok-member")
	return resp.Header.Get("Cache-Status")
}

// TestReplicasShareCacheAndPurges checks that a stored response is a hit at every replica. A purge at one replica must
// make the response stale at every replica.
func TestReplicasShareCacheAndPurges(t *testing.T) {
	const path = "/gitignore/templates"
	f := newFleet(t, 2, oneRedis)
	f.eventually("the first replica stores the response", func(context.Context) bool {
		return strings.Contains(f.cacheStatus(0, path), "stored")
	})
	f.eventually("the second replica has a hit", func(context.Context) bool {
		return strings.HasPrefix(f.cacheStatus(1, path), "weir; hit")
	})
	send(t, "POST", "http://"+f.replicas[0].admin+"/api/v1/cache/purge", `{"url":"`+path+`"}`, "Content-Type: application/json")
	f.eventually("the response is stale at the second replica", func(context.Context) bool {
		return strings.HasPrefix(f.cacheStatus(1, path), "weir; fwd=stale")
	})
	f.eventually("the first replica has a hit after the second has revalidated", func(context.Context) bool {
		return strings.HasPrefix(f.cacheStatus(0, path), "weir; hit")
	})
}

// TestFleetCoalescesIdenticalRequests sends each request from a thousand clients to three replicas. The fleet must send
// each request upstream once, or once per poll of a statistics endpoint.
func TestFleetCoalescesIdenticalRequests(t *testing.T) {
	var upstreamCalls atomic.Int32
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := upstreamCalls.Add(1)
		sleep(r.Context(), 300*time.Millisecond)
		if strings.Contains(r.URL.Path, "/stats/") && n%3 != 0 {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		w.Header().Set("Cache-Control", "private, max-age=60")
		_, _ = fmt.Fprint(w, "body")
	}))
	defer up.Close()
	f := emptyFleet(t)
	f.store, f.service = oneRedis(f), up.URL
	for range 3 {
		f.replicas = append(f.replicas, f.startReplica())
	}
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 400}}
	defer client.CloseIdleConnections()
	sleep(t.Context(), 2*time.Second) // the slow start of a new ledger ends
	for _, c := range []struct {
		path string
		want int32
	}{{"/repos/acme/%d/subscribers", 1}, {"/repos/acme/%d/stats/contributors", 3}} {
		var calls []int32 // a busy machine may be too slow for the lease in Redis, then each replica forwards
		for i := range 5 {
			upstreamCalls.Store(0)
			f.requestAll(client, fmt.Sprintf(c.path, i))
			calls = append(calls, upstreamCalls.Load())
			if calls[i] <= c.want {
				break
			}
		}
		if calls[len(calls)-1] != c.want {
			t.Errorf("%s: %v upstream calls, want %d", c.path, calls, c.want)
		}
	}
}

// requestAll sends a request from a thousand clients, and waits until each client has a response.
func (f *fleet) requestAll(client *http.Client, path string) {
	f.Helper()
	var clients sync.WaitGroup
	for i := range 1000 {
		clients.Go(func() {
			req, err := http.NewRequestWithContext(f.Context(), http.MethodGet, f.replicas[i%len(f.replicas)].url+path, nil)
			if err != nil {
				f.Error(err)
				return
			}
			req.Header.Set("Authorization", "Bearer tok")
			req.Header.Set("Prefer", "wait=30")
			resp, err := client.Do(req)
			if err != nil {
				f.Error(err)
				return
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				f.Errorf("%s: %s", resp.Status, resp.Header.Get("Cache-Status"))
			}
		})
	}
	clients.Wait()
}
