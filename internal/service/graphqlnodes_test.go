package service

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/vektah/gqlparser/v2/ast"
)

// pathsToTypes maps each type of the schema to a query for an object of the type.
func pathsToTypes() map[string]string {
	repository := func(path string) string {
		return `{ repository(owner: "acme", name: "widgets") { ` + path + strings.Repeat(" }", strings.Count(path, "{")) + " } }"
	}
	const pull, rollup = "pullRequest(number: 26) { ", "pullRequest(number: 26) { commits(first: 1) { nodes { commit { statusCheckRollup { "
	paths := map[string]string{
		"User": `{ viewer { %s } }`, "RateLimit": `{ rateLimit { %s } }`, "Organization": repository("owner { ... on Organization { %s"), "Repository": repository("%s"),
		"Ref": repository("defaultBranchRef { %s"), "Issue": repository("issue(number: 1) { %s"), "PullRequest": repository(pull + "%s"),
		"Commit": repository(pull + "commits(first: 1) { nodes { commit { %s"), "StatusCheckRollup": repository(rollup + "%s"),
		"CheckRun":      repository(rollup + "contexts(first: 1) { nodes { ... on CheckRun { %s"),
		"CheckSuite":    repository(rollup + "contexts(first: 1) { nodes { ... on CheckRun { checkSuite { %s"),
		"WorkflowRun":   repository(rollup + "contexts(first: 1) { nodes { ... on CheckRun { checkSuite { workflowRun { %s"),
		"Workflow":      repository(rollup + "contexts(first: 1) { nodes { ... on CheckRun { checkSuite { workflowRun { workflow { %s"),
		"StatusContext": repository(rollup + "contexts(last: 1) { nodes { ... on StatusContext { %s"),
		"PageInfo":      repository("issues(first: 1) { pageInfo { %s"),
	}
	for name, path := range map[string]string{
		"User": "watchers(first: 1) { ", "Issue": "issues(first: 1) { ", "PullRequest": "pullRequests(first: 1) { ", "Label": "issue(number: 1) { labels(first: 1) { ",
		"IssueComment": pull + "comments(first: 1) { ", "PullRequestReview": pull + "latestReviews(first: 1) { ", "PullRequestCommit": pull + "commits(first: 1) { ",
		"StatusCheckRollupContext": rollup + "contexts(first: 1) { ",
	} {
		paths[name+"Connection"], paths[name+"Edge"] = repository(path+"%s"), repository(path+"edges { %s")
		if paths[name] == "" && name != "StatusCheckRollupContext" {
			paths[name] = repository(path + "nodes { %s")
		}
	}
	const search = `{ search(query: "gear", type: ISSUE, first: 1) { `
	paths["SearchResultItemConnection"], paths["SearchResultItemEdge"] = search+"%s } }", search+"edges { %s } } }"
	return paths
}

// TestGraphQLFieldsHaveValues selects each field of each type.
func TestGraphQLFieldsHaveValues(t *testing.T) {
	paths := pathsToTypes()
	runWithService(t, func(t *tester) {
		for name, d := range schema().Types {
			unreachable := strings.HasPrefix(name, "__") || strings.HasSuffix(name, "Payload") || slices.Contains([]string{"Query", "Mutation", "BranchProtectionRule", "Milestone", "PullRequestReviewThread", "Release"}, name)
			if d.Kind != ast.Object || unreachable {
				continue
			}
			if paths[name] == "" {
				t.Errorf("%s: the test knows no path to the type", name)
				continue
			}
			fields := "__typename"
			for _, f := range d.Fields {
				switch {
				case strings.HasPrefix(f.Name, "__"):
					continue
				case f.Arguments.ForName("number") != nil:
					fields += " " + f.Name + "(number: 26) { __typename }"
				case f.Arguments.ForName("first") != nil:
					fields += " " + f.Name + "(first: 1) { __typename }"
				case schema().Types[f.Type.Name()].IsCompositeType():
					fields += " " + f.Name + " { __typename }"
				default:
					fields += " " + f.Name
				}
			}
			query := fmt.Sprintf(paths[name], fields)
			t.s.meter.reset()
			answer := decode[jsonObject](t, t.do("owner", graphQLRequest(query)))
			found := findType(answer["data"], name)
			failIf(t, found == nil, "%s: no object: %s: %v", name, query, answer)
			for _, f := range d.Fields {
				failIf(t, f.Type.NonNull && found != nil && found[f.Name] == nil, "%s.%s is null", name, f.Name)
			}
		}
	})
}

// findType returns an object of a type in a response, or nil.
func findType(in any, name string) jsonObject {
	var below []any
	switch v := in.(type) {
	case []any:
		below = v
	case map[string]any:
		if v["__typename"] == name {
			return v
		}
		for _, member := range v {
			below = append(below, member)
		}
	}
	for _, b := range below {
		if found := findType(b, name); found != nil {
			return found
		}
	}
	return nil
}

// TestGraphQLPaginatesInBothDirections reads 300 pull requests in pages of 70, as octokit's paginator does.
func TestGraphQLPaginatesInBothDirections(t *testing.T) {
	type page struct {
		Data struct {
			Repository struct {
				PullRequests struct {
					PageInfo struct {
						HasNextPage, HasPreviousPage bool
						StartCursor, EndCursor       string
					}
					Nodes []struct{ Number int }
				}
			}
		}
	}
	want := make([]int, 300)
	for i := range want {
		want[i] = i + 1
	}
	runWithService(t, func(t *tester) {
		for _, direction := range []string{"ASC", "DESC"} {
			for _, arguments := range []string{"first: 70, after: $cursor", "last: 70, before: $cursor"} {
				query := `query($cursor: String) { repository(owner: "acme", name: "monolith") { pullRequests(` + arguments + `,
					orderBy: {field: CREATED_AT, direction: ` + direction + `}) {
					totalCount pageInfo { hasNextPage hasPreviousPage startCursor endCursor } nodes { number } } } }`
				var all []int
				var cursor any
				for more := true; more; {
					w := t.call("owner", "POST /graphql "+string(encode(object{{"query", query}, {"variables", object{{"cursor", cursor}}}})), 200, `"totalCount":300,`)
					got := decode[page](t, w).Data.Repository.PullRequests
					if cursor, more = got.PageInfo.EndCursor, got.PageInfo.HasNextPage; strings.HasPrefix(arguments, "last") {
						cursor, more = got.PageInfo.StartCursor, got.PageInfo.HasPreviousPage
						slices.Reverse(got.Nodes)
					}
					for _, n := range got.Nodes {
						all = append(all, n.Number)
					}
				}
				if (direction == "DESC") != strings.HasPrefix(arguments, "last") {
					slices.Reverse(all)
				}
				t.wantEqual(direction+" "+arguments, want, all)
			}
		}
	})
}

// TestGraphQLCursorsSurviveChanges closes the issue of a cursor, and creates an issue, between two pages.
func TestGraphQLCursorsSurviveChanges(t *testing.T) {
	runWithService(t, func(t *tester) {
		issues := func(arguments string) string {
			return graphQLRequest(`{ repository(owner: "acme", name: "widgets") {
				issues(states: OPEN, orderBy: {field: CREATED_AT, direction: DESC}, ` + arguments + `) { nodes { number } pageInfo { endCursor } } } }`)
		}
		const numbers = `"nodes":[{"number":5},{"number":6}]`
		first := t.call("owner", issues("first: 2"), 200, `"nodes":[{"number":2},{"number":3}]`).Body.String()
		_, cursor, _ := strings.Cut(first, `"endCursor":"`)
		cursor, _, _ = strings.Cut(cursor, `"`)
		next := issues(`first: 2, after: "` + cursor + `"`)
		before := t.call("owner", next, 200, numbers).Body.String()
		t.call("owner", graphQLRequest(`mutation { closeIssue(input: {issueId: "I_1001000003"}) { issue { number } }
			createIssue(input: {repositoryId: "R_1001", title: "new"}) { issue { number } } }`), 200, "!errors")
		t.call("owner", next, 200, "="+before)
		for _, invalid := range []string{"x", "Y3Vyc29yOnYyOjAwOjE"} { // the second is cursor:v2:00:1
			t.call("owner", issues(`first: 2, after: "`+invalid+`"`), 200, "INVALID_CURSOR_ARGUMENTS")
		}
	})
}

func TestGraphQLResolvesTypes(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, c := range []graphQLCase{
			{"interface", `{ a: node(id: "U_1") { __typename ... on User { login } ... on Issue { title } } b: node(id: "O_4") { ... on Actor { login } } c: node(id: "R_1002") { id } }`,
				`{"data":{"a":{"__typename":"User","login":"acme-owner"},"b":{"login":"acme"},"c":{"id":"R_1002"}}}`},
			{"union", `{ repository(owner: "acme", name: "widgets") { a: issueOrPullRequest(number: 1) { __typename } b: issueOrPullRequest(number: 25) { __typename ... on PullRequest { number } ... on Issue { title } } } }`,
				`{"data":{"repository":{"a":{"__typename":"Issue"},"b":{"__typename":"PullRequest","number":25}}}}`},
			{"missing node", `{ node(id: "I_1001000999") { id } }`, `{"data":{"node":null},"errors":[{"type":"NOT_FOUND","path":["node"],"message":"Could not resolve to a node with the global id of 'I_1001000999'."}]}`},
			{"fields of a type", `{ __type(name: "BranchProtectionRule") { name kind fields(includeDeprecated: true) { name } } none: __type(name: "None") { name } }`,
				`{"data":{"__type":{"name":"BranchProtectionRule","kind":"OBJECT","fields":[{"name":"requiresStrictStatusChecks"}]},"none":null}}`},
			{"values of an enum and fields of an input", `{ a: __type(name: "OrderDirection") { enumValues { name } } b: __type(name: "IssueOrder") { inputFields { name } } }`,
				`{"data":{"a":{"enumValues":[{"name":"ASC"},{"name":"DESC"}]},"b":{"inputFields":[{"name":"field"},{"name":"direction"}]}}}`},
			{"filters", `{ repository(owner: "acme", name: "widgets") { a: pullRequests(states: [MERGED, CLOSED]) { totalCount } b: pullRequests(headRefName: "part-3") { totalCount } c: pullRequests(labels: "bug") { totalCount } d: issues(filterBy: {states: CLOSED}) { totalCount } e: issues(filterBy: {assignee: "x"}) { totalCount } } }`,
				`{"data":{"repository":{"a":{"totalCount":4},"b":{"totalCount":1},"c":{"totalCount":0},"d":{"totalCount":8},"e":{"totalCount":0}}}}`},
			{"search", `{ a: search(query: "repo:acme/widgets is:pr state:open author:@me", type: ISSUE, first: 9) { issueCount nodes { ... on PullRequest { number } } } b: search(query: "repo:acme/widgets state:open review-requested:@me", type: ISSUE, first: 1) { issueCount } c: search(query: "repo:acme/widgets is:issue", type: ISSUE, first: 1) { issueCount } }`,
				`{"data":{"a":{"issueCount":2,"nodes":[{"number":29},{"number":25}]},"b":{"issueCount":3},"c":{"issueCount":24}}}`},
		} {
			t.call("owner", graphQLRequest(c.body), 200, "="+c.want)
		}
	})
}
