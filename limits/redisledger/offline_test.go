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

// load is a client that asks every second, of an upstream with windows and a clock
// of its own.
type load struct {
	*pair
	window, ahead time.Duration
	used          int // what its answers tell
	every         time.Duration
	meanwhile     func() // while a request is in flight
}

// windowed is a load under a primary window of that length.
func (p *pair) windowed(limit int, window time.Duration) *load {
	rules := *p.r1.rules.Load()
	rules.Primary.Window = window
	if limit > 0 {
		rules.Primary.User = limit
	}
	p.r1.Configure(rules)
	p.r2.Configure(rules)
	return &load{pair: p, window: window, used: 1, every: time.Second, meanwhile: func() {}}
}

func (l *load) ask() bool {
	l.Helper()
	c, now := l.claim(1), time.Now()
	if !l.asked(l.r1, c) {
		return false
	}
	time.Sleep(l.every / 10)
	l.meanwhile()
	rate := limits.Rate{Limit: 5000, Used: l.used, Reset: now.Truncate(l.window).Add(l.window + l.ahead), Date: now.Truncate(time.Second).Add(l.ahead)}
	_ = l.r1.Settle(l.Context(), limits.Permit{Claim: c}, limits.Outcome{Sent: true, Answered: true, Ended: true, Rate: rate})
	time.Sleep(l.every - l.every/10)
	return true
}

// asks asks for so long, and fails the test when it is refused.
func (l *load) asks(when string, d time.Duration) {
	l.Helper()
	for from := time.Now(); time.Since(from) < d; {
		if !l.ask() {
			own := l.r1.accounts["a"].classes[classOf(l.claim(1))]
			l.Fatalf("%s: refused after %v: %+v", when, time.Since(from), own)
		}
	}
}

func TestASteadyLoadGoesOnAlone(t *testing.T) {
	for _, window := range []time.Duration{10 * time.Second, time.Minute, 90 * time.Second, 119 * time.Second, time.Hour} {
		t.Run(window.String(), func(t *testing.T) {
			inPair(t, func(p *pair) {
				l := p.windowed(0, window)
				l.asks("with Redis", 2*time.Minute)
				p.beat(p.r1)
				p.cutOff(p.r1)
				l.asks("without", 4*time.Minute)
				p.r1.reconnect(p.Context())
				list, err := p.r1.Accounts(p.Context(), 1)
				if err != nil {
					t.Fatal(err)
				}
				for _, b := range list[0].Budgets {
					if b.Resource == "core" && b.Used > 5 {
						t.Errorf("%+v: what answers have told is counted once", b)
					}
				}
			})
		})
	}
}

func TestALoadGoesOnWhenRedisIsFoundAndLostAgain(t *testing.T) {
	for _, away := range []time.Duration{30 * time.Second, 4 * time.Minute} {
		inPair(t, func(p *pair) {
			l := p.windowed(0, time.Hour)
			l.asks("with Redis", 2*time.Minute)
			p.beat(p.r1)
			p.cutOff(p.r1)
			l.asks("without", away)
			p.r1.reconnect(p.Context())
			if p.r1.isLost() {
				p.Fatal("lost")
			}
			p.cutOff(p.r1)
			l.asks("without again", time.Minute)
		})
	}
}

// TestALoadGoesOnWhileRedisAnswersHalf: what was handed over is used no more by a
// replica that cannot set aside anew.
func TestALoadGoesOnWhileRedisAnswersHalf(t *testing.T) {
	inPair(t, func(p *pair) {
		l := p.windowed(0, time.Hour)
		l.asks("with Redis", 2*time.Minute)
		p.beat(p.r1)
		p.cutOff(p.r1)
		p.seam.on = func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
			if cmd.Name() == "evalsha" && cmd.Args()[1] == p.r1.scripts.heartbeat.Hash() {
				cmd.SetErr(errCutOff)
				return errCutOff
			}
			return run(ctx, cmd)
		}
		l.meanwhile = func() { p.r1.reconnect(p.Context()) }
		l.asks("while beats fail", 4*time.Minute)
	})
}

// TestAnUpstreamThatTellsNothingIsCountedOnce: ghosts are in what Redis tells.
func TestAnUpstreamThatTellsNothingIsCountedOnce(t *testing.T) {
	inPair(t, func(p *pair) {
		p.windowed(1000, 10*time.Minute)
		silent := limits.Outcome{Sent: true, Answered: true, Ended: true}
		for range 600 {
			time.Sleep(500 * time.Millisecond)
			c := p.claim(1)
			if !p.asked(p.r1, c) {
				p.Fatal("refused with Redis")
			}
			_ = p.r1.Settle(p.Context(), limits.Permit{Claim: c}, silent)
		}
		p.beat(p.r1)
		p.cutOff(p.r1)
		if !p.asked(p.r1, p.claim(1)) {
			p.Error("600 of 1000 are used, and it is refused")
		}
	})
}

// TestALimitErrorAloneClosesUntilItsReset, and no longer.
func TestALimitErrorAloneClosesUntilItsReset(t *testing.T) {
	inPair(t, func(p *pair) {
		c := p.claim(1)
		p.asked(p.r1, c)
		// An error that tells nothing: Redis can only guess the reset.
		_ = p.r1.Settle(p.Context(), limits.Permit{Claim: c}, limits.Outcome{Sent: true, Answered: true, Ended: true, Failed: true})
		p.beat(p.r1)
		p.cutOff(p.r1)
		c = p.claim(1)
		if !p.asked(p.r1, c) {
			p.Fatal("refused")
		}
		now := time.Now()
		_ = p.r1.Settle(p.Context(), limits.Permit{Claim: c}, limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: limits.PrimaryLimit,
			Rate: limits.Rate{Limit: 5000, Used: 5000, Reset: now.Add(time.Minute), Date: now}})
		p.r1.reconnect(p.Context())
		if p.asked(p.r2, p.claim(1)) {
			p.Error("granted before the reset")
		}
		time.Sleep(70 * time.Second)
		if !p.asked(p.r2, p.claim(1)) {
			p.Error("refused after the reset")
		}
	})
}

func TestAFullWindowIsOverWhenItsOwnClockSaysSo(t *testing.T) {
	inPair(t, func(p *pair) {
		l := p.windowed(0, 10*time.Second)
		l.ahead, l.every = time.Minute, 100*time.Millisecond
		l.asks("with Redis", 30*time.Second)
		p.beat(p.r1)
		p.cutOff(p.r1)
		l.used = 5000
		l.ask()
		if l.used = 1; l.ask() {
			p.Error("granted in a window that is full")
		}
		time.Sleep(15 * time.Second)
		if !l.ask() {
			p.Error("refused after the reset")
		}
	})
}

func TestCopiesCountUntilTheyAreTold(t *testing.T) {
	inPair(t, func(p *pair) {
		p.spent(p.r1, 1, 20, true)
		p.beat(p.r1)
		p.cutOff(p.r1)
		c := p.claim(1)
		if !p.asked(p.r1, c) {
			p.Fatal("refused")
		}
		now := time.Now()
		_ = p.r1.Settle(p.Context(), limits.Permit{Claim: c}, limits.Outcome{Sent: true, Answered: true, Ended: true, Resent: 3,
			Rate: limits.Rate{Limit: 5000, Used: 4997, Reset: now.Add(time.Hour).Truncate(time.Second), Date: now.Truncate(time.Second)}})
		if p.asked(p.r1, p.claim(1)) {
			p.Error("granted: 4997, and three copies that are perhaps counted yet, of 5000")
		}
	})
}

// TestWhatIsNotKeptOfAnAnswerIsAGhost: without a date nobody knows which window an
// old reset is of.
func TestWhatIsNotKeptOfAnAnswerIsAGhost(t *testing.T) {
	inPair(t, func(p *pair) {
		p.windowed(20, 2*time.Minute)
		reset, used := time.Now().Add(100*time.Second-time.Hour), 0
		ask := func(l *Ledger, most int, told bool) {
			for range most {
				c := p.claim(1)
				if !p.asked(l, c) {
					return
				}
				used++
				if told {
					rate := limits.Rate{Limit: 20, Used: used, Reset: reset}
					_ = l.Settle(p.Context(), limits.Permit{Claim: c}, limits.Outcome{Sent: true, Answered: true, Ended: true, Rate: rate})
				}
			}
		}
		ask(p.r1, 3, true)
		p.beat(p.r1)
		p.cutOff(p.r1)
		ask(p.r1, 7, true)
		p.r1.reconnect(p.Context())
		p.beat(p.r1)
		ask(p.r2, 100, false)
		p.cutOff(p.r1)
		ask(p.r1, 100, false)
		if used > 20 {
			p.Errorf("%d of 20", used)
		}
	})
}

// TestWhoLeavesGivesBackWhatItHasSetAside, tells what it has spent of it, and is not counted
// any more.
func TestWhoLeavesGivesBackWhatItHasSetAside(t *testing.T) {
	inPair(t, func(p *pair) {
		for _, l := range []*Ledger{p.r1, p.r2} {
			p.spent(l, 1, 10, true)
			p.beat(l)
		}
		aside := func(replica string) (n int) {
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
		if aside("r1") == 0 || aside("r2") == 0 {
			p.Fatal("nothing is set aside")
		}
		last := p.claim(1) // its answer ends when the replica has left
		if !p.asked(p.r1, last) {
			p.Fatal("refused")
		}
		p.cutOff(p.r1)
		if n := p.spent(p.r1, 1, 3, true); n != 3 {
			p.Fatalf("%d have gone without Redis", n)
		}
		p.seam.always(func(_ context.Context, cmd redis.Cmder, _ redis.ProcessHook) error {
			cmd.SetErr(errCutOff)
			return errCutOff
		})
		if err := p.r1.Leave(p.Context()); err == nil {
			p.Error("it has left a Redis that it does not reach")
		}
		time.AfterFunc(leaveTimeout/2, func() { p.seam.always(nil) }) // it is looked for, and found
		if err := p.r1.Leave(p.Context()); err != nil {
			p.Fatal(err)
		}
		if n := aside("r1"); n != 0 {
			p.Errorf("%d classes are still set aside", n)
		}
		p.r1.flushDelay = flushDelay
		p.answered(p.r1, last, true)
		list, err := p.r2.Accounts(p.Context(), 1)
		if err != nil {
			p.Fatal(err)
		}
		budgets := list[0].Budgets
		if i := slices.IndexFunc(budgets, func(b limits.Budget) bool { return b.Resource == "points:repos/get" }); i < 0 || budgets[i].Used != 24 || list[0].InUse != 0 {
			p.Errorf("not 24 points are spent, or %d are in flight: %+v", list[0].InUse, budgets)
		}
		p.beat(p.r2)
		if n := p.r2.Replicas(); n != 1 {
			p.Errorf("%d replicas are registered", n)
		}
	})
}
