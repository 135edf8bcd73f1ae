package limitstest

import (
	"slices"
	"time"
)

// spend is something that was counted.
type spend struct {
	at   time.Time
	cost int64
	// copied spends are of a copy that the transport sent; told is when the
	// ledger learned of it (zero: not yet).
	copied *copied
}

// copied is a request that a transport has sent again without asking.
type copied struct{ told time.Time }

// hidden reports whether a ledger that granted something at that time cannot
// have known of the copy.
func (c *copied) hidden(granted time.Time) bool {
	return c != nil && (c.told.IsZero() || !c.told.Before(granted))
}

// sums is a sliding window: a flat list of everything that was counted in it.
type sums struct {
	max    int64
	length time.Duration
	list   []spend
	total  int64
	copies int // in the list
	meter  meter
	// surprises are CPU time that was not expected.
	surprises []surprise
}

// surprise is CPU time that a request took beyond what was expected of it. A
// ledger learns of it while the request is in flight, by and by.
type surprise struct {
	at              time.Time
	extra, expected time.Duration
	of              *exchange
}

// known is how much of it a ledger knew when it granted something, in
// microseconds.
func (s *surprise) known(granted time.Time) int64 {
	if settled := s.of.answer.settled; !settled.IsZero() && settled.Before(granted) {
		return s.extra.Microseconds()
	}
	elapsed := min(granted.Sub(s.of.began), s.of.Patience) - s.of.Lag
	seen := time.Duration(float64(elapsed) * s.of.nature.Limits.CPU.Factor)
	return min(max(0, seen-s.expected), s.extra).Microseconds()
}

// surprised adds up the surprises of the window that ends now: those that were
// known, and all.
func (s *sums) surprised(now, granted time.Time) (known, all int64) {
	s.surprises = slices.DeleteFunc(s.surprises, func(x surprise) bool { return now.Sub(x.at) >= s.length })
	for i := range s.surprises {
		known += s.surprises[i].known(granted)
		all += s.surprises[i].extra.Microseconds()
	}
	return known, all
}

// add counts a spend, and returns the sum of the window that ends with it, less
// what could not be known when the request was granted.
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

// pace measures how fast a limit is used: the time from the first spend until
// so many whole limits have gone, so that a window more or less at either end
// does not matter.
type pace struct {
	from     time.Time // steady state begins; zero measures nothing
	first    time.Time
	total    int64
	whole    int64   // limits that have gone
	achieved float64 // of the limit, in each window
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

// meter measures how much of a sliding window is used: the fullest window that
// ended in each block of its length.
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

// window is a fixed window of one resource of one account.
type window struct {
	max    int64
	length time.Duration
	// phase is when one of the windows begins; zero opens each with its first
	// request.
	phase        time.Time
	opened, ends time.Time
	used         int64
	foreign      int64 // of used, what others have spent
	refused      int64 // requests that were beyond it
	copies       []*copied
	news         []news
	closed       []float64 // how full each was when it ended, in steady state
	pace         pace
	last         snapshot // in headers
}

// news is what an answer has told the ledger of the window that is open.
type news struct {
	at      time.Time
	foreign int64
}

// roll opens the window that a time lies in; where the first request opens it,
// only if open is set.
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
		w.opened, w.ends, w.used, w.foreign = time.Time{}, time.Time{}, 0, 0
		return
	}
	w.ends = w.opened.Add(w.length)
	w.used, w.foreign, w.refused, w.copies, w.news = 0, 0, 0, nil, nil
}

func (w *window) close() {
	if from := w.pace.from; !from.IsZero() && !w.opened.Before(from) {
		w.closed = append(w.closed, float64(w.used)/float64(w.max))
	}
}

// take counts one request. It returns false if the window is used up, and then
// by how many requests of ours more than others can have caused since what the
// ledger knew when it granted this one.
func (w *window) take(now, granted time.Time, c *copied) (ok bool, excess int64) {
	w.roll(now, true)
	if w.used < w.max {
		w.used++
		w.pace.see(now, 1, w.max, w.length)
		if c != nil {
			w.copies = append(w.copies, c)
		}
		return true, 0
	}
	if c != nil {
		return false, 0
	}
	w.refused++
	var known int64
	for _, n := range w.news {
		if n.at.Before(granted) {
			known = max(known, n.foreign)
		}
	}
	unknown := w.foreign - known
	for _, c := range w.copies {
		if c.hidden(granted) {
			unknown++
		}
	}
	return false, w.refused - unknown
}

// others spends by somebody else, as far as there is something left.
func (w *window) others(now time.Time, n int64) {
	w.roll(now, true)
	n = min(n, w.max-w.used)
	w.used += n
	w.foreign += n
}

// snapshot is the state of a window at one moment, for headers.
type snapshot struct {
	window             *window
	max, used, foreign int64
	ends               time.Time
	opened             time.Time
}

func (w *window) snapshot(now time.Time) snapshot {
	w.roll(now, false)
	s := snapshot{window: w, max: w.max, used: w.used, foreign: w.foreign, ends: w.ends, opened: w.opened}
	if s.ends.IsZero() {
		s.ends = now.Add(w.length)
	}
	return s
}

// told notes that the ledger has learned what a snapshot says.
func (s snapshot) told(now time.Time) {
	if w := s.window; w != nil && w.opened.Equal(s.opened) {
		w.news = append(w.news, news{now, s.foreign})
	}
}
