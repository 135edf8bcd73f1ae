package limits

import (
	"cmp"
	"maps"
	"reflect"
	"time"
)

const (
	// cooldownDefault is the cool-down after a secondary limit error without Retry-After. Each consecutive error
	// doubles the cool-down, up to cooldownLongest. Retry-After is doubled in the same way, but never shortened.
	cooldownDefault = 60 * second
	cooldownLongest = longestReset
	// slowStartStep is the time after which a slow start doubles the number of concurrency slots.
	slowStartStep = 5 * second
	// raiseAfter is the minimum time between a change of the ceiling and its next rise. A grant that occupies the last
	// slot below the ceiling then raises the ceiling by one.
	raiseAfter = 10 * second
	// cooldownMemory is the time for which an account without requests keeps its ceiling.
	cooldownMemory = 3600 * second
	// closedRetry is the time after which the client of a closed account may repeat its request. The ledger cannot
	// know when the account opens.
	closedRetry = 3600 * second
)

// cooldown is the state after secondary limit errors. The account grants nothing, then one probe. After the probe, a
// slow start raises the number of concurrency slots up to a ceiling, which is half of the earlier number. The slow
// start of a primary window (window.go) is independent of this state.
//
// After [Rules.Probes] failed probes in a row the account is closed. A closed account grants nothing, not even a probe,
// until an operator opens it or a request that was sent earlier succeeds.
//
// All changes are methods that depend only on their arguments, so that a ledger can apply them again to a newer state.
type cooldown struct {
	pause
	// Probing is set from a secondary limit error until a probe succeeds, even before a probe exists. The first permit
	// after the cool-down is the probe.
	Probing   bool
	SlowStart int64 // start time of the slow start, or zero
	Ceiling   int64 // most concurrency slots, or zero for the documented limit
	Raised    int64 // time of the last change of the ceiling
	// FailedProbes counts consecutive probes that got a limit error.
	FailedProbes int64
	Closed       int64 // time at which the account was closed, or zero
	// Content is the pause of requests that create content. Only these wait for its end.
	Content pause `json:",omitzero"`
	// Allowances contains the logs of which other programs seem to use a part, by logKey. It has at most maxAllowances elements.
	Allowances map[string]allowance `json:"Shares"` // the name in earlier versions

	probe uint64 // ID of the probe's permit, or zero
}

// blocks returns the reason to refuse a claim, or an empty reason. until is zero if the result of the probe decides.
func (c *cooldown) blocks(now int64) (reason Reason, until int64) {
	switch {
	case c.Closed != 0:
		return Closed, max(c.Until, now+closedRetry)
	case now < c.Until:
		return Cooldown, c.Until
	case c.Probing && c.probe != 0:
		return Cooldown, 0
	}
	return "", 0
}

// slots returns the number of concurrency slots, and ends a completed slow start.
func (c *cooldown) slots(now, documented int64) int64 {
	slots := min(documented, cmp.Or(c.Ceiling, documented))
	if c.SlowStart == 0 {
		return slots
	}
	slow := int64(1) << min(30, max(0, now-c.SlowStart)/slowStartStep)
	if slow >= slots {
		c.SlowStart = 0
	}
	return min(slow, slots)
}

// calm reports whether neither a grant nor a success changes the cool-down.
func (c *cooldown) calm() bool {
	return c.Closed == 0 && !c.Probing && c.Errors == 0 && c.Ceiling == 0 && len(c.Allowances) == 0
}

// granted records a granted permit. inUse is the number of slots in use, including the slot of this permit.
func (c *cooldown) granted(id uint64, now, inUse, documented int64) {
	c.recover(now)
	if c.Probing {
		c.probe = id
	}
	if c.Ceiling != 0 && inUse >= c.Ceiling && now-c.Raised >= raiseAfter {
		c.Raised = now
		if c.Ceiling++; c.Ceiling >= documented {
			c.Ceiling = 0
		}
	}
}

// inconclusive records that a permit ended without a result. If the permit was the probe, the next permit is the new
// probe.
func (c *cooldown) inconclusive(id uint64) {
	if c.probe == id {
		c.probe = 0
	}
}

// succeeded records a response that is not a limit error.
func (c *cooldown) succeeded(id uint64, now int64) {
	switch {
	case c.Closed != 0: // the request was sent before the account was closed
		c.open()
	case c.Probing && c.probe == id:
		c.Probing, c.probe, c.SlowStart, c.FailedProbes = false, 0, now, 0
	case !c.Probing && c.SlowStart == 0:
		c.Errors = 0
	}
}

// limited starts a cool-down after a secondary limit error. The cool-down lasts for retryAfter, or else until reopens,
// the time at which the exhausted window reopens. Without both, the cool-down lasts one minute. Each consecutive error
// doubles retryAfter and the minute.
//
// Concurrent requests may get several errors for one cause. Only the first of these errors is separate, and lowers the
// ceiling. If this error makes the number of failed probes reach probes, limited closes the account, and ends the
// doubling: the first probe after the opening only waits for the time that the upstream requires.
func (c *cooldown) limited(retryAfter time.Duration, separate bool, reopens, now, documented, probes int64) {
	if separate && c.Probing {
		c.FailedProbes++
		if probes > 0 && c.FailedProbes >= probes && c.Closed == 0 {
			c.Closed, c.Errors = now, 0
		}
	}
	if separate {
		c.Ceiling, c.Raised = max(1, min(documented, cmp.Or(c.Ceiling, documented))/2), now
	}
	c.pause.limited(retryAfter, separate, reopens, now)
	c.Probing, c.probe, c.SlowStart = true, 0, 0
}

// opening returns the change with which an operator opens the account: it ends the state closed, or else the cool-down and the
// pause of content creation. The next permit is a probe. opening returns nil if the account has none of these states.
func (c *cooldown) opening(now int64) func(*cooldown) {
	switch {
	case c.Closed != 0:
		return (*cooldown).open
	case now < max(c.Until, c.Content.Until):
		return func(c *cooldown) { c.Until, c.Content.Until = min(c.Until, now), min(c.Content.Until, now) }
	}
	return nil
}

// open ends the state closed. The next permit is a probe, unless the cool-down has not ended yet.
func (c *cooldown) open() { c.Closed, c.FailedProbes = 0, 0 }

// shift adds an offset to every time, for another clock. Zero stays zero, because it is no time.
func (c *cooldown) shift(by int64) {
	for _, t := range []*int64{&c.Until, &c.LastError, &c.SlowStart, &c.Raised, &c.Closed, &c.Content.Until, &c.Content.LastError} {
		if *t != 0 {
			*t += by
		}
	}
	for key, s := range c.Allowances {
		s.Error, s.Next = s.Error+by, s.Next+by
		c.Allowances[key] = s
	}
}

// bound moves times and numbers into their ranges. Another replica or process may have stored others, for example on a clock that
// has stepped.
func (c *cooldown) bound(now int64) {
	const slack = 120 * second // resets are later than LongestWait by margins
	for _, t := range []*int64{&c.LastError, &c.SlowStart, &c.Raised, &c.Closed, &c.Content.LastError} {
		*t = min(*t, now)
	}
	c.Until, c.Content.Until = min(c.Until, now+cooldownLongest+slack), min(c.Content.Until, now+cooldownLongest+slack)
	c.Ceiling = max(0, c.Ceiling)
	for key, s := range c.Allowances {
		c.Allowances[key] = allowance{min(max(s.Parts, leastAllowance), fullAllowance), min(s.Error, now), min(s.Next, now+allowanceHold)}
	}
}

// idle reports whether the last error is so old that the account does not need the cool-down any more. A closed account
// is never idle, because a new account would be open. The last allowance is full again at most 19 hours after an error.
func (c *cooldown) idle(now int64) bool {
	c.recover(now)
	return c.Closed == 0 && len(c.Allowances) == 0 && c.Content.idle(now) && c.pause.idle(now)
}

// clone returns a copy that shares no state.
func (c *cooldown) clone() cooldown {
	d := *c
	d.Allowances = maps.Clone(c.Allowances)
	return d
}

// equal reports whether two cool-downs have the same state for other replicas.
func (c *cooldown) equal(other *cooldown) bool {
	x, y := *c, *other
	x.probe, y.probe = 0, 0
	return reflect.DeepEqual(x, y)
}

// pause is a time without requests after limit errors.
type pause struct {
	Until     int64 // end of the pause
	LastError int64
	Errors    int64 // consecutive limit errors
}

// separate reports whether a limit error has another cause than the last one. Errors of requests that were in progress together have
// one cause. sent is the time of the grant, or zero if it is unknown.
func (p *pause) separate(sent, now int64) bool {
	return sent > p.LastError || sent == 0 && now >= p.Until
}

// limited starts or extends the pause after a limit error. reopens is the end of the pause if retryAfter is zero, unless reopens is zero.
func (p *pause) limited(retryAfter time.Duration, separate bool, reopens, now int64) {
	if separate {
		p.Errors++
		p.LastError = now
	}
	until := now + backoff(p.Errors, retryAfter)
	if retryAfter <= 0 && reopens != 0 {
		until = reopens
	}
	p.Until = max(p.Until, until)
}

// backoff returns the wait after consecutive errors: retryAfter with a margin, or else cooldownDefault. Each error after the first
// one doubles it.
func backoff(errors int64, retryAfter time.Duration) int64 {
	wait, more := cooldownDefault, int64(0)
	if retryAfter > 0 {
		wait, more = retryAfter.Microseconds(), margin
	}
	for i := int64(1); i < errors && wait < cooldownLongest; i++ {
		wait = min(2*wait, cooldownLongest)
	}
	return wait + more
}

// idle reports whether the pause has no further effect.
func (p *pause) idle(now int64) bool {
	return p.LastError == 0 || now-max(p.Until, p.LastError) > cooldownMemory
}

// merge adds the pause of another account. The stricter state of both remains.
func (p *pause) merge(other pause) {
	p.Until, p.LastError, p.Errors = max(p.Until, other.Until), max(p.LastError, other.LastError), max(p.Errors, other.Errors)
}
