package limits

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/weirgate/weir/policy"
)

const (
	// permitLife is the lifetime of a permit without renewal. An expired permit is charged, because the upstream has
	// probably counted its request.
	permitLife = 30 * second
	// linger is the time for which the upstream may still count a request after the client has disconnected.
	linger = 10 * second
)

// account holds the budgets and reservations of one account. Each step depends only on this state and a time, so all
// ledgers decide identically. Time never goes back.
//
// Times within an account are microseconds since 1970, as in Redis, so that both ledgers calculate with equal numbers.
// A snapshot saves the exported fields of account and of the types in account.
type account struct {
	Name     string
	Kind     policy.CallerKind
	Logs     map[string]*slidingLog // by logKey
	Windows  map[string]*window     // by resource
	Cooldown cooldown
	// Enforced means that the upstream has reported or enforced a limit. Without it, windows may be unlimited.
	Enforced bool
	// Assumed is the start after an unclean stop, or zero. Logs with short windows count as spent at that time.
	Assumed int64 `json:",omitempty"`

	// accepted means that some outcome was not 401, so the upstream has an account for the credential.
	accepted     bool
	reservations map[uint64]*reservation // by permit ID
	last         int64                   // time of the last step
	nextExpiry   int64                   // no reservation expires earlier
	waits        waits                   // for concurrency slots
	covered      cooldownKey             // the cool-down in the last line of the account
	exceeded     bool                    // the last line of the account does not cover its state
	// In a shared account, others contains the tokens of other replicas by budget, from the last round trip. changes are
	// the changes of the cool-down that other replicas do not have yet.
	shared  bool
	others  map[string]int64
	changes []func(*cooldown)
}

// slotsOf returns the number of concurrency slots that a client uses.
func (a *account) slotsOf(client string) (slots int64) {
	for _, v := range a.reservations {
		if v.client == client {
			slots++
		}
	}
	return slots
}

// reservation is the quota that one permit holds: costs in sliding logs and in a primary window, and one concurrency
// slot. The states of a permit are:
//
//	state      holds            charged          ends
//	held       everything       nothing          at Settle, or 30 s after the last renewal (expired)
//	charged    slot             costs            at Release, or 30 s after the last renewal (expired)
//	abandoned  as before        as before        10 s later (expired)
//	expired    nothing          costs            the permit no longer exists
//	released   nothing          costs, if sent   the permit no longer exists
//
// Settle abandons a permit whose request got no response. Release abandons a permit whose response was aborted.
type reservation struct {
	id              uint64
	client          string
	granted, expiry int64
	window          *window
	cost            int64 // in the window
	holds           []hold
	// charged means that the logs contain the costs as spends. The reservation then holds only the concurrency slot.
	charged bool
	// abandoned means that the reservation ends only by its expiry. lostProbe means that another probe has replaced the request.
	abandoned, lostProbe bool
	// slowStart identifies the slow start of the window to which the request counts ([window.start]), or is zero.
	slowStart int64
}

// hold is the cost that a reservation holds in one log. cpu marks CPU time. quota marks the log of a client, group or tag in
// the window.
type hold struct {
	log        *slidingLog
	cost       int64
	cpu, quota bool
}

// set changes the cost.
func (h *hold) set(cost int64) {
	h.log.held += cost - h.cost
	h.cost = cost
}

func newAccount(name string, kind policy.CallerKind) *account {
	return &account{
		Name: name, Kind: kind, Logs: map[string]*slidingLog{}, Windows: map[string]*window{},
		reservations: map[uint64]*reservation{},
	}
}

// admit checks a claim against the cool-down and all budgets, and reserves from all budgets. If the claim is refused,
// admit reserves nothing. others contains the tokens of other replicas by budget. divides is false if another ledger divides the
// budgets.
func (a *account) admit(c *Claim, needs []Need, r *Rules, now int64, others map[string]int64, divides bool) Decision {
	if v := a.reservations[c.ID]; v != nil { // a repeated claim
		if !v.charged && !v.abandoned {
			v.expiry = now + permitLife
		}
		return Decision{Granted: true}
	}
	if d := a.check(c, needs, r, now, others, divides); !d.Granted {
		return d
	}
	for i := range needs {
		if n := &needs[i]; n.log != nil {
			n.log.pace = n.division(n.log.Total+n.log.held, now).divide().Pace
		}
	}
	w := a.window(r, c.Resource)
	holds := a.holds(c, w, needs)
	v := &reservation{id: c.ID, client: c.Client, granted: now, expiry: now + permitLife, window: w, cost: c.cost(), holds: holds}
	if !w.Confirmed {
		v.slowStart = w.start()
		w.slowStarted, w.lastSlowStart = w.slowStarted+1, now
	}
	a.reserve(v)
	w.Doubt.begin(c.ID, now)
	inUse := int64(len(a.reservations)) + others[slotsBudget]
	if id := c.ID; !a.Cooldown.calm() {
		a.changeCooldown(func(s *cooldown) { s.granted(id, now, inUse, r.Usable(int64(r.Concurrent))) })
	}
	return Decision{Granted: true}
}

// division returns the state of a sliding log or of the concurrency slots, of which a number of tokens is in use.
func (n *Need) division(inUse, now int64) division {
	d := division{
		Cost: n.Cost, Limit: n.Limit, Free: n.Limit - inUse, InUse: inUse, Window: n.Window, Paced: n.Paced, Now: now,
	}
	if n.log != nil {
		d.Pace = n.log.pace
	}
	return d
}

// check decides whether a claim fits into all budgets. It returns the refusal with the latest known end, and records that
// the client waits for the budgets that refuse the claim.
func (a *account) check(c *Claim, needs []Need, r *Rules, now int64, others map[string]int64, divides bool) Decision {
	d, last, beyond := Decision{Granted: true}, int64(0), false
	var refusing *Need
	refuse := func(reason Reason, until int64, n *Need) {
		if d.Granted || until > last {
			d, last, refusing = Decision{Reason: reason}, until, n
		}
	}
	if reason, until := a.Cooldown.blocks(now); reason != "" {
		refuse(reason, until, nil)
	}
	if until := a.Cooldown.Content.Until; c.CreatesContent && now < until {
		refuse(Content, until, nil)
	}
	for i := range needs {
		n := &needs[i]
		switch {
		case n.window != nil:
			a.checkWindow(c, n, needs, r, now, others, divides, refuse)
		case n.Reason == ClientBudget:
			if w := a.window(r, c.Resource); divides && w.usedBy(n.Budget, nil, now)+n.Cost > n.Limit {
				refuse(ClientBudget, w.retryAt(c, r, nil, now), n)
			}
		case n.log != nil || n.Budget == slotsBudget:
			beyond = a.checkTokens(c, n, now, divides, refuse) || beyond
		} // the cool-down checks the probe, and the window its slow start
	}
	if last != 0 {
		d.Wait = waitUntil(last, now)
		d.Early = beyond // tokens of the client may return earlier
	}
	if refusing != nil {
		d.Shared = a.sharedUse(c, needs, refusing, now)
	}
	return d
}

// checkTokens checks a claim against a sliding log or the concurrency slots. It reports whether the claim's client exceeds its
// nominal part.
func (a *account) checkTokens(c *Claim, n *Need, now int64, divides bool, refuse func(Reason, int64, *Need)) (beyond bool) {
	l, waiting, inUse, more := n.log, &a.waits, int64(len(a.reservations)), slotsWait
	if l != nil {
		l.expire(now)
		waiting, inUse, more = &l.waits, l.Total+l.held, waitTime
	}
	d := n.division(inUse, now)
	if divides {
		d.sharing = a.sharingOf(c, n, now)
	}
	v := d.divide()
	if v.Missing > 0 {
		until := int64(0)
		if l != nil {
			until = l.freesAt(v.Missing, n.Cost > n.Limit, now)
		}
		refuse(n.Reason, until, n)
		waiting.add(c, n.Cost, until, now, more)
	}
	if v.Due > 0 {
		refuse(n.Reason, v.Due, n)
		waiting.add(c, n.Cost, v.Due, now, more)
	}
	if v.Yields {
		refuse(ClientBudget, 0, n)
		waiting.add(c, n.Cost, 0, now, more)
	}
	return v.Beyond && l != nil
}

// checkWindow checks a claim against its primary window.
func (a *account) checkWindow(
	c *Claim, n *Need, needs []Need, r *Rules, now int64, others map[string]int64, divides bool, refuse func(Reason, int64, *Need),
) {
	w, foreign := n.window, others[n.Budget]
	ok, until := w.admits(now, r, c.cost(), c.Batch, foreign)
	if !ok {
		refuse(Primary, until, n)
		if c.Batch { // the client does not wait for requests that batch claims may not use
			ok, _ = w.admits(now, r, c.cost(), false, foreign)
		}
	}
	if !ok {
		w.waits.add(c, n.Cost, until, now, waitTime)
		for _, m := range needs {
			if m.log != nil && m.Reason == Primary { // the log of the window is divided
				m.log.waits.add(c, m.Cost, until, now, waitTime)
			}
		}
		return
	}
	if !divides || n.Client == "" {
		return
	}
	switch v := (division{Cost: n.Cost, Limit: n.Limit, Free: w.free(r), Now: now, sharing: a.sharingOf(c, n, now)}).divide(); {
	case v.Missing > 0, v.Kept:
		refuse(ClientBudget, w.retryAt(c, r, nil, now), n)
	case v.Yields:
		refuse(ClientBudget, 0, n)
		w.waits.add(c, n.Cost, 0, now, waitTime)
	}
}

// needs appends what a claim needs from each budget to list.
func (a *account) needs(list []Need, c *Claim, spends []Spend, r *Rules, now int64) []Need {
	w := a.window(r, c.Resource)
	unlimited := a.unlimited(w)
	slots := Need{Budget: slotsBudget, Reason: Concurrency, Cost: 1, Limit: a.Cooldown.slots(now, r.Usable(int64(r.Concurrent)))}
	if len(c.Clients) > 0 {
		slots.Client, slots.Share, slots.Shares = slotsPrefix+c.Client, c.share(), c.shares()
	}
	list = append(list, slots)
	if a.Cooldown.Probing {
		list = append(list, Need{Budget: probeBudget, Reason: Cooldown, Cost: 1, Limit: 1})
	}
	for i := range spends {
		s := &spends[i]
		if unlimited && s.Budget == Primary {
			continue
		}
		n := Need{Reason: s.Budget, Cost: s.Cost, Limit: a.limitOf(s, w, r), Paced: s.paced(c)}
		n.Budget, n.log = a.log(s)
		if s.Budget == Writes { // has one client, and no pace
			list = append(list, n)
			continue
		}
		if s.Budget != CPU { // an estimate, which has no pace
			n.Window = s.Window.Microseconds()
		}
		if len(c.Clients) > 0 {
			n.Client, n.Share, n.Shares = clientKey(n.Budget, c.Client), slots.Share, slots.Shares
		}
		list = append(list, n)
	}
	if unlimited {
		return list
	}
	if !w.Confirmed && w.slowStarted < slowStartBurst {
		list = append(list, Need{Budget: startPrefix + c.Resource, Reason: Primary, Cost: 1, Limit: slowStartBurst})
	}
	whole := Need{Budget: w.budget, Reason: Primary, Cost: w.costOf(c, r), Limit: r.Usable(w.Limit), window: w}
	if w.divided(c) {
		own, others := w.divide(c, r, a.others, now)
		whole.Client, whole.Share, whole.Guarantees = own[0].Budget, c.share(), others
		w.budgets = c.Clients
		list = append(list, own...)
	}
	return append(list, whole)
}

// holds returns the costs that a reservation of a claim holds.
func (a *account) holds(c *Claim, w *window, needs []Need) []hold {
	perNeed := 1
	if len(c.Clients) > 0 {
		perNeed = 2
	}
	list := make([]hold, 0, perNeed*len(needs))
	for i := range needs {
		n := &needs[i]
		if n.log == nil {
			continue
		}
		list = append(list, hold{log: n.log, cost: n.Cost, cpu: n.Reason == CPU})
		if n.Client != "" {
			list = append(list, hold{log: a.clientLog(n), cost: n.Cost, cpu: n.Reason == CPU})
		}
	}
	if w.divided(c) && !a.unlimited(w) {
		if c.Tag != "" && w.Clients[c.Tag] == nil { // the names of tags change
			w.removeIdleClients(a.last)
		}
		for _, name := range c.names() {
			list = append(list, hold{log: w.client(name), cost: c.cost(), quota: true})
		}
	}
	return list
}

func (a *account) reserve(v *reservation) {
	a.nextExpiry = min(a.nextExpiry, v.expiry)
	for _, h := range v.holds {
		h.log.held += h.cost
	}
	v.window.inUse += v.cost
	a.take(v)
	a.reservations[v.id] = v
}

// take subtracts reserved tokens from those that the last line covers.
func (a *account) take(v *reservation) {
	for _, h := range v.holds {
		if h.log.left -= h.cost; h.log.left < 0 && h.log.isSaved() {
			a.exceeded = true
		}
	}
	v.window.left -= v.cost
}

// Settle charges a permit for the outcome of its request. The budgets learn from the response even if the permit has
// expired.
func (a *account) Settle(p *Permit, o *Outcome, r *Rules, now int64) {
	now = a.advance(now)
	v := a.reservations[p.ID]
	if v != nil && (v.charged || v.abandoned) {
		return // settled before
	}
	var sent, cost int64 // time of the grant and cost; zero if the permit has expired
	if v != nil && !o.Sent {
		for _, h := range v.holds {
			h.log.held -= h.cost
		}
		v.window.inUse -= v.cost
		a.remove(v)
		a.returnSlowStart(v, now)
	} else if v != nil {
		v.keepSlowStart()
		if o.Cost > 0 {
			v.setCost(int64(min(o.Cost, costCeiling)))
		}
		sent, cost = v.granted, v.cost
		v.raiseCPU(r.Milliseconds(o.Elapsed), o.Answered)
		if copyID := ^v.id; o.Resent > 0 && a.reservations[copyID] == nil {
			a.reserveCopies(v, copyID, int64(o.Resent), now)
		}
		if o.Answered {
			a.charge(v, now)
		} else { // the upstream may still count the request: charge it at expiry
			a.loseProbe(v)
			a.abandon(v, now)
		}
	}
	if !o.Answered {
		return
	}
	if o.Unauthorized && a.Kind != policy.Unauthenticated {
		withoutRate := *o
		withoutRate.Rate = policy.Rate{}
		o = &withoutRate
	}
	a.Enforced = a.Enforced || o.Enforces()
	retryAfter := min(o.RetryAfter, policy.LongestWait)
	w, rate, foreign := a.window(r, cmp.Or(o.Rate.Resource, p.Resource)), o.Rate, false
	if rate.Limit != 0 {
		anonymous := a.Kind != policy.Unauthenticated && rate.Limit == r.Primary.Unauthenticated
		switch w.learn(rate, sent, o.ownCost(v != nil), now, anonymous, o.Limited != policy.NotLimited) {
		case learnedOpen:
			if v != nil {
				w.reported += cost
			}
		case learnedDoubt: // the window of the known reports may have counted the request
			a.spendUnconfirmed(w, now, cost)
			foreign = anonymous // the exhausted budget may be that of the address
		case learnedNothing:
			a.spendUnconfirmed(w, now, cost)
		case learnedEnded:
		}
	} else if v != nil {
		w.learnNothing(o.Silent(), now)
		a.spendUnconfirmed(w, now, cost)
	}
	switch {
	case o.Limited == policy.LimitPrimary && foreign: // the probe decides
	case o.Limited == policy.LimitPrimary:
		w.exhaust(retryAfter, now)
	case o.Limited == policy.LimitContent:
		a.changeCooldown(func(s *cooldown) {
			s.Content.limited(retryAfter, s.Content.separate(sent, now), 0, now)
		})
	case o.Limited == policy.LimitSecondary && (v != nil || now >= a.Cooldown.Until): // otherwise this call may be a repetition
		separate := a.Cooldown.separate(sent, now)
		reopens := w.exhaustedUntil(now)
		if separate && reopens == 0 {
			a.learnAllowances(p.Claim, r, now)
		}
		a.changeCooldown(func(s *cooldown) { // another replica may know an earlier error of the same cause
			s.limited(retryAfter, s.separate(sent, now), reopens, now, r.Usable(int64(r.Concurrent)), int64(r.Probes))
		})
	case o.Limited == policy.NotLimited && !o.Failed && !a.Cooldown.calm():
		id := p.ID
		a.changeCooldown(func(s *cooldown) { s.succeeded(id, now) })
	}
	if last := a.Cooldown.Content; p.CreatesContent && o.Succeeded && o.Limited == policy.NotLimited && last.Errors > 0 && sent > last.LastError {
		a.changeCooldown(func(s *cooldown) { s.Content.Errors = 0 })
	}
	if v != nil && o.Ended {
		a.remove(v)
	}
}

// returnSlowStart removes a request that was not sent from the slow start of its window.
func (a *account) returnSlowStart(v *reservation, now int64) {
	w := v.window
	if w.expire(now); v.slowStart != w.start() {
		return // the request did not belong to the slow start, or the window has ended
	}
	w.slowStarted, w.lastSlowStart = w.slowStarted-1, w.sentSlowStart
	for _, other := range a.reservations {
		if other.window == w && other.slowStart == v.slowStart {
			w.lastSlowStart = max(w.lastSlowStart, other.granted)
		}
	}
}

// keepSlowStart records that the request of a reservation was or may have been sent.
func (v *reservation) keepSlowStart() {
	if v.slowStart != 0 {
		v.window.sentSlowStart = max(v.window.sentSlowStart, v.granted)
	}
}

// ownCost returns the cost that the upstream may have counted for a request whose response named the window, if its permit is known. An
// upstream may count a request that it answers with a secondary or a content limit error.
func (o *Outcome) ownCost(known bool) int64 {
	if !known || o.Uncounted || o.Limited == policy.LimitPrimary {
		return 0
	}
	return int64(min(max(1, o.Cost), costCeiling))
}

// changeCooldown applies a change of the cool-down. A shared account keeps the change for the other replicas.
func (a *account) changeCooldown(change func(*cooldown)) {
	if !a.shared {
		change(&a.Cooldown)
		return
	}
	before := a.Cooldown.clone()
	change(&a.Cooldown)
	if !before.equal(&a.Cooldown) {
		a.changes = append(a.changes, change)
	}
}

// raiseCPU raises the CPU time that a reservation holds to the time taken. If final is set, raiseCPU may also lower the
// CPU time.
func (v *reservation) raiseCPU(taken int64, final bool) {
	for i := range v.holds {
		if h := &v.holds[i]; h.cpu && (final || taken > h.cost) {
			h.set(taken)
		}
	}
}

// setCost replaces the estimate by the true cost, in the window and in the budgets of the claim's client, group and tag.
func (v *reservation) setCost(cost int64) {
	v.window.inUse += cost - v.cost
	v.window.left -= max(0, cost-v.cost)
	v.cost = cost
	for i := range v.holds {
		if h := &v.holds[i]; h.quota {
			h.set(cost)
		}
	}
}

// reserveCopies reserves the costs of n copies of a request that the transport sent earlier. The outcome of the copies
// is unknown, so their reservation expires like the reservation of an abandoned request.
func (a *account) reserveCopies(v *reservation, id uint64, n, now int64) {
	copies := &reservation{id: id, client: v.client, granted: v.granted, window: v.window, cost: n * v.cost}
	for _, h := range v.holds {
		if !h.cpu {
			copies.holds = append(copies.holds, hold{log: h.log, cost: n * h.cost})
		}
	}
	a.abandon(copies, now)
	a.reserve(copies)
}

// loseProbe lets another permit replace a probe whose result is unknown. The upstream may still work on the lost probe, so
// further probes wait until it has certainly stopped: while probes hang, they would fill all slots.
func (a *account) loseProbe(v *reservation) {
	if a.Cooldown.probe != v.id {
		return
	}
	for _, other := range a.reservations {
		if other.lostProbe {
			return
		}
	}
	v.lostProbe = true
	a.Cooldown.inconclusive(v.id)
}

// abandon makes a reservation expire when the upstream has certainly stopped working on the request.
func (a *account) abandon(v *reservation, now int64) {
	v.abandoned, v.expiry = true, now+linger
	a.nextExpiry = min(a.nextExpiry, v.expiry)
}

// charge spends the costs that a reservation holds. The reservation then holds only its concurrency slot.
func (a *account) charge(v *reservation, at int64) {
	for _, h := range v.holds {
		h.log.held -= h.cost
		h.log.spend(at, h.cost)
	}
	v.window.inUse -= v.cost
	v.window.Doubt.end(v.id, true)
	v.holds, v.cost, v.charged = nil, 0, true
}

// remove frees the concurrency slot of a reservation.
func (a *account) remove(v *reservation) {
	delete(a.reservations, v.id)
	a.Cooldown.inconclusive(v.id)
	v.window.Doubt.end(v.id, false)
}

// Release frees the concurrency slot of a settled permit.
func (a *account) Release(id uint64, aborted bool, now int64) {
	now = a.advance(now)
	v := a.reservations[id]
	switch {
	case v == nil || !v.charged || v.abandoned:
	case aborted:
		a.abandon(v, now)
	default:
		a.remove(v)
	}
}

// Renew extends a permit in use. If the permit has expired, Renew reserves again.
func (a *account) Renew(p *OpenPermit, r *Rules, now int64) {
	now = a.advance(now)
	v := a.reservations[p.ID]
	if v == nil {
		w := a.window(r, p.Resource)
		v = &reservation{id: p.ID, client: p.Client, window: w, cost: p.cost(), holds: a.holds(&p.Claim, w, a.needs(nil, &p.Claim, r.Spends(nil, &p.Claim), r, now))}
		a.reserve(v)
	}
	if v.abandoned {
		return
	}
	v.expiry = now + permitLife
	v.raiseCPU(r.Milliseconds(p.Elapsed), false)
}

// advance moves the account to a time, and returns the time of the account. Expired reservations are charged and
// removed, in the order of their expiry.
func (a *account) advance(now int64) int64 {
	a.last = max(a.last, now)
	if a.last < a.nextExpiry {
		return a.last
	}
	a.nextExpiry = math.MaxInt64
	var expired []*reservation
	for _, v := range a.reservations {
		if v.expiry <= a.last {
			expired = append(expired, v)
		} else {
			a.nextExpiry = min(a.nextExpiry, v.expiry)
		}
	}
	slices.SortFunc(expired, func(x, y *reservation) int {
		return cmp.Or(cmp.Compare(x.expiry, y.expiry), cmp.Compare(x.id, y.id))
	})
	for _, v := range expired {
		if !v.charged {
			a.accepted = true // the outcome is unknown
			v.keepSlowStart()
			a.spendUnconfirmed(v.window, v.expiry, v.cost)
			a.charge(v, v.expiry)
		}
		a.remove(v)
	}
	return a.last
}

func logKey(budget Reason, scope string) string { return string(budget) + ":" + scope }

// log returns the sliding log of a spend with its key, and creates it if necessary.
func (a *account) log(s *Spend) (key string, l *slidingLog) {
	l = a.Logs[logKey(s.Budget, s.Scope)]
	if l == nil {
		l = &slidingLog{Budget: s.Budget, Scope: s.Scope}
		a.Logs[logKey(s.Budget, s.Scope)] = l
	}
	if l.key == "" { // new or from a snapshot
		l.key = logKey(s.Budget, s.Scope)
	}
	l.Window, l.Merge = s.Window.Microseconds(), s.Merge.Microseconds()
	return l.key, l
}

// clientLog returns the log that counts the tokens that the client of a need uses of its log, and creates it if necessary.
func (a *account) clientLog(n *Need) *slidingLog {
	l := a.Logs[n.Client]
	if l == nil {
		l = &slidingLog{Budget: ClientBudget, Scope: strings.TrimPrefix(n.Client, clientPrefix)}
		a.Logs[n.Client] = l
	}
	l.Window, l.Merge, l.whole = n.log.Window, n.log.Merge/clientMerges, n.Budget
	return l
}

// kind returns the kind of the caller. The token of a workflow looks like one of an installation or of a user, until a
// report of core shows its limit, if that is not the limit of the other kind, too.
func (a *account) kind(r *Rules) policy.CallerKind {
	core, limit := a.Windows[policy.Core], r.For(policy.Workflow, policy.Core).Max
	if a.Kind != policy.Unauthenticated && core != nil && core.Confirmed && core.Limit == int64(limit) && r.For(a.Kind, policy.Core).Max != limit {
		return policy.Workflow
	}
	return a.Kind
}

// window returns the window of a resource, and creates the window if necessary.
func (a *account) window(r *Rules, resource string) *window {
	w := a.Windows[resource]
	if w == nil {
		w = newWindow(resource, r.For(a.kind(r), resource))
		a.Windows[resource] = w
	}
	if w.budget == "" { // new or from a snapshot
		w.budget = windowPrefix + resource
	}
	return w
}

// unlimitedAfter is the number of silent responses after which a window is unlimited.
const unlimitedAfter = 3

// unlimited reports whether a window admits without limit: the upstream has never reported or enforced a limit of the
// account, and several requests of the resource succeeded.
func (a *account) unlimited(w *window) bool { return !a.Enforced && w.Silent >= unlimitedAfter }

// spendUnconfirmed adds the cost of requests without a report to a window, unless the window is unlimited. If the upstream
// enforces a limit later, the window therefore counts from that time.
func (a *account) spendUnconfirmed(w *window, at, cost int64) {
	if !a.unlimited(w) {
		w.Unconfirmed.spend(at, cost)
	}
}

// idle removes idle logs and windows. It reports whether the account has the state of a new account.
func (a *account) idle(now int64) bool {
	now = a.advance(now)
	if len(a.reservations) > 0 {
		return false
	}
	maps.DeleteFunc(a.Logs, func(_ string, l *slidingLog) bool { return l.idle(now) })
	maps.DeleteFunc(a.Windows, func(resource string, w *window) bool {
		return a.Logs[logKey(Primary, resource)] == nil && w.idle(now) // the log has the limit of its window
	})
	return len(a.Logs) == 0 && len(a.Windows) == 0 && a.Cooldown.idle(now)
}

// Open opens the account, like [Operator.Open].
func (a *account) Open(r *Rules, now int64) error {
	now = a.advance(now)
	change, exhausted := a.Cooldown.opening(now), false
	for resource, w := range a.Windows {
		if w.isExhausted(r, now) {
			w.open(now, int64(r.For(a.kind(r), resource).Max))
			exhausted = true
		}
	}
	switch {
	case change != nil:
		a.changeCooldown(change)
	case !exhausted:
		return ErrNotClosed
	}
	return nil
}
