package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/history"
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

// TestRedisIsDownAtTheStart: it is waited for, for some seconds; a replica does not start
// without what it needs to name accounts as the others do, and says so.
func TestRedisIsDownAtTheStart(t *testing.T) {
	t.Parallel()
	f := emptyFleet(t)
	f.service, f.address = "http://127.0.0.1:1", freeAddress(t)
	f.store = "redis://" + f.address
	never := f.file("never.yaml", `upstream: {url: "http://127.0.0.1:1"}`+"\n"+`store: {url: "redis://`+freeAddress(t)+`"}`)
	var problems paper
	code := make(chan int, 1)
	go func() {
		code <- run(t.Context(), []string{"serve", "--config", never, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, os.LookupEnv, &problems, &problems)
	}()
	var starting sync.WaitGroup
	starting.Go(func() {
		pass(t.Context(), time.Second)
		f.startRedis(f.address)
	})
	f.startReplica() // waits until it answers
	starting.Wait()
	if got := <-code; got != exitFailure || !strings.Contains(problems.String(), "weir: store.url: no answer within 15s") {
		t.Errorf("ended with %d: %s", got, problems.String())
	}
}

// TestAReplicaIsPaused, and goes on where it was, as if no time had passed: the service
// must not see a limit broken, and no permit is lost.
func TestAReplicaIsPaused(t *testing.T) {
	f := newFleet(t, 2, oneRedis)
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	f.crowd(ctx, &clients)
	pass(ctx, 3*time.Second)
	paused := f.replicas[1].process.Process
	_ = paused.Signal(syscall.SIGSTOP)
	pass(ctx, 2*phase(t)) // longer than most windows
	_ = paused.Signal(syscall.SIGCONT)
	f.judge("a replica was paused")
	pass(ctx, phase(t))
	f.judge("it goes on")
	stop()
	clients.Wait()
	testservers.Eventually(t, "all permits have come back", func(ctx context.Context) bool { // those of lost answers when their leases end
		pass(ctx, time.Second)
		l, err := (&adminClient{http.DefaultTransport, "http://" + f.replicas[1].admin, ""}).accounts(ctx)
		return err == nil && len(l.accounts) > 0 && !slices.ContainsFunc(l.accounts, func(a history.Account) bool { return a.InUse > 0 })
	})
}
