package limits

import "time"

// Clock is the time of a ledger: microseconds that no step of the wall clock changes. They begin with the wall clock's time
// since 1970, and follow the monotonic clock. A ledger time is an int64 and a time of the wall clock a [time.Time], so both
// cannot be compared by accident. Only this file converts one to the other. Decisions of a ledger contain durations.
type Clock struct {
	start   time.Time
	elapsed func() time.Duration // monotonic, since start
	wall    func() time.Time
}

// NewClock returns a clock that starts now.
func NewClock() *Clock { return clockOf(time.Now) }

// clockOf returns a clock that reads the time by a function.
func clockOf(now func() time.Time) *Clock {
	start := now()
	return &Clock{start, func() time.Duration { return now().Sub(start) }, now}
}

// Now returns the time.
func (c *Clock) Now() int64 { return c.start.Add(c.elapsed()).UnixMicro() }

// Ahead returns the time by which the wall clock is ahead of the clock, in whole seconds, so that small adjustments of the wall
// clock change no time that people see.
func (c *Clock) Ahead() time.Duration {
	return c.wall().Round(0).Sub(c.start.Round(0).Add(c.elapsed())).Round(time.Second)
}

// Wall returns the time that the wall clock shows at a time of the clock, as the wall clock is set now.
func (c *Clock) Wall(at int64) time.Time { return time.UnixMicro(at).Add(c.Ahead()) }

// waitUntil returns the time until a later time of the clock. It is not zero, because a wait of zero has another meaning.
func waitUntil(until, now int64) time.Duration {
	return time.Duration(max(1, until-now)) * time.Microsecond
}
