package policy

import (
	stdcmp "cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vektah/gqlparser/v2/lexer"
	"pgregory.net/rapid"
)

// body returns the body of a request.
func graphQLBody(query string, members ...string) []byte {
	text, err := json.Marshal(query)
	if err != nil {
		panic(err)
	}
	return []byte(`{"query":` + string(text) + strings.Join(append([]string{""}, members...), ",") + `}`)
}

// refusal returns the type and the message of an error of [ParseGraphQL] or [GraphQLRules.Check].
func refusal(t rapid.TB, err error) (kind, message string) {
	t.Helper()
	if err == nil {
		return "", ""
	}
	var refused *GraphQLError
	if !errors.As(err, &refused) {
		t.Fatalf("got the error %v of type %T, want a *GraphQLError", err, err)
	}
	return refused.Type, refused.Message
}

const prFragments = `
fragment pr on PullRequest {
	number title state url headRefName headRepositoryOwner { id login } isDraft
	commits(last: 1) { nodes { commit { statusCheckRollup { contexts(first: 100) { nodes { __typename ... on CheckRun { status conclusion } ... on StatusContext { state } } } } } } }
}
fragment prWithReviews on PullRequest {
	...pr
	reviewDecision
	latestReviews(first: 100) { nodes { author { login } state } }
}`

const prStatus = `query PullRequestStatus($owner: String!, $repo: String!, $head: String!, $mine: String!, $asked: String!, $per_page: Int = 10) {
	repository(owner: $owner, name: $repo) {
		defaultBranchRef { name }
		pullRequests(headRefName: $head, first: $per_page, orderBy: {field: CREATED_AT, direction: DESC}) { totalCount edges { node { ...prWithReviews } } }
	}
	viewerCreated: search(query: $mine, type: ISSUE, first: $per_page) { totalCount: issueCount edges { node { ...prWithReviews } } }
	reviewRequested: search(query: $asked, type: ISSUE, first: $per_page) { totalCount: issueCount edges { node { ...pr } } }
}` + prFragments

const prList = `query PullRequestList($owner: String!, $repo: String!, $limit: Int!, $endCursor: String, $state: [PullRequestState!] = OPEN) {
	repository(owner: $owner, name: $repo) {
		pullRequests(states: $state, first: $limit, after: $endCursor, orderBy: {field: CREATED_AT, direction: DESC}) {
			totalCount nodes { ...item } pageInfo { hasNextPage endCursor }
		}
	}
}
fragment item on PullRequest { number title %s }`

const prItem = `labels(first: 100) { nodes { id name } totalCount } assignees(first: 100) { nodes { id login } totalCount }
	reviewRequests(first: 100) { nodes { requestedReviewer { __typename ... on User { login } ... on Team { organization { login } name slug } } } }
	comments(first: 100) { nodes { id author { login } body reactionGroups { content } } pageInfo { hasNextPage endCursor } totalCount }
	statusCheckRollup: commits(last: 1) { nodes { commit { statusCheckRollup { contexts(first: 100) { nodes { __typename } pageInfo { hasNextPage } } } } } }`

const issueList = `query IssueList($owner: String!, $repo: String!, $limit: Int, $endCursor: String, $states: [IssueState!] = OPEN) {
	repository(owner: $owner, name: $repo) {
		hasIssuesEnabled
		issues(first: $limit, after: $endCursor, states: $states) {
			totalCount nodes { number title url state updatedAt labels(first: 100) { nodes { id name color } totalCount } } pageInfo { hasNextPage endCursor }
		}
	}
}`

const paginator = `query paginate($cursor: String, $owner: String!, $name: String!) {
	repository(owner: $owner, name: $name) { issues(first: 100, after: $cursor) { nodes { title } pageInfo { hasNextPage endCursor } } }
}`

// pricedQueries have costs that were computed without the code: requests for connections, nodes, and requests ÷ 100 rounded up.
var pricedQueries = []struct {
	name, query, variables string
	requests, nodes, cost  int
}{
	// The published examples. The API rounds 5,101 requests to 51 points.
	{"published: nodes of one chain", `query { viewer { repositories(first: 50) { edges { repository: node { name issues(first: 10) { totalCount edges { node { title bodyHTML } } } } } } } }`, ``, 51, 550, 1},
	{"published: nodes of several chains", `query { viewer {
		repositories(first: 50) { edges { repository: node { name
			pullRequests(first: 20) { edges { pullRequest: node { title comments(first: 10) { edges { comment: node { bodyHTML } } } } } }
			issues(first: 20) { totalCount edges { issue: node { title bodyHTML comments(first: 10) { edges { comment: node { bodyHTML } } } } } }
		} } }
		followers(first: 10) { edges { follower: node { login } } }
	} }`, ``, 2102, 22_060, 22},
	{"published: points", `query { viewer { login repositories(first: 100) { edges { node { id
		issues(first: 50) { edges { node { id labels(first: 60) { edges { node { id name } } } } } } } } } } }`, ``, 5101, 305_100, 52},

	{"viewer", `{ viewer { login } }`, ``, 0, 0, 1},
	{"gh pr list", fmt.Sprintf(prList, "state url headRefName headRepositoryOwner { id login ... on User { name } } isCrossRepository isDraft createdAt"), `{"owner":"octo","repo":"hello","limit":30,"state":["OPEN"]}`, 1, 30, 1},
	{"gh pr list, JSON of many fields", fmt.Sprintf(prList, prItem), `{"owner":"octo","repo":"hello","limit":30}`, 181, 15_060, 2},
	{"gh pr list, 100 of many fields", fmt.Sprintf(prList, prItem), `{"owner":"octo","repo":"hello","limit":100}`, 601, 50_200, 7},
	{"gh pr status", prStatus, `{"owner":"octo","repo":"hello","head":"main","mine":"repo:octo/hello author:a","asked":"repo:octo/hello review-requested:a"}`, 83, 5060, 1},
	{"gh pr status, 100 per page", prStatus, `{"per_page":100}`, 803, 50_600, 9},
	{"gh pr checks", `query PullRequestStatusChecks($id: ID!, $endCursor: String) { node(id: $id) { ... on PullRequest { statusCheckRollup: commits(last: 1) { nodes { commit { statusCheckRollup {
		contexts(first: 100, after: $endCursor) { nodes { __typename ... on CheckRun { name checkSuite { workflowRun { event workflow { name } } } status } } pageInfo { hasNextPage endCursor } } } } } } } } }`, `{"id":"PR_1"}`, 2, 101, 1},
	{"gh pr view", `query($owner: String!, $repo: String!, $number: Int!) { repository(owner: $owner, name: $repo) { pullRequest(number: $number) { id title body author { login }
		files(first: 100) { nodes { path additions deletions } } reviews(first: 100) { nodes { author { login } body state } } commits(first: 100) { nodes { commit { oid authors(first: 100) { nodes { name email } } } } } } } }`,
		`{"owner":"octo","repo":"hello","number":7}`, 103, 10_300, 2},
	{"gh issue list", issueList, `{"owner":"octo","repo":"hello","limit":30}`, 31, 3030, 1},
	{"gh issue list, 100", issueList, `{"owner":"octo","repo":"hello","limit":100}`, 101, 10_100, 2},
	{"gh issue list, search", `query IssueSearch($type: SearchType!, $limit: Int, $query: String!) { search(type: $type, first: $limit, query: $query) { issueCount nodes { ...issue } pageInfo { hasNextPage } } }
		fragment issue on Issue { number title labels(first: 100) { nodes { name } totalCount } }`, `{"type":"ISSUE","limit":50,"query":"repo:octo/hello"}`, 51, 5050, 1},
	{"gh issue view", `query IssueByNumber($owner: String!, $repo: String!, $number: Int!) { repository(owner: $owner, name: $repo) { hasIssuesEnabled issue: issueOrPullRequest(number: $number) { __typename ... on Issue { number title
		comments(last: 1) { nodes { body } totalCount } assignees(first: 100) { nodes { login } totalCount } labels(first: 100) { nodes { name } totalCount } milestone { title } reactionGroups { content users { totalCount } } } } } }`,
		`{"owner":"octo","repo":"hello","number":7}`, 4, 201, 1},
	{"gh issue status", `query IssueStatus($owner: String!, $repo: String!, $viewer: String!, $per_page: Int = 10) { repository(owner: $owner, name: $repo) { hasIssuesEnabled
		assigned: issues(filterBy: {assignee: $viewer, states: OPEN}, first: $per_page) { totalCount nodes { ...issue } } mentioned: issues(filterBy: {mentioned: $viewer, states: OPEN}, first: $per_page) { totalCount nodes { ...issue } }
		authored: issues(filterBy: {createdBy: $viewer, states: OPEN}, first: $per_page) { totalCount nodes { ...issue } } } } fragment issue on Issue { number title labels(first: 100) { nodes { name } totalCount } }`, `{}`, 33, 3030, 1},
	{"gh repo view", `query RepositoryInfo($owner: String!, $name: String!) { repository(owner: $owner, name: $name) { id name owner { login } description viewerPermission defaultBranchRef { name } } }`, `{"owner":"octo","name":"hello"}`, 0, 0, 1},
	{"gh repo view, JSON", `query RepositoryInfo($owner: String!, $name: String!) { repository(owner: $owner, name: $name) { languages(first: 100) { edges { size node { name } } } repositoryTopics(first: 100) { nodes { topic { name } } }
		issues(states: OPEN) { totalCount } pullRequests(states: OPEN) { totalCount } watchers { totalCount } licenseInfo { key } } }`, `{"owner":"octo","name":"hello"}`, 5, 200, 1},
	{"gh repo list", `query RepositoryList($owner: String!, $perPage: Int!, $endCursor: String) { repositoryOwner(login: $owner) { login repositories(first: $perPage, after: $endCursor, ownerAffiliations: OWNER) { nodes { nameWithOwner
		repositoryTopics(first: 100) { nodes { topic { name } } } } totalCount pageInfo { hasNextPage } } } }`, `{"owner":"octo","perPage":100}`, 101, 10_100, 2},
	{"gh release list", `query RepositoryReleaseList($owner: String!, $name: String!, $perPage: Int!) { repository(owner: $owner, name: $name) { releases(first: $perPage, orderBy: {field: CREATED_AT, direction: DESC}) { nodes { tagName name } pageInfo { hasNextPage } } } }`, `{"owner":"octo","name":"hello","perPage":30}`, 1, 30, 1},
	{"gh label list", `query LabelList($owner: String!, $repo: String!, $limit: Int!) { repository(owner: $owner, name: $repo) { labels(first: $limit) { totalCount nodes { name color } pageInfo { hasNextPage } } } }`, `{"limit":30}`, 1, 30, 1},
	{"gh project list", `query ViewerProjects($first: Int!, $firstItems: Int!, $firstFields: Int!) { viewer { projectsV2(first: $first) { totalCount nodes { title items(first: $firstItems) { totalCount nodes { id } } fields(first: $firstFields) { totalCount nodes { __typename } } } } login } }`,
		`{"first":30,"firstItems":0,"firstFields":0}`, 61, 30, 1},
	{"gh project item-list", `query UserProject($number: Int!, $firstItems: Int!) { user(login: "octo") { projectV2(number: $number) { items(first: $firstItems) { nodes { id fieldValues(first: 100) { nodes { __typename ... on ProjectV2ItemFieldLabelValue { labels(first: 10) { nodes { name } } } } } } } } } }`,
		`{"number":1,"firstItems":100}`, 10_101, 110_100, 102},
	{"gh feature detection", `query PullRequest_fields { PullRequest: __type(name: "PullRequest") { fields(includeDeprecated: true) { name } } Check: __type(name: "StatusCheckRollupContextConnection") { fields(includeDeprecated: true) { name } } }`, ``, 0, 0, 1},

	{"octokit paginator", paginator, `{"owner":"octo","name":"hello"}`, 1, 100, 1},
	{"octokit paginator, next page", paginator, `{"owner":"octo","name":"hello","cursor":"Y3Vyc29yOjEwMA=="}`, 1, 100, 1},
	{"octokit paginator, two levels", `query paginate($cursor: String) { organization(login: "octo") { repositories(first: 50, after: $cursor) { nodes { name pullRequests(last: 20, states: OPEN) { nodes { number } } } pageInfo { hasNextPage endCursor } } } }`, ``, 51, 1050, 1},
	{"last instead of first", `{ repository(owner: "octo", name: "hello") { issues(last: 3) { edges { node { title } } } } }`, ``, 1, 3, 1},

	{"Renovate: open pull requests", `query($owner: String!, $name: String!, $count: Int, $cursor: String) { repository(owner: $owner, name: $name) { pullRequests(states: [OPEN], first: $count, after: $cursor, orderBy: {field: UPDATED_AT, direction: DESC}) {
		pageInfo { endCursor hasNextPage } nodes { number headRefName baseRefName title labels(last: 100) { nodes { name } } assignees { totalCount } reviewRequests { totalCount } } } } }`, `{"owner":"octo","name":"hello","count":100}`, 301, 10_100, 4},
	{"Renovate: tags", `query($owner: String!, $name: String!, $cursor: String, $count: Int!) { repository(owner: $owner, name: $name) { payload: refs(first: $count, after: $cursor, refPrefix: "refs/tags/", orderBy: {field: TAG_COMMIT_DATE, direction: DESC}) { nodes { version: name target { type: __typename } } pageInfo { hasNextPage } } } }`, `{"count":100}`, 1, 100, 1},
	{"Renovate: releases", `query($owner: String!, $name: String!, $cursor: String, $count: Int!) { repository(owner: $owner, name: $name) { payload: releases(first: $count, after: $cursor) { nodes { tagName isDraft } pageInfo { hasNextPage } } } }`, `{"count":100}`, 1, 100, 1},
	{"Renovate: repository", `query($owner: String!, $name: String!) { repository(owner: $owner, name: $name) { id isFork isArchived nameWithOwner hasIssuesEnabled autoMergeAllowed defaultBranchRef { name target { oid } } issues(orderBy: {field: UPDATED_AT, direction: DESC}, filterBy: {states: OPEN}, first: 5) { nodes { number title } } } }`, `{}`, 1, 5, 1},
	{"Renovate: vulnerability alerts", `query($owner: String!, $name: String!) { repository(owner: $owner, name: $name) { vulnerabilityAlerts(last: 100, states: [OPEN]) { edges { node { vulnerableManifestPath } } } } }`, `{}`, 1, 100, 1},

	{"dashboard: counts", `{ repository(owner: "octo", name: "hello") { stargazerCount open: issues(states: OPEN) { totalCount } closed: issues(states: CLOSED) { totalCount } pullRequests(states: OPEN) { totalCount } defaultBranchRef { target { ... on Commit { history(first: 0) { totalCount } } } } } }`, ``, 4, 0, 1},
	{"dashboard: many repositories", `{ a: repository(owner: "octo", name: "a") { ...counts } b: repository(owner: "octo", name: "b") { ...counts } c: repository(owner: "octo", name: "c") { ...counts } } fragment counts on Repository { issues(first: 100) { nodes { labels(first: 5) { nodes { name } } } } }`, ``, 303, 1800, 4},
	{"dashboard: organization", `query($first: Int = 100) { organization(login: "octo") { repositories(first: $first) { nodes { name issues(first: $first) { totalCount nodes { title } } pullRequests(first: $first) { totalCount nodes { title } } } } } }`, `{}`, 201, 20_100, 3},
	{"dashboard: members and teams", `{ organization(login: "octo") { membersWithRole(first: 100) { edges { role node { login } } } teams(first: 20) { nodes { slug members(first: 50) { nodes { login } } } } } }`, ``, 22, 1120, 1},
	{"dashboard: search", `query($q: String!) { search(query: $q, type: ISSUE, first: 100) { issueCount edges { node { ... on PullRequest { number reviews(first: 10) { nodes { state } } } ... on Issue { number comments(first: 10) { nodes { body } } } } } } rateLimit { cost remaining resetAt } }`, `{"q":"is:open"}`, 201, 2100, 3},
	{"dashboard: reviews of threads", `{ repository(owner: "octo", name: "hello") { pullRequests(first: 20) { nodes { reviewThreads(first: 30) { nodes { isResolved comments(first: 10) { nodes { author { login } reactions(first: 5) { nodes { content } } } } } } } } } }`, ``, 6621, 36_620, 67},
	{"dashboard: contributions", `{ user(login: "octo") { contributionsCollection { contributionCalendar { totalContributions weeks { contributionDays { date contributionCount } } } commitContributionsByRepository(maxRepositories: 25) { repository { nameWithOwner } contributions { totalCount } } } } }`, ``, 1, 0, 1},
	{"node IDs", `query($ids: [ID!]!) { nodes(ids: $ids) { ... on PullRequest { number comments(first: 10) { nodes { body } } } } }`, `{"ids":["a","b","c"]}`, 3, 30, 1},
	{"node IDs, literal", `{ nodes(ids: ["a", "b"]) { ... on Issue { labels(first: 100) { nodes { name } } } } }`, ``, 2, 200, 1},
	{"node IDs, unknown", `query($ids: [ID!]!) { nodes(ids: $ids) { ... on Issue { labels(first: 2) { nodes { name } } } } }`, ``, 100, 200, 1},

	{"mutation", `mutation($input: AddCommentInput!) { addComment(input: $input) { commentEdge { node { url } } } }`, `{"input":{"subjectId":"I_1","body":"x"}}`, 0, 0, 1},
	{"mutation with a connection", `mutation { closeIssue(input: {issueId: "I_1"}) { issue { labels(first: 100) { nodes { name } } } } }`, ``, 1, 100, 1},

	{"default of a variable", `query($n: Int = 20) { viewer { repositories(first: $n) { nodes { name } } } }`, ``, 1, 20, 1},
	{"a value takes precedence over the default", `query($n: Int = 20) { viewer { repositories(first: $n) { nodes { name } } } }`, `{"n":7}`, 1, 7, 1},
	{"null takes precedence over the default", `query($n: Int = 20) { viewer { repositories(first: $n) { nodes { name } } } }`, `{"n":null}`, 1, 100, 1},
	{"an unknown variable", `query($n: Int!) { viewer { repositories(first: $n) { nodes { name } } } }`, ``, 1, 100, 1},
	{"a variable of the wrong type", `query($n: Int!) { viewer { repositories(first: $n) { nodes { name } } } }`, `{"n":"5"}`, 1, 100, 1},
	{"a very long value", `query($n: Int!) { viewer { repositories(first: $n) { nodes { name } } } }`, `{"n":5.` + strings.Repeat("0", 1100) + `}`, 1, 100, 1},
	{"a connection without a size", `{ viewer { repositories { nodes { issues { totalCount } } } } }`, ``, 101, 100, 2},
	{"first and last", `{ viewer { repositories(first: 5, last: 9) { nodes { name } } } }`, ``, 1, 9, 1},
	{"skipped by a literal", `{ viewer { repositories(first: 5) @skip(if: true) { nodes { name } } login @include(if: true) } }`, ``, 0, 0, 1},
	{"skipped by a variable", `query($all: Boolean = false) { viewer { ... @include(if: $all) { repositories(first: 5) { nodes { name } } } ...f @skip(if: $all) } } fragment f on User { gists(first: 3) { nodes { name } } }`, ``, 1, 3, 1},
	{"an unknown condition", `query($all: Boolean!) { viewer { repositories(first: 5) @include(if: $all) { nodes { name } } gists(first: 3) @skip(if: $all) { nodes { name } } } }`, ``, 2, 8, 1},
	{"aliases", `{ viewer { a: repositories(first: 5) { nodes { name } } b: repositories(first: 5) { nodes { name } } } }`, ``, 2, 10, 1},
	{"the selected operation", `query a { viewer { repositories(first: 5) { nodes { name } } } } query b { viewer { login } }`, ``, 0, 0, 1},
	{"exactly 100 requests", `{ viewer { repositories(first: 99) { nodes { issues(first: 1) { nodes { title } } } } } }`, ``, 100, 198, 1},
}

func TestParseGraphQLPricesQueries(t *testing.T) {
	failIf(t, len(pricedQueries) < 40, "the table has %d queries, want at least 40", len(pricedQueries))
	for _, c := range pricedQueries {
		members := []string{`"variables":` + stdcmp.Or(c.variables, "null")}
		if strings.Contains(c.query, "query b") {
			members = append(members, `"operationName":"b"`)
		}
		call, err := ParseGraphQL(graphQLBody(c.query, members...))
		failIf(t, err != nil, "%s: %v", c.name, err)
		wantEqual(t, c.name, [3]int{c.requests, c.nodes, c.cost}, [3]int{call.Requests, call.Nodes, call.Cost})
	}
}

func TestParseGraphQLReportsFacts(t *testing.T) {
	for _, c := range []struct {
		name, query, variables string
		want                   GraphQLCall
	}{
		{"a query of a repository", `query q($o: String!, $n: String = "hello") { repository(owner: $o, name: $n) { owner { login } ...f } rateLimit { ...r } } fragment f on Repository { name } fragment r on RateLimit { cost }`,
			`{"o":"octo"}`, GraphQLCall{
				Kind: "query", Operation: "q", Depth: 3, Fields: 6, RootFields: []string{"repository", "rateLimit"},
				Repositories: []string{"octo/hello"}, ReportsCost: true,
			}},
		{"the alias of rateLimit", `{ r: rateLimit { cost } rateLimit { c: cost } }`, `{}`, GraphQLCall{Kind: "query", Depth: 2, Fields: 4, RootFields: []string{"rateLimit"}}},
		{"a dry run", `{ rateLimit(dryRun: true) { cost } }`, `{}`, GraphQLCall{Kind: "query", Depth: 2, Fields: 2, RootFields: []string{"rateLimit"}}},
		{"node IDs of a query", `query($ids: [ID!]!) { ...roots } fragment roots on Query { node(id: "A") { id } nodes(ids: $ids) { id } user(id: "no") { id } }`, `{"ids":["B","C","B"]}`, GraphQLCall{
			Kind: "query", Depth: 2, Fields: 6, RootFields: []string{"node", "nodes", "user"}, NodeIDs: []string{"A", "B", "C"},
		}},
		{"node IDs of mutations", `mutation m($input: I!, $label: ID = "L3") { a: addLabels(input: $input) { clientMutationId } b: addLabels(input: {labelableId: "I2", labelIds: ["L2", $label], clientMutationId: "no"}) { clientMutationId } merge(input: {title: "no"}) { x } }`,
			`{"input":{"labelableId":"I1","labelIds":["L1"],"clientMutationId":"no","body":"\"issueId\": \"no\"","deep":[{"subjectId":"S1"},{"subjectId":"S2","n":1.5e3,"b":null}]}}`, GraphQLCall{
				Kind: "mutation", Operation: "m", Depth: 2, Fields: 6, RootFields: []string{"addLabels", "merge"}, Mutations: 3, NodeIDs: []string{"I1", "L1", "S1", "S2", "I2", "L2", "L3"},
			}},
		{"a repository in a mutation", `mutation($input: I!) { createCommitOnBranch(input: $input) { clientMutationId } }`, `{"input":{"branch":{"repositoryNameWithOwner":"octo/hello"}}}`, GraphQLCall{
			Kind: "mutation", Depth: 2, Fields: 2, RootFields: []string{"createCommitOnBranch"}, Mutations: 1, Repositories: []string{"octo/hello"},
		}},
		{"a skipped root field", `query($no: Boolean!) { viewer @include(if: $no) { login } repository(owner: "a", name: "b") @skip(if: true) { id } __typename }`, `{"no":false}`, GraphQLCall{
			Kind: "query", Depth: 1, Fields: 1, RootFields: []string{"__typename"},
		}},
		{"a subscription", `subscription s { issues { id } }`, `null`, GraphQLCall{Kind: "subscription", Operation: "s", Depth: 2, Fields: 2, RootFields: []string{"issues"}}},
	} {
		call, err := ParseGraphQL(graphQLBody(c.query, `"variables":`+c.variables))
		failIf(t, err != nil, "%s: %v", c.name, err)
		c.want.Cost = 1
		wantEqual(t, c.name, &c.want, call, cmpopts.IgnoreUnexported(GraphQLCall{}), cmpopts.IgnoreFields(GraphQLCall{}, "Hash", "Persisted", "Question"))
	}
}

func TestParseGraphQLRefusesWhatTheUpstreamRefuses(t *testing.T) {
	for _, c := range []struct{ name, query, members, kind, message string }{
		{"more than 500,000 nodes", `{ viewer { login repositories(first: 100) { nodes { issues(first: 100) { nodes { labels(first: 50) { nodes { name } } } } followers(first: 2) { nodes { id } } } } } }`, ``,
			"MAX_NODE_LIMIT_EXCEEDED", "check GraphQL query: it requests up to 510300 nodes, more than the limit of 500000; reduce first or last of repositories (100), issues (100), labels (50)"},
		{"a page of 101", `{ viewer { repositories(first: 101) { nodes { name } } } }`, ``, "EXCESSIVE_PAGINATION", `check GraphQL query: first of the connection "repositories" is 101; use a number from 1 to 100`},
		{"a negative page", `{ viewer { repositories(last: -1) { nodes { name } } } }`, ``, "EXCESSIVE_PAGINATION", `last of the connection "repositories" is -1;`},
		{"a page from a variable", `query($n: Int!) { viewer { ...f } } fragment f on User { repositories(first: $n) { nodes { name } } }`, `"variables":{"n":1000}`, "EXCESSIVE_PAGINATION", `is 1000;`},
		{"a very long number", `{ viewer { repositories(first: ` + strings.Repeat("9", 1000) + `) { nodes { name } } } }`, ``, "EXCESSIVE_PAGINATION", `is +Inf;`},
		{"a fragment in itself", `{ viewer { ...f } } fragment f on User { a { ...g } } fragment g on User { b { ...f } }`, ``, "INVALID", `parse GraphQL query: the fragment "f" contains itself`},
		{"an unknown fragment", `{ viewer { ...f } }`, ``, "INVALID", `the fragment "f" is not defined`},
		{"a fragment twice", `{ viewer { ...f } } fragment f on User { a } fragment f on User { b }`, ``, "INVALID", `the fragment "f" is defined twice`},
		{"a variable twice", `query($a: Boolean = true, $a: Boolean = false) { viewer @skip(if: $a) { login } }`, ``, "INVALID", `the variable "a" is defined twice`},
		{"an argument twice", `{ repository(owner: "a", name: "b", owner: "c") { id } }`, ``, "INVALID", `the field "repository" has the argument "owner" twice`},
		{"a syntax error", "{\n  viewer {{ login }", ``, "PARSE_ERROR", `parse GraphQL query: line 2, column 11: Expected Name, found {`},
		{"a long query", `{ a } #` + strings.Repeat("x", 256<<10), ``, "TOO_COMPLEX", `parse GraphQL query: it has more than 256 KiB or 10000 lines; send long values as variables`},
		{"many lines", `{ a }` + strings.Repeat("\n", 10_001), ``, "TOO_COMPLEX", `10000 lines;`},
		{"many tokens", `{` + strings.Repeat("a ", 20_000) + `}`, ``, "TOO_COMPLEX", `parse GraphQL query: it has more than 20000 tokens; split it into several calls`},
		{"many tokens in arguments", `mutation($v: I!) { a(ids: $v) }`, `"variables":{"v":["",` + strings.Repeat(`{"a":1},`, 19_000) + `""]}`, "TOO_COMPLEX", `read GraphQL variables: the arguments have more than 20000 tokens; split the call`},
		{"deep nesting", strings.Repeat("{a", 1001), ``, "TOO_COMPLEX", `nested too deep`},
		{"no operation", `fragment f on User { login }`, ``, "INVALID", `it has no operation`},
		{"an unknown operation", `query a { viewer { login } }`, `"operationName":"b"`, "INVALID", `it has no operation named "b"; correct operationName`},
		{"an ambiguous operation", `query a { viewer { login } } query b { viewer { login } }`, ``, "INVALID", `it has 2 operations; name one in operationName`},
		{"an operation twice", `query a { viewer { login } } query a { viewer { id } }`, `"operationName":"a"`, "INVALID", `it has 2 operations named "a"; use unique names`},
	} {
		_, err := ParseGraphQL(graphQLBody(c.query, stdcmp.Or(c.members, `"variables":null`)))
		kind, message := refusal(t, err)
		failIf(t, kind != c.kind || !strings.Contains(message, c.message), "%s: got %s %q, want %s %q", c.name, kind, message, c.kind, c.message)
	}
	_, err := ParseGraphQL(graphQLBody(`{`))
	text, jsonErr := json.Marshal([]error{err})
	failIf(t, jsonErr != nil || !strings.HasPrefix(string(text), `[{"type":"PARSE_ERROR","message":"parse GraphQL query: line 1,`), "got the JSON %s, %v", text, jsonErr)
}

func TestParseGraphQLDoesNotJudgeUnreadableBodies(t *testing.T) {
	for _, body := range []string{
		``, `null`, `[]`, `"{ a }"`, `{`, `{"query":"{ a }"`, `{"query":"{ a }"} {}`, `{"query":5}`, `{"query":null}`, `{"query":""}`, `{}`,
		`{"query":"{ a }","query":"{ a }"}`, `{"query":"{ a }","Query":"mutation { a }"}`, `{"Query":"{ a }"}`,
		`{"query":"{ a }","variables":"{}"}`, `{"query":"{ a }","variables":[]}`, `{"query":"{ a }","variables":{"a":1,"a":2}}`,
		`{"query":"{ a }","variables":{` + numbered(5001, `"v%d":1,`) + `"v":1}}`,
		`{"query":"{ a }","variables":{"a":[` + strings.Repeat("1,", 20_001) + `1]}}`,
		`{"query":"{ a }","variables":{"a":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}}`,
		`{"query":"{ a }","operationName":1}`, `{"query":"{ a }","extensions":{"persistedQuery":{"sha256Hash":1}}}`,
	} {
		call, err := ParseGraphQL([]byte(body))
		failIf(t, err != nil || call.Kind != "" || call.Cost != 1, "%.60s: got kind %q, cost %d, %v; want an unreadable body", body, call.Kind, call.Cost, err)
	}
}

func TestParseGraphQLIdentifiesOperations(t *testing.T) {
	hash := func(query string, members ...string) string {
		call, err := ParseGraphQL(graphQLBody(query, members...))
		stopIf(t, err != nil, "%s: %v", query, err)
		return call.Hash
	}
	base := hash(`query q($n: Int!) { viewer { repositories(first: $n, after: "") { totalCount } } }`, `"variables":{"n":1}`)
	for _, same := range []string{
		"# a comment\nquery q($n:Int!){viewer{repositories(first:$n after:\"\"){totalCount}}}",
		`query q ( $n : Int! , ) { viewer { repositories ( first : $n , after : "" , ) { totalCount , } } }`,
	} {
		wantEqual(t, same, base, hash(same, `"variables":{"n":2}`, `"operationName":"q"`))
	}
	seen := map[string]string{base: "base"}
	for _, other := range []string{
		`query r($n: Int!) { viewer { repositories(first: $n, after: "") { totalCount } } }`,
		`query q($n: Int!) { viewer { repositories(first: $n, after: "a") { totalCount } } }`,
		`query q($n: Int!) { viewer { repositories(first: $n, after: """a""") { totalCount } } }`,
		`query q($n: Int) { viewer { repositories(first: $n, after: "") { totalCount } } }`,
		`query q($n: Int!) { viewer { r: repositories(first: $n, after: "") { totalCount } } }`,
		`query q($n: Int!) { viewer { repositories(first: $n, after: "\u0000 a: \u0000") { totalCount } } }`,
		`{ a(b: ["x", "y"]) }`, fmt.Sprintf(`{ a(b: ["x\u%04x\u0000y"]) }`, int(lexer.String)),
		`{ a b }`, `{ ab }`, `{ a(b: "c d") }`, `{ a(b: ["c", "d"]) }`,
	} {
		got := hash(other)
		failIf(t, seen[got] != "", "%s has the hash of %s", other, seen[got])
		seen[got] = other
	}
	two := `query a { viewer { login } } query b { viewer { login } }`
	failIf(t, hash(two, `"operationName":"a"`) == hash(two, `"operationName":"b"`), "two operations of one document have one hash")

	sum := "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" // of "abc"
	call, err := ParseGraphQL([]byte(`{"query":null,"extensions":{"persistedQuery":{"version":1,"sha256Hash":"` + sum + `"},"other":{}}}`))
	failIf(t, err != nil || call.Persisted != sum, "got the persisted hash %q, %v; want %q", call.Persisted, err, sum)
	call, _ = ParseGraphQL(graphQLBody("abc", `"extensions":{"persistedQuery":{"sha256Hash":"false"}}`))
	failIf(t, call.Persisted != sum, "got the persisted hash %q, want the hash of the text", call.Persisted)
}

// TestParseGraphQLMatchesExpansion compares the figures with an expansion of all fragments.
func TestParseGraphQLMatchesExpansion(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := drawGraphQL(t)
		call, err := ParseGraphQL(graphQLBody(q.String(), `"variables":{"v3":3,"yes":true,"no":false}`))
		requests, nodes, fields, depth := q.expand(q.root)
		if nodes > 500_000 {
			if kind, _ := refusal(t, err); kind != "MAX_NODE_LIMIT_EXCEEDED" {
				t.Fatalf("%s: got %v, want the node limit", q, err)
			}
		} else if err != nil {
			t.Fatalf("%s: %v", q, err)
		}
		got := [4]int{call.Requests, call.Nodes, call.Fields, call.Depth}
		if want := [4]int{requests, nodes, fields, depth}; got != want {
			t.Fatalf("%s: got requests, nodes, fields, depth %v, want %v", q, got, want)
		}
	})
}

// drawn is a random query: a root set and fragments, of which each uses only later fragments.
type drawn struct {
	root      []drawnSelection
	fragments [][]drawnSelection
}

type drawnSelection struct {
	kind      string // field, inline or spread
	page      string // the value of first, or empty
	size      int
	directive string
	skipped   bool
	spread    int
	set       []drawnSelection
}

func drawGraphQL(t *rapid.T) *drawn {
	q := &drawn{fragments: make([][]drawnSelection, rapid.IntRange(0, 4).Draw(t, "fragments"))}
	for i := range q.fragments {
		q.fragments[i] = q.draw(t, 2, i+1)
	}
	q.root = q.draw(t, 3, 0)
	return q
}

func (q *drawn) draw(t *rapid.T, depth, fragment int) []drawnSelection {
	kinds := []string{"field"}
	if depth > 0 {
		kinds = append(kinds, "inline")
	}
	if fragment < len(q.fragments) {
		kinds = append(kinds, "spread")
	}
	set := make([]drawnSelection, rapid.IntRange(1, 3).Draw(t, "selections"))
	for i := range set {
		s := drawnSelection{kind: rapid.SampledFrom(kinds).Draw(t, "kind")}
		switch rapid.IntRange(0, 8).Draw(t, "directive") {
		case 0:
			s.directive, s.skipped = " @skip(if: $yes)", true
		case 1:
			s.directive, s.skipped = " @include(if: false)", true
		case 2:
			s.directive = " @skip(if: $no) @include(if: $unknown)"
		}
		switch s.kind {
		case "spread":
			s.spread = rapid.IntRange(fragment, len(q.fragments)-1).Draw(t, "spread")
		case "inline":
			s.set = q.draw(t, depth-1, fragment)
		case "field":
			if depth > 0 && rapid.Bool().Draw(t, "deep") {
				s.set = q.draw(t, depth-1, fragment)
			}
			pages := map[string]int{"": 0, "1": 1, "7": 7, "100": 100, "$v3": 3, "$d5": 5, "$unknown": 100}
			s.page = rapid.SampledFrom(slices.Sorted(maps.Keys(pages))).Draw(t, "page")
			s.size = pages[s.page]
		}
		set[i] = s
	}
	return set
}

func (q *drawn) String() string {
	text := "query($v3: Int!, $d5: Int = 5, $yes: Boolean!, $no: Boolean!, $unknown: X) " + q.text(q.root)
	for i, set := range q.fragments {
		text += fmt.Sprintf(" fragment f%d on T %s", i, q.text(set))
	}
	return text
}

func (q *drawn) text(set []drawnSelection) string {
	text := "{"
	for i, s := range set {
		switch s.kind {
		case "spread":
			text += fmt.Sprintf(" ...f%d%s", s.spread, s.directive)
		case "inline":
			text += " ..." + s.directive + q.text(s.set)
		case "field":
			text += fmt.Sprintf(" a%d: x", i)
			if s.page != "" {
				text += "(first: " + s.page + ")"
			}
			text += s.directive
			if s.set != nil {
				text += q.text(s.set)
			}
		}
	}
	return text + " }"
}

// expand visits each field as often as the query uses it.
func (q *drawn) expand(set []drawnSelection) (requests, nodes, fields, depth int) {
	for _, s := range set {
		if s.skipped {
			continue
		}
		below := s.set
		if s.kind == "spread" {
			below = q.fragments[s.spread]
		}
		r, n, f, d := q.expand(below)
		if s.kind == "field" {
			f, d = f+1, d+1
			if s.page != "" {
				r, n = 1+s.size*r, s.size+s.size*n
			}
		}
		requests, nodes, fields, depth = requests+r, nodes+n, fields+f, max(depth, d)
	}
	return requests, nodes, fields, depth
}

func TestGraphQLRulesCheckCalls(t *testing.T) {
	const repo = `{ repository(owner: "Octo", name: "hello") { issues(first: 10) { nodes { title author { login } } } } }`
	for _, c := range []struct {
		name    string
		rules   GraphQLRules
		query   string
		message string // of the refusal; empty if the call is allowed
	}{
		{"no rules", GraphQLRules{}, `mutation { a }`, ""},
		{"read only", GraphQLRules{ReadOnly: true}, repo, ""},
		{"read only, mutation", GraphQLRules{ReadOnly: true}, `mutation { addStar { id } }`, "it is a mutation (addStar); this client may only read"},
		{"read only, subscription", GraphQLRules{ReadOnly: true}, `subscription { a }`, "it is a subscription (a)"},
		{"depth", GraphQLRules{Depth: 4}, `{ a { b { c { d } } } }`, ""},
		{"too deep", GraphQLRules{Depth: 3}, `{ a { b { c { d } } } }`, "its fields are nested 4 deep, more than the limit of 3"},
		{"nodes", GraphQLRules{Nodes: 10}, repo, ""},
		{"too many nodes", GraphQLRules{Nodes: 9}, repo, "it requests up to 10 nodes, more than the limit of 9; reduce first or last of issues (10)"},
		{"cost", GraphQLRules{Cost: 1}, repo, ""},
		{"too expensive", GraphQLRules{Cost: 1}, `{ a(first: 100) { b { totalCount } } }`, "it may cost 2, more than the limit of 1; reduce first or last of a (100)"},
		{"too expensive without pages", GraphQLRules{Cost: 1}, `{` + strings.Repeat(" a { totalCount }", 101) + `}`, "reduce first or last of its connections"},
		{"an operation", GraphQLRules{Operations: []string{"Other", "List*"}}, `query ListIssues { a }`, ""},
		{"another operation", GraphQLRules{Operations: []string{"List*"}}, `query listIssues { a }`, `the operation name "listIssues" is not allowed`},
		{"no operation name", GraphQLRules{Operations: []string{"List*"}}, `{ a }`, `the operation name "" is not allowed`},
		{"a persisted query", GraphQLRules{Persisted: []string{hexSHA256([]byte(`{ a }`))}}, `{ a }`, ""},
		{"another query", GraphQLRules{Persisted: []string{hexSHA256([]byte(`{ a }`))}}, `{ a  }`, "the query is not one of the allowed persisted queries"},
		{"a repository", GraphQLRules{Repositories: []string{"octo/*"}}, repo, ""},
		{"a repository of another owner", GraphQLRules{Repositories: []string{"acme/*", "octo/h"}}, repo, `the repository "Octo/hello" is not allowed`},
		{"a search of an owner", GraphQLRules{Repositories: []string{"octo/*"}}, `{ search(query: "org:octo", type: ISSUE, first: 1) { issueCount } }`, ""},
		{"a search of a part of an owner", GraphQLRules{Repositories: []string{"octo/h*"}}, `{ search(query: "org:octo", type: ISSUE, first: 1) { issueCount } }`, `not all repositories of octo are in its scope`},
	} {
		call, err := ParseGraphQL(graphQLBody(c.query))
		stopIf(t, err != nil, "%s: %v", c.name, err)
		err = c.rules.Check(call)
		if err == nil && len(c.rules.Repositories) > 0 {
			_, err = (&Scope{GraphQL: &c.rules}).PermitsQuery(call, nil)
		}
		kind, message := refusal(t, err)
		allowed := kind == ""
		failIf(t, allowed != (c.message == "") || !allowed && (kind != "FORBIDDEN" || !strings.Contains(message, c.message)), "%s: got %s %q, want %q", c.name, kind, message, c.message)
	}
	err := (*GraphQLRules)(nil).Check(&GraphQLCall{})
	failIf(t, err != nil, "nil rules: %v", err)
	for _, rules := range []GraphQLRules{{ReadOnly: true}, {Depth: 1}, {Nodes: 1}, {Cost: 1}, {Operations: []string{"*"}}, {Repositories: []string{"*"}}, {Persisted: []string{"a"}}} {
		call, _ := ParseGraphQL([]byte(`[]`))
		failIf(t, rules.Check(call) == nil, "%+v allow an unreadable body", rules)
	}
}

func TestRepositoryRulesRefuseOtherWaysToRepositories(t *testing.T) {
	inside := func(fields string) string { return `{ repository(owner: "octo", name: "hello") { ` + fields + ` } }` }
	scope := Scope{GraphQL: &GraphQLRules{Repositories: []string{"octo/hello"}}}
	for _, c := range []struct {
		query string
		field string // that the refusal names; empty if the call is allowed
	}{
		{`{ rateLimit { cost } __typename __type(name: "Issue") { fields { name } } }`, ""},
		{inside(`owner { login } parent: isFork pullRequests(first: 5) { nodes { headRepositoryOwner { id login ... on User { name } } } }`), ""},
		{inside(`pullRequest(number: 1) { reviewRequests(first: 9) { nodes { requestedReviewer { ... on Team { organization { login } slug } } } } }`), ""},
		{inside(`issue(number: 1) { assignees(first: 9) { nodes { login } } repository { nameWithOwner } }`), ""},
		{`query($o: String!) { repository(owner: $o, name: "hello") { id } }`, "repository with an unknown owner or name"},
		{`{ repository(owner: "octo") { id } }`, "repository"},
		{`{ viewer { login } }`, ""},
		{`{ search { issueCount } }`, "search"},
		{`{ node { ... on Repository { issues(first: 1) { nodes { title } } } } }`, "issues"},
		{`{ nodes(ids: 7) { id } }`, "nodes"},
		{`{ organization(login: "octo") { repositories(first: 1) { nodes { name } } } }`, "repositories"},
		{`{ ...f } fragment f on Query { viewer { email } }`, "viewer"},
		{`mutation { addStar(input: {starrableId: "R_1"}) { clientMutationId } }`, "addStar"},
		{inside(`owner { repositories(first: 1) { nodes { name } } }`), "repositories"},
		{inside(`owner { repository(name: "secret") { description } }`), "repository"},
		{inside(`owner { ...f } } } fragment f on User { issues(first: 1) { nodes { title }`), "owner.issues"},
		{inside(`issues(first: 1) { nodes { author { ... on User { pullRequests(first: 1) { nodes { title } } } } } }`), "author.pullRequests"},
		{inside(`forks(first: 1) { nodes { name } }`), "forks"},
		{inside(`issue(number: 1) { timelineItems(first: 1) { nodes { ... on CrossReferencedEvent { source { ... on Issue { title } } } } } }`), "source"},
		{inside(`issue(number: 1) { timelineItems(first: 1) { nodes { ... on LabeledEvent { label { name } actor { login } } } } }`), ""},
		{inside(`issue(number: 1) { timelineItems(first: 1) { nodes { ... on ReferencedEvent { commit { message } } } } }`), "timelineItems.commit"},
		{inside(`issue(number: 1) { timelineItems(first: 1) { ...f } } } } fragment g on ReferencedEvent { commit { tree { entries { name } } } } fragment f on I { edges { node { ...g }`), "timelineItems.commit"},
		{inside(`issues(first: 1) { nodes { timelineItems(first: 1) { nodes { ... on ConnectedEvent { subject { ... on Issue { title } } } } } } }`), "timelineItems.subject"},
		{inside(`pullRequest(number: 1) { timelineItems(first: 1) { nodes { ... on HeadRefForcePushedEvent { ref { target { oid } } } } } }`), "timelineItems.ref"},
		{inside(`pullRequest(number: 1) { headRef { target { oid } } }`), "headRef"},
		{inside(`pullRequest(number: 1) { headRepository { issues(first: 1) { nodes { title } } } }`), "headRepository.issues"},
		{inside(`pullRequest(number: 1) { commits(first: 1) { nodes { commit { repository { object(oid: "a") { id } } } } } }`), "repository.object"},
		{inside(`issue(number: 1) { issueType { issues(repositoryId: "R_1", first: 1) { nodes { title } } } }`), "issueType.issues"},
		{inside(`repositoryTopics(first: 1) { nodes { topic { repositories(first: 1) { nodes { name } } } } }`), "repositories"},
		{inside(`defaultBranchRef { target { ... on Commit { checkSuites(first: 1) { nodes { matchingPullRequests(first: 1) { nodes { title } } } } } } }`), "matchingPullRequests"},
		{inside(`discussions(first: 1) { nodes { comments(first: 1) { nodes { issue { title } ref { name } } } } }`), "comments.ref"},
		{inside(`target { oid }`), "repository.target"},
		{inside(`stargazers(first: 1) { nodes { login } } pullRequest(number: 1) { headRepository { nameWithOwner owner { login } } }`), ""},
		{inside(`pullRequest(number: 1) { headRepository { assignableUsers(first: 9) { nodes { login } } } }`), "headRepository.assignableUsers"},
		{inside(`pullRequest(number: 1) { commits(first: 1) { nodes { commit { author { user { login } } } } } }`), ""},
	} {
		call, err := ParseGraphQL(graphQLBody(c.query))
		stopIf(t, err != nil, "%s: %v", c.query, err)
		want := ""
		if c.field != "" {
			want = fmt.Sprintf("check GraphQL query: the field %q may reach other repositories; use repository(owner:, name:)", c.field)
		}
		_, err = scope.PermitsQuery(call, func(ids []string) ([]Node, error) { return make([]Node, len(ids)), nil })
		_, message := refusal(t, err)
		wantEqual(t, c.query, want, message)
	}
}

// numbered formats the numbers from 0 with a text, n times. The second argument of the text is the next number.
func numbered(n int, format string) string {
	if !strings.Contains(format, "[2]") {
		format += "%.0[2]d"
	}
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i, i+1)
	}
	return b.String()
}

// bombs returns bodies that make careless analyses slow.
func bombs() map[string][]byte {
	doubling := "{ ...f0 }" + numbered(700, " fragment f%d on T { a(first: 100) { ...f%[2]d } b(first: 100) { ...f%[2]d } }") + " fragment f700 on T { a }"
	chain := "{ ...f0 }" + numbered(1500, " fragment f%d on T { a { ...f%[2]d } }") + " fragment f1500 on T { ...f0 }"
	long, megabyte := strings.Repeat("x", 200<<10), strings.Repeat("x", 1<<20-200)
	ids := strings.Repeat(`"x",`, 19_000)
	return map[string][]byte{
		"depth of 20,000":             graphQLBody(strings.Repeat("{a", 20_000) + strings.Repeat("}", 20_000)),
		"10,000 aliases":              graphQLBody("{" + strings.Repeat(" a:b(first:1){c}", 10_000) + "}"),
		"aliases within the limit":    graphQLBody("{" + strings.Repeat(" a:b(first:1)", 2400) + "}"),
		"a cycle of 1,500 fragments":  graphQLBody(chain),
		"fragments that double":       graphQLBody(doubling),
		"1 MB of names":               graphQLBody("{" + megabyte + "}"),
		"a long name":                 graphQLBody("{" + long + "}"),
		"a long wrong name":           graphQLBody(long),
		"a long comment":              graphQLBody("#" + long + "\n{a}"),
		"comments":                    graphQLBody(strings.Repeat("#\n", 9000) + "{a}"),
		"a block of lines":            graphQLBody(`{a(b:"""` + strings.Repeat(" x\n", 9000) + `""")}`),
		"a block of more lines":       graphQLBody(`{a(b:"""` + strings.Repeat("\n", 80_000) + `""")}`),
		"a long block":                graphQLBody(`{a(b:"""` + long + `""")}`),
		"escapes":                     graphQLBody(`{a(b:"` + strings.Repeat(`\\`, 60<<10) + `")}`),
		"nested lists":                graphQLBody(`{a(b:` + strings.Repeat("[", 990) + `"` + long + `"` + strings.Repeat("]", 990) + `)}`),
		"directives":                  graphQLBody("{a" + strings.Repeat(" @skip(if:false)", 2800) + "}"),
		"arguments":                   graphQLBody("{a(" + strings.Repeat("b:1 ", 6000) + ")}"),
		"operations":                  graphQLBody(strings.Repeat("query a{b}", 3900)),
		"variables with one default":  graphQLBody("mutation($v:I=["+strings.Repeat("1 ", 9000)+"]){"+strings.Repeat("a(b:$v)", 1200)+"}", `"variables":null`),
		"numbers of 200 KB":           graphQLBody("query($v:Int="+strings.Repeat("9", 200<<10)+"){"+strings.Repeat("a(first:$v)", 1500)+"}", `"variables":null`),
		"deep variables":              graphQLBody("{a}", `"variables":{"v":`+strings.Repeat("[", 400_000)+strings.Repeat("]", 400_000)+`}`),
		"deep variables in the limit": graphQLBody("mutation($v:I!){a(id:$v)}", `"variables":{"v":`+strings.Repeat("[", 9900)+strings.Repeat("]", 9900)+`}`),
		"many variables":              graphQLBody("{a}", `"variables":{"v":1`+strings.Repeat(`,"v":1`, 150_000)+`}`),
		"many elements":               graphQLBody("mutation($v:I!){a(id:$v)}", `"variables":{"v":[`+strings.Repeat(`"x",`, 250_000)+`"x"]}`),
		"many members":                graphQLBody("{a}", `"variables":{`+numbered(19_000, `"v%d":[],`)+`"v":1}`),
		"many IDs":                    graphQLBody("mutation($v:I!){"+strings.Repeat("a(id:$v)", 1500)+"}", `"variables":{"v":[`+ids+`"x"]}`),
		"many nodes":                  graphQLBody("query($v:[ID!]!){"+strings.Repeat("nodes(ids:$v){a}", 1500)+"}", `"variables":{"v":[`+ids+`"x"]}`),
		"a variable under many names": graphQLBody("mutation($v:I!){a("+strings.Repeat("x", 10)+":$v "+strings.Repeat("b:$v ", 3000)+")}", `"variables":{"v":"`+strings.Repeat("x", 900<<10)+`"}`),
		"long repository names":       graphQLBody("query($v:String!){"+strings.Repeat("repository(owner:$v name:$v){a}", 1200)+"}", `"variables":{"v":"`+strings.Repeat("x", 900<<10)+`"}`),
		"rate limits":                 graphQLBody("{" + strings.Repeat("rateLimit{...f}", 1500) + "} fragment f on R {" + strings.Repeat("a ", 9000) + "}"),
	}
}

// TestParseGraphQLBoundsItsWork counts allocations, because the duration depends on the machine. BenchmarkGraphQLBombs
// measures it.
func TestParseGraphQLBoundsItsWork(t *testing.T) {
	for name, body := range bombs() {
		failIf(t, len(body) > 1<<20, "%s: the body has %d bytes, more than a request may have", name, len(body))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _ = ParseGraphQL(body)
		runtime.ReadMemStats(&after)
		if n := after.Mallocs - before.Mallocs; n > 80_000 {
			t.Errorf("%s: %d allocations, want at most 80000", name, n)
		}
		n := after.TotalAlloc - before.TotalAlloc
		failIf(t, n > 12<<20, "%s: allocates %d bytes, want at most 12 MiB", name, n)
	}
}

// TestParseGraphQLVisitsFragmentsOnce checks figures that an expansion of the fragments would never finish to count.
func TestParseGraphQLVisitsFragmentsOnce(t *testing.T) {
	call, err := ParseGraphQL(bombs()["fragments that double"])
	kind, message := refusal(t, err)
	failIf(t, kind != "MAX_NODE_LIMIT_EXCEEDED" || !strings.Contains(message, "of a (100), a (100), a (100), a (100), a (100)"), "got %s %s, want the node limit with five connections", kind, message)
	failIf(t, call.Nodes != math.MaxInt || call.Requests != math.MaxInt || call.Fields != math.MaxInt || call.Cost != math.MaxInt/100+1 || call.Depth != 701, "got %d nodes, %d requests, %d fields, %d points, depth %d; want saturated figures and depth 701",
		call.Nodes, call.Requests, call.Fields, call.Cost, call.Depth)
}

func BenchmarkGraphQLBombs(b *testing.B) {
	for name, body := range bombs() {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = ParseGraphQL(body)
			}
		})
	}
}

func FuzzGraphQLCall(f *testing.F) {
	for _, c := range pricedQueries {
		f.Add(graphQLBody(c.query, `"variables":`+stdcmp.Or(c.variables, "null")))
	}
	f.Add([]byte(`{"query":"mutation($v:I!){a(input:$v){b}}","operationName":null,"variables":{"v":{"xIds":["1"],"c":{"repositoryNameWithOwner":"a/b"}}}}`))
	f.Add([]byte(`{"query":"{...f} fragment f on T {a{...f}}"}`))
	f.Add([]byte(`{"extensions":{"persistedQuery":{"sha256Hash":"a"}}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		call, err := ParseGraphQL(body)
		kind, message := refusal(t, err)
		failIf(t, err != nil && (kind == "" || message == "" || len(message) > 1000), "got the error %q of type %q", message, kind)
		failIf(t, call.Cost < 1 || call.Requests < 0 || call.Nodes < 0 || call.Fields < 0 || call.Depth < 0 || call.Depth > call.Fields, "got the figures %+v", call)
		failIf(t, err == nil && call.Kind != "" && (call.Depth == 0) != (len(call.RootFields) == 0), "got depth %d and the root fields %q", call.Depth, call.RootFields)
		again, _ := ParseGraphQL(append([]byte(" "), body...))
		wantEqual(t, "whitespace changes the call", call, again, cmpopts.IgnoreUnexported(GraphQLCall{}))
		allowed := (&GraphQLRules{ReadOnly: true}).Check(call) == nil
		failIf(t, allowed != (call.Kind == GraphQLQuery), "the read-only rule allows %v for the kind %q", allowed, call.Kind)
	})
}
