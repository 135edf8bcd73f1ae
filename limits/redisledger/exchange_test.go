package redisledger

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// batchCounter counts the batches that are sent to Redis. If hold is set, hold runs before each batch.
type batchCounter struct {
	script  *redis.Script
	batches atomic.Int64
	hold    func()
}

func (*batchCounter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*batchCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c *batchCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" && cmd.Args()[1] == c.script.Hash() {
			c.batches.Add(1)
			if c.hold != nil {
				c.hold()
			}
		}
		return next(ctx, cmd)
	}
}

// withBatchCounter runs a test with a ledger that counts its batches and delays outcomes.
func withBatchCounter(t *testing.T, run func(t *testing.T, l *Ledger, c *batchCounter)) {
	inBubble(t, func(t *testing.T, l *Ledger, _ *atomic.Int64) {
		if err := l.scripts.exchange.Load(t.Context(), l.Client).Err(); err != nil {
			t.Fatal(err)
		}
		c := &batchCounter{script: l.scripts.exchange}
		l.Client.(*redis.Client).AddHook(c)
		l.flushDelay = flushDelay
		defer l.background.Wait()
		run(t, l, c)
	})
}

// Each request needs one batch, because the batch of its claim also sends the previous settlement. The last settlement
// has a separate batch.
func TestOutcomesAreSentWithClaims(t *testing.T) {
	withBatchCounter(t, func(t *testing.T, l *Ledger, c *batchCounter) {
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
		if n := c.batches.Load(); n != 10 {
			t.Errorf("10 requests needed %d batches, want 10", n)
		}
		time.Sleep(2 * flushDelay)
		l.background.Wait()
		if a := l.onlyAccount(t); a.InUse != 0 || c.batches.Load() != 11 {
			t.Errorf("%d permits in use after %d batches, want 0 after 11", a.InUse, c.batches.Load())
		}
	})
}

// Redis removes the account of a token without a success after two minutes. The scripts renew this time at most once a
// minute, so the replica must not take a removal in the last minute for a loss of data.
func TestRemovedAccountIsNotLost(t *testing.T) {
	for _, last := range []time.Duration{0, 59 * time.Second} { // the last claim before the removal
		t.Run(last.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := open(t, miniredisClient(t), "r1", limits.Rules{Limits: policy.DefaultLimits()}, packer+redisClock)
				began := time.Now()
				for i, at := range []time.Duration{0, last, refusedTime} {
					time.Sleep(time.Until(began.Add(at)))
					if d, err := l.Admit(t.Context(), create(uint64(i+1))); err != nil || !d.Granted {
						t.Errorf("claim after %v: got %+v, %v", at, d, err)
					}
				}
			})
		})
	}
}

// As soon as Settle returns for a limit error, other replicas refuse claims.
func TestLimitErrorIsSentImmediately(t *testing.T) {
	for _, limited := range []limits.LimitKind{limits.PrimaryLimit, limits.SecondaryLimit} {
		withTwoReplicas(t, func(p *pair) {
			p.r1.flushDelay = flushDelay
			if d, err := p.r1.Admit(p.Context(), create(1)); err != nil || !d.Granted {
				p.Fatal(d, err)
			}
			if err := p.r1.Settle(p.Context(), limits.Permit{Claim: create(1)}, plain(limited)); err != nil {
				p.Fatal(err)
			}
			if d, err := p.r2.Admit(p.Context(), create(2)); err != nil || d.Granted || d.Reason == limits.Concurrency {
				p.Errorf("limit error %v: got %+v, %v; want a refusal", limited, d, err)
			}
		})
	}
}

// Claims that arrive during a batch share the next batches. Each claim gets its own decision.
func TestConcurrentClaimsShareBatches(t *testing.T) {
	withBatchCounter(t, func(t *testing.T, l *Ledger, c *batchCounter) {
		if d, err := l.Admit(t.Context(), create(1)); err != nil || !d.Granted {
			t.Fatal(d, err)
		}
		answered := limits.Outcome{Sent: true, Answered: true, Ended: true, Rate: limits.Rate{Limit: 5000, Used: 1, Reset: time.Now().Add(time.Hour)}}
		if err := l.Settle(t.Context(), limits.Permit{Claim: create(1)}, answered); err != nil {
			t.Fatal(err)
		}
		l.background.Wait()
		c.batches.Store(0)
		gate := make(chan struct{})
		c.hold = func() { <-gate }
		var callers sync.WaitGroup
		var granted, refused atomic.Int64
		const claims = 150 // more than the number of concurrency slots
		for i := range uint64(claims) {
			callers.Go(func() {
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
					t.Errorf("got %+v, want a permit or a refusal because of concurrency", d)
				}
			})
		}
		synctest.Wait() // the first batch is running, with one claim
		close(gate)
		callers.Wait()
		most := l.rules.Load().Usable(int64(l.rules.Load().Concurrent))
		if granted.Load() != most || refused.Load() != claims-most {
			t.Errorf("%d granted and %d refused, want %d granted", granted.Load(), refused.Load(), most)
		}
		if n := c.batches.Load(); n != 1+(claims-1+batchMax-1)/batchMax {
			t.Errorf("got %d batches, want full batches", n)
		}
	})
}

// If a batch fails because Redis is lost, the claims that wait for later batches are refused without a call.
func TestWaitingClaimsFailWithTheirBatch(t *testing.T) {
	withBatchCounter(t, func(t *testing.T, l *Ledger, c *batchCounter) {
		l.timeout = 50 * time.Millisecond
		c.hold = func() { time.Sleep(time.Second) } // longer than the deadline
		began := time.Now()
		var callers sync.WaitGroup
		for i := range uint64(200) {
			callers.Go(func() {
				if d, err := l.Admit(t.Context(), create(i+1)); err != nil || d.Granted || d.Reason != Store {
					t.Errorf("got %+v, %v; want a refusal because of the store", d, err)
				}
			})
		}
		callers.Wait()
		if n := c.batches.Load(); n != 1 || time.Since(began) > 1100*time.Millisecond {
			t.Errorf("got %d batches in %v, want 1 in 1 s", n, time.Since(began))
		}
	})
}

// withFlushDelay runs a test with two replicas. The first replica delays its settlements as in production.
func withFlushDelay(t *testing.T, run func(p *pair)) {
	withTwoReplicas(t, func(p *pair) {
		if err := p.r1.scripts.exchange.Load(p.Context(), p.r1.Client).Err(); err != nil {
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

// A repeated settlement changes nothing. A repeated release and a settlement after the end of the permit also change
// nothing.
func TestRepeatedSettlementChangesNothing(t *testing.T) {
	withFlushDelay(t, func(p *pair) {
		c, late := p.claim(1), p.claim(1)
		p.admit(p.r1, c)
		p.admit(p.r1, late)
		state := func() string {
			waitForFlush()
			p.heartbeat(p.r1) // sends expired permits
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
		time.Sleep(permitTime)
		before = state()
		p.settle(late, limits.Outcome{})
		if after := state(); after != before {
			p.Errorf("late settlement: got %s, want %s", after, before)
		}
	})
}
