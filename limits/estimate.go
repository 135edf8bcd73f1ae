package limits

import (
	"sync"
	"time"
)

const (
	// unknownTime is taken for the CPU time of an operation that was never
	// called: the upstream gives up on a request after about as long.
	unknownTime = 10 * time.Second
	// leastTime is what any request is taken to need.
	leastTime = 50 * time.Millisecond
	// recentTimes is how many answers an estimate looks back on.
	recentTimes = 32
	// maxEstimates bounds how many operations are told apart.
	maxEstimates = 1024
)

// estimates foretell how much CPU time a request will take, by how long the
// last ones of its operation took. They err on the side of too much: what is
// not taken is given back when the answer comes.
type estimates struct {
	mu  sync.Mutex
	ops map[string]*estimate
}

type estimate struct {
	recent [recentTimes]time.Duration
	n      int // answers so far
}

func (e *estimates) of(operation string) *estimate {
	o := e.ops[operation]
	if o != nil {
		return o
	}
	if len(e.ops) >= maxEstimates && operation != otherOperations {
		return e.of(otherOperations)
	}
	o = &estimate{}
	e.ops[operation] = o
	return o
}

const otherOperations = "_OTHER"

// expect is the longest that the last answers took, and more the fewer they
// are.
func (e *estimates) expect(operation string) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	o := e.of(operation)
	seen := min(o.n, recentTimes)
	if seen == 0 {
		return unknownTime
	}
	var longest time.Duration
	for _, d := range o.recent[:seen] {
		longest = max(longest, d)
	}
	longest += longest * 4 / time.Duration(seen)
	return min(max(longest, leastTime), max(unknownTime, longest))
}

func (e *estimates) observe(operation string, took time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	o := e.of(operation)
	o.recent[o.n%recentTimes] = took
	o.n++
}
