package redisledger

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weirgate/weir/limits"
)

// A replica that asks an account for the same again and again asks for the next permits
// together with what it tells of the last ones, so that a request need not wait for Redis
// (BenchmarkTurns). A permit that was asked for ahead is one like any other: Redis holds all
// that it may cost from then on. It waits for a claim of its kind for a short time, and is
// then given back.
//
// Invariants: a permit stands for one claim at most; while little is left of any budget,
// or the account recovers from a limit error, none is granted ahead (admit.lua); and none is
// used once this replica knows of a limit error. What another replica has told reaches this
// one within [aheadTime]: the answer of a turn that granted the same may take longer.

const (
	// aheadTime is how long a permit may wait for its claim, since Redis was asked for it.
	aheadTime = 20 * time.Millisecond
	// aheadMost bounds how many of one kind wait.
	aheadMost = 16
	// aheadSpan is for how long they are to be enough.
	aheadSpan = 10 * time.Millisecond
)

// likeness is what claims have in common for which the same permit will do.
type likeness struct {
	operation, resource string
	points              int
	creates, batch      bool
}

func likenessOf(c *limits.Claim) likeness {
	return likeness{c.Operation, c.Resource, c.Points, c.CreatesContent, c.Batch}
}

// ahead are the permits of one kind that were asked for ahead.
type ahead struct {
	last  limits.Claim // of the kind
	ready []readyPermit
	// taken is how many claims of the kind came since the turn at since.
	taken int
	since time.Time
}

// readyPermit waits for a claim until then; its claim is one that nobody has made.
type readyPermit struct {
	claim limits.Claim
	until time.Time
}

// firstAhead is where the IDs of such claims begin: those of limiters, and what is made of
// them, have other first bits.
func firstAhead() uint64 { return 1<<63 | rand.Uint64()>>2 }

// takeReady lets a permit that was asked for ahead stand for a claim, and reports whether
// there is one. A claim for which one stands already becomes that permit's: asked again, it
// is decided like any other.
func (l *Ledger) takeReady(s *shadow, c *limits.Claim) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if id := s.stands[c.ID]; id != 0 {
		c.ID = id
		return false
	}
	if l.ahead == 0 || l.isLost() {
		return false
	}
	a, now := s.kindOf(c), time.Now()
	a.last = *c
	a.taken++
	i := slices.IndexFunc(a.ready, func(p readyPermit) bool { return p.until.After(now) && p.claim.CPU >= c.CPU })
	if i < 0 || s.until > s.now() || s.flights[c.ID] != nil || s.alone[c.ID] != nil {
		return false
	}
	f := s.flights[a.ready[i].claim.ID]
	a.ready = slices.Delete(a.ready, i, i+1)
	if len(a.ready) < min(a.taken, l.ahead/2) {
		l.refill(s)
	}
	if f == nil {
		return false
	}
	s.standFor(f, c.ID)
	s.class(*c).used = now
	return true
}

// kindOf are the permits of a claim's kind; the caller holds Ledger.mu.
func (s *shadow) kindOf(c *limits.Claim) *ahead {
	kind := likenessOf(c)
	a := s.kinds[kind]
	if a == nil {
		a = &ahead{}
		s.kinds[kind] = a
	}
	return a
}

// refill takes a turn to ask for more, if none is to come; the caller holds Ledger.mu.
func (l *Ledger) refill(s *shadow) {
	if s.refills || l.left {
		return
	}
	s.refills = true
	l.telling.Go(func() {
		_ = l.inTurn(context.Background(), s, &ask{}) // those who claim will find out
		l.mu.Lock()
		defer l.mu.Unlock()
		s.refills = false
	})
}

// stand returns the permit that stands for a claim, where it was asked for ahead, with the
// claim's own otherwise.
func (l *Ledger) stand(s *shadow, p limits.Permit) limits.Permit {
	l.mu.Lock()
	defer l.mu.Unlock()
	if id := s.stands[p.ID]; id != 0 {
		p.ID = id
	}
	return p
}

// standFor lets a flight stand for a claim; the caller holds Ledger.mu.
func (s *shadow) standFor(f *flight, claim uint64) {
	f.stands = claim
	s.stands[claim] = f.claim.ID
}

// forget forgets a flight that has landed; the caller holds Ledger.mu. For which claim one
// that was renewed stood is known until the next beat: Redis may have taken it up again after
// its end, and who renewed it gives it back.
func (s *shadow) forget(id uint64) {
	if f := s.flights[id]; f != nil && f.stands != 0 && !f.renewed {
		delete(s.stands, f.stands)
	}
	delete(s.flights, id)
}

// wantedAhead are claims for the permits that are to be asked for in a turn, at most so many:
// for as many as came lately, and of what has just begun few.
func (l *Ledger) wantedAhead(s *shadow, most int) (claims []*limits.Claim) {
	if l.ahead == 0 || l.isLost() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, a := range s.kinds {
		want := int(time.Duration(a.taken) * aheadSpan / max(now.Sub(a.since), 1))
		want = min(want, 2*a.taken+1, l.ahead) - len(a.ready)
		if a.taken == 0 || l.left {
			want = 0
		}
		a.taken, a.since = 0, now
		for ; want > 0 && len(claims) < most; want-- {
			c := a.last
			l.lastAhead++
			c.ID = l.lastAhead
			claims = append(claims, &c)
		}
	}
	return claims
}

// tookAhead takes note of a permit that was asked for ahead, and may be used until then; the
// caller holds Ledger.mu.
func (l *Ledger) tookAhead(s *shadow, c *limits.Claim, until time.Time, r *limits.Rules) {
	s.flight(*c, r)
	a := s.kindOf(c)
	a.ready = append(a.ready, readyPermit{*c, until})
	if s.sweeps || l.left {
		return
	}
	s.sweeps = true
	l.telling.Go(func() {
		for again := true; again; {
			<-time.After(aheadTime)
			l.giveBackAhead(s, time.Now())
			l.mu.Lock()
			again = s.waitAhead()
			s.sweeps = again
			l.mu.Unlock()
		}
	})
}

// waitAhead reports whether permits wait for their claims; the caller holds Ledger.mu.
func (s *shadow) waitAhead() bool {
	for _, a := range s.kinds {
		if len(a.ready) > 0 {
			return true
		}
	}
	return false
}

// giveBackAhead gives back the permits whose time is over then, and reports whether there
// are any.
func (l *Ledger) giveBackAhead(s *shadow, then time.Time) bool {
	l.mu.Lock()
	over := s.overAhead(then)
	l.mu.Unlock()
	for _, c := range over {
		l.keepOutcome(s, limits.Permit{Claim: c}, limits.Outcome{})
	}
	if len(over) > 0 {
		_ = l.tellSoon(s) // else it is kept until Redis is found
	}
	return len(over) > 0
}

// overAhead takes out the permits whose time is over then; the caller holds Ledger.mu.
func (s *shadow) overAhead(then time.Time) (over []limits.Claim) {
	for _, a := range s.kinds {
		a.ready = slices.DeleteFunc(a.ready, func(p readyPermit) bool {
			if p.until.After(then) {
				return false
			}
			over = append(over, p.claim)
			return true
		})
	}
	return over
}

// giveBackAllAhead gives back all that wait, and reports whether there are any.
func (l *Ledger) giveBackAllAhead(s *shadow) bool {
	return l.giveBackAhead(s, time.Now().Add(aheadTime))
}

// distrustAhead gives back all that wait, and those that are being asked for, too.
func (l *Ledger) distrustAhead(s *shadow) {
	l.mu.Lock()
	s.distrusts++
	l.mu.Unlock()
	l.giveBackAllAhead(s)
}

// forgetAhead forgets the kinds that are not asked for any more, and for which claims flights
// stood that have landed; the caller holds Ledger.mu.
func (s *shadow) forgetAhead() {
	if len(s.stands) > 0 {
		standing := map[uint64]bool{}
		for _, f := range s.flights {
			standing[f.stands] = true
		}
		maps.DeleteFunc(s.stands, func(claim, _ uint64) bool { return !standing[claim] })
	}
	for kind, a := range s.kinds {
		if len(a.ready) == 0 && time.Since(a.since) > activeTime {
			delete(s.kinds, kind)
		}
	}
}
