package coalesce

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/weirgate/weir/cache"
)

// failIf reports an error if the condition holds.
func failIf(t testing.TB, condition bool, format string, args ...any) {
	t.Helper()
	if condition {
		t.Errorf(format, args...)
	}
}

func neverPurged(cache.Generation) bool { return false }

// lead starts a call as its leader and returns the context of its request.
func lead(t *testing.T, g *Group, q Question) (*Call, context.Context) {
	t.Helper()
	c, leads := g.Join(q, neverPurged)
	if !leads {
		t.Fatal("joined an existing call, want a new one")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	c.Lead(cancel, trace.SpanContext{})
	return c, ctx
}

// follow joins a call as a follower.
func follow(t *testing.T, g *Group, q Question) *Call {
	t.Helper()
	c, leads := g.Join(q, neverPurged)
	if leads {
		t.Fatal("started a new call, want a follower of the existing call")
	}
	return c
}

func TestWaitReturnsTheResultToEachFollower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group
		fault := errors.New("upstream unreachable")
		leader, _ := lead(t, &g, Question{Path: "/a"})
		for range 3 {
			c := follow(t, &g, Question{Path: "/a"})
			go func() {
				r, err := c.Wait(t.Context(), time.Now().Add(time.Minute))
				failIf(t, r != Failed || !errors.Is(err, fault), "got %v, %v, want failed, %v", r, err, fault)
			}()
		}
		time.Sleep(time.Second)
		leader.Finish(Ending{Result: Failed, Err: fault})
		leader.Finish(Ending{Result: Stored}) // has no effect
		synctest.Wait()
		lead(t, &g, Question{Path: "/a"})
	})
}

func TestJoinSeparatesKeys(t *testing.T) {
	var g Group
	lead(t, &g, Question{Key: cache.NewKey("a")})
	lead(t, &g, Question{Key: cache.NewKey("b")})
}

func TestJoinStartsANewCallAfterAPurge(t *testing.T) {
	var g Group
	old, _ := lead(t, &g, Question{Since: 1})
	c, leads := g.Join(Question{Since: 2}, func(since cache.Generation) bool { return since < 2 })
	if !leads || c == old {
		t.Fatal("followed a call that began before the purge")
	}
	old.Finish(Ending{Result: Stored})
	failIf(t, follow(t, &g, Question{Since: 2}) != c, "the end of the old call removed the new call")
}

func TestRequestIsCanceledWhenAllClientsHaveLeft(t *testing.T) {
	var g Group
	leader, request := lead(t, &g, Question{})
	first, second := follow(t, &g, Question{}), follow(t, &g, Question{})
	leader.LeaderLeft()
	first.Leave()
	if err := request.Err(); err != nil {
		t.Fatalf("got cause %v while a follower waits", err)
	}
	second.Leave()
	if err := context.Cause(request); !errors.Is(err, errAbandoned) {
		t.Errorf("got cause %v, want %v", err, errAbandoned)
	}
	if c, leads := g.Join(Question{}, neverPurged); !leads || c == leader {
		t.Error("followed a canceled call")
	}
}

func TestDetachedCallOutlivesItsLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group
		c, _ := lead(t, &g, Question{})
		background, cancel := context.WithCancelCause(t.Context())
		if !c.Detach(cancel) {
			t.Fatal("the call was not detached")
		}
		if background.Err() != nil {
			t.Fatal("the request was canceled although the leader follows")
		}
		c.SetComputing(&cache.Entry{}, time.Now().Add(time.Second))
		r, _ := c.Wait(t.Context(), time.Now())
		failIf(t, r != Computing, "got %v, want computing", r)
		failIf(t, background.Err() != nil, "the request was canceled although the client is expected to return")
		polls := g.Polls()
		failIf(t, len(polls) != 1 || polls[0].Polls != 1 || polls[0].Waiting != 1, "got polls %+v", polls)
		c.Finish(Ending{Result: Stored})
		failIf(t, background.Err() == nil || c.Detach(cancel) || len(g.Polls()) > 0, "the call continues after its end")
	})
}

func TestWaitEndsAtTheDeadlineOnlyWhilePaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group
		c, _ := lead(t, &g, Question{})
		began := time.Now()
		if r, _ := follow(t, &g, Question{}).Wait(t.Context(), began.Add(time.Second)); r != Paused || time.Since(began) != time.Second {
			t.Errorf("got %v after %v, want paused after 1s", r, time.Since(began))
		}
		c.SetPaused(false)
		time.AfterFunc(time.Minute, func() { c.SetPaused(true) })
		if r, _ := follow(t, &g, Question{}).Wait(t.Context(), time.Now()); r != Paused || time.Since(began) != time.Minute+time.Second {
			t.Errorf("got %v after %v, want paused when the request waits again", r, time.Since(began))
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if r, err := follow(t, &g, Question{}).Wait(ctx, time.Now().Add(time.Hour)); r != Failed || !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, %v for a client that disconnects", r, err)
		}
	})
}

func TestNilCallIgnoresProgress(t *testing.T) {
	var c *Call
	c.SetPaused(true)
	c.SetComputing(nil, time.Time{})
	c.SetShared(true)
	c.Close()
	c.Finish(Ending{Result: Stored})
}

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
			failIf(t, d != Fetch, "got decision %v, want fetch", d)
			time.Sleep(5*renewEvery + renewEvery/2)
			synctest.Wait()
			l.mu.Lock()
			renewals := l.renewals
			l.mu.Unlock()
			failIf(t, renewals < 4, "%d renewals in five periods", renewals)
			c.Finish(Ending{Result: result})
			synctest.Wait()
			if result == Stored {
				time.Sleep(10 * renewEvery) // the write waits in its queue
				synctest.Wait()
				failIf(t, l.lease == nil || !time.Now().Before(l.expires), "the lease ended before the write to the shared cache")
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
		took := time.Since(began)
		failIf(t, d != Found || took < 2*time.Second || took > 2*time.Second+maxLook, "got decision %v after %v, want found after 2s", d, took)
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
				took := time.Since(began)
				failIf(t, d != c.want || took > c.most, "got decision %v after %v, want %v within %v", d, took, c.want, c.most)
				if c.want == StillComputing && call.Computation().Response == nil {
					t.Error("the other replica's computation is not visible to followers")
				}
				call.Finish(Ending{Result: Private})
			})
		})
	}
}
