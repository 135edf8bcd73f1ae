package cache

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

const (
	// uncacheableFor is how long a key stays marked, maxUncacheable the number of marked keys.
	uncacheableFor = 2 * time.Minute
	maxUncacheable = 1 << 14
	// uncacheableRun is how many uncacheable responses in a row mark a whole operation.
	uncacheableRun = 16
)

// uncacheable remembers which responses could not be stored ("hit-for-miss"): by key, and by
// operation for keys that were never requested.
type uncacheable struct {
	mu         sync.Mutex
	keys       *simplelru.LRU[Key, time.Time] // until when a key is marked
	operations map[string]operationRun        // by operation ID
}

// operationRun counts the uncacheable responses of one operation since the last cacheable one.
type operationRun struct {
	length int
	probed int64 // Unix time of the last full look-up
}

// MarkUncacheable records that the response for a key could not be stored. operation must be one of
// a bounded number of names.
func (m *Memory) MarkUncacheable(operation string, key Key) {
	u := &m.uncacheable
	u.mu.Lock()
	defer u.mu.Unlock()
	run := u.operations[operation]
	run.length++
	u.operations[operation] = run
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

// Uncacheable reports whether the last response for a key could not be stored. Requests for such a
// key need not wait for each other.
func (m *Memory) Uncacheable(key Key) bool {
	u := &m.uncacheable
	u.mu.Lock()
	defer u.mu.Unlock()
	until, ok := u.keys.Get(key)
	return ok && time.Now().Before(until)
}

// SkipShared reports whether a look-up of the key in the shared tier is most likely in vain: the
// key is marked, or the latest responses of its operation could not be stored. Of a marked
// operation, one key per second is looked up to find out whether another replica stores it now.
func (m *Memory) SkipShared(operation string, key Key) bool {
	if m.Uncacheable(key) {
		return true
	}
	u, now := &m.uncacheable, time.Now().Unix()
	u.mu.Lock()
	defer u.mu.Unlock()
	run := u.operations[operation]
	if run.length < uncacheableRun {
		return false
	}
	u.operations[operation] = operationRun{run.length, now}
	return run.probed == now
}
