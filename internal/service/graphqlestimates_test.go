package service

import (
	"fmt"
	"slices"
	"testing"
)

// shapes are queries such as programs send, with an outer and an inner page size. gh sends the first eight.
var shapes = map[string]func(outer, inner int) string{
	"repo view": func(int, int) string {
		return inMonolith(`id name nameWithOwner description url isPrivate viewerPermission defaultBranchRef { name } parent { nameWithOwner }`)
	},
	"pr list": func(outer, _ int) string {
		return inMonolith(`pullRequests(states: [OPEN], first: %d, orderBy: {field: CREATED_AT, direction: DESC}) { totalCount
			nodes { number title state url headRefName headRepositoryOwner { id login } isDraft createdAt } pageInfo { hasNextPage endCursor } }`, outer)
	},
	"pr list with labels and checks": func(outer, inner int) string {
		return inMonolith(`pullRequests(states: [OPEN], first: %d) { nodes { number labels(first: %d) { nodes { name } totalCount } `+lastCommit+` } }`, outer, inner)
	},
	"pr status": func(outer, _ int) string {
		return fmt.Sprintf(`{ repository(owner: "acme", name: "monolith") { defaultBranchRef { name } pullRequests(headRefName: "x", first: %[1]d) { edges { node { ...R } } } }
			created: search(query: "is:pr author:me", type: ISSUE, first: %[1]d) { totalCount: issueCount edges { node { ...R } } }
			requested: search(query: "is:pr review-requested:me", type: ISSUE, first: %[1]d) { totalCount: issueCount edges { node { ...P } } } `+dryRun+` }
			fragment P on PullRequest { number title `+lastCommit+` } fragment R on PullRequest { ...P latestReviews(first: 100) { nodes { state } } }`, outer)
	},
	"pr checks": func(_, inner int) string {
		return inMonolith(`pullRequest(number: 1) { id commits(last: 1) { nodes { commit { statusCheckRollup { contexts(first: %d) {
			nodes { __typename ... on CheckRun { name status conclusion } ... on StatusContext { context state } } pageInfo { hasNextPage endCursor } } } } } } }`, inner)
	},
	"pr view": func(outer, inner int) string {
		return inMonolith(`pullRequest(number: 1) { title body labels(first: 100) { nodes { name } } comments(first: %d) { nodes { author { login } body } pageInfo { hasNextPage } }
			latestReviews(first: %d) { nodes { author { login } state } } `+lastCommit+` }`, outer, inner)
	},
	"issue list": func(outer, inner int) string {
		return inMonolith(`hasIssuesEnabled issues(first: %d, states: [OPEN], filterBy: {createdBy: "me"}) { totalCount
			nodes { number title updatedAt labels(first: %d) { nodes { id name } totalCount } } pageInfo { hasNextPage endCursor } }`, outer, inner)
	},
	"issue view": func(outer, _ int) string {
		return inMonolith(`issue: issueOrPullRequest(number: 1) { ... on Issue { title comments(last: 1) { nodes { body } totalCount } labels(first: %[1]d) { nodes { name } } }
			... on PullRequest { title comments(last: 1) { nodes { body } totalCount } labels(first: %[1]d) { nodes { name } } } }`, outer)
	},
	"pages of titles": func(outer, _ int) string {
		return inMonolith(`issues(first: %d, after: null) { nodes { title } pageInfo { hasNextPage endCursor } }`, outer)
	},
	"issues with comments": func(outer, inner int) string {
		return inMonolith(`issues(first: %d) { nodes { number comments(first: %d) { nodes { author { login } createdAt } } } }`, outer, inner)
	},
	"pull requests of a dependency bot": func(outer, inner int) string {
		return inMonolith(`pullRequests(orderBy: {field: UPDATED_AT, direction: DESC}, first: %d) { nodes { number state title headRefName baseRefName
			labels(last: %d) { nodes { name } } comments(first: 1) { nodes { id } } } }`, outer, inner)
	},
	"reviews of a team": func(outer, inner int) string {
		return fmt.Sprintf(`{ search(query: "is:pr is:open", type: ISSUE, first: %d) { nodes { ... on PullRequest { number repository { nameWithOwner }
			latestReviews(first: %d) { nodes { author { login } state } } `+lastCommit+` } } } `+dryRun+` }`, outer, inner)
	},
	"issues and pull requests": func(outer, inner int) string {
		return fmt.Sprintf(`{ search(query: "label:bug", type: ISSUE, first: %d) { nodes { ... on Issue { number labels(first: %[2]d) { nodes { name } } }
			... on PullRequest { number labels(first: %[2]d) { nodes { name } } } } } `+dryRun+` }`, outer, inner)
	},
	"three repositories": func(outer, inner int) string {
		return fmt.Sprintf(`{ a: repository(owner: "acme", name: "monolith") { ...F } b: repository(owner: "acme", name: "widgets") { ...F } c: repository(owner: "acme", name: "docs") { ...F } `+dryRun+` }
			fragment F on Repository { nameWithOwner watchers(first: 1) { totalCount } issues(first: %d) { nodes { labels(first: %d) { nodes { name } } } } }`, outer, inner)
	},
	"states of merges": func(outer, _ int) string {
		return inMonolith(`pullRequests(states: [OPEN], last: %d) { nodes { number mergeable mergeStateStatus reviewDecision commits(last: 1) { nodes { commit { statusCheckRollup { state } } } } } }`, outer)
	},
	"watchers": func(outer, _ int) string {
		return inMonolith(`watchers(first: %d) { nodes { login } pageInfo { endCursor } }`, outer)
	},
}

const (
	lastCommit = `commits(last: 1) { nodes { commit { statusCheckRollup { contexts(first: 100) { nodes { __typename } } } } } }`
	dryRun     = `rateLimit(dryRun: true) { cost }`
)

// inMonolith returns a query for formatted fields of a repository.
func inMonolith(fields string, sizes ...any) string {
	return `{ repository(owner: "acme", name: "monolith") { ` + fmt.Sprintf(fields, sizes...) + ` } ` + dryRun + ` }`
}

// The gateway has no schema. Its estimates are never below the cost of a query, and the median is at most one and a half
// times the cost.
func TestGraphQLEstimatesOfManyQueries(t *testing.T) {
	sizes, seen := []int{1, 10, 20, 30, 50, 100}, map[string]bool{}
	var ratios []float64
	runWithService(t, func(t *tester) {
		for name, shape := range shapes {
			for _, outer := range sizes {
				for _, inner := range sizes {
					query := shape(outer, inner)
					if seen[query] {
						continue
					}
					seen[query] = true
					t.s.meter.reset()
					answer, _ := t.askGraphQL("owner", query, nil)
					stopIf(t, answer.Data.RateLimit.Cost == 0 || len(answer.Errors) > 0, "%s, %d and %d: got %+v", name, outer, inner, answer)
					ratios = append(ratios, checkEstimate(t, query, answer.Data.RateLimit.Cost))
				}
			}
		}
	})
	slices.Sort(ratios)
	t.Logf("%d queries: the estimate is %.2f times the cost at the median, at most %.2f", len(ratios), ratios[len(ratios)/2], ratios[len(ratios)-1])
	failIf(t, len(ratios) < 200 || ratios[len(ratios)/2] > 1.5, "got %d queries and a median of %.2f times the cost, want 200 and at most 1.5", len(ratios), ratios[len(ratios)/2])
}
