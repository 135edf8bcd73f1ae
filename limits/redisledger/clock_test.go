package redisledger

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/limits/limitstest"
	"github.com/weirgate/weir/policy"
)

// steps are steps of a clock.
var steps = []time.Duration{
	10 * time.Minute, -26 * time.Hour, 26 * time.Hour, -20 * time.Second, 20 * time.Second, -700 * time.Millisecond, -time.Second, 900 * time.Millisecond, 2 * time.Second, -10 * time.Minute,
	-time.Hour, time.Hour, 3 * time.Second, -5 * time.Second,
}

// The clock of Redis steps while two replicas use an account at its limits.
func TestStepsOfTheRedisClockExceedNoLimit(t *testing.T) {
	for _, step := range steps[:testservers.Setting(t, "WEIR_STEPS", 4)] {
		subtest(t, step.String(), func(p *pair) {
			reset := time.Now().Add(10 * time.Minute)
			p.want("points", p.spend(p.r1, 1, 500, true)+p.spend(p.r2, 1, 500, true), 900)
			c := p.mustAdmit(p.r1, limits.Claim{Account: "b", Operation: "op", Resource: policy.Core, Kind: policy.User, Points: 1, ID: 77}, "another account")
			p.settle(p.r1, c, answered(policy.Rate{Limit: 5000, Used: 5000, Reset: reset, Date: time.Now(), Resource: policy.Core}))
			p.heartbeat(p.r1, p.r2)
			p.clockOffset.Add(step.Microseconds())
			for range 10 {
				stopIf(p, p.admit(p.r2, p.claim(1)) || p.admit(p.r1, p.claim(1)), "a point was granted twice")
				stopIf(p, p.admit(p.r2, p.claimOf("b", 1)), "an exhausted window was open")
				time.Sleep(5 * time.Second)
				p.heartbeat(p.r1, p.r2)
			}
			time.Sleep(11 * time.Second)
			p.heartbeat(p.r1, p.r2)
			p.mustAdmit(p.r2, p.claim(1), "after the window")
			p.mustAdmit(p.r1, p.claim(1), "after the window")
			time.Sleep(time.Until(reset) + 3*time.Second)
			p.heartbeat(p.r1, p.r2)
			p.mustAdmit(p.r2, p.claimOf("b", 1), "after the reset")
			r3 := p.open("r3", defaultRules())
			p.mustAdmit(r3, p.claim(1), "by a new replica")
		})
	}
}

// Replicas whose first calls are slow, on the way to Redis or back, do not take the delay for a step of the clock: a window opens
// at its reset and not earlier.
func TestSlowFirstCallsAreNoStep(t *testing.T) {
	for name, back := range map[string]bool{"to Redis": false, "back": true} {
		subtest(t, name, func(p *pair) {
			reset := time.Now().Add(10 * time.Minute)
			c := p.mustAdmit(p.r1, p.claimOf("b", 1), "first")
			p.settle(p.r1, c, answered(policy.Rate{Limit: 5000, Used: 5000, Reset: reset, Date: time.Now(), Resource: policy.Core}))
			time.Sleep(time.Until(reset) - 20*time.Second)
			p.heartbeat(p.r1, p.r2)
			replicas := []*Ledger{p.r1, p.r2}
			for i := range 5 {
				client := p.client(p.T)
				slow := 900 * time.Millisecond
				client.AddHook(intercept(func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
					if strings.HasPrefix(cmd.Name(), "eval") {
						defer func() { slow = 0 }()
						if !back {
							time.Sleep(slow)
						} else {
							defer time.Sleep(slow)
						}
					}
					return run(ctx, cmd)
				}))
				client.AddHook(tick(&p.clockOffset))
				replicas = append(replicas, open(p.T, client, fmt.Sprint("slow ", i), defaultRules(), testClock))
				p.heartbeat(replicas...)
			}
			opens := func(l *Ledger) bool { return p.admit(l, p.claimOf("b", 1)) }
			for !slices.ContainsFunc(replicas, opens) {
				time.Sleep(50 * time.Millisecond)
				p.heartbeat(replicas...)
			}
			late := time.Since(reset)
			failIf(p, late < 0 || late > 4*time.Second, "the window opened %v after its reset", late)
		})
	}
}

func TestStepsOfTheRedisClockDelayNoClient(t *testing.T) {
	t.Parallel() // while clusters wait
	withTwoReplicas(t, func(p *pair) {
		p.configure(func(r *limits.Rules) { *r = limitstest.ClockRules() })
		done, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			for {
				select {
				case <-done:
					return
				case <-time.After(4 * heartbeatInterval): // fewer calls
					_, _ = p.r1.heartbeat(p.Context()), p.r2.heartbeat(p.Context())
				}
			}
		}()
		limitstest.RunClockSteps(p.T, func(rng *rand.Rand) { p.clockOffset.Add(steps[rng.IntN(len(steps))].Microseconds()) }, p.r1, p.r2)
		close(done)
		<-ended
	})
}

// Replicas saturate an account for an hour, while the clock of Redis steps 30 times.
func TestStepsOfTheRedisClockUnderLoad(t *testing.T) {
	all := testservers.Setting(t, "WEIR_WINDOWS", 0) > 0
	for i, s := range limitstest.Saturations() {
		if s.Window != time.Hour || s.Limit != "primary graphql" && !all {
			continue
		}
		t.Run(s.Limit, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(i), 5))
			scenario := s.Scenario(2, 1, true)
			scenario.Duration, scenario.WarmUp = time.Hour+10*time.Minute, 0
			report, decisions := run(t, newServers(t), scenario, nil, func(ctx context.Context, r *rig) {
				for range 30 {
					testservers.Sleep(ctx, time.Duration(rng.IntN(240))*time.Second)
					r.clockSteps.Add(steps[rng.IntN(len(steps))].Microseconds())
				}
			})
			failIf(t, len(report.Violations) > 0, "%d violations, first: %v", len(report.Violations), report.Violations[:min(1, len(report.Violations))])
			failIf(t, len(decisions.granted) < 400, "only %d claims were granted", len(decisions.granted))
		})
	}
}
