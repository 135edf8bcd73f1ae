package limitstest

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// model is one account as the rules have it (design section 5, limits.md section
// 5), written to be read and held against the rules, not to be fast: flat lists
// of what has happened, added up anew for every question. It shares nothing with
// the ledgers but the prices ([limits.Rules.Spends]). Times are microseconds
// since 1970.
type model struct {
	rules   limits.Rules
	kind    policy.CallerKind
	flights []*flying
	logs    []*slidingLog
	windows []*fixedWindow

	// What secondary limit errors have left behind.
	blocked, struck int64 // until when; when the last error came
	errors          int64 // in a row
	probing         bool
	probe           uint64
	ramp            int64 // since when the slow start lasts, zero if it does not
	ceiling, raised int64 // of requests in flight, zero if there is none; since when
}

// flying is a permit that takes a place.
type flying struct {
	id            uint64
	granted, ends int64
	window        *fixedWindow
	units         int64
	holds         []holding
	charged, left bool
}

type holding struct {
	log  *slidingLog
	cost int64
	cpu  bool
}

// slidingLog is every spend of one budget that was ever charged.
type slidingLog struct {
	budget        limits.Reason
	scope         string
	window, merge int64
	spends        []spending
}

type spending struct{ at, cost int64 }

// fixedWindow is what is known of one of the upstream's windows.
type fixedWindow struct {
	resource      string
	length, limit int64
	told          []statement
	over          int64 // the newest reset that has passed
	answered      bool
	silent        int64 // answers that told nothing
	tries, tried  int64
	ghosts        slidingLog // requests that were perhaps counted
}

// statement is what answers have said of one window.
type statement struct{ reset, latest, earliest, limit, used, answers int64 }

// The rules' numbers, in microseconds.
const (
	sec        = int64(time.Second / time.Microsecond)
	leaseLasts = 30 * sec
	lingers    = 10 * sec
)

// after runs the clock: leases that nobody renews end, and are charged for what
// they held at the time they ended (limits.md section 5.5, replica crashed).
func (m *model) after(now int64) {
	ended := func(a, b *flying) int { return cmp.Or(cmp.Compare(a.ends, b.ends), cmp.Compare(a.id, b.id)) }
	for _, f := range slices.SortedFunc(slices.Values(m.flights), ended) {
		if f.ends > now {
			return
		}
		if !f.charged {
			f.window.ghosts.spends = append(f.window.ghosts.spends, spending{f.ends, f.units})
			m.charge(f, f.ends)
		}
		m.land(f)
	}
}

func (m *model) charge(f *flying, at int64) {
	for _, h := range f.holds {
		if h.cost != 0 {
			h.log.spends = append(h.log.spends, spending{at, h.cost})
		}
	}
	f.holds, f.units, f.charged = nil, 0, true
}

// land gives a place back. A probe that ends so has told nothing.
func (m *model) land(f *flying) {
	m.flights = slices.DeleteFunc(m.flights, func(other *flying) bool { return other == f })
	m.unprobe(f.id)
}

func (m *model) unprobe(id uint64) {
	if m.probe == id {
		m.probe = 0
	}
}

// giveUp leaves a flight alone: the upstream may work on it for ten seconds.
func (m *model) giveUp(f *flying, now int64) { f.left, f.ends = true, now+lingers }

func (m *model) flight(id uint64) *flying {
	for _, f := range m.flights {
		if f.id == id {
			return f
		}
	}
	return nil
}

// admit decides on a claim (design section 5.2): all budgets must allow it, and
// the one that takes longest is the reason for a refusal.
func (m *model) admit(c limits.Claim, now int64) limits.Decision {
	m.after(now)
	if f := m.flight(c.ID); f != nil {
		if !f.charged && !f.left {
			f.ends = now + leaseLasts
		}
		return limits.Decision{Granted: true}
	}
	refused, until, why := false, int64(0), limits.Reason("")
	refuse := func(no bool, reason limits.Reason, at int64) {
		if no && (!refused || at > until) {
			refused, until, why = true, at, reason
		}
	}
	refuse(now < m.blocked, limits.Cooldown, m.blocked)
	refuse(now >= m.blocked && m.probing && m.probe != 0, limits.Cooldown, 0)
	refuse(int64(len(m.flights)) >= m.places(now), limits.Concurrency, 0)
	w := m.window(c.Resource)
	f := &flying{id: c.ID, granted: now, ends: now + leaseLasts, window: w, units: 1}
	for _, s := range m.rules.Spends(c) {
		log, limit := m.log(s), s.Limit
		if s.Budget == limits.Primary {
			limit = m.rules.Usable(w.limit)
		}
		no, at := m.tooMuch(log, limit, s.Cost, now)
		refuse(no, s.Budget, at)
		f.holds = append(f.holds, holding{log, s.Cost, s.Budget == limits.CPU})
	}
	no, at := m.closed(w, c.Batch, now)
	refuse(no, limits.Primary, at)
	if refused {
		d := limits.Decision{Reason: why}
		if until != 0 {
			d.Until = time.UnixMicro(until)
		}
		return d
	}
	m.enter(f, now)
	return limits.Decision{Granted: true}
}

// enter lets a flight begin.
func (m *model) enter(f *flying, now int64) {
	m.flights = append(m.flights, f)
	if w := f.window; !w.answered {
		w.tries, w.tried = w.tries+1, now
	}
	if m.probing {
		m.probe = f.id
	}
	// A ceiling that has been reached for ten seconds rises by one.
	if m.ceiling != 0 && int64(len(m.flights)) >= m.ceiling && now-m.raised >= 10*sec {
		m.ceiling, m.raised = m.ceiling+1, now
		if m.ceiling >= m.concurrent() {
			m.ceiling = 0
		}
	}
}

func (m *model) concurrent() int64 { return m.rules.Usable(int64(m.rules.Concurrent)) }

// places is how many requests may be in flight: what is documented, or less
// after limit errors (design section 5.4).
func (m *model) places(now int64) int64 {
	most := m.concurrent()
	if m.ceiling != 0 {
		most = min(most, m.ceiling)
	}
	if m.ramp == 0 {
		return most
	}
	slow := int64(1)
	for t := m.ramp + 5*sec; t <= now && slow < most; t += 5 * sec {
		slow *= 2
	}
	if slow >= most {
		m.ramp = 0
	}
	return min(most, slow)
}

// log finds a sliding log, or begins one.
func (m *model) log(s limits.Spend) *slidingLog {
	for _, l := range m.logs {
		if l.budget == s.Budget && l.scope == s.Scope {
			return l
		}
	}
	l := &slidingLog{budget: s.Budget, scope: s.Scope, window: s.Window.Microseconds(), merge: s.Merge.Microseconds()}
	m.logs = append(m.logs, l)
	return l
}

// groups are the spends that have not returned yet. Those that lie within the
// merging width of the first of a group return together, one window after the
// last of them (limits.md section 1.3).
func (l *slidingLog) groups(now int64) []spending {
	var groups []spending
	var first int64
	for _, s := range l.spends {
		if n := len(groups); n > 0 && (s.at-first < l.merge || s.at == groups[n-1].at) {
			groups[n-1] = spending{s.at, groups[n-1].cost + s.cost}
			continue
		}
		groups, first = append(groups, s), s.at
	}
	return slices.DeleteFunc(groups, func(g spending) bool { return g.at+l.window <= now })
}

func (l *slidingLog) total(now int64) (sum int64) {
	for _, g := range l.groups(now) {
		sum += g.cost
	}
	return sum
}

// held is what flights may yet spend of a log.
func (m *model) held(l *slidingLog) (sum int64) {
	for _, f := range m.flights {
		for _, h := range f.holds {
			if h.log == l {
				sum += h.cost
			}
		}
	}
	return sum
}

// returned is when so much of a log has returned.
func (l *slidingLog) returned(much, now int64) int64 {
	for _, g := range l.groups(now) {
		if much -= g.cost; much <= 0 {
			return g.at + l.window
		}
	}
	panic("more returns than was spent")
}

// tooMuch reports whether a cost does not fit into a log now, and when it does
// at the latest; zero when a flight decides.
func (m *model) tooMuch(l *slidingLog, limit, cost, now int64) (no bool, until int64) {
	spent := l.total(now)
	switch {
	case cost > limit:
		return true, now + l.window
	case spent+cost > limit:
		return true, l.returned(spent+cost-limit, now)
	}
	return spent+m.held(l)+cost > limit, 0
}

// settle takes in what became of a request (limits.md section 5.5).
func (m *model) settle(c limits.Claim, o limits.Outcome, now int64) {
	m.after(now)
	f := m.flight(c.ID)
	if f != nil && (f.charged || f.left) {
		return
	}
	var sent int64
	if f != nil {
		sent = f.granted
		m.outcome(f, o, now)
	}
	if !o.Answered {
		return
	}
	w := m.window(cmp.Or(o.Rate.Resource, c.Resource))
	if o.Rate.Limit != 0 {
		w.hear(o.Rate, sent, now)
	} else if f != nil {
		w.hearNothing(now)
	}
	m.heed(c.ID, f != nil, sent, w, o, now)
	if f != nil && o.Ended {
		m.land(f)
	}
}

// outcome is a row of the table of limits.md section 5.5.
func (m *model) outcome(f *flying, o limits.Outcome, now int64) {
	if !o.Sent {
		m.land(f)
		return
	}
	took := m.rules.Milliseconds(o.Elapsed)
	for i := range f.holds {
		if h := &f.holds[i]; h.cpu && (o.Answered || took > h.cost) {
			h.cost = took
		}
	}
	if n := int64(o.Resent); n > 0 && m.flight(^f.id) == nil {
		copies := &flying{id: ^f.id, ends: now + lingers, window: f.window, units: n, left: true}
		for _, h := range f.holds {
			if !h.cpu {
				copies.holds = append(copies.holds, holding{h.log, n * h.cost, false})
			}
		}
		m.flights = append(m.flights, copies)
	}
	if !o.Answered {
		m.unprobe(f.id)
		m.giveUp(f, now)
		return
	}
	m.charge(f, now)
}

// heed follows the retry rules (Document B section 7).
func (m *model) heed(id uint64, known bool, sent int64, w *fixedWindow, o limits.Outcome, now int64) {
	switch {
	case o.Limited == limits.PrimaryLimit:
		w.close(now)
	case o.Limited == limits.SecondaryLimit && (known || now >= m.blocked):
		m.strike(sent > m.struck || sent == 0 && now >= m.blocked, w, o.RetryAfter, now)
	case o.Limited == limits.NotLimited && !o.Failed && m.probing && m.probe == id:
		m.probing, m.probe, m.ramp = false, 0, now
	case o.Limited == limits.NotLimited && !o.Failed && !m.probing && m.ramp == 0:
		m.errors = 0
	}
}

// strike begins a cool-down: for retry-after, else until the reset if nothing
// remains, else for a minute, doubled for each error in a row.
func (m *model) strike(another bool, w *fixedWindow, retryAfter time.Duration, now int64) {
	if another {
		ceiling := m.concurrent()
		if m.ceiling != 0 {
			ceiling = min(ceiling, m.ceiling)
		}
		m.ceiling, m.raised = max(1, ceiling/2), now
		m.errors++
		m.struck = now
	}
	wait := 60 * sec
	for range min(m.errors-1, 6) {
		wait *= 2
	}
	until := now + wait
	if retryAfter > 0 {
		until = now + retryAfter.Microseconds() + sec
	} else if back := w.usedUpUntil(now); back != 0 {
		until = back
	}
	m.blocked = max(m.blocked, until)
	m.probing, m.probe, m.ramp = true, 0, 0
}

// release gives a place back when the answer's body has ended.
func (m *model) release(id uint64, aborted bool, now int64) {
	m.after(now)
	switch f := m.flight(id); {
	case f == nil || !f.charged || f.left:
	case aborted:
		m.giveUp(f, now)
	default:
		m.land(f)
	}
}

// renew keeps a flight alive, or takes it up again.
func (m *model) renew(c limits.Claim, elapsed time.Duration, now int64) {
	m.after(now)
	f := m.flight(c.ID)
	if f == nil {
		f = &flying{id: c.ID, window: m.window(c.Resource), units: 1}
		for _, s := range m.rules.Spends(c) {
			f.holds = append(f.holds, holding{m.log(s), s.Cost, s.Budget == limits.CPU})
		}
		m.flights = append(m.flights, f)
	}
	if f.left {
		return
	}
	f.ends = now + leaseLasts
	for i := range f.holds {
		if h := &f.holds[i]; h.cpu {
			h.cost = max(h.cost, m.rules.Milliseconds(elapsed))
		}
	}
}
