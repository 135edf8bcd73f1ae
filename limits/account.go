package limits

import (
	"cmp"
	"slices"

	"github.com/weirgate/weir/policy"
)

const (
	// leaseTime is how long a permit lives without being renewed. What its
	// request may have cost is charged when it ends: it was probably counted.
	leaseTime = 30 * second
	// linger is how long the upstream may still be at work on a request that
	// was given up, and may count it.
	linger = 10 * second
)

// account is the state of one account: a machine whose steps are functions of
// that state and a time, so that every ledger decides alike. No step sees an
// earlier time than the one before. Of logs and windows there are few: as maps they took a
// third of what an account takes.
type account struct {
	name    string
	kind    policy.CallerKind
	last    int64
	leases  map[uint64]*lease
	expires int64 // no lease ends before
	logs    []*spendLog
	windows []*window
	cool    cooldown
}

// logKey names a sliding log of an account.
type logKey struct {
	budget Reason
	scope  string
}

// lease is a permit in flight: a place among the concurrent requests, a unit of
// its window, and a hold in every log it draws on.
type lease struct {
	id              uint64
	granted, expiry int64
	window          *window
	units           int64 // of the window: one for each copy sent
	holds           []hold
	// charged leases have been settled; only their place is still taken.
	charged bool
	// left leases belong to nobody any more: they hold until they end.
	left bool
}

type hold struct {
	log  *spendLog
	cost int64
	cpu  bool
}

func newAccount(name string, kind policy.CallerKind) *account {
	return &account{name: name, kind: kind, leases: map[uint64]*lease{}}
}

// advance brings the account to a time, and ends the leases that expired.
func (a *account) advance(now int64) int64 {
	a.last = max(a.last, now)
	if len(a.leases) > 0 && a.last >= a.expires {
		a.expire()
	}
	return a.last
}

// expire charges what expired leases hold, in the order in which they ended.
func (a *account) expire() {
	var ended []*lease
	a.expires = 0
	for _, l := range a.leases {
		if l.expiry <= a.last {
			ended = append(ended, l)
		} else if a.expires == 0 || l.expiry < a.expires {
			a.expires = l.expiry
		}
	}
	slices.SortFunc(ended, func(x, y *lease) int {
		return cmp.Or(cmp.Compare(x.expiry, y.expiry), cmp.Compare(x.id, y.id))
	})
	for _, l := range ended {
		if !l.charged {
			l.window.ghosts.spend(l.expiry, l.units)
			a.charge(l, l.expiry)
		}
		a.remove(l)
	}
}

// charge turns what a lease holds into spends of that time.
func (a *account) charge(l *lease, at int64) {
	for _, h := range l.holds {
		h.log.held -= h.cost
		h.log.spend(at, h.cost)
	}
	l.window.inFlight -= l.units
	l.holds, l.units, l.charged = nil, 0, true
}

func (a *account) remove(l *lease) {
	delete(a.leases, l.id)
	a.cool.gone(l.id)
}

// verdict is what admit has found: the strictest of all budgets.
type verdict struct {
	refused bool
	until   int64 // zero when a permit in flight decides
	reason  Reason
}

func (v *verdict) add(reason Reason, until int64) {
	if !v.refused || until > v.until {
		v.refused, v.until, v.reason = true, until, reason
	}
}

// admit decides on all budgets of a claim at once: it takes a lease, or changes
// nothing.
func (a *account) admit(c *Claim, spends []Spend, m *Memory, now int64) verdict {
	now = a.advance(now)
	if l := a.leases[c.ID]; l != nil {
		if !l.charged && !l.left {
			l.expiry = now + leaseTime // it goes only now
		}
		return verdict{}
	}
	var v verdict
	if refused, until := a.cool.refuses(now); refused {
		v.add(Cooldown, until)
	}
	concurrent := m.rules.Usable(int64(m.rules.Concurrent))
	if int64(len(a.leases)) >= a.cool.cap(now, concurrent) {
		v.add(Concurrency, 0)
	}
	l := lease{id: c.ID, granted: now, expiry: now + leaseTime, window: a.window(&m.rules, c.Resource), units: 1}
	for i := range spends {
		s := &spends[i]
		log, limit := a.log(s, m), s.Limit
		if s.Budget == Primary {
			limit = m.rules.Usable(l.window.limit) // the log beside a window has its limit
		}
		if ok, until := log.admits(now, limit, s.Cost); !ok {
			v.add(s.Budget, until)
		}
		l.holds = append(l.holds, hold{log, s.Cost, s.Budget == CPU})
	}
	if ok, until := l.window.admits(now, &m.rules, c.Batch); !ok {
		v.add(Primary, until)
	}
	if !v.refused {
		a.take(&l)
		l.window.try(now)
		a.cool.granted(c.ID, now, int64(len(a.leases)), concurrent)
	}
	return v
}

// take enters a lease with what it holds.
func (a *account) take(l *lease) {
	for _, h := range l.holds {
		h.log.held += h.cost
	}
	l.window.inFlight += l.units
	if len(a.leases) == 0 || l.expiry < a.expires {
		a.expires = l.expiry
	}
	kept := *l
	a.leases[l.id] = &kept
}

// settle charges a permit with what became of its request. What the answer
// said is learned also when the permit has expired.
func (a *account) settle(p *Permit, o *Outcome, r *Rules, now int64) {
	now = a.advance(now)
	l := a.leases[p.ID]
	if l != nil && (l.charged || l.left) {
		return // settled before
	}
	var sent int64 // unknown when the lease is gone, or was taken up again
	if l != nil {
		sent = l.granted
		a.settleLease(l, o, r, now)
	}
	if !o.Answered {
		return
	}
	w := a.window(r, cmp.Or(o.Rate.Resource, p.Resource))
	if o.Rate.Limit != 0 {
		w.learn(o.Rate, sent, now)
	} else if l != nil {
		w.hush(now)
	}
	a.heed(p.ID, l != nil, sent, w, o, r, now)
	if l != nil && l.charged && o.Ended {
		a.remove(l)
	}
}

// heed follows the retry rules (Document B section 7) after an answer.
func (a *account) heed(id uint64, known bool, sent int64, w *window, o *Outcome, r *Rules, now int64) {
	switch o.Limited {
	case NotLimited:
		if !o.Failed {
			a.cool.well(id, now)
		}
	case PrimaryLimit:
		w.exhaust(now)
	case SecondaryLimit:
		if !known && now < a.cool.until {
			return // perhaps heeded before
		}
		fresh := sent > a.cool.since || sent == 0 && now >= a.cool.until
		a.cool.strike(o.RetryAfter, fresh, w.back(now), now, r.Usable(int64(r.Concurrent)))
	}
}

// settleLease charges the lease of a request by its outcome (limits.md section
// 5.5).
func (a *account) settleLease(l *lease, o *Outcome, r *Rules, now int64) {
	if !o.Sent {
		for _, h := range l.holds {
			h.log.held -= h.cost
		}
		l.window.inFlight -= l.units
		a.remove(l)
		return
	}
	taken := r.Milliseconds(o.Elapsed)
	for i := range l.holds {
		if h := &l.holds[i]; h.cpu && (o.Answered || taken > h.cost) {
			h.log.held += taken - h.cost
			h.cost = taken
		}
	}
	if o.Resent > 0 && a.leases[^l.id] == nil {
		a.leaveCopies(l, int64(o.Resent), now)
	}
	if !o.Answered {
		// The upstream may still come to count it: the lease goes on holding
		// all it does, and is charged when it ends.
		a.cool.gone(l.id)
		a.leave(l, now)
		return
	}
	a.charge(l, now)
}

// leaveCopies enters a lease for what the transport sent before it sent the
// request for the last time. Of these copies nobody knows: they are as one given up.
func (a *account) leaveCopies(l *lease, n, now int64) {
	copies := lease{id: ^l.id, granted: l.granted, expiry: now + linger, window: l.window, units: n, left: true}
	for _, h := range l.holds {
		if h.cost *= n; !h.cpu && h.cost > 0 {
			copies.holds = append(copies.holds, h)
		}
	}
	a.take(&copies)
}

// leave lets a lease end when the upstream has surely stopped working.
func (a *account) leave(l *lease, now int64) {
	l.left, l.expiry = true, now+linger
	a.expires = min(a.expires, l.expiry)
}

// release gives back the place of a permit that is settled.
func (a *account) release(id uint64, aborted bool, now int64) {
	now = a.advance(now)
	l := a.leases[id]
	switch {
	case l == nil || !l.charged || l.left:
	case aborted:
		a.leave(l, now)
	default:
		a.remove(l)
	}
}

// renew keeps a permit in flight alive, or takes it up again.
func (a *account) renew(f *OpenPermit, spends []Spend, m *Memory, now int64) {
	now = a.advance(now)
	taken := m.rules.Milliseconds(f.Elapsed)
	l := a.leases[f.ID]
	if l == nil {
		again := lease{id: f.ID, expiry: now + leaseTime, window: a.window(&m.rules, f.Resource), units: 1}
		for i := range spends {
			s := &spends[i]
			again.holds = append(again.holds, hold{a.log(s, m), s.Cost, s.Budget == CPU})
		}
		a.take(&again)
		l = a.leases[f.ID]
	}
	if l.left {
		return
	}
	l.expiry = now + leaseTime
	for i := range l.holds {
		if h := &l.holds[i]; h.cpu && taken > h.cost {
			h.log.held += taken - h.cost
			h.cost = taken
		}
	}
}

// knownLog returns the log of that name, or nil.
func (a *account) knownLog(key logKey) *spendLog {
	if i := slices.IndexFunc(a.logs, func(l *spendLog) bool { return l.key == key }); i >= 0 {
		return a.logs[i]
	}
	return nil
}

// knownWindow returns the window of a resource, or nil.
func (a *account) knownWindow(resource string) *window {
	if i := slices.IndexFunc(a.windows, func(w *window) bool { return w.resource == resource }); i >= 0 {
		return a.windows[i]
	}
	return nil
}

// log returns the account's log that a spend is taken from.
func (a *account) log(s *Spend, m *Memory) *spendLog {
	key := logKey{s.Budget, s.Scope}
	l := a.knownLog(key)
	if l == nil {
		l = &spendLog{key: key}
		a.logs = append(a.logs, l)
		m.prefill(l, s)
	}
	l.window, l.merge = s.Window.Microseconds(), s.Merge.Microseconds()
	return l
}

// window returns the account's window for a resource. What a resource is
// called comes from the catalogue or the upstream, so their number is bounded:
// a name that is in neither's list counts as core.
func (a *account) window(r *Rules, resource string) *window {
	if w := a.knownWindow(resource); w != nil {
		return w
	}
	if !policy.IsResource(resource) {
		return a.window(r, policy.Core)
	}
	w := newWindow(resource, r.For(a.kind, resource))
	a.windows = append(a.windows, w)
	return w
}

// idle reports whether nothing is known that a new account would not know, and
// forgets what is idle of it.
func (a *account) idle(now int64) bool {
	now = a.advance(now)
	if len(a.leases) > 0 {
		return false
	}
	a.logs = slices.DeleteFunc(a.logs, func(l *spendLog) bool { return l.idle(now) })
	a.windows = slices.DeleteFunc(a.windows, func(w *window) bool { return w.idle(now) })
	return len(a.logs) == 0 && len(a.windows) == 0 && a.cool.idle(now)
}
