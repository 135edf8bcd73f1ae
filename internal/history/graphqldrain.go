package history

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/record"
)

// GraphQLDrain reports that the GraphQL budget of an account is almost empty, although its REST budget (core) is almost unused.
type GraphQLDrain struct {
	// Core is the number of requests that REST has left, or zero if no REST request has been sent.
	Core int `json:"core_remaining"`
	// Queries are the queries that spent most in the last hour, through this replica.
	Queries []SpentQuery `json:"queries"`
}

// SpentQuery is the cost of a query: of all calls with the name of its GraphQL operation or, without a name, its hash.
type SpentQuery struct {
	Name  string `json:"query"`
	Spent uint32 `json:"spent"`
}

const (
	// GraphQL is almost empty below the first part of its limit, and REST almost unused above the second.
	emptyBelow, idleAbove = 0.1, 0.5
	drainingQueries       = 3
)

// observeQuery counts the cost of a GraphQL query. mu must be held.
func (h *History) observeQuery(r *record.Record, now time.Time) {
	if r.Resource == policy.GraphQL && r.Spent > 0 {
		name := cmp.Or(r.Query, r.QueryHash, "unreadable")
		h.queries.at(spenderKey{account: truncated(r.Account), operation: name}, now).add(count{spent: uint32(r.Spent)})
	}
}

// drain returns what drains the GraphQL budget of an account while REST is almost unused, or nil.
func (h *History) drain(a limits.Account, now time.Time) *GraphQLDrain {
	part := func(resource string) (limits.Budget, float64) {
		i := slices.IndexFunc(a.Budgets, func(b limits.Budget) bool { return b.Resource == resource })
		if i < 0 || a.Budgets[i].Limit <= 0 {
			return limits.Budget{}, 1
		}
		return a.Budgets[i], float64(a.Budgets[i].Remaining) / float64(a.Budgets[i].Limit)
	}
	if _, left := part(policy.GraphQL); left >= emptyBelow {
		return nil
	}
	core, left := part(policy.Core)
	if left <= idleAbove {
		return nil
	}
	d := &GraphQLDrain{Core: core.Remaining, Queries: []SpentQuery{}}
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, sum := range h.queries.sums(spenderKey{}, interval(now, periodLength)) {
		if key.account == a.Name && sum.last.spent > 0 {
			d.Queries = append(d.Queries, SpentQuery{key.operation, sum.last.spent})
		}
	}
	slices.SortFunc(d.Queries, func(x, y SpentQuery) int { return cmp.Or(cmp.Compare(y.Spent, x.Spent), cmp.Compare(x.Name, y.Name)) })
	d.Queries = d.Queries[:min(len(d.Queries), drainingQueries)]
	return d
}
