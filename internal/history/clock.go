package history

import "time"

// The hour is divided twice: finely for what is drawn over time, coarsely for what is
// told by name.
const (
	step   = 10 * time.Second // of a series
	steps  = 360
	period = time.Minute // of what is counted by name
	hour   = 60          // periods
)

// ring holds the last values of something, one for each division of time. Its zero value
// is empty.
type ring[T any] struct {
	values []T // allocated with the first
	last   int64
}

// at returns the value of a division, which is not before the last one asked for; those
// between are zero.
func (r *ring[T]) at(division int64, size int) *T {
	if r.values == nil {
		r.values, r.last = make([]T, size), division
	}
	var zero T
	if division-r.last >= int64(size) {
		clear(r.values)
		r.last = division
	}
	for r.last < division {
		r.last++
		r.values[r.last%int64(size)] = zero
	}
	return &r.values[r.last%int64(size)]
}

// each calls visit with the values up to a division, the oldest first.
func (r *ring[T]) each(division int64, size int, visit func(T)) {
	r.at(division, size)
	for d := r.last - int64(size) + 1; d <= r.last; d++ {
		visit(r.values[d%int64(size)])
	}
}

// division is the number of the part of time that a moment lies in.
func division(t time.Time, length time.Duration) int64 { return t.UnixNano() / int64(length) }
