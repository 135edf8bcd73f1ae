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

// written are the values that answers are written with: numbers alone, and in the
// Cache-Status of a hit, and those of the RateLimit fields.
type written struct {
	plain, hits    numbers
	policies, left budgetLines
}

func newWritten() *written {
	return &written{
		hits:     numbers{prefix: "weir; hit; ttl="},
		policies: budgetLines{first: ";q=", second: ";w="}, left: budgetLines{first: ";r=", second: ";t="},
	}
}

// budgetLines are like numbers for values that are the name of a budget with two
// parameters: one line for each, and what most answers of a second say is made once (3 %
// of a hit).
type budgetLines struct {
	first, second string
	made          [1024]atomic.Pointer[budgetLine]
}

type budgetLine struct {
	name string
	n, m int
	line [1]string
}

// of returns the line of a budget, with its parameters.
func (t *budgetLines) of(name string, n, m int) []string {
	place := &t.made[(uint(n)*31+uint(m)+uint(len(name)))%uint(len(t.made))]
	l := place.Load()
	if l == nil || l.n != n || l.m != m || l.name != name {
		l = &budgetLine{name, n, m, [1]string{strconv.Quote(name) + t.first + strconv.Itoa(n) + t.second + strconv.Itoa(m)}}
		place.Store(l)
	}
	return l.line[:1:1]
}
