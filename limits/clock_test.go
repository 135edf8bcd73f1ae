package limits_test

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/limits/limitstest"
	"github.com/weirgate/weir/policy"
)

var steps = []time.Duration{-20 * time.Second, 20 * time.Second, -10 * time.Minute, 10 * time.Minute, -26 * time.Hour, 26 * time.Hour}

// stepped opens a ledger whose wall clock steps 30 times within an hour.
func stepped(ctx context.Context, rules limits.Rules) (ledger *limits.Memory, wall func() time.Time) {
	began, rng := time.Now(), rand.New(rand.NewPCG(1, 2))
	type step struct{ after, by time.Duration }
	var list []step
	for range 30 {
		list = append(list, step{time.Duration(rng.IntN(3600)) * time.Second, steps[rng.IntN(len(steps))]})
	}
	by := func() (sum time.Duration) {
		for _, s := range list {
			if time.Since(began) >= s.after {
				sum += s.by
			}
		}
		return sum
	}
	return limits.NewMemoryAt(rules, limits.NewClock().Stepped(by)), func() time.Time { return time.Now().Add(by()) }
}

func TestStepsOfTheWallClockExceedNoLimitUnderLoad(t *testing.T) {
	for _, s := range limitstest.Saturations() {
		if s.Window != time.Hour {
			continue
		}
		t.Run(s.Limit, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				scenario := s.Scenario(1, 1, true)
				report := scenario.Run(t, limitstest.ShareLedger(func(rules limits.Rules) limitstest.Ledger {
					ledger, _ := stepped(t.Context(), rules)
					return ledger
				}), nil)
				failIf(t, len(report.Violations) > 0, "%d violations, first: %v", len(report.Violations), report.Violations[:min(1, len(report.Violations))])
			})
		})
	}
}

func TestStepsOfTheWallClockDelayNoClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var by atomic.Int64
		ledger := limits.NewMemoryAt(limitstest.ClockRules(), limits.NewClock().Stepped(func() time.Duration { return time.Duration(by.Load()) }))
		limitstest.RunClockSteps(t, func(rng *rand.Rand) { by.Add(int64(steps[rng.IntN(len(steps))])) }, ledger)
	})
}

// Waits last as long as the ledger says, and people see times of the wall clock as it is set now.
func TestStepsOfTheWallClockChangeNoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ledger, wall := stepped(t.Context(), limits.Rules{Limits: policy.DefaultLimits()})
		l := limits.NewLimiter(ledger)
		caller := policy.Caller{Account: "a", Kind: policy.User}
		for id := uint64(1); id < 300; id++ {
			p, err := l.Acquire(t.Context(), limits.Claim{Operation: "op", Resource: policy.Core, Points: 1}, caller, time.Now().Add(time.Minute))
			noError(t, err)
			o := limits.Outcome{Sent: true, Answered: true, Ended: true, Succeeded: id%2 == 0}
			if id%2 == 1 {
				o.Limited, o.RetryAfter = policy.LimitSecondary, 5*time.Second
			}
			if _, err := l.Settle(t.Context(), *p, o); err != nil {
				t.Fatal(err)
			}
			if id%2 == 0 {
				time.Sleep(10 * time.Second)
				continue
			}
			list, _ := ledger.Accounts(t.Context(), 1)
			shown := list[0].BlockedUntil.Sub(wall())
			d := ledger.Admit(t.Context(), limits.Claim{ID: 1 << 62, Account: "a", Kind: policy.User, Operation: "op", Resource: policy.Core, Points: 1})
			stopIf(t, (shown-d.Wait).Abs() > time.Second, "the cool-down is shown to last %v, and lasts %v", shown, d.Wait)
			time.Sleep(d.Wait)
		}
	})
}
