//go:build e2e

package e2e

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestReplicasShareCallsCacheAndPurges checks that identical requests of many clients at every replica cause one upstream
// call, and that the stored response is a hit at every replica. A purge at one replica must make the response stale at
// every replica.
func TestReplicasShareCallsCacheAndPurges(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	f := emptyFleet(t)
	f.store, f.service = oneRedis(f), serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		sleep(r.Context(), 300*time.Millisecond)
		w.Header().Set("Cache-Control", "private, max-age=60")
		_, _ = io.WriteString(w, "body")
	}))
	for range 3 {
		f.replicas = append(f.replicas, f.startReplica())
	}
	cacheStatus := func(replica int, path string) string {
		resp, _ := get(t, f.replicas[replica].url+path, "Authorization: Bearer tok-member", "Prefer: wait=30")
		return resp.Header.Get("Cache-Status")
	}
	sleep(t.Context(), 2*time.Second) // the slow start of a new ledger ends
	path := ""
	for _, path = range []string{"/orgs/a/members", "/orgs/b/members", "/orgs/c/members", "/orgs/d/members", "/orgs/e/members"} {
		calls.Store(0)
		var clients sync.WaitGroup
		for i := range 90 {
			clients.Go(func() {
				got := cacheStatus(i%len(f.replicas), path)
				failIf(t, strings.Contains(got, "detail="), "%s: %s", path, got)
			})
		}
		clients.Wait()
		if calls.Load() == 1 {
			break // a busy machine may be too slow for the lease in Redis, then each replica forwards
		}
	}
	want(t, "upstream calls", calls.Load(), 1)
	wantStatus := func(condition string, replica int, prefix string) {
		t.Helper()
		f.eventually(condition, func(context.Context) bool { return strings.HasPrefix(cacheStatus(replica, path), prefix) })
	}
	wantStatus("the second replica has a hit", 1, "weir; hit")
	send(t, "POST", "http://"+f.replicas[0].admin+"/api/v1/cache/purge", `{"url":"`+path+`"}`, "Content-Type: application/json")
	wantStatus("the response is stale at the second replica", 1, "weir; fwd=stale")
	wantStatus("the first replica has a hit after the second has revalidated", 0, "weir; hit")
}
