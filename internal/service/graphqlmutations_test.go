package service

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestGraphQLMutationsChangeTheState checks each mutation with the query that follows.
func TestGraphQLMutationsChangeTheState(t *testing.T) {
	runWithService(t, func(t *tester) {
		ask := func(query string) string { return t.queryGraphQL("owner", string(encode(object{{"query", query}}))) }
		for _, c := range []struct{ mutation, want, query, then string }{
			{`mutation { createIssue(input: {repositoryId: "R_1001", title: "new", body: "text", clientMutationId: "m"}) { clientMutationId issue { id url } } }`,
				`{"data":{"createIssue":{"clientMutationId":"m","issue":{"id":"I_1001000037","url":"http://api.test/acme/widgets/issues/37"}}}}`,
				`{ repository(owner: "acme", name: "widgets") { issues(last: 1, orderBy: {field: CREATED_AT, direction: ASC}) { totalCount nodes { title body author { login } } } } }`,
				`"totalCount":25,"nodes":[{"title":"new","body":"text","author":{"login":"acme-owner"}}]`},
			{`mutation { addComment(input: {subjectId: "PR_1001000036", body: "hi"}) { commentEdge { node { url } } subject { id } } }`,
				`{"data":{"addComment":{"commentEdge":{"node":{"url":"http://api.test/acme/widgets/pull/36#issuecomment-80"}},"subject":{"id":"PR_1001000036"}}}}`,
				`{ node(id: "PR_1001000036") { ... on PullRequest { comments(last: 1) { nodes { body author { login } } } } } }`, `"nodes":[{"body":"hi","author":{"login":"acme-owner"}}]`},
			{`mutation { closeIssue(input: {issueId: "I_1001000037", stateReason: NOT_PLANNED}) { issue { closed } } }`, `{"data":{"closeIssue":{"issue":{"closed":true}}}}`,
				`{ node(id: "I_1001000037") { ... on Issue { state stateReason } } }`, `{"state":"CLOSED","stateReason":"NOT_PLANNED"}`},
			{`mutation { updatePullRequest(input: {pullRequestId: "PR_1001000025", title: "better", state: CLOSED}) { pullRequest { title } } }`, `{"data":{"updatePullRequest":{"pullRequest":{"title":"better"}}}}`,
				`{ node(id: "PR_1001000025") { ... on PullRequest { title state body } } }`, `{"title":"better","state":"CLOSED","body":"The old part no longer fits."}`},
			{`mutation { updatePullRequest(input: {pullRequestId: "PR_1001000025", body: "", state: OPEN}) { pullRequest { title } } }`, `{"data":{"updatePullRequest":{"pullRequest":{"title":"better"}}}}`,
				`{ node(id: "PR_1001000025") { ... on PullRequest { title state body closedAt } } }`, `{"title":"better","state":"OPEN","body":"","closedAt":null}`},
			{`mutation { updatePullRequest(input: {pullRequestId: "PR_1001000025"}) { pullRequest { title } } }`, `{"data":{"updatePullRequest":{"pullRequest":{"title":"better"}}}}`,
				`{ repository(owner: "acme", name: "widgets") { pullRequests(first: 1, orderBy: {field: UPDATED_AT, direction: DESC}) { nodes { number } } } }`, `[{"number":25}]`},
		} {
			time.Sleep(time.Minute)
			if got := ask(c.mutation); got != c.want {
				t.Errorf("%s:\ngot  %s\nwant %s", c.mutation, got, c.want)
			}
			if got := ask(c.query); !strings.Contains(got, c.then) {
				t.Errorf("%s:\ngot  %s\nwant %s", c.query, got, c.then)
			}
		}
		if n := decode[jsonObject](t, t.get("owner", "/search/issues?q=text+in:body"))["total_count"]; n != 1.0 {
			t.Errorf("the REST search finds %v new issues, want 1", n)
		}
	})
}

func TestGraphQLMutationsRefuseCallers(t *testing.T) {
	const (
		comment = `mutation { addComment(input: {subjectId: "I_1001000001", body: "hi"}) { subject { id } } }`
		finish  = `mutation { closeIssue(input: {issueId: "I_1001000001"}) { issue { id } } }`
		create  = `mutation { createIssue(input: {repositoryId: "R_1001", title: "new"}) { issue { id } } }`
		secret  = `mutation { createIssue(input: {repositoryId: "R_1002", title: "new"}) { issue { id } } }`
		update  = `mutation { updatePullRequest(input: {pullRequestId: "PR_1001000025", title: "x"}) { pullRequest { id } } }`
	)
	runWithService(t, func(t *tester) {
		for _, c := range []struct{ credential, mutation, want string }{
			{"member", finish, `"id"`}, {"fine-grained", comment, `"id"`}, {"outsider", comment, `"id"`}, {"outsider", create, `"id"`},
			{"outsider", finish, "FORBIDDEN"}, {"outsider", update, "FORBIDDEN"}, {"outsider", secret, "NOT_FOUND"}, {"member", secret, `"id"`},
			{"public", comment, "FORBIDDEN"}, {"read-only", create, "FORBIDDEN"}, {"app", create, "FORBIDDEN"}, {"workflow", update, "FORBIDDEN"},
			{"owner", `mutation { createIssue(input: {repositoryId: "I_1001999999", title: "new"}) { issue { id } } }`, "NOT_FOUND"},
			{"owner", `mutation { createIssue(input: {repositoryId: "I_1001000001", title: "new"}) { issue { id } } }`, "NOT_FOUND"},
			{"owner", `mutation { createIssue(input: {repositoryId: "R_1001", title: ""}) { issue { id } } }`, "UNPROCESSABLE"},
			{"owner", `mutation { addComment(input: {subjectId: "I_1001000001", body: ""}) { subject { id } } }`, "UNPROCESSABLE"},
			{"owner", `mutation { updatePullRequest(input: {pullRequestId: "PR_1001000030", state: OPEN}) { pullRequest { id } } }`, "UNPROCESSABLE"}, // merged
		} {
			if got := t.queryGraphQL(c.credential, string(encode(object{{"query", c.mutation}}))); !strings.Contains(got, c.want) || strings.Contains(got, "errors") == (c.want == `"id"`) {
				t.Errorf("%s: %s:\ngot  %s\nwant %s", c.credential, c.mutation, got, c.want)
			}
		}
		t.wantStatus(t.do("owner", http.MethodPost, "/orgs/acme/migrations", `{"repositories":["acme/widgets"],"lock_repositories":true}`), http.StatusCreated)
		if got := t.queryGraphQL("owner", string(encode(object{{"query", create}}))); !strings.Contains(got, lockedForMigration) {
			t.Errorf("got %s for a locked repository", got)
		}
	})
}
