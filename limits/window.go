package limits

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirgate/weir/policy"
)

const (
	second = int64(time.Second / time.Microsecond)
	// margin is added to times in whole seconds, because the direction of their rounding is unknown.
	margin = second
	// resetJitter is the largest difference between two reports of one reset. It is added to a reset with fewer than
	// sureAfter reports, because all of these reports may be too early.
	resetJitter = 2 * second
	sureAfter   = 10
	// The slow start of a window is the time before its first report. slowStartBurst requests may then be sent, and
	// afterwards one request per slowStartEvery, because earlier responses may be lost. The slow start after a
	// cool-down (cooldown.go) is independent: it limits the concurrency slots.
	slowStartBurst = 3
	slowStartEvery = second
	// Batch claims leave one of reserveParts parts of a window to other claims. The reserve shrinks towards the end of
	// the window.
	reserveParts = 20
	// longestReset bounds the time from now to a reset.
	longestReset = int64(policy.LongestWait / time.Microsecond)
	// mostReports bounds the windows of a resource that are open at the same time.
	mostReports = 2
	// mostBehind is the number of requests by which a report may be late if requests got no response ([report.use]).
	mostBehind = 10
)

// window is the budget of one resource. The upstream counts in a fixed window, and reports limit, use and reset in rate
// headers.
//
// A window counts the costs of requests. The count that a response reports may lack the latest requests, even its own.
// Invariant: use ([report.use]) + inUse + Unconfirmed is an upper bound of the upstream's count, if no other program uses the
// account, and the costs of requests are known.
type window struct {
	Resource string
	// budget names the budget of the window among those of its account, or is "" until a claim uses the window.
	budget string
	Length int64
	// Limit is the latest reported limit, or the documented limit.
	Limit int64
	// Reports describe the open window. If regions of the upstream count separately, or a Date is wrong, Reports contains two
	// windows, and both must admit a request. Of more windows, Reports keeps those with the fewest remaining requests.
	Reports []report
	// Doubt is a report that contradicts Reports, until another response decides.
	Doubt *doubt `json:",omitempty"`
	// LastReset is the newest reset that has passed, and LastEnd the time at which its window ended here. A late response with
	// an older reset is ignored.
	LastReset, LastEnd int64
	// Opened is the time at which an operator opened the window. Reports of requests that were granted before do not count.
	Opened int64 `json:",omitempty"`
	// Confirmed ends the slow start of the window. It is set by the first report of the open window, or by
	// slowStartBurst responses without rate headers.
	Confirmed bool
	// Unconfirmed contains the costs of requests that the upstream may have counted without a report.
	Unconfirmed slidingLog
	// Silent is the number of silent responses ([Outcome.Silent]).
	Silent int64

	// Clients contains the costs of each client, group and tag in the open window, if the window is divided. budgets are the client
	// budgets of the last claim.
	Clients map[string]*slidingLog
	budgets []policy.ClientBudget
	// waits contains the clients that wait for quota of the window.
	waits waits

	withoutHeaders int64 // responses since the window opened
	slowStarted    int64 // requests of the slow start that were or may be sent
	lastSlowStart  int64 // time of the latest grant of these requests
	sentSlowStart  int64 // time of the latest grant of these requests that were sent
	inUse          int64 // costs of permits in use
	left           int64 // costs that the last line of a file still covers
	reported       int64 // costs of this replica's requests that the reports of the open window include
	ended          int64 // windows that have ended

	covered windowKey // by the last line of a file
}

// report combines the rate headers of the responses about one window, in any order.
type report struct {
	Reset int64 // on the upstream's clock; identifies the window
	// MaxOffset and MinOffset bound the local clock minus the upstream's clock.
	MaxOffset, MinOffset int64
	Limit, Used          int64
	Responses            int64 // zero if no response reported the window
	// Granted is the latest grant of a request whose response reported the window, or zero.
	Granted int64
	// Counts are the costs of this replica's requests, and Foreign those of the other replicas.
	Counts, Foreign counts
}

// counts are costs of requests in a window. Own is the sum of the requests whose responses named the window. Lost is the sum of
// the requests that ended before, and got no report.
type counts struct{ Own, Lost int64 }

func (c counts) plus(d counts) counts { return counts{c.Own + d.Own, c.Lost + d.Lost} }

func (c counts) atLeast(d counts) counts { return counts{max(c.Own, d.Own), max(c.Lost, d.Lost)} }

// use returns the use of the window. The report may lack the latest requests, so the requests of all replicas count, too. The
// upstream may not have counted the lost ones, so they only fill the gap of a report that is at most mostBehind requests behind.
func (p report) use() int64 {
	c := p.Counts.plus(p.Foreign)
	return max(p.Used, c.Own, min(c.Own+c.Lost, p.Used+mostBehind))
}

// end returns the end of the window on the local clock, without a margin for rounding.
func (p report) end() int64 { return p.Reset + p.MaxOffset }

// sameWindow reports whether both reports are about the same window.
func (p report) sameWindow(other report) bool {
	return max(p.Reset-other.Reset, other.Reset-p.Reset) <= resetJitter
}

// learnClock adds the bounds of another report about the same window. If the bounds contradict each other, one Date is wrong, and
// the later end of the window counts.
func (p *report) learnClock(other report) {
	switch {
	case other.MinOffset <= p.MaxOffset+resetJitter && other.MaxOffset >= p.MinOffset-resetJitter:
		p.MaxOffset, p.MinOffset = min(p.MaxOffset, other.MaxOffset), max(p.MinOffset, other.MinOffset)
	case other.MaxOffset > p.MaxOffset:
		p.MaxOffset, p.MinOffset = other.MaxOffset, other.MinOffset
	}
}

// isValid reports whether the numbers of a report are in their ranges. The report of another replica or process may not be.
func (p report) isValid() bool {
	for _, n := range []int64{p.Limit, p.Used, p.Foreign.Own, p.Foreign.Lost} {
		if n < 0 || n > policy.RateUsed.Most {
			return false
		}
	}
	return true
}

// reopens returns the time at which requests may be sent again.
func (p report) reopens() int64 {
	if p.Responses < sureAfter {
		return p.end() + resetJitter
	}
	return p.end() + margin
}

func newWindow(resource string, documented policy.Window) *window {
	length := documented.Window.Microseconds()
	return &window{
		Resource: resource, Length: length, Limit: int64(documented.Max),
		Unconfirmed: slidingLog{Window: length + resetJitter, Merge: length / mergeParts},
	}
}

// expire removes the reports of windows that have ended, and the unconfirmed requests in these windows.
func (w *window) expire(now int64) {
	w.Unconfirmed.expire(now)
	if w.Doubt != nil && w.Doubt.reopens() <= now {
		w.Doubt = nil
	}
	reports := len(w.Reports)
	w.Reports = slices.DeleteFunc(w.Reports, func(p report) bool {
		if p.reopens() > now {
			return false
		}
		if p.Responses > 0 && p.Reset >= w.LastReset { // otherwise the reset was assumed on the local clock
			w.LastReset, w.LastEnd = p.Reset, p.reopens()
		}
		w.Confirmed, w.withoutHeaders, w.slowStarted = false, 0, 0
		w.Unconfirmed.removeUntil(p.Reset + p.MinOffset)
		for _, l := range w.Clients {
			l.removeUntil(p.Reset + p.MinOffset)
		}
		return true
	})
	if len(w.Reports) < reports {
		w.reported = 0
		w.ended++
	}
}

// capped returns a cost, at most a limit, because a more expensive request could never be sent.
func capped(cost, limit int64) int64 { return min(cost, max(1, limit)) }

// costOf returns the part of a claim's cost that must be free in the window.
func (w *window) costOf(c *Claim, r *Rules) int64 { return capped(c.cost(), r.Usable(w.Limit)) }

// start identifies the slow start of the open window. It is not zero.
func (w *window) start() int64 { return w.ended + 1 }

// admits reports whether a request with a cost fits. If the request does not fit, until is the time of the next attempt.
// until is zero if the response of a permit in use decides. others are the costs of other replicas that are in use or
// unconfirmed.
func (w *window) admits(now int64, r *Rules, cost int64, batch bool, others int64) (ok bool, until int64) {
	ok, until = w.admitsKnown(now, r, cost, batch, others)
	if d := w.Doubt; d != nil && !d.Refuted {
		if fits, _ := w.fits(d.report, now, r, cost, batch, others); !fits {
			free, at := d.admits(now)
			ok, until = ok && free, max(until, at)
		}
	}
	return ok, until
}

// admitsKnown reports the same as admits, but ignores the doubtful report.
func (w *window) admitsKnown(now int64, r *Rules, cost int64, batch bool, others int64) (ok bool, until int64) {
	w.expire(now)
	ok = w.Confirmed || w.slowStarted < slowStartBurst || now-w.lastSlowStart >= slowStartEvery
	for _, p := range w.Reports {
		fits, at := w.fits(p, now, r, cost, batch, others)
		ok, until = ok && fits, max(until, at)
	}
	if len(w.Reports) > 0 {
		return ok, until
	}
	limit := r.Usable(w.Limit)
	if batch {
		limit -= limit / reserveParts
	}
	cost = capped(cost, limit)
	switch spent := w.Unconfirmed.Total; {
	case limit <= 0:
		return false, now + w.Length
	case spent+cost > limit:
		return false, w.Unconfirmed.freeAt(spent + cost - limit)
	default:
		return ok && spent+w.inUse+others+cost <= limit, 0
	}
}

// fits reports whether a request with a cost fits into a reported window.
func (w *window) fits(p report, now int64, r *Rules, cost int64, batch bool, others int64) (ok bool, until int64) {
	limit := r.Usable(p.Limit)
	cost = capped(cost, limit)
	used := p.use()
	spent := used + w.Unconfirmed.Total
	switch {
	case used+cost > limit:
		return false, p.reopens()
	case spent+cost > limit:
		return false, min(p.reopens(), w.Unconfirmed.freeAt(spent+cost-limit))
	case spent+w.inUse+others+cost > limit:
		return false, 0
	}
	if !batch {
		return true, 0
	}
	parts := reserveParts * w.Length
	free := limit - spent - w.inUse - others - cost + 1 // one more than the request leaves
	if max(0, p.end()-now)*limit/parts < free {
		return true, 0
	}
	return false, p.end() - (free*parts-1)/limit
}

// learned is the result of learn.
type learned int

const (
	learnedEnded   learned = iota // the report of a late response is about an ended window
	learnedNothing                // the reset has passed before the request was sent
	learnedOpen
	learnedDoubt // the report needs a confirmation
)

// learn adds the rate headers of a response. sent is the time of the grant, or zero if the time is unknown. own is the known
// cost of the request. Responses arrive in any order, so the highest reported use counts. anonymous means that the limit is that
// of callers without a credential, and limited that the response is a limit error.
func (w *window) learn(r policy.Rate, sent, own, now int64, anonymous, limited bool) learned {
	w.expire(now)
	p := report{Reset: r.Reset.UnixMicro(), Limit: int64(r.Limit), Used: int64(r.Used), Responses: 1, Granted: sent}
	switch {
	case !r.Date.IsZero():
		// The response was made within the second of Date, between sent and now.
		date := r.Date.UnixMicro()
		p.MaxOffset, p.MinOffset = now-date, sent-date-second
	case p.Reset+w.Length <= now: // the upstream's clock is wrong
		p.MaxOffset = now + w.Length - p.Reset
	}
	p.MaxOffset = min(p.MaxOffset, now+max(longestReset, w.Length)-p.Reset)
	switch {
	case w.isLate(p):
		return learnedEnded
	case !p.isValid(), p.reopens() <= now, sent < w.Opened:
		return learnedNothing
	}
	if w.doubts(p, sent, now, anonymous, limited) {
		return learnedDoubt
	}
	// The reported count includes every unconfirmed request that ended before this request was sent, unless the report is behind.
	p.Counts = counts{own, w.Unconfirmed.removeUntil(sent - 1)}
	w.add(p, func(old, added int64) int64 {
		if sent == 0 { // the response may be a repetition
			return old
		}
		return old + added
	})
	return learnedOpen
}

// isLate reports whether a report is about a window that had not ended here at the time of its request. After that time, the
// upstream reports the same reset only if the window ended too early here.
func (w *window) isLate(p report) bool {
	return w.LastReset != 0 && p.Reset <= w.LastReset+resetJitter && p.Granted < w.LastEnd
}

// merge adds a report of another replica.
func (w *window) merge(p report, now int64) {
	w.expire(now)
	p.MaxOffset = min(p.MaxOffset, now+max(longestReset, w.Length)-p.Reset)
	if !p.isValid() || p.Responses > 0 && w.isLate(p) || p.reopens() <= now {
		return
	}
	if w.Doubt != nil && w.Doubt.repeats(p) {
		w.Doubt = nil
	}
	limit := w.Limit
	known := slices.ContainsFunc(w.Reports, func(old report) bool { return old.sameWindow(p) && old.Limit == p.Limit })
	w.add(p, func(old, added int64) int64 { return max(old, added) })
	if known { // the order of the reports is that of the resets, so the last one need not be the latest
		w.Limit = limit
	}
}

// add adds a report of the open window. responses combines the numbers of responses of two reports about one window.
func (w *window) add(p report, responses func(old, added int64) int64) {
	w.Confirmed, w.Limit = true, p.Limit
	for i := range w.Reports {
		if old := &w.Reports[i]; old.sameWindow(p) {
			old.Reset, old.Used, old.Limit = max(old.Reset, p.Reset), max(old.Used, p.Used), p.Limit
			old.learnClock(p)
			old.Granted = max(old.Granted, p.Granted)
			old.Counts, old.Foreign = old.Counts.plus(p.Counts), old.Foreign.atLeast(p.Foreign)
			old.Responses = responses(old.Responses, p.Responses)
			return
		}
	}
	w.Reports = append(w.Reports, p)
	w.boundReports()
}

// boundReports sorts the reports by reset. Of more than mostReports, those with the fewest remaining requests stay, so no report
// hides an exhausted window.
func (w *window) boundReports() {
	slices.SortFunc(w.Reports, func(a, b report) int { return cmp.Compare(a.Reset, b.Reset) })
	for len(w.Reports) > mostReports {
		most := slices.MaxFunc(w.Reports, func(a, b report) int { return cmp.Compare(a.Limit-a.use(), b.Limit-b.use()) })
		i := slices.Index(w.Reports, most)
		w.Reports = slices.Delete(w.Reports, i, i+1)
	}
}

// open removes the reports of requests that were granted until a time, for an operator. limit is the documented limit.
func (w *window) open(at, limit int64) {
	w.Opened, w.Limit, w.Doubt = at, limit, nil
	w.Reports = slices.DeleteFunc(w.Reports, func(p report) bool { return p.Granted <= at })
	w.Confirmed, w.withoutHeaders, w.slowStarted = len(w.Reports) > 0, 0, 0
	w.reported = 0
	w.ended++
}

// learnNothing adds a response without rate headers.
func (w *window) learnNothing(silent bool, now int64) {
	w.expire(now)
	w.withoutHeaders++
	w.Confirmed = w.Confirmed || w.withoutHeaders >= slowStartBurst
	if silent {
		w.Silent++
	}
}

// exhaust closes the window after a primary limit error. Without a known reset, the window is closed for retryAfter, or else
// for its length.
func (w *window) exhaust(retryAfter time.Duration, now int64) {
	w.expire(now)
	w.Confirmed = true
	if len(w.Reports) == 0 {
		length := w.Length
		if retryAfter > 0 {
			length = min(retryAfter.Microseconds(), longestReset)
		}
		w.Reports = append(w.Reports, report{Reset: now + length, Limit: w.Limit, Used: w.Limit})
	}
	for i := range w.Reports {
		w.Reports[i].Used = max(w.Reports[i].Used, w.Reports[i].Limit)
	}
}

// isExhausted reports whether a report leaves no request.
func (w *window) isExhausted(r *Rules, now int64) bool {
	w.expire(now)
	return slices.ContainsFunc(w.Reports, func(p report) bool { return p.use() >= r.Usable(p.Limit) })
}

// exhaustedUntil returns the time at which the windows reopen that are exhausted by their reports, or zero.
func (w *window) exhaustedUntil(now int64) (until int64) {
	w.expire(now)
	for _, p := range w.Reports {
		if p.Used >= p.Limit {
			until = max(until, p.reopens())
		}
	}
	return until
}

// idle reports whether the window has the state of a new window.
func (w *window) idle(now int64) bool {
	w.expire(now)
	w.removeIdleClients(now)
	return w.inUse == 0 && len(w.Reports) == 0 && w.Doubt == nil && w.Unconfirmed.Total == 0 && len(w.Clients) == 0
}
