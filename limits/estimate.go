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
	ops map[string][]time.Duration // recent response times by operation
}

// known returns the operation under which response times are kept.
func (e *estimates) known(operation string) string {
	if e.ops[operation] == nil && len(e.ops) >= maxEstimates {
		return otherOperations
	}
	return operation
}

// predict returns the longest recent response time of an operation. After few responses, the prediction is up to five
// times that response time, but at most longestWork.
func (e *estimates) predict(operation string) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	recent := e.ops[e.known(operation)]
	if len(recent) == 0 {
		return unknownTime
	}
	longest := slices.Max(recent)
	longest += longest * 4 / time.Duration(len(recent))
	return min(max(longest, leastTime), longestWork)
}

func (e *estimates) observe(operation string, elapsed time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	operation = e.known(operation)
	e.ops[operation] = appendRecent(e.ops[operation], elapsed, recentTimes)
}

// appendRecent appends a value. Of more than most values, it removes the oldest.
func appendRecent[T any](list []T, value T, most int) []T {
	if len(list) == most {
		list = slices.Delete(list, 0, 1)
	}
	return append(list, value)
}
