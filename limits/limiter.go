package limits

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/weirgate/weir/policy"
)

// renewEvery is the interval between renewals of a permit in use.
const renewEvery = time.Second

// Limiter passes claims to the ledger. A refused claim waits in the queue of its account if quota will be available
// before its deadline. One goroutine per account dispatches the waiting claims.
type Limiter struct {
	ledger Ledger
	now    func() time.Time
	// start starts the dispatcher of a new queue.
	start       func(*queue)
	resources   resourceNames
	suspicions  *suspicions
	tags        tagNames
	estimates   estimates
	costs       *costs
	dispatchers sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	lastID  uint64
	stopped bool              // Run is returning, and no further claim may wait
	queues  map[string]*queue // by account; deleted when no claim waits
	permits map[uint64]*inUse // by ID
}

// inUse is a permit between its grant and its release.
type inUse struct {
	permit Permit
	// since is the time at which the upstream began to work: the grant, or the end of the upload.
	since     time.Time
	uploading bool
}

// NewLimiter returns a limiter that uses a ledger.
func NewLimiter(ledger Ledger) *Limiter {
	l := &Limiter{
		ledger: ledger, now: time.Now, suspicions: newSuspicions(), estimates: estimates{ops: map[string][]time.Duration{}}, costs: newCosts(),
		lastID: rand.Uint64() >> 2, queues: map[string]*queue{}, permits: map[uint64]*inUse{},
	}
	l.start = func(q *queue) { l.dispatchers.Go(func() { l.dispatch(q) }) }
	return l
}

// Enforces reports whether the limiter delays or refuses requests after a limit error. It does not with [Unlimited].
func (l *Limiter) Enforces() bool { return l.ledger != Unlimited{} }

// ClientResource identifies the requests of a client that need one resource of an account. Client is empty if the account
// is not divided among clients.
type ClientResource struct{ Account, Resource, Client string }

// Waiting returns the number of waiting requests by account, resource and client.
func (l *Limiter) Waiting() map[ClientResource]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	waiting := map[ClientResource]int{}
	for account, q := range l.queues {
		for c, line := range q.lines {
			if n := len(line.waiters); n > 0 {
				waiting[ClientResource{account, c.resource, c.client}] += n
			}
		}
	}
	return waiting
}

// Run renews the permits in use until ctx ends. Run then forbids further waiting claims, and returns when all waiting
// claims are decided.
func (l *Limiter) Run(ctx context.Context) {
	tick := time.Tick(renewEvery)
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick:
			l.renew()
		}
	}
	l.mu.Lock()
	l.stopped = true
	l.mu.Unlock()
	l.dispatchers.Wait()
}

// renew renews the permits of all uploads, and the permits that have been in use for at least renewEvery.
// The lock is held during the call, because a renewal after the end of a permit would reserve again.
func (l *Limiter) renew() {
	l.mu.Lock()
	defer l.mu.Unlock()
	var permits []OpenPermit
	for _, u := range l.permits {
		switch elapsed := l.now().Sub(u.since); {
		case u.uploading:
			permits = append(permits, OpenPermit{u.permit, 0})
		case elapsed >= renewEvery:
			permits = append(permits, OpenPermit{u.permit, min(elapsed, longestWork)})
		}
	}
	if len(permits) > 0 {
		l.ledger.Renew(permits)
	}
}

// Refusal is the error for a request that cannot be sent before its deadline.
type Refusal struct {
	Reason Reason
	// Until is the time at which the same request would be admitted if no other request is sent. It has a reading of the
	// monotonic clock: use [Refusal.Wall] for clients.
	Until time.Time
	// Shared is the use of the budget at the last refusal, as in [Decision].
	Shared *SharedUse
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("refused (%s) until %s", r.Reason, r.Until.UTC().Format(time.RFC3339))
}

// Wall returns Until as the wall clock is set now.
func (r *Refusal) Wall() time.Time { return time.Now().Round(0).Add(time.Until(r.Until)) }

// defaultRetry is the time until the end of a refusal if neither the ledger nor the queue names a time. This is the case
// if the response of a permit in use decides, and during the shutdown. A repeated request costs no quota.
const defaultRetry = time.Second

// Acquire returns a permit, and may wait for the permit until the deadline. If the wait would be longer, Acquire
// returns a [*Refusal] immediately, and a [*WritesError] if no wait helps. Other errors are the cause of a cancelled context.
// Acquire sets the account, kind, ID, pace, CPU time and cost of the claim.
//
// Every permit must be settled. A permit must also be released, unless its outcome reports no response or a complete
// response.
func (l *Limiter) Acquire(ctx context.Context, claim Claim, caller policy.Caller, deadline time.Time) (*Permit, error) {
	permit, refused, err := l.tryAcquire(ctx, &claim, caller, deadline)
	if permit != nil || err != nil {
		return permit, err
	}
	return l.wait(ctx, claim, caller, deadline, refused)
}

// tryAcquire completes a claim, and returns a permit or an error if no wait is necessary. Otherwise both are nil, and
// refused is the decision of the ledger if the ledger has refused the claim.
func (l *Limiter) tryAcquire(ctx context.Context, claim *Claim, caller policy.Caller, deadline time.Time) (p *Permit, refused Decision, err error) {
	claim.Account, claim.Kind = l.ledger.Canonical(caller.Account), caller.Kind
	claim.Client, claim.Group, claim.Tag = caller.Client, caller.Group, caller.Tag
	claim.Clients, claim.Share = caller.Clients, caller.Share
	claim.Batch, claim.Paced = caller.Priority == policy.Batch, caller.Paced
	claim.CPU = l.estimates.predict(claim.Operation)
	if claim.UpperEstimate > 0 {
		claim.UpperEstimate = min(claim.UpperEstimate, costCeiling)
		claim.Cost = l.costs.predict(claim)
	}
	if claim.Writes > 0 {
		most := l.ledger.WriteLimits(claim.Client)
		if err := checkWrites(most, claim.Writes); err != nil {
			return nil, Decision{}, err
		}
		if most == (policy.ClientWrites{}) {
			claim.Writes = 0 // so that only limited writes have separate lines
		}
	}
	l.mu.Lock()
	l.lastID++
	claim.ID = l.lastID
	q := l.queues[claim.Account]
	queued := q != nil && q.mustWait(classOf(*claim), l.now())
	l.mu.Unlock()
	if queued {
		return nil, Decision{}, nil
	}
	// The call continues when the client disconnects. Otherwise a granted permit would leak. The ledger bounds the
	// duration of the call.
	d := l.ledger.Admit(context.WithoutCancel(ctx), *claim)
	if d.Granted {
		return l.use(Permit{Claim: *claim}), d, nil
	}
	if until := l.now().Add(d.Wait); d.Wait > 0 && until.After(deadline) {
		return nil, d, &Refusal{d.Reason, until, d.Shared}
	}
	return nil, d, nil
}

// use records a granted permit, so that it is renewed.
func (l *Limiter) use(p Permit) *Permit {
	if p.UpperEstimate > 0 {
		l.costs.begin(&p)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.permits[p.ID] = &inUse{permit: p, since: l.now()}
	return &p
}

// Upload records that a client is still sending the request body. The CPU time of the upstream is measured from the
// call of done.
func (l *Limiter) Upload(permit Permit) (done func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.permits[permit.ID]
	if u == nil {
		return func() {}
	}
	u.uploading = true
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if u.uploading {
			u.uploading, u.since = false, l.now()
		}
	}
}

// wait queues a claim and returns the result. If the ledger has already refused the claim, refused is that decision.
func (l *Limiter) wait(
	ctx context.Context, claim Claim, caller policy.Caller, deadline time.Time, refused Decision,
) (*Permit, error) {
	w, err := l.enqueue(claim, caller, deadline, refused)
	if err != nil {
		return nil, err
	}
	select {
	case err = <-w.result:
	case <-ctx.Done():
		err = l.giveUp(w)
	case <-time.After(time.Until(deadline)):
		err = l.giveUp(w)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil: // a reload may have lowered the limits of writes during the wait
		return nil, cmp.Or(checkWrites(l.ledger.WriteLimits(claim.Client), claim.Writes), err)
	}
	return l.useWaiter(w), nil
}

// useWaiter returns the permit of a waiter whose claim was granted.
func (l *Limiter) useWaiter(w *waiter) *Permit {
	return l.use(Permit{Claim: w.claim, Waited: cmp.Or(w.reason, Queue), Shared: w.shared})
}

// enqueue adds a claim to the queue of its account. The first claim of an account creates the queue and starts its
// dispatcher.
func (l *Limiter) enqueue(claim Claim, caller policy.Caller, deadline time.Time, refused Decision) (*waiter, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if l.stopped {
		return nil, &Refusal{Reason: Queue, Until: now.Add(defaultRetry)}
	}
	q := l.queues[claim.Account]
	if q == nil {
		q = &queue{
			account: claim.Account, lines: map[class]*line{}, flows: map[string]*flow{}, changed: make(chan struct{}, 1),
		}
		l.queues[claim.Account] = q
		l.start(q)
	}
	if line := q.lines[classOf(claim)]; line != nil {
		if until := line.expectedGrant(rank(caller.Priority), now); until.After(deadline) {
			return nil, &Refusal{cmp.Or(line.reason, Queue), until, line.shared}
		}
	}
	w := q.add(claim, caller, deadline)
	if w == nil {
		return nil, &Refusal{Reason: Queue, Until: q.nextPlace(classOf(claim), caller, now)}
	}
	if refused.Reason != "" && len(w.line.waiters) == 1 {
		w.line.block(refused, now)
	}
	return w, nil
}

// giveUp removes a waiter from its queue. If the dispatcher has just passed the waiter's claim to the ledger, giveUp
// waits for the result.
func (l *Limiter) giveUp(w *waiter) error {
	l.mu.Lock()
	if !w.admitting && len(w.result) == 0 {
		defer l.mu.Unlock()
		q := l.queues[w.claim.Account]
		q.remove(w)
		q.notify()
		return &Refusal{cmp.Or(w.line.reason, Queue), w.line.retryAt(w.flow.rank, l.now()), w.line.shared}
	}
	w.leaving = true
	l.mu.Unlock()
	return <-w.result // the ledger bounds the duration of the call
}

// dispatch sends waiting claims to the ledger until the queue is empty.
func (l *Limiter) dispatch(q *queue) {
	for {
		w, wake, ok := l.next(q)
		switch {
		case !ok:
			return
		case w == nil:
			q.sleep(wake)
		default:
			l.decided(q, w, l.ledger.Admit(context.Background(), w.claim))
		}
	}
}

// next returns the waiter whose claim the dispatcher must send to the ledger now. Without such a waiter, next returns
// the time of the next attempt, or zero if only a notification can change the result. If the queue is empty, next
// removes the queue and returns false.
func (l *Limiter) next(q *queue) (w *waiter, wake time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q.waiting == 0 {
		delete(l.queues, q.account)
		return nil, time.Time{}, false
	}
	now := l.now()
	if w, wake = q.next(now); w == nil {
		return nil, wake, true
	}
	w.admitting, q.settled = true, false
	w.claim.Waiting = w.flow.waiting
	w.claim.CPU = l.estimates.predict(w.claim.Operation) // responses during the wait may have changed the estimate
	return w, time.Time{}, true
}

// decided delivers the ledger's decision to a waiter. A refusal also blocks the claims that the same budget would
// refuse.
func (l *Limiter) decided(q *queue, w *waiter, d Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.admitting = false
	now := l.now()
	if d.Granted {
		w.reason, w.shared = w.line.reason, w.line.shared
		q.granted(w, now)
		w.result <- nil
		return
	}
	if w.leaving {
		q.remove(w)
		until := now.Add(d.Wait)
		if d.Wait == 0 {
			until = w.line.retryAt(w.flow.rank, now)
		}
		w.result <- &Refusal{d.Reason, until, d.Shared}
	}
	if d.Wait == 0 && q.settled {
		return // a permit was settled or released during the call: try again
	}
	q.refuse(w.line.class, d, now)
}

// Settle charges a permit for its outcome, and wakes the waiting claims of the account. It returns the cost of the request
// in its primary window: the true cost as far as it is known, otherwise the estimate.
func (l *Limiter) Settle(ctx context.Context, permit Permit, outcome Outcome) (cost int, err error) {
	outcome.Elapsed = min(outcome.Elapsed, longestWork)
	if outcome.Answered && !outcome.Failed {
		l.estimates.observe(permit.Operation, outcome.Elapsed)
	}
	if permit.UpperEstimate > 0 {
		l.learnCost(&permit, &outcome)
	}
	cost = cmp.Or(outcome.Cost, int(permit.cost()))
	if outcome.Ended || !outcome.Answered {
		l.stopRenewals(permit)
	}
	defer l.wake(permit)
	return cost, l.ledger.Settle(ctx, permit, outcome)
}

// SettleLate reports a limit error that was found in the body of a response after Settle.
func (l *Limiter) SettleLate(ctx context.Context, permit Permit, kind policy.LimitKind, retryAfter time.Duration) error {
	l.mu.Lock()
	l.lastID++
	permit.ID = l.lastID // a repeated Settle of the permit would have no effect
	l.mu.Unlock()
	defer l.wake(permit)
	return l.ledger.Settle(ctx, permit, Outcome{Answered: true, Ended: true, Limited: kind, RetryAfter: retryAfter})
}

// learnCost learns the true cost of a GraphQL call. It sets the cost of the outcome if only the reported use shows it.
func (l *Limiter) learnCost(p *Permit, o *Outcome) {
	grown, since := l.costs.end(p, o, l.now())
	if o.Cost == 0 && grown > 0 && l.ledger.Alone(p.Account, p.Resource, since) {
		o.Cost = grown
	}
	if o.Cost > 0 && o.Succeeded && o.Limited == policy.NotLimited && p.Query != "" {
		l.costs.observe(&p.Claim, o.Cost)
	}
}

// Release frees the concurrency slot of a permit at the end of the response.
func (l *Limiter) Release(ctx context.Context, permit Permit, aborted bool) {
	l.stopRenewals(permit)
	defer l.wake(permit)
	l.ledger.Release(ctx, permit, aborted)
}

// stopRenewals ends the renewals of a permit, before the ledger closes the permit.
func (l *Limiter) stopRenewals(permit Permit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.permits, permit.ID)
}

// wake unblocks the claims that wait until a permit of their account is settled or released.
// If the account was merged after the grant, claims may wait in the queues of both names.
func (l *Limiter) wake(permit Permit) {
	name := l.ledger.Canonical(permit.Account)
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := l.queues[permit.Account]; q != nil {
		q.permitSettled()
	}
	if q := l.queues[name]; name != permit.Account && q != nil {
		q.permitSettled()
	}
}
