package limitstest

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// sharedBudget is an upstream with one budget, of which a program outside Weir uses a constant part. A request beyond
// the budget gets a secondary limit error, and is not counted.
type sharedBudget struct {
	limit, outside int64 // per window
	window         time.Duration
	retryAfter     time.Duration

	mu     sync.Mutex // guards the fields below
	spends []spend
	used   int64         // of Weir in the last window
	total  int64         // of Weir since measure
	errors []time.Time   // times of the limit errors
	busy   time.Duration // duration of each request
}

// answer counts a request, and returns the outcome of its response.
func (u *sharedBudget) answer(cost int64) limits.Outcome {
	time.Sleep(u.busy)
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	for len(u.spends) > 0 && now.Sub(u.spends[0].at) >= u.window {
		u.used -= u.spends[0].cost
		u.spends = u.spends[1:]
	}
	o := reported(policy.Core, 1, 1_000_000, now.Truncate(time.Hour).Add(time.Hour))
	o.Elapsed = u.busy
	if u.used+cost+u.outside > u.limit {
		u.errors = append(u.errors, now)
		o.Limited, o.RetryAfter = policy.LimitSecondary, u.retryAfter
		return o
	}
	o.Succeeded = true
	u.spends = append(u.spends, spend{at: now, cost: cost})
	u.used += cost
	u.total += cost
	return o
}

// measure returns the cost and the errors since the last call.
func (u *sharedBudget) measure() (total int64, errors []time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	total, errors = u.total, u.errors
	u.total, u.errors = 0, nil
	return total, errors
}

// send sends requests with many workers through a limiter until the context ends.
func (u *sharedBudget) send(ctx context.Context, l *limits.Limiter, claim limits.Claim, cost int64, workers int) {
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			caller := policy.Caller{Account: testAccount, Kind: policy.User, Client: "c"}
			for ctx.Err() == nil {
				permit, err := l.Acquire(ctx, claim, caller, time.Now().Add(24*time.Hour))
				if err != nil {
					time.Sleep(time.Second)
					continue
				}
				_, _ = l.Settle(context.Background(), *permit, u.answer(cost))
			}
		})
	}
	running.Wait()
}

// sharedRules returns rules in which only points and content creation limit.
func sharedRules() limits.Rules {
	rules := limits.Rules{Limits: policy.DefaultLimits()}
	rules.Primary.User, rules.CPU.Total = 1_000_000, 1000*time.Hour
	rules.Content = []policy.Window{{Max: 80, Window: time.Minute}, {Max: 1_000_000, Window: time.Hour}}
	return rules
}

// run sends requests in virtual time, and calls hourly after each hour.
func (u *sharedBudget) run(t *testing.T, rules limits.Rules, claim limits.Claim, cost int64, hours int, hourly func(hour int)) {
	synctest.Test(t, func(*testing.T) {
		ctx, stop := context.WithCancel(context.Background())
		limiter := limits.NewLimiter(newMemory(rules))
		var running sync.WaitGroup
		running.Go(func() { limiter.Run(ctx) })
		running.Go(func() { u.send(ctx, limiter, claim, cost, 20) })
		for hour := range hours {
			time.Sleep(time.Hour)
			hourly(hour)
		}
		stop()
		running.Wait()
	})
}

// TestConstantOutsideUseIsLearned checks that a program outside Weir, which uses 30 % of a budget, causes at most one
// limit error an hour after the first hour. Weir must use at least 80 % of the rest.
func TestConstantOutsideUseIsLearned(t *testing.T) {
	points := get(policy.Core)
	points.Points = 5
	content := points
	content.CreatesContent = true
	for _, c := range []struct {
		name             string
		claim            limits.Claim
		cost, limit, out int64
		retryAfter       time.Duration
	}{
		{"points, Retry-After of 2 s", points, 5, 900, 270, 2 * time.Second},
		{"points, Retry-After of 60 s", points, 5, 900, 270, 60 * time.Second},
		{"points, no Retry-After", points, 5, 900, 270, 0},
		{"content, Retry-After of 2 s", content, 1, 80, 24, 2 * time.Second},
		{"content, no Retry-After", content, 1, 80, 24, 0},
		{"60 % of points", points, 5, 900, 540, 10 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			u := &sharedBudget{limit: c.limit, outside: c.out, window: time.Minute, retryAfter: c.retryAfter, busy: 200 * time.Millisecond}
			const hours = 3
			var first int
			var later []time.Time
			var used int64
			u.run(t, sharedRules(), c.claim, c.cost, hours, func(hour int) {
				total, errors := u.measure()
				if hour == 0 {
					first = len(errors)
					return
				}
				used += total
				later = append(later, errors...)
			})
			part := float64(used) / float64((hours-1)*60*(c.limit-c.out))
			t.Logf("%d errors in the first hour, %d in %d hours, %s of the rest", first, len(later), hours-1, percent(part))
			for i := range len(later) - 1 {
				pause := later[i+1].Sub(later[i])
				failIf(t, pause < time.Hour, "a limit error %v after another error, want at least an hour", pause)
			}
			if part < 0.8 {
				t.Errorf("used %s of the rest, want at least 80 %%", percent(part))
			}
		})
	}
}
