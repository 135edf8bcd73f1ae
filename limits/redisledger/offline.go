package redisledger

import (
	"fmt"
	"time"

	"github.com/weirgate/weir/limits"
)

// leaseKey identifies the claims that use the same budgets of an account.
type leaseKey struct {
	resource, operation string
	points              int
	createsContent      bool
}

func leaseKeyOf(c limits.Claim) leaseKey {
	return leaseKey{c.Resource, c.Operation, c.Points, c.CreatesContent}
}

func (k leaseKey) String() string {
	return fmt.Sprintf("%s|%s|%d|%t", k.resource, k.operation, k.points, k.createsContent)
}

// offlineLease is quota that this replica holds for claims of one kind: a part of the budgets that heartbeat.lua
// reserves for the replica. While Redis is lost, the replica may use no other quota.
type offlineLease struct {
	claim limits.Claim // the last claim
	used  time.Time    // time of the last grant

	// Granted quota: the end on the local clock, units (requests of the primary window), concurrency slots, and costs
	// by log.
	until         time.Time
	units, places int64
	costs         map[string]int64
	// Used quota. spent was charged while Redis was lost. sending is being sent to Redis. settled was used by adopted
	// permits (openPermit.adopted): batches send their outcomes, but the old lease still counts their use.
	spent, sending, settled localLogs
	// Quota that offline permits hold: costs by log, units and concurrency slots.
	held                  map[string]int64
	heldUnits, heldPlaces int64
}

// Names of the logs that a lease has besides its sliding logs. units contains the charged units. A unit returns one
// window after its response, because no open window has counted the unit then. unconfirmed contains the units that no
// response reported.
const (
	unitsLog       = "units"
	unconfirmedLog = "unconfirmed"
)

// lease returns the offline lease for a claim, and creates an empty lease if necessary. Ledger.mu must be held.
func (a *localAccount) lease(c limits.Claim) *offlineLease {
	key := leaseKeyOf(c)
	own := a.leases[key]
	if own == nil {
		own = &offlineLease{claim: c, held: map[string]int64{}, spent: localLogs{}, sending: localLogs{}, settled: localLogs{}}
		a.leases[key] = own
	}
	return own
}

// windowLog returns the log of units with a name.
func (o *offlineLease) windowLog(logs localLogs, name string, r *limits.Rules) *localLog {
	return logs.ofWindow(name, r.For(o.claim.Kind, o.claim.Resource).Window)
}

// usedUnits returns the number of used units of the lease.
func (o *offlineLease) usedUnits(r *limits.Rules, now int64) int64 {
	used := o.heldUnits
	for _, logs := range []localLogs{o.spent, o.sending, o.settled} {
		used += o.windowLog(logs, unitsLog, r).total(now)
	}
	return used
}

// usedOf returns the used quota of a log.
func (o *offlineLease) usedOf(s *limits.Spend, now int64) int64 {
	return o.spent.of(s).total(now) + o.sending.of(s).total(now) + o.settled.of(s).total(now) + o.held[logName(s)]
}

// unexpired returns the granted quota, or no quota if the lease has expired.
func (o *offlineLease) unexpired() (units, places int64, costs map[string]int64) {
	if !time.Now().Before(o.until) {
		return 0, 0, nil
	}
	return o.units, o.places, o.costs
}

// offlinePermit is a permit that was granted without Redis.
type offlinePermit struct {
	claim   limits.Claim
	lease   *offlineLease
	charged bool // the permit holds only its concurrency slot
	elapsed time.Duration
	// copies is the number of earlier copies of the request, or 0 if the permit is for the request itself.
	copies int64
	// abandonedUntil is the end of an abandoned permit on the clock of Redis; 0 for other permits.
	abandonedUntil int64
}

// spends returns the costs that the permit holds.
func (p *offlinePermit) spends(r *limits.Rules) []limits.Spend {
	if p.charged {
		return nil
	}
	list := r.Spends(p.claim)
	for i := range list {
		s := &list[i]
		switch {
		case p.copies == 0 && s.Budget == limits.CPU:
			s.Cost = max(s.Cost, r.Milliseconds(p.elapsed))
		case s.Budget == limits.CPU:
			s.Cost = 0
		case p.copies > 0:
			s.Cost *= p.copies
		}
	}
	return list
}

// units returns the number of units that the permit holds.
func (p *offlinePermit) units() int64 {
	if p.charged {
		return 0
	}
	return max(1, p.copies)
}

// begin adds the quota of the permit to the held quota of its lease. end subtracts that quota. Ledger.mu must be held.
func (p *offlinePermit) begin(r *limits.Rules) { p.hold(r, 1) }
func (p *offlinePermit) end(r *limits.Rules)   { p.hold(r, -1) }

func (p *offlinePermit) hold(r *limits.Rules, sign int64) {
	for _, s := range p.spends(r) {
		p.lease.held[logName(&s)] += sign * s.Cost
	}
	p.lease.heldUnits += sign * p.units()
	p.lease.heldPlaces += sign
}

// extend raises the CPU time that the permit holds. Ledger.mu must be held.
func (p *offlinePermit) extend(elapsed time.Duration, r *limits.Rules) {
	p.end(r)
	p.elapsed = max(p.elapsed, elapsed)
	p.begin(r)
}

// charge turns the costs and units that the permit holds into spends. reported means that the response reported an open
// primary window. Ledger.mu must be held.
func (p *offlinePermit) charge(logs localLogs, r *limits.Rules, at int64, reported bool) {
	p.end(r)
	p.lease.windowLog(logs, unitsLog, r).spend(at, p.units(), 0)
	if !reported {
		p.lease.windowLog(logs, unconfirmedLog, r).spend(at, p.units(), 0)
	}
	for _, s := range p.spends(r) {
		logs.of(&s).spend(at, s.Cost, 0)
	}
	p.charged = true
	p.begin(r)
}

// settle charges the permit for a response that took the time elapsed. Ledger.mu must be held.
func (p *offlinePermit) settle(logs localLogs, elapsed time.Duration, r *limits.Rules, now int64, reported bool) {
	p.end(r)
	p.claim.CPU, p.elapsed = 0, elapsed
	p.begin(r)
	p.charge(logs, r, now, reported)
}

// Store is the reason of refusals while Redis is lost, and while replicas restore an account.
const Store limits.Reason = "store"

// retryOffline is the time after which a claim that was refused with Store may be repeated.
const retryOffline = time.Second

// admitOffline decides a claim without Redis.
func (l *Ledger) admitOffline(a *localAccount, c limits.Claim) limits.Decision {
	r := l.rules.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	refused := limits.Decision{Reason: Store, Until: now.Add(retryOffline)}
	own := a.lease(c)
	if a.offline[c.ID] != nil || a.permits[c.ID] != nil {
		return limits.Decision{Granted: true}
	}
	a.expireOffline(r)
	units, places, costs := own.unexpired()
	if l.Closed || a.reconciling || own.usedUnits(r, a.now()) >= units || own.heldPlaces >= places {
		return refused
	}
	since := l.Lost()
	if since.IsZero() {
		since = now // Redis responds again
	}
	// Only Redis can coordinate the probe and the slow start after a cool-down.
	if until := time.UnixMicro(a.cooldownUntil - a.clockOffset); until.After(since) {
		return limits.Decision{Reason: limits.Cooldown, Until: latest(until, refused.Until)}
	}
	if until := a.exhaustedUntil(c.Resource, r); until.After(now) {
		return limits.Decision{Reason: limits.Primary, Until: until}
	}
	for _, s := range r.Spends(c) {
		if s.Budget == limits.Primary && a.budgets[c.Resource].Unlimited {
			continue
		}
		if own.usedOf(&s, a.now())+s.Cost > costs[logName(&s)] {
			return refused
		}
	}
	own.used = now
	a.keepClaim(c)
	p := &offlinePermit{claim: c, lease: own}
	p.begin(r)
	a.offline[c.ID] = p
	return limits.Decision{Granted: true}
}

// exhaustedUntil returns the time at which an exhausted primary window reopens, from the last reply of Redis and from
// later responses. If the window has remaining requests, that time is in the past. Ledger.mu must be held.
func (a *localAccount) exhaustedUntil(res string, r *limits.Rules) (until time.Time) {
	if a.budgets[res].Unlimited {
		return time.Time{}
	}
	unreported := a.unreported(res)
	if b, ok := a.budgets[res]; ok && r.Usable(int64(b.Limit))-int64(b.Used) <= unreported {
		until = b.Reset.Add(time.Second)
	}
	unreported += a.unconfirmed(res, r).total(a.now()) // the replies of Redis include these requests
	for _, o := range a.observed[res] {
		if r.Usable(int64(o.Limit))-int64(o.Used) <= unreported {
			until = latest(until, time.UnixMicro(o.reopens()-a.clockOffset))
		}
	}
	return until
}

// unreported returns the number of requests of a resource that this replica sent and no response reported. Ledger.mu
// must be held.
func (a *localAccount) unreported(res string) (n int64) {
	for _, c := range a.leases {
		if c.claim.Resource != res {
			continue
		}
		for _, logs := range []localLogs{c.spent, c.sending} {
			if log := logs[unconfirmedLog]; log != nil {
				n += log.total(a.now())
			}
		}
	}
	for _, p := range a.offline {
		if p.claim.Resource == res {
			n += p.units()
		}
	}
	for _, p := range a.permits {
		given := p.outcome != nil && !p.outcome.Sent
		if p.unsettled() && !p.observed && !given && p.claim.Resource == res {
			n++
		}
	}
	return n
}

func latest(x, y time.Time) time.Time {
	if x.After(y) {
		return x
	}
	return y
}

// finishOffline applies a settlement to an offline permit. It returns false if the permit is not an offline permit.
// Ledger.mu must be held.
func (a *localAccount) finishOffline(s settlement, r *limits.Rules) bool {
	p, o := a.offline[s.permit.ID], s.outcome
	linger := a.now() + lingerTime.Microseconds()
	switch {
	case p == nil:
		return false
	case p.abandonedUntil != 0:
	case o == nil && s.aborted:
		p.abandonedUntil = linger
	case o == nil:
		a.endOffline(p, r)
	case p.charged: // settled before
	case !o.Sent:
		a.endOffline(p, r)
	default:
		if o.Resent > 0 {
			copies := &offlinePermit{claim: p.claim, lease: p.lease, copies: int64(o.Resent), abandonedUntil: linger}
			copies.claim.ID = ^p.claim.ID
			a.offline[copies.claim.ID] = copies
			copies.begin(r)
		}
		if !o.Answered {
			p.extend(o.Elapsed, r)
			p.abandonedUntil = linger
			break
		}
		p.settle(p.lease.spent, o.Elapsed, r, a.now(), a.learnOffline(s.permit, *o, r))
		if o.Ended {
			a.endOffline(p, r)
		}
	}
	return true
}

// endOffline removes an offline permit. Ledger.mu must be held.
func (a *localAccount) endOffline(p *offlinePermit, r *limits.Rules) {
	p.end(r)
	delete(a.offline, p.claim.ID)
}

// expireOffline ends abandoned permits whose requests the upstream cannot count any more. Ledger.mu must be held.
func (a *localAccount) expireOffline(r *limits.Rules) {
	for _, p := range a.offline {
		if p.abandonedUntil != 0 && p.abandonedUntil <= a.now() {
			if !p.charged {
				p.charge(p.lease.spent, r, p.abandonedUntil, false)
			}
			a.endOffline(p, r)
		}
	}
}

// adoptOffline turns offline permits into open permits, and returns the permits that Redis does not have yet.
func (l *Ledger) adoptOffline(a *localAccount) (missing []openPermit) {
	r := l.rules.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	a.expireOffline(r)
	for id, own := range a.offline {
		p := &openPermit{
			claim: own.claim, charged: own.charged, elapsed: own.elapsed, offline: true, adopted: own, renewedAt: time.Now(),
		}
		switch {
		case own.abandonedUntil != 0 && own.charged:
			p.ended, p.aborted = true, true
		case own.abandonedUntil != 0:
			p.outcome = &limits.Outcome{Sent: true, Elapsed: own.elapsed, Resent: max(0, int(own.copies)-1)}
		}
		a.permits[id] = p
		delete(a.offline, id)
	}
	for _, p := range a.permits {
		if p.offline {
			missing = append(missing, *p)
		}
	}
	return missing
}

const (
	// offlineLeaseTime is the lifetime of an offline lease (account.lua, OFFLINE_LEASE_TIME). offlineLeaseMargin allows
	// for clock drift.
	offlineLeaseTime   = 5 * time.Minute
	offlineLeaseMargin = 10 * time.Second
	// leaseFactor is the size of an offline lease as a multiple of the replica's recent usage.
	leaseFactor = 2
)

// heartbeatCall is the argument of heartbeat.lua.
type heartbeatCall struct {
	Headroom   float64     `json:"headroom"`
	Concurrent int64       `json:"concurrent"`
	Replicas   int64       `json:"replicas"`
	Leases     []leaseCall `json:"leases,omitempty"`
	keys       []leaseKey  // of Leases
}

// leaseCall is the lease that a replica requests, the current lease of the replica ("kept"), and the spends while Redis
// was lost.
type leaseCall struct {
	Name            string    `json:"name"`
	Resource        resource  `json:"resource"`
	UnitsRequested  int64     `json:"units_requested"`
	Unconfirmed     int64     `json:"unconfirmed"`
	UnitsKept       int64     `json:"units_kept"`
	PlacesRequested int64     `json:"places_requested"`
	PlacesKept      int64     `json:"places_kept"`
	Logs            []logCall `json:"logs"`
}

type logCall struct {
	Log       string `json:"log"`
	Limit     int64  `json:"limit"`
	Window    int64  `json:"window"`
	Merge     int64  `json:"merge"`
	Requested int64  `json:"requested"`
	Spent     int64  `json:"spent"`
	Kept      int64  `json:"kept"`
	LastSpent int64  `json:"last_spent"`
}

// leaseReply is an offline lease that heartbeat.lua granted.
type leaseReply struct {
	Units  int64            `json:"units"`
	Places int64            `json:"places"`
	Logs   map[string]int64 `json:"logs"`
}

// heartbeatCall returns the leases that this replica requests for an account. A leaving replica requests no quota and
// keeps no quota.
func (l *Ledger) heartbeatCall(a *localAccount, r *limits.Rules) heartbeatCall {
	l.mu.Lock()
	defer l.mu.Unlock()
	args := heartbeatCall{Headroom: r.Headroom, Concurrent: r.Usable(int64(r.Concurrent)), Replicas: l.replicas.Load()}
	now := a.now()
	for key, c := range a.leases {
		for name, log := range c.spent {
			if sending := c.sending[name]; sending != nil {
				sending.add(log)
			} else {
				c.sending[name] = log
			}
		}
		c.spent = localLogs{}
		units, places, costs := c.unexpired()
		active := time.Since(c.used) < activeTime && !l.leaving
		if l.leaving {
			units, places, costs = 0, 0, nil
		}
		own := leaseCall{
			Name: key.String(), Resource: resourceOf(r, a.kind, c.claim.Resource), UnitsKept: units, PlacesKept: places,
			Unconfirmed: c.windowLog(c.sending, unconfirmedLog, r).total(now),
		}
		var recent int64 // requests in the window of points
		for _, s := range r.Spends(c.claim) {
			sending := c.sending.of(&s)
			spent, used := sending.total(now), a.logs.of(&s).total(now)
			log := logCall{
				Log: logName(&s), Limit: s.Limit, Window: s.Window.Microseconds(), Merge: s.Merge.Microseconds(),
				Spent: spent, Kept: costs[logName(&s)], LastSpent: sending.last(),
			}
			if active {
				log.Requested = leaseFactor*(used+spent) + s.Cost
			}
			if s.Budget == limits.Points {
				recent = (used + spent) / max(1, s.Cost)
			}
			own.Logs = append(own.Logs, log)
		}
		if active {
			// Units return one primary window later, so the lease needs units for a whole primary window.
			windows := 1 + int64((r.For(a.kind, c.claim.Resource).Window+sameReset)/r.Points.Window)
			own.UnitsRequested, own.PlacesRequested = 1+leaseFactor*recent*windows, 1+recent
		}
		args.Leases, args.keys = append(args.Leases, own), append(args.keys, key)
	}
	return args
}

// leased records the leases that Redis granted. Redis has charged the spends in sending. Ledger.mu must be held.
func (a *localAccount) leased(args heartbeatCall, answer reply, r *limits.Rules, until time.Time) {
	write, now := answer.Writes, answer.Now
	for i, granted := range answer.Leases[:min(len(answer.Leases), len(args.keys))] {
		key := args.keys[i]
		c := a.leases[key]
		if c == nil {
			continue
		}
		hadLease := c.units > 0
		c.until, c.units, c.places, c.costs = until, granted.Units, granted.Places, granted.Logs
		for _, s := range r.Spends(c.claim) {
			sent := c.sending.of(&s)
			a.logs.of(&s).spend(max(now, sent.last()), sent.total(now), write)
		}
		a.spendUnconfirmed(c.claim.Resource, r, now, c.windowLog(c.sending, unconfirmedLog, r).total(now), write)
		c.sending, c.settled = localLogs{}, localLogs{}
		for _, p := range a.permits {
			if p.adopted != nil && p.adopted.lease == c {
				p.adopted = nil
			}
		}
		c.held, c.heldUnits, c.heldPlaces = map[string]int64{}, 0, 0
		for _, p := range a.offline {
			if p.lease == c {
				p.begin(r)
			}
		}
		if time.Since(c.used) > activeTime && c.heldPlaces == 0 && c.units == 0 && !hadLease {
			delete(a.leases, key)
		}
	}
}
