package proxy

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/weirgate/weir/policy"
)

// graphQL sends a query of a client.
func (w *world) graphQL(path, query string) got {
	return w.do(http.MethodPost, path, strings.NewReader(`{"query":`+strconv.Quote(query)+`}`), "Authorization: Bearer a")
}

func TestGraphQLCallsThatTheAPIMustRefuseCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nothing)
		for _, c := range []struct{ query, kind string }{
			{"{viewer{repositories(first:100){nodes{issues(first:100){nodes{comments(first:100){nodes{id}}}}}}}}", "MAX_NODE_LIMIT_EXCEEDED"},
			{"{viewer{repositories(first:101){nodes{id}}}}", "EXCESSIVE_PAGINATION"},
			{"{...a} fragment a on Query{...a}", "INVALID"},
			{strings.Repeat("{a", 30_000), "TOO_COMPLEX"},
		} {
			r := w.graphQL("/graphql", c.query)
			if r.StatusCode != http.StatusOK || r.Header.Get("Cache-Status") != "weir; detail=graphql" || !strings.Contains(r.body, `"errors":[{"type":"`+c.kind+`"`) {
				t.Errorf("%.60s: got %d, %s, %s", c.query, r.StatusCode, r.Header.Get("Cache-Status"), r.body)
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
		{"cost", "{viewer{repositories(first:100){nodes{issues(first:100){nodes{id}}}}}}", policy.GraphQLRules{Cost: 1}, "may cost 2 points"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, nothing, scoped(policy.Scope{GraphQL: &c.rules}))
				r := w.graphQL("/graphql", c.query)
				if c.message == "" {
					w.want("requests upstream", w.upstreamSaw(), 1)
					return
				}
				if r.StatusCode != http.StatusForbidden || r.Header.Get("Cache-Status") != "weir; detail=scope" || !strings.Contains(r.body, c.message) {
					t.Errorf("got %d, %s, %s", r.StatusCode, r.Header.Get("Cache-Status"), r.body)
				}
				w.want("requests upstream", w.upstreamSaw(), 0)
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nothing, scoped(policy.Scope{GraphQL: &policy.GraphQLRules{ReadOnly: true}}))
		r := w.graphQL("/graphql?query=mutation", "{viewer{login}}")
		w.want("status of a query in the URL", r.StatusCode, http.StatusForbidden)
		w.want("requests upstream", w.upstreamSaw(), 0)
	})
}
