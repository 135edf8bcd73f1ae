package redisledger

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/weirgate/weir/limits"
)

// What a replica has to tell of an account, and to ask of it, goes to Redis in turns. So an
// account that many ask at once costs Redis little more than one that one asks
// (BenchmarkTurns), and what has been heard is told before, or with, whatever is asked later.

const (
	// tellWithin is how long what became of a permit waits for a claim to go with. Until
	// it is told the permit holds all that it may cost.
	tellWithin = 5 * time.Millisecond
	// turnMost bounds the outcomes, and the claims, of one turn: Redis does nothing else
	// meanwhile.
	turnMost = 32
)

// ask waits for a turn: with a claim that is to be decided, or with none.
type ask struct {
	claim    *limits.Claim
	decision limits.Decision
	// seeks is set for who finds out whether Redis is there again.
	seeks bool
	// sent is set once Redis may have decided.
	sent bool
}

// tell is what became of a permit: its outcome, or that its answer has ended.
type tell struct {
	permit  limits.Permit
	outcome *limits.Outcome // nil where only the answer has ended
	aborted bool
}

// limited reports whether it is a limit error.
func (t *tell) limited() bool { return t.outcome != nil && t.outcome.Limited != limits.NotLimited }

// inTurn takes part in a turn of the account. Every turn has an end: its calls have deadlines.
func (l *Ledger) inTurn(ctx context.Context, s *shadow, a *ask) error {
	return s.turns.Do(a, turnMost, func(asks []*ask) error {
		l.mu.Lock()
		tells, strays, distrusts := l.kept(s), s.strays, s.distrusts
		tells, s.strays = append(tells, strays...), nil
		l.mu.Unlock()
		err := lost(errLost)
		if !l.isLost() || slices.ContainsFunc(asks, func(a *ask) bool { return a.seeks }) { // else it was in the turn before
			err = l.exchange(context.WithoutCancel(ctx), s, tells, asks, distrusts) // not for this one alone
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if err == nil {
			return nil
		}
		for _, t := range tells { // who goes on alone must know of it
			if t.limited() {
				s.hears(t.permit, *t.outcome, l.rules.Load())
			}
		}
		s.strays = append(strays, s.strays...)
		for _, f := range s.alone { // granted meanwhile
			s.wants(f.claim)
		}
		return err
	})
}

// exchange tells and asks Redis in one step. What it asks for ahead is worth nothing when
// distrusts, which is from when tells were taken, has changed meanwhile.
func (l *Ledger) exchange(ctx context.Context, s *shadow, tells []tell, asks []*ask, distrusts int) error {
	r := l.rules.Load()
	var args batchCall
	claims, asking := make([]*limits.Claim, 0, turnMost), make([]*ask, 0, len(asks))
	for _, t := range tells {
		args.Outcomes = append(args.Outcomes, l.outcome(t, r))
	}
	for _, a := range asks {
		if a.claim != nil {
			claims, asking = append(claims, a.claim), append(asking, a)
			a.sent = true
		}
	}
	more := l.wantedAhead(s, turnMost-len(claims))
	claims = append(claims, more...)
	for i, c := range claims {
		args.Claims = append(args.Claims, l.claim(c, r, i >= len(asking)))
	}
	if len(args.Outcomes)+len(args.Claims) == 0 {
		return nil
	}
	args.Headroom, args.Concurrent = r.Headroom, r.Usable(int64(r.Concurrent))
	understood, until := false, time.Now().Add(aheadTime)
	err := l.step(ctx, l.scripts.batch, s, r, args, func(answer reply) {
		understood = len(answer.Rates) == len(tells) && len(answer.Decisions) == len(claims)
		if understood {
			l.took(s, r, tells, asking, answer)
			if s.distrusts != distrusts {
				until = time.Time{}
			}
			for i, c := range more {
				if answer.Decisions[len(asking)+i].Granted {
					l.tookAhead(s, c, until, r)
				}
			}
		}
	})
	if err == nil && !understood {
		err = lost(errors.New("the reply has too few entries"))
	}
	if err != nil {
		l.missed(s, more...)
	}
	return err
}

// missed keeps that those are not wanted for which a turn has asked that was not answered:
// Redis may have granted them, and would hold them until their leases end.
func (l *Ledger) missed(s *shadow, claims ...*limits.Claim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range claims {
		s.strays = append(s.strays, tell{permit: limits.Permit{Claim: *c}, outcome: &limits.Outcome{}})
	}
}

// wants forgets that a claim was not wanted; the caller holds Ledger.mu.
func (s *shadow) wants(c limits.Claim) {
	s.strays = slices.DeleteFunc(s.strays, func(t tell) bool { return t.permit.ID == c.ID && t.outcome != nil && !t.outcome.Sent })
}

// batchCall is the argument of batch.lua.
type batchCall struct {
	Headroom   float64       `json:"headroom"`
	Concurrent int64         `json:"concurrent"`
	Outcomes   []outcomeCall `json:"outcomes,omitempty"`
	Claims     []claimCall   `json:"claims,omitempty"`
}

type claimCall struct {
	ID       string      `json:"id"`
	Resource resource    `json:"resource"`
	Batch    bool        `json:"batch"`
	Prefetch bool        `json:"prefetch"`
	Spends   []spendCall `json:"spends"`
}

type spendCall struct {
	hold
	Budget limits.Reason `json:"budget"`
	Limit  int64         `json:"limit"`
}

// outcomeCall is the outcome of a permit, or with Released the end of its response body.
type outcomeCall struct {
	ID         string    `json:"id"`
	Released   bool      `json:"released"`
	Aborted    bool      `json:"aborted"`
	Resource   resource  `json:"resource"`
	Sent       bool      `json:"sent"`
	Resent     int       `json:"resent"`
	Answered   bool      `json:"answered"`
	Ended      bool      `json:"ended"`
	Failed     bool      `json:"failed"`
	CPU        int64     `json:"cpu"`     // milliseconds
	Limited    string    `json:"limited"` // "primary", "secondary" or ""
	RetryAfter int64     `json:"retry_after"`
	Rate       *rateCall `json:"rate,omitempty"`
}

// rateCall is what the rate headers of an answer reported.
type rateCall struct {
	Limit int   `json:"limit"`
	Used  int   `json:"used"`
	Reset int64 `json:"reset"`
	Date  int64 `json:"date,omitempty"` // when the answer was made; 0 if unknown
}

func rateCallOf(r limits.Rate) *rateCall {
	if r.Limit == 0 {
		return nil
	}
	c := &rateCall{Limit: r.Limit, Used: r.Used, Reset: max(0, r.Reset.UnixMicro())}
	if !r.Date.IsZero() {
		c.Date = r.Date.UnixMicro()
	}
	return c
}

// rateReply is what the rate headers of Weir report.
type rateReply struct {
	Limit int   `json:"limit"`
	Used  int   `json:"used"`
	Reset int64 `json:"reset,string"`
}

// decision is the decision on a claim. Wait is 0 if it depends on open permits.
type decision struct {
	Granted bool          `json:"granted"`
	Reason  limits.Reason `json:"reason"`
	Wait    int64         `json:"wait"`
}

func (d decision) decided() limits.Decision {
	if d.Granted {
		return limits.Decision{Granted: true}
	}
	decided := limits.Decision{Reason: d.Reason}
	if d.Wait != 0 {
		decided.Until = time.Now().Add(time.Duration(d.Wait) * time.Microsecond)
	}
	return decided
}

// took takes note of a batch. The caller holds Ledger.mu.
func (l *Ledger) took(s *shadow, r *limits.Rules, tells []tell, asks []*ask, answer reply) {
	s.ahead = answer.Now - time.Now().UnixMicro()
	s.until = max(s.until, answer.CooldownUntil) // who heard of it may be gone when Redis has lost it
	for i, t := range tells {
		if t.outcome != nil {
			s.settled(t.permit, *t.outcome, r, answer.Writes, answer.Now, answer.Rates[i])
			continue
		}
		s.release(t.permit.ID, t.aborted, r)
	}
	for i, a := range asks {
		if a.decision = answer.Decisions[i].decided(); a.decision.Granted {
			s.class(*a.claim).used = time.Now()
			s.flight(*a.claim, r)
		}
	}
}

func (l *Ledger) claim(c *limits.Claim, r *limits.Rules, prefetch bool) claimCall {
	own := claimCall{ID: l.id(*c), Resource: resourceOf(r, c.Kind, c.Resource), Batch: c.Batch, Prefetch: prefetch}
	for _, s := range r.Spends(*c) {
		own.Spends = append(own.Spends, spendCall{holdOf(&s), s.Budget, s.Limit})
	}
	return own
}

func (l *Ledger) outcome(t tell, r *limits.Rules) outcomeCall {
	own := outcomeCall{ID: l.id(t.permit.Claim), Released: true, Aborted: t.aborted}
	o := t.outcome
	if o == nil {
		return own
	}
	own = outcomeCall{
		ID: own.ID, Resource: resourceOf(r, t.permit.Kind, cmp.Or(o.Rate.Resource, t.permit.Resource)), Sent: o.Sent, Resent: o.Resent,
		Answered: o.Answered, Ended: o.Ended, Failed: o.Failed, CPU: r.Milliseconds(o.Elapsed), RetryAfter: o.RetryAfter.Microseconds(), Rate: rateCallOf(o.Rate),
	}
	switch o.Limited {
	case limits.PrimaryLimit:
		own.Limited = "primary"
	case limits.SecondaryLimit:
		own.Limited = "secondary"
	case limits.NotLimited:
	}
	return own
}

// kept is what became of flights and Redis has not been told yet: limit errors first, then of
// those that were begun first. Of flights that it does not know the next beat tells it. The caller holds
// Ledger.mu.
func (l *Ledger) kept(s *shadow) []tell {
	var tells []tell
	for _, f := range s.flights {
		if !f.untold() || f.alone {
			continue
		}
		p := limits.Permit{Claim: f.claim}
		if f.outcome != nil {
			o := *f.outcome
			o.Ended = o.Ended || f.ended && !f.aborted
			tells = append(tells, tell{permit: p, outcome: &o})
		}
		if f.ended && (f.outcome == nil || f.aborted) {
			tells = append(tells, tell{permit: p, aborted: f.aborted})
		}
	}
	order := func(t tell) int {
		if t.limited() {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(tells, func(a, b tell) int {
		return cmp.Or(cmp.Compare(order(a), order(b)), cmp.Compare(a.permit.ID, b.permit.ID))
	})
	return tells[:min(len(tells), turnMost)]
}

// tellNow tells Redis what is kept of an account now; if it seeks, though Redis is lost.
func (l *Ledger) tellNow(ctx context.Context, s *shadow, seeks bool) error {
	l.mu.Lock()
	untold := len(s.strays)
	for _, f := range s.flights {
		if f.untold() {
			untold += 2 // what became of it, and that its answer was given up
		}
	}
	l.mu.Unlock()
	for ; untold > 0; untold -= turnMost {
		if err := l.inTurn(ctx, s, &ask{seeks: seeks}); err != nil {
			return err
		}
	}
	return nil
}

// tellSoon tells Redis what is kept of an account, if no claim takes it along.
func (l *Ledger) tellSoon(s *shadow) error {
	if l.isLost() {
		return lost(errLost)
	}
	l.mu.Lock()
	if l.left { // there is no later
		l.mu.Unlock()
		return l.tellNow(context.Background(), s, false)
	}
	defer l.mu.Unlock()
	if s.soon {
		return nil
	}
	s.soon = true
	l.telling.Go(func() {
		<-time.After(l.within)
		l.mu.Lock()
		s.soon = false
		l.mu.Unlock()
		_ = l.tellNow(context.Background(), s, false) // else it is kept until Redis is found
	})
	return nil
}
