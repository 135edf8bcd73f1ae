package learned

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirgate/weir/cache"
)

const (
	// maxHeavyQueries bounds the queries of HeavyQueries. The least recently used are removed first.
	maxHeavyQueries = 1024
	// mostFailures is the number of failures in a row after which a query is refused for a pause. Each further failure doubles
	// the pause, until longestPause: the upstream may have a fault that ends soon. Failures count together if each is within
	// heavyMemory of the one before.
	mostFailures = 3
	heavyPause   = time.Minute
	longestPause = 16 * time.Minute
	heavyMemory  = time.Hour
)

// HeavyQueries contains the GraphQL queries that need more resources than the upstream gives to one query. Each try costs
// points, also in the next hour, and occupies the upstream for ten seconds. The zero value is empty and ready for use.
type HeavyQueries struct {
	some    atomic.Bool // false means that no query ever failed, so that most responses need no lock
	mu      sync.Mutex
	queries bounded[heavyQuery, queryFailures]
	// silent is a question whose failure may be that of an outage, and zero after any other response to a query. several means
	// that different questions have failed like this since then.
	silent  cache.Key
	several bool
}

// heavyQuery is a query of an account with its variables, so that no other account can have it refused.
type heavyQuery struct {
	account  string
	question cache.Key // of GraphQLCall.Question
}

// queryFailures are the failures of a query in a row.
type queryFailures struct {
	failures int
	last     time.Time
}

// Observe records the response to a query. failure is the name of its failure, or empty. The failures
// of an outage do not count.
func (h *HeavyQueries) Observe(account string, question cache.Key, failure string, outage bool, now time.Time) {
	if failure == "" && !h.some.Load() {
		return
	}
	key := heavyQuery{account, question}
	h.mu.Lock()
	defer h.mu.Unlock()
	queries := h.queries.list(maxHeavyQueries)
	switch {
	case !outage:
		h.silent, h.several = cache.Key{}, false
	case h.silent == cache.Key{}:
		h.silent = key.question
	case h.silent != key.question:
		h.several = true
	}
	f, _ := queries.Get(key)
	switch {
	case failure == "":
		queries.Remove(key)
		return
	case h.several:
		return
	case now.Sub(f.last) > heavyMemory:
		f.failures = 0
	}
	queries.Add(key, queryFailures{f.failures + 1, now})
	h.some.Store(true)
}

// Pause returns how often a query has failed in a row, and for how long it must not be sent; zero if it may be sent. After the
// pause, the next call is sent, and its failure begins another pause.
func (h *HeavyQueries) Pause(account string, question cache.Key, now time.Time) (failures int, wait time.Duration) {
	if !h.some.Load() {
		return 0, 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	f, _ := h.queries.list(maxHeavyQueries).Get(heavyQuery{account, question})
	if f.failures < mostFailures {
		return f.failures, 0
	}
	pause := min(longestPause, heavyPause<<min(f.failures-mostFailures, 10))
	return f.failures, max(0, f.last.Add(pause).Sub(now))
}
