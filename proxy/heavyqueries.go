package proxy

import (
	"fmt"
	"net/http"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/refusal"
)

// refusedQuery is the value of Record.QueryFailure for a query that Weir refuses.
const refusedQuery = "refused"

// refuseHeavy returns the refusal of a query that has failed too often, or nil.
func (g *Gateway) refuseHeavy(a *attempt) error {
	if !a.isQuery() || a.graphQL.Question == "" {
		return nil
	}
	failures, wait := g.heavyQueries.Pause(g.Ledger.Canonical(a.caller.Account), cache.NewKey(a.graphQL.Question), time.Now())
	if wait <= 0 {
		return nil
	}
	a.record.QueryFailure = refusedQuery
	message := fmt.Sprintf("This gateway does not send this query: it timed out or exceeded the resource limits %d times. Ask for fewer nodes or fields, or retry in %ds.",
		failures, int((wait+time.Second-1)/time.Second))
	return &refusal.Error{
		Status: http.StatusOK, Detail: "query", Message: message, RetryAfter: wait,
		GraphQL: &policy.GraphQLError{Type: "RESOURCE_LIMITS_EXCEEDED", Message: message},
	}
}

// observeQuery records the response to a question, and returns its failure if it is a query. The upstream worked for elapsed on
// the response.
func (g *Gateway) observeQuery(q *question, account string, answer policy.UpstreamAnswer, elapsed time.Duration) string {
	if !q.isQuery() {
		return ""
	}
	name, outage := answer.QueryFailure(elapsed)
	if q.graphQL.Question != "" && (name != "" || answer.Status == http.StatusOK) {
		g.heavyQueries.Observe(account, cache.NewKey(q.graphQL.Question), name, outage, time.Now())
	}
	return name
}
