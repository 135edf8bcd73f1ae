package limits

import (
	"cmp"
	"time"
)

const (
	// cooldownDefault is the cool-down after a secondary limit error without Retry-After. It doubles with each further
	// error, cooldownDoublings times.
	cooldownDefault   = int64(time.Minute / time.Microsecond)
	cooldownDoublings = 6
	// slowStartStep is how long the slow start keeps its number of slots before it doubles.
	slowStartStep = 5 * second
	// raiseAfter is how long a lowered ceiling must be reached before it rises by one.
	raiseAfter = 10 * second
	// cooldownMemory is how long an account without requests keeps its ceiling.
	cooldownMemory = 3600 * second
)

// cooldown is the state after secondary limit errors: no request is granted, then one probe, then a slow start up to a
// halved ceiling.
type cooldown struct {
	Until     int64 // no request is granted before
	LastError int64
	Errors    int64 // in a row
	// Probing means that one request, the probe, must succeed first.
	Probing   bool
	SlowStart int64 // since when, or zero
	Ceiling   int64 // of concurrency slots, or zero for the documented limit
	Raised    int64 // when the ceiling was set or raised

	probe uint64 // ID of the probe's permit, or zero
}

// blocks reports whether a claim is refused. Until is zero if the probe decides.
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

// granted records a granted permit; inUse counts the slots in use with it.
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

// inconclusive records that a permit ended without a result. The probe is repeated.
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

// limited starts a cool-down after a secondary limit error: for retryAfter, else until the exhausted window reopens,
// else for a minute that doubles. Errors of concurrent requests are one error, so only the first is separate.
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

// idle reports whether the last error is old enough to be forgotten.
func (c *cooldown) idle(now int64) bool {
	return c.LastError == 0 || now-max(c.Until, c.LastError) > cooldownMemory
}
