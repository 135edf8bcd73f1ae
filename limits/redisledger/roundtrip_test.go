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

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// countBatches counts the batches that the first replica sends to Redis from now on, and delays outcomes as in production.
// If hold is not nil, hold runs before each batch.
func (p *pair) countBatches(hold func()) *atomic.Int64 {
	batches := new(atomic.Int64)
	p.hook.changeAll(func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
		if cmd.Name() == "evalsha" && cmd.Args()[1] == p.r1.scripts.roundTrip.Hash() {
			batches.Add(1)
			if hold != nil {
				hold()
			}
		}
		return run(ctx, cmd)
	})
	p.r1.flushDelay = flushDelay
	return batches
}

// Each request needs one batch, because the batch of its claim also sends the previous settlement. The last settlement
// has a separate batch.
func TestOutcomesAreSentWithClaims(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		batches := p.countBatches(nil)
		for i := range uint64(10) {
			c := p.mustAdmit(p.r1, create(i+1), "in sequence")
			p.settle(p.r1, c, plain(policy.NotLimited))
			p.release(p.r1, c, false)
		}
		p.want("batches of 10 requests", int(batches.Load()), 10)
		waitForFlush()
		p.r1.background.Wait()
		p.want("permits in use", p.r1.onlyAccount(p.T).InUse, 0)
		p.want("batches at the end", int(batches.Load()), 11)
	})
}

// Redis removes the account of a token without a success after two minutes. The scripts renew this time at most once a
// minute, so the replica must not take a removal in the last minute for a loss of data.
func TestRemovedAccountIsNotLost(t *testing.T) {
	for _, last := range []time.Duration{0, 59 * time.Second} { // the last claim before the removal
		t.Run(last.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &pair{T: t, r1: miniredisLedger(t, defaultRules()).(*Ledger)}
				began := time.Now()
				for i, at := range []time.Duration{0, last, refusedTime} {
					time.Sleep(time.Until(began.Add(at)))
					p.mustAdmit(p.r1, create(uint64(i+1)), at.String())
				}
			})
		})
	}
}

// As soon as Settle returns for a limit error, other replicas refuse claims.
func TestLimitErrorIsSentImmediately(t *testing.T) {
	for _, limited := range []policy.LimitKind{policy.LimitPrimary, policy.LimitSecondary} {
		withTwoReplicas(t, func(p *pair) {
			p.r1.flushDelay = flushDelay
			p.settle(p.r1, p.mustAdmit(p.r1, create(1), "at the start"), plain(limited))
			d := p.decide(p.r2, create(2))
			failIf(p, d.Granted || d.Reason == limits.Concurrency, "limit error %v: got %+v; want a refusal", limited, d)
		})
	}
}

// Claims that arrive during a batch share the next batches. Each claim gets its own decision.
func TestConcurrentClaimsShareBatches(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.settleAnswered(p.r1, p.mustAdmit(p.r1, create(1), "at the start"), true)
		gate := make(chan struct{})
		batches := p.countBatches(func() { <-gate })
		var callers sync.WaitGroup
		var granted, refused atomic.Int64
		const claims = 150 // more than the number of concurrency slots
		for i := range uint64(claims) {
			callers.Go(func() {
				claim := create(i + 2)
				claim.Operation = fmt.Sprint("op", i%3)
				claim.CreatesContent, claim.Points = false, 1
				switch d := p.r1.Admit(p.Context(), claim); {
				case d.Granted:
					granted.Add(1)
				case d.Reason == limits.Concurrency:
					refused.Add(1)
				default:
					p.Errorf("got %+v, want a permit or a refusal because of concurrency", d)
				}
			})
		}
		synctest.Wait() // the first batch is running, with one claim
		close(gate)
		callers.Wait()
		most := int(p.r1.rules.Load().Usable(int64(p.r1.rules.Load().Concurrent)))
		p.want("granted", int(granted.Load()), most)
		p.want("refused", int(refused.Load()), claims-most)
		p.want("full batches", int(batches.Load()), 1+(claims-1+batchMax-1)/batchMax)
		p.r1.background.Wait()
	})
}

// If a batch fails because Redis is lost, the claims that wait for later batches are refused without a call.
func TestWaitingClaimsFailWithTheirBatch(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		batches := p.countBatches(func() { time.Sleep(time.Second) }) // longer than the deadline
		p.r1.timeout = 50 * time.Millisecond
		began := time.Now()
		var callers sync.WaitGroup
		for i := range uint64(200) {
			callers.Go(func() {
				d := p.r1.Admit(p.Context(), create(i+1))
				failIf(p, d.Granted || d.Reason != Store, "got %+v, want a refusal because of the store", d)
			})
		}
		callers.Wait()
		p.want("batches", int(batches.Load()), 1)
		took := time.Since(began)
		failIf(p, took > 1100*time.Millisecond, "the refusals took %v, want 1 s", took)
		p.r1.background.Wait()
	})
}

// withFlushDelay runs a test with two replicas. The first replica delays its settlements as in production.
func withFlushDelay(t *testing.T, run func(p *pair)) {
	withTwoReplicas(t, func(p *pair) {
		p.spend(p.r1, 1, 1, true)
		p.r2.account("a", policy.User) // so that Accounts lists it
		p.r1.flushDelay = flushDelay
		defer p.r1.background.Wait()
		run(p)
	})
}

// waitForFlush waits until the ledger has sent delayed settlements.
func waitForFlush() { time.Sleep(2 * flushDelay) }

func TestOpenPermitsAreRestored(t *testing.T) {
	withFlushDelay(t, func(p *pair) {
		used := []limits.Claim{p.claim(1), p.claim(1)}
		for _, c := range used {
			p.mustAdmit(p.r1, c, "before the loss")
		}
		synctest.Wait()
		p.loseData(p.r1)
		waitForFlush()
		p.want("permits in use", p.r2.onlyAccount(p.T).InUse, 2)
		for _, c := range used {
			p.settleAnswered(p.r1, c, true)
		}
		waitForFlush()
		a := p.r2.onlyAccount(p.T)
		p.want("permits in use at the end", a.InUse, 0)
		for _, b := range a.Budgets {
			p.want("held at the end: "+b.Resource, b.Held, 0)
		}
	})
}

// A repeated settlement changes nothing. A repeated release and a settlement after the end of the permit also change
// nothing.
func TestRepeatedSettlementChangesNothing(t *testing.T) {
	withFlushDelay(t, func(p *pair) {
		c, late := p.claim(1), p.claim(1)
		p.mustAdmit(p.r1, c, "at the start")
		p.mustAdmit(p.r1, late, "at the start")
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
		release := func() { p.release(p.r1, c, false) }
		for _, step := range []struct {
			name          string
			first, repeat func()
			inUse         string // after the first call
		}{
			{"settlement", func() { p.settleAnswered(p.r1, c, false) }, func() { p.settleAnswered(p.r1, c, false) }, "2 "},
			{"release", release, release, "1 "},
			{"settlement after the release", func() {}, func() { p.settleAnswered(p.r1, c, true) }, "1 "},
			{"late settlement", func() { time.Sleep(permitTime) }, func() { p.settle(p.r1, late, limits.Outcome{}) }, ""},
		} {
			step.first()
			before := state()
			failIf(p, !strings.HasPrefix(before, step.inUse), "%s: got %s, want %spermits in use", step.name, before, step.inUse)
			step.repeat()
			testservers.Equal(p, fmt.Sprintf("repeated %s", step.name), state(), before)
		}
	})
}
