package redisledger

import (
	"bytes"
	"context"
	"flag"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/limits/limitstest"
	"github.com/weirgate/weir/policy"
)

// clientOf returns a client that connects with the function dial.
func clientOf(t testing.TB, dial func(ctx context.Context, network, addr string) (net.Conn, error)) *redis.Client {
	// A call that waits for a connection uses a timer that go-redis shares between the bubbles of synctest. The pool is
	// large enough for all calls of a test.
	client := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:0", Dialer: dial, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		MaxRetries: -1, DisableIdentity: true, PoolSize: 1000, ContextTimeoutEnabled: true,
	})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// miniredisClient starts a miniredis in the bubble of the test.
func miniredisClient(t *testing.T) *redis.Client {
	server := miniredis.NewMiniRedis()
	server.ClockTTL(true)
	t.Cleanup(server.Close)
	return clientOf(t, func(context.Context, string, string) (net.Conn, error) { return server.Dial() })
}

// packer replaces the Lua library cmsgpack, which miniredis does not have.
const packer = `
local cmsgpack = {pack = cjson.encode, unpack = cjson.decode}
`

// open returns the ledger of a replica. The scripts use the given clock.
func open(t testing.TB, client redis.UniversalClient, replica string, rules limits.Rules, clock string) *Ledger {
	l, err := New(Config{Client: client, Replica: replica, Rules: rules, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	l.scripts = newScripts(clock)
	l.timeout = time.Minute // a real server does not use the time of the bubble
	l.flushDelay = 0        // outcomes are sent immediately
	if err := l.heartbeat(t.Context()); err != nil {
		t.Fatal(err)
	}
	// In an old epoch, new accounts do not wait for restores.
	if err := client.HSet(t.Context(), epochKey, "since", 0, "process", "").Err(); err != nil {
		t.Fatal(err)
	}
	return l
}

// The suite runs a sixteenth of the random histories, because miniredis runs scripts slowly.
func TestLedgerSuiteOnMiniredis(t *testing.T) {
	checks := flag.Lookup("rapid.checks").Value
	n, err := strconv.Atoi(checks.String())
	if err == nil {
		err = checks.Set(strconv.Itoa(max(1, n/16)))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = checks.Set(strconv.Itoa(n)) })
	limitstest.RunSuite(t, func(t *testing.T, rules limits.Rules) limits.Ledger {
		return open(t, miniredisClient(t), "r1", rules, packer+redisClock)
	})
}

// testClock is a clock that reads the time from a key.
const testClock = `
local function clock()
  return tonumber(redis.call('GET', 'weir:test-clock'))
end
`

// tick is a client hook that sets testClock to the time of the bubble plus an offset before every script.
type tick struct{ offset *atomic.Int64 }

func (tick) DialHook(next redis.DialHook) redis.DialHook { return next }

func (tick) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (t tick) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" || cmd.Name() == "eval" {
			set := redis.NewStatusCmd(ctx, "set", "weir:test-clock", strconv.FormatInt(time.Now().UnixMicro()+t.offset.Load(), 10))
			if err := next(ctx, set); err != nil {
				return err
			}
		}
		return next(ctx, cmd)
	}
}

func TestLedgerSuiteOnRedis(t *testing.T) {
	limitstest.RunSuite(t, openWith(testservers.Redis(t)))
}

// openWith opens the ledger of one replica on an empty server in virtual time.
func openWith(socket string) limitstest.Open {
	return func(t *testing.T, rules limits.Rules) limits.Ledger {
		client := clientOf(t, func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", socket) })
		client.AddHook(tick{new(atomic.Int64)})
		if err := client.FlushAll(context.Background()).Err(); err != nil {
			t.Fatal(err)
		}
		return open(t, client, "r1", rules, testClock)
	}
}

// reconcileAll sends a heartbeat as in a new epoch. In tests without passing time, the ledger cannot distinguish
// epochs.
func reconcileAll(t *testing.T, l limits.Ledger) {
	l.(*Ledger).mayHaveLost = true
	if err := l.(*Ledger).heartbeat(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestLostWritesAreRestored(t *testing.T) {
	limitstest.RunDataLoss(t, openWith(testservers.Redis(t)), func(t *testing.T, l limits.Ledger) {
		if err := l.(*Ledger).Client.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		reconcileAll(t, l)
	})
}

func TestOfflineSpendsReachRedisAfterAnOutage(t *testing.T) {
	limitstest.RunStoreOutages(t, openWith(testservers.Redis(t)), func(t *testing.T, l limits.Ledger) {
		reconcileAll(t, l)
		l.(*Ledger).markLost(errLost)
	}, func(t *testing.T, l limits.Ledger) {
		if l.(*Ledger).reconnect(t.Context()); l.(*Ledger).isLost() {
			t.Fatal("the ledger did not reconnect")
		}
	})
}

// inBubble runs a test with a ledger on a real server in virtual time. The test can change the clock of Redis.
func inBubble(t *testing.T, run func(t *testing.T, l *Ledger, clockOffset *atomic.Int64)) {
	socket := testservers.Redis(t)
	synctest.Test(t, func(t *testing.T) {
		offset := new(atomic.Int64)
		client := clientOf(t, func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", socket) })
		client.AddHook(tick{offset})
		run(t, open(t, client, "r1", limits.Rules{Limits: policy.DefaultLimits()}, testClock), offset)
	})
}

// create returns a claim that creates content.
func create(id uint64) limits.Claim {
	return limits.Claim{ID: id, Account: "a", Kind: policy.User, Operation: "issues/create", Resource: policy.GraphQL, Points: 5, CreatesContent: true}
}

// admitUntilRefused admits and settles claims until a claim is refused, and returns the number of granted claims.
func admitUntilRefused(t *testing.T, l *Ledger, from uint64) (n uint64) {
	for ; n < 1000; n++ {
		d, err := l.Admit(t.Context(), create(from+n))
		if err != nil {
			t.Fatal(err)
		}
		if !d.Granted {
			return n
		}
		o := limits.Outcome{Sent: true, Answered: true, Ended: true, Rate: limits.Rate{Limit: 5000, Used: 1, Reset: time.Now().Add(time.Hour)}}
		if err := l.Settle(t.Context(), limits.Permit{Claim: create(from + n)}, o); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// Spent tokens return by the clock of the replica, which is monotonic.
func TestClockOfRedisDoesNotReturnTokens(t *testing.T) {
	for _, step := range []time.Duration{-50 * time.Second, time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, l *Ledger, clockOffset *atomic.Int64) {
				admitUntilRefused(t, l, 1)
				time.Sleep(40 * time.Second)
				clockOffset.Store(step.Microseconds())
				if n := admitUntilRefused(t, l, 2000); n != 0 {
					t.Errorf("%d granted within the minute, want 0", n)
				}
				time.Sleep(19 * time.Second)
				if n := admitUntilRefused(t, l, 3000); n != 0 {
					t.Errorf("%d granted within the minute, want 0", n)
				}
				time.Sleep(time.Second)
				if n := admitUntilRefused(t, l, 4000); n != 80 {
					t.Errorf("%d granted after a minute, want 80", n)
				}
			})
		})
	}
}

func TestEveryKeyHasATTL(t *testing.T) {
	inBubble(t, func(t *testing.T, l *Ledger, _ *atomic.Int64) {
		admitUntilRefused(t, l, 1)
		if _, err := l.Admit(t.Context(), limits.Claim{ID: 9999, Account: "b", Kind: policy.User, Operation: "op", Resource: policy.Core, Points: 1}); err != nil {
			t.Fatal(err)
		}
		if err := l.heartbeat(t.Context()); err != nil {
			t.Fatal(err)
		}
		names, err := l.Client.Keys(t.Context(), "*").Result()
		if err != nil || len(names) < 6 {
			t.Fatal(names, err)
		}
		for _, name := range names {
			ttl, err := l.Client.TTL(t.Context(), name).Result()
			if name != "weir:test-clock" && (err != nil || ttl <= 0) {
				t.Errorf("%s: got the TTL %v, error %v", name, ttl, err)
			}
		}
	})
}

func TestRegisterWarnsOfEviction(t *testing.T) {
	socket := testservers.Redis(t)
	admin := redis.NewClient(&redis.Options{Network: "unix", Addr: socket})
	defer func() { _ = admin.Close() }()
	for _, c := range []struct {
		policy, memory string
		warns          bool
	}{{"noeviction", "100mb", false}, {"allkeys-lru", "0", false}, {"allkeys-lru", "100mb", true}, {"volatile-ttl", "100mb", true}} {
		for name, value := range map[string]string{"maxmemory-policy": c.policy, "maxmemory": c.memory} {
			if err := admin.ConfigSet(t.Context(), name, value).Err(); err != nil {
				t.Fatal(err)
			}
		}
		var log bytes.Buffer
		l, err := New(Config{URL: "unix://" + socket, Replica: "r1", Rules: limits.Rules{Limits: policy.DefaultLimits()}, Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		l.timeout = time.Minute
		l.Join(t.Context())
		_ = l.Close()
		if warned := strings.Contains(log.String(), "redis may evict"); warned != c.warns {
			t.Errorf("policy %s, memory %s: got a warning %v, want %v: %s", c.policy, c.memory, warned, c.warns, log.String())
		}
	}
}

// TestMain reduces the number of random histories, unless a flag sets it.
func TestMain(m *testing.M) {
	flag.Parse()
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		_ = checks.Value.Set("25") // never fails
	}
	os.Exit(m.Run())
}
