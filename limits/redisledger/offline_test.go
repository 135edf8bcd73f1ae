package redisledger

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/limits"
)

// load is a client with regular requests to an upstream that has its own windows and clock.
type load struct {
	*pair
	window, clockOffset time.Duration // of the upstream
	used                int           // reported by responses
	every               time.Duration
	duringRequest       func()
}

// withWindow returns a load with the given primary window. If limit is zero, the default limit applies.
func (p *pair) withWindow(limit int, window time.Duration) *load {
	rules := *p.r1.rules.Load()
	rules.Primary.Window = window
	if limit > 0 {
		rules.Primary.User = limit
	}
	p.r1.Configure(rules)
	p.r2.Configure(rules)
	return &load{pair: p, window: window, used: 1, every: time.Second, duringRequest: func() {}}
}

// request sends one request. It returns false if the claim is refused.
func (l *load) request() bool {
	l.Helper()
	c, now := l.claim(1), time.Now()
	if !l.admit(l.r1, c) {
		return false
	}
	time.Sleep(l.every / 10)
	l.duringRequest()
	rate := limits.Rate{Limit: 5000, Used: l.used, Reset: now.Truncate(l.window).Add(l.window + l.clockOffset), Date: now.Truncate(time.Second).Add(l.clockOffset)}
	_ = l.r1.Settle(l.Context(), limits.Permit{Claim: c}, limits.Outcome{Sent: true, Answered: true, Ended: true, Rate: rate})
	time.Sleep(l.every - l.every/10)
	return true
}

// requestFor sends requests for the duration d, and fails the test if a request is refused.
func (l *load) requestFor(phase string, d time.Duration) {
	l.Helper()
	for from := time.Now(); time.Since(from) < d; {
		if !l.request() {
			lease := l.r1.accounts["a"].leases[leaseKeyOf(l.claim(1))]
			l.Fatalf("%s: refused after %v: %+v", phase, time.Since(from), lease)
		}
	}
}

func TestSteadyLoadContinuesWithoutRedis(t *testing.T) {
	for _, window := range []time.Duration{10 * time.Second, time.Minute, 90 * time.Second, 119 * time.Second, time.Hour} {
		t.Run(window.String(), func(t *testing.T) {
			withTwoReplicas(t, func(p *pair) {
				l := p.withWindow(0, window)
				l.requestFor("with Redis", 2*time.Minute)
				p.heartbeat(p.r1)
				p.disconnect(p.r1)
				l.requestFor("without Redis", 4*time.Minute)
				p.r1.reconnect(p.Context())
				list, err := p.r1.Accounts(p.Context(), 1)
				if err != nil {
					t.Fatal(err)
				}
				for _, b := range list[0].Budgets {
					if b.Resource == "core" && b.Used > 5 {
						t.Errorf("%+v: reported requests were counted again", b)
					}
				}
			})
		})
	}
}

func TestLoadContinuesWhenRedisIsLostAgain(t *testing.T) {
	for _, outage := range []time.Duration{30 * time.Second, 4 * time.Minute} {
		withTwoReplicas(t, func(p *pair) {
			l := p.withWindow(0, time.Hour)
			l.requestFor("with Redis", 2*time.Minute)
			p.heartbeat(p.r1)
			p.disconnect(p.r1)
			l.requestFor("without Redis", outage)
			p.r1.reconnect(p.Context())
			if p.r1.isLost() {
				p.Fatal("the ledger did not reconnect")
			}
			p.disconnect(p.r1)
			l.requestFor("without Redis again", time.Minute)
		})
	}
}

// Reconnects send the offline permits to Redis, but get no new lease. The old lease must suffice.
func TestLoadContinuesWhileHeartbeatsFail(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		l := p.withWindow(0, time.Hour)
		l.requestFor("with Redis", 2*time.Minute)
		p.heartbeat(p.r1)
		p.disconnect(p.r1)
		p.hook.change = func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
			if cmd.Name() == "evalsha" && cmd.Args()[1] == p.r1.scripts.heartbeat.Hash() {
				cmd.SetErr(errDisconnected)
				return errDisconnected
			}
			return run(ctx, cmd)
		}
		l.duringRequest = func() { p.r1.reconnect(p.Context()) }
		l.requestFor("while heartbeats fail", 4*time.Minute)
	})
}

// The use that Redis reports includes unconfirmed requests.
func TestUnreportedRequestsAreCountedOnce(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.withWindow(1000, 10*time.Minute)
		silent := limits.Outcome{Sent: true, Answered: true, Ended: true}
		for range 600 {
			time.Sleep(500 * time.Millisecond)
			c := p.claim(1)
			if !p.admit(p.r1, c) {
				p.Fatal("refused with Redis")
			}
			_ = p.r1.Settle(p.Context(), limits.Permit{Claim: c}, silent)
		}
		p.heartbeat(p.r1)
		p.disconnect(p.r1)
		if !p.admit(p.r1, p.claim(1)) {
			p.Error("refused with 600 of 1000 used")
		}
	})
}

func TestOfflineLimitErrorClosesTheWindowUntilItsReset(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		c := p.claim(1)
		p.admit(p.r1, c)
		// The response has no rate headers, so Redis has no reset.
		_ = p.r1.Settle(p.Context(), limits.Permit{Claim: c}, limits.Outcome{Sent: true, Answered: true, Ended: true, Failed: true})
		p.heartbeat(p.r1)
		p.disconnect(p.r1)
		c = p.claim(1)
		if !p.admit(p.r1, c) {
			p.Fatal("refused")
		}
		now := time.Now()
		_ = p.r1.Settle(p.Context(), limits.Permit{Claim: c}, limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: limits.PrimaryLimit,
			Rate: limits.Rate{Limit: 5000, Used: 5000, Reset: now.Add(time.Minute), Date: now}})
		p.r1.reconnect(p.Context())
		if p.admit(p.r2, p.claim(1)) {
			p.Error("granted before the reset")
		}
		time.Sleep(70 * time.Second)
		if !p.admit(p.r2, p.claim(1)) {
			p.Error("refused after the reset")
		}
	})
}

func TestExhaustedWindowReopensByTheClockOfTheUpstream(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		l := p.withWindow(0, 10*time.Second)
		l.clockOffset, l.every = time.Minute, 100*time.Millisecond
		l.requestFor("with Redis", 30*time.Second)
		p.heartbeat(p.r1)
		p.disconnect(p.r1)
		l.used = 5000
		l.request()
		if l.used = 1; l.request() {
			p.Error("granted in an exhausted window")
		}
		time.Sleep(15 * time.Second)
		if !l.request() {
			p.Error("refused after the reset")
		}
	})
}

func TestEarlierCopiesCountUntilTheyAreReported(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.spend(p.r1, 1, 20, true)
		p.heartbeat(p.r1)
		p.disconnect(p.r1)
		c := p.claim(1)
		if !p.admit(p.r1, c) {
			p.Fatal("refused")
		}
		now := time.Now()
		_ = p.r1.Settle(p.Context(), limits.Permit{Claim: c}, limits.Outcome{Sent: true, Answered: true, Ended: true, Resent: 3,
			Rate: limits.Rate{Limit: 5000, Used: 4997, Reset: now.Add(time.Hour).Truncate(time.Second), Date: now.Truncate(time.Second)}})
		if p.admit(p.r1, p.claim(1)) {
			p.Error("granted with 4997 of 5000 used and three copies unconfirmed")
		}
	})
}

// Without a Date field, an old reset does not identify its window, so the ledger ignores the response.
func TestIgnoredObservationIsUnconfirmed(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.withWindow(20, 2*time.Minute)
		reset, used := time.Now().Add(100*time.Second-time.Hour), 0
		spend := func(l *Ledger, most int, answered bool) {
			for range most {
				c := p.claim(1)
				if !p.admit(l, c) {
					return
				}
				used++
				if answered {
					rate := limits.Rate{Limit: 20, Used: used, Reset: reset}
					_ = l.Settle(p.Context(), limits.Permit{Claim: c}, limits.Outcome{Sent: true, Answered: true, Ended: true, Rate: rate})
				}
			}
		}
		spend(p.r1, 3, true)
		p.heartbeat(p.r1)
		p.disconnect(p.r1)
		spend(p.r1, 7, true)
		p.r1.reconnect(p.Context())
		p.heartbeat(p.r1)
		spend(p.r2, 100, false)
		p.disconnect(p.r1)
		spend(p.r1, 100, false)
		if used > 20 {
			p.Errorf("%d requests granted, want at most 20", used)
		}
	})
}

// Leave also sends the offline spends and removes the registration.
func TestLeaveReturnsOfflineLeases(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		for _, l := range []*Ledger{p.r1, p.r2} {
			p.spend(l, 1, 10, true)
			p.heartbeat(l)
		}
		leases := func(replica string) (n int) {
			fields, err := p.r2.Client.HKeys(p.Context(), p.r2.keysOf("a")[0]).Result()
			if err != nil {
				p.Fatal(err)
			}
			for _, f := range fields {
				if strings.HasPrefix(f, "x:~"+replica+"~") {
					n++
				}
			}
			return n
		}
		if leases("r1") == 0 || leases("r2") == 0 {
			p.Fatal("no offline leases")
		}
		last := p.claim(1) // settled after the replica has left
		if !p.admit(p.r1, last) {
			p.Fatal("refused")
		}
		p.disconnect(p.r1)
		if n := p.spend(p.r1, 1, 3, true); n != 3 {
			p.Fatalf("%d granted offline, want 3", n)
		}
		p.hook.changeAll(func(_ context.Context, cmd redis.Cmder, _ redis.ProcessHook) error {
			cmd.SetErr(errDisconnected)
			return errDisconnected
		})
		if err := p.r1.Leave(p.Context()); err == nil {
			p.Error("Leave returned no error without Redis")
		}
		time.AfterFunc(leaveTimeout/2, func() { p.hook.changeAll(nil) }) // Leave reconnects
		if err := p.r1.Leave(p.Context()); err != nil {
			p.Fatal(err)
		}
		if n := leases("r1"); n != 0 {
			p.Errorf("%d offline leases remain, want none", n)
		}
		p.r1.flushDelay = flushDelay
		p.settleAnswered(p.r1, last, true)
		list, err := p.r2.Accounts(p.Context(), 1)
		if err != nil {
			p.Fatal(err)
		}
		budgets := list[0].Budgets
		if i := slices.IndexFunc(budgets, func(b limits.Budget) bool { return b.Resource == "points:repos/get" }); i < 0 || budgets[i].Used != 24 || list[0].InUse != 0 {
			p.Errorf("%d permits in use and %+v; want 0 permits and 24 points", list[0].InUse, budgets)
		}
		p.heartbeat(p.r2)
		if n := p.r2.Replicas(); n != 1 {
			p.Errorf("%d replicas registered, want 1", n)
		}
	})
}
