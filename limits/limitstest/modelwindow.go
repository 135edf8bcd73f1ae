package limitstest

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// window returns the window of a resource. Every name is a separate window.
func (m *model) window(resource string) *fixedWindow {
	for _, w := range m.windows {
		if w.resource == resource {
			return w
		}
	}
	documented := m.rules.For(m.kind, resource)
	length := documented.Window.Microseconds()
	w := &fixedWindow{resource: resource, length: length, limit: int64(documented.Max)}
	w.unconfirmed = slidingLog{window: length + 2*sec, merge: length / 256}
	m.windows = append(m.windows, w)
	return w
}

// reopens returns the time at which a window has certainly ended. This is two seconds after its reset, or one second
// after a reset that ten responses reported.
func (t windowReport) reopens() int64 {
	if t.answers < 10 {
		return t.reset + t.latest + 2*sec
	}
	return t.reset + t.latest + sec
}

// expire removes the windows that have ended.
func (w *fixedWindow) expire(now int64) {
	if w.strange != nil && now >= w.strange.reopens() {
		w.strange = nil
	}
	for _, t := range slices.Clone(w.reports) {
		if t.reopens() > now {
			continue
		}
		w.reports = slices.DeleteFunc(w.reports, func(other windowReport) bool { return other == t })
		if t.answers > 0 {
			if t.reset >= w.lastReset {
				w.lastReset, w.lastEnd = t.reset, t.reopens()
			}
		}
		w.answered, w.withoutHeaders, w.slowStarts = false, 0, nil
		w.removeConfirmed(t.reset + t.earliest)
	}
}

// removeConfirmed removes the unconfirmed requests up to a time. The upstream has counted these requests by that time,
// or never counts them.
func (w *fixedWindow) removeConfirmed(by int64) (removed int64) {
	kept := w.unconfirmed.spends[:0]
	for _, group := range split(&w.unconfirmed) {
		if group[len(group)-1].at > by {
			kept = append(kept, group...)
			continue
		}
		for _, s := range group {
			removed += s.cost
		}
	}
	w.unconfirmed.spends = kept
	return removed
}

// count returns the largest use of a window that the reports and the requests allow. A report is at most ten requests behind.
func (t windowReport) count() int64 {
	n := t.used
	for range 10 {
		if n < t.sure+t.perhaps {
			n++
		}
	}
	return max(n, t.sure)
}

// split returns all spends of a log, grouped by the time of their return.
func split(l *slidingLog) [][]spending {
	var groups [][]spending
	for _, s := range l.spends {
		if n := len(groups); n > 0 {
			if g := groups[n-1]; s.at-g[0].at < l.merge || s.at == g[len(g)-1].at {
				groups[n-1] = append(g, s)
				continue
			}
		}
		groups = append(groups, []spending{s})
	}
	return groups
}

// learn adds rate headers. Responses arrive in any order, so the largest use of a window counts. An ended window does
// not open again.
// learn returns true for a report that other reports contradict. uncounted is set if the report does not count the request.
func (w *fixedWindow) learn(m *model, o limits.Outcome, sent int64, known bool, now int64) (strange, uncounted bool) {
	r := o.Rate
	w.expire(now)
	w.unconfirmed.spends = slices.DeleteFunc(w.unconfirmed.spends, func(s spending) bool { return s.at+w.unconfirmed.window <= now })
	t := windowReport{reset: r.Reset.UnixMicro(), limit: int64(r.Limit), used: int64(r.Used), answers: 1}
	if date := r.Date.UnixMicro(); !r.Date.IsZero() {
		t.latest, t.earliest = now-date, sent-date-sec
	} else if t.reset+w.length <= now {
		t.latest = now + w.length - t.reset
	}
	t.latest = min(t.latest, now+max(3600*sec, w.length)-t.reset)
	if late := w.lastReset != 0 && t.reset <= w.lastReset+2*sec && sent < w.lastEnd; late || t.reopens() <= now || sent < w.opened {
		return false, !late
	}
	if s := w.strange; s != nil && s.limit == t.limit && same(s.windowReport, t) && (!s.tooMuch || t.used > t.limit) {
		// Perhaps the same response, or that of a request that was in progress together.
		if sent == 0 || sent < s.arrived && (o.Limited == policy.NotLimited || w.ofAddress(t, m)) {
			return true, false
		}
		w.strange = nil // it was right
		w.insert(s.windowReport)
	} else if w.contradicted(t, w.ofAddress(t, m), o.Limited, now) {
		if sent > 0 { // otherwise it is perhaps the same response
			w.suspect(t, now)
		}
		return true, false
	} else if s != nil && sent >= s.arrived {
		if s.asking, s.dismissed = 0, true; s.tooMuch || !slices.ContainsFunc(w.reported(), func(old windowReport) bool { return old.limit == s.limit }) {
			w.strange = nil
		}
	}
	t.perhaps = w.removeConfirmed(sent - 1)
	if known && !o.Uncounted && o.Limited != policy.LimitPrimary {
		t.sure = int64(max(1, o.Cost))
	}
	if known := slices.ContainsFunc(w.reports, func(old windowReport) bool { return same(old, t) }); sent == 0 && known {
		t.answers = 0 // perhaps the same response
	}
	w.insert(t)
	return false, false
}

// same reports whether two reports are about one window.
func same(a, b windowReport) bool {
	difference := a.reset - b.reset
	return -2*sec <= difference && difference <= 2*sec
}

// reported returns the windows of responses.
func (w *fixedWindow) reported() (list []windowReport) {
	for _, t := range w.reports {
		if t.answers > 0 {
			list = append(list, t)
		}
	}
	return list
}

// contradicted reports whether a report needs a second report. Such a report has another limit and another reset, a higher limit of a
// known window, or leaves no request. In the latter case, its reset differs from that of ten responses whose window the upstream had not
// ended yet, or its limit is lower. The first report is contradicted if it leaves no request and has the limit of callers without a
// credential. A refusal needs no second report, unless it has that limit.
func (w *fixedWindow) contradicted(t windowReport, anonymous bool, refusal policy.LimitKind, now int64) bool {
	known := w.reported()
	if len(known) == 0 {
		return anonymous && t.used >= t.limit && refusal == policy.NotLimited
	}
	if refusal != policy.NotLimited && !anonymous {
		return false
	}
	otherReset, otherLimit, used, contradicts, often := true, true, t.used, false, false
	for _, old := range known {
		if old.limit == t.limit {
			otherLimit = false
		}
		often = often || old.answers >= 10 && now-t.latest < old.reset
		if same(old, t) {
			otherReset, used = false, max(used, old.used)
			contradicts = t.limit > old.limit || t.limit < old.limit && used >= t.limit || t.tooMuchFor(old)
		}
	}
	return contradicts || otherReset && (otherLimit || often && used >= t.limit)
}

// tooMuchFor reports whether a report uses more than its limit, although another report of its window leaves requests.
func (t windowReport) tooMuchFor(old windowReport) bool {
	return t.used > t.limit && old.used < old.limit
}

// ofAddress reports whether a report has the limit of callers without a credential, but the account has one.
func (w *fixedWindow) ofAddress(t windowReport, m *model) bool {
	return m.kind != policy.Unauthenticated && t.limit == int64(m.rules.Primary.Unauthenticated) && 10*t.limit <= w.limit
}

// suspect records a report that other reports contradict.
func (w *fixedWindow) suspect(t windowReport, now int64) {
	tooMuch := false
	for _, old := range w.reported() {
		if same(old, t) {
			tooMuch = t.tooMuchFor(old)
			t.used = max(t.used, old.used)
		}
	}
	if w.strange == nil {
		w.strange = &strangeReport{}
	}
	w.strange.windowReport, w.strange.arrived, w.strange.dismissed, w.strange.tooMuch = t, now, false, tooMuch
}

// askedBy records that a permit has ended, and whether its request may have been sent.
func (w *fixedWindow) askedBy(id uint64, sent bool) {
	if s := w.strange; s != nil && s.asking == id {
		s.asking = 0
		if sent {
			s.asked = s.granted
		}
	}
}

// insert adds a report that no other contradicts.
func (w *fixedWindow) insert(t windowReport) {
	w.answered, w.limit = true, t.limit
	for i, old := range w.reports {
		if difference := old.reset - t.reset; -2*sec <= difference && difference <= 2*sec {
			latest, earliest := min(old.latest, t.latest), max(old.earliest, t.earliest)
			if apart := max(t.earliest-old.latest, old.earliest-t.latest); apart > 2*sec { // a Date is wrong
				latest, earliest = old.latest, old.earliest
				if t.latest > old.latest {
					latest, earliest = t.latest, t.earliest
				}
			}
			w.reports[i] = windowReport{
				max(old.reset, t.reset), latest, earliest, t.limit, max(old.used, t.used), old.answers + t.answers, old.sure + t.sure, old.perhaps + t.perhaps,
			}
			return
		}
	}
	w.reports = append(w.reports, t)
	slices.SortFunc(w.reports, func(a, b windowReport) int { return cmp.Compare(a.reset, b.reset) })
	if len(w.reports) > 2 { // the one with the most requests left
		most := slices.MaxFunc(w.reports, func(a, b windowReport) int { return cmp.Compare(a.limit-a.count(), b.limit-b.count()) })
		w.reports = slices.DeleteFunc(w.reports, func(t windowReport) bool { return t == most })
	}
}

// learnWithoutHeaders adds a response without rate headers.
func (w *fixedWindow) learnWithoutHeaders(now int64) {
	w.expire(now)
	w.withoutHeaders++
	w.answered = w.answered || w.withoutHeaders >= 3
}

// unlimited reports whether a window has no limit: three successes had no rate headers, and no response of the account
// shows a limit.
func (m *model) unlimited(w *fixedWindow) bool { return w.silentSuccesses >= 3 && !m.enforced }

// addUnconfirmed adds requests that the upstream may have counted, unless the window has no limit.
func (m *model) addUnconfirmed(w *fixedWindow, at, price int64) {
	if !m.unlimited(w) {
		w.unconfirmed.spends = append(w.unconfirmed.spends, spending{at, price})
	}
}

// exhaust closes the window after a primary limit error.
func (w *fixedWindow) exhaust(retryAfter time.Duration, now int64) {
	w.expire(now)
	w.answered = true
	if len(w.reports) == 0 {
		wait := w.length
		if retryAfter > 0 {
			wait = retryAfter.Microseconds()
		}
		w.reports = []windowReport{{reset: now + wait, limit: w.limit}}
	}
	for i := range w.reports {
		w.reports[i].used = max(w.reports[i].used, w.reports[i].limit)
	}
}

func (w *fixedWindow) usedUpUntil(now int64) (until int64) {
	w.expire(now)
	for _, t := range w.reports {
		if t.used >= t.limit {
			until = max(until, t.reopens())
		}
	}
	return until
}

// inUse returns the prices of open permits in a window.
func (m *model) inUse(w *fixedWindow) (n int64) {
	for _, p := range m.open {
		if p.window == w {
			n += p.price
		}
	}
	return n
}

// closed reports whether a request does not fit into a window, and the time when the request will fit. The time is zero if
// a response decides. A price above the limit needs an unused window. Batch claims leave a twentieth, which shrinks towards
// the end of the window.
func (m *model) closed(w *fixedWindow, price int64, batch bool, now int64) (no bool, until int64) {
	w.expire(now)
	no, until = m.closedByReports(w, w.reports, price, batch, now)
	n := len(w.slowStarts)
	no = no || !w.answered && n >= 3 && now-w.slowStarts[n-1].granted < sec // slow start of the window
	if s := w.strange; s != nil && !s.dismissed {
		if leavesNone, _ := m.closedByReports(w, []windowReport{s.windowReport}, price, batch, now); leavesNone {
			if s.asking != 0 {
				return true, until
			}
			if s.asked+sec > now {
				return true, max(until, s.asked+sec)
			}
		}
	}
	return no, until
}

func (m *model) closedByReports(w *fixedWindow, reports []windowReport, price int64, batch bool, now int64) (no bool, until int64) {
	unconfirmed, open := w.unconfirmed.total(now), m.inUse(w)
	for _, t := range reports {
		limit, spent := m.rules.Usable(t.limit), t.count()+unconfirmed
		needed := max(1, min(price, limit))
		left := limit - spent - open - needed // after the request
		switch rest := max(0, t.reset+t.latest-now); {
		case t.count() > limit-needed:
			no, until = true, max(until, t.reopens())
		case spent > limit-needed:
			no, until = true, max(until, min(t.reopens(), w.unconfirmed.returned(spent+needed-limit, now)))
		case left < 0:
			no = true
		case batch && rest*limit/(20*w.length) > left:
			no, until = true, max(until, t.reset+t.latest-((left+1)*20*w.length-1)/limit)
		}
	}
	if len(reports) > 0 {
		return no, until
	}
	limit := m.rules.Usable(w.limit)
	if batch {
		limit -= limit / 20
	}
	if limit <= 0 {
		return true, now + w.length
	}
	needed := min(price, limit)
	if unconfirmed > limit-needed {
		return true, w.unconfirmed.returned(unconfirmed+needed-limit, now)
	}
	return unconfirmed+open > limit-needed, 0
}

// describe returns the account for operators.
func (m *model) describe(now int64) limits.Account {
	m.advance(now)
	a := limits.Account{Name: testAccount, Kind: m.kind, InUse: len(m.open), Concurrent: int(m.slots(now))}
	if now < m.blocked {
		a.BlockedUntil = time.UnixMicro(m.blocked)
	}
	if m.closedSince != 0 {
		a.ClosedSince = time.UnixMicro(m.closedSince)
	}
	for _, w := range m.windows {
		if !m.unlimited(w) {
			a.Budgets = append(a.Budgets, m.shown(w, now))
		}
	}
	for _, l := range m.logs {
		if l.budget == limits.Primary {
			continue
		}
		b := m.rules.LogBudget(l.budget, l.scope, int(l.total(now)), int(m.held(l)))
		if allowed := int(m.allowed(l, int64(b.Limit))); allowed != b.Limit {
			b.Allowance = float64(allowed) / float64(b.Limit)
			b.Limit, b.Remaining = allowed, allowed-b.Used
		}
		b.Reset = time.UnixMicro(now)
		if groups := l.groups(now); len(groups) > 0 {
			b.Reset = time.UnixMicro(groups[len(groups)-1].at + l.window)
		}
		a.Budgets = append(a.Budgets, b)
	}
	return a
}

// shown returns the budget of a window for clients. If the resource also has a log, shown returns
// the budget with the larger use.
func (m *model) shown(w *fixedWindow, now int64) limits.Budget {
	w.expire(now)
	b := limits.Budget{Resource: w.resource, Limit: int(w.limit), Held: int(m.inUse(w)),
		Window: time.Duration(w.length) * time.Microsecond}
	used, reset := int64(0), now+w.length
	for _, t := range w.reports {
		b.Limit = int(t.limit)
		if t.count() >= used {
			used, reset = t.count(), t.reset
			if t.latest <= -2*sec || t.latest >= 2*sec { // the clocks differ
				reset = (t.reset + t.latest) / sec * sec
			}
		}
	}
	used += w.unconfirmed.total(now)
	for _, l := range m.logs {
		if spent := l.total(now); l.budget == limits.Primary && l.scope == w.resource && spent > used {
			used, reset = spent, l.groups(now)[0].at+l.window
		}
	}
	b.Used = min(int(used), b.Limit)
	b.Remaining, b.Reset = b.Limit-b.Used, time.UnixMicro(reset)
	return b
}
