package proxy

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/policy"
)

// graphQL sends a query of a client.
func (w *world) graphQL(path, query string) got {
	return w.do(http.MethodPost, path, strings.NewReader(graphQLBody(query)), bearer("a"))
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
			failIf(w, r.StatusCode != http.StatusOK || r.Header.Get("Cache-Status") != "weir; detail=graphql" || !strings.Contains(r.body, `"errors":[{"type":"`+c.kind+`"`), "%.60s: got %d, %s, %s", c.query, r.StatusCode, r.Header.Get("Cache-Status"), r.body)
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
		path        string // /graphql by default
	}{
		{name: "mutation", query: "mutation{addStar(input:{}){clientMutationId}}", rules: policy.GraphQLRules{ReadOnly: true}, message: "this client may only read"},
		{name: "query", query: "{viewer{login}}", rules: policy.GraphQLRules{ReadOnly: true}},
		{name: "query in the URL", query: "{viewer{login}}", rules: policy.GraphQLRules{ReadOnly: true}, path: "/graphql?query=mutation", message: "send the GraphQL query in the body"},
		{name: "depth", query: "{a{b{c}}}", rules: policy.GraphQLRules{Depth: 2}, message: "nested 3 deep"},
		{name: "repository", query: `{repository(owner:"acme",name:"widgets"){id}}`, rules: policy.GraphQLRules{Repositories: lines("acme/*")}},
		{name: "other repository", query: `{repository(owner:"evil",name:"widgets"){id}}`, rules: policy.GraphQLRules{Repositories: lines("acme/*")}, message: "is not allowed"},
		{name: "cost", query: "{viewer{repositories(first:100){nodes{issues(first:100){nodes{id}}}}}}", rules: policy.GraphQLRules{Cost: 1}, message: "may cost 2, more than"},
	} {
		setup(nothing, scoped(policy.Scope{GraphQL: &c.rules})).sub(t, c.name, func(w *world) {
			r := w.graphQL(cmp.Or(c.path, "/graphql"), c.query)
			w.want("requests upstream", w.upstreamSaw(), map[bool]int{true: 1 + len(c.rules.Repositories), false: 0}[c.message == ""]) // one request for the current name
			if c.message == "" {
				return
			}
			w.want("status", r.StatusCode, http.StatusForbidden)
			w.wantFields("refusal", r.Header, "Cache-Status: weir; detail=scope")
			w.want("message in "+r.body, strings.Contains(r.body, c.message), true)
		})
	}
}

// chargeGraphQL returns an upstream that charges the given costs one after another. report returns the body of a response.
func chargeGraphQL(costs []int, report func(cost int) string) http.HandlerFunc {
	used, calls := 0, 0
	return func(w http.ResponseWriter, _ *http.Request) {
		cost := costs[min(calls, len(costs)-1)]
		calls++
		used += cost
		setFields(w, append(rates(5000, used, time.Hour), "X-Ratelimit-Resource: "+policy.GraphQL)...)
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
				rec := w.recent()[0]
				w.want("spent", rec.Spent, want)
				w.want("name", rec.OperationName(), rec.Operation+" Heavy")
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
		status := r.Header.Get("Cache-Status")
		failIf(w, !strings.Contains(status, "detail=primary"), "got Cache-Status %q", status)
		w.want("requests upstream", w.upstreamSaw(), 2)
	})
}
