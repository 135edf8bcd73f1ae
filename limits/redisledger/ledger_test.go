package redisledger

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/limits/limitstest"
	"github.com/weirgate/weir/policy"
)

// packer replaces the Lua library cmsgpack, which miniredis does not have.
const packer = `
local cmsgpack = {pack = cjson.encode, unpack = cjson.decode}
`

// miniredisLedger opens a ledger on a miniredis in the bubble of the test. The scripts use the clock of production. Keys do not
// expire, as on redis-server, because the ledger sends no heartbeats that renew them.
func miniredisLedger(t *testing.T, rules limits.Rules) limitstest.Ledger {
	server := miniredis.NewMiniRedis()
	t.Cleanup(server.Close)
	client := newClient(t, redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) { return server.Dial() }})
	return open(t, client, "r1", rules, packer+redisClock)
}

// The suite runs on miniredis if there is no redis-server, or if WEIR_MINIREDIS is set, because miniredis runs scripts
// slowly.
func TestLedgerSuiteOnMiniredis(t *testing.T) {
	if testservers.HasRedis() && testservers.Setting(t, "WEIR_MINIREDIS", 0) == 0 {
		t.Skip("redis-server runs the suite; set WEIR_MINIREDIS=1 to run it on miniredis, too")
	}
	limitstest.RunSuite(t, func(testing.TB) limitstest.Open { return miniredisLedger })
}

func TestLedgerSuiteOnRedis(t *testing.T) {
	limitstest.RunSuite(t, func(t testing.TB) limitstest.Open { return openOn(newDatabase(t)) })
}

// openOn opens the ledger of one replica on an empty database in virtual time.
func openOn(d database) limitstest.Open {
	return func(t *testing.T, rules limits.Rules) limitstest.Ledger {
		client := d.client(t)
		client.AddHook(tick(new(atomic.Int64)))
		noError(t, client.FlushDB(context.Background()).Err())
		return open(t, client, "r1", rules, testClock)
	}
}

func TestLostWritesAreRestored(t *testing.T) {
	limitstest.RunDataLoss(t, openOn(newDatabase(t)), func(t *testing.T, l limitstest.Ledger) {
		noError(t, l.(*Ledger).Client.FlushDB(t.Context()).Err())
		reconcileAll(t, l)
	})
}

func TestOfflineSpendsReachRedisAfterAnOutage(t *testing.T) {
	limitstest.RunStoreOutages(t, openOn(newDatabase(t)), func(t *testing.T, l limitstest.Ledger) {
		reconcileAll(t, l)
		l.(*Ledger).markLost("", errLost)
	}, func(t *testing.T, l limitstest.Ledger) {
		l.(*Ledger).reconnect(t.Context())
		stopIf(t, l.(*Ledger).isLost(), "the ledger did not reconnect")
	})
}

// createUntilRefused creates content until a claim is refused, and returns the number of granted claims.
func (p *pair) createUntilRefused(l *Ledger) (n int) {
	p.Helper()
	for ; n < 1000; n++ {
		p.lastID++
		if !p.admit(l, create(p.lastID)) {
			break
		}
		p.settleAnswered(l, create(p.lastID), true)
	}
	return n
}

// Spent tokens return by the clock of the replica, which is monotonic.
func TestClockOfRedisDoesNotReturnTokens(t *testing.T) {
	for _, step := range []time.Duration{-50 * time.Second, time.Hour} {
		subtest(t, step.String(), func(p *pair) {
			p.createUntilRefused(p.r1)
			time.Sleep(40 * time.Second)
			p.clockOffset.Store(step.Microseconds())
			p.want("granted after 40 seconds", p.createUntilRefused(p.r1), 0)
			time.Sleep(19 * time.Second)
			p.want("granted after 59 seconds", p.createUntilRefused(p.r1), 0)
			time.Sleep(time.Second)
			p.want("granted after a minute", p.createUntilRefused(p.r1), 80)
		})
	}
}

func TestEveryKeyHasATTL(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.createUntilRefused(p.r1)
		p.admit(p.r1, p.claimOf("b", 1))
		p.heartbeat(p.r1)
		names, err := p.r1.Client.Keys(p.Context(), "*").Result()
		stopIf(p, err != nil || len(names) < 5, "%v %v", names, err)
		for _, name := range names {
			ttl, err := p.r1.Client.TTL(p.Context(), name).Result()
			failIf(p, err != nil || ttl <= 0, "%s: got the TTL %v, error %v", name, ttl, err)
		}
	})
}

func TestRegisterWarnsOfEviction(t *testing.T) {
	socket := testservers.Redis(t) // the test changes its configuration
	admin := redis.NewClient(&redis.Options{Network: "unix", Addr: socket})
	defer func() { _ = admin.Close() }()
	for _, c := range []struct {
		policy, memory string
		warns          bool
	}{{"noeviction", "100mb", false}, {"allkeys-lru", "0", false}, {"allkeys-lru", "100mb", true}, {"volatile-ttl", "100mb", true}} {
		for name, value := range map[string]string{"maxmemory-policy": c.policy, "maxmemory": c.memory} {
			noError(t, admin.ConfigSet(t.Context(), name, value).Err())
		}
		var log bytes.Buffer
		l, err := New(Config{URL: "unix://" + socket, Replica: "r1", Rules: defaultRules(), Log: slog.New(slog.NewTextHandler(&log, nil))})
		noError(t, err)
		l.timeout = time.Minute
		l.Join(t.Context())
		_ = l.Close()
		warned := strings.Contains(log.String(), "redis may evict")
		failIf(t, warned != c.warns, "policy %s, memory %s: got a warning %v, want %v: %s", c.policy, c.memory, warned, c.warns, log.String())
	}
}

// A call may take almost a second, also if more calls wait than the client has connections.
func TestCallsOfManyAccountsMayTakeASecond(t *testing.T) {
	socket := testservers.Redis(t) // the test pauses it
	l, err := New(Config{URL: "unix://" + socket, Replica: "r1", Rules: defaultRules(), Log: slog.New(slog.DiscardHandler)})
	noError(t, err)
	defer func() { _ = l.Close() }()
	l.Join(t.Context())
	time.Sleep(relearningMin)
	noError(t, l.Client.Do(t.Context(), "client", "pause", 500).Err())
	var claims sync.WaitGroup
	for i := range 100 {
		claims.Go(func() {
			c := limits.Claim{ID: uint64(i + 1), Account: fmt.Sprint(i), Kind: policy.User, Operation: "op", Resource: policy.Core, Points: 1}
			d := l.Admit(t.Context(), c)
			failIf(t, !d.Granted, "account %d: %+v", i, d)
		})
	}
	claims.Wait()
}

func TestReplicasShareTheLimitOfATag(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		granted := map[string]int{}
		for i := range 40 {
			for _, tag := range []string{"ci/1", "ci/2"} {
				l, c := p.both()[i%2], p.claim(1)
				c.Client, c.Tag = "ci", tag
				c.Clients = []policy.ClientBudget{{Client: "ci", Limit: 1, TagLimit: 10.0 / 5000}}
				if p.admit(l, c) {
					granted[tag]++
					p.settleAnswered(l, c, true)
				}
			}
		}
		p.want("first tag", granted["ci/1"], 10)
		p.want("second tag", granted["ci/2"], 10)
		for _, l := range p.both() {
			b := p.budget(l, "client:core:ci/2")
			failIf(p, b.Used != 10 || b.Limit != 10, "budget of the tag: %+v", b)
		}
	})
}

// budget returns the budget of that name of the only account.
func (p *pair) budget(l *Ledger, name string) limits.Budget {
	p.Helper()
	for _, b := range l.onlyAccount(p.T).Budgets {
		if b.Resource == name {
			return b
		}
	}
	return limits.Budget{}
}

func TestOnceIsTrueAtOneReplica(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		once := func(l *Ledger, name string, end time.Time) bool {
			first, err := l.Once(p.Context(), name, end)
			noError(p, err)
			return first
		}
		end := time.Now().Add(time.Minute)
		failIf(p, !once(p.r1, "x", end) || once(p.r2, "x", end) || once(p.r1, "x", end) || !once(p.r2, "y", time.Now()), "want true for the first call with a name only")
		for name, most := range map[string]time.Duration{"x": time.Minute, "y": time.Second} {
			ttl := p.r1.Client.PTTL(p.Context(), oncePrefix+name).Val()
			failIf(p, ttl <= 0 || ttl > most, "%s has the TTL %v", name, ttl)
		}
		if err := p.r1.Client.Del(p.Context(), oncePrefix+"x").Err(); err != nil { // as its TTL does
			p.Fatal(err)
		}
		failIf(p, !once(p.r2, "x", end), "want true again after the end")
	})
}

func TestStartWithoutRedisNamesWhatIsHeldBack(t *testing.T) {
	for start, want := range map[string]string{"trust": "all quota may be used", "strict": "holding back all quota", "ramp": "holding back three quarters"} {
		var log bytes.Buffer
		rules := defaultRules()
		rules.ColdStart = start
		l, err := New(Config{URL: "unix:///nowhere", Replica: "r1", Rules: rules, Log: slog.New(slog.NewTextHandler(&log, nil))})
		noError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		l.Join(ctx)
		_ = l.Close()
		failIf(t, !strings.Contains(log.String(), `msg="started without redis" effect="`+want), "%s: %s", start, log.String())
		if remedy := `key=store.url remedy="start redis, or correct the URL`; strings.Count(log.String(), remedy) != 2 { // also of the failed connection
			t.Errorf("%s: %s lacks %s", start, log.String(), remedy)
		}
	}
}
