package service

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// graphQLAnswer is the part of a response that tests of prices read.
type graphQLAnswer struct {
	Data struct {
		Repository any
		RateLimit  struct{ Limit, Cost, Used, Remaining, NodeCount int }
	}
	Errors []struct {
		Type, Message string
		Path          []string
	}
}

// graphQLBody returns the body of a query with variables.
func graphQLBody(query string, variables map[string]any) []byte {
	return testservers.Must(json.Marshal(map[string]any{"query": query, "variables": variables}))
}

// askGraphQL sends a query with variables.
func (t *tester) askGraphQL(as, query string, variables map[string]any) (answer graphQLAnswer, header http.Header) {
	t.Helper()
	w := t.call(as, "POST /graphql "+string(graphQLBody(query, variables)), http.StatusOK, "")
	return decode[graphQLAnswer](t, w), w.Header()
}

// inRepository returns a query for fields of a repository and for the rate limit.
func inRepository(fields string) string {
	return `{ repository(owner: "acme", name: "monolith") { ` + fields + ` } rateLimit { limit cost used remaining nodeCount } }`
}

// TestGraphQLPrices checks prices that were computed from the published rule without the code. Requests are written as
// one term for each connection; the cost is a hundredth of their sum.
func TestGraphQLPrices(t *testing.T) {
	const contexts = `commits(last: 1) { nodes { commit { statusCheckRollup { contexts(first: 100) { nodes { __typename } } } } } }`
	cases := []struct {
		name, query string
		cost, nodes int
	}{
		{"no connection", inRepository(`id`), 1, 0},
		{"one connection: 1", inRepository(`pullRequests(first: 100) { nodes { id } }`), 1, 100},
		{"last: 1", inRepository(`pullRequests(last: 7) { nodes { id } }`), 1, 7},
		{"edges: 1 + 100", inRepository(`pullRequests(first: 100) { edges { node { labels(first: 10) { edges { node { id } } } } } }`), 1, 1100},
		{"nodes: 1 + 100", inRepository(`pullRequests(first: 100) { nodes { labels(first: 100) { nodes { id } } } }`), 1, 10_100},
		{"rounded down: 1 + 100 + 48", inRepository(`pullRequests(first: 100) { nodes { labels(first: 1) { nodes { id } } } } issues(first: 48) { nodes { comments(first: 1) { nodes { id } } } }`), 2, 100 + 100 + 48 + 48},
		{"rounded up: 1 + 50 + 1 + 98", inRepository(`pullRequests(first: 50) { nodes { labels(first: 1) { nodes { id } } } } issues(first: 98) { nodes { comments(first: 1) { nodes { id } } } }`), 2, 50 + 50 + 98 + 98},
		{"below one and a half: 1 + 50 + 1 + 97", inRepository(`pullRequests(first: 50) { nodes { labels(first: 1) { nodes { id } } } } issues(first: 97) { nodes { comments(first: 1) { nodes { id } } } }`), 1, 50 + 50 + 97 + 97},
		{"siblings: 1 + 100 + 100", inRepository(`pullRequests(first: 100) { nodes { labels(first: 5) { nodes { id } } comments(first: 5) { nodes { id } } } }`), 2, 1100},
		{"three siblings: 1 + 100 + 100 + 100", inRepository(`pullRequests(first: 100) { nodes { labels(first: 1) { nodes { id } } comments(first: 1) { nodes { id } } latestReviews(first: 1) { nodes { id } } } }`), 3, 400},
		{"three levels: 1 + 100 + 100", inRepository(`pullRequests(first: 100) { nodes { ` + contexts + ` } }`), 2, 100 + 100 + 10_000},
		{"three levels of 100, 50 and 30: 1 + 100 + 5000", inRepository(`pullRequests(first: 100) { nodes { repository { issues(first: 50) { nodes { labels(first: 30) { nodes { id } } } } } } }`), 51, 100 + 5000 + 150_000},
		{"most nodes: 1 + 100 + 4900", inRepository(`pullRequests(first: 100) { nodes { repository { issues(first: 49) { nodes { labels(first: 100) { nodes { id } } } } } } }`), 50, 100 + 4900 + 490_000},
		{"four levels: 1 + 10 + 100 + 1000", inRepository(`pullRequests(first: 10) { nodes { repository { issues(first: 10) { nodes { repository { pullRequests(first: 10) { nodes { comments(first: 10) { nodes { id } } } } } } } } } }`), 11, 10 + 100 + 1000 + 10_000},
		{"aliases are connections: 1 + 1 + 100 + 100", inRepository(`a: pullRequests(first: 100) { nodes { labels(first: 1) { nodes { id } } } } b: pullRequests(first: 100) { nodes { labels(first: 1) { nodes { id } } } }`), 2, 400},
		{"a repeated connection is one: 1 + 100", inRepository(`pullRequests(first: 100) { nodes { labels(first: 1) { nodes { id } } } } pullRequests(first: 100) { nodes { labels(first: 1) { nodes { name } } } }`), 1, 200},
		{"a field in two fragments is one: 1 + 100", inRepository(`...A ...B`) + `
			fragment A on Repository { pullRequests(first: 100) { nodes { labels(first: 1) { nodes { id } } } } }
			fragment B on Repository { pullRequests(first: 100) { nodes { labels(first: 1) { nodes { name } } } } }`, 1, 200},
		{"a fragment in two places: 1 + 1 + 100 + 100", inRepository(`a: pullRequests(first: 100) { nodes { ...P } } b: pullRequests(first: 100) { nodes { ...P } }`) + `
			fragment P on PullRequest { labels(first: 2) { nodes { id } } }`, 2, 600},
		{"fragment in a fragment: 1 + 100 + 100", inRepository(`pullRequests(first: 100) { nodes { ...P } }`) + `
			fragment P on PullRequest { ...Q comments(first: 1) { nodes { id } } } fragment Q on PullRequest { labels(first: 1) { nodes { id } } }`, 2, 300},
		{"both types of a union: 1 + 100 + 100", `{ search(query: "gear", type: ISSUE, first: 100) { nodes { ... on Issue { labels(first: 1) { nodes { id } } } ... on PullRequest { labels(first: 1) { nodes { id } } } } } rateLimit { cost nodeCount } }`, 2, 300},
		{"variable: 1 + 50 + 100", `query($n: Int!) { repository(owner: "acme", name: "monolith") { pullRequests(first: $n) { nodes { labels(first: 1) { nodes { id } } comments(first: $n) { nodes { id } } latestReviews(first: 1) { nodes { id } } } } } rateLimit { cost nodeCount } }`, 2, 50 + 50 + 2500 + 50},
		{"default of a variable: 1 + 60", `query($m: Int = 60) { repository(owner: "acme", name: "monolith") { pullRequests(first: $m) { nodes { labels(first: 1) { nodes { id } } } } } rateLimit { cost nodeCount } }`, 1, 120},
		{"skipped: 1", inRepository(`pullRequests(first: 100) { nodes { labels(first: 1) @skip(if: true) { nodes { id } } ... @include(if: false) { comments(first: 1) { nodes { id } } latestReviews(first: 1) { nodes { id } } } id } }`), 1, 100},
		{"only a count: 1 + 100 + 100", inRepository(`pullRequests(first: 100) { nodes { labels { totalCount } comments { totalCount } } }`), 2, 100},
		{"only page information: 1 + 100 + 100", inRepository(`pullRequests(first: 100) { nodes { labels(first: 3) { pageInfo { endCursor } } comments(first: 3) { pageInfo { endCursor } } } }`), 2, 700},
		{"a cursor changes nothing: 1", inRepository(`pullRequests(first: 30, after: "Y3Vyc29yOnYyOjA6") { nodes { id } }`), 1, 30},
		{"introspection: 0", `{ __type(name: "PullRequest") { fields(includeDeprecated: true) { name } } rateLimit { cost nodeCount } }`, 1, 0},
		{"a node: 1", `{ node(id: "PR_1004000001") { ... on PullRequest { ` + contexts + ` } } rateLimit { cost nodeCount } }`, 1, 101},
		{"gh pr list: 1", inRepository(`pullRequests(states: [OPEN], first: 30, orderBy: {field: CREATED_AT, direction: DESC}) { totalCount nodes { number headRepositoryOwner { id login ... on User { name } } } pageInfo { hasNextPage endCursor } }`), 1, 30},
		{"gh issue list: 1 + 100", inRepository(`issues(first: 100, states: [OPEN]) { nodes { labels(first: 100) { nodes { id } totalCount } } }`), 1, 10_100},
		{
			"gh pr status: three times 1 + 100 + 100, and 100 + 100 for reviews",
			`{ repository(owner: "acme", name: "monolith") { pullRequests(headRefName: "x", first: 100) { edges { node { ...R } } } }
				created: search(query: "gear", type: ISSUE, first: 100) { totalCount: issueCount edges { node { ...R } } }
				requested: search(query: "gear", type: ISSUE, first: 100) { totalCount: issueCount edges { node { ...P } } } rateLimit { cost nodeCount } }
			fragment P on PullRequest { ` + contexts + ` } fragment R on PullRequest { ...P latestReviews(first: 100) { nodes { state } } }`,
			8, 3*(100+100+10_000) + 2*10_000,
		},
	}
	var ratios []float64
	runWithService(t, func(t *tester) {
		for _, c := range cases {
			t.s.meter.reset()
			answer, header := t.askGraphQL("owner", c.query, map[string]any{"n": 50})
			got := answer.Data.RateLimit
			failIf(t, got.Cost != c.cost || got.NodeCount != c.nodes || len(answer.Errors) > 0, "%s: got cost %d and %d nodes, want %d and %d; errors %+v", c.name, got.Cost, got.NodeCount, c.cost, c.nodes, answer.Errors)
			used := header.Get("X-Ratelimit-Used")
			failIf(t, used != fmt.Sprint(c.cost), "%s: got %s used points, want %d", c.name, used, c.cost)
			ratios = append(ratios, checkEstimate(t, c.query, c.cost))
		}
	})
	slices.Sort(ratios)
	failIf(t, ratios[len(ratios)/2] > 1.5, "the median of the gateway's estimates is %.2f times the cost", ratios[len(ratios)/2])
}

// checkEstimate checks that the gateway, which has no schema, does not estimate less than the cost of a query. It returns the
// estimate divided by the cost.
func checkEstimate(t *tester, query string, cost int) float64 {
	t.Helper()
	body := graphQLBody(query, map[string]any{"n": 50})
	call, err := policy.ParseGraphQL(body)
	failIf(t, err != nil || call.Cost < cost, "estimated cost %d, error %v, want at least %d: %s", call.Cost, err, cost, query)
	return float64(call.Cost) / float64(cost)
}

// TestLearnedEstimatesAreWithinFivePercent checks that the gateway's limiter learns what repeated queries cost, with and
// without the cost in the body.
func TestLearnedEstimatesAreWithinFivePercent(t *testing.T) {
	const nested = `query($n: Int!) { repository(owner: "acme", name: "monolith") { pullRequests(first: $n) { nodes { repository { issues(first: $n) { nodes { labels(first: 30) { nodes { id } } } } } } } } `
	type call struct {
		query string
		n     int
	}
	var calls []call
	for _, query := range []string{
		nested + "rateLimit { cost } }", nested + "}",
		inRepository(`pullRequests(first: 100) { nodes { labels(first: 1) @skip(if: true) { nodes { id } } repository { issues(first: 49) { nodes { comments(first: 9) { nodes { id } } } } } } }`),
		inRepository(`id`),
	} {
		for _, n := range []int{10, 40, 100} {
			calls = append(calls, call{query, n})
		}
	}
	runWithService(t, func(t *tester) {
		limiter := limits.NewLimiter(limits.NewMemory(limits.Rules{Limits: policy.DefaultLimits()}))
		caller := policy.Caller{Kind: policy.User, Account: "owner"}
		for round := range 7 {
			t.s.meter.reset()
			used := 0
			for _, c := range calls {
				body := graphQLBody(c.query, map[string]any{"n": c.n})
				parsed := testservers.Must(policy.ParseGraphQL(body))
				claim := limits.Claim{Operation: policy.GraphQL, Resource: policy.GraphQL, Points: 1, Query: parsed.Hash, UpperEstimate: parsed.UpperCost()}
				permit := testservers.Must(limiter.Acquire(t.Context(), claim, caller, time.Now()))
				w := t.do("owner", "POST /graphql "+string(body))
				rate := limiter.ReadRate(w.Header())
				outcome := limits.Outcome{Sent: true, Answered: true, Ended: true, Succeeded: true, Rate: rate}
				if parsed.ReportsCost {
					outcome.Cost, _, _ = policy.ReadGraphQLCost(w.Body.Bytes())
				}
				_, err := limiter.Settle(t.Context(), *permit, outcome)
				stopIf(t, err != nil, "%v", err)
				cost := rate.Used - used
				used = rate.Used
				estimate := permit.Cost
				failIf(t, estimate < cost || round >= 5 && float64(estimate) > 1.05*float64(cost), "round %d: estimated %d, at first %d, and charged %d: n %d, %.90s", round, estimate, parsed.Cost, cost, c.n, c.query)
			}
		}
	})
}

func TestGraphQLRefusesCallsAboveALimit(t *testing.T) {
	runWithService(t, func(t *tester) {
		for i, c := range []struct{ name, fields, kind, path, message string }{
			{"500,000 nodes", `pullRequests(first: 100) { nodes { repository { issues(first: 50) { nodes { labels(first: 100) { nodes { id } } } } } } }`,
				"MAX_NODE_LIMIT_EXCEEDED", "", "This query requests up to 505,100 possible nodes which exceeds the maximum limit of 500,000."},
			{"many levels", strings.Repeat(`pullRequests(first: 100) { nodes { repository { `, 12) + "id" + strings.Repeat(" } } }", 12), "MAX_NODE_LIMIT_EXCEEDED", "", "exceeds the maximum limit"},
			{"first", `pullRequests(first: 101) { nodes { id } }`, "EXCESSIVE_PAGINATION", "repository pullRequests", "Requesting 101 records on the `pullRequests` connection exceeds the `first` limit of 100 records."},
			{"last below an alias", `p: pullRequests(last: 2) { nodes { l: labels(last: 200) { nodes { id } } } }`, "EXCESSIVE_PAGINATION", "repository p nodes l", "Requesting 200 records on the `labels` connection exceeds the `last` limit of 100 records."},
			{"zero", `pullRequests(first: 0) { nodes { id } }`, "EXCESSIVE_PAGINATION", "repository pullRequests", "from 1 to 100"},
			{"neither", `issues { nodes { id } }`, "MISSING_PAGINATION_BOUNDARIES", "repository issues", "You must provide a `first` or `last` value to properly paginate the `issues` connection."},
			{"neither for page information", `issues { pageInfo { endCursor } }`, "MISSING_PAGINATION_BOUNDARIES", "repository issues", "You must provide"},
			{"both", `issues(first: 1, last: 1) { nodes { id } }`, "INVALID", "repository issues", "not supported"},
		} {
			answer, header := t.askGraphQL("owner", inRepository(c.fields), nil)
			e := answer.Errors
			failIf(t, len(e) != 1 || e[0].Type != c.kind || strings.Join(e[0].Path, " ") != c.path || !strings.Contains(e[0].Message, c.message) || answer.Data.Repository != nil, "%s: got %+v", c.name, answer)
			if used := header.Get("X-Ratelimit-Used"); used != fmt.Sprint(i+1) { // a refused call costs 1
				t.Errorf("%s: got %s used points", c.name, used)
			}
		}
	})
}

// TestGraphQLBoundsTheWorkOfPricing sends fragments that double the query 40 times.
func TestGraphQLBoundsTheWorkOfPricing(t *testing.T) {
	runWithService(t, func(t *tester) {
		query := inRepository(`...F0`)
		for i := range 40 {
			query += fmt.Sprintf(" fragment F%d on Repository { a: parent { ...F%d } b: parent { ...F%d } }", i, i+1, i+1)
		}
		answer, _ := t.askGraphQL("owner", query+" fragment F40 on Repository { id }", nil)
		failIf(t, len(answer.Errors) != 1 || !strings.Contains(answer.Errors[0].Message, "more than 50000 fields"), "got %+v", answer)
	})
}

// TestGraphQLCostIsChargedToItsWindow spends the hour with calls of 51 points.
func TestGraphQLCostIsChargedToItsWindow(t *testing.T) {
	runWithService(t, func(t *tester) {
		heavy := inRepository(`pullRequests(first: 100) { nodes { repository { issues(first: 50) { nodes { labels(first: 30) { nodes { id } } } } } } }`)
		if answer, header := t.askGraphQL("member", heavy, nil); answer.Data.RateLimit.Limit != 5000 || header.Get("X-Ratelimit-Used") != "51" {
			t.Errorf("another user: got %+v and %v", answer.Data.RateLimit, header)
		}
		const limit = 5*51 + 2
		t.s.meter.Resources = map[string]policy.Window{policy.GraphQL: {Max: limit, Window: time.Hour}}
		for i := range 5 {
			answer, header := t.askGraphQL("owner", heavy, nil)
			used := 51 * (i + 1)
			got := answer.Data.RateLimit
			stopIf(t, got.Limit != limit || got.Used != used || got.Remaining != limit-used || header.Get("X-Ratelimit-Remaining") != fmt.Sprint(limit-used), "call %d: got %+v and %v", i, got, header)
		}
		t.wantViolations("", 0)
		answer, header := t.askGraphQL("owner", heavy, nil) // 2 points remain
		e := answer.Errors
		failIf(t, len(e) != 1 || e[0].Type != "RATE_LIMITED" || e[0].Message != "API rate limit exceeded for user acme-owner." || header.Get("X-Ratelimit-Remaining") != "0", "got %+v and %v, want a primary limit error", answer, header)
		t.wantViolations("primary:graphql", 1)
		time.Sleep(time.Hour)
		if _, header := t.askGraphQL("owner", heavy, nil); header.Get("X-Ratelimit-Used") != "51" {
			t.Errorf("got %s used points after the reset, want 51", header.Get("X-Ratelimit-Used"))
		}
	})
}

func TestGraphQLDryRunCostsOnePoint(t *testing.T) {
	runWithService(t, func(t *tester) {
		answer, header := t.askGraphQL("owner", `{ repository(owner: "acme", name: "monolith") { pullRequests(first: 100) { nodes { repository { issues(first: 50) { nodes { labels(first: 30) { nodes { id } } } } } } } }
			rateLimit(dryRun: true) { cost used nodeCount } }`, nil)
		got := answer.Data.RateLimit
		failIf(t, got.Cost != 51 || got.NodeCount != 155_100 || got.Used != 1 || header.Get("X-Ratelimit-Used") != "1" || answer.Data.Repository != nil, "got %+v and %v", answer, header)
	})
}
