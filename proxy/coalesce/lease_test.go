package coalesce

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/weirgate/weir/cache"
)

// leases is an in-memory Leases for a single key.
type leases struct {
	mu       sync.Mutex
	lease    *cache.FetchLease
	expires  time.Time
	renewals int
	failed   bool
}

func (l *leases) AcquireFetch(_ context.Context, _ cache.Key, c cache.FetchLease) (bool, *cache.FetchLease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lease != nil && l.lease.Owner != c.Owner && time.Now().Before(l.expires) {
		other := *l.lease
		return false, &other
	}
	if l.lease != nil && l.lease.Owner == c.Owner {
		l.renewals++
	}
	l.lease, l.expires = &c, time.Now().Add(3*renewEvery)
	return true, nil
}

func (l *leases) ReleaseFetch(_ context.Context, _ cache.Key, owner string, failed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lease != nil && l.lease.Owner == owner {
		l.lease, l.failed = nil, failed
	}
}

// hold makes another replica hold the lease for a time.
func (l *leases) hold(c cache.FetchLease, d time.Duration) {
	l.lease, l.expires = &c, time.Now().Add(d)
}

// await starts a call and waits for other replicas. The shared cache has the response from the time stored.
func await(t *testing.T, l *leases, deadline, stored time.Time) (*Call, Decision) {
	t.Helper()
	var g Group
	c, _ := lead(t, &g, Question{})
	d, err := c.AwaitFleet(t.Context(), Fleet{
		Leases: l, Go: func(f func()) { go f() }, Stop: t.Context().Done(), Purged: neverPurged, Deadline: deadline,
		Lookup:  func() bool { return !stored.IsZero() && !time.Now().Before(stored) },
		Waiting: func(trace.SpanContext) {},
	})
	if err != nil {
		t.Error(err)
	}
	return c, d
}

func TestLeaseIsRenewedUntilTheCallEnds(t *testing.T) {
	for result, failed := range map[Result]bool{Stored: true, Private: true, Failed: true, Refused: false} {
		synctest.Test(t, func(t *testing.T) {
			var l leases
			c, d := await(t, &l, time.Now(), time.Time{})
			if d != Fetch {
				t.Errorf("got decision %v, want fetch", d)
			}
			time.Sleep(5*renewEvery + renewEvery/2)
			synctest.Wait()
			l.mu.Lock()
			renewals := l.renewals
			l.mu.Unlock()
			if renewals < 4 {
				t.Errorf("%d renewals in five periods", renewals)
			}
			c.Finish(result, nil)
			synctest.Wait()
			if result == Stored {
				time.Sleep(10 * renewEvery) // the write waits in its queue
				synctest.Wait()
				if l.lease == nil || !time.Now().Before(l.expires) {
					t.Error("the lease ended before the write to the shared cache")
				}
				c.SetShared(false) // a response that is not in the shared cache counts as failed
				synctest.Wait()
			}
			if l.lease != nil || l.failed != failed {
				t.Errorf("%v: lease %v, failed %v, want it released with failed %v", result, l.lease, l.failed, failed)
			}
		})
	}
}

func TestAwaitFleetUsesTheResponseOfAnotherReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l leases
		l.hold(cache.FetchLease{Owner: "other", Sent: true}, time.Minute)
		began := time.Now()
		_, d := await(t, &l, began, began.Add(2*time.Second))
		if took := time.Since(began); d != Found || took < 2*time.Second || took > 2*time.Second+maxLook {
			t.Errorf("got decision %v after %v, want found after 2s", d, took)
		}
	})
}

func TestAwaitFleetFetchesWithoutTheOtherReplica(t *testing.T) {
	for name, c := range map[string]struct {
		lease cache.FetchLease
		held  time.Duration
		wait  time.Duration // maximum wait of the client
		want  Decision
		most  time.Duration
	}{
		"its response cannot be shared":  {cache.FetchLease{Owner: "other", Failed: true}, time.Minute, time.Minute, Fetch, 0},
		"it has stopped":                 {cache.FetchLease{Owner: "other", Sent: true}, time.Second, time.Minute, Fetch, time.Second + maxLook},
		"it has no permit":               {cache.FetchLease{Owner: "other"}, time.Minute, time.Second, Fetch, time.Second + maxLook},
		"the response is being computed": {cache.FetchLease{Owner: "other", Sent: true, Pending: &cache.Entry{}}, time.Minute, time.Second, StillComputing, time.Second + maxLook},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var l leases
				l.hold(c.lease, c.held)
				began := time.Now()
				call, d := await(t, &l, began.Add(c.wait), time.Time{})
				if took := time.Since(began); d != c.want || took > c.most {
					t.Errorf("got decision %v after %v, want %v within %v", d, took, c.want, c.most)
				}
				if c.want == StillComputing && call.Computation().Response == nil {
					t.Error("the other replica's computation is not visible to followers")
				}
				call.Finish(Private, nil)
			})
		})
	}
}
