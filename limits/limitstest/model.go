package limitstest

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// model is one account by the rules of docs/internals/limits.md, written for comparison with these rules and not for speed. It
// keeps lists of all events, and sums the lists for every decision. The model shares only the costs
// ([limits.Rules.Spends]) with the ledgers. Times are microseconds since 1970.
type model struct {
	rules   limits.Rules
	kind    policy.CallerKind
	open    []*openPermit
	logs    []*slidingLog
	windows []*fixedWindow
	// enforced means that a response had rate headers or was a limit error.
	enforced bool

	// State after secondary limit errors.
	blocked, lastError int64 // end of the cool-down; time of the last error
	errors             int64 // consecutive errors
	probing            bool
	probe              uint64
	slowStart          int64 // start of the slow start, or zero
	ceiling, raised    int64 // number of concurrency slots, or zero; time of the last change
	failedProbes       int
	shares             []*outsideShare
	closedSince        int64 // time of the last failed probe of a closed account, or zero

	// State after limit errors of content creation.
	contentUntil, contentError int64 // end of the pause; time of the last error
	contentErrors              int
}

// openPermit is a permit that occupies a concurrency slot.
type openPermit struct {
	id                 uint64
	granted, ends      int64
	window             *fixedWindow
	price              int64 // in the window
	holds              []holding
	charged, abandoned bool
	hangs              bool // a probe without a response that was replaced
	// slowStart is set if the grant counts to the slow start of the window.
	slowStart bool
}

// priceOf returns the price of a claim in its window.
func priceOf(c limits.Claim) int64 {
	if c.Cost < 1 {
		return 1
	}
	return int64(c.Cost)
}

type holding struct {
	log  *slidingLog
	cost int64
	cpu  bool
}

// slidingLog contains every spend of one budget.
type slidingLog struct {
	budget        limits.Reason
	scope         string
	window, merge int64
	spends        []spending
	pace          int64 // time of the next request, if the costs are spread evenly over the window
}

type spending struct{ at, cost int64 }

// fixedWindow is the budget of one resource in the reports of the responses.
type fixedWindow struct {
	resource        string
	length, limit   int64
	reports         []windowReport
	lastReset       int64 // newest reset that has passed
	lastEnd         int64 // end of that window
	opened          int64 // by an operator
	answered        bool
	withoutHeaders  int64         // responses without rate headers
	silentSuccesses int64         // successes without rate headers
	slowStarts      []*openPermit // grants of the slow start, except those whose request was not sent
	unconfirmed     slidingLog    // requests that may have been counted
	strange         *strangeReport
}

// strangeReport is a report that other reports contradict. While it leaves no request, one request at a time finds out which
// report is right.
type strangeReport struct {
	windowReport
	arrived        int64  // time of the report
	asking         uint64 // permit whose response is awaited
	asked, granted int64  // time of the last grant whose request was sent, and of the grant of asking
	dismissed      bool   // by another report; only of interest if it comes again
	tooMuch        bool   // more than its limit, although another report of the window leaves requests
}

// windowReport combines the rate headers about one window. sure is the price of the requests whose responses had these headers.
// perhaps is the price of earlier requests without headers.
type windowReport struct{ reset, latest, earliest, limit, used, answers, sure, perhaps int64 }

// Durations in microseconds.
const (
	sec        = int64(time.Second / time.Microsecond)
	permitLife = 30 * sec
	linger     = 10 * sec
)

// advance moves the clock. Permits without renewal expire, and are charged at their expiry.
func (m *model) advance(now int64) {
	ended := func(a, b *openPermit) int { return cmp.Or(cmp.Compare(a.ends, b.ends), cmp.Compare(a.id, b.id)) }
	for _, p := range slices.SortedFunc(slices.Values(m.open), ended) {
		if p.ends > now {
			return
		}
		if !p.charged {
			m.addUnconfirmed(p.window, p.ends, p.price)
			m.charge(p, p.ends)
		}
		m.remove(p)
	}
}

func (m *model) charge(p *openPermit, at int64) {
	for _, h := range p.holds {
		if h.cost != 0 {
			h.log.spends = append(h.log.spends, spending{at, h.cost})
		}
	}
	p.holds, p.price, p.charged = nil, 0, true
	p.window.askedBy(p.id, true)
}

// remove frees a concurrency slot. If the permit was the probe, the probe was inconclusive.
func (m *model) remove(p *openPermit) {
	m.open = slices.DeleteFunc(m.open, func(other *openPermit) bool { return other == p })
	m.clearProbe(p.id)
	p.window.askedBy(p.id, false)
}

func (m *model) clearProbe(id uint64) {
	if m.probe == id {
		m.probe = 0
	}
}

// abandon makes a permit expire when the upstream has stopped working on its request.
func (m *model) abandon(p *openPermit, now int64) { p.abandoned, p.ends = true, now+linger }

func (m *model) find(id uint64) *openPermit {
	for _, p := range m.open {
		if p.id == id {
			return p
		}
	}
	return nil
}

// admit decides a claim. All budgets must admit the claim. The reason of a refusal is the budget with the longest wait.
func (m *model) admit(c limits.Claim, now int64) limits.Decision {
	m.advance(now)
	if p := m.find(c.ID); p != nil {
		if !p.charged && !p.abandoned {
			p.ends = now + permitLife
		}
		return limits.Decision{Granted: true}
	}
	refused, until, reason := false, int64(0), limits.Reason("")
	refuse := func(no bool, by limits.Reason, at int64) {
		if no && (!refused || at > until) {
			refused, until, reason = true, at, by
		}
	}
	if m.closedSince != 0 { // the end is unknown: try again after an hour
		refuse(true, limits.Closed, max(now+3600*sec, m.blocked))
	} else {
		refuse(now < m.blocked, limits.Cooldown, m.blocked)
		refuse(now >= m.blocked && m.probing && m.probe != 0, limits.Cooldown, 0)
	}
	refuse(int64(len(m.open)) >= m.slots(now), limits.Concurrency, 0)
	refuse(c.CreatesContent && now < m.contentUntil, limits.Content, m.contentUntil)
	w := m.window(c.Resource)
	p := &openPermit{id: c.ID, granted: now, ends: now + permitLife, window: w, price: priceOf(c)}
	var paces []func()
	for _, s := range m.rules.Spends(nil, &c) {
		if s.Budget == limits.Primary && m.unlimited(w) {
			continue
		}
		log := m.log(s)
		limit := m.allowed(log, s.Limit)
		if s.Cost <= s.Limit && limit < s.Cost {
			limit = s.Cost // a request alone is allowed
		}
		if s.Budget == limits.Primary {
			limit = m.rules.Usable(w.limit)
		}
		no, at := m.tooMuch(log, limit, s.Cost, now)
		refuse(no, s.Budget, at)
		paced := c.Paced && s.Window < 10*time.Minute
		refuse(paced && now < log.pace-sec/2, s.Budget, log.pace-sec/2) // may be half a second early
		if s.Budget != limits.CPU && (paced || 2*(log.total(now)+m.held(log)+s.Cost) > limit) {
			paces = append(paces, func() { log.pace = min(max(log.pace, now)+s.Cost*log.window/max(1, limit), now+log.window) })
		}
		p.holds = append(p.holds, holding{log, s.Cost, s.Budget == limits.CPU})
	}
	no, at := m.closed(w, p.price, c.Batch, now)
	refuse(no && !m.unlimited(w), limits.Primary, at)
	if refused {
		d := limits.Decision{Reason: reason}
		if until != 0 {
			d.Wait = time.Duration(max(1, until-now)) * time.Microsecond
		}
		return d
	}
	m.grant(p, now)
	for _, advance := range paces {
		advance()
	}
	return limits.Decision{Granted: true}
}

// grant records a granted permit.
func (m *model) grant(p *openPermit, now int64) {
	m.open = append(m.open, p)
	if w := p.window; !w.answered {
		p.slowStart = true
		w.slowStarts = append(w.slowStarts, p)
	}
	if s := p.window.strange; s != nil && !s.dismissed {
		s.asking, s.granted = p.id, now
	}
	m.growShares(now)
	if m.probing {
		m.probe = p.id
	}
	// A grant that reaches the ceiling raises the ceiling by one, ten seconds after the last change.
	if m.ceiling != 0 && int64(len(m.open)) >= m.ceiling && now-m.raised >= 10*sec {
		m.ceiling, m.raised = m.ceiling+1, now
		if m.ceiling >= m.concurrent() {
			m.ceiling = 0
		}
	}
}

func (m *model) concurrent() int64 { return m.rules.Usable(int64(m.rules.Concurrent)) }

// slots returns the number of concurrency slots, which limit errors lower.
func (m *model) slots(now int64) int64 {
	most := m.concurrent()
	if m.ceiling != 0 {
		most = min(most, m.ceiling)
	}
	if m.slowStart == 0 {
		return most
	}
	slow := int64(1)
	for t := m.slowStart + 5*sec; t <= now && slow < most; t += 5 * sec {
		slow *= 2
	}
	if slow >= most {
		m.slowStart = 0
	}
	return min(most, slow)
}

// log returns the sliding log of a spend, and creates it if necessary.
func (m *model) log(s limits.Spend) *slidingLog {
	for _, l := range m.logs {
		if l.budget == s.Budget && l.scope == s.Scope {
			return l
		}
	}
	l := &slidingLog{budget: s.Budget, scope: s.Scope, window: s.Window.Microseconds(), merge: s.Merge.Microseconds()}
	m.logs = append(m.logs, l)
	return l
}

// groups returns the spends that have not returned yet. Spends within the merge span of the first spend of a group
// return together, one window after the last spend of the group.
func (l *slidingLog) groups(now int64) []spending {
	var groups []spending
	var first int64
	for _, s := range l.spends {
		if n := len(groups); n > 0 && (s.at-first < l.merge || s.at == groups[n-1].at) {
			groups[n-1] = spending{s.at, groups[n-1].cost + s.cost}
			continue
		}
		groups, first = append(groups, s), s.at
	}
	return slices.DeleteFunc(groups, func(g spending) bool { return g.at+l.window <= now })
}

func (l *slidingLog) total(now int64) (sum int64) {
	for _, g := range l.groups(now) {
		sum += g.cost
	}
	return sum
}

// held returns the amount that open permits reserve in a log.
func (m *model) held(l *slidingLog) (sum int64) {
	for _, p := range m.open {
		for _, h := range p.holds {
			if h.log == l {
				sum += h.cost
			}
		}
	}
	return sum
}

// returned returns the time at which the given amount of a log will have returned.
func (l *slidingLog) returned(amount, now int64) int64 {
	for _, g := range l.groups(now) {
		if amount -= g.cost; amount <= 0 {
			return g.at + l.window
		}
	}
	panic("the amount exceeds the spent tokens")
}

// tooMuch reports whether a cost does not fit into a log, and the time when the cost will fit. The time is zero if an
// open permit decides.
func (m *model) tooMuch(l *slidingLog, limit, cost, now int64) (no bool, until int64) {
	spent := l.total(now)
	switch {
	case cost > limit:
		return true, now + l.window
	case spent+cost > limit:
		return true, l.returned(spent+cost-limit, now)
	}
	return spent+m.held(l)+cost > limit, 0
}

// settle charges a permit for its outcome.
func (m *model) settle(c limits.Claim, o limits.Outcome, now int64) {
	m.advance(now)
	p := m.find(c.ID)
	if p != nil && (p.charged || p.abandoned) {
		return
	}
	var sent, price int64
	if p != nil {
		if sent, price = p.granted, p.price; o.Cost > 0 {
			price = int64(o.Cost)
		}
		m.settlePermit(p, price, o, now)
	}
	if !o.Answered {
		return
	}
	if o.Unauthorized && m.kind != policy.Unauthenticated { // the headers are not about the account
		o.Rate = policy.Rate{}
	}
	o.RetryAfter = min(o.RetryAfter, time.Hour)
	headers := o.Rate.Invalid || o.Rate.Limit != 0
	m.enforced = m.enforced || headers || o.Limited != policy.NotLimited
	w := m.window(cmp.Or(o.Rate.Resource, c.Resource))
	ofAddress := false
	if o.Rate.Limit != 0 {
		strange, uncounted := w.learn(m, o, sent, p != nil, now)
		if (strange || uncounted) && price > 0 {
			m.addUnconfirmed(w, now, price)
		}
		ofAddress = strange && m.kind != policy.Unauthenticated && o.Rate.Limit == m.rules.Primary.Unauthenticated
	} else if p != nil {
		w.learnWithoutHeaders(now)
		if o.Succeeded && !headers && o.Limited == policy.NotLimited {
			w.silentSuccesses++
		}
		m.addUnconfirmed(w, now, price)
	}
	if o.Limited != policy.LimitPrimary || !ofAddress { // perhaps the budget of the address
		m.handleLimitError(c, p != nil, sent, w, o, now)
	}
	if c.CreatesContent && o.Succeeded && o.Limited == policy.NotLimited && sent > m.contentError {
		m.contentErrors = 0
	}
	if p != nil && o.Ended {
		m.remove(p)
	}
}

// settlePermit charges or returns the amounts that a permit reserves.
func (m *model) settlePermit(p *openPermit, price int64, o limits.Outcome, now int64) {
	if !o.Sent { // the grant changes nothing
		m.remove(p)
		p.window.slowStarts = slices.DeleteFunc(p.window.slowStarts, func(other *openPermit) bool { return other == p })
		return
	}
	p.price = price
	took := m.rules.Milliseconds(o.Elapsed)
	for i := range p.holds {
		if h := &p.holds[i]; h.cpu && (o.Answered || took > h.cost) {
			h.cost = took
		}
	}
	if n := int64(o.Resent); n > 0 && m.find(^p.id) == nil {
		copies := &openPermit{id: ^p.id, ends: now + linger, window: p.window, price: n * price, abandoned: true}
		for _, h := range p.holds {
			if !h.cpu {
				copies.holds = append(copies.holds, holding{h.log, n * h.cost, false})
			}
		}
		m.open = append(m.open, copies)
	}
	if !o.Answered {
		another := slices.ContainsFunc(m.open, func(other *openPermit) bool { return other.hangs })
		if m.probe == p.id && !another { // at most one hanging probe is replaced at a time
			p.hangs = true
			m.clearProbe(p.id)
		}
		m.abandon(p, now)
		return
	}
	m.charge(p, now)
}

// handleLimitError starts or ends a cool-down.
func (m *model) handleLimitError(c limits.Claim, known bool, sent int64, w *fixedWindow, o limits.Outcome, now int64) {
	switch {
	case o.Limited == policy.LimitPrimary:
		w.exhaust(o.RetryAfter, now)
	case o.Limited == policy.LimitContent:
		m.pauseContent(o.RetryAfter, sent > m.contentError || sent == 0 && now >= m.contentUntil, now)
	case o.Limited == policy.LimitSecondary && (known || now >= m.blocked):
		another := sent > m.lastError || sent == 0 && now >= m.blocked
		if another && w.usedUpUntil(now) == 0 {
			m.learnShare(c, now)
		}
		m.startCooldown(another, w, o.RetryAfter, now)
	case o.Limited == policy.NotLimited && !o.Failed && m.closedSince != 0:
		m.reopen() // an earlier request succeeded
	case o.Limited == policy.NotLimited && !o.Failed && m.probing && m.probe == c.ID:
		m.probing, m.probe, m.slowStart, m.failedProbes = false, 0, now, 0
	case o.Limited == policy.NotLimited && !o.Failed && !m.probing && m.slowStart == 0:
		m.errors = 0
	}
}

// pauseContent stops content creation for retryAfter, or for a minute. Consecutive errors double it, up to an hour.
func (m *model) pauseContent(retryAfter time.Duration, another bool, now int64) {
	if another {
		m.contentErrors, m.contentError = m.contentErrors+1, now
	}
	wait, more := 60*sec, int64(0)
	if retryAfter > 0 {
		wait, more = retryAfter.Microseconds(), sec
	}
	for n := 1; n < m.contentErrors && wait < 3600*sec; n++ {
		wait = min(2*wait, 3600*sec)
	}
	m.contentUntil = max(m.contentUntil, now+wait+more)
}

// startCooldown starts a cool-down. The cool-down lasts for retryAfter, or until the reset of an exhausted window, or
// for a minute. Consecutive errors double retryAfter and the minute, up to an hour.
func (m *model) startCooldown(another bool, w *fixedWindow, retryAfter time.Duration, now int64) {
	if another && m.probing {
		m.failedProbes++
		if m.closedSince == 0 && m.rules.Probes > 0 && m.failedProbes >= m.rules.Probes {
			m.closedSince, m.errors = now, 0
		}
	}
	if another {
		ceiling := m.concurrent()
		if m.ceiling != 0 {
			ceiling = min(ceiling, m.ceiling)
		}
		m.ceiling, m.raised = max(1, ceiling/2), now
		m.errors++
		m.lastError = now
	}
	doubled := func(wait int64) int64 {
		longest := max(wait, 60*60*sec)
		for n := int64(1); n < m.errors && wait < longest; n++ {
			wait *= 2
		}
		return min(wait, longest)
	}
	until := now + doubled(60*sec)
	if retryAfter > 0 {
		until = now + doubled(retryAfter.Microseconds()) + sec
	} else if back := w.usedUpUntil(now); back != 0 {
		until = back
	}
	m.blocked = max(m.blocked, until)
	m.probing, m.probe, m.slowStart = true, 0, 0
}

// opened opens the account for an operator. It returns false if the account waits for nothing.
func (m *model) opened(now int64) bool {
	m.advance(now)
	exhausted := false
	for _, w := range m.windows {
		w.expire(now)
		if slices.ContainsFunc(w.reports, func(t windowReport) bool { return t.count() >= m.rules.Usable(t.limit) }) {
			w.reports, w.strange, w.answered, w.withoutHeaders, w.slowStarts = nil, nil, false, 0, nil
			w.opened, w.limit, exhausted = now, int64(m.rules.For(m.kind, w.resource).Max), true
		}
	}
	if m.reopen() {
		return true
	}
	waits := now < m.blocked || now < m.contentUntil || exhausted
	m.blocked, m.contentUntil = min(m.blocked, now), min(m.contentUntil, now)
	return waits
}

// reopen lets a closed account send a probe after its cool-down. It returns false if the account is not closed.
func (m *model) reopen() bool {
	if m.closedSince == 0 {
		return false
	}
	m.closedSince, m.failedProbes = 0, 0
	return true
}

// release frees the concurrency slot of a settled permit at the end of the response.
func (m *model) release(id uint64, aborted bool, now int64) {
	m.advance(now)
	switch p := m.find(id); {
	case p == nil || !p.charged || p.abandoned:
	case aborted:
		m.abandon(p, now)
	default:
		m.remove(p)
	}
}

// renew extends a permit. If the permit has expired, renew reserves again.
func (m *model) renew(c limits.Claim, elapsed time.Duration, now int64) {
	m.advance(now)
	p := m.find(c.ID)
	if p == nil {
		p = &openPermit{id: c.ID, window: m.window(c.Resource), price: priceOf(c)}
		for _, s := range m.rules.Spends(nil, &c) {
			p.holds = append(p.holds, holding{m.log(s), s.Cost, s.Budget == limits.CPU})
		}
		m.open = append(m.open, p)
	}
	if p.abandoned {
		return
	}
	p.ends = now + permitLife
	for i := range p.holds {
		if h := &p.holds[i]; h.cpu {
			h.cost = max(h.cost, m.rules.Milliseconds(elapsed))
		}
	}
}
