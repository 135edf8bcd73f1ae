package limitstest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// Answer is what comes back.
type Answer struct {
	Rate       limits.Rate
	Limited    limits.LimitKind
	RetryAfter time.Duration
	Failed     bool
	Resent     int
	// Body is how long the answer goes on; Aborted, that the client leaves then.
	Body    time.Duration
	Aborted bool

	account  string
	granted  time.Time
	snapshot snapshot
	cooldown *time.Time // its end
	copied   *copied
	settled  time.Time
}

func (a *Answer) describe() string {
	return fmt.Sprintf("%s used %d of %d, reset %v after date, limited %d, retry after %v, failed %v", a.Rate.Resource, a.Rate.Used, a.Rate.Limit,
		a.Rate.Reset.Sub(a.Rate.Date), a.Limited, a.RetryAfter, a.Failed)
}

// exchange is one request on its way through the upstream.
type exchange struct {
	*Upstream
	*Request
	rng    *rand.Rand
	answer *Answer
	end    time.Duration // of the work
	over   bool          // the primary window was
	events []event
	began  time.Time
}

// event is something that the upstream does at some moment of the work.
type event struct {
	at time.Duration
	do func(a *account, now time.Time)
}

// Send takes a request. The answer comes through the channel, unless it is
// lost; then nothing does.
func (u *Upstream) Send(r Request, rng *rand.Rand) <-chan *Answer {
	x := &exchange{Upstream: u, Request: &r, rng: rng, began: time.Now()}
	x.answer = &Answer{account: r.Account, granted: r.Granted}
	n := &u.nature
	work := n.latency(rng)
	back := upTo(rng, work/4)
	if n.Busy {
		back = 0
	}
	x.end = work
	if work > r.Patience { // given up, and worked on for a while
		x.end = min(work, r.Patience+upTo(rng, Linger))
	}
	lost := odds(rng, n.LostAnswers)
	if !lost || odds(rng, 0.5) {
		x.plan()
	}
	x.enter(x.Request)
	answers := make(chan *Answer, 1)
	u.work.Go(func() {
		x.run()
		if lost || x.end != work || work+back >= r.Patience {
			x.leave(x.Request)
			return
		}
		time.Sleep(back)
		x.deliver(answers)
	})
	return answers
}

// deliver sends the answer, and its body.
func (x *exchange) deliver(answers chan<- *Answer) {
	var goesOn time.Duration
	if n := &x.nature; odds(x.rng, n.BodyOdds) {
		x.answer.Body = time.Microsecond + upTo(x.rng, n.Body)
		goesOn = x.answer.Body
		if x.answer.Aborted = odds(x.rng, n.Aborting); x.answer.Aborted {
			goesOn += upTo(x.rng, Linger)
		}
	}
	if goesOn == 0 {
		x.leave(x.Request)
		answers <- x.answer
		return
	}
	answers <- x.answer
	// A place that is left at the same instant as the client hears of it is
	// left before.
	time.Sleep(goesOn - time.Microsecond)
	x.leave(x.Request)
}

// plan draws what happens when.
func (x *exchange) plan() {
	n, rng := &x.nature, x.rng
	at := func(from time.Duration, do func(*account, time.Time)) time.Duration {
		when := moment(rng, from, x.end)
		x.events = append(x.events, event{when, do})
		return when
	}
	arrival := at(0, x.arrive)
	seen := at(arrival, x.look)
	at(seen, func(_ *account, now time.Time) {
		if !n.NoDate && x.answer.Rate.Limit != 0 {
			x.answer.Rate.Date = n.Date.round(now.Add(n.Offset))
		}
	})
	at(0, x.spendPoints)
	if x.CreatesContent {
		at(0, x.create)
	}
	part := n.Part
	if !n.Busy && rng.IntN(2) == 0 {
		part *= rng.Float64()
	}
	took := time.Duration(float64(x.end) * part * n.Limits.CPU.Factor).Truncate(time.Microsecond)
	at(0, func(a *account, _ time.Time) {
		x.foreseen(a, x, cpu, n.Limits.CPU.Total, took)
		if x.Resource == policy.GraphQL {
			x.foreseen(a, x, cpu+" graphql", n.Limits.CPU.GraphQL, took)
		}
	})
	if odds(rng, n.Resending) {
		x.resend()
	}
	slices.SortStableFunc(x.events, func(a, b event) int { return int(a.at - b.at) })
}

// resend has a copy of the request that was sent before counted, perhaps
// seconds after the answer.
func (x *exchange) resend() {
	c := &copied{}
	x.answer.copied, x.answer.Resent = c, 1
	when := moment(x.rng, 0, x.end+Linger)
	x.work.Go(func() {
		time.Sleep(when)
		x.mu.Lock()
		defer x.mu.Unlock()
		a, now := x.account(x.Account), time.Now()
		x.log(a.name, "counts a copy of %s", x.Operation)
		_, _ = x.window(a, x.Resource).take(now, x.Granted, c)
		x.points(a, c)
		if x.CreatesContent {
			x.contents(a, c)
		}
	})
}

// run lets pass what was planned.
func (x *exchange) run() {
	for _, e := range x.events {
		time.Sleep(e.at - time.Since(x.began))
		x.mu.Lock()
		e.do(x.account(x.Account), time.Now())
		x.mu.Unlock()
	}
	time.Sleep(x.end - time.Since(x.began))
}

// arrive judges whether the request may come now, and counts it in its primary
// window.
func (x *exchange) arrive(a *account, now time.Time) {
	x.log(a.name, "%s arrives, granted at %s, sent at %s", x.Operation, x.clock(x.Granted), x.clock(x.began))
	for _, c := range a.cooled {
		if c.told.Before(x.Granted) && now.Before(c.ends) {
			x.blame(a, cooling, fmt.Sprintf("granted at %s, after the error was told at %s; it ends at %s", x.clock(x.Granted), x.clock(c.told), x.clock(c.ends)))
		}
	}
	t := x.report.tally(cooling)
	t.Requests++
	w := x.window(a, x.Resource)
	n := &x.nature
	if odds(x.rng, n.ClosedWindows) {
		w.others(now, w.max)
	}
	if odds(x.rng, n.SecondaryErrors) {
		x.scold(a, w, now)
		return
	}
	if odds(x.rng, n.Unchanged) && w.used < w.max {
		return
	}
	limit := primaryOf(x.Resource)
	t = x.report.tally(limit)
	t.Requests++
	ok, excess := w.take(now, x.Granted, nil)
	t.Worst = max(t.Worst, float64(w.used+max(0, excess))/float64(w.max))
	if !ok {
		x.over = true
		x.answer.Limited = limits.PrimaryLimit
		if excess > 0 {
			x.blame(a, limit, fmt.Sprintf("%d beyond %d, granted at %s, window %s to %s, %d by others", excess, w.max,
				x.clock(x.Granted), x.clock(w.opened), x.clock(w.ends), w.foreign))
		}
	}
	if n.SlidingSearch && (x.Resource == policy.Search || x.Resource == policy.CodeSearch) {
		x.count(a, x.Request, x.Resource+" sliding", "", policy.Window{Max: int(w.max), Window: w.length}, 1, nil)
	}
}

// primaryOf is the name of a resource's primary limit.
func primaryOf(resource string) string {
	switch resource {
	case policy.Core:
		return primary
	case policy.Search, policy.CodeSearch:
		return resource
	}
	return primary + " " + resource
}

// scold answers with a secondary limit error, and begins its cool-down.
func (x *exchange) scold(a *account, w *window, now time.Time) {
	x.answer.Limited = limits.SecondaryLimit
	w.roll(now, true)
	// It is a repetition if its request was granted after the last was told.
	if a.episodes == 0 || !a.lastTold.Before(a.scolded) && x.Granted.After(a.lastTold) {
		a.episodes++
		a.scolded = now
	}
	ends := now.Add(time.Minute << min(a.episodes-1, 6)) // retry rule 4
	switch x.rng.IntN(4) {
	case 0: // remaining 0, retry rule 3, if the headers come to say so
		w.others(now, w.max)
	case 1, 2: // retry rule 2
		exact := time.Second + upTo(x.rng, 15*time.Second)
		ends = now.Add(exact)
		x.answer.RetryAfter = x.nature.Reset.round(time.Unix(0, 0).Add(exact)).Sub(time.Unix(0, 0))
	}
	x.answer.cooldown = &ends
	x.log(a.name, "scolds, cool-down until %s, retry-after %v", x.clock(ends), x.answer.RetryAfter)
}

// look writes the rate headers.
func (x *exchange) look(a *account, now time.Time) {
	n := &x.nature
	if x.answer.Failed = x.answer.Limited == limits.NotLimited && odds(x.rng, n.Failing); x.answer.Failed || n.NoRateHeaders {
		return
	}
	if x.answer.cooldown != nil && odds(x.rng, n.WithoutHeaders) {
		return
	}
	w := x.window(a, x.Resource)
	s := w.snapshot(now)
	if last := w.last; odds(x.rng, n.Stale) && last.opened.Equal(s.opened) && last.max != 0 {
		s = last
	} else {
		w.last = s
	}
	if x.answer.Limited == limits.PrimaryLimit && s.used < s.max {
		return // the window has ended since: an error without headers
	}
	if x.answer.cooldown != nil && x.answer.RetryAfter == 0 && s.used >= s.max {
		*x.answer.cooldown = s.ends // retry rule 3 goes before rule 4
	}
	x.answer.snapshot = s
	x.answer.Rate = limits.Rate{Limit: int(s.max), Used: int(s.used), Reset: n.tells(s.ends, x.rng), Resource: x.Resource}
}

func (x *exchange) spendPoints(a *account, _ time.Time) { x.points(a, nil) }

func (x *exchange) points(a *account, c *copied) {
	l, limit, scope := &x.nature.Limits.Points, points, x.Operation
	rule := policy.Window{Max: l.REST, Window: l.Window}
	if x.Resource == policy.GraphQL {
		rule.Max, limit = l.GraphQL, points+" graphql"
	}
	x.count(a, x.Request, limit, scope, rule, int64(x.Points), c)
}

func (x *exchange) create(a *account, _ time.Time) { x.contents(a, nil) }

func (x *exchange) contents(a *account, c *copied) {
	for i, rule := range x.nature.Limits.Content {
		x.count(a, x.Request, []string{content, content + " long"}[i], "", rule, 1, c)
	}
}
