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
func (g *Gateway) askForAll(x *exchange, f *flight, out *http.Request) (*http.Response, error) {
	began := time.Now()
	resp, err := g.claimed(out.Context(), x, f)
	x.record.Waited += time.Since(began)
	switch {
	case err != nil:
		return g.insteadOf(x, err)
	case resp == nil:
		return g.ask(x, out)
	case resp.StatusCode == http.StatusAccepted:
		g.land(x, refused, nil) // others may have more patience
	default:
		g.land(x, kept, nil)
	}
	return resp, nil
}

// claimed lets one replica ask the question for all that share a store: it returns
// nil when this one is to ask, else the answer that another has fetched. Where
// nobody can tell, or what another fetches is for nobody else, this one asks.
func (g *Gateway) claimed(ctx context.Context, x *exchange, f *flight) (*http.Response, error) {
	owner := rand.Text()
	for pause := lookFirst; ; pause = min(2*pause, lookMost) {
		mine, other := g.Cache.Claim(ctx, x.key, f.claim(owner))
		switch {
		case mine:
			g.Background.run(func() { g.keepClaim(ctx, x.key, f, owner) })
			if pause == lookFirst {
				return nil, nil // there was nobody before
			}
			return g.fetchedElsewhere(x), nil
		case other == nil, other.Failed, g.Cache.Purged(x.tags, other.Since):
			return nil, nil
		}
		if resp := g.fetchedElsewhere(x); resp != nil {
			return resp, nil // it is still being told that it is there
		}
		f.follows(other)
		if !time.Now().Before(x.until(g.patience(x))) && (!other.Sent || other.Pending != nil) {
			if other.Pending == nil {
				return nil, nil // it is told why it has to wait
			}
			return g.stillComputed(x, f), nil
		}
		if err := sleep(ctx, pause); err != nil {
			return nil, err
		}
	}
}

// fetchedElsewhere answers with what another replica has fetched, while it is fresh:
// what the clocks of two say of each other nobody knows.
func (g *Gateway) fetchedElsewhere(x *exchange) *http.Response {
	e, purged := g.Cache.Lookup(x.in.Context(), x.key, x.header)
	now := time.Now()
	if e == nil || purged || !e.Fresh(now) || x.mustAsk(e, now) {
		return nil
	}
	x.record.Cache += "; collapsed; ttl=" + itoa(-int(e.Staleness(now)/time.Second))
	return entryResponse(x, e, now)
}

// keepClaim renews a claim until the flight has landed.
func (g *Gateway) keepClaim(ctx context.Context, key cache.Key, f *flight, owner string) {
	tick := time.NewTicker(claimEvery)
	defer tick.Stop()
	for {
		select {
		case <-f.done:
			g.Cache.Unclaim(ctx, key, owner, f.landing == alone)
			return
		case <-tick.C:
			_, _ = g.Cache.Claim(ctx, key, f.claim(owner)) // had it ended, another may have it now
		case <-g.Background.ctx.Done():
			return
		}
	}
}

// claim is what others are told of the flight.
func (f *flight) claim(owner string) cache.Claim {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := cache.Claim{Owner: owner, Since: f.since, Pending: f.pending.answer, Next: f.pending.next}
	select {
	case <-f.paused:
	default:
		c.Sent = true
	}
	return c
}

// follows lets those who wait for the flight know how far another replica is.
func (f *flight) follows(c *cache.Claim) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.Pending != nil {
		f.pending = computation{c.Pending, c.Next}
	}
	var held bool
	select {
	case <-f.paused:
		held = true
	default:
	}
	switch going := c.Sent && c.Pending == nil; {
	case going && held:
		f.paused = make(chan struct{})
	case !going && !held:
		close(f.paused)
	}
}
