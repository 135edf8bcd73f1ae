package redisledger

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weirgate/weir/limits"
)

// While an account is busy, its batches also claim permits for the next requests, so that these need not wait for
// Redis (BenchmarkBatches). In Redis a prefetched permit is like any other. It waits a short time for a claim of its
// class, and is then given back.
//
// Invariants: a prefetched permit is assigned to at most one claim. None is granted while little is left of a budget or
// while the account recovers from a limit error (batch.lua, admit). None is used after this replica got a limit
// error. A limit error at another replica ends their use within prefetchTime.

const (
	// prefetchTime is how long a permit may wait for a claim after the call that prefetched it.
	prefetchTime = 20 * time.Millisecond
	// prefetchMax bounds the waiting permits of one class.
	prefetchMax = 16
	// prefetchSpan is the time for which the waiting permits should suffice.
	prefetchSpan = 10 * time.Millisecond
)

// prefetchedPermit waits for a claim until its time is over. No caller has made its own claim.
type prefetchedPermit struct {
	claim limits.Claim
	until time.Time
}

// firstPrefetchID returns the first ID of a prefetched permit. IDs of the limiter and their complements have other
// leading bits.
func firstPrefetchID() uint64 { return 1<<63 | rand.Uint64()>>2 }

// permitID returns the ID of the prefetched permit that was assigned to a claim, or the claim's own ID. The caller holds
// Ledger.mu.
func (a *localAccount) permitID(claim uint64) uint64 {
	if id := a.aliases[claim]; id != 0 {
		return id
	}
	return claim
}

// assign assigns a permit to a claim. The caller holds Ledger.mu.
func (a *localAccount) assign(p *openPermit, claim uint64) {
	p.claimID = claim
	a.aliases[claim] = p.claim.ID
}

// takePrefetched assigns a prefetched permit to a claim, and reports whether there was one. A claim that has a permit
// already gets the ID of that permit, and Redis decides.
func (l *Ledger) takePrefetched(a *localAccount, c *limits.Claim) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if id := a.permitID(c.ID); id != c.ID {
		c.ID = id
		return false
	}
	if l.prefetchMax == 0 || l.isLost() {
		return false
	}
	own, now := a.class(*c), time.Now()
	own.claim = *c
	own.claims++
	i := slices.IndexFunc(own.prefetched, func(p prefetchedPermit) bool { return p.until.After(now) && p.claim.CPU >= c.CPU })
	if i < 0 || a.cooldownUntil > a.now() || a.permits[c.ID] != nil || a.offline[c.ID] != nil {
		return false
	}
	p := a.permits[own.prefetched[i].claim.ID]
	own.prefetched = slices.Delete(own.prefetched, i, i+1)
	if len(own.prefetched) < min(own.claims, l.prefetchMax/2) && !a.refilling && !l.leaving {
		a.refilling = true
		l.background.Go(func() {
			_ = l.batch(context.Background(), a, &batchEntry{}) // the next claim gets the error
			l.mu.Lock()
			defer l.mu.Unlock()
			a.refilling = false
		})
	}
	if p == nil {
		return false
	}
	a.assign(p, c.ID)
	own.used = now
	return true
}

// claimsToPrefetch returns at most limit claims for the next batch: as many as are expected within prefetchSpan.
func (l *Ledger) claimsToPrefetch(a *localAccount, limit int) (claims []*limits.Claim) {
	if l.prefetchMax == 0 || l.isLost() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, own := range a.classes {
		expected := int(time.Duration(own.claims) * prefetchSpan / max(now.Sub(own.claimsSince), 1))
		n := min(expected, 2*own.claims+1, l.prefetchMax) - len(own.prefetched)
		if own.claims == 0 || l.leaving {
			n = 0
		}
		own.claims, own.claimsSince = 0, now
		for ; n > 0 && len(claims) < limit; n-- {
			c := own.claim
			l.lastPrefetchID++
			c.ID = l.lastPrefetchID
			claims = append(claims, &c)
		}
	}
	return claims
}

// addPrefetched adds the permits of granted claims, which may be used for some time. The caller holds Ledger.mu.
func (l *Ledger) addPrefetched(a *localAccount, claims []*limits.Claim, decisions []decision, until time.Time, r *limits.Rules) {
	added := false
	for i, c := range claims {
		if decisions[i].Granted {
			a.granted(*c, r)
			own := a.class(*c)
			own.prefetched = append(own.prefetched, prefetchedPermit{*c, until})
			added = true
		}
	}
	if added && !l.leaving {
		l.background.Go(func() {
			<-time.After(prefetchTime)
			l.returnPrefetched(a, time.Now())
		})
	}
}

// returnPrefetched gives back the prefetched permits that expire until a given time, and reports whether there were any.
func (l *Ledger) returnPrefetched(a *localAccount, at time.Time) (returned bool) {
	l.mu.Lock()
	for _, own := range a.classes {
		own.prefetched = slices.DeleteFunc(own.prefetched, func(p prefetchedPermit) bool {
			if p.until.After(at) {
				return false
			}
			returned = true
			l.record(a, settlement{permit: limits.Permit{Claim: p.claim}, outcome: &limits.Outcome{}})
			return true
		})
	}
	l.mu.Unlock()
	if returned {
		_ = l.flushSoon(a) // after an error, they are given back when Redis is back
	}
	return returned
}

// returnAllPrefetched gives back all prefetched permits, and reports whether there were any.
func (l *Ledger) returnAllPrefetched(a *localAccount) bool {
	return l.returnPrefetched(a, time.Now().Add(prefetchTime))
}
