package proxy

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/policy"
)

const (
	// maxHeavyQueries bounds the queries of heavyQueries. The least recently used are removed first.
	maxHeavyQueries = 1024
	// mostFailures is the number of failures in a row after which a query is refused for a pause. Each further failure doubles
	// the pause, until longestPause: the upstream may have a fault that ends soon. Failures count together if each is within
	// heavyMemory of the one before.
	mostFailures = 3
	heavyPause   = time.Minute
	longestPause = 16 * time.Minute
	heavyMemory  = time.Hour
)

// refusedQuery is the value of Record.QueryFailure for a query that Weir refuses.
const refusedQuery = "refused"

// heavyQueries contains the GraphQL queries that need more resources than the upstream gives to one query. Each try costs
// points, also in the next hour, and occupies the upstream for ten seconds. The zero value is empty and ready for use.
type heavyQueries struct {
	some    atomic.Bool // false means that no query ever failed, so that most responses need no lock
	mu      sync.Mutex
	queries *simplelru.LRU[heavyQuery, queryFailures]
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

// observe records the response to a query. failure is the name of its failure, or empty. The failures
// of an outage do not count.
func (h *heavyQueries) observe(account string, call *policy.GraphQLCall, failure string, outage bool, now time.Time) {
	if failure == "" && !h.some.Load() {
		return
	}
	key := heavyQuery{account, cache.NewKey(call.Question)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.queries == nil {
		h.queries, _ = simplelru.NewLRU[heavyQuery, queryFailures](maxHeavyQueries, nil) // the size is valid
	}
	switch {
	case !outage:
		h.silent, h.several = cache.Key{}, false
	case h.silent == cache.Key{}:
		h.silent = key.question
	case h.silent != key.question:
		h.several = true
	}
	f, _ := h.queries.Get(key)
	switch {
	case failure == "":
		h.queries.Remove(key)
		return
	case h.several:
		return
	case now.Sub(f.last) > heavyMemory:
		f.failures = 0
	}
	h.queries.Add(key, queryFailures{f.failures + 1, now})
	h.some.Store(true)
}

// refusal returns the refusal of a query that has failed too often, or nil. After the pause, the next call is sent, and its
// failure begins another pause.
func (h *heavyQueries) refusal(account string, call *policy.GraphQLCall, now time.Time) error {
	if !h.some.Load() {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	f, known := h.queries.Get(heavyQuery{account, cache.NewKey(call.Question)})
	pause := min(longestPause, heavyPause<<max(0, min(f.failures, 10)-mostFailures))
	wait := f.last.Add(pause).Sub(now)
	if !known || f.failures < mostFailures || wait <= 0 {
		return nil
	}
	message := fmt.Sprintf("This gateway does not send this query: it timed out or exceeded the resource limits %d times. Ask for fewer nodes or fields, or retry in %ds.",
		f.failures, int((wait+time.Second-1)/time.Second))
	return &failure{
		status: http.StatusOK, detail: "query", message: message, retryAfter: wait,
		graphQL: &policy.GraphQLError{Type: "RESOURCE_LIMITS_EXCEEDED", Message: message},
	}
}

// refuseHeavy returns the refusal of a query that has failed too often, or nil.
func (g *Gateway) refuseHeavy(a *attempt) error {
	if !a.isQuery() || a.graphQL.Question == "" {
		return nil
	}
	err := g.heavyQueries.refusal(g.Ledger.Canonical(a.identity.Caller.Account), a.graphQL, time.Now())
	if err != nil {
		a.record.QueryFailure = refusedQuery
	}
	return err
}

// observeQuery records the response to a question, and returns its failure if it is a query. The upstream worked for elapsed on
// the response.
func (g *Gateway) observeQuery(q *question, account string, answer policy.UpstreamAnswer, elapsed time.Duration) string {
	if !q.isQuery() {
		return ""
	}
	name, outage := answer.QueryFailure(elapsed)
	if q.graphQL.Question != "" && (name != "" || answer.Status == http.StatusOK) {
		g.heavyQueries.observe(account, q.graphQL, name, outage, time.Now())
	}
	return name
}
