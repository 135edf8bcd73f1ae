package limits

import "time"

// Stepped returns a clock whose wall clock shows another time than that of c.
func (c *Clock) Stepped(by func() time.Duration) *Clock {
	return &Clock{c.start, c.elapsed, func() time.Time { return c.wall().Add(by()) }}
}

// NewMemoryAt is newMemoryAt.
var NewMemoryAt = newMemoryAt
