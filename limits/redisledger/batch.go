package redisledger

import (
	"cmp"
	"context"
	"fmt"
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
	outcomes, claims, asking := make([]any, len(tells)), make([]*limits.Claim, 0, turnMost), make([]*ask, 0, len(asks))
	for i, t := range tells {
		outcomes[i] = l.outcome(t, r)
	}
	for _, a := range asks {
		if a.claim != nil {
			claims, asking = append(claims, a.claim), append(asking, a)
			a.sent = true
		}
	}
	more := l.wantedAhead(s, turnMost-len(claims))
	claims = append(claims, more...)
	if len(outcomes)+len(claims) == 0 {
		return nil
	}
	understood, until := false, time.Now().Add(aheadTime)
	_, err := l.step(ctx, l.scripts.turn, s, r, func(answer []any) {
		understood = len(answer) == 6 && len(list(answer[4])) == len(tells) && len(list(answer[5])) == len(claims)
		if understood {
			l.took(s, r, tells, asking, answer)
			if s.distrusts != distrusts {
				until = time.Time{}
			}
			for i, c := range more {
				if decided(list(list(answer[5])[len(asking)+i])).Granted {
					l.tookAhead(s, c, until, r)
				}
			}
		}
	}, r.Headroom, r.Usable(int64(r.Concurrent)), outcomes, l.asked(claims, len(asking), r))
	if err == nil && !understood {
		err = lost(errShort)
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

// list is one in an answer.
func list(v any) []any {
	l, _ := v.([]any) // turn.lua writes no others
	return l
}

// decided is {1}, or {0, microseconds to wait or 0, reason}.
func decided(answer []any) limits.Decision {
	if answer[0] == int64(1) {
		return limits.Decision{Granted: true}
	}
	d := limits.Decision{Reason: limits.Reason(fmt.Sprint(answer[2]))}
	if wait := number(answer[1]); wait != 0 {
		d.Until = time.Now().Add(time.Duration(wait) * time.Microsecond)
	}
	return d
}

// took takes note of a turn: {1, writes, now, end of a cool-down, {shown...}, {decided...}}.
// The caller holds Ledger.mu.
func (l *Ledger) took(s *shadow, r *limits.Rules, tells []tell, asks []*ask, answer []any) {
	write, now, till := number(answer[1]), number(answer[2]), number(answer[3])
	s.ahead = now - time.Now().UnixMicro()
	s.until = max(s.until, till) // who heard of it may be gone when Redis has lost it
	for i, t := range tells {
		if t.outcome != nil {
			s.settled(t.permit, *t.outcome, r, write, now, list(list(answer[4])[i]))
			continue
		}
		s.release(t.permit.ID, t.aborted, r)
	}
	for i, a := range asks {
		if a.decision = decided(list(list(answer[5])[i])); a.decision.Granted {
			s.class(*a.claim).used = time.Now()
			s.flight(*a.claim, r)
		}
	}
}

// asked are claims as turn.lua takes them, those that are alike and follow each other in one
// record; but the first made they are asked for ahead.
func (l *Ledger) asked(claims []*limits.Claim, made int, r *limits.Rules) (records []any) {
	for i, c := range claims {
		if ahead := i >= made; i == 0 || i == made || likenessOf(c) != likenessOf(claims[i-1]) || c.CPU != claims[i-1].CPU {
			records = append(records, l.record(c, r, ahead))
		}
		last := list(records[len(records)-1])
		last[0] = append(list(last[0]), l.id(*c))
	}
	return records
}

// record is what is alike of claims as admit.lua takes it, with room for their IDs.
func (l *Ledger) record(c *limits.Claim, r *limits.Rules, ahead bool) []any {
	spends := r.Spends(*c)
	record := append(make([]any, 0, 6+len(spends)), []any(nil))
	record = append(append(record, resource(r, c.Kind, c.Resource)...), truth(c.Batch), truth(ahead))
	for i := range spends {
		s := &spends[i]
		record = append(record, []any{logName(s), s.Cost, truth(s.Budget == limits.CPU), string(s.Budget), s.Limit, s.Window.Microseconds(), s.Merge.Microseconds()})
	}
	return record
}

// outcome is what became of a permit as settle.lua takes it.
func (l *Ledger) outcome(t tell, r *limits.Rules) []any {
	id := l.id(t.permit.Claim)
	if t.outcome == nil {
		return []any{id, truth(t.aborted)}
	}
	spends, o := r.Spends(t.permit.Claim), t.outcome
	limited := ""
	switch o.Limited {
	case limits.PrimaryLimit:
		limited = "primary"
	case limits.SecondaryLimit:
		limited = "secondary"
	case limits.NotLimited:
	}
	record := append(make([]any, 0, 16+len(spends)), id)
	record = append(record, resource(r, t.permit.Kind, cmp.Or(o.Rate.Resource, t.permit.Resource))...)
	record = append(record, truth(o.Sent), o.Resent, truth(o.Answered), truth(o.Ended), truth(o.Failed), r.Milliseconds(o.Elapsed))
	record = append(record, limited, o.RetryAfter.Microseconds(), o.Rate.Limit, o.Rate.Used, max(0, o.Rate.Reset.UnixMicro()), dateOf(o.Rate))
	for i := range spends {
		record = append(record, logName(&spends[i]))
	}
	return record
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
	slices.SortStableFunc(tells, func(a, b tell) int {
		return cmp.Or(cmp.Compare(truth(!a.limited()), truth(!b.limited())), cmp.Compare(a.permit.ID, b.permit.ID))
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
