package redisledger

import (
	"cmp"
	"testing"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// load is a client with regular requests to an upstream that has its own windows and clock.
type load struct {
	*pair
	window, clockOffset time.Duration // of the upstream
	fixed, counted      int           // the use that responses report: fixed, or the requests of the open window if fixed is zero
	reset               time.Time
	every               time.Duration
}

// setWindow changes the primary window of both replicas. If limit is zero, the default limit applies.
func (p *pair) setWindow(limit int, length time.Duration) {
	p.configure(func(r *limits.Rules) {
		r.Primary.Window = length
		if limit > 0 {
			r.Primary.User = limit
		}
	})
}

// newLoad returns a load with the given primary window.
func (p *pair) newLoad(length time.Duration) *load {
	p.setWindow(0, length)
	return &load{pair: p, window: length, every: time.Second}
}

// request sends one request. It returns false if the claim is refused.
func (l *load) request() bool {
	l.Helper()
	c, now := l.claim(1), time.Now()
	if !l.admit(l.r1, c) {
		return false
	}
	time.Sleep(l.every / 10)
	reset := now.Truncate(l.window).Add(l.window + l.clockOffset)
	if l.counted++; !reset.Equal(l.reset) {
		l.reset, l.counted = reset, 1
	}
	l.settle(l.r1, c, answered(policy.Rate{Limit: 5000, Used: cmp.Or(l.fixed, l.counted), Reset: reset, Date: now.Truncate(time.Second).Add(l.clockOffset)}))
	time.Sleep(l.every - l.every/10)
	return true
}

// requestFor sends requests for the duration d, and fails the test if a request is refused.
func (l *load) requestFor(phase string, d time.Duration) {
	l.Helper()
	for from := time.Now(); time.Since(from) < d; {
		stopIf(l, !l.request(), "%s: refused after %v", phase, time.Since(from))
	}
}

// requestThenDisconnect sends requests with Redis for the duration d, and then disconnects the first replica.
func (l *load) requestThenDisconnect(d time.Duration) {
	l.Helper()
	l.requestFor("with Redis", d)
	l.heartbeat(l.r1)
	l.disconnect(l.r1)
}

func TestSteadyLoadContinuesWithoutRedis(t *testing.T) {
	for _, length := range []time.Duration{10 * time.Second, time.Minute, 90 * time.Second, 119 * time.Second, time.Hour} {
		subtest(t, length.String(), func(p *pair) {
			l := p.newLoad(length)
			l.requestThenDisconnect(2 * time.Minute)
			l.requestFor("without Redis", 4*time.Minute)
			p.r1.reconnect(p.Context())
			b := p.budget(p.r1, "core")
			failIf(p, b.Used > l.counted, "%+v: reported requests were counted again", b)
		})
	}
}

func TestLoadContinuesWhenRedisIsLostAgain(t *testing.T) {
	for _, outage := range []time.Duration{30 * time.Second, 4 * time.Minute} {
		withTwoReplicas(t, func(p *pair) {
			l := p.newLoad(time.Hour)
			l.requestThenDisconnect(2 * time.Minute)
			l.requestFor("without Redis", outage)
			p.r1.reconnect(p.Context())
			stopIf(p, p.r1.isLost(), "the ledger did not reconnect")
			p.disconnect(p.r1)
			since := p.r1.Lost()
			time.Sleep(time.Second)
			p.disconnect(p.r1)
			failIf(p, !p.r1.Lost().Equal(since), "a second failure changed the time of the loss")
			l.requestFor("without Redis again", time.Minute)
		})
	}
}

// A replica keeps the tokens of an account that pauses, until they end.
func TestPausedAccountContinuesWithoutRedis(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		l := p.newLoad(time.Minute)
		l.requestThenDisconnect(time.Minute)
		for range 3 {
			time.Sleep(forgetAfter + time.Second)
			p.r1.forgetIdle()
			stopIf(p, !l.request(), "refused after a pause")
		}
	})
}

// The use that Redis reports includes unconfirmed requests.
func TestUnreportedRequestsAreCountedOnce(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.setWindow(1000, 10*time.Minute)
		for range 600 {
			time.Sleep(500 * time.Millisecond)
			p.settle(p.r1, p.mustAdmit(p.r1, p.claim(1), "with Redis"), answered(policy.Rate{}))
		}
		p.heartbeat(p.r1)
		p.disconnect(p.r1)
		p.mustAdmit(p.r1, p.claim(1), "with 600 of 1000 used")
	})
}

func TestOfflineLimitErrorClosesTheWindowUntilItsReset(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		c := p.claim(1)
		p.admit(p.r1, c)
		// The response has no rate headers, so Redis has no reset.
		p.settle(p.r1, c, limits.Outcome{Sent: true, Answered: true, Ended: true, Failed: true})
		p.heartbeat(p.r1)
		p.disconnect(p.r1)
		c = p.mustAdmit(p.r1, p.claim(1), "without Redis")
		now := time.Now()
		o := answered(policy.Rate{Limit: 5000, Used: 5000, Reset: now.Add(time.Minute), Date: now})
		o.Limited = policy.LimitPrimary
		p.settle(p.r1, c, o)
		p.r1.reconnect(p.Context())
		failIf(p, p.admit(p.r2, p.claim(1)), "granted before the reset")
		time.Sleep(70 * time.Second)
		p.mustAdmit(p.r2, p.claim(1), "after the reset")
	})
}

func TestExhaustedWindowReopensByTheClockOfTheUpstream(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		l := p.newLoad(10 * time.Second)
		l.clockOffset, l.every = time.Minute, 100*time.Millisecond
		l.requestThenDisconnect(30 * time.Second)
		l.fixed = 5000
		l.request()
		l.fixed = 0
		failIf(p, l.request(), "granted in an exhausted window")
		time.Sleep(15 * time.Second)
		failIf(p, !l.request(), "refused after the reset")
	})
}

func TestEarlierCopiesCountUntilTheyAreReported(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.spend(p.r1, 1, 20, true)
		p.heartbeat(p.r1)
		p.disconnect(p.r1)
		c := p.mustAdmit(p.r1, p.claim(1), "without Redis")
		rate := unusedWindow()
		rate.Used = 4997
		o := answered(rate)
		o.Resent = 3
		p.settle(p.r1, c, o)
		failIf(p, p.admit(p.r1, p.claim(1)), "granted with 4997 of 5000 used and three copies unconfirmed")
	})
}

// Without a Date field, an old reset does not identify its window, so the ledger ignores the response.
func TestIgnoredObservationIsUnconfirmed(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.setWindow(20, 2*time.Minute)
		reset, used := time.Now().Add(100*time.Second-time.Hour), 0
		spend := func(l *Ledger, most int, responds bool) {
			for range most {
				c := p.claim(1)
				if !p.admit(l, c) {
					return
				}
				if used++; responds {
					p.settle(l, c, answered(policy.Rate{Limit: 20, Used: used, Reset: reset}))
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
		failIf(p, used > 20, "%d requests granted, want at most 20", used)
	})
}

// If a replica cannot send a limit error to Redis, the replica refuses claims while it is offline.
func TestLimitErrorAppliesWithoutRedis(t *testing.T) {
	for name, lose := range map[string]func(p *pair){
		"lost reply":      func(p *pair) { p.hook.changeNext(p.r1.scripts.roundTrip, loseReply) },
		"lost connection": func(p *pair) { p.disconnect(p.r1) },
	} {
		subtest(t, name, func(p *pair) {
			p.spend(p.r1, 1, 20, true)
			p.heartbeat(p.r1)
			p.r1.flushDelay = flushDelay
			c := p.mustAdmit(p.r1, p.claim(1), "at the start")
			lose(p)
			err := p.r1.Settle(p.Context(), limits.Permit{Claim: c}, plain(policy.LimitSecondary))
			stopIf(p, err == nil, "no error")
			d := p.decide(p.r1, p.claim(1))
			failIf(p, d.Reason != limits.Cooldown, "got %+v; want a refusal because of the cool-down", d)
			if p.r1.isLost() {
				p.r1.reconnect(p.Context())
			}
			p.heartbeat(p.r1)
			failIf(p, p.admit(p.r2, p.claim(1)), "another replica granted a claim after the outage")
		})
	}
}

// Other replicas want the slots of this replica when Redis is lost. The calls that then fail must not reduce the lease.
func TestFailedCallsKeepTheLease(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.configure(func(r *limits.Rules) { r.Concurrent = 4 })
		p.newLoad(time.Hour).requestFor("with Redis", time.Minute) // the windows get spare tokens
		var held []limits.Claim
		for range 2 {
			held = append(held, p.mustAdmit(p.r1, p.claim(1), "below the limit"))
			p.mustAdmit(p.r2, p.claim(1), "below the limit")
		}
		p.heartbeat(p.r1)
		p.want("granted above the limit", p.grantedInTurns(1), 0)
		p.hook.changeAll(fail)
		for _, c := range held {
			p.settleAnswered(p.r1, c, true)
		}
		for range 20 {
			for i := range held {
				held[i] = p.mustAdmit(p.r1, p.claim(1), "without Redis")
			}
			for _, c := range held {
				time.Sleep(100 * time.Millisecond)
				p.settleAnswered(p.r1, c, true)
			}
		}
	})
}
