package proxy

import (
	"context"
	"crypto/rand"
	"net/http"
	"time"

	"github.com/weirgate/weir/cache"
)

const (
	// claimEvery is how often a claim is renewed; it lives for three of them.
	claimEvery = time.Second
	// What another replica fetches is looked for after lookFirst, then twice as long
	// each time, lookMost at most.
	lookFirst, lookMost = 10 * time.Millisecond, 200 * time.Millisecond
)

// askForAll asks the question, unless another replica does.
func (g *Gateway) askForAll(ex *exchange, f *flight, out *http.Request) (*http.Response, error) {
	var s stage
	resp, how, err := g.elsewhere(out.Context(), ex, f, func(c *cache.FetchLease) {
		s = g.enter(ex, out.Context(), stageFlight)
		s.linkTo(spanContextOf(c.Trace))
	})
	if s.ex != nil {
		ex.record.Waited += s.leave("another replica", err)
	}
	switch {
	case err != nil:
		return g.insteadOf(ex, err)
	case resp == nil:
		return g.ask(ex, out)
	}
	g.land(ex, how, nil)
	return resp, nil
}

// elsewhere returns the answer that another replica fetches, and how the flight lands
// by it; nil when this one is to ask. It waits for one other at most. Where nobody
// can tell, or what the other fetches is not for this client, this one asks. begin is
// called when it begins to wait.
func (g *Gateway) elsewhere(ctx context.Context, ex *exchange, f *flight, begin func(*cache.FetchLease)) (*http.Response, landing, error) {
	if ex.cacheControl.Has("no-cache") || ex.stale != nil && ex.stale.Lifetime == 0 || g.isUnkept(ex) {
		return nil, 0, nil // only an answer to itself helps it
	}
	owner, waitsFor := rand.Text(), ""
	for pause := lookFirst; ; pause = min(2*pause, lookMost) {
		mine, other := g.Cache.AcquireFetch(ctx, f.key, f.claim(owner))
		if mine {
			g.Background.run(func() { g.keepClaim(ctx, f, owner) })
		}
		if waitsFor != "" {
			// Of the clocks of two replicas nobody knows which is right: only what is
			// fresh will do.
			if resp := g.shared(ex, time.Time{}); resp != nil {
				f.sharesIt(true)
				return resp, kept, nil
			}
		}
		if other == nil || other.Failed || waitsFor != "" && other.Owner != waitsFor || g.Cache.Purged(ex.tags(), other.Since) {
			return nil, 0, nil
		}
		if waitsFor == "" {
			begin(other)
		}
		waitsFor = other.Owner
		f.follows(other)
		if !time.Now().Before(ex.until(g.patience(ex))) && (!other.Sent || other.Pending != nil) {
			if other.Pending == nil {
				return nil, 0, nil // it is told why it has to wait
			}
			return g.stillComputed(ex, f), refused, nil // others may have more patience
		}
		if err := sleep(ctx, pause); err != nil {
			return nil, 0, err
		}
	}
}

// keepClaim renews a claim until the flight has landed.
func (g *Gateway) keepClaim(ctx context.Context, f *flight, owner string) {
	tick := time.NewTicker(claimEvery)
	defer tick.Stop()
	for {
		select {
		case <-f.done:
			g.Cache.ReleaseFetch(ctx, f.key, owner, f.landing == alone || f.landing == failed || f.landing == kept && !f.shared)
			return
		case <-tick.C:
			_, _ = g.Cache.AcquireFetch(ctx, f.key, f.claim(owner)) // had it ended, another may have it now
		case <-g.Background.ctx.Done():
			g.Cache.ReleaseFetch(ctx, f.key, owner, false)
			return
		}
	}
}

// claim is what others are told of the flight.
func (f *flight) claim(owner string) cache.FetchLease {
	f.mu.Lock()
	defer f.mu.Unlock()
	return cache.FetchLease{Owner: owner, Since: f.since, Sent: !f.isPaused(), Pending: f.pending.answer, Next: f.pending.next, Trace: traceparent(f.leader)}
}

// follows lets those who wait for the flight know how far another replica is.
func (f *flight) follows(c *cache.FetchLease) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.Pending != nil {
		f.pending = computation{c.Pending, c.Next, f.pending.asked}
	}
	f.pause(!c.Sent || c.Pending != nil)
}
