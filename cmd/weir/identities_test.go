package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
)

// Two replicas share one Redis. Each replica learns the user of one token. A limit error of one token at one replica then
// reaches the other token at the other replica within about two seconds, without a request upstream.
func TestCooldownReachesTheTokensOfAUserAtEveryReplica(t *testing.T) {
	socket := testservers.Redis(t)
	var limited atomic.Bool
	var requests atomic.Int64
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		w.Header().Set("Content-Type", "application/json")
		switch {
		case limited.Load():
			w.Header().Set("Retry-After", "60")
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprint(w, `{"message": "You have exceeded a secondary rate limit for user ID 123."}`)
		case r.URL.Path == "/user":
			_, _ = fmt.Fprint(w, `{"login": "octo", "id": 123}`)
		default:
			_, _ = fmt.Fprint(w, `{}`)
		}
	}))
	t.Cleanup(up.Close)
	var replicas [2]*redisGateway
	for i := range replicas {
		cfg := config.Default()
		cfg.Upstream.URL, cfg.Store.URL, cfg.Limits.Inbound.Rate = up.URL, "unix://"+socket, 0
		cfg.Limits.Wait, cfg.Callers.PassThrough = 2*time.Second, true
		replicas[i] = &redisGateway{T: t}
		g, err := newGateway(cfg, slog.New(slog.NewTextHandler(&replicas[i].log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		replicas[i].gateway = g
		t.Cleanup(g.close)
	}
	send := func(replica int, token, path string, want int) {
		t.Helper()
		if status, reason := replicas[replica].send(token, path); status != want {
			t.Fatalf("%s with token %s at replica %d: %d (%s), want %d", path, token, replica, status, reason, want)
		}
	}
	send(0, "token-b", "/repos/o/r/tags", http.StatusOK) // this account exists before it is merged
	send(1, "token-b", "/user", http.StatusOK)
	limited.Store(true)
	send(0, "token-a", "/repos/o/r/branches", http.StatusForbidden)
	name := replicas[0].current.Load().callers.AccountOf
	testservers.Eventually(t, "both replicas know both tokens", func(context.Context) bool {
		for _, r := range replicas {
			for _, token := range []string{"token-a", "token-b"} {
				if r.store.Canonical(name(token)) != "user:123" {
					return false
				}
			}
		}
		return true
	})
	testservers.Eventually(t, "both replicas know the cool-down", func(ctx context.Context) bool {
		for _, r := range replicas {
			list, err := r.store.Accounts(ctx, 10)
			if err != nil || !slices.ContainsFunc(list, func(a limits.Account) bool { return a.Name == "user:123" && !a.BlockedUntil.IsZero() }) {
				return false
			}
		}
		return true
	})
	before := requests.Load()
	for replica := range replicas {
		for _, token := range []string{"token-a", "token-b"} {
			send(replica, token, "/repos/o/r/commits", http.StatusTooManyRequests)
		}
	}
	if n := requests.Load() - before; n != 0 {
		t.Errorf("%d requests were sent during the cool-down", n)
	}
}
