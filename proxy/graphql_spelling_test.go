package proxy

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/caller"
	"github.com/weirgate/weir/proxy/names"
)

// readOnly makes all clients of a gateway clients whose GraphQL calls may only read.
var readOnly = identifying(func(_ *http.Request, id *caller.Identity) {
	*id = caller.Identity{
		Caller: policy.Caller{Kind: policy.User, Account: "held", Class: "held"},
		Scope:  &policy.Scope{GraphQL: &policy.GraphQLRules{ReadOnly: true}}, Credential: fixedCredential{value: "Bearer held"},
	}
})

const (
	readsViewer = `{"query":"{ viewer { login } }"}`
	addsStar    = `{"query":"mutation { addStar(input: {starrableId: \"x\"}) { clientMutationId } }"}`
)

// spellings are paths that an upstream may treat as GraphQL. A method in front of a path replaces POST.
var spellings = strings.Fields(`
	/graphql /graphql/ /api/graphql /api/graphql/ /api/v3/graphql /api/v3/graphql/ /api/v3/api/graphql /%67raphql /api/%67raphql /GraphQL /GRAPHQL /Api/GraphQL
	/API/graphql /graphql. /graphql.. /graphql.json /graphql;a=b /graphql%3Bx /graphql%20 /%20graphql /graphql%2F /graphql%2f%2e /graphql%252F /%2567raphql //graphql /api//graphql
	/./graphql /x/../graphql /graphql/. /graphql/x /v4/graphql /api/v4/graphql /api/v4./graphql /api%2Fgraphql /api%2Fv3%2Fgraphql /api;x/graphql /api/v3;x/graphql /graphql%00 /graphql%0a
	/graphql%09 /graphql\ /\graphql /rest/graphql /graphql:x /graphql,x /graphql* /graphql%3Fquery /graphql%23 /_graphql /~graphql /graphql? /graphql?query=%7Bviewer%7Blogin%7D%7D /graphql?x=1
	/graphql?query=mutation%7Bx%7D&operationName=x /api/v3/GRAPHQL /api/v3//graphql /api/v3/./graphql /api/v3/x/../graphql
`)

// wantOnlyGraphQLCalls checks that each request that reached the upstream was the call that the gateway counted and checked.
func (w *world) wantOnlyGraphQLCalls(what string, seen []*http.Request) {
	for _, r := range seen {
		failIf(w, r.Method != http.MethodPost || r.URL.EscapedPath() != "/graphql" || r.Header.Get("Content-Encoding") != "", "%s: the upstream got %s %s", what, r.Method, r.URL)
		last := w.recent()[0]
		failIf(w, last.Operation != "graphql" || last.Resource != policy.GraphQL, "%s: counted as %s of %s", what, last.Operation, last.Resource)
	}
}

// TestEverySpellingOfGraphQLHasItsRules sends a query and a mutation with each spelling and method. Only a POST of the query
// reaches the upstream, under the canonical path.
func TestEverySpellingOfGraphQLHasItsRules(t *testing.T) {
	setup(replies(noData), readOnly).run(t, func(w *world) {
		passed := 0
		for _, path := range spellings {
			for _, method := range strings.Fields("POST PUT PATCH DELETE GET HEAD OPTIONS post Post QUERY PROPFIND") {
				for _, body := range []string{addsStar, readsViewer, "", "mutation{x}", "query=mutation%7Bx%7D"} {
					before := w.upstreamSaw()
					// The client of net/http would change some targets.
					answer := w.raw(fmt.Sprintf("%s %s HTTP/1.1\r\nHost: gateway.test\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body))
					seen := w.seen.all()[before:]
					what := method + " " + path + " " + body
					w.wantOnlyGraphQLCalls(what, seen)
					failIf(w, len(seen) > 0 && body != readsViewer, "%s: not refused", what)
					passed += len(seen)
					failIf(w, len(seen) == 0 && !strings.HasPrefix(answer, "HTTP/1.1 4"), "%s: got %.80q", what, answer)
				}
			}
		}
		failIf(w, passed < 8, "only %d queries reached the upstream", passed)
		for _, path := range strings.Fields("/repos/acme/graphql /orgs/graphql /repos/acme/widgets/contents/graphql /users/graphql/graphql /graphqlx /made/graphql") {
			before := w.upstreamSaw()
			w.get(path)
			w.want(path+" is no GraphQL call", w.upstreamSaw()-before, 1)
		}
	})
}

// TestRandomSpellingsOfGraphQL combines changes of the path.
func TestRandomSpellingsOfGraphQL(t *testing.T) {
	changes := []func(string, *rapid.T) string{
		func(s string, _ *rapid.T) string { return strings.ToUpper(s) },
		func(s string, rt *rapid.T) string {
			at := rapid.IntRange(0, len(s)-1).Draw(rt, "at")
			if s[at] == '/' && at == 0 {
				return s
			}
			return fmt.Sprintf("%s%%%02X%s", s[:at], s[at], s[at+1:])
		},
		func(s string, rt *rapid.T) string {
			return s + rapid.SampledFrom([]string{"/", ".", ";x", "%20", "/.", "%2F", "?query=%7Bx%7D", ".json", "%2e", "//", "/v1"}).Draw(rt, "suffix")
		},
		func(s string, rt *rapid.T) string {
			return rapid.SampledFrom([]string{"/api", "/api/v3", "/v3", "/.", "/", "/x/..", "/API", "/api/v3/api", "/%61pi"}).Draw(rt, "prefix") + s
		},
	}
	rapid.Check(t, func(rt *rapid.T) {
		path := rapid.SampledFrom([]string{"/graphql", "/api/graphql"}).Draw(rt, "path")
		for range rapid.IntRange(0, 4).Draw(rt, "changes") {
			path = rapid.SampledFrom(changes).Draw(rt, "change")(path, rt)
		}
		method := rapid.SampledFrom([]string{"POST", "PUT", "GET"}).Draw(rt, "method")
		u, err := url.ParseRequestURI(path)
		if err != nil || strings.Contains(path, "%25") {
			return
		}
		for _, catalogue := range []*policy.Catalogue{policy.CatalogueOf("github"), policy.CatalogueOf("service")} {
			escaped := u.EscapedPath()
			if rest, ok := strings.CutPrefix(escaped, names.EnterprisePrefix); ok && strings.HasPrefix(rest, "/") {
				escaped = rest
			}
			m, err := catalogue.Classify(method, escaped, u.RawQuery)
			if err == nil && (m.Operation.ID != "graphql" || m.Path != "/graphql" || method != "POST") {
				rt.Errorf("%s %s is %s at %s", method, path, m.Operation.ID, m.Path)
			}
		}
	})
}

// TestOperatorsPurgeGraphQLByItsPath checks the tag of each path of GraphQL.
func TestOperatorsPurgeGraphQLByItsPath(t *testing.T) {
	setup(nothing).run(t, func(w *world) {
		for _, path := range []string{"/graphql", "/api/graphql", "/api/graphql/", upstreamURL + "/graphql"} {
			tag, err := w.gateway.TagOf(path)
			failIf(w, tag != "url:/graphql" || err != nil, "%s: got %s, %v", path, tag, err)
		}
	})
}

// TestGraphQLCallWithAQueryStringCountsAsAMutation checks the points of a call that the upstream may read from the URL.
func TestGraphQLCallWithAQueryStringCountsAsAMutation(t *testing.T) {
	debugged := identifying(func(_ *http.Request, id *caller.Identity) { id.Debug = true })
	for query, points := range map[string]string{"": "points=1", "?query=mutation%7Bx%7D": "points=5"} {
		setup(replies(noData), debugged).sub(t, query, func(w *world) {
			r := w.do(http.MethodPost, "/graphql"+query, strings.NewReader(readsViewer), bearer("a"), "Weir-Debug: 1")
			debug := r.Header.Get(debugHeader)
			failIf(w, !strings.Contains(debug, points), "got %s, want %s", debug, points)
		})
	}
}
