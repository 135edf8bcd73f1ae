package redisledger

import (
	"cmp"
	"context"
	"time"

	"github.com/weirgate/weir/limits"
)

// flight is a permit of this replica that Redis has granted, for as long as it
// takes a place there. Should Redis lose it, it is entered again (restore.lua);
// what Redis could not be told, it is told when it is found.
type flight struct {
	claim   limits.Claim
	charged bool          // only its place is still taken
	elapsed time.Duration // when it was renewed last
	// alone is set until Redis knows of one that was granted while it was lost; share
	// until Redis has set aside anew, what it takes of the share meanwhile.
	alone bool
	share *aloneFlight
	// seen is when it was granted or renewed last: one that is not renewed any
	// more has ended. heard is when Redis last heard of that.
	seen, heard time.Time
	// left is when the place of one that was given up comes back, on Redis's
	// clock; zero for the others.
	left int64
	// outcome has not been told to Redis yet, nor that the answer has ended.
	outcome        *limits.Outcome
	told           bool // what the outcome tells of the primary window is kept
	ended, aborted bool
	// stands is the ID of the claim for which it stands, where that is another (ahead.go).
	stands uint64
	// renewed is set once that was renewed: its renewal may have come after its end.
	renewed bool
}

// lingerTime is how long after a request was given up the upstream may still
// count it, leaseTime how long a permit lives that nobody renews (account.lua).
const (
	lingerTime = 10 * time.Second
	leaseTime  = 30 * time.Second
)

// flight returns a flight that Redis has granted or taken up again; the caller
// holds Ledger.mu.
func (s *shadow) flight(c limits.Claim, r *limits.Rules) *flight {
	s.expire(c.ID, r)
	f := s.flights[c.ID]
	if f == nil {
		f = &flight{claim: c}
		s.flights[c.ID] = f
	}
	f.seen = time.Now()
	f.heard = f.seen
	return f
}

// open reports whether the flight has not been settled before.
func (f *flight) open() bool { return f != nil && !f.charged && f.left == 0 }

// land follows an open flight after its settling; the caller holds Ledger.mu.
func (s *shadow) land(id uint64, o limits.Outcome) {
	f := s.flights[id]
	f.outcome, f.charged = nil, true
	switch {
	case !o.Sent, o.Answered && o.Ended:
		s.forget(id)
	case !o.Answered:
		s.leave(f)
	}
	if o.Sent && o.Resent > 0 {
		copies := &flight{claim: f.claim, charged: true}
		s.leave(copies)
		s.flights[^id] = copies
	}
}

func (s *shadow) leave(f *flight) { f.left = s.now() + lingerTime.Microseconds() }

// release follows a flight whose answer has ended; an end that comes late does not let it
// live on. The caller holds Ledger.mu.
func (s *shadow) release(id uint64, aborted bool, r *limits.Rules) {
	if f := s.flights[id]; f != nil {
		f.ended = false
		s.expire(id, r)
	}
	switch f := s.flights[id]; {
	case f == nil || !f.charged || f.left != 0:
	case aborted:
		s.leave(f)
	default:
		s.forget(id)
	}
}

// keepOutcome keeps what became of a permit until Redis has been told: of two outcomes the
// first. The lease there holds until then, or until it ends.
func (l *Ledger) keepOutcome(s *shadow, p limits.Permit, o limits.Outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.rules.Load()
	s.expire(p.ID, r) // an answer that comes later teaches still
	f := s.flights[p.ID]
	switch {
	case f == nil && !l.isLost():
		s.strays = append(s.strays, tell{permit: p, outcome: &o})
		return
	case f == nil:
		s.hears(p, o, r)
		return
	case !f.open() || f.outcome != nil:
		return
	}
	f.outcome = &o
	switch {
	case l.isLost() || f.alone:
		f.told = s.hears(p, o, r)
	case o.Limited == limits.NotLimited:
		f.told = s.learn(p, o, r)
	}
	switch {
	case f.share == nil:
	case !o.Sent:
		f.returnShare(r)
	case o.Answered:
		f.share.took(&f.share.class.kept, o.Elapsed, r, s.now(), true)
		if o.Ended {
			f.returnShare(r)
		}
	}
}

// returnShare ends what the flight takes of a share; the caller holds Ledger.mu.
func (f *flight) returnShare(r *limits.Rules) {
	if f.share != nil {
		f.share.end(r)
		f.share = nil
	}
}

// keepEnd keeps that the answer has ended.
func (l *Ledger) keepEnd(s *shadow, p limits.Permit, aborted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.expire(p.ID, l.rules.Load())
	f := s.flights[p.ID]
	if f == nil {
		if !l.isLost() {
			s.strays = append(s.strays, tell{permit: p, aborted: aborted})
		}
		return
	}
	f.ended, f.aborted = true, aborted
	if !aborted {
		f.returnShare(l.rules.Load())
	}
}

// untold reports whether something became of the flight that Redis has not been told.
func (f *flight) untold() bool { return f.outcome != nil || f.ended }

// forgotten reports whether the lease may have ended in Redis, for which it has
// not heard of it.
func (f *flight) forgotten() bool { return f.left == 0 && time.Since(f.heard) > leaseTime-time.Second }

// tellKept tells Redis what was kept for it. Leases that may have ended there
// while it was lost are taken up again first.
func (l *Ledger) tellKept(ctx context.Context, s *shadow, r *limits.Rules) error {
	l.mu.Lock()
	var forgotten []flight
	for _, f := range s.flights {
		if f.forgotten() {
			forgotten = append(forgotten, *f)
		}
	}
	l.mu.Unlock()
	for _, f := range forgotten {
		if err := l.renew(ctx, s, r, limits.OpenPermit{Permit: limits.Permit{Claim: f.claim}, Elapsed: f.elapsed}, f.charged, cmp.Or(f.stands, f.claim.ID)); err != nil {
			return err
		}
	}
	return l.tellNow(ctx, s, true)
}

// alive notes that a flight is. It reports whether Redis does not know of it yet,
// and whether it is charged.
func (l *Ledger) alive(s *shadow, f limits.OpenPermit) (alone, charged bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.rules.Load()
	if alone := s.alone[f.ID]; alone != nil {
		if alone.left == 0 && !alone.charged {
			alone.takes(f.Elapsed, r)
		}
		return true, false
	}
	s.expire(f.ID, r)
	flight := s.flights[f.ID]
	if flight == nil {
		return false, false
	}
	flight.seen, flight.elapsed = time.Now(), max(flight.elapsed, f.Elapsed)
	return flight.alone, flight.charged
}

// forgetLanded forgets the flights whose places have come back; the caller holds
// Ledger.mu.
func (s *shadow) forgetLanded(r *limits.Rules) {
	for id := range s.flights {
		s.expire(id, r)
	}
}

// expire forgets a flight if its place has come back. One that nobody has settled
// is charged then. The caller holds Ledger.mu.
func (s *shadow) expire(id uint64, r *limits.Rules) {
	f := s.flights[id]
	if f == nil || f.outcome != nil || f.ended {
		return
	}
	ends := f.left
	if ends == 0 {
		ends = f.seen.Add(leaseTime).UnixMicro() + s.ahead
	}
	if ends > s.now() {
		return
	}
	if f.open() {
		s.spent(f.claim, limits.Outcome{Sent: true, Elapsed: f.elapsed}, r, s.acked, ends, ends)
	}
	s.forget(id)
}

// permitCall is a permit as renew.lua and restore.lua get it.
type permitCall struct {
	ID       string   `json:"id"`
	Charged  bool     `json:"charged"`
	Expires  int64    `json:"expires,omitempty"` // of an abandoned permit
	Resource resource `json:"resource"`
	CPU      int64    `json:"cpu"` // milliseconds
	Holds    []hold   `json:"holds,omitempty"`
}

// hold is what a permit holds of a sliding log.
type hold struct {
	Log    string `json:"log"`
	Cost   int64  `json:"cost"`
	CPU    bool   `json:"cpu"`
	Window int64  `json:"window"`
	Merge  int64  `json:"merge"`
}

func holdOf(s *limits.Spend) hold {
	return hold{logName(s), s.Cost, s.Budget == limits.CPU, s.Window.Microseconds(), s.Merge.Microseconds()}
}

// holds returns what a permit holds after some time.
func holds(r *limits.Rules, c limits.Claim, elapsed time.Duration) (list []hold) {
	for _, s := range r.Spends(c) {
		if s.Budget == limits.CPU {
			s.Cost = max(s.Cost, r.Milliseconds(elapsed))
		}
		list = append(list, holdOf(&s))
	}
	return list
}

// inAir lists the flights as restore.lua takes them; the caller holds Ledger.mu.
func (l *Ledger) inAir(s *shadow, r *limits.Rules) []permitCall {
	s.forgetLanded(r)
	var list []permitCall
	for id, f := range s.flights {
		p := permitCall{ID: l.id(f.claim), Charged: f.charged, Expires: f.left, Resource: resourceOf(r, s.kind, f.claim.Resource)}
		if id != f.claim.ID {
			p.ID += "+" // what is left of its copies
		}
		if !f.charged {
			p.Holds = holds(r, f.claim, f.elapsed)
		}
		list = append(list, p)
	}
	return list
}
