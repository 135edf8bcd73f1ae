package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/policy"
)

// graphQL sends a query of a client.
func (w *world) graphQL(path, query string) got {
	return w.do(http.MethodPost, path, strings.NewReader(`{"query":`+strconv.Quote(query)+`}`), "Authorization: Bearer a")
}

func TestGraphQLCallsThatTheAPIMustRefuseCostNothing(t *testing.T) {
	setup(nothing).run(t, func(w *world) {
		for _, c := range []struct{ query, kind string }{
			{"{viewer{repositories(first:100){nodes{issues(first:100){nodes{comments(first:100){nodes{id}}}}}}}}", "MAX_NODE_LIMIT_EXCEEDED"},
			{"{viewer{repositories(first:101){nodes{id}}}}", "EXCESSIVE_PAGINATION"},
			{"{...a} fragment a on Query{...a}", "INVALID"},
			{strings.Repeat("{a", 30_000), "TOO_COMPLEX"},
		} {
			r := w.graphQL("/graphql", c.query)
			if r.StatusCode != http.StatusOK || r.Header.Get("Cache-Status") != "weir; detail=graphql" || !strings.Contains(r.body, `"errors":[{"type":"`+c.kind+`"`) {
				w.Errorf("%.60s: got %d, %s, %s", c.query, r.StatusCode, r.Header.Get("Cache-Status"), r.body)
			}
		}
		w.want("requests upstream", w.upstreamSaw(), 0)
		for _, query := range []string{"{viewer{login}}", "{unknown syntax !!"} {
			w.graphQL("/graphql", query)
		}
		w.want("requests upstream", w.upstreamSaw(), 2)
	})
}

func TestGraphQLRulesOfAClient(t *testing.T) {
	for _, c := range []struct {
		name, query string
		rules       policy.GraphQLRules
		message     string // of the refusal
	}{
		{"mutation", "mutation{addStar(input:{}){clientMutationId}}", policy.GraphQLRules{ReadOnly: true}, "this client may only read"},
		{"query", "{viewer{login}}", policy.GraphQLRules{ReadOnly: true}, ""},
		{"depth", "{a{b{c}}}", policy.GraphQLRules{Depth: 2}, "nested 3 deep"},
		{"repository", `{repository(owner:"acme",name:"widgets"){id}}`, policy.GraphQLRules{Repositories: []string{"acme/*"}}, ""},
		{"other repository", `{repository(owner:"evil",name:"widgets"){id}}`, policy.GraphQLRules{Repositories: []string{"acme/*"}}, "is not allowed"},
		{"cost", "{viewer{repositories(first:100){nodes{issues(first:100){nodes{id}}}}}}", policy.GraphQLRules{Cost: 1}, "may cost 2, more than"},
	} {
		setup(nothing, scoped(policy.Scope{GraphQL: &c.rules})).sub(t, c.name, func(w *world) {
			r := w.graphQL("/graphql", c.query)
			if c.message == "" {
				w.want("requests upstream", w.upstreamSaw(), 1)
				return
			}
			if r.StatusCode != http.StatusForbidden || r.Header.Get("Cache-Status") != "weir; detail=scope" || !strings.Contains(r.body, c.message) {
				w.Errorf("got %d, %s, %s", r.StatusCode, r.Header.Get("Cache-Status"), r.body)
			}
			w.want("requests upstream", w.upstreamSaw(), 0)
		})
	}
	setup(nothing, scoped(policy.Scope{GraphQL: &policy.GraphQLRules{ReadOnly: true}})).run(t, func(w *world) {
		r := w.graphQL("/graphql?query=mutation", "{viewer{login}}")
		w.want("status of a query in the URL", r.StatusCode, http.StatusForbidden)
		w.want("requests upstream", w.upstreamSaw(), 0)
	})
}

// chargeGraphQL is an upstream that charges the given costs one after another. report returns the body of a response.
func chargeGraphQL(costs []int, report func(cost int) string) http.HandlerFunc {
	used, calls, reset := 0, 0, time.Now().Add(time.Hour).Unix()
	return func(w http.ResponseWriter, _ *http.Request) {
		cost := costs[min(calls, len(costs)-1)]
		calls++
		used += cost
		for name, value := range map[string]any{"Limit": 5000, "Used": used, "Remaining": 5000 - used, "Reset": reset, "Resource": policy.GraphQL} {
			w.Header().Set("X-Ratelimit-"+name, fmt.Sprint(value))
		}
		_, _ = io.WriteString(w, report(cost))
	}
}

// heavy is a query that may cost 52.
const heavy = `query Heavy{repository(owner:"a",name:"b"){pullRequests(first:100){nodes{repository{issues(first:50){nodes{labels(first:30){nodes{id}}}}}}}} rateLimit{cost}}`

func TestGraphQLCallsSpendTheirCost(t *testing.T) {
	withCost := func(cost int) string { return fmt.Sprintf(`{"data":{"rateLimit":{"cost":%d}}}`, cost) }
	padded := func(cost int) string { return `{"data":{"name":"` + strings.Repeat("x", 20_000) + `"}}` }
	for _, c := range []struct {
		name   string
		report func(cost int) string
		costs  []int
		spent  []int
	}{
		{"the body has the cost", withCost, []int{51, 40}, []int{51, 40}},
		{"the body is long", padded, []int{51, 40, 30}, []int{52, 40, 30}},
		{"the use grows too fast", padded, []int{51, 400}, []int{52, 52}},
	} {
		setup(chargeGraphQL(c.costs, c.report)).sub(t, c.name, func(w *world) {
			used := 0
			for i, want := range c.spent {
				r := w.graphQL("/graphql", heavy)
				w.want("body", r.body, c.report(c.costs[i]))
				record := w.gateway.Recent()[0]
				w.want("spent", record.Spent, want)
				w.want("name", record.OperationName(), record.Operation+" Heavy")
				used += c.costs[i]
				b, _ := w.gateway.Ledger.Budget(policy.Caller{Kind: policy.User, Account: "account of Bearer a"}, policy.GraphQL)
				w.want("used", b.Used, used)
			}
		})
	}
}

func TestGraphQLCallReservesItsEstimate(t *testing.T) {
	setup(chargeGraphQL([]int{4940, 51}, func(int) string { return `{"data":{}}` })).run(t, func(w *world) {
		w.graphQL("/graphql", "{viewer{login}}")
		w.want("first", w.graphQL("/graphql", heavy).StatusCode, http.StatusOK) // 60 points are left
		r := w.graphQL("/graphql", heavy)
		w.want("second", r.StatusCode, http.StatusTooManyRequests)
		if status := r.Header.Get("Cache-Status"); !strings.Contains(status, "detail=primary") {
			w.Errorf("got Cache-Status %q", status)
		}
		w.want("requests upstream", w.upstreamSaw(), 2)
	})
}
