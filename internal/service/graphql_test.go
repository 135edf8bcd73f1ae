package service

import (
	"fmt"
	"strings"
	"testing"
)

// graphQLRequest returns the request of a call with a query.
func graphQLRequest(query string) string {
	return "POST /graphql " + string(encode(object{{"query", query}}))
}

// graphQLCase is a call of the owner, and the exact body of the response.
type graphQLCase struct{ name, body, want string }

func (t *tester) graphQLCases(all []graphQLCase) {
	t.Helper()
	for _, c := range all {
		t.wantEqual(c.name, c.want, t.call("owner", "POST /graphql "+c.body, 200, "").Body.String())
	}
}

func TestGraphQLReturnsSelectedFields(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.graphQLCases([]graphQLCase{
			{"viewer", `{"query":"{ viewer { login databaseId } }"}`, `{"data":{"viewer":{"login":"acme-owner","databaseId":1}}}`},
			{"aliases in the requested order", `{"query":"{ b: viewer { x: login } a: viewer { __typename } }"}`, `{"data":{"b":{"x":"acme-owner"},"a":{"__typename":"User"}}}`},
			{"variables", `{"query":"query Q($name: String!) { repository(owner: \"ACME\", name: $name) { nameWithOwner isPrivate } }","variables":{"name":"secret"}}`,
				`{"data":{"repository":{"nameWithOwner":"acme/secret","isPrivate":true}}}`},
			{"named operation", `{"query":"query A { viewer { login } } query B { viewer { id } }","operationName":"B"}`, `{"data":{"viewer":{"id":"U_1"}}}`},
			{"fragments", `{"query":"{ viewer { ...F ... on User { url } } } fragment F on User { login }"}`, `{"data":{"viewer":{"login":"acme-owner","url":"http://api.test/acme-owner"}}}`},
			{"directives", `{"query":"{ viewer { login @skip(if: true) id @include(if: false) name @include(if: true) } }"}`, `{"data":{"viewer":{"name":"Owner of Acme"}}}`},
			{"repeated field", `{"query":"{ viewer { login } viewer { id } }"}`, `{"data":{"viewer":{"login":"acme-owner","id":"U_1"}}}`},
			{"lists", `{"query":"{ repository(owner: \"acme\", name: \"widgets\") { watchers(first: 2) { totalCount nodes { login } } } }"}`,
				`{"data":{"repository":{"watchers":{"totalCount":64,"nodes":[{"login":"watcher-01"},{"login":"watcher-02"}]}}}}`},
			{"missing repository", `{"query":"{ repository(owner: \"acme\", name: \"none\") { id } }"}`,
				`{"data":{"repository":null},"errors":[{"type":"NOT_FOUND","path":["repository"],"message":"Could not resolve to a Repository with the name 'acme/none'."}]}`},
			{"unknown field", `{"query":"{ viewer { age } }"}`, `{"errors":[{"message":"Cannot query field \"age\" on type \"User\". Did you mean \"name\"?","locations":[{"line":1,"column":12}]}]}`},
			{"missing variable", `{"query":"query Q($n: String!) { repository(owner: \"acme\", name: $n) { id } }"}`, `{"errors":[{"message":"must be defined","path":["variable","n"]}]}`},
			{"unknown operation", `{"query":"query A { viewer { login } }","operationName":"B"}`, `{"errors":[{"message":"No operation named \"B\""}]}`},
		})
	})
}

func TestGraphQLHidesInvisibleRepositories(t *testing.T) {
	secret := graphQLRequest(`{ repository(owner: "acme", name: "secret") { id } }`)
	runCalls(t, []call{
		{"member", secret, 200, "R_1002"},
		{"app", secret, 200, "R_1002"},
		{"outsider", secret, 200, "!R_1002"},
		{"public", secret, 200, "!R_1002"},
		{"", secret, 401, ""},
		{"owner", "POST /graphql {", 400, ""},
		{"app", graphQLRequest("{ viewer { login } }"), 200, `={"data":{"viewer":null}}`},
		{"outsider", graphQLRequest(`{ node(id: "R_1002") { id } }`), 200, "NOT_FOUND"},
		{"outsider", graphQLRequest(`{ node(id: "PR_1002000001") { id } }`), 200, "NOT_FOUND"},
		{"outsider", graphQLRequest(`{ search(query: "repo:acme/secret part", type: ISSUE, first: 1) { issueCount } }`), 200, `"issueCount":0`},
	})
}

func TestDeletedRepositoriesAreInvisible(t *testing.T) {
	runTableCalls(t, []call{
		{"owner", "DELETE /repos/acme/secret", 204, ""},
		{"owner", graphQLRequest(`{ repository(owner: "acme", name: "secret") { id } }`), 200, "NOT_FOUND"},
		{"owner", graphQLRequest(`{ node(id: "PR_1002000001") { id } }`), 200, "NOT_FOUND"},
		{"owner", graphQLRequest(`{ search(query: "repo:acme/secret part", type: ISSUE, first: 1) { issueCount } }`), 200, `"issueCount":0`},
		{"owner", "GET /user/subscriptions", 200, "!acme/secret"},
		{"owner", "GET /search/code?q=part+repo:acme/secret", 422, ""},
	})
}

// TestGraphQLValidatesVariables covers the values of Int and String variables.
func TestGraphQLValidatesVariables(t *testing.T) {
	runWithService(t, func(t *tester) {
		first := `{"query":"query($n: Int!) { repository(owner: \"acme\", name: \"widgets\") { watchers(first: $n) { nodes { login } } } }","variables":{"n":%s}}`
		owner := `{"query":"query($o: String = \"acme\") { repository(owner: $o, name: \"widgets\") { id } }","variables":%s}`
		optional := `{"query":"query($n: Int = 3) { repository(owner: \"acme\", name: \"widgets\") { watchers(first: $n) { nodes { login } } } }","variables":%s}`
		for _, c := range []struct{ query, value, want string }{
			{first, "1", `{"data":{"repository":{"watchers":{"nodes":[{"login":"watcher-01"}]}}}}`},
			{first, "-5", `EXCESSIVE_PAGINATION`}, {first, "1000", `EXCESSIVE_PAGINATION`},
			{first, `"2"`, `errors`}, {first, "1e30", `errors`}, {first, "4294967296", `errors`}, {first, "null", `errors`}, {first, "[1]", `errors`}, {first, "{}", `errors`}, {first, "1.5", `errors`},
			{owner, `{}`, `R_1001`}, {owner, `null`, `R_1001`}, {owner, `{"o":"ACME"}`, `R_1001`}, {owner, `{"o":null}`, `errors`}, {owner, `{"o":7}`, `errors`},
			{optional, `{}`, `watcher-03`}, {optional, `{"n":null}`, `errors`},
		} {
			t.call("owner", "POST /graphql "+fmt.Sprintf(c.query, c.value), 200, c.want)
		}
	})
}

// TestGraphQLBoundsTheCostOfQueries sends queries that would be expensive to execute.
func TestGraphQLBoundsTheCostOfQueries(t *testing.T) {
	runWithService(t, func(t *tester) {
		chain := `query { ...f0 }`
		for i := range 40 {
			chain += fmt.Sprintf(" fragment f%d on Query { ...f%d ...f%d }", i, i+1, i+1)
		}
		chain += " fragment f40 on Query { viewer { login } }"
		var aliases strings.Builder
		for i := range 100 {
			_, _ = fmt.Fprintf(&aliases, " a%d: watchers(first: 100) { nodes { ...F } }", i)
		}
		for _, c := range []struct{ query, want string }{
			{chain, `{"data":{"viewer":{"login":"acme-owner"}}}`},
			{"{" + strings.Repeat(" viewer { login }", 400) + "}", `{"data":{"viewer":{"login":"acme-owner"}}}`},
			{"{" + strings.Repeat(" viewer { login }", 4000) + "}", "token limit"},
			{strings.Repeat("{ viewer ", 4000), "errors"},
			{`{ repository(owner: "acme", name: "widgets") {` + aliases.String() + ` } }
				fragment F on User { a: id b: id c: id d: id e: id f: id g: id h: id i: id }`, "more than 50000 fields"},
		} {
			t.call("owner", graphQLRequest(c.query), 200, c.want)
		}
	})
}
