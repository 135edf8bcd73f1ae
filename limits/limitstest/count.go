package limitstest

import (
	"slices"
	"time"
)

// spend is a counted cost.
type spend struct {
	at   time.Time
	cost int64
	// copied is set for a copy that the transport sent.
	copied *transportCopy
}

// transportCopy is a copy of a request that the transport sent.
type transportCopy struct {
	price   int64     // in the primary window
	learned time.Time // time at which the ledger learned of the copy, or zero
}

// hidden reports whether the copy was unknown to the ledger when the ledger granted a permit.
func (c *transportCopy) hidden(granted time.Time) bool {
	return c != nil && (c.learned.IsZero() || !c.learned.Before(granted))
}

// sums is a sliding window, with a list of the counted costs.
type sums struct {
	max    int64
	length time.Duration
	list   []spend
	total  int64
	copies int // number of costs in list that belong to copies sent by the transport
	meter  meter
	// excesses contains CPU time that was not predicted.
	excesses []excessCPU
}

// excessCPU is the CPU time that a request took beyond the prediction. A ledger learns of the excess gradually, while
// the request is open.
type excessCPU struct {
	at              time.Time
	extra, expected time.Duration
	of              *exchange
}

// known returns the part of the excess that the ledger knew when it granted a permit, in microseconds.
func (s *excessCPU) known(granted time.Time) int64 {
	if settled := s.of.response.settled; !settled.IsZero() && settled.Before(granted) {
		return s.extra.Microseconds()
	}
	elapsed := min(granted.Sub(s.of.began), s.of.Timeout) - s.of.Lag
	seen := time.Duration(float64(elapsed) * s.of.profile.Limits.CPU.Factor)
	return min(max(0, seen-s.expected), s.extra).Microseconds()
}

// totalExcess returns the known excess and the total excess of the window that ends now.
func (s *sums) totalExcess(now, granted time.Time) (known, all int64) {
	s.excesses = slices.DeleteFunc(s.excesses, func(x excessCPU) bool { return now.Sub(x.at) >= s.length })
	for i := range s.excesses {
		known += s.excesses[i].known(granted)
		all += s.excesses[i].extra.Microseconds()
	}
	return known, all
}

// add counts a cost, and returns the sum of the window that ends at this cost. Copies that were unknown at the grant of
// the request are not included.
func (s *sums) add(x spend, granted time.Time) int64 {
	for len(s.list) > 0 && x.at.Sub(s.list[0].at) >= s.length {
		s.total -= s.list[0].cost
		s.copies -= s.list[0].copies()
		s.list = s.list[1:]
	}
	s.list = append(s.list, x)
	s.total += x.cost
	s.copies += x.copies()
	s.meter.see(x.at, x.cost, s.max, s.length)
	s.meter.fill(x.at, float64(s.total)/float64(s.max), s.length)
	sum := s.total
	if s.copies > 0 {
		for _, y := range s.list {
			if y.copied.hidden(granted) {
				sum -= y.cost
			}
		}
	}
	return sum
}

func (x *spend) copies() int {
	if x.copied != nil {
		return 1
	}
	return 0
}

// pace measures the rate of use of a limit, from the first cost until a whole number of limits is used. A partial
// window at either end therefore does not change the result.
type pace struct {
	from     time.Time // start of the measurement; zero disables it
	first    time.Time
	total    int64
	whole    int64   // whole limits that were used
	achieved float64 // fraction of the limit per window
}

func (p *pace) see(at time.Time, cost, most int64, window time.Duration) {
	if p.from.IsZero() || at.Before(p.from) {
		return
	}
	if p.first.IsZero() {
		p.first = at
	}
	if n := p.total / most; n > p.whole {
		p.whole = n
		p.achieved = float64(p.total) / float64(most) * float64(window) / float64(at.Sub(p.first))
	}
	p.total += cost
}

// meter splits the time into blocks of one window length, and records the fullest sliding window of each block.
type meter struct {
	pace
	blocks []float64
}

func (m *meter) fill(at time.Time, full float64, length time.Duration) {
	if m.from.IsZero() || at.Before(m.from) {
		return
	}
	block := int(at.Sub(m.from) / length)
	for len(m.blocks) <= block {
		m.blocks = append(m.blocks, 0)
	}
	m.blocks[block] = max(m.blocks[block], full)
}

// window is the fixed window of one resource.
type window struct {
	max    int64
	length time.Duration
	// phase is the start of any window. If phase is zero, each window starts with its first request.
	phase        time.Time
	opened, ends time.Time
	used         int64
	byOtherUsers int64 // part of used that other users spent
	refused      int64 // prices of the requests that did not fit
	copies       []*transportCopy
	learned      []learnedUse
	closed       []float64 // use of each ended window, as a fraction
	pace         pace
}

// learnedUse is the part of a report about the open window that the ledger learned from a response.
type learnedUse struct {
	at           time.Time
	byOtherUsers int64
}

// roll opens the window that contains a time. A window that starts with a request is opened only if open is set.
func (w *window) roll(now time.Time, open bool) {
	if !w.ends.IsZero() && now.Before(w.ends) {
		return
	}
	if !w.ends.IsZero() {
		w.close()
	}
	switch {
	case !w.phase.IsZero():
		w.opened = w.phase.Add(now.Sub(w.phase).Truncate(w.length))
		if w.opened.After(now) {
			w.opened = w.opened.Add(-w.length)
		}
	case open:
		w.opened = now
	default:
		w.opened, w.ends, w.used, w.byOtherUsers = time.Time{}, time.Time{}, 0, 0
		return
	}
	w.ends = w.opened.Add(w.length)
	w.used, w.byOtherUsers, w.refused, w.copies, w.learned = 0, 0, 0, nil, nil
}

func (w *window) close() {
	if from := w.pace.from; !from.IsZero() && !w.opened.Before(from) {
		w.closed = append(w.closed, float64(w.used)/float64(w.max))
	}
}

// take counts the price of one request, and returns false if the price does not fit into the window. The excess is the
// part of the prices beyond the limit that other users cannot explain, given the knowledge of the ledger at the grant.
func (w *window) take(now, granted time.Time, price int64, c *transportCopy) (ok bool, excess int64) {
	w.roll(now, true)
	if w.used+price <= w.max {
		w.used += price
		w.pace.see(now, price, w.max, w.length)
		if c != nil {
			w.copies = append(w.copies, c)
		}
		return true, 0
	}
	if c != nil {
		return false, 0
	}
	w.refused += price
	var known int64
	for _, n := range w.learned {
		if n.at.Before(granted) {
			known = max(known, n.byOtherUsers)
		}
	}
	unknown := w.byOtherUsers - known
	for _, c := range w.copies {
		if c.hidden(granted) {
			unknown += c.price
		}
	}
	return false, w.used + w.refused - w.max - unknown
}

// spendByOtherUsers counts requests of other users, up to the limit.
func (w *window) spendByOtherUsers(now time.Time, n int64) {
	w.roll(now, true)
	if w.max == unreachable {
		return
	}
	n = min(n, w.max-w.used)
	w.used += n
	w.byOtherUsers += n
}

// snapshot is the state of a window at one time, for rate headers.
type snapshot struct {
	window                  *window
	max, used, byOtherUsers int64
	ends                    time.Time
	opened                  time.Time
}

func (w *window) snapshot(now time.Time) snapshot {
	w.roll(now, false)
	s := snapshot{window: w, max: w.max, used: w.used, byOtherUsers: w.byOtherUsers, ends: w.ends, opened: w.opened}
	if s.ends.IsZero() {
		s.ends = now.Add(w.length)
	}
	return s
}

// before returns the snapshot as it was some requests earlier.
func (s snapshot) before(requests int64) snapshot {
	s.used, s.byOtherUsers = max(0, s.used-requests), max(0, s.byOtherUsers-requests)
	return s
}

// learned records that the ledger has learned the snapshot.
func (s snapshot) learned(now time.Time) {
	if w := s.window; w != nil && w.opened.Equal(s.opened) {
		w.learned = append(w.learned, learnedUse{now, s.byOtherUsers})
	}
}
