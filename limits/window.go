package limits

import (
	"time"

	"github.com/weirgate/weir/policy"
)

const (
	// resetMargin is waited beyond a reset: nobody knows when in that second
	// the upstream starts anew.
	resetMargin = time.Second
	// resetJitter is how far two statements of one reset may lie apart.
	resetJitter = 2 * time.Second
	// slowStart is how many requests may be in flight before the first answer
	// of a window has told what is left of it.
	slowStart = 3
)

// window is the ledger of one resource: not a count of ours, but what the
// upstream has told of its fixed window, and what it may have counted since
// (design section 5.2, row one; limits.md section 5.2).
//
// Invariant: used + inFlight + len(ghosts) is an upper bound of the upstream's
// count while nobody else uses the account, because every answered request of
// ours reported a count that includes it.
type window struct {
	documented policy.Window
	limit      int       // as last told; documented before
	used       int       // highest told in this window
	reset      time.Time // of this window; zero before the first answer
	heard      bool      // an answer of this window has come
	inFlight   int
	ghosts     []time.Time // when requests ended that got no answer, in order
}

func newWindow(documented policy.Window) *window {
	return &window{documented: documented, limit: documented.Max}
}

// roll starts a new window when this one's reset has passed.
func (w *window) roll(now time.Time) {
	if w.reset.IsZero() {
		for len(w.ghosts) > 0 && now.Sub(w.ghosts[0]) >= w.documented.Window+resetMargin {
			w.ghosts = w.ghosts[1:]
		}
		return
	}
	if now.Before(w.reset.Add(resetMargin)) {
		return
	}
	w.used, w.ghosts, w.heard, w.reset = 0, nil, false, time.Time{}
}

// admits reports whether one more request fits under limit. If not, until is
// when to ask again; zero when an answer in flight may make room.
func (w *window) admits(now time.Time, limit int) (ok bool, until time.Time) {
	w.roll(now)
	spent := w.used + len(w.ghosts)
	switch {
	case spent >= limit:
		return false, w.back(now)
	case spent+w.inFlight >= limit:
		return false, time.Time{}
	case !w.heard && w.inFlight >= slowStart:
		return false, time.Time{}
	}
	return true, time.Time{}
}

// back is when a spent window returns.
func (w *window) back(now time.Time) time.Time {
	switch {
	case !w.reset.IsZero():
		return w.reset.Add(resetMargin)
	case len(w.ghosts) > 0:
		return w.ghosts[0].Add(w.documented.Window + resetMargin)
	}
	return now.Add(w.documented.Window)
}

// learn takes in what an answer to a request sent at sent has told, at now.
// Answers may come in any order: within one window only the highest count
// matters, an older window's says nothing, also when it is the first to come.
// One that ended a whole window ago was told by a clock that is wrong: then
// ours says when it ends.
func (w *window) learn(r Rate, sent, now time.Time) {
	if over := now.Sub(r.Reset.Add(resetMargin)); over >= w.documented.Window {
		r.Reset = now.Add(w.documented.Window)
	} else if over >= 0 {
		return
	}
	switch {
	case w.reset.IsZero() || r.Reset.After(w.reset.Add(resetJitter)):
		w.used, w.reset = r.Used, r.Reset
	case r.Reset.Before(w.reset.Add(-resetJitter)):
		return
	default:
		w.used = max(w.used, r.Used)
		if r.Reset.After(w.reset) {
			w.reset = r.Reset
		}
	}
	w.limit, w.heard = r.Limit, true
	// A request sent after a ghost had ended reports a count that includes it.
	for len(w.ghosts) > 0 && w.ghosts[0].Before(sent) {
		w.ghosts = w.ghosts[1:]
	}
}

// exhaust closes the window: the upstream has refused a request for it.
func (w *window) exhaust(now time.Time) {
	w.used = max(w.used, w.limit)
	if w.reset.IsZero() || w.reset.Before(now) {
		w.reset = now.Add(w.documented.Window)
	}
	w.heard = true
}

func (w *window) idle(now time.Time) bool {
	w.roll(now)
	return w.inFlight == 0 && w.reset.IsZero() && len(w.ghosts) == 0
}

// spendLog is a sliding window with exact stamps: a spent token returns one
// full window after the answer to its request (design section 5.2, the rule).
// What is in flight is held by the window beside it.
type spendLog struct {
	stamps []time.Time // in order
}

func (l *spendLog) roll(now time.Time, span time.Duration) {
	for len(l.stamps) > 0 && now.Sub(l.stamps[0]) >= span {
		l.stamps = l.stamps[1:]
	}
}

func (l *spendLog) spend(now time.Time) { l.stamps = append(l.stamps, now) }

// admits is window.admits with the log's own count.
func (l *spendLog) admits(now time.Time, limit policy.Window, inFlight int) (ok bool, until time.Time) {
	l.roll(now, limit.Window)
	switch spent := len(l.stamps); {
	case limit.Max < 1:
		return false, now.Add(limit.Window)
	case spent >= limit.Max:
		return false, l.stamps[spent-limit.Max].Add(limit.Window)
	case spent+inFlight >= limit.Max:
		return false, time.Time{}
	}
	return true, time.Time{}
}
