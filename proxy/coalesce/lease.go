package coalesce

import (
	"context"
	"crypto/rand"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirgate/weir/cache"
)

const (
	// renewEvery is the interval of lease renewals. A lease expires after three missed renewals.
	renewEvery = time.Second
	// firstLook is the pause before a replica looks up another replica's response. Each further pause is twice as long,
	// up to maxLook.
	firstLook, maxLook = 10 * time.Millisecond, 200 * time.Millisecond
)

// Leases grants the lease for a fetch, which one replica holds at a time. [cache.Store] implements Leases.
type Leases interface {
	AcquireFetch(ctx context.Context, key cache.Key, c cache.FetchLease) (mine bool, other *cache.FetchLease)
	ReleaseFetch(ctx context.Context, key cache.Key, owner string, failed bool)
}

// Fleet connects a call with the calls of other replicas.
type Fleet struct {
	Leases Leases
	// Go runs the renewal of a lease in the background. The renewal ends when Stop is closed.
	Go   func(func())
	Stop <-chan struct{}
	// Lookup reports whether the response is in the shared cache.
	Lookup func() bool
	// Purged reports whether a response requested at a generation is outdated.
	Purged func(since cache.Generation) bool
	// Waiting is called once, with the span of the other replica's request, before the wait.
	Waiting func(leader trace.SpanContext)
	// Deadline is the end of the client's wait for a request that is not on its way upstream.
	Deadline time.Time
}

// Decision is the result of [Call.AwaitFleet].
type Decision int

const (
	// Fetch means that this replica sends the request.
	Fetch Decision = iota
	// Found means that another replica has stored the response.
	Found
	// StillComputing means that the deadline has passed and another replica polls the upstream.
	StillComputing
)

// AwaitFleet acquires the lease for the call's key, or waits while another replica holds the lease. A call waits for at
// most one other replica. AwaitFleet also returns Fetch if the store is unavailable or the other replica's response
// cannot be shared.
func (c *Call) AwaitFleet(ctx context.Context, f Fleet) (Decision, error) {
	owner, other := rand.Text(), ""
	for pause := firstLook; ; pause = min(2*pause, maxLook) {
		mine, lease := f.Leases.AcquireFetch(ctx, c.Key, c.lease(owner))
		if mine {
			f.Go(func() { c.renew(ctx, f, owner) })
		}
		if other != "" && f.Lookup() {
			c.SetShared(true)
			return Found, nil
		}
		if lease == nil || lease.Failed || other != "" && lease.Owner != other || f.Purged(lease.Since) {
			return Fetch, nil
		}
		if other == "" {
			f.Waiting(parseTraceparent(lease.Trace))
		}
		other = lease.Owner
		c.copyProgress(lease)
		if c.Patience > 0 && lease.Sent && time.Since(c.began) >= c.Patience {
			return Fetch, nil
		}
		if !time.Now().Before(f.Deadline) {
			if lease.Pending != nil {
				return StillComputing, nil
			}
			if !lease.Sent {
				return Fetch, nil // the limiter then returns the reason for the refusal
			}
		}
		select {
		case <-ctx.Done():
			return Fetch, context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// renew renews the lease until the end of the call and, if the response is stored, of the write to the shared cache. It
// then releases the lease.
func (c *Call) renew(ctx context.Context, f Fleet, owner string) {
	tick, done := time.Tick(renewEvery), c.done
	var written <-chan bool // nil before the result Stored
	for {
		select {
		case <-done:
			if c.ending.Result == Stored { // the other replicas wait until they can read the response
				written, done = c.shared, nil
				continue
			}
			f.Leases.ReleaseFetch(ctx, c.Key, owner, c.ending.Result == Private || c.ending.Result == Failed)
			return
		case <-c.streaming: // the other replicas cannot read the body
			f.Leases.ReleaseFetch(ctx, c.Key, owner, true)
			return
		case shared := <-written:
			f.Leases.ReleaseFetch(ctx, c.Key, owner, !shared)
			return
		case <-tick:
			_, _ = f.Leases.AcquireFetch(ctx, c.Key, c.lease(owner)) // an expired lease may belong to another replica
		case <-f.Stop:
			f.Leases.ReleaseFetch(ctx, c.Key, owner, false)
			return
		}
	}
}

// lease returns the state of the call for the other replicas.
func (c *Call) lease(owner string) cache.FetchLease {
	c.mu.Lock()
	defer c.mu.Unlock()
	return cache.FetchLease{
		Owner: owner, Since: c.Since, Sent: !c.paused,
		Pending: c.computation.Response, Next: c.computation.Next, Trace: traceparent(c.leader),
	}
}

// copyProgress makes the progress of another replica's request visible to the followers.
func (c *Call) copyProgress(lease *cache.FetchLease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if lease.Pending != nil {
		c.computation = Computation{lease.Pending, lease.Next, c.computation.Polls}
	}
	c.setPaused(!lease.Sent || lease.Pending != nil)
}

// traceparent formats a span context (W3C Trace Context). The result is empty for an invalid context.
func traceparent(c trace.SpanContext) string {
	if !c.IsValid() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), c), carrier)
	return carrier.Get("traceparent")
}

func parseTraceparent(s string) trace.SpanContext {
	carrier := propagation.MapCarrier{"traceparent": s}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
}
