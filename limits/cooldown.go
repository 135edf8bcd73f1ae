package limits

import "time"

const (
	// cooldownDefault is how long a secondary limit error without retry-after
	// silences an account (Document B section 7, retry rule 4).
	cooldownDefault = int64(time.Minute / time.Microsecond)
	// cooldownDoublings bounds the doubling of that rule: after so many errors
	// in a row an account is tried once in about an hour, until that succeeds.
	cooldownDoublings = 6
	// rampStep is how long the number of requests in flight stays the same in
	// the slow start after a cool-down, before it doubles.
	rampStep = 5 * second
	// raiseAfter is how long a lowered ceiling must have been reached before it
	// rises by one.
	raiseAfter = 10 * second
	// remembered is how long an account without requests keeps its ceiling.
	remembered = 3600 * second
)

// cooldown is what secondary limit errors have left behind: a time before which
// nothing is sent, then one probe, then a slow start below a ceiling that was
// halved (design section 5.4).
type cooldown struct {
	until    int64 // nothing is sent before
	since    int64 // when the last error came
	episodes int64 // errors in a row
	probing  bool  // one probe must succeed first
	probe    uint64
	ramp     int64 // when the probe succeeded; zero once the slow start is over
	ceiling  int64 // of requests in flight; zero for the documented limit
	raised   int64 // when the ceiling was set or rose
}

// refuses reports whether the cool-down stands in the way; until is zero when
// the probe in flight decides.
func (c *cooldown) refuses(now int64) (refused bool, until int64) {
	if now < c.until {
		return true, c.until
	}
	return c.probing && c.probe != 0, 0
}

// cap is how many requests may be in flight.
func (c *cooldown) cap(now, concurrent int64) int64 {
	if c.ceiling != 0 {
		concurrent = min(concurrent, c.ceiling)
	}
	if c.ramp == 0 {
		return concurrent
	}
	step := (now - c.ramp) / rampStep
	if step >= 30 || int64(1)<<step >= concurrent {
		c.ramp = 0
		return concurrent
	}
	return int64(1) << step
}

// granted notes that a request is let go with now so many in flight.
func (c *cooldown) granted(id uint64, now, inFlight, concurrent int64) {
	if c.probing {
		c.probe = id
	}
	if c.ceiling != 0 && inFlight >= c.ceiling && now-c.raised >= raiseAfter {
		c.raised = now
		if c.ceiling++; c.ceiling >= concurrent {
			c.ceiling = 0
		}
	}
}

// gone notes that a permit ended without telling whether all is well.
func (c *cooldown) gone(id uint64) {
	if c.probe == id {
		c.probe = 0
	}
}

// well notes an answer that was no limit error.
func (c *cooldown) well(id uint64, now int64) {
	switch {
	case c.probing && c.probe == id:
		c.probing, c.probe, c.ramp = false, 0, now
	case !c.probing && c.ramp == 0:
		c.episodes = 0
	}
}

// strike begins a cool-down after a secondary limit error (Document B section
// 7, retry rules 2 to 4): for retryAfter if that was given, else until back if
// the primary window is used up, else for a minute, twice as long each time it
// repeats. An error is fresh if its request was sent after the last error came,
// or nobody knows when and no cool-down goes on; else it is the same misfortune,
// not another one.
func (c *cooldown) strike(retryAfter time.Duration, fresh bool, back, now, concurrent int64) {
	if fresh {
		ceiling := concurrent
		if c.ceiling != 0 {
			ceiling = min(ceiling, c.ceiling)
		}
		c.ceiling, c.raised = max(1, ceiling/2), now
		c.episodes++
		c.since = now
	}
	until := now + cooldownDefault<<max(0, min(c.episodes-1, cooldownDoublings))
	switch {
	case retryAfter > 0:
		until = now + retryAfter.Microseconds() + margin
	case back != 0:
		until = back
	}
	c.until = max(c.until, until)
	c.probing, c.probe, c.ramp = true, 0, 0
}

// idle reports whether the last error may be forgotten.
func (c *cooldown) idle(now int64) bool {
	return c.since == 0 || now-max(c.until, c.since) > remembered
}
