package limits

import (
	"slices"
	"sync"
	"time"
)

const (
	// longestWork is the longest time that the upstream works on one request before it ends the request. Any further time
	// until the response is idle, such as that of a long poll.
	longestWork = 10 * time.Second
	// unknownTime is the estimate for an operation without responses.
	unknownTime = longestWork
	// leastTime is the lowest estimate.
	leastTime = 50 * time.Millisecond
	// recentTimes is the number of responses that an estimate considers.
	recentTimes = 32
	// maxEstimates bounds the number of operations with an estimate. Further operations share otherOperations.
	maxEstimates    = 4096
	otherOperations = "_OTHER"
)

// estimates predict the CPU time of requests from recent response times. A prediction is usually too high. The ledger
// returns the excess when the response arrives.
type estimates struct {
	mu  sync.Mutex
	ops map[string]*estimate
}

type estimate struct {
	recent [recentTimes]time.Duration // a ring buffer
	n      int                        // responses so far
}

func (e *estimates) of(operation string) *estimate {
	if o := e.ops[operation]; o != nil {
		return o
	}
	if len(e.ops) >= maxEstimates && operation != otherOperations {
		return e.of(otherOperations)
	}
	o := &estimate{}
	e.ops[operation] = o
	return o
}

// predict returns the longest recent response time of an operation. After few responses, the prediction is up to five
// times that response time, but at most longestWork.
func (e *estimates) predict(operation string) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	o := e.of(operation)
	n := min(o.n, recentTimes)
	if n == 0 {
		return unknownTime
	}
	longest := slices.Max(o.recent[:n])
	longest += longest * 4 / time.Duration(n)
	return min(max(longest, leastTime), longestWork)
}

func (e *estimates) observe(operation string, elapsed time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	o := e.of(operation)
	o.recent[o.n%recentTimes] = elapsed
	o.n++
}
