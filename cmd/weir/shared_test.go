package main

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

	"github.com/weirgate/weir/internal/testservers"
)

// cacheStatus asks a replica, and says what the cache had to do with the answer.
func (f *fleet) cacheStatus(replica int, path string) string {
	f.Helper()
	req, err := http.NewRequestWithContext(f.Context(), http.MethodGet, f.replicas[replica].url+path, http.NoBody)
	if err != nil {
		f.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer tok-member")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		f.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.Header.Get("Cache-Status")
}

// TestReplicasShareTheirCache: what one has fetched all have, and what is purged at
// one is stale at all.
func TestReplicasShareTheirCache(t *testing.T) {
	const path = "/gitignore/templates"
	f := newFleet(t, 2, oneRedis)
	testservers.Eventually(t, "one has fetched it", func(context.Context) bool { return strings.Contains(f.cacheStatus(0, path), "stored") })
	if got := f.cacheStatus(1, path); !strings.HasPrefix(got, "weir; hit") {
		t.Errorf("the other has it not: %s", got)
	}
	resp, err := http.Post("http://"+f.replicas[0].admin+"/api/v1/cache/purge", "application/json", strings.NewReader(`{"url":"`+path+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	testservers.Eventually(t, "it is stale at the other", func(context.Context) bool { return strings.HasPrefix(f.cacheStatus(1, path), "weir; fwd=stale") })
	if got := f.cacheStatus(0, path); !strings.HasPrefix(got, "weir; hit") {
		t.Errorf("what the other has validated is not used here: %s", got)
	}
}

// TestReplicasAskOnce: three replicas, real processes on one Redis, a thousand
// clients.
func TestReplicasAskOnce(t *testing.T) {
	var asked atomic.Int32
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := asked.Add(1)
		pass(r.Context(), 300*time.Millisecond)
		if strings.Contains(r.URL.Path, "/stats/") && n%3 != 0 {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		w.Header().Set("Cache-Control", "private, max-age=60")
		_, _ = fmt.Fprint(w, "answer")
	}))
	defer up.Close()
	f := newFleet(t, 0, oneRedis)
	f.service = up.URL
	for range 3 {
		f.replicas = append(f.replicas, f.startReplica())
	}
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 400}}
	defer client.CloseIdleConnections()
	crowd := func(path string) {
		var clients sync.WaitGroup
		for i := range 1000 {
			clients.Go(func() {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.replicas[i%3].url+path, http.NoBody)
				if err != nil {
					t.Error(err)
					return
				}
				req.Header.Set("Authorization", "Bearer tok")
				req.Header.Set("Prefer", "wait=30")
				resp, err := client.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				_ = resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					t.Errorf("%s: %s", resp.Status, resp.Header.Get("Cache-Status"))
				}
			})
		}
		clients.Wait()
	}
	pass(t.Context(), 2*time.Second) // until nobody could have anything to tell
	for _, c := range []struct {
		path string
		want int32
	}{{"/repos/acme/%d/subscribers", 1}, {"/repos/acme/%d/stats/contributors", 3}} {
		var asks []int32 // a busy machine may be too slow for Redis: then each replica asks
		for i := range 5 {
			asked.Store(0)
			crowd(fmt.Sprintf(c.path, i))
			asks = append(asks, asked.Load())
			if asks[i] <= c.want {
				break
			}
		}
		t.Logf("%s: %d requests upstream", c.path, asks)
		if asks[len(asks)-1] != c.want {
			t.Errorf("want %d", c.want)
		}
	}
}
