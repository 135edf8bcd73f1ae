package limits

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/weirgate/weir/policy"
)

// Simulation is a ledger in memory with its [Limiter], in the time of a simulation. It makes the same decisions as a
// gateway, without waiting: Acquire calls a function instead of blocking. The simulation advances its clock and then calls
// Advance, at the latest at the time that Next returns. Only one goroutine may use a Simulation.
type Simulation struct {
	*Limiter
	Ledger  *Memory
	waiting []simulatedWait // in the order of the claims
	wake    time.Time       // next attempt of any queue; zero if only a settled permit can change a decision
	renewed time.Time       // last call of renew
	swept   time.Time       // last call of sweep
}

// simulatedWait is a waiting claim.
type simulatedWait struct {
	*waiter
	done func(*Permit, error)
}

// NewSimulation returns a simulation with an empty ledger. The function now returns the time of the simulation.
func NewSimulation(rules Rules, now func() time.Time) *Simulation {
	ledger := newMemoryAt(rules, clockOf(now))
	l := NewLimiter(ledger)
	l.now, l.start = now, func(*queue) {} // Advance dispatches the queues
	return &Simulation{Limiter: l, Ledger: ledger, renewed: now(), swept: now()}
}

// Acquire calls done with the result of [Limiter.Acquire], immediately or in a later call of Advance.
func (s *Simulation) Acquire(claim Claim, caller policy.Caller, deadline time.Time, done func(*Permit, error)) {
	permit, refused, err := s.tryAcquire(context.Background(), &claim, caller, deadline)
	if permit != nil || err != nil {
		done(permit, err)
		return
	}
	w, err := s.enqueue(claim, caller, deadline, refused)
	if err != nil {
		done(nil, err)
		return
	}
	s.waiting = append(s.waiting, simulatedWait{w, done})
}

// Next returns the time at which Advance must be called again if no permit is settled earlier. It is zero if no claim
// waits and no permit is in use.
func (s *Simulation) Next() (next time.Time) {
	earlier := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	earlier(s.wake)
	for _, w := range s.waiting {
		earlier(w.deadline)
	}
	if len(s.permits) > 0 {
		earlier(s.renewed.Add(renewEvery))
	}
	return next
}

// Advance makes the decisions that are due: it renews permits, dispatches the queues and ends the waits whose deadline
// has passed.
func (s *Simulation) Advance() {
	now := s.now()
	if now.Sub(s.swept) >= sweepInterval {
		s.swept = now
		s.Ledger.sweep()
	}
	if now.Sub(s.renewed) >= renewEvery {
		s.renewed = now
		s.renew()
	}
	s.wake = time.Time{}
	for _, name := range slices.Sorted(maps.Keys(s.queues)) {
		if wake := s.dispatchDue(s.queues[name]); !wake.IsZero() && (s.wake.IsZero() || wake.Before(s.wake)) {
			s.wake = wake
		}
	}
	waiting := s.waiting
	s.waiting = nil
	for _, w := range waiting {
		var err error
		switch {
		case len(w.result) > 0:
			err = <-w.result
		case !now.Before(w.deadline):
			err = s.giveUp(w.waiter)
		default:
			s.waiting = append(s.waiting, w)
			continue
		}
		if err != nil {
			w.done(nil, err)
		} else {
			w.done(s.useWaiter(w.waiter), nil)
		}
	}
}

// dispatchDue sends the waiting claims of a queue to the ledger until the next claim must wait. It returns the time of
// the next attempt.
func (s *Simulation) dispatchDue(q *queue) (wake time.Time) {
	for {
		w, wake, ok := s.next(q)
		if !ok || w == nil {
			return wake
		}
		s.decided(q, w, s.ledger.Admit(context.Background(), w.claim))
	}
}
