package main

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/weirgate/weir/internal/redistest"
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
	redistest.Eventually(t, "one has fetched it", func(context.Context) bool { return strings.Contains(f.cacheStatus(0, path), "stored") })
	if got := f.cacheStatus(1, path); !strings.HasPrefix(got, "weir; hit") {
		t.Errorf("the other has it not: %s", got)
	}
	resp, err := http.Post("http://"+f.replicas[0].admin+"/api/v1/cache/purge", "application/json", strings.NewReader(`{"url":"`+path+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	redistest.Eventually(t, "it is stale at the other", func(context.Context) bool { return strings.HasPrefix(f.cacheStatus(1, path), "weir; fwd=stale") })
	if got := f.cacheStatus(0, path); !strings.HasPrefix(got, "weir; hit") {
		t.Errorf("what the other has validated is not used here: %s", got)
	}
}
