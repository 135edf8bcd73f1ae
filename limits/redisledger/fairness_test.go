package redisledger

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// Two clients with shares of 3 and 1 want all points, wherever they connect.
func TestSharesHoldAcrossReplicas(t *testing.T) {
	sockets := [2]string{testservers.Redis(t), testservers.Redis(t)}
	const warmUp, measured = 2 * time.Minute, 4 * time.Minute
	for name, place := range map[string]func(client, worker int) (replica int){
		"both at one replica":          func(int, int) int { return 0 },
		"each at another replica":      func(client, _ int) int { return client },
		"both at all replicas":         func(_, worker int) int { return worker % 4 },
		"one at all, the other at one": func(client, worker int) int { return worker % 4 * client },
		"the other at all, one at one": func(client, worker int) int { return worker % 4 * (1 - client) },
		"each at two, one in common":   func(client, worker int) int { return client + worker%2 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rules := limits.Rules{Limits: policy.DefaultLimits()}
				rules.CPU.Total, rules.Primary.User = 1000*time.Hour, 1_000_000
				rig := newRig(t, sockets)
				ctx, stop := context.WithTimeout(t.Context(), warmUp+measured)
				var limiters [4]*limits.Limiter
				var running sync.WaitGroup
				for i := range limiters {
					l := rig.open(rules, i)
					limiters[i] = limits.NewLimiter(l)
					running.Go(func() { l.Run(ctx) })
					running.Go(func() { limiters[i].Run(ctx) })
				}
				start, reset := time.Now(), time.Now().Add(time.Hour)
				var mu sync.Mutex
				var granted [2]int
				for i := range 2 {
					for worker := range 80 {
						rng := rand.New(rand.NewPCG(uint64(i), uint64(worker)))
						caller := policy.Caller{Kind: policy.User, Account: "a", Client: fmt.Sprint("client ", i), Share: 3 - 2*i, Priority: policy.Normal}
						running.Go(func() {
							limiter := limiters[place(i, worker)]
							for ctx.Err() == nil {
								claim := limits.Claim{Operation: "op", Resource: policy.Core, Points: 1}
								permit, err := limiter.Acquire(ctx, claim, caller, time.Now().Add(100*time.Hour))
								if err != nil {
									return // the end of ctx
								}
								if time.Since(start) > warmUp {
									mu.Lock()
									granted[i]++
									mu.Unlock()
								}
								time.Sleep(50*time.Millisecond + time.Duration(rng.Int64N(int64(250*time.Millisecond))))
								rate := limits.Rate{Limit: 1_000_000, Used: 1, Reset: reset, Date: time.Now()}
								_ = limiter.Settle(context.Background(), *permit, limits.Outcome{Sent: true, Answered: true, Ended: true, Succeeded: true, Rate: rate})
							}
						})
					}
				}
				running.Wait()
				stop()
				sum := granted[0] + granted[1]
				got := float64(granted[0]) / float64(sum)
				t.Logf("%v granted, %.3f for the first client", granted, got)
				if math.Abs(got-0.75) > 0.0375 {
					t.Errorf("the first client got %.3f of the points, want 0.75", got)
				}
				if least := rules.Points.REST * int(measured/time.Minute) * 97 / 100; sum < least {
					t.Errorf("%d points used, want %d", sum, least)
				}
			})
		})
	}
}
