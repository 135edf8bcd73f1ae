package limits

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// maxWaiters bounds how many requests of one account wait for a permit.
const maxWaiters = 1000

// Limiter hands out permits: it asks the ledger, waits where waiting can help,
// and refuses at once where it cannot. It starts no goroutine.
type Limiter struct {
	ledger Ledger

	mu      sync.Mutex
	waiting map[string]*waiters // by account; no entry without a waiter
}

// waiters are the requests of one account that wait; guarded by Limiter.mu.
type waiters struct {
	n       int
	settled chan struct{} // closed, and replaced, when a permit settles
}

// NewLimiter returns a limiter over a ledger.
func NewLimiter(ledger Ledger) *Limiter {
	return &Limiter{ledger: ledger, waiting: map[string]*waiters{}}
}

// Refusal is an error: the request may not be sent within its deadline.
type Refusal struct {
	Reason Reason
	// Until is when the same request would be admitted if nobody else spent.
	Until time.Time
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("refused (%s) until %s", r.Reason, r.Until.UTC().Format(time.RFC3339))
}

// Acquire returns a permit, which must be settled. It waits until deadline at
// the longest, and not at all when it is known that waiting cannot help; then
// the error is a [*Refusal]. Other errors are the context's or the ledger's.
func (l *Limiter) Acquire(ctx context.Context, claim Claim, deadline time.Time) (*Permit, error) {
	d, err := l.ledger.Admit(ctx, claim)
	if err != nil || d.Permit != nil {
		return d.Permit, err
	}
	w, ok := l.join(claim.Account)
	if !ok {
		return nil, &Refusal{Queue, nextSecond(time.Now())}
	}
	defer l.leave(claim.Account)
	for {
		// Taken before the ledger is asked, so that no settling is missed.
		settled := l.settledNext(w)
		if d, err = l.ledger.Admit(ctx, claim); err != nil || d.Permit != nil {
			return d.Permit, err
		}
		if d.Until.After(deadline) {
			return nil, &Refusal{d.Reason, d.Until}
		}
		if err := pause(ctx, settled, d.Until, deadline); err != nil {
			return nil, err
		}
		if now := time.Now(); !now.Before(deadline) && d.Until.IsZero() {
			return nil, &Refusal{d.Reason, nextSecond(now)}
		}
	}
}

// pause waits for a settled permit, for until (if there is one) or for the
// deadline, whichever is first.
func pause(ctx context.Context, settled <-chan struct{}, until, deadline time.Time) error {
	if until.IsZero() {
		until = deadline
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-settled:
	case <-timer.C:
	}
	return nil
}

// nextSecond is the least that Retry-After can say.
func nextSecond(now time.Time) time.Time { return now.Add(time.Second) }

// Settle gives a permit back and wakes who waits for its account.
func (l *Limiter) Settle(ctx context.Context, permit Permit, outcome Outcome) error {
	err := l.ledger.Settle(ctx, permit, outcome)
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.waiting[permit.Account]; w != nil {
		close(w.settled)
		w.settled = make(chan struct{})
	}
	return err
}

func (l *Limiter) join(account string) (*waiters, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.waiting[account]
	if w == nil {
		w = &waiters{settled: make(chan struct{})}
		l.waiting[account] = w
	}
	if w.n >= maxWaiters {
		return nil, false
	}
	w.n++
	return w, true
}

func (l *Limiter) leave(account string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.waiting[account]
	if w.n--; w.n == 0 {
		delete(l.waiting, account)
	}
}

func (l *Limiter) settledNext(w *waiters) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return w.settled
}
