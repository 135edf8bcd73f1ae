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

// This includes permits that a running batch prefetches.
func TestLeaveReturnsPrefetchedPermits(t *testing.T) {
	for _, running := range []bool{false, true} {
		withPrefetch(t, func(p *pair, c *batchCounter) {
			p.requestUntilPrefetched()
			used := p.claim(1)
			if !p.admit(p.r1, used) {
				p.Fatal("refused")
			}
			synctest.Wait()
			gate := make(chan struct{})
			if running {
				c.hold = func() { <-gate }
				for p.prefetched() > 0 {
					next := p.claim(1)
					p.admit(p.r1, next)
					p.settleAnswered(p.r1, next, true)
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
			if n := p.inUse(); n != 1 {
				p.Errorf("running batch %v: %d permits in use, want 1", running, n)
			}
			p.settleAnswered(p.r1, used, true)
			p.expectNothingHeld("after the last settlement")
		})
	}
}

// Unused permits and permits of a batch without a reply cost nothing, and offline decisions do not count them.
func TestReconnectReturnsPrefetchedPermits(t *testing.T) {
	for name, lose := range map[string]func(p *pair){
		"lost connection": func(p *pair) { p.disconnect(p.r1) },
		"lost reply": func(p *pair) {
			for p.prefetched() > 1 {
				c := p.claim(1)
				p.admit(p.r1, c)
				p.settleAnswered(p.r1, c, true)
			}
			p.hook.once(p.r1.scripts.batch, loseReply)
			c := p.claim(1)
			c.Operation = "users/get"
			p.admit(p.r1, c) // Redis grants the claim, but the reply is lost
		},
	} {
		withPrefetch(t, func(p *pair, _ *batchCounter) {
			p.requestUntilPrefetched()
			lose(p)
			before := p.inUse()
			time.Sleep(2 * prefetchTime)
			p.r1.mu.Lock()
			if n := p.r1.accounts["a"].unreported("core"); n > 0 {
				p.Errorf("%s: %d permits count as sent, want 0", name, n)
			}
			p.r1.mu.Unlock()
			p.r1.reconnect(p.Context())
			if p.r1.isLost() {
				p.Fatal("the ledger did not reconnect")
			}
			if n := p.inUse(); n > 1 || n >= before {
				p.Errorf("%s: %d permits in use, %d before", name, n, before)
			}
		})
	}
}

func TestUsedPrefetchedPermitsAreRestored(t *testing.T) {
	withPrefetch(t, func(p *pair, _ *batchCounter) {
		p.requestUntilPrefetched()
		used := []limits.Claim{p.claim(1), p.claim(1)}
		for _, c := range used {
			p.admit(p.r1, c)
		}
		synctest.Wait()
		if err := p.r2.Client.FlushAll(p.Context()).Err(); err != nil {
			p.Fatal(err)
		}
		reconcileAll(p.T, p.r1)
		waitForReturns()
		if n := p.inUse(); n != 2 {
			p.Errorf("%d permits in use, want 2", n)
		}
		for _, c := range used {
			p.settleAnswered(p.r1, c, true)
		}
		waitForReturns()
		p.expectNothingHeld("at the end")
	})
}

// The renewal takes the prefetched permit again, and the limiter gives it back by the ID of its claim.
func TestPermitRenewedAfterItsEndIsReturned(t *testing.T) {
	withPrefetch(t, func(p *pair, _ *batchCounter) {
		p.requestUntilPrefetched()
		c := p.claim(1)
		p.admit(p.r1, c)
		synctest.Wait()
		p.hook.once(p.r1.scripts.renew, func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
			p.settleAnswered(p.r1, c, true)
			if err := p.r1.flush(ctx, p.r1.accounts["a"], false); err != nil {
				p.Error(err)
			}
			return run(ctx, cmd)
		})
		if err := p.r1.Renew(p.Context(), []limits.OpenPermit{{Permit: limits.Permit{Claim: c}, Elapsed: time.Second}}); err != nil {
			p.Fatal(err)
		}
		waitForReturns()
		if n := p.inUse(); n != 1 {
			p.Errorf("%d permits in use, want 1 after the renewal", n)
		}
		p.settle(c, limits.Outcome{})
		waitForReturns()
		p.expectNothingHeld("after the return")
	})
}

// The reply to the settlement arrives after the renewal.
func TestPermitRenewedBeforeItsSettlementIsConfirmedIsReturned(t *testing.T) {
	withPrefetch(t, func(p *pair, _ *batchCounter) {
		p.requestUntilPrefetched()
		waitForReturns()
		p.requests(2)
		c := p.claim(1)
		p.admit(p.r1, c)
		synctest.Wait()
		gate := make(chan struct{})
		p.hook.once(p.r1.scripts.batch, func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
			err := run(ctx, cmd)
			<-gate
			return err
		})
		p.settleAnswered(p.r1, c, true)
		time.Sleep(flushDelay)
		synctest.Wait()
		if err := p.r1.Renew(p.Context(), []limits.OpenPermit{{Permit: limits.Permit{Claim: c}, Elapsed: time.Second}}); err != nil {
			p.Fatal(err)
		}
		close(gate)
		synctest.Wait()
		p.settle(c, limits.Outcome{})
		waitForReturns()
		p.expectNothingHeld("after the return")
		p.heartbeat(p.r1)
		if n := len(p.r1.accounts["a"].aliases); n != 0 {
			p.Errorf("%d aliases left", n)
		}
	})
}

// The settlement reaches Redis while the restore is running.
func TestEndedPermitIsNotRestored(t *testing.T) {
	withPrefetch(t, func(p *pair, _ *batchCounter) {
		if err := p.r1.scripts.restore.Load(p.Context(), p.r1.Client).Err(); err != nil {
			p.Fatal(err)
		}
		p.requestUntilPrefetched()
		c := p.claim(1)
		p.admit(p.r1, c)
		p.hook.once(p.r1.scripts.restore, func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
			p.settleAnswered(p.r1, c, true)
			waitForReturns()
			return run(ctx, cmd)
		})
		reconcileAll(p.T, p.r1)
		p.expectNothingHeld("after the restore")
	})
}

// After a lost reply, a claim that is refused offline holds nothing in Redis; a claim that is granted offline is in use.
func TestPermitWithoutAReplyIsReturned(t *testing.T) {
	for _, hasLease := range []bool{false, true} {
		withTwoReplicas(t, func(p *pair) {
			if hasLease {
				p.spend(p.r1, 1, 20, true)
				p.heartbeat(p.r1)
			}
			for range 2 { // also the second time
				p.hook.once(p.r1.scripts.batch, loseReply)
				c := p.claim(1)
				if p.admit(p.r1, c) != hasLease {
					p.Fatalf("granted %v, want %v", !hasLease, hasLease)
				}
				p.r1.reconnect(p.Context())
				want := 0
				if hasLease {
					want = 1
				}
				if list, err := p.r2.Accounts(p.Context(), 1); err != nil || list[0].InUse != want {
					p.Fatalf("%+v, %v", list, err)
				}
				if hasLease {
					p.settleAnswered(p.r1, c, true)
				}
			}
		})
	}
}

// The renewal takes the place again, and the limiter must give it back.
func TestPermitReleasedDuringItsRenewalKeepsNoPlace(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
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
		p.heartbeat(p.r1) // enters the account into the index
		p.hook.once(p.r1.scripts.renew, func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
			if err := limiter.Release(ctx, *permit, false); err != nil {
				p.Error(err)
			}
			return run(ctx, cmd)
		})
		time.Sleep(3 * time.Second)
		if list, err := p.r2.Accounts(p.Context(), 1); err != nil || list[0].InUse != 0 {
			p.Errorf("%+v, %v; want no permit in use", list, err)
		}
		stop()
		running.Wait()
	})
}

// A batch gives back the permit of a claim that was refused, and the same claim is granted offline during the batch.
func TestOfflinePermitIsKeptDuringABatchThatReturnsIt(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.spend(p.r1, 1, 20, true)
		p.heartbeat(p.r1)
		c, other := p.claim(1), p.claim(1)
		p.r1.returnUnknown(p.r1.accounts["a"], &c)
		gate := make(chan struct{})
		p.hook.once(p.r1.scripts.batch, func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
			<-gate
			return run(ctx, cmd)
		})
		var callers sync.WaitGroup
		callers.Go(func() { p.admit(p.r1, other) })
		synctest.Wait()
		p.disconnect(p.r1)
		if !p.admit(p.r1, c) {
			p.Fatal("refused")
		}
		close(gate)
		callers.Wait()
		p.r1.reconnect(p.Context())
		if list, err := p.r2.Accounts(p.Context(), 1); err != nil || list[0].InUse != 2 {
			p.Errorf("%+v, %v; want 2 permits in use", list, err)
		}
	})
}
