package redisledger

import (
	"context"
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
			l.Fatalf("%s: refused after %v", phase, time.Since(from))
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

// A replica keeps the tokens of an account that pauses, until they end.
func TestPausedAccountContinuesWithoutRedis(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		l := p.withWindow(0, time.Minute)
		l.requestFor("with Redis", time.Minute)
		p.heartbeat(p.r1)
		p.disconnect(p.r1)
		for range 3 {
			time.Sleep(forgetAfter + time.Second)
			p.r1.forgetIdle()
			if !l.request() {
				p.Fatal("refused after a pause")
			}
		}
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

// If a replica cannot send a limit error to Redis, the replica refuses claims while it is offline.
func TestLimitErrorAppliesWithoutRedis(t *testing.T) {
	for name, lose := range map[string]func(p *pair){
		"lost reply":      func(p *pair) { p.hook.changeNext(p.r1.scripts.exchange, loseReply) },
		"lost connection": func(p *pair) { p.disconnect(p.r1) },
	} {
		t.Run(name, func(t *testing.T) {
			withTwoReplicas(t, func(p *pair) {
				p.spend(p.r1, 1, 20, true)
				p.heartbeat(p.r1)
				p.r1.flushDelay = flushDelay
				c := p.claim(1)
				if !p.admit(p.r1, c) {
					p.Fatal("refused")
				}
				lose(p)
				if err := p.r1.Settle(p.Context(), limits.Permit{Claim: c}, plain(limits.SecondaryLimit)); err == nil {
					p.Fatal("no error")
				}
				if d, err := p.r1.Admit(p.Context(), p.claim(1)); err != nil || d.Reason != limits.Cooldown {
					p.Errorf("got %+v, %v; want a refusal because of the cool-down", d, err)
				}
				if p.r1.isLost() {
					p.r1.reconnect(p.Context())
				}
				p.heartbeat(p.r1)
				if d, err := p.r2.Admit(p.Context(), p.claim(1)); err != nil || d.Granted {
					p.Errorf("another replica got %+v, %v after the outage, want a refusal", d, err)
				}
			})
		})
	}
}

// Other replicas want the slots of this replica when Redis is lost. The calls that then fail must not reduce the lease.
func TestFailedCallsKeepTheLease(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		rules := *p.r1.rules.Load()
		rules.Concurrent = 4
		p.r1.Configure(rules)
		p.r2.Configure(rules)
		l := p.withWindow(0, time.Hour)
		l.requestFor("with Redis", time.Minute) // the windows get spare tokens
		held := []limits.Claim{p.claim(1), p.claim(1)}
		for _, c := range held {
			if !p.admit(p.r1, c) || !p.admit(p.r2, p.claim(1)) {
				t.Fatal("refused below the limit")
			}
		}
		p.heartbeat(p.r1)
		if p.admit(p.r2, p.claim(1)) || p.admit(p.r1, p.claim(1)) {
			t.Fatal("admitted above the limit")
		}
		p.hook.changeAll(func(_ context.Context, cmd redis.Cmder, _ redis.ProcessHook) error {
			cmd.SetErr(errDisconnected)
			return errDisconnected
		})
		for _, c := range held {
			p.settleAnswered(p.r1, c, true)
		}
		for i := range 20 {
			c, d := p.claim(1), p.claim(1)
			if !p.admit(p.r1, c) || !p.admit(p.r1, d) {
				t.Fatalf("request %d without Redis is refused", i)
			}
			time.Sleep(100 * time.Millisecond)
			p.settleAnswered(p.r1, c, true)
			p.settleAnswered(p.r1, d, true)
			time.Sleep(100 * time.Millisecond)
		}
	})
}
