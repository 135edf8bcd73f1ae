package redisledger

import (
	"context"
	"time"

	"github.com/weirgate/weir/limits"
)

// openPermit is a permit that this replica holds in Redis. If Redis loses the permit, restore.lua reserves again. The
// outcome stays in the openPermit until Redis has the outcome.
type openPermit struct {
	claim   limits.Claim
	charged bool          // settled in Redis: the permit holds only its concurrency slot
	elapsed time.Duration // at the last renewal
	// offline means that the permit was granted without Redis, and Redis does not have the permit yet. adopted is that
	// offline permit. It counts against the old offline lease until the permit ends or Redis grants a new lease.
	offline bool
	adopted *offlinePermit
	// renewedAt is the last renewal by the limiter. confirmedAt is the last renewal in Redis.
	renewedAt, confirmedAt time.Time
	// abandonedUntil is the end of an abandoned permit on the clock of Redis; 0 for other permits.
	abandonedUntil int64
	// Redis does not have outcome and ended yet.
	outcome        *limits.Outcome
	observed       bool // the local account has the observation of the outcome
	ended, aborted bool
}

const (
	// lingerTime is the time for which the upstream may still count an abandoned request (account.lua, LINGER).
	lingerTime = 10 * time.Second
	// permitLife is the lifetime of a permit without renewal (account.lua, PERMIT_LIFE).
	permitLife = 30 * time.Second
)

// granted returns the open permit of a claim that Redis has granted or reserved again. Ledger.mu must be held.
func (a *localAccount) granted(c limits.Claim, r *limits.Rules) *openPermit {
	a.expirePermit(c.ID, r)
	p := a.permits[c.ID]
	if p == nil {
		p = &openPermit{claim: c}
		a.permits[c.ID] = p
	}
	p.renewedAt = time.Now()
	p.confirmedAt = p.renewedAt
	return p
}

// unsettled reports whether Redis has not settled the permit.
func (p *openPermit) unsettled() bool { return p != nil && !p.charged && p.abandonedUntil == 0 }

// unsent reports whether the outcome or the end of the body has not been sent to Redis.
func (p *openPermit) unsent() bool { return p.outcome != nil || p.ended }

// mayHaveExpired reports whether the permit may have expired in Redis.
func (p *openPermit) mayHaveExpired() bool {
	return p.abandonedUntil == 0 && time.Since(p.confirmedAt) > permitLife-time.Second
}

func (a *localAccount) abandon(p *openPermit) { p.abandonedUntil = a.now() + lingerTime.Microseconds() }

// applyOutcome updates an unsettled permit after Redis has applied its outcome, like settle_permit in batch.lua.
// Ledger.mu must be held.
func (a *localAccount) applyOutcome(p *openPermit, o limits.Outcome) {
	p.outcome, p.charged = nil, true
	switch {
	case !o.Sent, o.Answered && o.Ended:
		delete(a.permits, p.claim.ID)
	case !o.Answered:
		a.abandon(p)
	}
	if o.Sent && o.Resent > 0 {
		copies := &openPermit{claim: p.claim, charged: true}
		a.abandon(copies)
		a.permits[^p.claim.ID] = copies
	}
}

// applyRelease updates a permit after Redis has applied the end of its response body. Ledger.mu must be held.
func (a *localAccount) applyRelease(id uint64, aborted bool, r *limits.Rules) {
	if p := a.permits[id]; p != nil {
		p.ended = false
		a.expirePermit(id, r) // a late release does not extend the permit
	}
	switch p := a.permits[id]; {
	case p == nil || !p.charged || p.abandonedUntil != 0:
	case aborted:
		a.abandon(p)
	default:
		delete(a.permits, id)
	}
}

// record keeps a settlement until the settlement is sent to Redis. If a permit has two outcomes, record keeps the first
// outcome. Ledger.mu must be held.
func (l *Ledger) record(a *localAccount, s settlement) {
	r := l.rules.Load()
	a.expirePermit(s.permit.ID, r)
	p, o := a.permits[s.permit.ID], s.outcome
	switch {
	case p == nil && !l.isLost():
		a.orphans = append(a.orphans, s) // Redis can learn from the response
	case p == nil && o != nil:
		a.learnOffline(s.permit, *o, r)
	case p == nil:
	case o == nil:
		p.ended, p.aborted = true, s.aborted
		if !s.aborted {
			p.endAdopted(r)
		}
	case p.unsettled() && p.outcome == nil:
		p.outcome = o
		if l.isLost() || p.offline {
			p.observed = a.learnOffline(s.permit, *o, r)
		} else if o.Limited == limits.NotLimited {
			p.observed = a.learn(s.permit, *o, r)
		}
		if p.adopted != nil && o.Sent && o.Answered {
			p.adopted.settle(p.adopted.lease.settled, o.Elapsed, r, a.now(), true)
		}
		if !o.Sent || o.Answered && o.Ended {
			p.endAdopted(r)
		}
	}
}

// endAdopted removes the permit from the held quota of its old offline lease. Ledger.mu must be held.
func (p *openPermit) endAdopted(r *limits.Rules) {
	if p.adopted != nil {
		p.adopted.end(r)
		p.adopted = nil
	}
}

// flushAndRenew sends the unsent settlements of an account to Redis, in every heartbeat. Permits that may have expired
// in Redis are renewed first.
func (l *Ledger) flushAndRenew(ctx context.Context, a *localAccount) error {
	l.mu.Lock()
	var expired []openPermit
	for _, p := range a.permits {
		if p.mayHaveExpired() {
			expired = append(expired, *p)
		}
	}
	l.mu.Unlock()
	for _, p := range expired {
		open := limits.OpenPermit{Permit: limits.Permit{Claim: p.claim}, Elapsed: p.elapsed}
		if err := l.renew(ctx, a, open, p.charged); err != nil {
			return err
		}
	}
	return l.flush(ctx, a, true)
}

// renewLocally records a renewal. It reports whether Redis does not have the permit yet, and whether the permit is
// charged.
func (l *Ledger) renewLocally(a *localAccount, p limits.OpenPermit) (offline, charged bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.rules.Load()
	if own := a.offline[p.ID]; own != nil {
		if own.abandonedUntil == 0 && !own.charged {
			own.extend(p.Elapsed, r)
		}
		return true, false
	}
	a.expirePermit(p.ID, r)
	own := a.permits[p.ID]
	if own == nil {
		return false, false
	}
	own.renewedAt, own.elapsed = time.Now(), max(own.elapsed, p.Elapsed)
	return own.offline, own.charged
}

// expirePermits removes all expired permits. Ledger.mu must be held.
func (a *localAccount) expirePermits(r *limits.Rules) {
	for id := range a.permits {
		a.expirePermit(id, r)
	}
}

// expirePermit removes a permit if the permit has expired. An unsettled permit is charged. Ledger.mu must be held.
func (a *localAccount) expirePermit(id uint64, r *limits.Rules) {
	p := a.permits[id]
	if p == nil || p.unsent() {
		return
	}
	ends := p.abandonedUntil
	if ends == 0 {
		ends = p.renewedAt.Add(permitLife).UnixMicro() + a.clockOffset
	}
	if ends > a.now() {
		return
	}
	if p.unsettled() {
		a.spent(p.claim, limits.Outcome{Sent: true, Elapsed: p.elapsed}, r, a.confirmed, ends, ends)
	}
	delete(a.permits, id)
}

// permitCall is a permit as renew.lua and restore.lua get it.
type permitCall struct {
	ID       string   `json:"id"`
	Charged  bool     `json:"charged"`
	Expires  int64    `json:"expires,omitempty"` // of an abandoned permit
	Resource resource `json:"resource"`
	CPU      int64    `json:"cpu"` // milliseconds
	Holds    []hold   `json:"holds,omitempty"`
}

// hold is the cost that a permit holds in a sliding log.
type hold struct {
	Log    string `json:"log"`
	Cost   int64  `json:"cost"`
	CPU    bool   `json:"cpu"`
	Window int64  `json:"window"`
	Merge  int64  `json:"merge"`
}

func holdOf(s *limits.Spend) hold {
	return hold{logName(s), s.Cost, s.Budget == limits.CPU, s.Window.Microseconds(), s.Merge.Microseconds()}
}

// holds returns the costs that a permit holds after its request has taken the time elapsed.
func holds(r *limits.Rules, c limits.Claim, elapsed time.Duration) (list []hold) {
	for _, s := range r.Spends(c) {
		if s.Budget == limits.CPU {
			s.Cost = max(s.Cost, r.Milliseconds(elapsed))
		}
		list = append(list, holdOf(&s))
	}
	return list
}

// permitCalls returns all open permits for restore.lua. Ledger.mu must be held.
func (l *Ledger) permitCalls(a *localAccount, r *limits.Rules) (list []permitCall) {
	a.expirePermits(r)
	for id, p := range a.permits {
		c := permitCall{
			ID: l.permitName(p.claim.ID), Charged: p.charged, Expires: p.abandonedUntil,
			Resource: resourceOf(r, a.kind, p.claim.Resource),
		}
		if id != p.claim.ID {
			c.ID += "+" // earlier copies of the request
		}
		if !p.charged {
			c.Holds = holds(r, p.claim, p.elapsed)
		}
		list = append(list, c)
	}
	return list
}
