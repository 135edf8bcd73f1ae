package limits

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirgate/weir/policy"
)

const (
	second = int64(time.Second / time.Microsecond)
	// margin is waited beyond what is told in whole seconds, a reset or a
	// retry-after: nobody knows how it was rounded.
	margin = second
	// resetJitter is how far two statements of one reset may lie apart. Until
	// sureAfter statements have been heard of a window, all of them may have
	// been early ones: then it is waited for instead.
	resetJitter = 2 * second
	sureAfter   = 10
	// slowStart is how many requests are let go before the first answer of a
	// window has told what is left of it; then one in every tryEvery, because
	// those may be lost.
	slowStart = 3
	tryEvery  = second
	// reserveParts is the part of a window, one in so many, that batch claims
	// leave to others; it shrinks to nothing towards the window's end.
	reserveParts = 20
	// longest bounds how far away a reset can be.
	longest = 24 * 3600 * second
)

// window is the ledger of one resource: not a count of ours, but what the
// upstream has told of its fixed window, and what it may have counted since
// (design section 5.2, row one; limits.md section 5.2).
//
// Invariant: used + inFlight + ghosts is an upper bound of the upstream's count
// while nobody else uses the account, because every answered request of ours
// reported a count that includes it.
type window struct {
	resource string
	length   int64
	// told is what is known of the window that is open. Where regions of the
	// upstream count apart, their windows alternate: the two newest are kept,
	// and both must allow.
	told []fact
	// over is the newest reset that has passed: what is told of that window or
	// an older one says nothing any more.
	over int64
	// limit is what was told last, of whichever window; documented before.
	limit int64
	// answered is set once an answer has told of the window that is open, or
	// silent answers have told nothing.
	answered bool
	silent   int64
	// tries were let go since the window opened unanswered, the last at tried.
	tries, tried int64
	inFlight     int64
	// ghosts are requests that may have been counted without telling.
	ghosts spendLog
}

// fact is what was told of one window of the upstream's. It does not depend on
// the order in which it was told.
type fact struct {
	reset       int64 // on the upstream's clock; names the window
	late, early int64 // how far our clock may be ahead of it, at most and at least
	limit, used int64
	heard       int64 // how many answers have told of it
}

// end is when the window is over for certain, rounding apart.
func (f fact) end() int64 { return f.reset + f.late }

// reopens is when requests may be sent again.
func (f fact) reopens() int64 {
	if f.heard < sureAfter {
		return f.end() + resetJitter
	}
	return f.end() + margin
}

func newWindow(resource string, documented policy.Window) *window {
	length := documented.Window.Microseconds()
	w := &window{resource: resource, limit: int64(documented.Max), length: length}
	w.ghosts = spendLog{window: length + resetJitter, merge: length / mergeParts}
	return w
}

// roll forgets what has ended. A ghost that went before the window can have
// ended was counted in it.
func (w *window) roll(now int64) {
	w.ghosts.roll(now)
	kept := w.told[:0]
	for _, f := range w.told {
		if f.reopens() > now {
			kept = append(kept, f)
			continue
		}
		if f.heard > 0 { // else it was made up, and by another clock
			w.over = max(w.over, f.reset)
		}
		w.answered, w.silent, w.tries = false, 0, 0
		w.ghosts.forget(f.reset + f.early)
	}
	w.told = kept
}

// admits reports whether one more request fits. If not, until is when to ask
// again; zero when an answer in flight may make room.
func (w *window) admits(now int64, r *Rules, batch bool) (ok bool, until int64) {
	w.roll(now)
	waits := !w.answered && w.tries >= slowStart && now-w.tried < tryEvery
	for _, f := range w.told {
		ok, back := w.fits(f, now, r, batch)
		if !ok && back == 0 {
			waits = true
		}
		until = max(until, back)
	}
	if len(w.told) == 0 {
		limit := r.Usable(w.limit)
		if batch {
			limit -= limit / reserveParts
		}
		switch {
		case w.ghosts.total >= limit:
			until = now + w.length
			if limit > 0 {
				until = w.ghosts.returns(w.ghosts.total + 1 - limit)
			}
		case w.ghosts.total+w.inFlight >= limit:
			waits = true
		}
	}
	return until == 0 && !waits, until
}

// try notes a request that is let go.
func (w *window) try(now int64) {
	if !w.answered {
		w.tries, w.tried = w.tries+1, now
	}
}

// fits is admits for one of the upstream's windows.
func (w *window) fits(f fact, now int64, r *Rules, batch bool) (ok bool, until int64) {
	limit := r.Usable(f.limit)
	spent := f.used + w.ghosts.total
	switch {
	case f.used >= limit:
		return false, f.reopens()
	case spent >= limit:
		return false, min(f.reopens(), w.ghosts.returns(spent+1-limit))
	case spent+w.inFlight >= limit:
		return false, 0
	}
	if !batch {
		return true, 0
	}
	parts := reserveParts * w.length
	free := limit - spent - w.inFlight // with the request itself
	if max(0, f.end()-now)*limit/parts < free {
		return true, 0
	}
	return false, f.end() - (free*parts-1)/limit
}

// learn takes in what an answer to a request sent at sent has told, at now.
// Answers may come in any order: within one window only the highest count
// matters, and a window that is over stays over.
func (w *window) learn(r Rate, sent, now int64) {
	w.roll(now)
	f := fact{reset: r.Reset.UnixMicro(), limit: int64(r.Limit), used: int64(r.Used), heard: 1}
	switch {
	case !r.Date.IsZero():
		// The answer was made within the second of Date, between sending and now.
		date := r.Date.UnixMicro()
		f.late, f.early = now-date, sent-date-second
	case f.reset+w.length <= now:
		f.late = now + w.length - f.reset // told by a clock that is wrong
	}
	f.late = min(f.late, now+longest-f.reset)
	if w.over != 0 && f.reset <= w.over+resetJitter || f.reopens() <= now {
		return
	}
	w.answered, w.limit = true, f.limit
	// A request sent after a ghost had gone reports a count that includes it.
	w.ghosts.forget(sent - 1)
	for i := range w.told {
		if old := &w.told[i]; abs(old.reset-f.reset) <= resetJitter {
			old.reset, old.used, old.limit = max(old.reset, f.reset), max(old.used, f.used), f.limit
			old.late, old.early = min(old.late, f.late), max(old.early, f.early)
			old.heard++
			return
		}
	}
	w.told = append(w.told, f)
	slices.SortFunc(w.told, func(a, b fact) int { return cmp.Compare(a.reset, b.reset) })
	if len(w.told) > 2 {
		w.told = append(w.told[:0], w.told[1:]...)
	}
}

// hush takes in an answer that told nothing: whether it was counted nobody has
// said. An upstream that goes on so does not tell at all.
func (w *window) hush(now int64) {
	w.roll(now)
	if w.silent++; w.silent >= slowStart {
		w.answered = true
	}
	w.ghosts.spend(now, 1)
}

// exhaust closes the window: the upstream has refused a request for it.
func (w *window) exhaust(now int64) {
	w.roll(now)
	w.answered = true
	if len(w.told) == 0 {
		w.told = append(w.told, fact{reset: now + w.length, limit: w.limit, used: w.limit})
	}
	for i := range w.told {
		w.told[i].used = max(w.told[i].used, w.told[i].limit)
	}
}

// back is when the windows that are used up return, zero if none is: what a
// secondary limit error with remaining 0 asks to wait for.
func (w *window) back(now int64) int64 {
	w.roll(now)
	var until int64
	for _, f := range w.told {
		if f.used >= f.limit {
			until = max(until, f.reopens())
		}
	}
	return until
}

func (w *window) idle(now int64) bool {
	w.roll(now)
	return w.inFlight == 0 && len(w.told) == 0 && w.ghosts.total == 0
}

func abs(n int64) int64 { return max(n, -n) }
