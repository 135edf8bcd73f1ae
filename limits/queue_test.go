package limits

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirgate/weir/policy"
)

// backlog keeps a number of requests of one client queued until the harness stops. takes is the duration of each
// request. The result counts the grants.
func (o *harness) backlog(caller policy.Caller, depth int, takes time.Duration) *atomic.Int64 {
	granted := new(atomic.Int64)
	for range depth {
		o.running.Go(func() {
			for o.ctx.Err() == nil {
				p, err := o.acquire(core("op"), caller, time.Hour)
				if err != nil {
					return
				}
				granted.Add(1)
				time.Sleep(takes)
				o.answer(p)
			}
		})
	}
	return granted
}

func TestQueueSharesByWeight(t *testing.T) {
	inBubble(t, slotsOnly(10), func(o *harness) {
		o.warmUp("op")
		var served [11]*atomic.Int64
		for weight := 1; weight <= 10; weight++ {
			caller := user(fmt.Sprint("client ", weight))
			caller.Share = weight
			served[weight] = o.backlog(caller, 12, 100*time.Millisecond)
		}
		time.Sleep(time.Second) // until all requests wait
		for _, n := range served[1:] {
			n.Store(0)
		}
		time.Sleep(time.Minute)
		o.stop()
		total := int64(0)
		for _, n := range served[1:] {
			total += n.Load()
		}
		if total < 5900 { // ten slots, ten requests per second each
			t.Errorf("%d requests in a minute, want about 6000", total)
		}
		for weight, n := range served[1:] {
			fair := float64(total*int64(weight+1)) / 55
			diff := float64(n.Load()) - fair
			failIf(t, max(diff, -diff) > 0.05*fair, "weight %d: got %d requests, want about %.0f", weight+1, n.Load(), fair)
		}
	})
}

func TestBatchRequestsDoNotDelayInteractiveOnes(t *testing.T) {
	inBubble(t, slotsOnly(1), func(o *harness) {
		o.warmUp("op")
		const takes = 100 * time.Millisecond
		o.backlog(withPriority("nightly", policy.Batch), 50, takes)
		var worst time.Duration
		for range 100 {
			time.Sleep(257 * time.Millisecond)
			began := time.Now()
			p, err := o.acquire(core("op"), withPriority("interactive", policy.Interactive), time.Minute)
			noError(t, err)
			worst = max(worst, time.Since(began))
			time.Sleep(takes)
			o.answer(p)
		}
		failIf(t, worst > takes, "waited %v, want at most one batch request", worst)
	})
}

func TestBatchRequestsAreNotStarved(t *testing.T) {
	inBubble(t, slotsOnly(1), func(o *harness) {
		o.warmUp("op")
		interactive := o.backlog(withPriority("interactive", policy.Interactive), 5, 50*time.Millisecond)
		batch := o.backlog(withPriority("batch", policy.Batch), 5, 50*time.Millisecond)
		time.Sleep(100 * time.Second)
		o.stop()
		n, all := batch.Load(), batch.Load()+interactive.Load()
		failIf(t, n < all/floorEvery-1 || n > all/floorEvery+1, "%d of %d requests were batch, want one in 20", n, all)
	})
}

func TestClaimsWithSeveralWritesDelayOnlyClaimsThatNeedAsMany(t *testing.T) {
	inBubble(t, policy.DefaultLimits(), func(o *harness) {
		o.ledger.Configure(Rules{Limits: policy.DefaultLimits(), Writes: map[string]policy.ClientWrites{"bot": {Client: policy.WriteLimits{PerMinute: 5}}}})
		send := func(writes int, wait time.Duration) (time.Duration, error) {
			c, began := core("op"), time.Now()
			c.Writes = writes
			p, err := o.acquire(c, user("bot"), wait)
			if err == nil {
				o.answer(p)
			}
			return time.Since(began), err
		}
		if _, err := send(3, 0); err != nil {
			o.Fatal(err)
		}
		o.running.Go(func() {
			took, err := send(3, 2*time.Minute)
			failIf(t, err != nil || took != time.Minute, "three more writes: %v after %v, want a permit after a minute", err, took)
		})
		time.Sleep(time.Second)
		for _, c := range []struct {
			writes int
			fits   bool
		}{{2, true}, {6, false}, {7, false}} {
			took, err := send(c.writes, 4*time.Minute)
			_, tooMany := errors.AsType[*WritesError](err)
			failIf(t, took != 0 || tooMany == c.fits || (err == nil) != c.fits, "%d writes: %v after %v", c.writes, err, took)
		}
		time.Sleep(2 * time.Minute)
	})
}

func TestWaitingClaimAboveALoweredLimitOfWritesGetsNoTime(t *testing.T) {
	inBubble(t, policy.DefaultLimits(), func(o *harness) {
		configure := func(perMinute int) {
			o.ledger.Configure(Rules{Limits: policy.DefaultLimits(), Writes: map[string]policy.ClientWrites{"bot": {Client: policy.WriteLimits{PerMinute: perMinute}}}})
		}
		configure(5)
		c := core("op")
		c.Writes = 4
		p, err := o.acquire(c, user("bot"), 0)
		noError(o, err)
		o.answer(p)
		o.running.Go(func() {
			_, err := o.acquire(c, user("bot"), 90*time.Second)
			tooMany, ok := errors.AsType[*WritesError](err)
			failIf(t, !ok || tooMany.Limit != 3, "got %v, want the error for more writes than the limit", err)
		})
		time.Sleep(time.Second)
		configure(3)
		time.Sleep(2 * time.Minute)
	})
}
