package proxy

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

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
}

// heavyQuery is a query of an account, so that no other account can have it refused.
type heavyQuery struct{ account, hash string }

// queryFailures are the failures of a query in a row. nodes is the smallest number of nodes of a call that failed: calls for
// fewer nodes are not refused.
type queryFailures struct {
	failures, nodes int
	last            time.Time
}

// observe records the response to a query. failure is the name of its failure, or empty.
func (h *heavyQueries) observe(account string, call *policy.GraphQLCall, failure string, now time.Time) {
	if failure == "" && !h.some.Load() {
		return
	}
	key := heavyQuery{account, call.Hash}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.queries == nil {
		h.queries, _ = simplelru.NewLRU[heavyQuery, queryFailures](maxHeavyQueries, nil) // the size is valid
	}
	f, known := h.queries.Get(key)
	switch {
	case failure == "":
		if known && call.Nodes >= f.nodes {
			h.queries.Remove(key)
		}
		return
	case !known || now.Sub(f.last) > heavyMemory:
		f = queryFailures{nodes: call.Nodes}
	}
	h.queries.Add(key, queryFailures{f.failures + 1, min(f.nodes, call.Nodes), now})
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
	f, known := h.queries.Get(heavyQuery{account, call.Hash})
	pause := min(longestPause, heavyPause<<max(0, min(f.failures, 10)-mostFailures))
	wait := f.last.Add(pause).Sub(now)
	if !known || f.failures < mostFailures || wait <= 0 || call.Nodes < f.nodes {
		return nil
	}
	message := fmt.Sprintf("This gateway does not send this query: it timed out or exceeded the resource limits %d times. Ask for fewer nodes or fields, or retry in %d s.",
		f.failures, int((wait+time.Second-1)/time.Second))
	return &failure{
		status: http.StatusOK, detail: "query", message: message, retryAfter: wait,
		graphQL: &policy.GraphQLError{Type: "RESOURCE_LIMITS_EXCEEDED", Message: message},
	}
}

// refuseHeavy returns the refusal of a query that has failed too often, or nil.
func (g *Gateway) refuseHeavy(a *attempt) error {
	if !a.isQuery() {
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
	name := answer.QueryFailure(elapsed)
	if name != "" || answer.Status == http.StatusOK {
		g.heavyQueries.observe(account, q.graphQL, name, time.Now())
	}
	return name
}
