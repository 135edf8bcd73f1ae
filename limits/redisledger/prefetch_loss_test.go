package redisledger

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// TestWhoLeavesGivesBackWhatWaits, and what was asked for when it left.
func TestWhoLeavesGivesBackWhatWaits(t *testing.T) {
	for _, onItsWay := range []bool{false, true} {
		inAdvance(t, func(p *pair, c *counting) {
			p.busyAhead()
			used := p.claim(1)
			if !p.asked(p.r1, used) {
				p.Fatal("refused")
			}
			synctest.Wait()
			gate := make(chan struct{})
			if onItsWay {
				c.hold = func() { <-gate }
				for p.waiting() > 0 {
					next := p.claim(1)
					p.asked(p.r1, next)
					p.answered(p.r1, next, true)
				}
				synctest.Wait()
			}
			var leaving sync.WaitGroup
			leaving.Go(func() {
				if err := p.r1.Leave(p.Context()); err != nil {
					p.Error(err)
				}
			})
			synctest.Wait()
			close(gate)
			leaving.Wait()
			if n := p.inFlight(); n != 1 {
				p.Errorf("on its way %v: %d in flight", onItsWay, n)
			}
			p.answered(p.r1, used, true)
			p.nothingHeld("when the last has ended")
		})
	}
}

// TestWhoFindsRedisGivesBackWhatWaited: those that nobody has used, and those of a turn that
// was not answered, cost nothing, and this replica does not count them meanwhile.
func TestWhoFindsRedisGivesBackWhatWaited(t *testing.T) {
	for name, lose := range map[string]func(p *pair){
		"they wait": func(p *pair) { p.cutOff(p.r1) },
		"their turn is not answered": func(p *pair) {
			for p.waiting() > 1 {
				c := p.claim(1)
				p.asked(p.r1, c)
				p.answered(p.r1, c, true)
			}
			p.seam.once(p.r1.scripts.batch, unanswered)
			c := p.claim(1)
			c.Operation = "users/get"
			p.asked(p.r1, c) // nobody knows whether it was granted
		},
	} {
		inAdvance(t, func(p *pair, _ *counting) {
			p.busyAhead()
			lose(p)
			before := p.inFlight()
			time.Sleep(2 * prefetchTime)
			p.r1.mu.Lock()
			if n := p.r1.accounts["a"].unreported("core"); n > 0 {
				p.Errorf("%s: %d are taken for sent", name, n)
			}
			p.r1.mu.Unlock()
			p.r1.reconnect(p.Context())
			if p.r1.isLost() {
				p.Fatal("not found")
			}
			if n := p.inFlight(); n > 1 || n >= before {
				p.Errorf("%s: %d in flight, %d before", name, n, before)
			}
		})
	}
}

// TestWhatIsUsedAheadIsWrittenAgain: when Redis has lost it.
func TestWhatIsUsedAheadIsWrittenAgain(t *testing.T) {
	inAdvance(t, func(p *pair, _ *counting) {
		p.busyAhead()
		used := []limits.Claim{p.claim(1), p.claim(1)}
		for _, c := range used {
			p.asked(p.r1, c)
		}
		synctest.Wait()
		if err := p.r2.Client.FlushAll(p.Context()).Err(); err != nil {
			p.Fatal(err)
		}
		beaten(p.T, p.r1)
		rest()
		if n := p.inFlight(); n != 2 {
			p.Errorf("%d in flight, of two", n)
		}
		for _, c := range used {
			p.answered(p.r1, c, true)
		}
		rest()
		p.nothingHeld("at the end")
	})
}

// TestOneThatIsTakenUpAgainIsGivenBack: a renewal that comes after the end takes up what stood
// for the claim, and who renewed it gives that back.
func TestOneThatIsTakenUpAgainIsGivenBack(t *testing.T) {
	inAdvance(t, func(p *pair, _ *counting) {
		p.busyAhead()
		c := p.claim(1)
		p.asked(p.r1, c)
		synctest.Wait()
		p.seam.once(p.r1.scripts.renew, func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
			p.answered(p.r1, c, true)
			if err := p.r1.flush(ctx, p.r1.accounts["a"], false); err != nil {
				p.Error(err)
			}
			return run(ctx, cmd)
		})
		if err := p.r1.Renew(p.Context(), []limits.OpenPermit{{Permit: limits.Permit{Claim: c}, Elapsed: time.Second}}); err != nil {
			p.Fatal(err)
		}
		rest()
		if n := p.inFlight(); n != 1 {
			p.Errorf("%d in flight: it was not renewed after its end", n)
		}
		p.settle(c, limits.Outcome{})
		rest()
		p.nothingHeld("when it was given back")
	})
}

// TestOneThatIsTakenUpAgainIsKnown though what was told of its end is heard of after the
// renewal.
func TestOneThatIsTakenUpAgainIsKnown(t *testing.T) {
	inAdvance(t, func(p *pair, _ *counting) {
		p.busyAhead()
		rest()
		p.busy(2)
		c := p.claim(1)
		p.asked(p.r1, c)
		synctest.Wait()
		gate := make(chan struct{})
		p.seam.once(p.r1.scripts.batch, func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
			err := run(ctx, cmd)
			<-gate
			return err
		})
		p.answered(p.r1, c, true)
		time.Sleep(flushDelay)
		synctest.Wait()
		if err := p.r1.Renew(p.Context(), []limits.OpenPermit{{Permit: limits.Permit{Claim: c}, Elapsed: time.Second}}); err != nil {
			p.Fatal(err)
		}
		close(gate)
		synctest.Wait()
		p.settle(c, limits.Outcome{})
		rest()
		p.nothingHeld("when it was given back")
		p.beat(p.r1)
		if n := len(p.r1.accounts["a"].aliases); n != 0 {
			p.Errorf("%d are remembered", n)
		}
	})
}

// TestWhatHasLandedIsNotTakenUpAgain by a replica that writes again what may be lost, while it
// tells of the end.
func TestWhatHasLandedIsNotTakenUpAgain(t *testing.T) {
	inAdvance(t, func(p *pair, _ *counting) {
		if err := p.r1.scripts.restore.Load(p.Context(), p.r1.Client).Err(); err != nil {
			p.Fatal(err)
		}
		p.busyAhead()
		c := p.claim(1)
		p.asked(p.r1, c)
		p.seam.once(p.r1.scripts.restore, func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
			p.answered(p.r1, c, true)
			rest()
			return run(ctx, cmd)
		})
		beaten(p.T, p.r1)
		p.nothingHeld("after it")
	})
}

// TestWhatRedisHasGrantedUnheardIsGivenBack: a claim whose turn is not answered, and that may
// not go without Redis, holds nothing there once Redis is found; one that may is in flight.
func TestWhatRedisHasGrantedUnheardIsGivenBack(t *testing.T) {
	for _, aside := range []bool{false, true} {
		inPair(t, func(p *pair) {
			if aside {
				p.spent(p.r1, 1, 20, true)
				p.beat(p.r1)
			}
			for range 2 { // it may come again
				p.seam.once(p.r1.scripts.batch, unanswered)
				c := p.claim(1)
				if p.asked(p.r1, c) != aside {
					p.Fatal("granted: ", !aside)
				}
				p.r1.reconnect(p.Context())
				want := 0
				if aside {
					want = 1
				}
				if list, err := p.r2.Accounts(p.Context(), 1); err != nil || list[0].InUse != want {
					p.Fatalf("%+v, %v", list, err)
				}
				if aside {
					p.answered(p.r1, c, true)
				}
			}
		})
	}
}

// TestWhatEndsWhileItIsRenewedKeepsNoPlace: an answer that ends while its permit's renewal is on
// its way, whose place the renewal takes up again.
func TestWhatEndsWhileItIsRenewedKeepsNoPlace(t *testing.T) {
	inPair(t, func(p *pair) {
		if err := p.r1.scripts.renew.Load(p.Context(), p.r1.Client).Err(); err != nil {
			p.Fatal(err)
		}
		limiter := limits.NewLimiter(p.r1)
		ctx, stop := context.WithCancel(p.Context())
		var running sync.WaitGroup
		running.Go(func() { limiter.Run(ctx) })
		permit, err := limiter.Acquire(ctx, limits.Claim{Operation: "repos/get", Resource: policy.Core, Points: 1}, policy.Caller{Account: "a", Kind: policy.User}, time.Now())
		if err != nil {
			p.Fatal(err)
		}
		if err := limiter.Settle(ctx, *permit, plain(limits.NotLimited)); err != nil {
			p.Fatal(err)
		}
		p.beat(p.r1) // others know of the account then
		p.seam.once(p.r1.scripts.renew, func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
			if err := limiter.Release(ctx, *permit, false); err != nil {
				p.Error(err)
			}
			return run(ctx, cmd)
		})
		time.Sleep(3 * time.Second)
		if list, err := p.r2.Accounts(p.Context(), 1); err != nil || list[0].InUse != 0 {
			p.Errorf("%+v, %v; want nothing in flight", list, err)
		}
		stop()
		running.Wait()
	})
}

// TestWhatIsGrantedAloneMeanwhileIsInFlight though a turn is on its way that tells that it is
// not wanted.
func TestWhatIsGrantedAloneMeanwhileIsInFlight(t *testing.T) {
	inPair(t, func(p *pair) {
		p.spent(p.r1, 1, 20, true)
		p.beat(p.r1)
		c, other := p.claim(1), p.claim(1)
		p.r1.returnUnwanted(p.r1.accounts["a"], &c)
		gate := make(chan struct{})
		p.seam.once(p.r1.scripts.batch, func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
			<-gate
			return run(ctx, cmd)
		})
		var asking sync.WaitGroup
		asking.Go(func() { p.asked(p.r1, other) })
		synctest.Wait()
		p.cutOff(p.r1)
		if !p.asked(p.r1, c) {
			p.Fatal("refused")
		}
		close(gate)
		asking.Wait()
		p.r1.reconnect(p.Context())
		if list, err := p.r2.Accounts(p.Context(), 1); err != nil || list[0].InUse != 2 {
			p.Errorf("%+v, %v; want 2 in flight", list, err)
		}
	})
}
