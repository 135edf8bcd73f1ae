package cache

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

const (
	// uncacheableFor is the time for which a key stays marked.
	uncacheableFor = 2 * time.Minute
	// maxUncacheable bounds the marked keys.
	maxUncacheable = 1 << 14
	// uncacheableRun is the number of consecutive uncacheable responses that mark a whole operation.
	uncacheableRun = 16
)

// uncacheable records which responses could not be stored ("hit-for-miss"). The record by operation
// applies to keys that were never requested.
type uncacheable struct {
	mu         sync.Mutex
	keys       *simplelru.LRU[Key, time.Time] // values are the ends of the marks
	operations map[string]operationRun        // by operation ID
}

// operationRun counts the uncacheable responses of one operation since the last cacheable response.
type operationRun struct {
	length int   // number of uncacheable responses
	probed int64 // Unix time of the last full look-up
}

// MarkUncacheable records that the response for a key could not be stored. The number of operations must be bounded. An
// empty operation stands for unrelated routes, whose responses do not predict each other: only the key is marked.
func (m *Memory) MarkUncacheable(operation string, key Key) {
	u := &m.uncacheable
	u.mu.Lock()
	defer u.mu.Unlock()
	if operation != "" {
		run := u.operations[operation]
		run.length++
		u.operations[operation] = run
	}
	u.keys.Add(key, time.Now().Add(uncacheableFor))
}

// MarkCacheable records that the response for a key was stored or found.
func (m *Memory) MarkCacheable(operation string, key Key) {
	u := &m.uncacheable
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.operations, operation)
	u.keys.Remove(key)
}

// Uncacheable reports what earlier responses predict. If last is set, the last response for the key could not be stored, and
// requests for the key need not wait for each other. If skip is set, a look-up of the key in the shared tier would probably
// miss: the key or its operation is marked. For a marked operation, one look-up per second checks whether another replica
// stores the response now.
func (m *Memory) Uncacheable(operation string, key Key) (last, skip bool) {
	u, now := &m.uncacheable, time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	if until, ok := u.keys.Get(key); ok && now.Before(until) {
		return true, true
	}
	run := u.operations[operation]
	if run.length < uncacheableRun {
		return false, false
	}
	u.operations[operation] = operationRun{run.length, now.Unix()}
	return false, run.probed == now.Unix()
}
