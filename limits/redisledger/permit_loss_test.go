package redisledger

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// withFlushDelay runs a test with two replicas. The first replica delays its settlements as in production.
func withFlushDelay(t *testing.T, run func(p *pair)) {
	withTwoReplicas(t, func(p *pair) {
		if err := p.r1.scripts.renew.Load(p.Context(), p.r1.Client).Err(); err != nil {
			p.Fatal(err)
		}
		p.spend(p.r1, 1, 1, true)
		p.r2.account("a", policy.User) // so that Accounts lists it
		p.r1.flushDelay = flushDelay
		defer p.r1.background.Wait()
		run(p)
	})
}

// waitForFlush waits until the ledger has sent delayed settlements.
func waitForFlush() { time.Sleep(2 * flushDelay) }

// inUse returns the number of permits in use that the second replica reports.
func (p *pair) inUse() int { return p.r2.onlyAccount(p.T).InUse }

// expectNothingHeld fails the test if the account has permits in use or holds.
func (p *pair) expectNothingHeld(when string) {
	p.Helper()
	a := p.r2.onlyAccount(p.T)
	if a.InUse != 0 {
		p.Errorf("%s: %d permits in use, want 0", when, a.InUse)
	}
	for _, b := range a.Budgets {
		if b.Held != 0 {
			p.Errorf("%s: %+v, want nothing held", when, b)
		}
	}
}

// settle settles a claim of the first replica.
func (p *pair) settle(c limits.Claim, o limits.Outcome) {
	p.Helper()
	if err := p.r1.Settle(p.Context(), limits.Permit{Claim: c}, o); err != nil {
		p.Fatal(err)
	}
}

func TestOpenPermitsAreRestored(t *testing.T) {
	withFlushDelay(t, func(p *pair) {
		used := []limits.Claim{p.claim(1), p.claim(1)}
		for _, c := range used {
			p.admit(p.r1, c)
		}
		synctest.Wait()
		if err := p.r2.Client.FlushAll(p.Context()).Err(); err != nil {
			p.Fatal(err)
		}
		reconcileAll(p.T, p.r1)
		waitForFlush()
		if n := p.inUse(); n != 2 {
			p.Errorf("%d permits in use, want 2", n)
		}
		for _, c := range used {
			p.settleAnswered(p.r1, c, true)
		}
		waitForFlush()
		p.expectNothingHeld("at the end")
	})
}

// The renewal reserves again, and the limiter returns the permit.
func TestPermitRenewedAfterItsSettlementIsReturned(t *testing.T) {
	withFlushDelay(t, func(p *pair) {
		c := p.claim(1)
		p.admit(p.r1, c)
		synctest.Wait()
		p.hook.changeNext(p.r1.scripts.renew, func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
			p.settleAnswered(p.r1, c, true)
			if err := p.r1.flush(ctx, p.r1.accounts["a"], false); err != nil {
				p.Error(err)
			}
			return run(ctx, cmd)
		})
		if err := p.r1.Renew(p.Context(), []limits.OpenPermit{{Permit: limits.Permit{Claim: c}, Elapsed: time.Second}}); err != nil {
			p.Fatal(err)
		}
		waitForFlush()
		if n := p.inUse(); n != 1 {
			p.Errorf("%d permits in use, want 1 after the renewal", n)
		}
		p.settle(c, limits.Outcome{})
		waitForFlush()
		p.expectNothingHeld("after the return")
	})
}

// The reply to the settlement arrives after the renewal.
func TestPermitRenewedBeforeItsSettlementIsConfirmedIsReturned(t *testing.T) {
	withFlushDelay(t, func(p *pair) {
		c := p.claim(1)
		p.admit(p.r1, c)
		synctest.Wait()
		gate := make(chan struct{})
		p.hook.changeNext(p.r1.scripts.batch, func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
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
		waitForFlush()
		p.expectNothingHeld("after the return")
	})
}

// The settlement reaches Redis while the restore is running.
func TestEndedPermitIsNotRestored(t *testing.T) {
	withFlushDelay(t, func(p *pair) {
		if err := p.r1.scripts.restore.Load(p.Context(), p.r1.Client).Err(); err != nil {
			p.Fatal(err)
		}
		c := p.claim(1)
		p.admit(p.r1, c)
		p.hook.changeNext(p.r1.scripts.restore, func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
			p.settleAnswered(p.r1, c, true)
			waitForFlush()
			return run(ctx, cmd)
		})
		reconcileAll(p.T, p.r1)
		p.expectNothingHeld("after the restore")
	})
}

// After a lost reply, a claim that is refused offline holds nothing in Redis. A claim that is granted offline is in
// use.
func TestPermitWithoutAReplyIsReturned(t *testing.T) {
	for _, hasLease := range []bool{false, true} {
		withTwoReplicas(t, func(p *pair) {
			if hasLease {
				p.spend(p.r1, 1, 20, true)
				p.heartbeat(p.r1)
			}
			for range 2 {
				p.hook.changeNext(p.r1.scripts.batch, loseReply)
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
					p.Fatalf("got %+v, %v; want %d permits in use", list, err, want)
				}
				if hasLease {
					p.settleAnswered(p.r1, c, true)
				}
			}
		})
	}
}

// The renewal occupies a slot again, and the limiter must release it.
func TestPermitReleasedDuringItsRenewalKeepsNoSlot(t *testing.T) {
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
		p.heartbeat(p.r1) // adds the account to the index
		p.hook.changeNext(p.r1.scripts.renew, func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
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

// A batch returns the permit of a refused claim, and the same claim is granted offline during the batch.
func TestOfflinePermitIsKeptDuringABatchThatReturnsIt(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.spend(p.r1, 1, 20, true)
		p.heartbeat(p.r1)
		c, other := p.claim(1), p.claim(1)
		p.r1.returnUnknown(p.r1.accounts["a"], c)
		gate := make(chan struct{})
		p.hook.changeNext(p.r1.scripts.batch, func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
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

// A repeated settlement changes nothing. A repeated release and a settlement after the end of the permit also change
// nothing.
func TestRepeatedSettlementChangesNothing(t *testing.T) {
	withFlushDelay(t, func(p *pair) {
		c, late := p.claim(1), p.claim(1)
		p.admit(p.r1, c)
		p.admit(p.r1, late)
		state := func() string {
			waitForFlush()
			a := p.r2.onlyAccount(p.T)
			text := fmt.Sprint(a.InUse)
			for _, b := range a.Budgets {
				text += fmt.Sprint(" ", b.Resource, " ", b.Used, " ", b.Held)
			}
			return text
		}
		release := func() {
			if err := p.r1.Release(p.Context(), limits.Permit{Claim: c}, false); err != nil {
				p.Fatal(err)
			}
		}
		p.settleAnswered(p.r1, c, false)
		before := state()
		if !strings.HasPrefix(before, "2 ") {
			p.Error("want two permits in use:", before)
		}
		p.settleAnswered(p.r1, c, false)
		if after := state(); after != before {
			p.Errorf("repeated settlement: got %s, want %s", after, before)
		}
		release()
		before = state()
		if !strings.HasPrefix(before, "1 ") {
			p.Error("want one permit in use:", before)
		}
		release()
		p.settleAnswered(p.r1, c, true)
		if after := state(); after != before {
			p.Errorf("repeated release: got %s, want %s", after, before)
		}
		time.Sleep(permitLife)
		before = state()
		p.settle(late, limits.Outcome{})
		if after := state(); after != before {
			p.Errorf("late settlement: got %s, want %s", after, before)
		}
	})
}
