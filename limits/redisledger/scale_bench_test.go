package redisledger

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// cpuTime returns the CPU time of Redis in microseconds.
func cpuTime(b *testing.B, client *redis.Client) (micros float64) {
	b.Helper()
	text, err := client.Info(context.Background(), "cpu").Result()
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_user" || name == "used_cpu_sys" {
			seconds, _ := strconv.ParseFloat(value, 64)
			micros += seconds * 1e6
		}
	}
	return micros
}

// bench contains a replica on a real Redis.
type bench struct {
	*Ledger
	client *redis.Client
	ids    uint64
}

func newBench(b *testing.B) *bench {
	socket := testservers.Redis(b)
	client := clientOf(b, func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", socket) })
	return &bench{Ledger: open(b, client, "weir-7c9f8b6d5-x2x4q-ABCDEFGH", limits.Rules{Limits: policy.DefaultLimits()}, redisClock), client: client}
}

// request admits a claim. If settled is set, request also settles the permit.
func (m *bench) request(b *testing.B, account, operation string, settled bool) {
	b.Helper()
	m.ids++
	c := limits.Claim{ID: m.ids, Account: account, Kind: policy.User, Operation: operation, Resource: policy.Core, Points: 1, CPU: 50 * time.Millisecond}
	if d, err := m.Admit(b.Context(), c); err != nil || !d.Granted {
		b.Fatal(d, err)
	}
	if !settled {
		return
	}
	now := time.Now()
	rate := limits.Rate{Limit: 5000, Used: 1, Reset: now.Add(time.Hour), Date: now, Resource: policy.Core}
	if err := m.Settle(b.Context(), limits.Permit{Claim: c}, limits.Outcome{Sent: true, Answered: true, Ended: true, Rate: rate}); err != nil {
		b.Fatal(err)
	}
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

// local returns the local state of an account.
func (m *bench) local(name string) *account {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.account(name, policy.User)
}

// accountOf returns an account name that is at least as long as a hashed name.
func accountOf(i int) string { return fmt.Sprintf("user:%040d", i) }

// BenchmarkScaleMemory measures the memory of an account with one request in Redis, and of each further operation,
// permit and replica, and of the spare tokens of leases.
func BenchmarkScaleMemory(b *testing.B) {
	const accounts, more = 200, 4
	m := newBench(b)
	for b.Loop() {
		var rest, operation, permit, lease, replica float64
		for i := range accounts {
			name := accountOf(int(m.ids) + i)
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
			if err := m.heartbeatAccount(b.Context(), m.local(name)); err != nil {
				b.Fatal(err)
			}
			lease += (m.memory(b, name) - before) / (1 + more)
			permit += step(func(int) { m.request(b, name, "GET /repos/{owner}/{repo}", false) })
			replica += step(func(k int) {
				other := open(b, m.client, fmt.Sprint("weir-7c9f8b6d5-x2x4q-ABCDEFG", k), *m.rules.Load(), redisClock)
				(&bench{Ledger: other, client: m.client, ids: m.ids}).request(b, name, "GET /repos/{owner}/{repo}", true)
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
	m := newBench(b)
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
		{"register", func() error { _, err := m.registerReplica(ctx); return err }},
		{"heartbeat", func() error { m.replicas.Store(10); return m.heartbeatAccount(ctx, s) }},
		{"index", func() error { return m.indexAccount(ctx, s, true) }},
		{"read", func() error { _, err := m.read(ctx, s); return err }},
		{"list", func() error {
			return m.client.ZRangeArgs(ctx, redis.ZRangeArgs{Key: accountsKey, Start: 0, Stop: 999, Rev: true}).Err()
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			before, n := cpuTime(b, m.client), 0
			for b.Loop() {
				if err := c.do(); err != nil {
					b.Fatal(err)
				}
				n++
			}
			b.ReportMetric((cpuTime(b, m.client)-before)/float64(n), "redis-cpu-µs/op")
		})
	}
}

// BenchmarkScaleLoss measures the restore of 5,000 accounts into an empty Redis by one replica.
func BenchmarkScaleLoss(b *testing.B) {
	const accounts = 5000
	m := newBench(b)
	for i := range accounts {
		m.request(b, accountOf(i), "GET /repos/{owner}/{repo}", true)
	}
	var restoreCPU, restore float64
	afterLoss := func(step func() error) (cpu, took float64) {
		if err := m.client.FlushAll(b.Context()).Err(); err != nil {
			b.Fatal(err)
		}
		before, began := cpuTime(b, m.client), time.Now()
		if err := step(); err != nil {
			b.Fatal(err)
		}
		return cpuTime(b, m.client) - before, float64(time.Since(began).Microseconds())
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
	m := newBench(b)
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
		m.accountsInUse(false)
	}
	b.ReportMetric(perAccount, "B/account")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/accounts/float64(b.N), "ns/account")
}
