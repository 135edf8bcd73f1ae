package limits

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirgate/weir/policy"
)

// backlog keeps a client's requests queued until the office closes, each
// taking a while, and counts those that were answered.
func (o *office) backlog(wg *sync.WaitGroup, who policy.Caller, depth int, takes time.Duration, count func()) {
	for range depth {
		wg.Go(func() {
			for o.ctx.Err() == nil {
				p, err := o.acquire(core("op"), who, time.Hour)
				if err != nil {
					return
				}
				count()
				time.Sleep(takes)
				o.answered(p)
			}
		})
	}
}

func TestI17SharesFollowTheWeights(t *testing.T) {
	inOffice(t, wide(10), func(o *office) {
		o.warm("op")
		var wg sync.WaitGroup
		var mu sync.Mutex
		served := make([]int, 11)
		for weight := 1; weight <= 10; weight++ {
			who := user(fmt.Sprint("client ", weight))
			who.Share = weight
			o.backlog(&wg, who, 12, 100*time.Millisecond, func() {
				mu.Lock()
				served[weight]++
				mu.Unlock()
			})
		}
		time.Sleep(time.Second) // until all wait
		mu.Lock()
		clear(served)
		mu.Unlock()
		time.Sleep(time.Minute)
		o.close()
		wg.Wait()
		total := 0
		for _, n := range served {
			total += n
		}
		if total < 5900 { // ten at a time, ten a second each
			t.Errorf("%d requests in a minute", total)
		}
		for weight, n := range served {
			fair := float64(total*weight) / 55
			if diff := float64(n) - fair; max(diff, -diff) > 0.05*fair {
				t.Errorf("weight %d: %d requests, %.0f were fair", weight, n, fair)
			}
		}
	})
}

// TestTheRushEnds: those who have waited for the same are let go at a pace, but not for as long as
// more come than that.
func TestTheRushEnds(t *testing.T) {
	inOffice(t, wide(1000), func(o *office) {
		var wg sync.WaitGroup
		var served atomic.Int64
		const clients, takes = 100, 5 * time.Millisecond
		o.backlog(&wg, user(""), clients, takes, func() { served.Add(1) }) // nothing is known of the account: one goes, the others wait
		time.Sleep(500 * time.Millisecond)
		if n := served.Load(); n < paceRate/2 || n > paceRate/2+paceBurst+clients {
			t.Errorf("%d requests in the first half second", n)
		}
		time.Sleep(time.Second)
		served.Store(0)
		time.Sleep(time.Second)
		if n, want := served.Load(), int64(clients*time.Second/takes); n < want*9/10 {
			t.Errorf("%d requests in the last second, want about %d", n, want)
		}
		o.close()
		wg.Wait()
	})
}

func TestBatchCannotDelayWhoIsInAHurry(t *testing.T) {
	inOffice(t, wide(1), func(o *office) {
		o.warm("op")
		const takes = 100 * time.Millisecond
		var wg sync.WaitGroup
		batch := user("nightly")
		batch.Priority = policy.Batch
		o.backlog(&wg, batch, 50, takes, func() {})
		hurried := user("people")
		hurried.Priority = policy.Interactive
		var worst time.Duration
		for range 100 {
			time.Sleep(257 * time.Millisecond)
			began := time.Now()
			p, err := o.acquire(core("op"), hurried, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			worst = max(worst, time.Since(began))
			time.Sleep(takes)
			o.answered(p)
		}
		if worst > takes {
			t.Errorf("waited %v for a batch client's request", worst)
		}
		o.close()
		wg.Wait()
	})
}

func TestBatchIsNotStarved(t *testing.T) {
	inOffice(t, wide(1), func(o *office) {
		o.warm("op")
		var wg sync.WaitGroup
		var mu sync.Mutex
		served := map[policy.Priority]int{}
		for _, priority := range []policy.Priority{policy.Interactive, policy.Batch} {
			who := user(string(priority))
			who.Priority = priority
			o.backlog(&wg, who, 5, 50*time.Millisecond, func() {
				mu.Lock()
				served[priority]++
				mu.Unlock()
			})
		}
		time.Sleep(100 * time.Second)
		o.close()
		wg.Wait()
		if batch, all := served[policy.Batch], served[policy.Batch]+served[policy.Interactive]; batch < all/floorEvery-1 || batch > all/floorEvery+1 {
			t.Errorf("%d of %d requests were batch", batch, all)
		}
	})
}
