package limits

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirgate/weir/policy"
)

// simulatedRequest is a request of the traffic that a limiter and a simulation both handle.
type simulatedRequest struct {
	at, latency, maxWait time.Duration
	claim                Claim
	caller               policy.Caller
}

// simulatedTraffic returns random requests of two clients, which exceed the limits.
func simulatedTraffic(seed uint64) (traffic []simulatedRequest) {
	rng := rand.New(rand.NewPCG(seed, 1))
	var at time.Duration
	for range 400 {
		at += time.Duration(rng.IntN(200_000)+1) * time.Microsecond
		caller := user([]string{"small", "large"}[rng.IntN(2)])
		if caller.Client == "large" {
			caller.Share, caller.Priority = 3, policy.Interactive
		}
		traffic = append(traffic, simulatedRequest{
			// Odd times, so that no two steps are at the same time. Their order would be arbitrary.
			at.Truncate(100*time.Microsecond) + 37*time.Microsecond, time.Duration(30+rng.IntN(3000))*time.Millisecond + 13*time.Microsecond,
			time.Duration(rng.IntN(20)) * time.Second, core(fmt.Sprint("o", rng.IntN(3))), caller,
		})
	}
	return traffic
}

// simulatedOutcome returns the outcome of the response to a permit. Used counts the responses.
func simulatedOutcome(r simulatedRequest, used int, reset time.Time) Outcome {
	return Outcome{
		Sent: true, Answered: true, Ended: true, Succeeded: true, Elapsed: r.latency,
		Rate: policy.Rate{Limit: 1000, Used: used, Reset: reset, Resource: policy.Core},
	}
}

// TestSimulationDecidesLikeTheLimiter checks that each request waits equally long, and has the same result.
func TestSimulationDecidesLikeTheLimiter(t *testing.T) {
	l := policy.DefaultLimits()
	l.Concurrent, l.Points.REST = 5, 30
	for seed := range uint64(3) {
		traffic := simulatedTraffic(seed)
		want, got := make([]string, len(traffic)), make([]string, len(traffic))
		synctest.Test(t, func(*testing.T) { // begins at the same time as the limiter
			simulate(traffic, l, time.Now(), got)
		})
		inBubble(t, l, func(o *harness) {
			began, used := time.Now(), 0
			var mu sync.Mutex
			var clients sync.WaitGroup
			for i, r := range traffic {
				clients.Go(func() {
					time.Sleep(r.at)
					p, err := o.Acquire(o.ctx, r.claim, r.caller, time.Now().Add(r.maxWait))
					want[i] = fmt.Sprint(time.Since(began), " ", err)
					if err != nil {
						return
					}
					time.Sleep(r.latency)
					mu.Lock()
					used++
					outcome := simulatedOutcome(r, used, began.Add(time.Hour))
					mu.Unlock()
					if _, err := o.Settle(o.ctx, *p, outcome); err != nil {
						o.Error(err)
					}
				})
			}
			clients.Wait()
		})
		diff := cmp.Diff(want, got)
		stopIf(t, diff != "", "seed %d: -limiter +simulation:\n%s", seed, diff)
		waited, refused := 0, 0
		for i, result := range got {
			switch {
			case !strings.HasSuffix(result, " <nil>"):
				refused++
			case result != fmt.Sprint(traffic[i].at, " <nil>"):
				waited++
			}
		}
		failIf(t, waited < 20 || refused < 20, "seed %d: %d requests waited and %d were refused, want at least 20 each", seed, waited, refused)
	}
}

// simulate handles the traffic in a simulation and sets the results.
func simulate(traffic []simulatedRequest, l policy.Limits, began time.Time, results []string) {
	now, used := began, 0
	s := NewSimulation(Rules{Limits: l}, func() time.Time { return now })
	type response struct {
		at     time.Time
		permit *Permit
		r      simulatedRequest
	}
	var responses []response
	for next := 0; ; {
		at := s.Next()
		for _, r := range responses {
			if at.IsZero() || r.at.Before(at) {
				at = r.at
			}
		}
		if next < len(traffic) && (at.IsZero() || began.Add(traffic[next].at).Before(at)) {
			at = began.Add(traffic[next].at)
		}
		if at.IsZero() {
			return
		}
		now = at
		if i := slices.IndexFunc(responses, func(r response) bool { return r.at.Equal(now) }); i >= 0 {
			used++
			r := responses[i]
			responses = slices.Delete(responses, i, i+1)
			_, _ = s.Settle(context.Background(), *r.permit, simulatedOutcome(r.r, used, began.Add(time.Hour))) // never fails
		}
		if next < len(traffic) && began.Add(traffic[next].at).Equal(now) {
			i, r := next, traffic[next]
			next++
			s.Acquire(r.claim, r.caller, now.Add(r.maxWait), func(p *Permit, err error) {
				results[i] = fmt.Sprint(now.Sub(began), " ", err)
				if err == nil {
					responses = append(responses, response{now.Add(r.latency), p, r})
				}
			})
		}
		s.Advance()
	}
}
