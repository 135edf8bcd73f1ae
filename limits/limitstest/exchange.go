package limitstest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weirgate/weir/policy"
)

// Response is the response to one request.
type Response struct {
	Rate       policy.Rate
	Limited    policy.LimitKind
	RetryAfter time.Duration
	Failed     bool
	Uncounted  bool
	Resent     int
	// Cost is the true cost of the request, or zero if the body does not have it.
	Cost int
	// Body is the duration of the body. Aborted means that the client disconnects at its end.
	Body    time.Duration
	Aborted bool

	account  string
	granted  time.Time
	snapshot snapshot
	cooldown *time.Time // end of the cool-down
	copied   *transportCopy
	settled  time.Time
}

func (a *Response) describe() string {
	return fmt.Sprintf("%s used %d of %d, reset %v after date, limited %q, retry after %v, failed %v", a.Rate.Resource,
		a.Rate.Used, a.Rate.Limit,
		a.Rate.Reset.Sub(a.Rate.Date), a.Limited, a.RetryAfter, a.Failed)
}

// exchange is one request in progress.
type exchange struct {
	*Upstream
	*Request
	rng      *rand.Rand
	counted  string // resource that counts the request
	response *Response
	end      time.Duration // duration of the work
	over     bool
	// refusedIn is the start of the window that refused the request.
	refusedIn time.Time
	events    []event
	began     time.Time
}

// event is an action of the upstream at a time after the request began.
type event struct {
	at time.Duration
	do func(a *account, now time.Time)
}

// Send starts a request. The channel receives the response, or nil if the response is lost. It receives nothing if the
// client leaves before the response.
func (u *Upstream) Send(r Request, rng *rand.Rand) <-chan *Response {
	r.Price = max(1, r.Price)
	ex := &exchange{Upstream: u, Request: &r, rng: rng, counted: r.Resource, began: time.Now()}
	if chance(rng, u.profile.Misguessed) {
		ex.counted = misguessed
	}
	ex.response = &Response{account: r.Account, granted: r.Granted}
	n := &u.profile
	work := n.latency(rng)
	back := upTo(rng, work/4)
	if n.Busy {
		back = 0
	}
	ex.end = work
	if work > r.Timeout { // the client abandons the request, and the upstream continues for a while
		ex.end = min(work, r.Timeout+upTo(rng, Linger))
	}
	missing := chance(rng, n.DroppedResponses)
	if !missing || chance(rng, 0.5) {
		ex.plan()
	}
	ex.enter(ex.Request)
	responses := make(chan *Response, 1)
	u.work.Go(func() {
		ex.run()
		if abandoned := ex.end != work || work+back >= r.Timeout; missing || abandoned {
			ex.leave(ex.Request)
			if !abandoned {
				responses <- nil
			}
			return
		}
		time.Sleep(back)
		ex.deliver(responses)
	})
	return responses
}

// deliver sends the response and its body.
func (ex *exchange) deliver(responses chan<- *Response) {
	var remaining time.Duration
	if n := &ex.profile; chance(ex.rng, n.BodyOdds) {
		ex.response.Body = time.Microsecond + upTo(ex.rng, n.Body)
		remaining = ex.response.Body
		if ex.response.Aborted = chance(ex.rng, n.Aborting); ex.response.Aborted {
			remaining += upTo(ex.rng, Linger)
		}
	}
	if remaining == 0 {
		ex.leave(ex.Request)
		responses <- ex.response
		return
	}
	responses <- ex.response
	// The request ends a microsecond before its body. The upstream therefore never counts a request that has ended for
	// the client.
	time.Sleep(remaining - time.Microsecond)
	ex.leave(ex.Request)
}

// plan chooses the events of a request at random.
func (ex *exchange) plan() {
	n, rng := &ex.profile, ex.rng
	at := func(from time.Duration, do func(*account, time.Time)) time.Duration {
		when := moment(rng, from, ex.end)
		ex.events = append(ex.events, event{when, do})
		return when
	}
	arrival := at(0, ex.arrive)
	seen := at(arrival, ex.writeRate)
	at(seen, func(_ *account, now time.Time) {
		if !n.NoDate && ex.response.Rate.Limit != 0 {
			ex.response.Rate.Date = n.Date.round(now.Add(n.Offset))
		}
	})
	at(0, ex.spendPoints)
	if ex.CreatesContent {
		at(0, ex.create)
	}
	part := n.Part
	if !n.Busy && rng.IntN(2) == 0 {
		part *= rng.Float64()
	}
	took := time.Duration(float64(ex.end) * part * n.Limits.CPU.Factor).Truncate(time.Microsecond)
	at(0, func(a *account, _ time.Time) {
		ex.countCPU(a, ex, cpu, n.Limits.CPU.Total, took)
		if ex.Resource == policy.GraphQL {
			ex.countCPU(a, ex, cpu+" graphql", n.Limits.CPU.GraphQL, took)
		}
	})
	if chance(rng, n.Resending) {
		ex.resend()
	}
	slices.SortStableFunc(ex.events, func(a, b event) int { return int(a.at - b.at) })
}

// resend counts an earlier copy of the request, possibly seconds after the response.
func (ex *exchange) resend() {
	c := &transportCopy{price: ex.Price}
	ex.response.copied, ex.response.Resent = c, 1
	when := moment(ex.rng, 0, ex.end+Linger)
	ex.work.Go(func() {
		time.Sleep(when)
		ex.mu.Lock()
		defer ex.mu.Unlock()
		a, now := ex.account(ex.Account), time.Now()
		ex.log(a.name, "counts a copy of %s", ex.Operation)
		_, _ = ex.window(a, ex.counted).take(now, ex.Granted, ex.Price, c)
		ex.points(a, c)
		if ex.CreatesContent {
			ex.contents(a, c)
		}
	})
}

// run executes the planned events.
func (ex *exchange) run() {
	for _, e := range ex.events {
		time.Sleep(e.at - time.Since(ex.began))
		ex.mu.Lock()
		e.do(ex.account(ex.Account), time.Now())
		ex.mu.Unlock()
	}
	time.Sleep(ex.end - time.Since(ex.began))
}

// arrive checks that the request may arrive now, and counts it in its primary window.
func (ex *exchange) arrive(a *account, now time.Time) {
	ex.log(a.name, "%s arrives, granted at %s, sent at %s", ex.Operation, ex.clock(ex.Granted), ex.clock(ex.began))
	for _, c := range a.cooldowns {
		if c.learned.Before(ex.Granted) && now.Before(c.ends) {
			ex.violation(a, cooling, fmt.Sprintf("granted at %s, after the error was learned at %s; it ends at %s",
				ex.clock(ex.Granted), ex.clock(c.learned), ex.clock(c.ends)))
		}
	}
	t := ex.report.tally(cooling)
	t.Requests++
	w := ex.window(a, ex.counted)
	n := &ex.profile
	if chance(ex.rng, n.ClosedWindows) {
		w.spendByOtherUsers(now, w.max)
	}
	if chance(ex.rng, n.SecondaryErrors) {
		ex.secondaryError(a, w, now)
		return
	}
	if n.NoLimits || chance(ex.rng, n.Unchanged) && ex.Resource != policy.GraphQL && w.used < w.max {
		ex.response.Uncounted = true
		return
	}
	limit := primaryName(ex.counted)
	t = ex.report.tally(limit)
	t.Requests++
	ok, excess := w.take(now, ex.Granted, ex.Price, nil)
	t.Worst = max(t.Worst, float64(w.used+max(0, excess))/float64(w.max))
	if ok {
		ex.serve(ex.Request, limit, ex.Price)
		if chance(ex.rng, n.ReportedCosts) {
			ex.response.Cost = int(ex.Price)
		}
	} else {
		ex.over, ex.refusedIn = true, w.opened
		ex.response.Limited = policy.LimitPrimary
		if excess > 0 {
			ex.violation(a, limit, fmt.Sprintf("%d beyond %d, granted at %s, window %s to %s, %d by other users",
				excess, w.max,
				ex.clock(ex.Granted), ex.clock(w.opened), ex.clock(w.ends), w.byOtherUsers))
		}
	}
	if n.SlidingSearch && (ex.counted == policy.Search || ex.counted == policy.CodeSearch) {
		ex.count(a, ex.Request, ex.counted+" sliding", "", policy.Window{Max: int(w.max), Window: w.length}, 1, nil)
	}
}

// primaryName returns the name of the primary limit of a resource.
func primaryName(resource string) string {
	switch resource {
	case policy.Core:
		return primary
	case policy.Search, policy.CodeSearch:
		return resource
	}
	return primary + " " + resource
}

// secondaryError responds with a secondary limit error, and starts its cool-down.
func (ex *exchange) secondaryError(a *account, w *window, now time.Time) {
	ex.response.Limited = policy.LimitSecondary
	w.roll(now, true)
	// The error is a further consecutive error if its request was granted after the ledger learned of the last error.
	if a.episodes == 0 || !a.lastLearned.Before(a.lastSecondary) && ex.Granted.After(a.lastLearned) {
		a.episodes++
		a.lastSecondary = now
	}
	ends := now.Add(time.Minute << min(a.episodes-1, 6)) // one minute, doubled by each consecutive error
	switch ex.rng.IntN(4) {
	case 0: // remaining 0: the cool-down lasts until the reset, if the response has rate headers
		w.spendByOtherUsers(now, w.max)
	case 1, 2: // the response has Retry-After
		exact := time.Second + upTo(ex.rng, 15*time.Second)
		ends = now.Add(exact)
		ex.response.RetryAfter = ex.profile.Reset.round(time.Unix(0, 0).Add(exact)).Sub(time.Unix(0, 0))
	}
	ex.response.cooldown = &ends
	ex.log(a.name, "secondary limit error, cool-down until %s, retry-after %v", ex.clock(ends), ex.response.RetryAfter)
}

// writeRate sets the rate headers.
func (ex *exchange) writeRate(a *account, now time.Time) {
	n := &ex.profile
	ex.response.Failed = ex.response.Limited == policy.NotLimited && chance(ex.rng, n.Failing)
	if ex.response.Failed || n.NoLimits {
		return
	}
	if ex.response.cooldown != nil && chance(ex.rng, n.WithoutHeaders) {
		return
	}
	w := ex.window(a, ex.counted)
	s := w.snapshot(now)
	if n.Behind > 0 && ex.response.Limited != policy.LimitPrimary {
		s = s.before(ex.rng.Int64N(int64(n.Behind) + 1))
	}
	if ex.response.Limited == policy.LimitPrimary && !s.opened.Equal(ex.refusedIn) {
		return // the window has ended: an error without rate headers
	}
	if ex.response.cooldown != nil && ex.response.RetryAfter == 0 && s.used >= s.max {
		*ex.response.cooldown = s.ends // the reset takes precedence over the default
	}
	ex.response.snapshot = s
	ex.response.Rate = policy.Rate{Limit: int(s.max), Used: int(s.used), Reset: n.reportReset(s.ends, ex.rng),
		Resource: ex.counted}
}

func (ex *exchange) spendPoints(a *account, _ time.Time) { ex.points(a, nil) }

func (ex *exchange) points(a *account, c *transportCopy) {
	l, limit, scope := &ex.profile.Limits.Points, points, ex.Operation
	rule := policy.Window{Max: l.REST, Window: l.Window}
	if ex.Resource == policy.GraphQL {
		rule.Max, limit = l.GraphQL, points+" graphql"
	}
	ex.count(a, ex.Request, limit, scope, rule, int64(ex.Points), c)
}

func (ex *exchange) create(a *account, _ time.Time) { ex.contents(a, nil) }

func (ex *exchange) contents(a *account, c *transportCopy) {
	for i, rule := range ex.profile.Limits.Content {
		ex.count(a, ex.Request, []string{content, content + " long"}[i], "", rule, 1, c)
	}
}
