package proxy

import (
	"strconv"
	"sync/atomic"
)

// numbers are the values of a field that is a number behind a text: one line each, made
// once and given to every answer that says the same, so nobody may write to them. Without
// them a hit made seven such lines anew, a quarter of what it allocates. It is safe for
// concurrent use.
type numbers struct {
	prefix string
	made   [4096]atomic.Pointer[number]
}

type number struct {
	n    int
	line [1]string
}

// of returns the line of a number. Two numbers that have one place take it from each
// other.
func (t *numbers) of(n int) []string {
	place := &t.made[uint(n)%uint(len(t.made))]
	m := place.Load()
	if m == nil || m.n != n {
		m = &number{n, [1]string{t.prefix + strconv.Itoa(n)}}
		place.Store(m)
	}
	return m.line[:1:1]
}

// written are the numbers that answers are written with: alone, and in the Cache-Status
// of a hit.
type written struct{ plain, hits numbers }

func newWritten() *written { return &written{hits: numbers{prefix: "weir; hit; ttl="}} }
