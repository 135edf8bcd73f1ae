package redisledger

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// The first replica gets the limit error. The second replica restores the cool-down in an empty Redis.
func TestCooldownIsRestoredByAnotherReplica(t *testing.T) {
	for _, offset := range []time.Duration{0, 2 * time.Minute, -2 * time.Minute} {
		subtest(t, "clock offset "+offset.String(), func(p *pair) {
			p.clockOffset.Store(offset.Microseconds())
			c := p.mustAdmit(p.r1, create(1), "at the start")
			p.settle(p.r1, c, limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: policy.LimitSecondary})
			before := p.decide(p.r2, create(2))
			stopIf(p, before.Reason != limits.Cooldown, "%v", before)
			p.loseData(p.r2)
			time.Sleep(10 * time.Second) // longer than an account waits for restores
			d := p.decide(p.r2, create(3))
			failIf(p, d.Reason != limits.Cooldown || (before.Wait-d.Wait-10*time.Second).Abs() > time.Second, "after the restore: got %+v, want %+v", d, before)
		})
	}
}

// Two replicas get limit errors of one cause before either knows the error of the other. The longer cool-down applies, and is not
// doubled, even if the reply about the first error is lost.
func TestCooldownContainsTheErrorsOfAllReplicas(t *testing.T) {
	for _, lost := range []bool{false, true} {
		withTwoReplicas(t, func(p *pair) {
			o := limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: policy.LimitSecondary}
			c1, c2 := p.mustAdmit(p.r1, p.claim(1), "at the start"), p.mustAdmit(p.r2, p.claim(1), "at the start")
			time.Sleep(100 * time.Millisecond)
			if o.RetryAfter = 10 * time.Second; lost {
				p.hook.changeNext(p.r1.scripts.roundTrip, loseReply)
			}
			_ = p.r1.Settle(p.Context(), limits.Permit{Claim: c1}, o)
			p.heartbeat(p.r1)
			o.RetryAfter = 100 * time.Second
			p.settle(p.r2, c2, o)
			for _, l := range p.both() {
				p.decide(l, p.claim(1)) // the next heartbeat then learns about the cool-down
				p.heartbeat(l)
				d := p.decide(l, p.claim(1))
				failIf(p, d.Reason != limits.Cooldown || d.Wait.Round(10*time.Second) != 100*time.Second, "lost reply: %v: %s: %+v; want a cool-down of 100 s", lost, l.Replica, d)
			}
		})
	}
}

// Many replicas get limit errors of one cause together. Each needs few round trips.
func TestCooldownOfManyReplicasNeedsFewCalls(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		claims := map[*Ledger]limits.Claim{}
		for i := range 30 {
			l := p.open(fmt.Sprint("replica ", i), defaultRules())
			p.settleAnswered(l, p.mustAdmit(l, p.claim(1), "at the start"), true) // ends the slow start
			claims[l] = p.mustAdmit(l, p.claim(1), "at the start")
		}
		var group sync.WaitGroup
		for l, c := range claims {
			group.Go(func() {
				o := limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: policy.LimitSecondary, RetryAfter: time.Minute}
				err := l.Settle(p.Context(), limits.Permit{Claim: c}, o)
				failIf(p, err != nil, "%s: %v", l.Replica, err)
			})
		}
		group.Wait()
	})
}

// Redis loses an account and gets an old copy of it back, which had more cool-downs than the lost account.
func TestCooldownIsNewerThanAnOldSnapshot(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		limit := func(l *Ledger, wait time.Duration) {
			p.settle(l, p.mustAdmit(l, p.claim(1), "before the error"), limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: policy.LimitSecondary, RetryAfter: wait})
		}
		for range 3 {
			limit(p.r1, time.Second)
			time.Sleep(time.Minute)
		}
		key := p.r1.keysOf("a")[0]
		snapshot, err := p.r1.Client.Dump(p.Context(), key).Result()
		noError(p, err)
		p.empty()
		r3 := p.open("r3", defaultRules())
		time.Sleep(time.Minute)
		limit(r3, time.Hour)
		noError(p, r3.Client.RestoreReplace(p.Context(), key, 0, snapshot).Err())
		reconcileAll(p.T, r3)
		time.Sleep(time.Minute)
		d := p.decide(r3, p.claim(1))
		failIf(p, d.Reason != limits.Cooldown || d.Wait < 50*time.Minute, "%+v; want the rest of an hour", d)
	})
}

// The second replica refuses claims without a call, and has no lease any more.
func TestAnOpenedAccountIsOpenAtAllReplicas(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.settleAnswered(p.r2, p.mustAdmit(p.r2, p.claim(1), "at the start"), true)
		c := p.mustAdmit(p.r1, p.claim(1), "at the start")
		p.settle(p.r1, c, limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: policy.LimitSecondary, RetryAfter: time.Hour})
		for range 20 { // the leases are returned
			time.Sleep(10 * time.Second)
			p.heartbeat(p.r1, p.r2)
		}
		d := p.decide(p.r2, p.claim(1))
		stopIf(p, d.Reason != limits.Cooldown, "%v", d)
		noError(p, p.r1.Open(p.Context(), "a"))
		p.decide(p.r2, p.claim(1))
		p.heartbeat(p.r2)
		p.settleAnswered(p.r2, p.mustAdmit(p.r2, p.claim(1), "after the opening"), true)
	})
}

// The second replica has reported the wrong number, and a third one has learned it.
func TestAnOpenedWindowIsOpenAtAllReplicas(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		r3 := p.open("r3", defaultRules())
		replicas := []*Ledger{p.r1, p.r2, r3}
		reset := time.Now().Add(30 * time.Minute)
		report := func(used int) limits.Outcome {
			return answered(policy.Rate{Limit: 5000, Used: used, Reset: reset, Date: time.Now(), Resource: policy.Core})
		}
		c := p.mustAdmit(r3, p.claim(1), "at the start")
		p.settle(p.r2, p.mustAdmit(p.r2, p.claim(1), "at the start"), report(1_000_000))
		for range 2 {
			p.heartbeat(replicas...)
			for _, l := range replicas {
				d := p.decide(l, p.claim(1))
				stopIf(p, d.Reason != limits.Primary, "before the opening: %+v", d)
			}
		}
		time.Sleep(10 * time.Second)
		noError(p, p.r1.Open(p.Context(), "a"))
		p.settle(r3, c, report(1_000_000)) // of a request before the opening
		for _, l := range replicas {
			p.decide(l, p.claim(1))
			p.heartbeat(l)
		}
		for i, l := range replicas {
			time.Sleep(2 * time.Second)
			p.settle(l, p.mustAdmit(l, p.claim(1), "after the opening"), report(10+i))
		}
		p.heartbeat(replicas...)
		p.settle(p.r2, p.mustAdmit(p.r2, p.claim(1), "after a report"), report(5000))
		p.heartbeat(replicas...)
		for i, l := range replicas {
			d := p.decide(l, p.claim(1))
			failIf(p, d.Reason != limits.Primary || d.Wait < 29*time.Minute, "replica %d after the window is exhausted: %+v", i, d)
		}
	})
}

// A replica of an earlier version may have stored numbers that no answer of a script can contain.
func TestNumbersOutsideTheirRangeAreNotShared(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		c := p.mustAdmit(p.r1, p.claim(1), "at the start")
		key := p.r1.keysOf("a")[0]
		script := `local w = cmsgpack.pack({version = 1, over = 0, silent = 0, windows = 0, limit = 5000, reports = {{reset = ` +
			`9e15, max_offset = 0, min_offset = 0, limit = 5000, used = 1e14, responses = 3}}}) return redis.call('HSET', KEYS[1], 'w:core', w)`
		noError(p, p.r1.Client.Eval(p.Context(), script, []string{key}).Err())
		p.settleAnswered(p.r1, c, true)
		p.settleAnswered(p.r2, p.mustAdmit(p.r2, p.claim(1), "by another replica"), true)
		for _, l := range p.both() {
			_, err := l.Accounts(p.Context(), 10)
			failIf(p, err != nil, "%v", err)
		}
	})
}
