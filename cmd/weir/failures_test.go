package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/testservers"
)

// onWire is a gateway whose way to Redis is not as it should be.
func onWire(t *testing.T) (*onRedis, *testservers.Link) {
	t.Helper()
	socket := testservers.Redis(t)
	wire := testservers.NewSocketLink(t, socket)
	o := newOnRedis(t, wire.Address, "")
	o.redis = redis.NewClient(&redis.Options{Network: "unix", Addr: socket, MaxRetries: -1}) // an operator is on the spot
	t.Cleanup(func() { _ = o.redis.Close() })
	return o, wire
}

// tells reports whether the operator is told something: by a metric, or a line of the log.
func (o *onRedis) tells(what string) bool {
	w := httptest.NewRecorder()
	o.telemetry.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	return strings.Contains(w.Body.String(), "\n"+what+"\n") || strings.Contains(o.log.String(), what)
}

func (o *onRedis) eventuallyTells(what string) {
	o.Helper()
	testservers.Eventually(o, "it is told that "+what, func(context.Context) bool { return o.tells(what) })
}

// TestTheWayToRedisIsCut, with nobody told, and mended: what was in flight comes late.
func TestTheWayToRedisIsCut(t *testing.T) {
	t.Parallel()
	o, wire := onWire(t)
	o.endures(func(context.Context, *redis.Client) error {
		wire.Cut()
		o.ask("caller-token", "/users/first") // by which it is noticed
		o.eventuallyTells("weir_store_up 0")
		return nil
	}, func(context.Context, *redis.Client) error {
		wire.Restore()
		return nil
	})
	o.eventuallyTells("weir_store_up 1")
	o.eventuallyTells("redis connection lost; using offline leases")
	o.eventuallyTells("redis connection restored")
}

// TestRedisIsSlow: a little, and nothing else is noticed; more than it is waited for, and
// it counts as lost.
func TestRedisIsSlow(t *testing.T) {
	t.Parallel()
	o, wire := onWire(t)
	o.answers("before")
	wire.Delay(5 * time.Millisecond)
	o.answers("slowly")
	o.endures(func(context.Context, *redis.Client) error {
		wire.Delay(200 * time.Millisecond)
		o.ask("caller-token", "/users/first")
		o.eventuallyTells("weir_store_up 0")
		return nil
	}, func(context.Context, *redis.Client) error {
		wire.Restore()
		return nil
	})
	o.eventuallyTells("weir_store_up 1")
}

// spentPoints is how much of its points the caller's account has used, as Redis knows it.
func (o *onRedis) spentPoints() (n int) {
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

// TestRedisLosesSingleKeys: one that evicts, in which somebody writes, or deletes. What an
// account has spent each replica that knows of it writes again.
func TestRedisLosesSingleKeys(t *testing.T) {
	for name, fails := range map[string]func(ctx context.Context, c *redis.Client, keys []string) error{
		"it evicts": func(ctx context.Context, c *redis.Client, _ []string) error {
			if err := c.ConfigSet(ctx, "maxmemory-policy", "allkeys-random").Err(); err != nil {
				return err
			}
			if err := c.ConfigSet(ctx, "maxmemory", "1").Err(); err != nil {
				return err
			}
			_ = c.Set(ctx, "any", "more", 0).Err() // has all evicted, and finds no room
			if n := len(c.Keys(ctx, "weir:*").Val()); n > 0 {
				return fmt.Errorf("%d keys are left", n)
			}
			return c.ConfigSet(ctx, "maxmemory", "0").Err()
		},
		"keys are deleted": func(ctx context.Context, c *redis.Client, keys []string) error { return c.Del(ctx, keys...).Err() },
		"keys are of another type": func(ctx context.Context, c *redis.Client, keys []string) error {
			for _, key := range keys {
				if err := c.Set(ctx, key, "\x00rubbish", time.Hour).Err(); err != nil {
					return err
				}
			}
			return nil
		},
		"fields are rubbish": func(ctx context.Context, c *redis.Client, keys []string) error {
			for _, key := range keys {
				for _, field := range c.HKeys(ctx, key).Val() {
					if err := c.HSet(ctx, key, field, "\xffrubbish").Err(); err != nil {
						return err
					}
				}
			}
			return nil
		},
		"what replicas share is of another type": func(ctx context.Context, c *redis.Client, _ []string) error {
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
		"fields are cut short": func(ctx context.Context, c *redis.Client, keys []string) error {
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
			o := newOnRedis(t, testservers.Redis(t), "")
			spent := 0
			o.endures(func(ctx context.Context, c *redis.Client) error {
				n := 0
				testservers.Eventually(t, "something is spent", func(context.Context) bool {
					n++
					o.ask("caller-token", fmt.Sprint("/users/spends-", n))
					spent = o.spentPoints()
					return spent >= 10
				})
				return fails(ctx, c, c.Keys(ctx, "weir:account:*").Val())
			}, func(context.Context, *redis.Client) error { return nil })
			testservers.Eventually(t, "nothing that was spent is forgotten", func(context.Context) bool { return o.spentPoints() >= spent })
			if strings.HasPrefix(name, "fields") || strings.HasPrefix(name, "keys are of") {
				o.eventuallyTells("redis has an account that cannot be read")
			}
		})
	}
}
