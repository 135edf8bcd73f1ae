package redisledger

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/limits"
)

// counting counts the turns that go to Redis; hold, when it is set, keeps them on the way.
type counting struct {
	script *redis.Script
	turns  atomic.Int64
	hold   func()
}

func (*counting) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*counting) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c *counting) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" && cmd.Args()[1] == c.script.Hash() {
			c.turns.Add(1)
			if c.hold != nil {
				c.hold()
			}
		}
		return next(ctx, cmd)
	}
}

// inTurns opens a ledger whose turns are counted, and that tells as late as it may.
func inTurns(t *testing.T, tell func(t *testing.T, l *Ledger, c *counting)) {
	inBubble(t, func(t *testing.T, l *Ledger, _ *atomic.Int64) {
		if err := l.scripts.batch.Load(t.Context(), l.Client).Err(); err != nil {
			t.Fatal(err)
		}
		c := &counting{script: l.scripts.batch}
		l.Client.(*redis.Client).AddHook(c)
		l.flushDelay = flushDelay
		defer l.background.Wait()
		tell(t, l, c)
	})
}

func plain(limited limits.LimitKind) limits.Outcome {
	return limits.Outcome{Sent: true, Answered: true, Limited: limited}
}

// TestWhatIsToldGoesWithWhatIsAsked: a request takes one turn, however much there is to tell
// of the one before; and what nobody takes along is told all the same.
func TestWhatIsToldGoesWithWhatIsAsked(t *testing.T) {
	inTurns(t, func(t *testing.T, l *Ledger, c *counting) {
		for i := range uint64(10) {
			claim := create(i + 1)
			if d, err := l.Admit(t.Context(), claim); err != nil || !d.Granted {
				t.Fatal(d, err)
			}
			p := limits.Permit{Claim: claim}
			if err := l.Settle(t.Context(), p, plain(limits.NotLimited)); err != nil {
				t.Fatal(err)
			}
			if err := l.Release(t.Context(), p, false); err != nil {
				t.Fatal(err)
			}
		}
		if n := c.turns.Load(); n != 10 {
			t.Errorf("10 requests took %d turns", n)
		}
		if a := l.only(t); a.InUse != 1 {
			t.Errorf("%d in flight where one is told late", a.InUse)
		}
		time.Sleep(2 * flushDelay)
		l.background.Wait()
		if a := l.only(t); a.InUse != 0 || c.turns.Load() != 11 {
			t.Errorf("%d in flight after %d turns", a.InUse, c.turns.Load())
		}
	})
}

// only is the one account that there is.
func (l *Ledger) only(t *testing.T) limits.Account {
	t.Helper()
	list, err := l.Accounts(t.Context(), 2)
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	return list[0]
}

// TestALimitIsToldAtOnce: when a replica has settled an answer that was refused for a limit,
// no other one lets anything go for it.
func TestALimitIsToldAtOnce(t *testing.T) {
	for _, limited := range []limits.LimitKind{limits.PrimaryLimit, limits.SecondaryLimit} {
		inPair(t, func(p *pair) {
			p.r1.flushDelay = flushDelay
			if d, err := p.r1.Admit(p.Context(), create(1)); err != nil || !d.Granted {
				p.Fatal(d, err)
			}
			if err := p.r1.Settle(p.Context(), limits.Permit{Claim: create(1)}, plain(limited)); err != nil {
				p.Fatal(err)
			}
			if d, err := p.r2.Admit(p.Context(), create(2)); err != nil || d.Granted || d.Reason == limits.Concurrency {
				p.Error(limited, d, err)
			}
		})
	}
}

// TestThoseWhoWaitGoTogether: what is asked while a turn goes on shares the next, and each
// gets its own answer; what Redis does not hear of, nobody is granted.
func TestThoseWhoWaitGoTogether(t *testing.T) {
	inTurns(t, func(t *testing.T, l *Ledger, c *counting) {
		if d, err := l.Admit(t.Context(), create(1)); err != nil || !d.Granted {
			t.Fatal(d, err)
		}
		told := limits.Outcome{Sent: true, Answered: true, Ended: true, Rate: limits.Rate{Limit: 5000, Used: 1, Reset: time.Now().Add(time.Hour)}}
		if err := l.Settle(t.Context(), limits.Permit{Claim: create(1)}, told); err != nil {
			t.Fatal(err)
		}
		l.background.Wait()
		c.turns.Store(0)
		gate := make(chan struct{})
		c.hold = func() { <-gate }
		var asking sync.WaitGroup
		var granted, refused atomic.Int64
		const asks = 150 // of which 100 may be in flight, less what headroom leaves
		for i := range uint64(asks) {
			asking.Go(func() {
				claim := create(i + 2)
				claim.Operation = fmt.Sprint("op", i%3)
				claim.CreatesContent, claim.Points = false, 1
				switch d, err := l.Admit(t.Context(), claim); {
				case err != nil:
					t.Error(err)
				case d.Granted:
					granted.Add(1)
				case d.Reason == limits.Concurrency:
					refused.Add(1)
				default:
					t.Errorf("%+v", d)
				}
			})
		}
		synctest.Wait() // the first turn is on its way, with one claim
		close(gate)
		asking.Wait()
		most := l.rules.Load().Usable(int64(l.rules.Load().Concurrent))
		if granted.Load() != most || refused.Load() != asks-most {
			t.Errorf("%d granted and %d refused, with room for %d", granted.Load(), refused.Load(), most)
		}
		if n := c.turns.Load(); n != 1+(asks-1+batchMax-1)/batchMax {
			t.Errorf("%d turns", n)
		}
	})
}

// TestALimitIsHeededWithoutRedis: a replica that could not tell of a limit error, or had lost
// Redis before, lets nothing go for it alone.
func TestALimitIsHeededWithoutRedis(t *testing.T) {
	for name, lose := range map[string]func(p *pair){
		"its turn is not answered": func(p *pair) { p.seam.once(p.r1.scripts.batch, unanswered) },
		"it is lost before":        func(p *pair) { p.cutOff(p.r1) },
	} {
		t.Run(name, func(t *testing.T) {
			inPair(t, func(p *pair) {
				p.spent(p.r1, 1, 20, true)
				p.beat(p.r1)
				p.r1.flushDelay = flushDelay
				c := p.claim(1)
				if !p.asked(p.r1, c) {
					p.Fatal("refused")
				}
				lose(p)
				if err := p.r1.Settle(p.Context(), limits.Permit{Claim: c}, plain(limits.SecondaryLimit)); err == nil || !p.r1.isLost() {
					p.Fatal(err)
				}
				if d, err := p.r1.Admit(p.Context(), p.claim(1)); err != nil || d.Reason != limits.Cooldown {
					p.Errorf("%+v, %v", d, err)
				}
				p.r1.reconnect(p.Context())
				if d, err := p.r2.Admit(p.Context(), p.claim(1)); err != nil || d.Granted {
					p.Errorf("when it is found another replica has %+v, %v", d, err)
				}
			})
		})
	}
}

// TestWhoWaitsWhenRedisIsLostWaitsNoLonger: those in the queue are refused with the turn that
// has found out, not each after a turn of their own.
func TestWhoWaitsWhenRedisIsLostWaitsNoLonger(t *testing.T) {
	inTurns(t, func(t *testing.T, l *Ledger, c *counting) {
		l.timeout = 50 * time.Millisecond
		c.hold = func() { time.Sleep(time.Second) } // beyond every deadline
		began := time.Now()
		var asking sync.WaitGroup
		for i := range uint64(200) {
			asking.Go(func() {
				if d, err := l.Admit(t.Context(), create(i+1)); err != nil || d.Granted || d.Reason != Store {
					t.Errorf("%+v, %v", d, err)
				}
			})
		}
		asking.Wait()
		if n := c.turns.Load(); n != 1 || time.Since(began) > 1100*time.Millisecond {
			t.Errorf("%d turns in %v", n, time.Since(began))
		}
	})
}
