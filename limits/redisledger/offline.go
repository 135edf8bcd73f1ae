package redisledger

import (
	"cmp"
	"strconv"
	"time"

	"github.com/weirgate/weir/limits"
)

// class is a kind of claim: all of one class draw on the same budgets. For each
// class that a replica has used lately it sets aside, in Redis, a share of what
// is left (beat.lua). That is all it may use when it loses Redis; those who
// have not lost it leave it alone.
type class struct {
	claim limits.Claim // one of the class
	used  time.Time
	// What is set aside, and until when on our clock.
	until         time.Time
	units, places int64
	parts         map[string]int64 // by log
	// What was used of it while Redis was lost; what of that Redis is being told, and
	// what it will be told by the outcomes of flights (flight.share); and what the
	// flights hold that Redis has not confirmed to hold.
	alone, telling, kept    used
	held                    map[string]int64
	unitsInFlight, inFlight int64
}

// used is what was used of a class's share. Units of a primary window return as
// what is spent of a sliding log does, a window's length after their answers: no
// window that is open then has counted them, wherever its ends are, and those who
// have not lost Redis leave the units alone in every window. ghosts are the units
// that no answer has told of.
type used struct {
	units, ghosts ownLog
	logs          map[string]*ownLog
}

// log returns what was used of a log.
func (u *used) log(s *limits.Spend) *ownLog {
	if u.logs == nil {
		u.logs = map[string]*ownLog{}
	}
	name := logName(s)
	own := u.logs[name]
	if own == nil {
		own = &ownLog{}
		u.logs[name] = own
	}
	own.window, own.merge = s.Window.Microseconds(), s.Merge.Microseconds()
	return own
}

// tell moves what was used alone to what Redis is being told.
func (c *class) tell(r *limits.Rules, spends []limits.Spend) {
	c.windowLog(&c.telling.units, r).join(&c.alone.units)
	c.windowLog(&c.telling.ghosts, r).join(&c.alone.ghosts)
	for i := range spends {
		c.telling.log(&spends[i]).join(c.alone.log(&spends[i]))
	}
	c.alone = used{}
}

// usedUnits and usedOf are what is not there to be used again yet: of the primary
// window, and of a log.
func (c *class) usedUnits(now int64) int64 {
	return c.alone.units.total(now) + c.telling.units.total(now) + c.kept.units.total(now) + c.unitsInFlight
}

func (c *class) usedOf(s *limits.Spend, now int64) int64 {
	return c.alone.log(s).total(now) + c.telling.log(s).total(now) + c.kept.log(s).total(now) + c.held[logName(s)]
}

// windowLog gives a log the widths of the class's primary window.
func (c *class) windowLog(own *ownLog, r *limits.Rules) *ownLog {
	own.covers(r.For(c.claim.Kind, named(c.claim.Resource, "")).Window)
	return own
}

// share is what is left of what was set aside, as far as it can be used.
func (c *class) share(now time.Time) (units, places int64, parts map[string]int64) {
	if !now.Before(c.until) {
		return 0, 0, nil
	}
	return c.units, c.places, c.parts
}

// aloneFlight is a permit that was granted while Redis was lost.
type aloneFlight struct {
	claim   limits.Claim
	class   *class
	charged bool // only its place is still taken
	elapsed time.Duration
	// copies is how often the transport has sent what this stands for, before it
	// sent it for the last time; zero for the requests themselves.
	copies int64
	// left is when one that was given up ends, on Redis's clock; zero for the
	// others.
	left int64
}

// spends are what the flight holds.
func (f *aloneFlight) spends(r *limits.Rules) []limits.Spend {
	if f.charged {
		return nil
	}
	list := r.Spends(f.claim)
	for i := range list {
		s := &list[i]
		switch {
		case f.copies == 0 && s.Budget == limits.CPU:
			s.Cost = max(s.Cost, r.Milliseconds(f.elapsed))
		case s.Budget == limits.CPU:
			s.Cost = 0
		case f.copies > 0:
			s.Cost *= f.copies
		}
	}
	return list
}

// units is how many requests the flight stands for that have not been charged.
func (f *aloneFlight) units() int64 {
	if f.charged {
		return 0
	}
	return max(1, f.copies)
}

// begin takes what the flight holds; the caller holds Ledger.mu.
func (f *aloneFlight) begin(r *limits.Rules) {
	for _, s := range f.spends(r) {
		f.class.held[logName(&s)] += s.Cost
	}
	f.class.unitsInFlight += f.units()
	f.class.inFlight++
}

// end gives back what the flight holds; the caller holds Ledger.mu.
func (f *aloneFlight) end(r *limits.Rules) {
	for _, s := range f.spends(r) {
		f.class.held[logName(&s)] -= s.Cost
	}
	f.class.unitsInFlight -= f.units()
	f.class.inFlight--
}

// takes notes how long the flight has taken; the caller holds Ledger.mu.
func (f *aloneFlight) takes(elapsed time.Duration, r *limits.Rules) {
	f.end(r)
	f.elapsed = max(f.elapsed, elapsed)
	f.begin(r)
}

// charge turns what the flight holds into spends of that time; told is whether an
// answer has told what its primary window has counted. The caller holds Ledger.mu.
func (f *aloneFlight) charge(to *used, r *limits.Rules, stamp int64, told bool) {
	f.end(r)
	f.class.windowLog(&to.units, r).spend(stamp, f.units(), 0)
	if !told {
		f.class.windowLog(&to.ghosts, r).spend(stamp, f.units(), 0)
	}
	spends := f.spends(r)
	for i := range spends {
		to.log(&spends[i]).spend(stamp, spends[i].Cost, 0)
	}
	f.charged = true
	f.begin(r)
}

// class returns the class of a claim; the caller holds Ledger.mu.
func (s *shadow) class(c limits.Claim) *class {
	name := className(c)
	own := s.classes[name]
	if own == nil {
		own = &class{claim: c, held: map[string]int64{}}
		s.classes[name] = own
	}
	return own
}

func className(c limits.Claim) string {
	creates := ""
	if c.CreatesContent {
		creates = "+"
	}
	return c.Resource + "|" + c.Operation + "|" + strconv.Itoa(c.Points) + creates
}

// Store is the reason of a refusal while Redis is lost, or while those who had
// lost it tell what they have spent.
const Store limits.Reason = "store"

// retryAlone is when to ask again while Redis is lost.
const retryAlone = time.Second

// admitAlone decides without Redis.
func (l *Ledger) admitAlone(s *shadow, c limits.Claim, r *limits.Rules) limits.Decision {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	refused := limits.Decision{Reason: Store, Until: now.Add(retryAlone)}
	own := s.class(c)
	if s.alone[c.ID] != nil || s.flights[c.ID] != nil {
		return limits.Decision{Granted: true}
	}
	s.sweepAlone(r)
	units, places, parts := own.share(now)
	if l.Closed || s.returning || own.usedUnits(s.now()) >= units || own.inFlight >= places {
		return refused
	}
	since := l.Lost()
	if since.IsZero() {
		since = now // found meanwhile
	}
	if until := time.UnixMicro(s.until - s.ahead); until.After(since) {
		// What comes after a cool-down, one probe and few at a time, is for Redis to
		// tell.
		return limits.Decision{Reason: limits.Cooldown, Until: latest(until, refused.Until)}
	}
	if until := s.usedUp(named(c.Resource, ""), r); until.After(now) {
		return limits.Decision{Reason: limits.Primary, Until: until}
	}
	spends := r.Spends(c)
	for i := range spends {
		if own.usedOf(&spends[i], s.now())+spends[i].Cost > parts[logName(&spends[i])] {
			return refused
		}
	}
	own.used = now
	s.wants(c)
	s.alone[c.ID] = &aloneFlight{claim: c, class: own}
	s.alone[c.ID].begin(r)
	return limits.Decision{Granted: true}
}

// usedUp is until when a primary window has nothing left, as far as this replica
// knows: neither what Redis has told last nor what answers have told since may be
// exceeded. It is over, or zero, when there is something left. The caller holds
// Ledger.mu.
func (s *shadow) usedUp(res string, r *limits.Rules) (until time.Time) {
	untold := s.untold(res)
	if b, ok := s.budgets[res]; ok && r.Usable(int64(b.Limit))-int64(b.Used) <= untold {
		until = b.Reset.Add(time.Second)
	}
	untold += s.ghosts(res, r).total(s.now()) // Redis has told of them
	for _, t := range s.told[res] {
		if r.Usable(int64(t.Limit))-int64(t.Used) <= untold {
			until = latest(until, time.UnixMicro(t.reopens()-s.ahead))
		}
	}
	return until
}

// untold is how many requests of a resource, which no answer has told of, this
// replica has sent; the caller holds Ledger.mu.
func (s *shadow) untold(res string) (n int64) {
	for _, c := range s.classes {
		if named(c.claim.Resource, "") == res {
			n += c.alone.ghosts.total(s.now()) + c.telling.ghosts.total(s.now())
		}
	}
	for _, f := range s.alone {
		if named(f.claim.Resource, "") == res {
			n += f.units()
		}
	}
	for _, f := range s.flights { // but for those that were given back
		if f.open() && !f.told && (f.outcome == nil || f.outcome.Sent) && named(f.claim.Resource, "") == res {
			n++
		}
	}
	return n
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// settleAlone charges a permit that was granted alone, and reports whether it
// was.
func (l *Ledger) settleAlone(s *shadow, p limits.Permit, o limits.Outcome, r *limits.Rules) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := s.alone[p.ID]
	switch {
	case f == nil:
		return false
	case f.charged || f.left != 0:
		return true // settled before
	}
	if o.Sent && o.Resent > 0 {
		s.leaveCopies(f, int64(o.Resent), r)
	}
	switch {
	case !o.Sent:
		s.landAlone(f, r)
	case !o.Answered:
		f.takes(o.Elapsed, r)
		f.left = s.now() + lingerTime.Microseconds()
	default:
		f.took(&f.class.alone, o.Elapsed, r, s.now(), s.hears(p, o, r))
		if o.Ended {
			s.landAlone(f, r)
		}
	}
	return true
}

// took charges a flight that is answered with the time that it has taken; the caller
// holds Ledger.mu.
func (f *aloneFlight) took(to *used, elapsed time.Duration, r *limits.Rules, now int64, told bool) {
	f.end(r)
	f.claim.CPU, f.elapsed = 0, elapsed
	f.begin(r)
	f.charge(to, r, now, told)
}

// leaveCopies enters what the transport sent before it sent a request for the
// last time, as one given up; the caller holds Ledger.mu.
func (s *shadow) leaveCopies(f *aloneFlight, n int64, r *limits.Rules) {
	copies := &aloneFlight{claim: f.claim, class: f.class, copies: n, left: s.now() + lingerTime.Microseconds()}
	copies.claim.ID = ^f.claim.ID
	s.alone[copies.claim.ID] = copies
	copies.begin(r)
}

// landAlone ends a flight; the caller holds Ledger.mu.
func (s *shadow) landAlone(f *aloneFlight, r *limits.Rules) {
	f.end(r)
	delete(s.alone, f.claim.ID)
}

// sweepAlone ends the flights that were given up long enough ago; the caller
// holds Ledger.mu.
func (s *shadow) sweepAlone(r *limits.Rules) {
	for _, f := range s.alone {
		if f.left != 0 && f.left <= s.now() {
			if !f.charged {
				f.charge(&f.class.alone, r, f.left, false)
			}
			s.landAlone(f, r)
		}
	}
}

// hears takes in what an answer has told that Redis cannot be told, and reports whether
// that was of its primary window; the caller holds Ledger.mu.
func (s *shadow) hears(p limits.Permit, o limits.Outcome, r *limits.Rules) (told bool) {
	s.heard = s.heard || o.Answered
	return s.learn(p, o, r)
}

// learn takes in what an answer has told that Redis is not told yet, and reports whether
// that was of its primary window; the caller holds Ledger.mu.
func (s *shadow) learn(p limits.Permit, o limits.Outcome, r *limits.Rules) (told bool) {
	if !o.Answered {
		return false
	}
	res := named(o.Rate.Resource, p.Resource)
	w := r.For(s.kind, res)
	told = s.hear(res, o, limits.Budget{Limit: cmp.Or(s.budgets[res].Limit, w.Max), Window: w.Window})
	if o.Limited == limits.SecondaryLimit {
		wait := max(o.RetryAfter+time.Second, time.Minute)
		s.until = max(s.until, s.now()+wait.Microseconds())
	}
	return told
}

// releaseAlone gives back the place of a permit that was granted alone, later if
// the answer was aborted, and reports whether it was.
func (l *Ledger) releaseAlone(s *shadow, p limits.Permit, aborted bool, r *limits.Rules) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := s.alone[p.ID]
	switch {
	case f == nil:
		return false
	case f.left != 0:
	case aborted:
		f.left = s.now() + lingerTime.Microseconds()
	default:
		s.landAlone(f, r)
	}
	return true
}
