package proxy

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/caller"
	"github.com/weirgate/weir/proxy/record"
	"github.com/weirgate/weir/proxy/tags"
)

// answers is an upstream that responds to the n-th request with the number n, after a second.
type answers struct{ count atomic.Int64 }

func (a *answers) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	n := a.count.Add(1)
	time.Sleep(time.Second)
	w.Header().Set("Cache-Control", "no-cache")
	_, _ = io.WriteString(w, answerOf(n))
}

func answerOf(n int64) string { return fmt.Sprintf(`{"data":{"id":"N_1","answer":%d}}`, n) }

// withRules returns an option with rules for stored queries.
func withRules(rules ...policy.GraphQLCacheRule) option {
	return func(c *Config) { c.GraphQLCache.Rules = rules }
}

// storingLists returns an option that stores the query of listIssues for a minute.
func storingLists() option {
	return withRules(policy.GraphQLCacheRule{Operation: "List", TTL: time.Minute})
}

// withCatalogue selects the catalogue of the github dialect.
func withCatalogue(c *Config) { c.Catalogue = policy.CatalogueOf("github") }

// exceptMutations responds to mutations with a status, and to other calls as answers does.
func exceptMutations(status int) http.HandlerFunc {
	others := &answers{}
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), "mutation") {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, noData)
			return
		}
		others.ServeHTTP(w, r)
	}
}

const noData = `{"data":{}}`

// graphQLBody returns a body with a query and further members.
func graphQLBody(query string, members ...string) string {
	return "{" + strings.Join(append(lines(`"query":`+strconv.Quote(query)), members...), ",") + "}"
}

// ask sends a body to the GraphQL API as the user of token a. Fields may name another token.
func (w *world) ask(body string, fields ...string) got {
	w.Helper()
	if !slices.ContainsFunc(fields, func(f string) bool { return strings.HasPrefix(f, "Authorization") }) {
		fields = append(fields, "Authorization: Bearer a")
	}
	return w.do(http.MethodPost, "/graphql", strings.NewReader(body), fields...)
}

// listIssues returns the body of a query about a repository of acme.
func listIssues(repo string) string {
	return `{"query":"query List($repo: String!) { repository(owner: \"acme\", name: $repo) { issues(first: 10) { nodes { title } } } }","variables":{"repo":` +
		strconv.Quote(repo) + `}}`
}

const closeIssue = `{"query":"mutation { closeIssue(input: {issueId: \"I_1\"}) { issue { id } } }"}`

func TestIdenticalQueriesShareACall(t *testing.T) {
	list, other := listIssues("widgets"), lines(bearer("b"))
	for _, c := range []struct {
		name          string
		first, second string   // bodies; half of the clients send each
		fields        []string // of the second body
		calls         int
	}{
		{"same body", list, list, nil, 1},
		{"other whitespace", graphQLBody("query A($x:Int){a(x:$x){b}}", `"variables":{"x":[1,2]}`), graphQLBody("query A($x: Int) { # a\n a(x: $x) { b } }", ` "variables": { "x": [1, 2] }`), nil, 1},
		{"other order of variables", graphQLBody("{a}", `"variables":{"x":1,"y":2}`), graphQLBody("{a}", `"variables":{"y":2,"x":1}`), nil, 1},
		{"other variables", list, listIssues("gears"), nil, 2},
		{"repeated member of a variable", graphQLBody("{a}", `"variables":{"x":{"y":1,"y":2}}`), graphQLBody("{a}", `"variables":{"x":{"y":2}}`), nil, 2},
		{"other operation", graphQLBody("query A{a} query B{a}", `"operationName":"A"`), graphQLBody("query A{a} query B{a}", `"operationName":"B"`), nil, 2},
		{"other caller", list, list, other, 2},
		{"other media type", list, list, lines("Accept: application/vnd.service.raw+json"), 2},
		{"other media type of the body", list, list, lines("Content-Type: text/plain"), 2},
		{"no-store", list, list, lines("Cache-Control: no-store"), 11},
		{"condition", list, list, lines(`If-None-Match: "1"`), 11},
		{"content coding", list, list, lines("Content-Encoding: gzip"), 11},
		{"unknown member", list, graphQLBody("{a}", `"Variables":{"x":1}`), nil, 11},
		{"extensions", list, graphQLBody("{a}", `"extensions":{}`), nil, 11},
		{"subscription", list, graphQLBody("subscription{a}"), other, 11},
		{"unreadable body", list, "[]", other, 11},
		{"invalid query", list, graphQLBody("{a !!"), other, 11},
	} {
		var spent atomic.Int64
		setup(new(answers).ServeHTTP, func(g *Config) { g.Observe = func(r *record.Record) { spent.Add(int64(r.Spent)) } }).sub(t, c.name, func(w *world) {
			var clients sync.WaitGroup
			for range 10 {
				clients.Go(func() { w.ask(c.first) })
				clients.Go(func() { w.ask(c.second, c.fields...) })
			}
			clients.Wait()
			w.want("requests upstream", w.upstreamSaw(), c.calls)
			w.want("requests charged", int(spent.Load()), c.calls)
			w.want("permits in flight", w.inFlight(), 0)
			w.ask(c.first)
			w.want("requests upstream of a later query", w.upstreamSaw(), c.calls+1)
		})
	}
}

// Mutations never share a call, and neither do queries beside a query in the URL, which may be a mutation.
func TestMutationsNeverShareACall(t *testing.T) {
	setup(new(answers).ServeHTTP).run(t, func(w *world) {
		var clients sync.WaitGroup
		for range 5 {
			clients.Go(func() { w.ask(closeIssue) })
			clients.Go(func() {
				w.do(http.MethodPost, "/graphql?query=mutation", strings.NewReader(listIssues("widgets")), bearer("a"))
			})
		}
		clients.Wait()
		w.want("requests upstream", w.upstreamSaw(), 10)
	})
}

// A client that arrives while the call is on its way gets its response, unless the client requires a newer one.
func TestQueryJoinsACallInProgress(t *testing.T) {
	setup(new(answers).ServeHTTP).run(t, func(w *world) {
		var clients sync.WaitGroup
		clients.Go(func() { w.ask(listIssues("widgets")) })
		time.Sleep(500 * time.Millisecond)
		clients.Go(func() {
			r := w.ask(listIssues("widgets"))
			w.want("Cache-Status of the follower", r.Header.Get("Cache-Status"), "weir; fwd=method; collapsed")
			w.want("body of the follower", r.body, answerOf(1))
		})
		clients.Go(func() {
			w.want("body with no-cache", w.ask(listIssues("widgets"), "Cache-Control: no-cache").body, answerOf(2))
		})
		clients.Wait()
		w.want("requests upstream", w.upstreamSaw(), 2)
	})
}

// A client that arrives after a mutation of its security class, a mutation of a node that the response shows, or a webhook,
// does not get the response of an earlier call.
func TestQueryDoesNotJoinACallBeforeAChange(t *testing.T) {
	for name, change := range map[string]func(*world){
		"mutation": func(w *world) { w.ask(closeIssue) },
		"mutation of a node by a client": func(w *world) {
			w.ask(graphQLBody(`mutation{closeIssue(input:{issueId:"N_1"}){issue{id}}}`), bearer("b"))
		},
		"webhook": func(w *world) {
			w.gateway.Cache.Purge(w.Context(), tags.OfEvent(w.gateway.Catalogue, "issues", "acme/widgets", "acme", false)...)
		},
	} {
		setup(exceptMutations(http.StatusOK)).sub(t, name, func(w *world) {
			var clients sync.WaitGroup
			clients.Go(func() { w.ask(listIssues("widgets")) })
			time.Sleep(500 * time.Millisecond)
			change(w)
			changed := w.upstreamSaw()
			w.ask(listIssues("widgets"))
			w.want("requests before the change", changed, map[bool]int{true: 1, false: 2}[name == "webhook"])
			w.want("queries after the change", w.upstreamSaw()-changed, 1)
			clients.Wait()
		})
	}
}

func TestCallOfAQuerySurvivesItsLeader(t *testing.T) {
	setup(new(answers).ServeHTTP).run(t, func(w *world) {
		ctx, leave := context.WithCancel(w.Context())
		var clients sync.WaitGroup
		clients.Go(func() {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://gateway.test/graphql", strings.NewReader(listIssues("widgets")))
			if err != nil {
				w.Error(err)
				return
			}
			r.Header.Set("Authorization", "Bearer a")
			if resp, err := w.client.Do(r); err == nil {
				_ = resp.Body.Close()
				w.Error("the leader got a response")
			}
		})
		time.Sleep(300 * time.Millisecond)
		clients.Go(func() { w.want("body", w.ask(listIssues("widgets")).body, answerOf(1)) })
		time.Sleep(300 * time.Millisecond)
		leave()
		clients.Wait()
		w.want("requests upstream", w.upstreamSaw(), 1)
	})
}

// Followers share a response with errors that every identical query gets. No rule stores it.
func TestFinalErrorsOfQueriesAreShared(t *testing.T) {
	const missing = `{"data":{"a":null},"errors":[{"type":"NOT_FOUND"}]}`
	for name, answer := range map[string]string{
		"missing object": missing,
		"invalid query":  `{"errors":[{"extensions":{"code":"undefinedField"}}]}`,
		"large":          `{"data":{"a":"` + strings.Repeat("x", 100<<10) + `"},"errors":[{"type":"NOT_FOUND"}]}`,
	} {
		for kind, option := range map[string]option{"without a rule": withRules(), "with a rule": storingLists()} {
			setup(delayed(replies(answer)), option).sub(t, name+" "+kind, func(w *world) {
				together(50, func(int) { w.want("body", w.ask(listIssues("widgets")).body, answer) })
				w.want("requests upstream", w.upstreamSaw(), 1)
				w.ask(listIssues("widgets"))
				w.want("requests upstream after the call", w.upstreamSaw(), 2)
			})
		}
	}
}

// A response with other errors concerns one request: followers send their own, and no rule stores it.
func TestErrorsAreNeitherSharedNorStored(t *testing.T) {
	for name, respond := range map[string]http.HandlerFunc{
		"errors":     replies(`{"data":{"a":null},"errors":[{"type":"NOT_FOUND"},{"type":"FORBIDDEN"}]}`),
		"no data":    replies(`{"data":null}`),
		"not JSON":   replies(`{"data":{"a"`),
		"other JSON": replies(`{"message":"secondary rate limit"}`),
		"status": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusAccepted)
			replies(noData)(w, r)
		},
		"no-store":    replies(noData, "Cache-Control: no-store"),
		"cookie":      replies(noData, "Set-Cookie: a=b"),
		"varies on *": replies(noData, "Vary: *"),
		"large":       replies(`{"data":{"a":"` + strings.Repeat("x", 100<<10) + `"},"errors":[{"type":"FORBIDDEN"}]}`),
	} {
		for kind, option := range map[string]option{"shared": withRules(), "stored": storingLists()} {
			setup(delayed(respond), option).sub(t, name+" "+kind, func(w *world) {
				var clients sync.WaitGroup
				for range 3 {
					clients.Go(func() {
						status := w.ask(listIssues("widgets")).Header.Get("Cache-Status")
						failIf(w, strings.Contains(status, "stored"), "Cache-Status: %s", status)
					})
				}
				clients.Wait()
				w.want("requests upstream", w.upstreamSaw(), 3)
				w.ask(listIssues("widgets"))
				w.want("requests upstream", w.upstreamSaw(), 4)
			})
		}
	}
}

func TestRuleStoresAQuery(t *testing.T) {
	setup(new(answers).ServeHTTP, withRules(policy.GraphQLCacheRule{Operation: "List", TTL: 30 * time.Second})).run(t, func(w *world) {
		const missed = "weir; fwd=uri-miss; fwd-status=200; stored; ttl=29"
		for _, c := range []struct {
			after       time.Duration
			repo, field string // the widgets by default
			cache, age  string
			answer      int64
		}{
			{cache: missed, answer: 1},
			{after: 9 * time.Second, cache: "weir; hit; ttl=20", age: "10", answer: 1},
			{repo: "gears", cache: missed, answer: 2},
			{field: bearer("b"), cache: missed, answer: 3},
			{field: "Cache-Control: max-age=60", cache: "weir; hit; ttl=18", age: "12", answer: 1},
			{field: "Cache-Control: max-age=5", cache: "weir; fwd=request; fwd-status=200; stored; ttl=29", answer: 4},
			{field: "Cache-Control: no-cache", cache: "weir; fwd=request; fwd-status=200; stored; ttl=29", answer: 5},
			{field: "Cache-Control: no-store", cache: "weir; fwd=method; fwd-status=200", answer: 6},
			{cache: "weir; hit; ttl=28", age: "2", answer: 5},
			{after: 29 * time.Second, field: "Cache-Control: max-stale", cache: "weir; fwd=stale; fwd-status=200; stored; ttl=29", answer: 7},
		} {
			time.Sleep(c.after)
			r := w.ask(listIssues(cmp.Or(c.repo, "widgets")), cmp.Or(c.field, "User-Agent: test"))
			w.wantFields(c.field, r.Header, "Cache-Status: "+c.cache, "Age: "+c.age)
			w.want("body", r.body, answerOf(c.answer))
			if c.age != "" {
				w.wantFields("hit", r.Header, "Cache-Control: private, must-revalidate, max-age=30")
			}
		}
		for _, r := range w.seen.all() {
			failIf(w, !isUnconditional(r.Header), "conditional request: %v", r.Header)
		}
	})
}

func TestStoredQueryAboutAnUnfinishedStateIsRequestedSoon(t *testing.T) {
	for body, requests := range map[string]int{
		`{"data":{"repository":{"pullRequest":{"mergeable":"UNKNOWN"}}}}`:   2,
		`{"data":{"repository":{"pullRequest":{"mergeable":"MERGEABLE"}}}}`: 1,
	} {
		setup(replies(body, "Content-Type: application/json"), asGitHub, storingLists()).sub(t, body, func(w *world) {
			w.ask(listIssues("widgets"))
			time.Sleep(6 * time.Second)
			w.ask(listIssues("widgets"))
			w.want("requests upstream", w.upstreamSaw(), requests)
		})
	}
}

// A response is stored by an operation or a root field. The rules for gh store its queries only.
func TestRulesOfStoredQueries(t *testing.T) {
	rules := policy.GraphQLCache{Rules: []policy.GraphQLCacheRule{{Field: "viewer", TTL: 10 * time.Second}, {Field: "node", TTL: 5 * time.Second}, {Operation: "List", TTL: 20 * time.Second}}}
	for _, c := range []struct {
		query string
		gh    bool
		hits  bool
	}{
		{"{viewer{login}}", false, true},
		{"{viewer{login} node(id:1){id}}", false, true},
		{"{viewer{login} rateLimit{cost}}", false, false},
		{"{viewer{login} user(login:1){id}}", false, false},
		{"query List{user(login:1){id}}", false, true},
		{"query List{rateLimit{cost}}", false, false},
		{"query IssueList{user(login:1){id}}", false, false},
		{"query IssueList{user(login:1){id}}", true, true},
		{"query Other{user(login:1){id}}", true, false},
		{"mutation List{viewer{id}}", true, false},
	} {
		setup(new(answers).ServeHTTP, func(g *Config) { g.GraphQLCache = rules; g.GraphQLCache.GH = c.gh }).run(t, func(w *world) {
			w.graphQL("/graphql", c.query)
			r := w.graphQL("/graphql", c.query)
			w.want(c.query, strings.Contains(r.Header.Get("Cache-Status"), "hit"), c.hits)
		})
	}
}

// A change makes the stored responses stale that may show it.
func TestChangeMakesQueriesStale(t *testing.T) {
	const node = `{"query":"{node(id:\"PR_7\"){id}}"}`
	event := func(name, repository, organization string) func(*world) {
		return func(w *world) {
			w.gateway.Cache.Purge(w.Context(), tags.OfEvent(w.gateway.Catalogue, name, repository, organization, name == "push")...)
		}
	}
	send := func(method, path string, fields ...string) func(*world) {
		return func(w *world) {
			w.do(method, path, strings.NewReader("{}"), append(fields, bearer("b"))...)
		}
	}
	mutate := func(token, query string) func(*world) {
		return func(w *world) { w.ask(graphQLBody(query), bearer(token)) }
	}
	widgets := listIssues("widgets")
	for _, c := range []struct {
		name, query string // of user a
		change      func(*world)
		stale       bool
	}{
		{"event", widgets, event("issues", "acme/widgets", "acme"), true},
		{"name in another case", listIssues("Widgets"), event("issues", "acme/widgets", "acme"), true},
		{"push to a branch", widgets, event("push", "acme/widgets", "acme"), true},
		{"unlisted event", widgets, event("novelty", "acme/widgets", "acme"), true},
		{"event of another repository", widgets, event("issues", "acme/gears", "acme"), false},
		{"event of the organization", widgets, event("member", "", "acme"), true},
		{"event of another organization", widgets, event("member", "", "evil"), false},
		{"event, repository not named", node, event("issues", "acme/widgets", "acme"), true},
		{"event of an organization, repository not named", node, event("member", "", "acme"), true},
		{"REST write", widgets, send("POST", "/repos/acme/widgets/issues"), true},
		{"REST write of another repository", widgets, send("POST", "/repos/acme/gears/issues"), false},
		{"REST write, repository not named", node, send("POST", "/repos/acme/gears/issues"), true},
		{"REST write by number", widgets, send("POST", "/repositories/7/issues"), true},
		{"REST write of the organization", widgets, send("PATCH", "/orgs/acme"), true},
		{"REST write of another user", widgets, send("PATCH", "/user"), false},
		{"REST write of the user", widgets, send("PATCH", "/user", "Authorization: Bearer a"), true},
		{"REST read", widgets, send("GET", "/repos/acme/widgets/issues"), false},
		{"query", widgets, mutate("a", "{repository(owner:\"acme\",name:\"widgets\"){id}}"), false},
		{"own mutation", widgets, mutate("a", `mutation{closeIssue(input:{issueId:"I_9"}){issue{id}}}`), true},
		{"own unreadable body", widgets, func(w *world) { w.ask("[]") }, true},
		{"mutation of another user", widgets, mutate("b", `mutation{closeIssue(input:{issueId:"I_9"}){issue{id}}}`), false},
		{"node of the arguments", node, mutate("b", `mutation{updatePullRequest(input:{pullRequestId:"PR_7"}){clientMutationId}}`), true},
		{"node of the response", widgets, mutate("b", `mutation{closeIssue(input:{issueId:"N_1"}){issue{id}}}`), true},
		{"named repository", widgets, mutate("b", `mutation{a(input:{repositoryNameWithOwner:"Acme/Widgets"}){b}}`), true},
		{"too many repositories", widgets, mutate("b", `mutation{a(input:{repositoryNameWithOwner:[`+manyIDs(101)+`]}){b}}`), true},
		{"too many nodes", widgets, mutate("b", `mutation{a(input:{ids:[`+manyIDs(101)+`]}){b}}`), true},
	} {
		rules := withRules(policy.GraphQLCacheRule{Field: "repository", TTL: time.Minute}, policy.GraphQLCacheRule{Field: "node", TTL: time.Minute})
		setup(new(answers).ServeHTTP, rules, withCatalogue).sub(t, c.name, func(w *world) {
			w.ask(c.query)
			w.wantFields("before the change", w.ask(c.query).Header, "Cache-Status: weir; hit*")
			c.change(w)
			w.want("stale after the change", strings.HasPrefix(w.ask(c.query).Header.Get("Cache-Status"), "weir; fwd=stale"), c.stale)
		})
	}
}

// A mutation makes the REST responses about the repositories of its arguments stale, with any number of names.
func TestMutationMakesNamedRepositoriesStale(t *testing.T) {
	many := make([]string, tags.MaxChanged)
	for i := range many {
		many[i] = strconv.Quote("acme/gear-" + strconv.Itoa(i))
	}
	const widgets, gears = "/repos/acme/widgets/issues", "/repos/acme/gears"
	for _, c := range []struct {
		name, arguments string
		stale           []string
	}{
		{"a repository", `repositoryNameWithOwner:"Acme/Widgets"`, []string{widgets}},
		{"a repository and many nodes", `repositoryNameWithOwner:"Acme/Widgets",ids:[` + manyIDs(tags.MaxChanged) + `]`, []string{widgets}},
		{"many nodes", `ids:[` + manyIDs(tags.MaxChanged+1) + `]`, nil},
		{"many repositories", `repositoryNameWithOwner:["acme/widgets",` + strings.Join(many, ",") + `]`, []string{widgets, gears, "/novelty"}},
	} {
		setup(replies(noData, fresh), storingLists(), withCatalogue).sub(t, c.name, func(w *world) {
			paths := []string{widgets, gears, "/novelty"}
			w.hits(bearer("a"), paths...)
			w.want("stored responses", fmt.Sprint(w.hits(bearer("a"), paths...)), fmt.Sprint(paths))
			w.ask(graphQLBody(`mutation{a(input:{`+c.arguments+`}){b}}`), bearer("b"))
			fresh := slices.DeleteFunc(slices.Clone(paths), func(path string) bool { return slices.Contains(c.stale, path) })
			w.want("fresh responses after the mutation", fmt.Sprint(w.hits(bearer("a"), paths...)), fmt.Sprint(fresh))
		})
	}
}

// manyIDs returns n different strings of GraphQL.
func manyIDs(n int) string {
	list := make([]string, n)
	for i := range list {
		list[i] = strconv.Quote("I_" + strconv.Itoa(i))
	}
	return strings.Join(list, ",")
}

// A mutation with an unknown result may have succeeded.
func TestUncertainMutationMakesQueriesStale(t *testing.T) {
	setup(exceptMutations(http.StatusBadGateway), storingLists()).run(t, func(w *world) {
		w.ask(listIssues("widgets"))
		w.ask(closeIssue)
		for range 2 { // at once, and when the upstream has certainly stopped
			w.wantFields("after the mutation", w.ask(listIssues("widgets")).Header, "Cache-Status: weir; fwd=stale*")
			time.Sleep(stoppedWorking)
		}
	})
}

// A client with several credentials may write with one and read with another.
func TestMutationOfAPoolMakesAllQueriesStale(t *testing.T) {
	pool := identifying(func(r *http.Request, id *caller.Identity) {
		if r.Header.Get("Authorization") == "Bearer b" {
			id.Pool = pool{}
		}
	})
	setup(new(answers).ServeHTTP, storingLists(), pool).run(t, func(w *world) {
		w.ask(listIssues("widgets"))
		w.ask(closeIssue, bearer("b"))
		w.wantFields("after the mutation", w.ask(listIssues("widgets")).Header, "Cache-Status: weir; fwd=stale*")
	})
}

// A stored response is shared between replicas, and so is a mutation. A query that began before the mutation is not
// restored.
func TestQueriesAreStoredForAllReplicas(t *testing.T) {
	setup(new(answers).ServeHTTP, storingLists()).run(t, func(w *world) {
		list, _ := w.replicas(2)
		var clients sync.WaitGroup
		for i := range 10 {
			clients.Go(func() { post(list[i%2], "a", listIssues("widgets")) })
		}
		clients.Wait()
		w.want("requests upstream", w.upstreamSaw(), 1)
		for i := range 2 {
			post(list[i], "a", listIssues("widgets"))
		}
		w.want("requests upstream of stored queries", w.upstreamSaw(), 1)

		clients.Go(func() { post(list[0], "a", listIssues("gears")) })
		time.Sleep(500 * time.Millisecond)
		clients.Go(func() { post(list[1], "a", closeIssue) })
		clients.Wait()
		for _, repo := range []string{"widgets", "gears"} {
			for i := range 2 {
				seen := w.upstreamSaw()
				r := post(list[1-i], "a", listIssues(repo))
				synctest.Wait() // the shared tier is written after the response
				w.want(fmt.Sprint("requests for ", repo, " after the mutation: ", r.Header().Get("Cache-Status")), w.upstreamSaw()-seen, 1-i)
			}
		}
	})
}
