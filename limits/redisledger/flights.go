package redisledger

import (
	"context"
	"time"

	"github.com/weirgate/weir/limits"
)

// flight is a permit of this replica that Redis has granted, for as long as it
// takes a place there. Should Redis lose it, it is entered again (restore.lua);
// what Redis could not be told, it is told when it is found.
type flight struct {
	claim   limits.Claim
	charged bool // only its place is still taken
	// seen is when it was granted or renewed last: one that is not renewed any
	// more has ended.
	seen time.Time
	// left is when the place of one that was given up comes back, on Redis's
	// clock; zero for the others.
	left int64
	// outcome has not been told to Redis yet, nor that the answer has ended.
	outcome        *limits.Outcome
	ended, aborted bool
}

// lingerTime is how long after a request was given up the upstream may still
// count it, leaseTime how long a permit lives that nobody renews (account.lua).
const (
	lingerTime = 10 * time.Second
	leaseTime  = 30 * time.Second
)

// land follows a flight after its settling; the caller holds Ledger.mu.
func (s *shadow) land(id string, o limits.Outcome) {
	f := s.flights[id]
	if f == nil {
		return
	}
	f.outcome, f.charged = nil, true
	switch {
	case !o.Sent, o.Answered && o.Ended:
		delete(s.flights, id)
	case !o.Answered:
		s.leave(f)
	}
	if o.Answered && o.Resent > 0 {
		copies := &flight{claim: f.claim, charged: true}
		s.leave(copies)
		s.flights[id+"+"] = copies
	}
}

func (s *shadow) leave(f *flight) { f.left = s.now() + lingerTime.Microseconds() }

// release follows a flight whose answer has ended; the caller holds Ledger.mu.
func (s *shadow) release(id string, aborted bool) {
	f := s.flights[id]
	if f != nil {
		f.ended = false
	}
	switch {
	case f == nil || f.left != 0:
	case aborted:
		s.leave(f)
	default:
		delete(s.flights, id)
	}
}

// firstOutcome is what became of a flight: of two outcomes the first, which may
// be kept here still.
func (l *Ledger) firstOutcome(s *shadow, p limits.Permit, o limits.Outcome) limits.Outcome {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f := s.flights[l.id(p.Claim)]; f != nil && f.outcome != nil {
		return *f.outcome
	}
	return o
}

// keepOutcome keeps what became of a flight until Redis can be told; the lease
// there holds until then, or until it ends.
func (l *Ledger) keepOutcome(s *shadow, p limits.Permit, o limits.Outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f := s.flights[l.id(p.Claim)]; f != nil {
		f.outcome = &o
	}
	s.learn(p, o)
}

// keepEnd keeps that the answer has ended.
func (l *Ledger) keepEnd(s *shadow, p limits.Permit, aborted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f := s.flights[l.id(p.Claim)]; f != nil {
		f.ended, f.aborted = true, aborted
	}
}

// tellKept tells Redis what was kept for it.
func (l *Ledger) tellKept(ctx context.Context, s *shadow) error {
	l.mu.Lock()
	var kept []flight
	for _, f := range s.flights {
		if f.outcome != nil || f.ended {
			kept = append(kept, *f)
		}
	}
	l.mu.Unlock()
	for _, f := range kept {
		p := limits.Permit{Claim: f.claim}
		if f.outcome != nil {
			if err := l.settle(ctx, s, p, *f.outcome); err != nil {
				return err
			}
		}
		if f.ended {
			if err := l.end(ctx, s, p, f.aborted); err != nil {
				return err
			}
		}
	}
	return nil
}

// alive notes that a flight is.
func (l *Ledger) alive(s *shadow, f limits.Flight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if flight := s.flights[l.id(f.Claim)]; flight != nil {
		flight.seen = time.Now()
	}
}

// forgetLanded forgets the flights whose places have come back; the caller holds
// Ledger.mu.
func (s *shadow) forgetLanded() {
	for id, f := range s.flights {
		ended := f.left == 0 && f.outcome == nil && !f.ended && time.Since(f.seen) > leaseTime
		if ended || f.left != 0 && f.left <= s.now() {
			delete(s.flights, id)
		}
	}
}

// inAir lists the flights as restore.lua takes them; the caller holds Ledger.mu.
func (s *shadow) inAir(r *limits.Rules) []any {
	s.forgetLanded()
	var list []any
	for id, f := range s.flights {
		record := append([]any{id, truth(f.charged), f.left}, resource(r, s.kind, f.claim.Resource)...)
		if !f.charged {
			record = append(record, holds(r, f.claim)...)
		}
		list = append(list, record)
	}
	return list
}

// holds are what a permit holds in the logs, as scripts take it.
func holds(r *limits.Rules, c limits.Claim) []any {
	var room [limits.MaxSpends]limits.Spend
	var list []any
	for _, s := range r.Spends(c, room[:0]) {
		list = append(list, []any{logName(&s), s.Cost, truth(s.Budget == limits.CPU), s.Window.Microseconds(), s.Merge.Microseconds()})
	}
	return list
}
