package service

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// queryGraphQL sends a GraphQL request and returns the response body.
func (t *tester) queryGraphQL(credential, body string) string {
	t.Helper()
	w := t.do(credential, http.MethodPost, "/graphql", body)
	t.wantStatus(w, http.StatusOK)
	return w.Body.String()
}

func TestGraphQLReturnsSelectedFields(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, c := range []struct{ name, body, want string }{
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
		} {
			if got := t.queryGraphQL("owner", c.body); got != c.want {
				t.Errorf("%s:\ngot  %s\nwant %s", c.name, got, c.want)
			}
		}
	})
}

func TestGraphQLHidesInvisibleRepositories(t *testing.T) {
	runWithService(t, func(t *tester) {
		secret := `{"query":"{ repository(owner: \"acme\", name: \"secret\") { id } }"}`
		for credential, seen := range map[string]bool{"member": true, "app": true, "outsider": false, "public": false} {
			if got := t.queryGraphQL(credential, secret); strings.Contains(got, "R_1002") != seen {
				t.Errorf("%s: got %s", credential, got)
			}
		}
		t.wantStatus(t.do("", http.MethodPost, "/graphql", secret), http.StatusUnauthorized)
		t.wantStatus(t.do("owner", http.MethodPost, "/graphql", `{`), http.StatusBadRequest)
		if got := t.queryGraphQL("app", `{"query":"{ viewer { login } }"}`); got != `{"data":{"viewer":null}}` {
			t.Errorf("got %s, want no viewer for an app", got)
		}
	})
}

func TestMutationChangesTheStateOfTheRESTAPI(t *testing.T) {
	runWithService(t, func(t *tester) {
		watch := func(credential, id, state string) string {
			return t.queryGraphQL(credential, `{"query":"mutation M($s: SubscriptionState!) { updateSubscription(input: {subscribableId: \"`+id+`\", state: $s, clientMutationId: \"m\"}) { clientMutationId subscribable { viewerSubscription } } }","variables":{"s":"`+state+`"}}`)
		}
		for _, state := range []string{"SUBSCRIBED", "IGNORED", "UNSUBSCRIBED"} {
			want := `{"data":{"updateSubscription":{"clientMutationId":"m","subscribable":{"viewerSubscription":"` + state + `"}}}}`
			if got := watch("owner", "R_1001", state); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			rest := t.get("owner", "/repos/acme/widgets/subscription")
			if state == "UNSUBSCRIBED" {
				t.wantStatus(rest, http.StatusNotFound)
			} else if sub := decode[jsonObject](t, rest); sub["subscribed"] != (state == "SUBSCRIBED") || sub["ignored"] != (state == "IGNORED") {
				t.Errorf("%s: got subscription %v", state, sub)
			}
		}
		if got := watch("outsider", "R_1002", "SUBSCRIBED"); !strings.Contains(got, "NOT_FOUND") {
			t.Errorf("got %s, want an error for an invisible repository", got)
		}
		if got := t.queryGraphQL("owner", `{"query":"{ rateLimit { used cost } }"}`); got != `{"data":{"rateLimit":{"used":4,"cost":1}}}` {
			t.Errorf("got rate limit %s", got)
		}
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
			if got := t.queryGraphQL("owner", fmt.Sprintf(c.query, c.value)); !strings.Contains(got, c.want) {
				t.Errorf("variable %s: got %.300s", c.value, got)
			}
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
		for name, c := range map[string]struct{ query, want string }{
			"nested fragments": {chain, `{"data":{"viewer":{"login":"acme-owner"}}}`},
			"repeated field":   {"{" + strings.Repeat(" viewer { login }", 400) + "}", `{"data":{"viewer":{"login":"acme-owner"}}}`},
			"long query":       {"{" + strings.Repeat(" viewer { login }", 4000) + "}", "token limit"},
			"deep query":       {strings.Repeat("{ viewer ", 4000), "errors"},
			"large response":   {`{ repository(owner: "acme", name: "widgets") {` + aliases.String() + ` } } fragment F on User { a: id b: id c: id d: id e: id f: id g: id h: id i: id }`, "more than 50000 fields"},
		} {
			body, err := json.Marshal(map[string]string{"query": c.query})
			if err != nil {
				t.Fatal(err)
			}
			if got := t.queryGraphQL("owner", string(body)); !strings.Contains(got, c.want) {
				t.Errorf("%s: got %.300s", name, got)
			}
		}
	})
}
