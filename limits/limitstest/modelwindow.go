package limitstest

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// window finds what is known of a resource; a name that is in nobody's list
// counts as core.
func (m *model) window(resource string) *fixedWindow {
	if !policy.IsResource(resource) {
		resource = policy.Core
	}
	for _, w := range m.windows {
		if w.resource == resource {
			return w
		}
	}
	documented := m.rules.For(m.kind, resource)
	length := documented.Window.Microseconds()
	w := &fixedWindow{resource: resource, length: length, limit: int64(documented.Max)}
	w.ghosts = slidingLog{window: length + 2*sec, merge: length / 256}
	m.windows = append(m.windows, w)
	return w
}

// reopens is when a window is surely over: two seconds after its reset, one if
// ten answers have agreed on it.
func (t statement) reopens() int64 {
	if t.answers < 10 {
		return t.reset + t.latest + 2*sec
	}
	return t.reset + t.latest + sec
}

// pass drops the windows that are over.
func (w *fixedWindow) pass(now int64) {
	for _, t := range slices.Clone(w.told) {
		if t.reopens() > now {
			continue
		}
		w.told = slices.DeleteFunc(w.told, func(other statement) bool { return other == t })
		if t.answers > 0 {
			w.over = max(w.over, t.reset)
		}
		w.answered, w.silent, w.tries = false, 0, 0
		w.forgive(t.reset + t.earliest)
	}
}

// forgive drops the ghosts that had been counted, if at all, by then.
func (w *fixedWindow) forgive(by int64) {
	kept := w.ghosts.spends[:0]
	for _, group := range split(&w.ghosts) {
		if group[len(group)-1].at > by {
			kept = append(kept, group...)
		}
	}
	w.ghosts.spends = kept
}

// split is all spends of a log by the groups that they return in.
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

// hear takes in a statement on the window (design section 5.3): of one window
// the largest use counts, whatever the order; a window that is over stays over.
func (w *fixedWindow) hear(r limits.Rate, sent, now int64) {
	w.pass(now)
	t := statement{reset: r.Reset.UnixMicro(), limit: int64(r.Limit), used: int64(r.Used), answers: 1}
	if date := r.Date.UnixMicro(); !r.Date.IsZero() {
		t.latest, t.earliest = now-date, sent-date-sec
	} else if t.reset+w.length <= now {
		t.latest = now + w.length - t.reset
	}
	t.latest = min(t.latest, now+86400*sec-t.reset)
	if w.over != 0 && t.reset <= w.over+2*sec || t.reopens() <= now {
		return
	}
	w.answered, w.limit = true, t.limit
	w.forgive(sent - 1)
	for i, old := range w.told {
		if apart := old.reset - t.reset; -2*sec <= apart && apart <= 2*sec {
			w.told[i] = statement{
				max(old.reset, t.reset), min(old.latest, t.latest), max(old.earliest, t.earliest), t.limit, max(old.used, t.used), old.answers + 1,
			}
			return
		}
	}
	w.told = append(w.told, t)
	slices.SortFunc(w.told, func(a, b statement) int { return cmp.Compare(a.reset, b.reset) })
	w.told = w.told[max(0, len(w.told)-2):]
}

// hearNothing takes in an answer without rate headers.
func (w *fixedWindow) hearNothing(now int64) {
	w.pass(now)
	w.silent++
	w.answered = w.answered || w.silent >= 3
	w.ghosts.spends = append(w.ghosts.spends, spending{now, 1})
}

// close takes in a primary limit error.
func (w *fixedWindow) close(now int64) {
	w.pass(now)
	w.answered = true
	if len(w.told) == 0 {
		w.told = []statement{{reset: now + w.length, limit: w.limit}}
	}
	for i := range w.told {
		w.told[i].used = max(w.told[i].used, w.told[i].limit)
	}
}

func (w *fixedWindow) usedUpUntil(now int64) (until int64) {
	w.pass(now)
	for _, t := range w.told {
		if t.used >= t.limit {
			until = max(until, t.reopens())
		}
	}
	return until
}

// inFlight is how many requests of the window have not told of it.
func (m *model) inFlight(w *fixedWindow) (n int64) {
	for _, f := range m.flights {
		if f.window == w {
			n += f.units
		}
	}
	return n
}

// closed reports whether one more request does not fit into a window now, and
// when it does at the latest; zero when an answer decides. Batch leaves a
// twentieth to others, less and less towards the window's end.
func (m *model) closed(w *fixedWindow, batch bool, now int64) (no bool, until int64) {
	w.pass(now)
	ghosts, flights := w.ghosts.total(now), m.inFlight(w)
	no = !w.answered && w.tries >= 3 && now-w.tried < sec // slow start
	for _, t := range w.told {
		limit, spent := m.rules.Usable(t.limit), t.used+ghosts
		free := limit - spent - flights
		switch left := max(0, t.reset+t.latest-now); {
		case t.used >= limit:
			no, until = true, max(until, t.reopens())
		case spent >= limit:
			no, until = true, max(until, min(t.reopens(), w.ghosts.returned(spent+1-limit, now)))
		case free <= 0:
			no = true
		case batch && left*limit/(20*w.length) >= free:
			no, until = true, max(until, t.reset+t.latest-(free*20*w.length-1)/limit)
		}
	}
	if len(w.told) > 0 {
		return no, until
	}
	limit := m.rules.Usable(w.limit)
	if batch {
		limit -= limit / 20
	}
	switch {
	case ghosts >= limit && limit <= 0:
		return true, now + w.length
	case ghosts >= limit:
		return true, w.ghosts.returned(ghosts+1-limit, now)
	}
	return no || ghosts+flights >= limit, 0
}

// describe is the account as people see it: of its budgets those that are in
// use.
func (m *model) describe(now int64) limits.Account {
	m.after(now)
	a := limits.Account{Name: testAccount, Kind: m.kind, InUse: len(m.flights), Concurrent: int(m.places(now))}
	if now < m.blocked {
		a.BlockedUntil = time.UnixMicro(m.blocked)
	}
	for _, w := range m.windows {
		a.Budgets = append(a.Budgets, m.shown(w, now))
	}
	for _, l := range m.logs {
		if l.budget == limits.Primary {
			continue
		}
		b := m.rules.LogBudget(l.budget, l.scope, int(l.total(now)), int(m.held(l)))
		b.Reset = time.UnixMicro(now)
		if groups := l.groups(now); len(groups) > 0 {
			b.Reset = time.UnixMicro(groups[len(groups)-1].at + l.window)
		}
		a.Budgets = append(a.Budgets, b)
	}
	return a
}

// shown is what clients are told of a window: the tighter of the upstream's and
// of the log beside it.
func (m *model) shown(w *fixedWindow, now int64) limits.Budget {
	w.pass(now)
	b := limits.Budget{Resource: w.resource, Limit: int(w.limit), Held: int(m.inFlight(w)), Window: time.Duration(w.length) * time.Microsecond}
	used, reset := int64(0), now+w.length
	for _, t := range w.told {
		b.Limit = int(t.limit)
		if t.used >= used {
			used, reset = t.used, t.reset
			if t.latest <= -2*sec || t.latest >= 2*sec { // another clock
				reset = (t.reset + t.latest) / sec * sec
			}
		}
	}
	used += w.ghosts.total(now)
	for _, l := range m.logs {
		if spent := l.total(now); l.budget == limits.Primary && l.scope == w.resource && spent > used {
			used, reset = spent, l.groups(now)[0].at+l.window
		}
	}
	b.Used = min(int(used), b.Limit)
	b.Remaining, b.Reset = b.Limit-b.Used, time.UnixMicro(reset)
	return b
}
