package redisledger

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/weirgate/weir/limits"
)

// Claims and settlements of one account are sent to Redis in batches, and at most one batch of an account runs at a
// time. A busy account therefore needs few calls (BenchmarkBatches). The first outcomes of an account, up to batchMax,
// reach Redis together with the next claim or before that claim. Further outcomes follow in later batches.

const (
	// flushDelay is the time for which a settlement waits for a claim, because both can share one batch.
	flushDelay = 5 * time.Millisecond
	// batchMax bounds the claims of one batch, and the settlements of open permits, because Redis runs nothing else
	// during a script. Orphans are not bounded.
	batchMax = 32
)

// batchEntry waits for a batch. If claim is nil, the entry waits for settlements only.
type batchEntry struct {
	claim    *limits.Claim
	decision limits.Decision
	probes   bool // the batch is sent even if Redis is lost
	sent     bool // Redis may have decided the claim
}

// batch adds an entry to the next batch of an account and waits until that batch ends. Every batch ends, because calls
// have deadlines.
func (l *Ledger) batch(ctx context.Context, a *localAccount, e *batchEntry) error {
	return a.batcher.Do(e, batchMax, func(entries []*batchEntry) error {
		l.mu.Lock()
		orphans := a.orphans
		settlements := append(a.unsentSettlements(), orphans...)
		a.orphans = nil
		l.mu.Unlock()
		err := unavailable(errLost)
		if !l.isLost() || slices.ContainsFunc(entries, func(e *batchEntry) bool { return e.probes }) {
			// The end of one context must not cancel the batch, which contains entries with other contexts.
			err = l.runBatch(context.WithoutCancel(ctx), a, settlements, entries)
		}
		if err == nil {
			return nil
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, s := range settlements {
			if s.limited() { // offline decisions need the limit error
				a.learnOffline(s.permit, *s.outcome, l.rules.Load())
			}
		}
		a.orphans = append(orphans, a.orphans...)
		for _, p := range a.offline { // these permits may be granted during the batch
			a.keepClaim(p.claim)
		}
		return err
	})
}

// runBatch sends settlements and claims to Redis.
func (l *Ledger) runBatch(ctx context.Context, a *localAccount, settlements []settlement, entries []*batchEntry) error {
	r := l.rules.Load()
	args := batchCall{Headroom: r.Headroom, Concurrent: r.Usable(int64(r.Concurrent))}
	for _, s := range settlements {
		args.Outcomes = append(args.Outcomes, l.outcomeCall(s, r))
	}
	var claiming []*batchEntry
	for _, e := range entries {
		if e.claim != nil {
			e.sent = true
			claiming = append(claiming, e)
			args.Claims = append(args.Claims, l.claimCall(e.claim, r))
		}
	}
	if len(args.Outcomes)+len(args.Claims) == 0 {
		return nil
	}
	complete := false
	err := l.step(ctx, l.scripts.batch, a, r, args, func(answer reply) {
		if complete = len(answer.Rates) == len(settlements) && len(answer.Decisions) == len(args.Claims); !complete {
			return
		}
		a.clockOffset = answer.Now - time.Now().UnixMicro()
		a.cooldownUntil = max(a.cooldownUntil, answer.CooldownUntil) // this replica may have to restore the cool-down
		for i, s := range settlements {
			if s.outcome != nil {
				a.settled(s.permit, *s.outcome, r, answer.Writes, answer.Now, answer.Rates[i])
			} else {
				a.applyRelease(s.permit.ID, s.aborted, r)
			}
		}
		for i, e := range claiming {
			if e.decision = answer.Decisions[i].local(); e.decision.Granted {
				own := a.lease(*e.claim)
				own.claim, own.used = *e.claim, time.Now()
				a.granted(*e.claim, r)
			}
		}
	})
	if err == nil && !complete {
		err = unavailable(errors.New("incomplete reply"))
	}
	return err
}

// returnUnknown settles the claim of a failed batch as not sent. Redis may have granted that claim, and would hold the
// permit until the permit expires.
func (l *Ledger) returnUnknown(a *localAccount, c limits.Claim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a.orphans = append(a.orphans, settlement{permit: limits.Permit{Claim: c}, outcome: &limits.Outcome{}})
}

// keepClaim removes the settlement that returnUnknown added for a claim. Ledger.mu must be held.
func (a *localAccount) keepClaim(c limits.Claim) {
	a.orphans = slices.DeleteFunc(a.orphans, func(s settlement) bool {
		return s.permit.ID == c.ID && s.outcome != nil && !s.outcome.Sent
	})
}

// unsentSettlements returns the settlements that Redis does not have yet, at most batchMax. Limit errors come first,
// then the oldest permits. The heartbeat sends the settlements of offline permits. Ledger.mu must be held.
func (a *localAccount) unsentSettlements() []settlement {
	var list []settlement
	for _, p := range a.permits {
		if !p.unsent() || p.offline {
			continue
		}
		permit := limits.Permit{Claim: p.claim}
		if p.outcome != nil {
			o := *p.outcome
			o.Ended = o.Ended || p.ended && !p.aborted
			list = append(list, settlement{permit: permit, outcome: &o})
		}
		if p.ended && (p.outcome == nil || p.aborted) {
			list = append(list, settlement{permit: permit, aborted: p.aborted})
		}
	}
	slices.SortStableFunc(list, func(x, y settlement) int {
		switch {
		case x.limited() && !y.limited():
			return -1
		case y.limited() && !x.limited():
			return 1
		}
		return cmp.Compare(x.permit.ID, y.permit.ID)
	})
	return list[:min(len(list), batchMax)]
}

// flush sends the settlements of an account. If probe is set, flush calls Redis even if Redis is lost.
func (l *Ledger) flush(ctx context.Context, a *localAccount, probe bool) error {
	l.mu.Lock()
	unsent := len(a.orphans)
	for _, p := range a.permits {
		if p.unsent() {
			unsent += 2 // at most an outcome and an aborted body
		}
	}
	l.mu.Unlock()
	for ; unsent > 0; unsent -= batchMax {
		if err := l.batch(ctx, a, &batchEntry{probes: probe}); err != nil {
			return err
		}
	}
	return nil
}

// flushSoon sends the settlements of an account after flushDelay, unless a batch with a claim sends the settlements
// earlier.
func (l *Ledger) flushSoon(a *localAccount) error {
	if l.isLost() {
		return unavailable(errLost)
	}
	l.mu.Lock()
	if l.leaving {
		l.mu.Unlock()
		return l.flush(context.Background(), a, false)
	}
	defer l.mu.Unlock()
	if a.flushing {
		return nil
	}
	a.flushing = true
	l.background.Go(func() {
		<-time.After(l.flushDelay)
		l.mu.Lock()
		a.flushing = false
		l.mu.Unlock()
		_ = l.flush(context.Background(), a, false) // after an error, the next heartbeat sends the settlements
	})
	return nil
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
	Spends   []spendCall `json:"spends"`
}

type spendCall struct {
	hold
	Budget limits.Reason `json:"budget"`
	Limit  int64         `json:"limit"`
}

func (l *Ledger) claimCall(c *limits.Claim, r *limits.Rules) claimCall {
	own := claimCall{ID: l.permitName(c.ID), Resource: resourceOf(r, c.Kind, c.Resource), Batch: c.Batch}
	for _, s := range r.Spends(*c) {
		own.Spends = append(own.Spends, spendCall{holdOf(&s), s.Budget, s.Limit})
	}
	return own
}

// outcomeCall is a settlement as batch.lua gets it. If Released is set, the settlement is the end of a response body.
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
	Enforces   bool      `json:"enforces"`
	Silent     bool      `json:"silent"`
}

func (l *Ledger) outcomeCall(s settlement, r *limits.Rules) outcomeCall {
	id, o := l.permitName(s.permit.ID), s.outcome
	if o == nil {
		return outcomeCall{ID: id, Released: true, Aborted: s.aborted}
	}
	return outcomeCall{
		ID: id, Resource: resourceOf(r, s.permit.Kind, cmp.Or(o.Rate.Resource, s.permit.Resource)),
		Sent: o.Sent, Resent: o.Resent, Answered: o.Answered, Ended: o.Ended, Failed: o.Failed, CPU: r.Milliseconds(o.Elapsed),
		Limited:    map[limits.LimitKind]string{limits.PrimaryLimit: "primary", limits.SecondaryLimit: "secondary"}[o.Limited],
		RetryAfter: o.RetryAfter.Microseconds(), Rate: rateCallOf(o.Rate), Enforces: o.Enforces(), Silent: o.Silent(),
	}
}

// rateCall contains the rate headers of a response.
type rateCall struct {
	Limit int   `json:"limit"`
	Used  int   `json:"used"`
	Reset int64 `json:"reset"`
	Date  int64 `json:"date,omitempty"` // of the response; 0 if unknown
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

// rateReply contains the values of the rate headers that Weir returns to clients.
type rateReply struct {
	Limit int   `json:"limit"`
	Used  int   `json:"used"`
	Reset int64 `json:"reset,string"`
	// Unlimited means that the window admits without limit.
	Unlimited bool `json:"unlimited"`
}

// decision is the decision on a claim. Wait is 0 if open permits decide.
type decision struct {
	Granted bool          `json:"granted"`
	Reason  limits.Reason `json:"reason"`
	Wait    int64         `json:"wait"`
}

// local converts a decision to the clock of this process.
func (d decision) local() limits.Decision {
	own := limits.Decision{Granted: d.Granted, Reason: d.Reason}
	if d.Wait != 0 {
		own.Until = time.Now().Add(time.Duration(d.Wait) * time.Microsecond)
	}
	return own
}
