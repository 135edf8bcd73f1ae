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
// reserves for the replica. It is all that the replica may use while Redis is lost.
type offlineLease struct {
	claim limits.Claim // the last one
	used  time.Time    // when a permit was granted

	// What the lease grants: its end on the local clock, requests, places among concurrent requests, and costs by log.
	until         time.Time
	units, places int64
	costs         map[string]int64
	// What was used of the lease: spent was charged while Redis was lost, sending is on its way to Redis, and settled
	// is sent with the outcomes of permits.
	spent, sending, settled localLogs
	// What offline permits hold of the lease: costs by log, requests and places.
	held                  map[string]int64
	heldUnits, heldPlaces int64
}

// Names of logs that a lease has beside its sliding logs. Units return one window after their answers, because no
// open window has counted them then. Unconfirmed units are those that no answer reported.
const (
	unitsLog       = "units"
	unconfirmedLog = "unconfirmed"
)

// lease returns the offline lease for a claim, and creates an empty one if needed. The caller holds Ledger.mu.
func (a *localAccount) lease(c limits.Claim) *offlineLease {
	key := leaseKeyOf(c)
	own := a.leases[key]
	if own == nil {
		own = &offlineLease{claim: c, held: map[string]int64{}, spent: localLogs{}, sending: localLogs{}, settled: localLogs{}}
		a.leases[key] = own
	}
	return own
}

// windowLog returns one of the logs of units.
func (o *offlineLease) windowLog(logs localLogs, name string, r *limits.Rules) *localLog {
	return logs.ofWindow(name, r.For(o.claim.Kind, knownResource(o.claim.Resource, "")).Window)
}

// usedUnits returns how many units of the lease are used.
func (o *offlineLease) usedUnits(r *limits.Rules, now int64) int64 {
	used := o.heldUnits
	for _, logs := range []localLogs{o.spent, o.sending, o.settled} {
		used += o.windowLog(logs, unitsLog, r).total(now)
	}
	return used
}

// usedOf returns what is used of a log.
func (o *offlineLease) usedOf(s *limits.Spend, now int64) int64 {
	return o.spent.of(s).total(now) + o.sending.of(s).total(now) + o.settled.of(s).total(now) + o.held[logName(s)]
}

// unexpired returns what the lease grants, or nothing if it has expired.
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
	charged bool // only its place is still taken
	elapsed time.Duration
	// copies is the number of earlier copies of the request, or 0 if the permit is for the request itself.
	copies int64
	// abandonedUntil is when an abandoned permit ends, on the clock of Redis; 0 for others.
	abandonedUntil int64
}

// spends returns what the permit holds.
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

// units returns how many requests the permit holds.
func (p *offlinePermit) units() int64 {
	if p.charged {
		return 0
	}
	return max(1, p.copies)
}

// begin adds what the permit holds to its lease, and end subtracts it. The caller holds Ledger.mu.
func (p *offlinePermit) begin(r *limits.Rules) { p.hold(r, 1) }
func (p *offlinePermit) end(r *limits.Rules)   { p.hold(r, -1) }

func (p *offlinePermit) hold(r *limits.Rules, sign int64) {
	for _, s := range p.spends(r) {
		p.lease.held[logName(&s)] += sign * s.Cost
	}
	p.lease.heldUnits += sign * p.units()
	p.lease.heldPlaces += sign
}

// extend raises the CPU time that the permit holds. The caller holds Ledger.mu.
func (p *offlinePermit) extend(elapsed time.Duration, r *limits.Rules) {
	p.end(r)
	p.elapsed = max(p.elapsed, elapsed)
	p.begin(r)
}

// charge turns what the permit holds into spends. reported means that an answer reported its primary window. The
// caller holds Ledger.mu.
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

// settle charges the permit for an answer that took some time. The caller holds Ledger.mu.
func (p *offlinePermit) settle(logs localLogs, elapsed time.Duration, r *limits.Rules, now int64, reported bool) {
	p.end(r)
	p.claim.CPU, p.elapsed = 0, elapsed
	p.begin(r)
	p.charge(logs, r, now, reported)
}

// Store is the reason of refusals while Redis is lost, and while replicas restore an account.
const Store limits.Reason = "store"

// retryOffline is when a claim may be repeated that was refused because Redis is lost.
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
		since = now // Redis is back
	}
	// Only Redis can coordinate the probe and the slow start after a cool-down.
	if until := time.UnixMicro(a.cooldownUntil - a.clockOffset); until.After(since) {
		return limits.Decision{Reason: limits.Cooldown, Until: latest(until, refused.Until)}
	}
	if until := a.exhaustedUntil(knownResource(c.Resource, ""), r); until.After(now) {
		return limits.Decision{Reason: limits.Primary, Until: until}
	}
	for _, s := range r.Spends(c) {
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

// exhaustedUntil returns when a primary window reopens that has nothing left according to the last
// reply of Redis and to later answers. It returns a time in the past if something is left. The caller holds Ledger.mu.
func (a *localAccount) exhaustedUntil(res string, r *limits.Rules) (until time.Time) {
	unreported := a.unreported(res)
	if b, ok := a.budgets[res]; ok && r.Usable(int64(b.Limit))-int64(b.Used) <= unreported {
		until = b.Reset.Add(time.Second)
	}
	unreported += a.unconfirmed(res, r).total(a.now()) // the replies of Redis include these
	for _, o := range a.observed[res] {
		if r.Usable(int64(o.Limit))-int64(o.Used) <= unreported {
			until = latest(until, time.UnixMicro(o.reopens()-a.clockOffset))
		}
	}
	return until
}

// unreported returns how many requests of a resource this replica sent that no answer reported. The caller holds
// Ledger.mu.
func (a *localAccount) unreported(res string) (n int64) {
	for _, c := range a.leases {
		if knownResource(c.claim.Resource, "") != res {
			continue
		}
		for _, logs := range []localLogs{c.spent, c.sending} {
			if log := logs[unconfirmedLog]; log != nil {
				n += log.total(a.now())
			}
		}
	}
	for _, p := range a.offline {
		if knownResource(p.claim.Resource, "") == res {
			n += p.units()
		}
	}
	for _, p := range a.permits {
		given := p.outcome != nil && !p.outcome.Sent
		if p.unsettled() && !p.observed && !given && knownResource(p.claim.Resource, "") == res {
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

// finishOffline applies a settlement to an offline permit, and reports whether there is one. The caller holds Ledger.mu.
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

// endOffline removes an offline permit. The caller holds Ledger.mu.
func (a *localAccount) endOffline(p *offlinePermit, r *limits.Rules) {
	p.end(r)
	delete(a.offline, p.claim.ID)
}

// expireOffline ends abandoned permits that the upstream cannot count any more. The caller holds Ledger.mu.
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
	// offlineLeaseTime is how long an offline lease lives (account.lua, OFFLINE_LEASE_TIME). offlineLeaseMargin allows
	// for clock drift.
	offlineLeaseTime   = 5 * time.Minute
	offlineLeaseMargin = 10 * time.Second
	// leaseFactor is how many times the recent usage an offline lease has.
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

// leaseCall is the lease that a replica requests, its current lease ("kept"), and its spends while Redis was lost.
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

// leaseReply is an offline lease that heartbeat.lua grants.
type leaseReply struct {
	Units  int64            `json:"units"`
	Places int64            `json:"places"`
	Logs   map[string]int64 `json:"logs"`
}

// heartbeatCall returns the leases that this replica requests for an account. A leaving replica requests and keeps nothing.
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
			// Units return one primary window later, so the lease needs units for all of it.
			windows := 1 + int64((r.For(a.kind, c.claim.Resource).Window+sameReset)/r.Points.Window)
			own.UnitsRequested, own.PlacesRequested = 1+leaseFactor*recent*windows, 1+recent
		}
		args.Leases, args.keys = append(args.Leases, own), append(args.keys, key)
	}
	return args
}

// leased records the leases that Redis granted. Redis has charged what was sending. The caller holds Ledger.mu.
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
		a.unconfirmed(c.claim.Resource, r).spend(now, c.windowLog(c.sending, unconfirmedLog, r).total(now), write)
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
