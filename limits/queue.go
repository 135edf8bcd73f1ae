package limits

import (
	"cmp"
	"math/bits"
	"slices"
	"time"

	"github.com/weirgate/weir/policy"
)

const (
	// maxWaiters bounds the number of waiting requests of one account. maxPerClient bounds the waiting requests of each
	// client.
	maxWaiters   = 1000
	maxPerClient = 250
	// pollEvery is the interval between attempts of a claim that waits for a settled permit. Some changes do not notify
	// the queue:
	//   - another replica settles a permit
	//   - an abandoned permit expires, which frees its slot only at the next step
	//   - a slow start adds concurrency slots
	//   - a permit is settled after the refusal of the claim and before the claim enters the queue
	pollEvery = 50 * time.Millisecond
	// earlyEvery is the interval between attempts of a claim that may fit before the end of its refusal.
	earlyEvery = 200 * time.Millisecond
	// floorEvery is the number of grants after which the lowest waiting priority gets a grant.
	floorEvery = 20
)

// queue orders the waiting claims of one account. Higher priorities go first. Within a priority, clients share by
// weight (start-time fair queueing). A request takes 1/share units of virtual time, and the next request of the client
// starts afterwards.
type queue struct {
	account string
	lines   map[class]*line
	flows   map[string]*flow // by client
	waiting int
	virtual float64 // virtual start time of the last granted request
	// sinceLowest counts the grants since the last grant to the lowest waiting priority.
	sinceLowest int
	// settled is set if a permit was settled or released since the last call of Admit began.
	settled bool
	changed chan struct{} // wakes the dispatcher
}

// class identifies the budgets that a claim needs.
type class struct {
	operation, resource string
	points, costBits    int // costBits is the number of bits of the cost, so that a queue has few classes
	creates, batch      bool
	client, tag         string // if the account is divided among clients
	writer              string // client and tag of a limited write, otherwise empty
	writes              int    // at most the limit
}

func classOf(c Claim) class {
	k := class{c.Operation, c.Resource, c.Points, bits.Len(uint(c.cost())), c.CreatesContent, c.Batch, "", "", "", c.Writes}
	if len(c.Clients) > 0 {
		k.client, k.tag = c.Client, c.Tag
	}
	if c.Writes > 0 {
		k.writer = tagPrefix(c.Client) + c.WriteTag
	}
	return k
}

// line contains the waiters of one class, in the order of their arrival.
type line struct {
	class   class
	waiters []*waiter
	// until is the end of a block, or zero if unknown. The dispatcher tries the line again at the time next. If untilSettled
	// is set, a settled or released permit also unblocks the line.
	until, next  time.Time
	untilSettled bool
	reason       Reason     // of the last refusal
	shared       *SharedUse // at the last refusal
	// lastGrant and interval (a moving average) measure the speed of the line.
	lastGrant time.Time
	interval  time.Duration
	grants    int
}

// flow is one client in the fair queue of an account.
type flow struct {
	client  string
	finish  float64 // virtual end time of the client's last request
	share   float64
	rank    int // of the client's priority; lower ranks go first
	waiting int
}

// waiter is one waiting claim. Limiter.mu guards its fields.
type waiter struct {
	claim     Claim
	line      *line
	flow      *flow
	deadline  time.Time
	admitting bool       // the dispatcher has passed the claim to the ledger
	leaving   bool       // the client has stopped waiting
	reason    Reason     // of the wait; set at the grant
	shared    *SharedUse // of the wait; set at the grant
	result    chan error // receives one element: nil for a grant
}

func (q *queue) notify() {
	select {
	case q.changed <- struct{}{}:
	default:
	}
}

// sleep waits for a notification. If wake is not zero, sleep also returns at wake.
func (q *queue) sleep(wake time.Time) {
	var due <-chan time.Time
	if !wake.IsZero() {
		due = time.After(time.Until(wake))
	}
	select {
	case <-q.changed:
	case <-due:
	}
}

// mustWait reports whether a new claim has to wait. A claim waits behind a line of its class, and behind every line
// that may get a grant at any moment. Other lines wait for a budget that the claim does not need.
func (q *queue) mustWait(c class, now time.Time) bool {
	for key, l := range q.lines {
		if len(l.waiters) > 0 && (key == c || l.untilSettled || !now.Before(l.next)) {
			return true
		}
	}
	return false
}

// flowName returns the name under which a caller shares the queue.
func flowName(caller policy.Caller) string { return cmp.Or(caller.Client, caller.Class) }

// add appends a claim to its line. It returns nil if too many claims wait.
func (q *queue) add(claim Claim, caller policy.Caller, deadline time.Time) *waiter {
	name := flowName(caller)
	f := q.flows[name]
	if q.waiting >= maxWaiters || f != nil && f.waiting >= maxPerClient {
		return nil
	}
	if f == nil {
		f = &flow{client: name}
		q.flows[name] = f
	}
	f.share, f.rank = float64(max(1, caller.Share)), rank(caller.Priority)
	c := classOf(claim)
	l := q.lines[c]
	if l == nil {
		l = &line{class: c}
		q.lines[c] = l
	}
	w := &waiter{claim: claim, line: l, flow: f, deadline: deadline, result: make(chan error, 1)}
	l.waiters = append(l.waiters, w)
	q.waiting++
	f.waiting++
	q.notify()
	return w
}

func rank(p policy.Priority) int {
	switch p {
	case policy.Interactive:
		return 0
	case policy.Batch:
		return 2
	}
	return 1
}

func (q *queue) remove(w *waiter) {
	w.line.waiters = slices.DeleteFunc(w.line.waiters, func(x *waiter) bool { return x == w })
	q.waiting--
	if w.flow.waiting--; w.flow.waiting == 0 && w.flow.finish <= q.virtual {
		delete(q.flows, w.flow.client)
	}
}

// next returns the first waiter of the lines that are not blocked. If all lines are blocked, wake is the time at which
// the first block ends.
func (q *queue) next(now time.Time) (first *waiter, wake time.Time) {
	for _, l := range q.lines {
		if l.untilSettled && !now.Before(l.next) { // all such lines may wait for the same permit
			q.unblockSettled()
			break
		}
	}
	for _, l := range q.lines {
		if len(l.waiters) == 0 {
			continue
		}
		if now.Before(l.next) {
			if wake.IsZero() || l.next.Before(wake) {
				wake = l.next
			}
			continue
		}
		for _, w := range l.waiters {
			if first == nil || q.before(w, first) {
				first = w
			}
		}
	}
	return first, wake
}

// before reports whether waiter a goes before waiter b.
func (q *queue) before(a, b *waiter) bool {
	if a.flow.rank != b.flow.rank {
		lowestFirst := q.sinceLowest >= floorEvery-1
		return (a.flow.rank < b.flow.rank) != lowestFirst
	}
	if x, y := max(q.virtual, a.flow.finish), max(q.virtual, b.flow.finish); x != y {
		return x < y
	}
	return a.claim.ID < b.claim.ID
}

// granted removes a granted waiter, and charges its flow.
func (q *queue) granted(w *waiter, now time.Time) {
	q.virtual = max(q.virtual, w.flow.finish)
	w.flow.finish = q.virtual + 1/w.flow.share
	lowest := 0
	for _, f := range q.flows {
		if f.waiting > 0 {
			lowest = max(lowest, f.rank)
		}
	}
	q.sinceLowest++
	if w.flow.rank == lowest {
		q.sinceLowest = 0
	}
	l := w.line
	if l.grants > 0 {
		l.interval += (now.Sub(l.lastGrant) - l.interval) / 8
	}
	l.grants++
	l.lastGrant = now
	q.remove(w)
}

// block forbids attempts of a refused line until the decision may change.
func (l *line) block(d Decision, now time.Time) {
	until := now.Add(d.Wait)
	l.reason, l.shared, l.until, l.next, l.untilSettled = d.Reason, d.Shared, until, until, false
	if early := now.Add(earlyEvery); d.Early && early.Before(l.next) {
		l.next = early
	}
	if d.Wait == 0 {
		l.until, l.next, l.untilSettled = time.Time{}, now.Add(pollEvery), true
	}
}

// refuse blocks the line of a class, and every line that the same budget refuses. Waiters whose deadline is before the
// end of the block get the refusal.
func (q *queue) refuse(c class, d Decision, now time.Time) {
	for other, l := range q.lines {
		if other != c && !alsoRefused(d.Reason, c, other) {
			continue
		}
		l.block(d, now)
		for _, w := range slices.Clone(l.waiters) {
			if until := now.Add(d.Wait); d.Wait > 0 && until.After(w.deadline) && !w.admitting {
				q.remove(w)
				w.result <- &Refusal{d.Reason, until, d.Shared}
			}
		}
	}
}

// alsoRefused reports whether a budget that refuses class a also refuses class b. For CPU time the result is false,
// because each claim needs another amount.
func alsoRefused(reason Reason, a, b class) bool {
	switch reason {
	case Closed, Cooldown:
		return true
	}
	if a.client != b.client { // the ledger must learn which clients wait
		return false
	}
	switch reason {
	case Concurrency:
		return true
	case Primary:
		return a.resource == b.resource && b.costBits >= a.costBits && (b.batch || !a.batch)
	case ClientBudget:
		return a.resource == b.resource && b.costBits >= a.costBits && a.operation == b.operation && a.tag == b.tag
	case Points:
		return a.operation == b.operation && b.points >= a.points
	case Content:
		return a.creates && b.creates
	case Writes:
		return a.writer == b.writer && b.writes >= a.writes
	}
	return false
}

// permitSettled unblocks the lines that wait for a settled or released permit.
func (q *queue) permitSettled() {
	q.settled = true
	q.unblockSettled()
	q.notify()
}

func (q *queue) unblockSettled() {
	for _, l := range q.lines {
		if l.untilSettled {
			l.next, l.untilSettled = time.Time{}, false
		}
	}
}

// expectedGrant returns the time at which a new claim can expect its grant, from the block and the speed of the line.
// It returns zero if both are unknown.
func (l *line) expectedGrant(rank int, now time.Time) (at time.Time) {
	if l.grants >= 16 {
		before := 0
		for _, w := range l.waiters {
			if w.flow.rank <= rank {
				before++
			}
		}
		at = now.Add(time.Duration(before) * l.interval)
	}
	if l.until.After(at) {
		at = l.until
	}
	return at
}

// retryAt returns the time for the refusal of a claim that has stopped waiting: the end of the block, or the expected
// grant of a new claim. If both are unknown, retryAt returns the end of defaultRetry.
func (l *line) retryAt(rank int, now time.Time) time.Time {
	if at := l.expectedGrant(rank, now); at.After(now) {
		return at
	}
	return now.Add(defaultRetry)
}

// nextPlace returns the time for the refusal of a claim for which the queue has no place. That is the expected grant of
// a new claim, or the first deadline of a waiter whose place the claim can take.
func (q *queue) nextPlace(c class, caller policy.Caller, now time.Time) (at time.Time) {
	if l := q.lines[c]; l != nil {
		if at = l.expectedGrant(rank(caller.Priority), now); at.After(now) {
			return at
		}
	}
	at = time.Time{}
	own := q.flows[flowName(caller)]
	for _, l := range q.lines {
		for _, w := range l.waiters {
			mayTake := q.waiting >= maxWaiters || w.flow == own
			if mayTake && (at.IsZero() || w.deadline.Before(at)) {
				at = w.deadline
			}
		}
	}
	return at
}
