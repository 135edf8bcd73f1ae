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

// renewEvery is how often what requests in flight hold is brought up to date.
const renewEvery = time.Second

// Limiter hands out permits: it asks the ledger, lets those wait whom waiting
// can help, in a fair order, and refuses at once where it cannot.
//
// While requests wait for an account one goroutine asks for them. It ends with
// the last of them; [Limiter.Run] waits for it.
type Limiter struct {
	ledger      Ledger
	estimates   estimates
	dispatchers sync.WaitGroup

	mu      sync.Mutex // guards what follows
	lastID  uint64
	closed  bool               // Run has ended: nobody may begin to wait
	queues  map[string]*queue  // by account; none without a waiter
	flights map[uint64]*flight // permits in flight
}

type flight struct {
	permit Permit
	// since is when the upstream began to work, as far as is known: when the permit was
	// granted, or the request's body was sent. uploading is set until then.
	since     time.Time
	uploading bool
	// landing is set once the ledger is being told that it has landed, retaken when
	// it was renewed meanwhile.
	landing, retaken bool
}

// NewLimiter returns a limiter over a ledger.
func NewLimiter(ledger Ledger) *Limiter {
	return &Limiter{
		ledger: ledger, estimates: estimates{ops: map[string]*estimate{}},
		lastID: rand.Uint64() >> 2, queues: map[string]*queue{}, flights: map[uint64]*flight{},
	}
}

// Waiting tells how many requests wait for a permit, by account; who has none is not in it.
func (l *Limiter) Waiting() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	waiting := make(map[string]int, len(l.queues))
	for account, q := range l.queues {
		waiting[account] = q.waiting
	}
	return waiting
}

// Run keeps permits in flight alive until ctx ends; from then on nobody may
// begin to wait, and Run waits for those who do.
func (l *Limiter) Run(ctx context.Context) {
	defer l.close()
	ticker := time.NewTicker(renewEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			l.renew(ctx)
		}
	}
}

func (l *Limiter) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.dispatchers.Wait()
}

func (l *Limiter) renew(ctx context.Context) {
	flights := l.inFlight()
	if len(flights) == 0 {
		return
	}
	_ = l.ledger.Renew(ctx, flights) // the next one comes in a second
	for _, f := range flights {
		if l.landed(f.ID) {
			l.giveBack(ctx, f.Permit)
		}
	}
}

// giveBack gives a permit back that was taken up again by its last renewal, after
// it had landed.
func (l *Limiter) giveBack(ctx context.Context, p Permit) {
	// What it holds, or where that is charged its place. If this is lost, the permit ends by itself.
	_ = l.ledger.Settle(ctx, p, Outcome{})
	_ = l.ledger.Release(ctx, p, false)
}

// landed reports whether a permit that was renewed has landed meanwhile. If it is
// about to, it is left to who lands it.
func (l *Limiter) landed(id uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.flights[id]
	if f != nil && f.landing {
		f.retaken = true
	}
	return f == nil
}

// inFlight lists the permits that have been in flight for a while.
func (l *Limiter) inFlight() []OpenPermit {
	l.mu.Lock()
	defer l.mu.Unlock()
	var flights []OpenPermit
	for _, f := range l.flights {
		switch elapsed := time.Since(f.since); {
		case f.uploading:
			flights = append(flights, OpenPermit{f.permit, 0})
		case elapsed >= renewEvery:
			flights = append(flights, OpenPermit{f.permit, elapsed})
		}
	}
	return flights
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

// Acquire returns a permit, which must be settled and released. It waits until
// deadline at the longest, and not at all when it is known that waiting cannot
// help; then the error is a [*Refusal]. Other errors are the context's or the
// ledger's. Account, kind, ID and CPU time of the claim are filled in here.
func (l *Limiter) Acquire(ctx context.Context, claim Claim, caller policy.Caller, deadline time.Time) (*Permit, error) {
	claim.Account, claim.Kind = caller.Account, caller.Kind
	claim.Batch = caller.Priority == policy.Batch
	claim.CPU = l.estimates.expect(claim.Operation)
	if l.begin(&claim) {
		return l.wait(ctx, claim, caller, deadline, Decision{})
	}
	// A ledger has a deadline of its own; a permit that is granted while the client
	// leaves must be known here, or nobody would give it back.
	d, err := l.ledger.Admit(context.WithoutCancel(ctx), claim)
	switch {
	case err != nil:
		return nil, err
	case d.Granted:
		return l.depart(claim), nil
	case d.Until.After(deadline):
		return nil, &Refusal{d.Reason, d.Until}
	}
	return l.wait(ctx, claim, caller, deadline, d)
}

// begin numbers the claim, and reports whether others must go before it.
func (l *Limiter) begin(claim *Claim) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastID++
	claim.ID = l.lastID
	q := l.queues[claim.Account]
	return q != nil && q.contends(classOf(*claim), time.Now())
}

func (l *Limiter) depart(claim Claim) *Permit {
	p := Permit{Claim: claim}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flights[p.ID] = &flight{permit: p, since: time.Now()}
	return &p
}

// Upload notes that the body of a permit's request is on its way, for as long as its
// client takes. The upstream's time counts from when done is called.
func (l *Limiter) Upload(permit Permit) (done func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.flights[permit.ID]
	if f == nil {
		return func() {} // it has landed
	}
	f.uploading = true
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if f.uploading {
			f.uploading, f.since = false, time.Now()
		}
	}
}

// wait lines the claim up and waits for its turn. refused is what the ledger
// has said of it, if it was asked.
func (l *Limiter) wait(ctx context.Context, claim Claim, caller policy.Caller, deadline time.Time, refused Decision) (*Permit, error) {
	w, err := l.join(claim, caller, deadline, refused)
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case d := <-w.answer:
		return l.answered(d, w)
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-timer.C:
	}
	d, reason := l.giveUp(w)
	switch {
	case d != nil:
		return l.answered(*d, w) // the dispatcher was faster
	case err != nil:
		return nil, err
	}
	return nil, &Refusal{reason, nextSecond(time.Now())}
}

func (l *Limiter) answered(d decision, w *waiter) (*Permit, error) {
	if d.err != nil {
		return nil, d.err
	}
	p := l.depart(w.claim)
	p.Waited = cmp.Or(w.reason, Queue)
	return p, nil
}

// nextSecond is the least that Retry-After can say.
func nextSecond(now time.Time) time.Time { return now.Add(time.Second) }

// join puts a claim into its account's queue, and starts the queue if there is
// none.
func (l *Limiter) join(claim Claim, caller policy.Caller, deadline time.Time, refused Decision) (*waiter, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[claim.Account]
	now := time.Now()
	if l.closed {
		return nil, &Refusal{Queue, nextSecond(now)}
	}
	if q != nil {
		if line := q.classes[classOf(claim)]; line != nil {
			until := line.prediction(rank(caller.Priority), now)
			if !line.settles && line.until.After(until) {
				until = line.until
			}
			if until.After(deadline) {
				return nil, &Refusal{cmp.Or(line.reason, Queue), until}
			}
		}
	} else {
		q = newQueue(claim.Account)
		l.queues[claim.Account] = q
		l.dispatchers.Go(func() { l.dispatch(q) })
	}
	w := q.join(claim, caller, deadline)
	if w == nil {
		return nil, &Refusal{Queue, nextSecond(now)}
	}
	if line := q.classes[w.class]; refused.Reason != "" && len(line.waiters) == 1 {
		line.block(refused, now)
	}
	return w, nil
}

// giveUp takes a waiter out of its queue. It returns what the waiter has been
// answered, if it has, else why it waited.
func (l *Limiter) giveUp(w *waiter) (*decision, Reason) {
	l.mu.Lock()
	if !w.asking && len(w.answer) == 0 {
		defer l.mu.Unlock()
		q := l.queues[w.claim.Account]
		q.leave(w)
		q.notify()
		return nil, cmp.Or(q.classes[w.class].reason, Queue)
	}
	w.leaving = true
	l.mu.Unlock()
	d := <-w.answer // soon: the ledger has its own deadline
	if !d.granted && d.err == nil {
		return nil, d.reason
	}
	return &d, ""
}

// dispatch asks the ledger for those who wait, one after the other, until
// nobody does.
func (l *Limiter) dispatch(q *queue) {
	for {
		w, wake, ok := l.turn(q)
		switch {
		case !ok:
			return
		case w == nil:
			q.sleep(wake)
			continue
		}
		d, err := l.ledger.Admit(context.Background(), w.claim)
		l.decided(q, w, d, err)
	}
}

// turn returns whose turn it is, or when to look again. It ends the queue, and
// is not ok, when nobody waits.
func (l *Limiter) turn(q *queue) (w *waiter, wake time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q.waiting == 0 {
		delete(l.queues, q.account)
		return nil, time.Time{}, false
	}
	now := time.Now()
	if w, wake = q.next(now); w == nil {
		return nil, wake, true
	}
	if now.Before(q.classes[w.class].paced) && !q.pace.Allow() {
		return nil, now.Add(time.Second / paceRate), true
	}
	w.asking, w.settlings = true, q.settlings
	return w, time.Time{}, true
}

// sleep waits until there may be something to do.
func (q *queue) sleep(wake time.Time) {
	if wake.IsZero() {
		<-q.changed
		return
	}
	timer := time.NewTimer(time.Until(wake))
	defer timer.Stop()
	select {
	case <-q.changed:
	case <-timer.C:
	}
}

// decided tells the ledger's answer to a waiter, and to all who cannot wait so
// long.
func (l *Limiter) decided(q *queue, w *waiter, d Decision, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.asking = false
	now := time.Now()
	switch {
	case err != nil:
		q.leave(w)
		w.answer <- decision{err: err}
	case d.Granted:
		w.reason = q.classes[w.class].reason
		q.let(w, now)
		w.answer <- decision{granted: true}
	default:
		if w.leaving {
			q.leave(w)
			w.answer <- decision{reason: d.Reason}
		}
		if d.Until.IsZero() && q.settlings != w.settlings {
			return // something has settled since: ask again
		}
		q.refused(w.class, d, now)
	}
}

// Settle charges a permit with what became of its request, and wakes who waits
// for its account.
func (l *Limiter) Settle(ctx context.Context, permit Permit, outcome Outcome) error {
	if outcome.Answered && !outcome.Failed {
		l.estimates.observe(permit.Operation, outcome.Elapsed)
	}
	if outcome.Ended || !outcome.Answered {
		return l.land(ctx, permit, func() error { return l.ledger.Settle(ctx, permit, outcome) })
	}
	err := l.ledger.Settle(ctx, permit, outcome)
	l.wake(permit)
	return err
}

// Release gives back the place of a permit whose answer has ended.
func (l *Limiter) Release(ctx context.Context, permit Permit, aborted bool) error {
	return l.land(ctx, permit, func() error { return l.ledger.Release(ctx, permit, aborted) })
}

// land lets tell tell the ledger that a flight has landed.
func (l *Limiter) land(ctx context.Context, permit Permit, tell func() error) error {
	l.mu.Lock()
	f := l.flights[permit.ID]
	if f != nil {
		f.landing = true
	}
	l.mu.Unlock()
	err := tell()
	l.mu.Lock()
	delete(l.flights, permit.ID)
	retaken := f != nil && f.retaken
	l.mu.Unlock()
	if retaken {
		l.giveBack(ctx, permit)
	}
	l.wake(permit)
	return err
}

func (l *Limiter) wake(permit Permit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := l.queues[permit.Account]; q != nil {
		q.settled()
	}
}
