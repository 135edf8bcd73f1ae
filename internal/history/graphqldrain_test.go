package history

import (
	"slices"
	"testing"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/proxy/record"
)

func TestAccountNamesTheQueriesThatDrainGraphQL(t *testing.T) {
	for name, c := range map[string]struct {
		graphQL, core int // remaining, of 5,000; core is negative without a budget
		drains        bool
	}{
		"REST is idle":        {499, 4900, true},
		"REST was never used": {0, -1, true},
		"REST is in use":      {0, 2500, false},
		"GraphQL has points":  {500, 5000, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *fixture) {
				for query, spent := range map[string]int{"PullRequestList": 700, "IssueList": 30, "B": 20, "A": 10} {
					w.Observe(&record.Record{Request: record.Request{Account: "a", Resource: "graphql", Query: query}, Spent: spent})
					w.Observe(&record.Record{Request: record.Request{Account: "b", Resource: "graphql", Query: "Other"}, Spent: 9000})
				}
				w.Observe(&record.Record{Request: record.Request{Account: "a", Resource: "graphql", QueryHash: "ab12"}, Spent: 400})
				a := limits.Account{Name: "a", Budgets: []limits.Budget{{Resource: "graphql", Limit: 5000, Remaining: c.graphQL}}}
				if c.core >= 0 {
					a.Budgets = append(a.Budgets, limits.Budget{Resource: "core", Limit: 5000, Remaining: c.core})
				}
				d := w.Describe([]limits.Account{a})[0].GraphQLDrain
				stopIf(w, (d != nil) != c.drains, "got %+v", d)
				if d != nil && !slices.Equal(d.Queries, []SpentQuery{{"PullRequestList", 700}, {"ab12", 400}, {"IssueList", 30}}) {
					w.Errorf("got %+v", d.Queries)
				}
			})
		})
	}
}
