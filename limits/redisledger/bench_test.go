package redisledger

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// bench contains a replica on a real Redis.
type bench struct {
	*Ledger
	client *redis.Client
	ids    atomic.Uint64
}

func newBench(b *testing.B, rules limits.Rules) *bench {
	client := newDatabase(b).client(b)
	if err := client.ConfigResetStat(b.Context()).Err(); err != nil {
		b.Fatal(err)
	}
	return &bench{Ledger: open(b, client, "weir-7c9f8b6d5-x2x4q-ABCDEFGH", rules, redisClock), client: client}
}

// info returns the sum of the numbers that a pattern finds in a section of INFO.
func (m *bench) info(b *testing.B, section, pattern string) (sum float64) {
	b.Helper()
	text, err := m.client.Info(context.Background(), section).Result()
	if err != nil {
		b.Fatal(err)
	}
	for _, found := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		n, _ := strconv.ParseFloat(found[1], 64)
		sum += n
	}
	return sum
}

// cpuTime returns the CPU time of Redis in microseconds.
func (m *bench) cpuTime(b *testing.B) float64 {
	return 1e6 * m.info(b, "cpu", `(?m)^used_cpu_(?:user|sys):([0-9.]+)`)
}

// scriptTime returns the time in microseconds that Redis has spent in scripts, and the number of calls.
func (m *bench) scriptTime(b *testing.B) (micros, calls float64) {
	return m.info(b, "commandstats", `cmdstat_evalsha:.*,usec=(\d+)`), m.info(b, "commandstats", `cmdstat_evalsha:calls=(\d+)`)
}

// send admits a claim. If settled is set, send also settles the permit.
func (m *bench) send(b *testing.B, c limits.Claim, settled bool) limits.Permit {
	b.Helper()
	c.ID, c.Kind = m.ids.Add(1), policy.User
	if d := m.Admit(b.Context(), c); !d.Granted {
		b.Error(d)
	}
	if !settled {
		return limits.Permit{Claim: c}
	}
	now := time.Now()
	rate := policy.Rate{Limit: 1e9, Used: 1, Reset: now.Add(time.Hour), Date: now, Resource: c.Resource}
	if err := m.Settle(b.Context(), limits.Permit{Claim: c}, answered(rate)); err != nil {
		b.Error(err)
	}
	return limits.Permit{Claim: c}
}

// request sends a read of an account.
func (m *bench) request(b *testing.B, account, operation string, settled bool) {
	b.Helper()
	m.send(b, limits.Claim{Account: account, Operation: operation, Resource: policy.Core, Points: 1, CPU: 50 * time.Millisecond}, settled)
}

// memory returns the memory of an account in Redis, in bytes.
func (m *bench) memory(b *testing.B, account string) float64 {
	b.Helper()
	n, err := m.client.MemoryUsage(b.Context(), m.keysOf(account)[0], 0).Result()
	if err != nil {
		b.Fatal(err)
	}
	return float64(n)
}

// BenchmarkRedis measures one admission and one settlement in separate calls, and an empty script for comparison.
// server-µs is the time in scripts, and redis-cpu-µs is the CPU time of Redis.
func BenchmarkRedis(b *testing.B) {
	rules := defaultRules()
	rules.Search.Authenticated, rules.Points.REST, rules.Points.GraphQL = 1_000_000, 10_000_000, 10_000_000
	rules.Content = []policy.Window{{Max: 1_000_000, Window: time.Minute}, {Max: 1_000_000, Window: time.Hour}}
	m := newBench(b, rules)
	measure := func(name string, step func(b *testing.B, i int)) {
		b.Run(name, func(b *testing.B) {
			before, _ := m.scriptTime(b)
			cpu := m.cpuTime(b)
			i := 0
			for b.Loop() {
				step(b, i)
				i++
			}
			after, _ := m.scriptTime(b)
			b.ReportMetric((after-before)/float64(i), "server-µs/op")
			b.ReportMetric((m.cpuTime(b)-cpu)/float64(i), "redis-cpu-µs/op")
		})
	}
	bare := redis.NewScript("return 1")
	measure("bare", func(b *testing.B, _ int) {
		if err := bare.Run(b.Context(), m.client, []string{"weir:{bare}"}).Err(); err != nil {
			b.Fatal(err)
		}
	})
	clients := []policy.ClientBudget{{Client: "a", Share: 1, Limit: 1}, {Client: "b", Share: 1, Limit: 1}}
	for name, claim := range map[string]limits.Claim{
		"read":                       {Resource: policy.Core, Points: 1},
		"read of one of two clients": {Resource: policy.Core, Points: 1, Client: "a", Clients: clients},
		"search":                     {Resource: policy.Search, Points: 1},
		"write":                      {Resource: policy.Core, Points: 5, CreatesContent: true},
		"mutation":                   {Resource: policy.GraphQL, Points: 5, CreatesContent: true},
	} {
		measure(name, func(b *testing.B, i int) {
			claim.Account, claim.Operation, claim.CPU = fmt.Sprint(name, i/5000), "op", 50*time.Millisecond
			m.send(b, claim, true)
		})
	}
}

// BenchmarkBatches measures requests of one account from several concurrent clients.
func BenchmarkBatches(b *testing.B) {
	rules := defaultRules()
	rules.Points.REST, rules.Concurrent, rules.Primary.User = 1<<30, 1<<20, 1e9
	for _, clients := range []int{1, 8, 64} {
		b.Run(fmt.Sprint(clients), func(b *testing.B) {
			m := newBench(b, rules)
			m.flushDelay = flushDelay
			claim := limits.Claim{Account: "a", Operation: "op", Resource: policy.Core, Points: 1}
			m.send(b, claim, true)
			m.background.Wait()
			before, calls := m.scriptTime(b)
			b.SetParallelism(max(1, clients/runtime.GOMAXPROCS(0)))
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					m.Release(b.Context(), m.send(b, claim, true), false)
				}
			})
			m.background.Wait()
			after, made := m.scriptTime(b)
			requests := float64(m.ids.Load() - 1)
			b.ReportMetric((after-before)/requests, "server-µs/op")
			b.ReportMetric((made-calls)/requests, "calls/op")
		})
	}
}

// local returns the local state of an account.
func (m *bench) local(name string) *account {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.account(name, policy.User)
}

// heartbeatAccount makes a round trip for the leases of an account.
func (m *bench) heartbeatAccount(b *testing.B, a *account) error {
	return m.roundTrip(b.Context(), a, &entry{heartbeat: true})
}

// accountOf returns an account name that is at least as long as a hashed name.
func accountOf(i int) string { return fmt.Sprintf("user:%040d", i) }

// BenchmarkScaleMemory measures the memory of an account with one request in Redis, and of each further operation,
// permit and replica, and of the spare tokens of leases.
func BenchmarkScaleMemory(b *testing.B) {
	const accounts, more = 200, 4
	m := newBench(b, defaultRules())
	for b.Loop() {
		var rest, operation, permit, lease, replica float64
		for i := range accounts {
			name := accountOf(int(m.ids.Load()) + i)
			m.request(b, name, "GET /repos/{owner}/{repo}", true)
			at := m.memory(b, name)
			rest += at
			step := func(do func(k int)) float64 {
				before := m.memory(b, name)
				for k := range more {
					do(k)
				}
				return (m.memory(b, name) - before) / more
			}
			operation += step(func(k int) { m.request(b, name, fmt.Sprintf("GET /repos/{owner}/{repo}/%d", k), true) })
			before := m.memory(b, name)
			if err := m.heartbeatAccount(b, m.local(name)); err != nil {
				b.Fatal(err)
			}
			lease += (m.memory(b, name) - before) / (1 + more)
			permit += step(func(int) { m.request(b, name, "GET /repos/{owner}/{repo}", false) })
			replica += step(func(k int) {
				other := open(b, m.client, fmt.Sprint("weir-7c9f8b6d5-x2x4q-ABCDEFG", k), *m.rules.Load(), redisClock)
				further := &bench{Ledger: other, client: m.client}
				further.ids.Store(m.ids.Load())
				further.request(b, name, "GET /repos/{owner}/{repo}", true)
			})
		}
		for unit, sum := range map[string]float64{"account": rest, "operation": operation, "permit": permit, "lease": lease, "replica": replica} {
			b.ReportMetric(sum/accounts, "B/"+unit)
		}
	}
}

// BenchmarkScaleReplica measures the cost of a replica in Redis besides requests: registration, heartbeat of an
// account, index entry, reading an account, and listing a thousand accounts.
func BenchmarkScaleReplica(b *testing.B) {
	m := newBench(b, defaultRules())
	ctx := b.Context()
	for i := range 1000 {
		m.client.ZAdd(ctx, replicasKey, redis.Z{Score: float64(time.Now().UnixMicro()), Member: fmt.Sprint("weir-7c9f8b6d5-x2x4q-", i)})
	}
	for i := range 100_000 {
		m.client.ZAdd(ctx, accountsKey, redis.Z{Score: float64(time.Now().Unix()), Member: "user " + accountOf(i)})
	}
	m.request(b, accountOf(0), "GET /repos/{owner}/{repo}", true)
	s := m.local(accountOf(0))
	for _, c := range []struct {
		name string
		do   func() error
	}{
		{"register", func() error { return m.registerReplica(ctx) }},
		{"heartbeat", func() error { m.replicas.Store(10); return m.heartbeatAccount(b, s) }},
		{"index", func() error { m.unindexed[s] = true; return m.indexAccounts(ctx) }},
		{"read", func() error { _, err := m.read(ctx, s); return err }},
		{"list", func() error {
			return m.client.ZRangeArgs(ctx, redis.ZRangeArgs{Key: accountsKey, Start: 0, Stop: 999, Rev: true}).Err()
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			before, n := m.cpuTime(b), 0
			for b.Loop() {
				if err := c.do(); err != nil {
					b.Fatal(err)
				}
				n++
			}
			b.ReportMetric((m.cpuTime(b)-before)/float64(n), "redis-cpu-µs/op")
		})
	}
}

// BenchmarkScaleLoss measures the restore of 5,000 accounts into an empty Redis by one replica.
func BenchmarkScaleLoss(b *testing.B) {
	const accounts = 5000
	m := newBench(b, defaultRules())
	for i := range accounts {
		m.request(b, accountOf(i), "GET /repos/{owner}/{repo}", true)
	}
	var restoreCPU, restore float64
	afterLoss := func(step func() error) (cpu, took float64) {
		if err := m.client.FlushDB(b.Context()).Err(); err != nil {
			b.Fatal(err)
		}
		before, began := m.cpuTime(b), time.Now()
		if err := step(); err != nil {
			b.Fatal(err)
		}
		return m.cpuTime(b) - before, float64(time.Since(began).Microseconds())
	}
	for b.Loop() {
		used, took := afterLoss(func() error { return m.heartbeat(b.Context()) })
		restoreCPU, restore = restoreCPU+used, restore+took
	}
	n := accounts * float64(b.N)
	b.ReportMetric(restoreCPU/n, "redis-cpu-µs/restore")
	b.ReportMetric(restore/n, "µs/restore")
}

// BenchmarkScaleLocal measures the memory of local accounts, and the time to select the accounts for a heartbeat.
func BenchmarkScaleLocal(b *testing.B) {
	const accounts = 20_000
	m := newBench(b, defaultRules())
	heap := func() float64 {
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return float64(s.HeapAlloc)
	}
	before := heap()
	for i := range accounts {
		m.request(b, accountOf(i), "GET /repos/{owner}/{repo}", true)
	}
	perAccount := (heap() - before) / accounts
	for b.Loop() {
		m.accountsInUse(b.Context(), m.shards[""])
	}
	b.ReportMetric(perAccount, "B/account")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/accounts/float64(b.N), "ns/account")
}

// BenchmarkScaleIdle measures the commands and the CPU time of Redis, and the CPU time of this process, for 20,000 accounts a
// minute after their last request. A replica lists the accounts every ten seconds, as a gateway does.
func BenchmarkScaleIdle(b *testing.B) {
	const accounts, pause, measured = 20_000, time.Minute, 20 * time.Second
	m := newBench(b, defaultRules())
	m.flushDelay = flushDelay
	ctx, stop := context.WithCancel(b.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() { m.Run(ctx) })
	running.Go(func() {
		for ctx.Err() == nil {
			if _, err := m.Accounts(ctx, 1000); err != nil && ctx.Err() == nil {
				b.Error(err)
			}
			testservers.Sleep(ctx, 10*time.Second)
		}
	})
	state := func() [3]float64 {
		var own syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
			b.Fatal(err)
		}
		return [3]float64{m.info(b, "stats", `total_commands_processed:(\d+)`), m.cpuTime(b), float64(own.Utime.Nano()+own.Stime.Nano()) / 1e3}
	}
	report := func(when string, d time.Duration) {
		before := state()
		testservers.Sleep(b.Context(), d)
		after := state()
		for i, unit := range []string{"commands/s", "%-of-redis-core", "%-of-gateway-core"} {
			value := (after[i] - before[i]) / d.Seconds()
			if i > 0 {
				value /= 1e4 // from microseconds to percent
			}
			b.ReportMetric(value, when+"-"+unit)
		}
	}
	for b.Loop() {
		for i := range accounts {
			m.request(b, accountOf(i), "GET /repos/{owner}/{repo}", true)
		}
		report("at-once", 10*time.Second)
		testservers.Sleep(b.Context(), pause-10*time.Second)
		report("after-a-minute", measured)
	}
}
