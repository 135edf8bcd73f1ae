package limits

import (
	"cmp"
	"time"
)

const (
	// cooldownDefault is the cool-down after a secondary limit error without Retry-After. Each consecutive error
	// doubles the cool-down, at most cooldownDoublings times.
	cooldownDefault   = int64(time.Minute / time.Microsecond)
	cooldownDoublings = 6
	// slowStartStep is the time after which a slow start doubles the number of concurrency slots.
	slowStartStep = 5 * second
	// raiseAfter is the minimum time between a change of the ceiling and its next rise. A grant that occupies the last
	// slot below the ceiling then raises the ceiling by one.
	raiseAfter = 10 * second
	// cooldownMemory is the time for which an account without requests keeps its ceiling.
	cooldownMemory = 3600 * second
)

// cooldown is the state after secondary limit errors. The account grants nothing, then one probe. After the probe, a
// slow start raises the number of concurrency slots up to a ceiling, which is half of the earlier number. The slow
// start of a primary window (window.go) is independent of this state.
type cooldown struct {
	Until     int64 // end of the cool-down
	LastError int64
	Errors    int64 // consecutive limit errors
	// Probing is set from a secondary limit error until a probe succeeds, even before a probe exists. The first permit
	// after the cool-down is the probe.
	Probing   bool
	SlowStart int64 // start time of the slow start, or zero
	Ceiling   int64 // most concurrency slots, or zero for the documented limit
	Raised    int64 // time of the last change of the ceiling

	probe uint64 // ID of the probe's permit, or zero
}

// blocks reports whether the cool-down refuses a claim. Until is zero if the result of the probe decides.
func (c *cooldown) blocks(now int64) (blocked bool, until int64) {
	if now < c.Until {
		return true, c.Until
	}
	return c.Probing && c.probe != 0, 0
}

// slots returns the number of concurrency slots, and ends a completed slow start.
func (c *cooldown) slots(now, documented int64) int64 {
	slots := min(documented, cmp.Or(c.Ceiling, documented))
	if c.SlowStart == 0 {
		return slots
	}
	slow := int64(1) << min(30, (now-c.SlowStart)/slowStartStep)
	if slow >= slots {
		c.SlowStart = 0
	}
	return min(slow, slots)
}

// granted records a granted permit. inUse is the number of slots in use, including the slot of this permit.
func (c *cooldown) granted(id uint64, now, inUse, documented int64) {
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
	case c.Probing && c.probe == id:
		c.Probing, c.probe, c.SlowStart = false, 0, now
	case !c.Probing && c.SlowStart == 0:
		c.Errors = 0
	}
}

// limited starts a cool-down after a secondary limit error. The cool-down lasts for retryAfter, or else until reopens,
// the time at which the exhausted window reopens. Without both, the cool-down lasts one minute, doubled by each
// consecutive error.
//
// Concurrent requests may get several errors for one cause. Only the first of these errors is separate, and lowers the
// ceiling.
func (c *cooldown) limited(retryAfter time.Duration, separate bool, reopens, now, documented int64) {
	if separate {
		c.Ceiling, c.Raised = max(1, min(documented, cmp.Or(c.Ceiling, documented))/2), now
		c.Errors++
		c.LastError = now
	}
	until := now + cooldownDefault<<max(0, min(c.Errors-1, cooldownDoublings))
	switch {
	case retryAfter > 0:
		until = now + retryAfter.Microseconds() + margin
	case reopens != 0:
		until = reopens
	}
	c.Until = max(c.Until, until)
	c.Probing, c.probe, c.SlowStart = true, 0, 0
}

// idle reports whether the last error is so old that the account does not need the cool-down any more.
func (c *cooldown) idle(now int64) bool {
	return c.LastError == 0 || now-max(c.Until, c.LastError) > cooldownMemory
}
