package service

import (
	"strings"
	"testing"
	"time"
)

// TestGraphQLMutationsChangeTheState checks each mutation with the query that follows.
func TestGraphQLMutationsChangeTheState(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, c := range []struct{ mutation, want, query, then string }{
			{`mutation { createIssue(input: {repositoryId: "R_1001", title: "new", body: "text", clientMutationId: "m"}) { clientMutationId issue { id url } } }`,
				`{"data":{"createIssue":{"clientMutationId":"m","issue":{"id":"I_1001000037","url":"http://api.test/acme/widgets/issues/37"}}}}`,
				`{ repository(owner: "acme", name: "widgets") { issues(last: 1, orderBy: {field: CREATED_AT, direction: ASC}) { totalCount nodes { title body author { login } } } } }`,
				`"totalCount":25,"nodes":[{"title":"new","body":"text","author":{"login":"acme-owner"}}]`},
			{`mutation { addComment(input: {subjectId: "PR_1001000036", body: "hi"}) { commentEdge { node { url } } subject { id } } }`,
				`{"data":{"addComment":{"commentEdge":{"node":{"url":"http://api.test/acme/widgets/pull/36#issuecomment-10201"}},"subject":{"id":"PR_1001000036"}}}}`,
				`{ node(id: "PR_1001000036") { ... on PullRequest { comments(last: 1) { nodes { body author { login } } } } } }`, `"nodes":[{"body":"hi","author":{"login":"acme-owner"}}]`},
			{`mutation { closeIssue(input: {issueId: "I_1001000037", stateReason: NOT_PLANNED}) { issue { closed } } }`, `{"data":{"closeIssue":{"issue":{"closed":true}}}}`,
				`{ node(id: "I_1001000037") { ... on Issue { state stateReason } } }`, `{"data":{"node":{"state":"CLOSED","stateReason":"NOT_PLANNED"}}}`},
			{`mutation { updatePullRequest(input: {pullRequestId: "PR_1001000025", title: "better", state: CLOSED}) { pullRequest { title } } }`, `{"data":{"updatePullRequest":{"pullRequest":{"title":"better"}}}}`,
				`{ node(id: "PR_1001000025") { ... on PullRequest { title state body } } }`,
				`{"data":{"node":{"title":"better","state":"CLOSED","body":"The old part no longer fits."}}}`},
			{`mutation { updatePullRequest(input: {pullRequestId: "PR_1001000025", body: "", state: OPEN}) { pullRequest { title } } }`, `{"data":{"updatePullRequest":{"pullRequest":{"title":"better"}}}}`,
				`{ node(id: "PR_1001000025") { ... on PullRequest { title state body closedAt } } }`,
				`{"data":{"node":{"title":"better","state":"OPEN","body":"","closedAt":null}}}`},
			{`mutation { updatePullRequest(input: {pullRequestId: "PR_1001000025"}) { pullRequest { title } } }`, `{"data":{"updatePullRequest":{"pullRequest":{"title":"better"}}}}`,
				`{ repository(owner: "acme", name: "widgets") { pullRequests(first: 1, orderBy: {field: UPDATED_AT, direction: DESC}) { nodes { number } } } }`,
				`"nodes":[{"number":25}]`},
		} {
			time.Sleep(time.Minute)
			t.call("owner", graphQLRequest(c.mutation), 200, "="+c.want)
			t.call("owner", graphQLRequest(c.query), 200, c.then)
		}
		t.call("owner", "GET /search/issues?q=text+in:body", 200, `{"total_count":1}`) // the REST search finds the new issue
	})
}

func TestMutationChangesTheStateOfTheRESTAPI(t *testing.T) {
	runWithService(t, func(t *tester) {
		const subscription = "GET /repos/acme/widgets/subscription"
		watch := func(id, state string) string {
			return `POST /graphql {"variables":{"s":"` + state + `"},"query":"mutation M($s: SubscriptionState!) { updateSubscription(` +
				`input: {subscribableId: \"` + id + `\", state: $s, clientMutationId: \"m\"}) { clientMutationId subscribable { viewerSubscription } } }"}`
		}
		for _, c := range []struct {
			state  string
			status int
			want   string
		}{
			{"SUBSCRIBED", 200, `{"subscribed":true,"ignored":false}`}, {"IGNORED", 200, `{"subscribed":false,"ignored":true}`}, {"UNSUBSCRIBED", 404, ""},
		} {
			t.call("owner", watch("R_1001", c.state), 200,
				`={"data":{"updateSubscription":{"clientMutationId":"m","subscribable":{"viewerSubscription":"`+c.state+`"}}}}`)
			t.call("owner", subscription, c.status, c.want)
		}
		t.call("outsider", watch("R_1002", "SUBSCRIBED"), 200, "NOT_FOUND") // an invisible repository
		t.call("owner", graphQLRequest("{ rateLimit { used cost } }"), 200, `={"data":{"rateLimit":{"used":4,"cost":1}}}`)
	})
}

func TestGraphQLMutationsRefuseCallers(t *testing.T) {
	const (
		comment = `mutation { addComment(input: {subjectId: "I_1001000001", body: "hi"}) { subject { id } } }`
		finish  = `mutation { closeIssue(input: {issueId: "I_1001000001"}) { issue { id } } }`
		create  = `mutation { createIssue(input: {repositoryId: "R_1001", title: "new"}) { issue { id } } }`
		secret  = `mutation { createIssue(input: {repositoryId: "R_1002", title: "new"}) { issue { id } } }`
		watch   = `mutation { updateSubscription(input: {subscribableId: "R_1001", state: SUBSCRIBED}) { clientMutationId } }`
		update  = `mutation { updatePullRequest(input: {pullRequestId: "PR_1001000025", title: "x"}) { pullRequest { id } } }`
	)
	runWithService(t, func(t *tester) {
		for _, c := range []struct{ as, mutation, want string }{
			{"member", finish, `"id"`}, {"fine-grained", comment, `"id"`}, {"outsider", comment, `"id"`}, {"outsider", create, `"id"`},
			{"outsider", finish, "FORBIDDEN"}, {"outsider", update, "FORBIDDEN"}, {"outsider", secret, "NOT_FOUND"}, {"member", secret, `"id"`},
			{"public", comment, "FORBIDDEN"}, {"read-only", create, "FORBIDDEN"}, {"app", create, "FORBIDDEN"}, {"workflow", update, "FORBIDDEN"},
			// A token that may not watch by REST may not watch by GraphQL either.
			{"owner", watch, "clientMutationId"}, {"app-user", watch, "FORBIDDEN"}, {"fine-grained", watch, "FORBIDDEN"},
			{"read-only", watch, "FORBIDDEN"}, {"app", watch, "FORBIDDEN"},
			{"owner", `mutation { createIssue(input: {repositoryId: "I_1001999999", title: "new"}) { issue { id } } }`, "NOT_FOUND"},
			{"owner", `mutation { createIssue(input: {repositoryId: "I_1001000001", title: "new"}) { issue { id } } }`, "NOT_FOUND"},
			{"owner", `mutation { createIssue(input: {repositoryId: "R_1001", title: ""}) { issue { id } } }`, "UNPROCESSABLE"},
			{"owner", `mutation { addComment(input: {subjectId: "I_1001000001", body: ""}) { subject { id } } }`, "UNPROCESSABLE"},
			{"owner", `mutation { updatePullRequest(input: {pullRequestId: "PR_1001000030", state: OPEN}) { pullRequest { id } } }`, "UNPROCESSABLE"}, // merged
		} {
			w := t.call(c.as, graphQLRequest(c.mutation), 200, c.want)
			refused := strings.ToUpper(c.want) == c.want
			failIf(t, strings.Contains(w.Body.String(), "errors") != refused, "%s: %s: got %s", c.as, c.mutation, w.Body)
		}
		t.call("owner", `POST /orgs/acme/migrations {"repositories":["acme/widgets"],"lock_repositories":true}`, 201, "")
		t.call("owner", graphQLRequest(create), 200, lockedForMigration)
	})
}
