package limits

import (
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/weirgate/weir/policy"
)

const (
	// maxWaiters bounds how many requests of one account wait for a permit,
	// maxPerClient how many of them are one client's.
	maxWaiters   = 1000
	maxPerClient = 250
	// pollEvery is how often is asked again where only a permit that settles
	// can help: it may be another replica's.
	pollEvery = 50 * time.Millisecond
	// floorEvery is how often one of the lowest priority that waits is let go,
	// whoever else waits.
	floorEvery = 20
	// paceRate and paceBurst smooth the rush when a window reopens: requests
	// a second of those that have waited. It lasts for rush: by then all have gone
	// that may wait, and who has come since would wait for nothing but the pace.
	paceRate, paceBurst = 1000, 50
	rush                = time.Second
)

// queue holds those who wait for one account, and says whose turn it is:
// higher priorities first; within one, clients by their share (start-time fair
// queueing: each client's next request starts when its last one, stretched by
// its share, ends in virtual time); within a client, who came first.
//
// Those who wait for a budget that is out stand in nobody's way: requests are
// lined up by class, all of one class needing the same budgets.
type queue struct {
	account string
	classes map[class]*line
	flows   map[string]*flow
	waiting int
	virtual float64 // start of the last request let go
	// hurried counts the requests let go since one of a lower priority was.
	hurried int
	pace    *rate.Limiter
	// settlings counts the permits that have settled.
	settlings int
	// changed has one element when the dispatcher should look again.
	changed chan struct{}
}

// class is what decides which budgets a claim needs.
type class struct {
	operation, resource string
	points              int
	creates, batch      bool
}

func classOf(c Claim) class {
	return class{c.Operation, c.Resource, c.Points, c.CreatesContent, c.Batch}
}

// line is the waiters of one class, and why they wait.
type line struct {
	waiters []*waiter // in the order in which they came
	// blocked lines are not asked for before until, or before something
	// settles when settles is set.
	until   time.Time
	settles bool
	reason  Reason
	// paced is until when those who waited in it are let go at the pace.
	paced time.Time
	// lastGrant and interval tell how fast the line has moved lately.
	lastGrant time.Time
	interval  time.Duration
	grants    int
}

// flow is one client's requests in an account.
type flow struct {
	client  string
	finish  float64 // virtual
	share   float64
	rank    int // of its priority, lower is first
	waiting int
}

// waiter is one request in the queue; its fields are guarded by Limiter.mu.
type waiter struct {
	claim    Claim
	class    class
	flow     *flow
	deadline time.Time
	asking   bool          // the dispatcher is at the ledger with it
	leaving  bool          // its client waits no longer
	reason   Reason        // why it waited, once it is granted
	answer   chan decision // gets one element
	// settlings is the queue's when the ledger was asked.
	settlings int
}

// decision is what a waiter is told. Neither granted nor an error, it is only
// why it has waited.
type decision struct {
	granted bool
	err     error
	reason  Reason
}

func newQueue(account string) *queue {
	return &queue{
		account: account, classes: map[class]*line{}, flows: map[string]*flow{},
		pace: rate.NewLimiter(paceRate, paceBurst), changed: make(chan struct{}, 1),
	}
}

// notify lets the dispatcher look again.
func (q *queue) notify() {
	select {
	case q.changed <- struct{}{}:
	default:
	}
}

// contends reports whether a newcomer has to line up: behind others of its
// class, or beside others who may be let go any moment. Those who wait for a
// known time need something else than it does.
func (q *queue) contends(c class, now time.Time) bool {
	for key, l := range q.classes {
		if len(l.waiters) > 0 && (key == c || l.settles || !now.Before(l.until)) {
			return true
		}
	}
	return false
}

// join lines up a claim. It returns nil when too many wait.
func (q *queue) join(claim Claim, caller policy.Caller, deadline time.Time) *waiter {
	name := caller.Client
	if name == "" {
		name = caller.Class
	}
	f := q.flows[name]
	if q.waiting >= maxWaiters || f != nil && f.waiting >= maxPerClient {
		return nil
	}
	if f == nil {
		f = &flow{client: name}
		q.flows[name] = f
	}
	f.share, f.rank = float64(max(1, caller.Share)), rank(caller.Priority)
	w := &waiter{claim: claim, class: classOf(claim), flow: f, deadline: deadline, answer: make(chan decision, 1)}
	l := q.classes[w.class]
	if l == nil {
		l = &line{}
		q.classes[w.class] = l
	}
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

// leave takes a waiter out of its line.
func (q *queue) leave(w *waiter) {
	l := q.classes[w.class]
	l.waiters = slices.DeleteFunc(l.waiters, func(x *waiter) bool { return x == w })
	q.waiting--
	if w.flow.waiting--; w.flow.waiting == 0 && w.flow.finish <= q.virtual {
		delete(q.flows, w.flow.client)
	}
}

// next is the waiter whose turn it is; if there is none, wake is when to look
// again (zero: when something changes).
func (q *queue) next(now time.Time) (turn *waiter, wake time.Time) {
	lowest := q.hurried >= floorEvery-1
	q.poll(now)
	for _, l := range q.classes {
		if len(l.waiters) == 0 {
			continue
		}
		if now.Before(l.until) {
			if wake.IsZero() || l.until.Before(wake) {
				wake = l.until
			}
			continue
		}
		for _, w := range l.waiters {
			if turn == nil || q.before(w, turn, lowest) {
				turn = w
			}
		}
	}
	return turn, wake
}

// poll opens all lines that wait for something to settle when it is time to ask
// for one of them: what they wait for may be the same.
func (q *queue) poll(now time.Time) {
	for _, l := range q.classes {
		if l.settles && !now.Before(l.until) {
			q.open()
			return
		}
	}
}

// open lets those be asked for again who wait for something to settle.
func (q *queue) open() {
	for _, l := range q.classes {
		if l.settles {
			l.until, l.settles = time.Time{}, false
		}
	}
}

// before reports whether a goes before b.
func (q *queue) before(a, b *waiter, lowest bool) bool {
	if a.flow.rank != b.flow.rank {
		return (a.flow.rank < b.flow.rank) != lowest
	}
	if x, y := max(q.virtual, a.flow.finish), max(q.virtual, b.flow.finish); x != y {
		return x < y
	}
	return a.claim.ID < b.claim.ID
}

// let takes a waiter that was granted out of its line.
func (q *queue) let(w *waiter, now time.Time) {
	q.virtual = max(q.virtual, w.flow.finish)
	w.flow.finish = q.virtual + 1/w.flow.share
	q.hurried++
	if w.flow.rank == q.lowest() {
		q.hurried = 0
	}
	q.classes[w.class].moved(now)
	q.leave(w)
}

// lowest is the rank of the lowest priority that waits.
func (q *queue) lowest() int {
	lowest := 0
	for _, f := range q.flows {
		if f.waiting > 0 {
			lowest = max(lowest, f.rank)
		}
	}
	return lowest
}

// moved notes that a request of the line was let go.
func (l *line) moved(now time.Time) {
	if l.grants > 0 {
		l.interval += (now.Sub(l.lastGrant) - l.interval) / 8
	}
	l.grants++
	l.lastGrant = now
}

// block keeps a line from being asked for until the ledger may think otherwise.
func (l *line) block(d Decision, now time.Time) {
	l.reason, l.until, l.settles = d.Reason, d.Until, false
	if d.Until.IsZero() {
		l.until, l.settles = now.Add(pollEvery), true
	}
	l.paced = l.until.Add(rush)
}

// refused blocks the line of a class, and all lines that the same budget stands
// in the way of: to ask for them now would let them overtake. Who cannot wait so
// long is told.
func (q *queue) refused(c class, d Decision, now time.Time) {
	for other, l := range q.classes {
		if other != c && !sharesFate(d.Reason, c, other) {
			continue
		}
		l.block(d, now)
		for _, w := range slices.Clone(l.waiters) {
			if d.Until.After(w.deadline) && !w.asking {
				q.leave(w)
				w.answer <- decision{err: &Refusal{d.Reason, d.Until}}
			}
		}
	}
}

// sharesFate reports whether a claim of class b is refused when one of class a
// is, for this reason. Of CPU time each needs as much as it needs.
func sharesFate(reason Reason, a, b class) bool {
	switch reason {
	case Cooldown, Concurrency:
		return true
	case Primary:
		return a.resource == b.resource && (b.batch || !a.batch)
	case Points:
		return a.operation == b.operation && b.points >= a.points
	case Content:
		return a.creates && b.creates
	}
	return false
}

// settled is called when a permit of the account has settled.
func (q *queue) settled() {
	q.settlings++
	q.open()
	q.notify()
}

// prediction is when a newcomer to a line can expect its turn, by how fast the
// line has moved; zero when that is not known yet.
func (l *line) prediction(rank int, now time.Time) time.Time {
	if l.grants < 16 {
		return time.Time{}
	}
	ahead := 0
	for _, w := range l.waiters {
		if w.flow.rank <= rank {
			ahead++
		}
	}
	return now.Add(time.Duration(ahead) * l.interval)
}
