package limits

import "math"

// Times within an account are microseconds since 1970, as in Redis, so that
// both ledgers do the same arithmetic.

// spendLog is a sliding window: a spent token returns one full window after
// the answer to its request (design section 5.2). While the request is in
// flight its cost is held.
//
// Invariants: total is the sum of the entries, entries are in the order of
// their stamps, and any span of one window in which the upstream can have
// counted them holds at most the limit (docs/limits.md has the proof).
type spendLog struct {
	key           logKey // zero of what is no log of an account itself
	window, merge int64
	entries       []entry // oldest first
	first         int64   // when the newest entry began
	total, held   int64
}

// entry is spends that lie near together, stamped with the last of them.
type entry struct{ last, cost int64 }

// roll returns the tokens whose window is over.
func (l *spendLog) roll(now int64) { l.forget(now - l.window) }

// forget drops the spends that were stamped until at.
func (l *spendLog) forget(at int64) {
	gone := 0
	for gone < len(l.entries) && l.entries[gone].last <= at {
		l.total -= l.entries[gone].cost
		gone++
	}
	if gone > 0 {
		l.entries = append(l.entries[:0], l.entries[gone:]...)
	}
}

// admits reports whether cost more fits under limit. If not, until is when
// enough has returned; zero when what is held may still turn out to be less.
func (l *spendLog) admits(now, limit, cost int64) (ok bool, until int64) {
	l.roll(now)
	switch need := l.total + cost - limit; {
	case need > l.total:
		return false, now + l.window // more than there is
	case need > 0:
		return false, l.returns(need)
	case need+l.held > 0:
		return false, 0
	}
	return true, 0
}

// returns is when so many of the spent tokens have returned.
func (l *spendLog) returns(need int64) int64 {
	for _, e := range l.entries {
		if need -= e.cost; need <= 0 {
			return e.last + l.window
		}
	}
	return 0
}

// spend stamps cost with a time; one before the newest stamp counts as late as
// that, so that the log stays in order.
func (l *spendLog) spend(at, cost int64) {
	if cost == 0 {
		return
	}
	l.total += cost
	if n := len(l.entries); n > 0 {
		newest := &l.entries[n-1]
		at = max(at, newest.last)
		if at-l.first < l.merge || at == newest.last {
			newest.last, newest.cost = at, newest.cost+cost
			return
		}
	}
	l.entries = append(l.entries, entry{at, cost})
	l.first = at
}

// changes is when the next of the spent tokens return.
func (l *spendLog) changes() int64 {
	if len(l.entries) == 0 {
		return math.MaxInt64
	}
	return l.entries[0].last + l.window
}

// idle reports whether nothing of the log is left.
func (l *spendLog) idle(now int64) bool {
	l.roll(now)
	return len(l.entries) == 0 && l.held == 0
}
