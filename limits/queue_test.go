package limits

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirgate/weir/policy"
)

// backlog keeps a number of requests of one client queued until the harness closes. takes is the duration of each
// request. Each grant calls count.
func (o *harness) backlog(wg *sync.WaitGroup, caller policy.Caller, depth int, takes time.Duration, count func()) {
	for range depth {
		wg.Go(func() {
			for o.ctx.Err() == nil {
				p, err := o.acquire(core("op"), caller, time.Hour)
				if err != nil {
					return
				}
				count()
				time.Sleep(takes)
				o.answer(p)
			}
		})
	}
}

func TestQueueSharesByWeight(t *testing.T) {
	inBubble(t, slotsOnly(10), func(o *harness) {
		o.warmUp("op")
		var wg sync.WaitGroup
		var mu sync.Mutex
		served := make([]int, 11)
		for weight := 1; weight <= 10; weight++ {
			caller := user(fmt.Sprint("client ", weight))
			caller.Share = weight
			o.backlog(&wg, caller, 12, 100*time.Millisecond, func() {
				mu.Lock()
				served[weight]++
				mu.Unlock()
			})
		}
		time.Sleep(time.Second) // until all requests wait
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
		if total < 5900 { // ten slots, ten requests per second each
			t.Errorf("%d requests in a minute, want about 6000", total)
		}
		for weight, n := range served {
			fair := float64(total*weight) / 55
			if diff := float64(n) - fair; max(diff, -diff) > 0.05*fair {
				t.Errorf("weight %d: got %d requests, want about %.0f", weight, n, fair)
			}
		}
	})
}

// Requests that waited for a window are paced for one second, even if more requests follow.
func TestPacingEndsAfterASecond(t *testing.T) {
	inBubble(t, slotsOnly(1000), func(o *harness) {
		var wg sync.WaitGroup
		var served atomic.Int64
		const clients, takes = 100, 5 * time.Millisecond
		o.backlog(&wg, user(""), clients, takes, func() { served.Add(1) }) // a new account grants three requests, and all other requests wait
		time.Sleep(500 * time.Millisecond)
		if n := served.Load(); n < paceRate/2 || n > paceRate/2+paceBurst+clients {
			t.Errorf("%d requests in the first half second, want about 500", n)
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

func TestBatchRequestsDoNotDelayInteractiveOnes(t *testing.T) {
	inBubble(t, slotsOnly(1), func(o *harness) {
		o.warmUp("op")
		const takes = 100 * time.Millisecond
		var wg sync.WaitGroup
		batch := user("nightly")
		batch.Priority = policy.Batch
		o.backlog(&wg, batch, 50, takes, func() {})
		interactive := user("interactive")
		interactive.Priority = policy.Interactive
		var worst time.Duration
		for range 100 {
			time.Sleep(257 * time.Millisecond)
			began := time.Now()
			p, err := o.acquire(core("op"), interactive, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			worst = max(worst, time.Since(began))
			time.Sleep(takes)
			o.answer(p)
		}
		if worst > takes {
			t.Errorf("waited %v, want at most one batch request", worst)
		}
		o.close()
		wg.Wait()
	})
}

func TestBatchRequestsAreNotStarved(t *testing.T) {
	inBubble(t, slotsOnly(1), func(o *harness) {
		o.warmUp("op")
		var wg sync.WaitGroup
		var mu sync.Mutex
		served := map[policy.Priority]int{}
		for _, priority := range []policy.Priority{policy.Interactive, policy.Batch} {
			caller := user(string(priority))
			caller.Priority = priority
			o.backlog(&wg, caller, 5, 50*time.Millisecond, func() {
				mu.Lock()
				served[priority]++
				mu.Unlock()
			})
		}
		time.Sleep(100 * time.Second)
		o.close()
		wg.Wait()
		if batch, all := served[policy.Batch], served[policy.Batch]+served[policy.Interactive]; batch < all/floorEvery-1 || batch > all/floorEvery+1 {
			t.Errorf("%d of %d requests were batch, want one in 20", batch, all)
		}
	})
}
