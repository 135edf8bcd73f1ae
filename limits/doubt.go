package limits

// doubt is a report that contradicts the known reports of its window, such as a report about the budget of another caller. One
// such report does not close the window: the response to a later request decides. Until that response, if the report admits no
// request, only one request is in progress at a time, the probe. The methods begin and end accept a nil pointer.
type doubt struct {
	report
	// Since is the time of the report. Only the report of a request that was granted later can refute it.
	Since int64
	// Refuted means that a later response contradicted the report. A refuted report restricts no request. It is kept because
	// it may come from a region that counts separately, whose second report confirms it.
	Refuted bool
	// Beyond means that the report has the window of a known report with requests left, and a use beyond its limit. Only such a
	// report repeats it.
	Beyond bool `json:",omitempty"`

	probe     uint64 // ID of the probe's permit, or zero
	granted   int64  // time of its grant
	lastProbe int64  // time of the grant of the last probe that was sent and has ended, or zero
}

// repeats reports whether another report is about the same window and has the same limit.
func (d *doubt) repeats(p report) bool {
	return d.sameWindow(p) && d.Limit == p.Limit && (!d.Beyond || p.Used > p.Limit)
}

// admits reports whether a probe may be sent. If not, until is the time of the next probe, or zero if the response to the
// probe in progress decides.
func (d *doubt) admits(now int64) (ok bool, until int64) {
	switch next := d.lastProbe + slowStartEvery; {
	case d.probe != 0:
		return false, 0
	case now < next: // the response to the last probe decided nothing
		return false, next
	}
	return true, 0
}

// begin records a permit as the probe. While the report admits requests, the newest permit is the probe.
func (d *doubt) begin(id uint64, now int64) {
	if d != nil && !d.Refuted {
		d.probe, d.granted = id, now
	}
}

// end records that a permit was settled or has expired. A probe that was not sent does not delay the next probe.
func (d *doubt) end(id uint64, sent bool) {
	if d == nil || d.probe != id {
		return
	}
	if d.probe = 0; sent {
		d.lastProbe = d.granted
	}
}

// anonymousFactor decides whether a report with the limit of callers without a credential is doubtful: the window must have at
// least anonymousFactor times that limit.
const anonymousFactor = 10

// doubts reports whether a report of the open window needs a confirmation, and records the report as the doubt of the window.
// A doubtful report has
//
//   - another limit and another reset than the known reports,
//   - another reset than a known report of sureAfter responses whose window was still open at the upstream, and no request
//     remains,
//   - a lower limit for a known reset, and no request remains, or a higher one,
//   - a use beyond its limit for a known reset with requests left,
//   - or, without a known report, the exhausted budget of callers without a credential.
//
// A report that repeats the doubt confirms it if its request was granted after the doubt: requests in progress together may
// get the same wrong report. A limit error needs no confirmation, unless its limit is that of callers without a credential. A
// response whose permit is unknown (sent is zero) may be a repetition, so its doubtful report changes nothing.
func (w *window) doubts(p report, sent, now int64, anonymous, limited bool) bool {
	d := w.Doubt
	anonymous = anonymous && w.Limit >= anonymousFactor*p.Limit
	if d != nil && d.repeats(p) {
		if sent == 0 || sent < d.Since && (!limited || anonymous) {
			return true
		}
		w.Doubt = nil
		w.add(d.report, func(old, added int64) int64 { return old + added })
		return false
	}
	known, sure, sameWindow, doubtful, beyond := false, false, false, false, false
	limits := map[int64]bool{}
	for _, old := range w.Reports {
		if old.Responses == 0 { // assumed by exhaust
			continue
		}
		known, sure, limits[old.Limit] = true, sure || old.Responses >= sureAfter && old.Reset > now-p.MaxOffset, true
		if old.sameWindow(p) {
			beyond = p.Used > p.Limit && old.Used < old.Limit
			sameWindow, p.Used = true, max(p.Used, old.Used)
			doubtful = beyond || p.Limit > old.Limit || p.Limit < old.Limit && p.Used >= p.Limit
		}
	}
	switch {
	case !known:
		doubtful = anonymous && p.Used >= p.Limit
	case !sameWindow:
		doubtful = !limits[p.Limit] || sure && p.Used >= p.Limit
	}
	switch {
	case limited && (!anonymous || !known), !doubtful:
		if d != nil && sent >= d.Since {
			w.refute(limits[d.Limit] && !d.Beyond)
		}
		return false
	case sent == 0: // the response may be a repetition
	case d == nil:
		w.Doubt = &doubt{report: p, Since: now, Beyond: beyond}
	default:
		d.report, d.Since, d.Refuted, d.Beyond = p, now, false, beyond
	}
	return true
}

// refute ends the doubt. mayBeRegion means that the doubtful report has the limit of a known report.
func (w *window) refute(mayBeRegion bool) {
	if mayBeRegion {
		w.Doubt.Refuted, w.Doubt.probe = true, 0
	} else {
		w.Doubt = nil
	}
}
