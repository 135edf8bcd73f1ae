package proxy

import (
	"strconv"
	"sync/atomic"
)

// numbers are texts that are a number behind a prefix, made once and given to every answer that
// says the same. It is safe for concurrent use.
type numbers struct {
	prefix string
	made   [4096]atomic.Pointer[number]
}

type number struct {
	n    int
	text string
}

// of returns the text of a number. Two numbers that have one place take it from each
// other.
func (t *numbers) of(n int) string {
	place := &t.made[uint(n)%uint(len(t.made))]
	m := place.Load()
	if m == nil || m.n != n {
		m = &number{n, t.prefix + strconv.Itoa(n)}
		place.Store(m)
	}
	return m.text
}
