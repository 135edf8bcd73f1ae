package redisledger

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// serverTime returns the time in microseconds that Redis has spent in scripts, and the number of calls.
func serverTime(b *testing.B, client *redis.Client) (micros, calls float64) {
	b.Helper()
	text, err := client.Info(context.Background(), "commandstats").Result()
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_evalsha:"); ok {
			for part := range strings.SplitSeq(rest, ",") {
				name, value, _ := strings.Cut(part, "=")
				n, _ := strconv.ParseFloat(strings.TrimSpace(value), 64)
				switch name {
				case "usec":
					micros = n
				case "calls":
					calls = n
				}
			}
		}
	}
	return micros, calls
}

// BenchmarkRedis measures one admission and one settlement in separate calls, and an empty script for comparison.
// server-µs is the time in scripts, and redis-cpu-µs is the CPU time of Redis.
func BenchmarkRedis(b *testing.B) {
	socket := testservers.Redis(b)
	client := clientOf(b, func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", socket) })
	rules := limits.Rules{Limits: policy.DefaultLimits()}
	ctx := context.Background()
	bare := redis.NewScript("return 1")
	measure := func(b *testing.B, per float64, step func(i int)) {
		before, _ := serverTime(b, client)
		cpu := cpuTime(b, client)
		i := 0
		for b.Loop() {
			step(i)
			i++
		}
		after, _ := serverTime(b, client)
		b.ReportMetric((after-before)/float64(i)/per, "server-µs/op")
		b.ReportMetric((cpuTime(b, client)-cpu)/float64(i)/per, "redis-cpu-µs/op")
	}
	b.Run("bare", func(b *testing.B) {
		measure(b, 1, func(int) {
			if err := bare.Run(ctx, client, []string{"weir:{bare}"}).Err(); err != nil {
				b.Fatal(err)
			}
		})
	})
	for _, c := range []struct {
		name  string
		claim limits.Claim
	}{
		{"read", limits.Claim{Resource: "core", Points: 1}},
		{"read of one of two clients", limits.Claim{Resource: "core", Points: 1, Client: "a", Clients: []policy.ClientBudget{{Client: "a", Share: 1, Limit: 1}, {Client: "b", Share: 1, Limit: 1}}}},
		{"search", limits.Claim{Resource: "search", Points: 1}},
		{"write", limits.Claim{Resource: "core", Points: 5, CreatesContent: true}},
		{"mutation", limits.Claim{Resource: "graphql", Points: 5, CreatesContent: true}},
	} {
		b.Run(c.name, func(b *testing.B) {
			rules := rules
			rules.Search.Authenticated, rules.Points.REST, rules.Points.GraphQL = 1_000_000, 10_000_000, 10_000_000
			rules.Content = []policy.Window{{Max: 1_000_000, Window: time.Minute}, {Max: 1_000_000, Window: time.Hour}}
			l := open(b, client, "r1", rules, redisClock)
			measure(b, 1, func(i int) {
				claim := c.claim
				claim.ID, claim.Account, claim.Kind, claim.Operation, claim.CPU = uint64(i+1), fmt.Sprint(c.name, i/5000), policy.User, "op", 50*time.Millisecond
				if d, err := l.Admit(ctx, claim); err != nil || !d.Granted {
					b.Fatal(d, err)
				}
				o := limits.Outcome{Sent: true, Answered: true, Ended: true}
				o.Rate = limits.Rate{Limit: 1_000_000, Used: 1, Reset: time.Now().Add(time.Hour), Date: time.Now(), Resource: claim.Resource}
				if err := l.Settle(ctx, limits.Permit{Claim: claim}, o); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}

// BenchmarkBatches measures requests of one account from several concurrent clients.
func BenchmarkBatches(b *testing.B) {
	socket := testservers.Redis(b)
	client := clientOf(b, func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", socket) })
	rules := limits.Rules{Limits: policy.DefaultLimits()}
	rules.Points.REST, rules.Concurrent, rules.Primary.User = 1<<30, 1<<20, 1<<30
	for _, clients := range []int{1, 8, 64} {
		b.Run(fmt.Sprint(clients), func(b *testing.B) {
			l := open(b, client, "r1", rules, redisClock)
			l.flushDelay = flushDelay
			var next atomic.Uint64
			first := limits.Claim{ID: next.Add(1), Account: fmt.Sprint("account of ", clients), Kind: policy.User, Operation: "op", Resource: policy.Core, Points: 1}
			if d, err := l.Admit(b.Context(), first); err != nil || !d.Granted {
				b.Fatal(d, err)
			}
			known := limits.Rate{Limit: 1 << 30, Used: 1, Reset: time.Now().Add(time.Hour), Date: time.Now()}
			if err := l.Settle(b.Context(), limits.Permit{Claim: first}, limits.Outcome{Sent: true, Answered: true, Ended: true, Rate: known}); err != nil {
				b.Fatal(err)
			}
			l.background.Wait()
			before, calls := serverTime(b, client)
			b.SetParallelism(max(1, clients/runtime.GOMAXPROCS(0)))
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					claim := limits.Claim{ID: next.Add(1), Account: fmt.Sprint("account of ", clients), Kind: policy.User, Operation: "op", Resource: policy.Core, Points: 1}
					if d, err := l.Admit(b.Context(), claim); err != nil || !d.Granted {
						b.Error(d, err)
						return
					}
					rate := limits.Rate{Limit: 1 << 30, Used: 1, Reset: time.Now().Add(time.Hour), Date: time.Now()}
					if err := l.Settle(b.Context(), limits.Permit{Claim: claim}, limits.Outcome{Sent: true, Answered: true, Rate: rate}); err != nil {
						b.Error(err)
					}
					if err := l.Release(b.Context(), limits.Permit{Claim: claim}, false); err != nil {
						b.Error(err)
					}
				}
			})
			l.background.Wait()
			after, made := serverTime(b, client)
			b.ReportMetric((after-before)/float64(next.Load()), "server-µs/op")
			b.ReportMetric((made-calls)/float64(next.Load()), "calls/op")
		})
	}
}
