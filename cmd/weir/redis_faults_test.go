package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
)

// startOnLink starts a gateway whose connection to Redis can be disturbed.
func startOnLink(t *testing.T) (*redisGateway, *testservers.Link) {
	t.Helper()
	socket := testservers.Redis(t)
	link := testservers.NewSocketLink(t, socket)
	o := startOnRedis(t, link.Address, "")
	o.redis = redis.NewClient(&redis.Options{Network: "unix", Addr: socket, MaxRetries: -1}) // the test connects without the link
	t.Cleanup(func() { _ = o.redis.Close() })
	return o, link
}

// reports reports whether a metric or a log line contains a text.
func (o *redisGateway) reports(text string) bool {
	w := httptest.NewRecorder()
	o.telemetry.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	return strings.Contains(w.Body.String(), "\n"+text+"\n") || strings.Contains(o.log.String(), text)
}

// awaitReport waits until a metric or a log line contains a text.
func (o *redisGateway) awaitReport(text string) {
	o.Helper()
	testservers.Eventually(o, "a report contains "+text, func(context.Context) bool { return o.reports(text) })
}

// TestGatewaySurvivesCutRedisConnection cuts the link without closing connections. Commands in
// transit arrive late.
func TestGatewaySurvivesCutRedisConnection(t *testing.T) {
	t.Parallel()
	o, link := startOnLink(t)
	o.surviveFault(func(context.Context, *redis.Client) error {
		link.Cut()
		o.send("caller-token", "/users/first") // this request detects the loss
		o.awaitReport("weir_store_up 0")
		return nil
	}, func(context.Context, *redis.Client) error {
		link.Restore()
		return nil
	})
	o.awaitReport("weir_store_up 1")
	o.awaitReport("redis connection lost; using the leases of this replica")
	o.awaitReport("redis connection restored")
}

// TestUnresponsiveRedisCountsAsLost checks that a slow Redis is not lost, and that a delay beyond
// the timeout counts as a lost connection.
func TestUnresponsiveRedisCountsAsLost(t *testing.T) {
	t.Parallel()
	o, link := startOnLink(t)
	o.awaitStored("at first")
	link.Delay(5 * time.Millisecond)
	o.awaitStored("slowly")
	link.Delay(200 * time.Millisecond)
	for range 5 {
		o.send("caller-token", "/users/first")
	}
	if o.reports("weir_store_up 0") {
		t.Error("redis is lost, although it responds within 200 ms")
	}
	link.Restore() // the cache stores no responses while Redis needs more than 100 ms
	o.surviveFault(func(context.Context, *redis.Client) error {
		link.Delay(1500 * time.Millisecond)
		o.send("caller-token", "/users/first")
		o.awaitReport("weir_store_up 0")
		return nil
	}, func(context.Context, *redis.Client) error {
		link.Restore()
		return nil
	})
	o.awaitReport("weir_store_up 1")
}

// TestReplicaKeepsSpendingOfColdStart starts a gateway while Redis is unreachable. When the gateway joins the other
// replica, it renames the accounts of passed-through tokens. What the accounts used before must count afterwards.
func TestReplicaKeepsSpendingOfColdStart(t *testing.T) {
	t.Parallel()
	socket := testservers.Redis(t)
	other := startOnRedis(t, socket, "")
	link := testservers.NewSocketLink(t, socket)
	link.Cut()
	o := startOnRedis(t, link.Address, "")
	const before = 3
	for i := range before {
		if status, _ := o.send("caller-token", fmt.Sprint("/users/cold-", i)); status != http.StatusOK {
			t.Errorf("status %d without redis, want 200", status)
		}
	}
	account := o.current.Load().callers.AccountOf("caller-token")
	link.Restore()
	testservers.Eventually(t, "the replica joined", func(context.Context) bool {
		return o.current.Load().callers.AccountOf("caller-token") != account
	})
	testservers.Eventually(t, "a request after joining succeeds", func(context.Context) bool {
		status, _ := o.send("caller-token", "/users/joined")
		return status == http.StatusOK
	})
	testservers.Eventually(t, "the other replica sees all spending of the account", func(ctx context.Context) bool {
		accounts, err := other.store.Accounts(ctx, 10)
		i := slices.IndexFunc(accounts, func(a limits.Account) bool { return a.Name == o.current.Load().callers.AccountOf("caller-token") })
		if err != nil || i < 0 {
			return false
		}
		return slices.ContainsFunc(accounts[i].Budgets, func(b limits.Budget) bool {
			return strings.HasPrefix(b.Resource, "points:") && b.Used == before+1
		})
	})
}

// spentPoints returns the used points of all accounts in Redis.
func (o *redisGateway) spentPoints() (n int) {
	accounts, err := o.store.Accounts(o.Context(), 10)
	if err != nil {
		return -1
	}
	for _, a := range accounts {
		for _, b := range a.Budgets {
			if strings.HasPrefix(b.Resource, "points:") {
				n += b.Used
			}
		}
	}
	return n
}

// TestSpendingSurvivesLostKeys evicts, deletes and corrupts keys in Redis. A replica must restore the spending of its
// local accounts in Redis.
func TestSpendingSurvivesLostKeys(t *testing.T) {
	for name, fails := range map[string]func(ctx context.Context, c *redis.Client, keys []string) error{
		"keys are evicted": func(ctx context.Context, c *redis.Client, _ []string) error {
			if err := c.ConfigSet(ctx, "maxmemory-policy", "allkeys-random").Err(); err != nil {
				return err
			}
			if err := c.ConfigSet(ctx, "maxmemory", "1").Err(); err != nil {
				return err
			}
			_ = c.Set(ctx, "any", "more", 0).Err() // evicts all keys, and fails
			if n := len(c.Keys(ctx, "weir:*").Val()); n > 0 {
				return fmt.Errorf("%d keys are left", n)
			}
			return c.ConfigSet(ctx, "maxmemory", "0").Err()
		},
		"keys are deleted": func(ctx context.Context, c *redis.Client, keys []string) error { return c.Del(ctx, keys...).Err() },
		"keys have another type": func(ctx context.Context, c *redis.Client, keys []string) error {
			for _, key := range keys {
				if err := c.Set(ctx, key, "\x00rubbish", time.Hour).Err(); err != nil {
					return err
				}
			}
			return nil
		},
		"fields have invalid values": func(ctx context.Context, c *redis.Client, keys []string) error {
			for _, key := range keys {
				for _, field := range c.HKeys(ctx, key).Val() {
					if err := c.HSet(ctx, key, field, "\xffrubbish").Err(); err != nil {
						return err
					}
				}
			}
			return nil
		},
		"shared keys have another type": func(ctx context.Context, c *redis.Client, _ []string) error {
			for _, key := range c.Keys(ctx, "weir:{weir}:*").Val() {
				if err := c.Del(ctx, key).Err(); err != nil {
					return err
				}
				if err := c.HSet(ctx, key, "rubbish", 1).Err(); err != nil {
					return err
				}
			}
			return nil
		},
		"fields are truncated": func(ctx context.Context, c *redis.Client, keys []string) error {
			for _, key := range keys {
				for field, value := range c.HGetAll(ctx, key).Val() {
					if err := c.HSet(ctx, key, field, value[:len(value)/2]).Err(); err != nil {
						return err
					}
				}
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := startOnRedis(t, testservers.Redis(t), "")
			spent := 0
			o.surviveFault(func(ctx context.Context, c *redis.Client) error {
				n := 0
				testservers.Eventually(t, "points are spent", func(context.Context) bool {
					n++
					o.send("caller-token", fmt.Sprint("/users/spends-", n))
					spent = o.spentPoints()
					return spent >= 10
				})
				return fails(ctx, c, c.Keys(ctx, "weir:account:*").Val())
			}, func(context.Context, *redis.Client) error { return nil })
			testservers.Eventually(t, "the spending is written again", func(context.Context) bool { return o.spentPoints() >= spent })
			if strings.HasPrefix(name, "fields") || strings.HasPrefix(name, "keys are of") {
				o.awaitReport("replacing an unreadable account in redis by an empty one")
			}
		})
	}
}
