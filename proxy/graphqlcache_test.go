package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/policy"
)

// answers is an upstream that responds to the n-th request with the number n, after a second.
type answers struct{ count atomic.Int64 }

func (a *answers) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	n := a.count.Add(1)
	time.Sleep(time.Second)
	w.Header().Set("Cache-Control", "no-cache")
	_, _ = fmt.Fprintf(w, `{"data":{"id":"N_1","answer":%d}}`, n)
}

// withRules returns an option with rules for stored queries.
func withRules(rules ...policy.GraphQLCacheRule) option {
	return func(c *Config) { c.GraphQLCache.Rules = rules }
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
	query := func(text, rest string) string { return `{"query":` + strconv.Quote(text) + rest + `}` }
	for _, c := range []struct {
		name          string
		first, second string   // bodies; half of the clients send each
		fields        []string // of the second body
		calls         int
	}{
		{"same body", listIssues("widgets"), listIssues("widgets"), nil, 1},
		{"other whitespace", query("query A($x:Int){a(x:$x){b}}", `,"variables":{"x":[1,2]}`), query("query A($x: Int) { # a\n a(x: $x) { b } }", `, "variables": { "x": [1, 2] }`), nil, 1},
		{"other order of variables", query("{a}", `,"variables":{"x":1,"y":2}`), query("{a}", `,"variables":{"y":2,"x":1}`), nil, 1},
		{"other variables", listIssues("widgets"), listIssues("gears"), nil, 2},
		{"repeated member of a variable", query("{a}", `,"variables":{"x":{"y":1,"y":2}}`), query("{a}", `,"variables":{"x":{"y":2}}`), nil, 2},
		{"other operation", query("query A{a} query B{a}", `,"operationName":"A"`), query("query A{a} query B{a}", `,"operationName":"B"`), nil, 2},
		{"other caller", listIssues("widgets"), listIssues("widgets"), []string{"Authorization: Bearer b"}, 2},
		{"other media type", listIssues("widgets"), listIssues("widgets"), []string{"Accept: application/vnd.service.raw+json"}, 2},
		{"other media type of the body", listIssues("widgets"), listIssues("widgets"), []string{"Content-Type: text/plain"}, 2},
		{"no-store", listIssues("widgets"), listIssues("widgets"), []string{"Cache-Control: no-store"}, 11},
		{"condition", listIssues("widgets"), listIssues("widgets"), []string{`If-None-Match: "1"`}, 11},
		{"content coding", listIssues("widgets"), listIssues("widgets"), []string{"Content-Encoding: gzip"}, 11},
		{"unknown member", listIssues("widgets"), query("{a}", `,"Variables":{"x":1}`), nil, 11},
		{"extensions", listIssues("widgets"), query("{a}", `,"extensions":{}`), nil, 11},
		{"subscription", listIssues("widgets"), query("subscription{a}", ""), []string{"Authorization: Bearer b"}, 11},
		{"unreadable body", listIssues("widgets"), "[]", []string{"Authorization: Bearer b"}, 11},
		{"invalid query", listIssues("widgets"), query("{a !!", ""), []string{"Authorization: Bearer b"}, 11},
	} {
		bubble(t, c.name, func(t *testing.T) {
			var spent atomic.Int64
			w := newWorld(t, new(answers).ServeHTTP, func(g *Config) { g.Observe = func(r *Record) { spent.Add(int64(r.Spent)) } })
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
				w.do(http.MethodPost, "/graphql?query=mutation", strings.NewReader(listIssues("widgets")), "Authorization: Bearer a")
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
			w.want("body of the follower", r.body, `{"data":{"id":"N_1","answer":1}}`)
		})
		clients.Go(func() {
			r := w.ask(listIssues("widgets"), "Cache-Control: no-cache")
			w.want("body of the client with no-cache", r.body, `{"data":{"id":"N_1","answer":2}}`)
		})
		clients.Wait()
		w.want("requests upstream", w.upstreamSaw(), 2)
	})
}

// A client that arrives after a mutation of its security class, or a webhook, does not get the response of an earlier call.
func TestQueryDoesNotJoinACallBeforeAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if strings.Contains(string(body), "closeIssue") {
				_, _ = io.WriteString(rw, `{"data":{}}`)
				return
			}
			new(answers).ServeHTTP(rw, r)
		})
		for name, change := range map[string]func(){
			"mutation": func() { w.ask(closeIssue) },
			"webhook": func() {
				w.gateway.Cache.Purge(t.Context(), w.gateway.TagsOfEvent("issues", "acme/widgets", "acme", false)...)
			},
		} {
			before := w.upstreamSaw()
			var clients sync.WaitGroup
			clients.Go(func() { w.ask(listIssues("widgets")) })
			time.Sleep(500 * time.Millisecond)
			change()
			changed := w.upstreamSaw()
			w.ask(listIssues("widgets"))
			w.want("queries before the "+name, changed-before-map[string]int{"mutation": 1}[name], 1)
			w.want("queries after the "+name, w.upstreamSaw()-changed, 1)
			clients.Wait()
		}
	})
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
		clients.Go(func() { w.want("body", w.ask(listIssues("widgets")).body, `{"data":{"id":"N_1","answer":1}}`) })
		time.Sleep(300 * time.Millisecond)
		leave()
		clients.Wait()
		w.want("requests upstream", w.upstreamSaw(), 1)
	})
}

// A response with errors concerns one request: followers send their own, and no rule stores it.
func TestErrorsAreNeitherSharedNorStored(t *testing.T) {
	for name, respond := range map[string]func(http.ResponseWriter){
		"errors": func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, `{"data":{"a":null},"errors":[{"type":"NOT_FOUND"}]}`)
		},
		"no data":    func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"data":null}`) },
		"not JSON":   func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"data":{"a"`) },
		"other JSON": func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"message":"secondary rate limit"}`) },
		"status": func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusAccepted)
			_, _ = io.WriteString(w, `{"data":{}}`)
		},
		"no-store": func(w http.ResponseWriter) {
			w.Header().Set("Cache-Control", "no-store")
			_, _ = io.WriteString(w, `{"data":{}}`)
		},
		"cookie": func(w http.ResponseWriter) {
			w.Header().Set("Set-Cookie", "a=b")
			_, _ = io.WriteString(w, `{"data":{}}`)
		},
		"varies on *": func(w http.ResponseWriter) { w.Header().Set("Vary", "*"); _, _ = io.WriteString(w, `{"data":{}}`) },
		"large": func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, `{"data":{"a":"`+strings.Repeat("x", 100<<10)+`"},"errors":[{"type":"NOT_FOUND"}]}`)
		},
	} {
		for kind, option := range map[string]option{"shared": withRules(), "stored": withRules(policy.GraphQLCacheRule{Operation: "List", TTL: time.Minute})} {
			setup(func(w http.ResponseWriter, _ *http.Request) { time.Sleep(time.Second); respond(w) }, option).sub(t, name+" "+kind, func(w *world) {
				var clients sync.WaitGroup
				for range 3 {
					clients.Go(func() {
						if r := w.ask(listIssues("widgets")); strings.Contains(r.Header.Get("Cache-Status"), "stored") {
							w.Errorf("Cache-Status: %s", r.Header.Get("Cache-Status"))
						}
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
		check := func(r got, status, age, answer string) {
			w.Helper()
			w.want("Cache-Status", r.Header.Get("Cache-Status"), status)
			w.want("Age", r.Header.Get("Age"), age)
			w.want("body", r.body, `{"data":{"id":"N_1","answer":`+answer+`}}`)
		}
		check(w.ask(listIssues("widgets")), "weir; fwd=uri-miss; fwd-status=200; stored; ttl=29", "", "1")
		time.Sleep(9 * time.Second)
		r := w.ask(listIssues("widgets"))
		check(r, "weir; hit; ttl=20", "10", "1")
		w.want("Cache-Control", r.Header.Get("Cache-Control"), "private, must-revalidate, max-age=30")
		check(w.ask(listIssues("gears")), "weir; fwd=uri-miss; fwd-status=200; stored; ttl=29", "", "2")
		check(w.ask(listIssues("widgets"), "Authorization: Bearer b"), "weir; fwd=uri-miss; fwd-status=200; stored; ttl=29", "", "3")
		check(w.ask(listIssues("widgets"), "Cache-Control: max-age=60"), "weir; hit; ttl=18", "12", "1")
		check(w.ask(listIssues("widgets"), "Cache-Control: max-age=5"), "weir; fwd=request; fwd-status=200; stored; ttl=29", "", "4")
		check(w.ask(listIssues("widgets"), "Cache-Control: no-cache"), "weir; fwd=request; fwd-status=200; stored; ttl=29", "", "5")
		check(w.ask(listIssues("widgets"), "Cache-Control: no-store"), "weir; fwd=method; fwd-status=200", "", "6")
		check(w.ask(listIssues("widgets")), "weir; hit; ttl=28", "2", "5")
		time.Sleep(29 * time.Second)
		check(w.ask(listIssues("widgets"), "Cache-Control: max-stale"), "weir; fwd=stale; fwd-status=200; stored; ttl=29", "", "7")
		for _, r := range w.seen.all() {
			if !isUnconditional(r.Header) {
				w.Errorf("conditional request: %v", r.Header)
			}
		}
	})
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
			w.gateway.Cache.Purge(w.Context(), w.gateway.TagsOfEvent(name, repository, organization, name == "push")...)
		}
	}
	send := func(method, path string, fields ...string) func(*world) {
		return func(w *world) {
			w.do(method, path, strings.NewReader("{}"), append(fields, "Authorization: Bearer b")...)
		}
	}
	mutate := func(token, query string) func(*world) {
		return func(w *world) {
			w.ask(`{"query":`+strconv.Quote(query)+`}`, "Authorization: Bearer "+token)
		}
	}
	for _, c := range []struct {
		name, query string // of user a
		change      func(*world)
		stale       bool
	}{
		{"event", listIssues("widgets"), event("issues", "acme/widgets", "acme"), true},
		{"name in another case", listIssues("Widgets"), event("issues", "acme/widgets", "acme"), true},
		{"push to a branch", listIssues("widgets"), event("push", "acme/widgets", "acme"), true},
		{"unlisted event", listIssues("widgets"), event("novelty", "acme/widgets", "acme"), true},
		{"event of another repository", listIssues("widgets"), event("issues", "acme/gears", "acme"), false},
		{"event of the organization", listIssues("widgets"), event("member", "", "acme"), true},
		{"event of another organization", listIssues("widgets"), event("member", "", "evil"), false},
		{"event, repository not named", node, event("issues", "acme/widgets", "acme"), true},
		{"event of an organization, repository not named", node, event("member", "", "acme"), true},
		{"REST write", listIssues("widgets"), send("POST", "/repos/acme/widgets/issues"), true},
		{"REST write of another repository", listIssues("widgets"), send("POST", "/repos/acme/gears/issues"), false},
		{"REST write, repository not named", node, send("POST", "/repos/acme/gears/issues"), true},
		{"REST write by number", listIssues("widgets"), send("POST", "/repositories/7/issues"), true},
		{"REST write of the organization", listIssues("widgets"), send("PATCH", "/orgs/acme"), true},
		{"REST write of another user", listIssues("widgets"), send("PATCH", "/user"), false},
		{"REST write of the user", listIssues("widgets"), send("PATCH", "/user", "Authorization: Bearer a"), true},
		{"REST read", listIssues("widgets"), send("GET", "/repos/acme/widgets/issues"), false},
		{"query", listIssues("widgets"), mutate("a", "{repository(owner:\"acme\",name:\"widgets\"){id}}"), false},
		{"own mutation", listIssues("widgets"), mutate("a", `mutation{closeIssue(input:{issueId:"I_9"}){issue{id}}}`), true},
		{"own unreadable body", listIssues("widgets"), func(w *world) { w.ask("[]") }, true},
		{"mutation of another user", listIssues("widgets"), mutate("b", `mutation{closeIssue(input:{issueId:"I_9"}){issue{id}}}`), false},
		{"node of the arguments", node, mutate("b", `mutation{updatePullRequest(input:{pullRequestId:"PR_7"}){clientMutationId}}`), true},
		{"node of the response", listIssues("widgets"), mutate("b", `mutation{closeIssue(input:{issueId:"N_1"}){issue{id}}}`), true},
		{"named repository", listIssues("widgets"), mutate("b", `mutation{a(input:{repositoryNameWithOwner:"Acme/Widgets"}){b}}`), true},
		{"too many repositories", listIssues("widgets"), mutate("b", `mutation{a(input:{repositoryNameWithOwner:[`+manyIDs(101)+`]}){b}}`), true},
		{"too many nodes", listIssues("widgets"), mutate("b", `mutation{a(input:{ids:[`+manyIDs(101)+`]}){b}}`), true},
	} {
		bubble(t, c.name, func(t *testing.T) {
			w := newWorld(t, new(answers).ServeHTTP, withRules(policy.GraphQLCacheRule{Field: "repository", TTL: time.Minute}, policy.GraphQLCacheRule{Field: "node", TTL: time.Minute}), func(c *Config) {
				c.Catalogue = policy.CatalogueOf("github")
			})
			w.ask(c.query)
			w.want("Cache-Status before the change", strings.HasPrefix(w.ask(c.query).Header.Get("Cache-Status"), "weir; hit"), true)
			c.change(w)
			w.want("Cache-Status after the change", strings.HasPrefix(w.ask(c.query).Header.Get("Cache-Status"), "weir; fwd=stale"), c.stale)
		})
	}
}

// A mutation makes the REST responses about the repositories of its arguments stale, with any number of names.
func TestMutationMakesNamedRepositoriesStale(t *testing.T) {
	many := make([]string, maxChanged)
	for i := range many {
		many[i] = strconv.Quote("acme/gear-" + strconv.Itoa(i))
	}
	const widgets, gears = "/repos/acme/widgets/issues", "/repos/acme/gears"
	for _, c := range []struct {
		name, arguments string
		stale           []string
	}{
		{"a repository", `repositoryNameWithOwner:"Acme/Widgets"`, []string{widgets}},
		{"a repository and many nodes", `repositoryNameWithOwner:"Acme/Widgets",ids:[` + manyIDs(maxChanged) + `]`, []string{widgets}},
		{"many nodes", `ids:[` + manyIDs(maxChanged+1) + `]`, nil},
		{"many repositories", `repositoryNameWithOwner:["acme/widgets",` + strings.Join(many, ",") + `]`, []string{widgets, gears, "/novelty"}},
	} {
		bubble(t, c.name, func(t *testing.T) {
			w := newWorld(t, func(rw http.ResponseWriter, _ *http.Request) {
				rw.Header().Set("Cache-Control", "max-age=60")
				_, _ = io.WriteString(rw, `{"data":{}}`)
			}, withRules(policy.GraphQLCacheRule{Operation: "List", TTL: time.Minute}), func(c *Config) {
				c.Catalogue = policy.CatalogueOf("github")
			})
			paths := []string{widgets, gears, "/novelty"}
			hits := func() (list []string) {
				for _, path := range paths {
					if r := w.get(path, "Authorization: Bearer a"); strings.HasPrefix(r.Header.Get("Cache-Status"), "weir; hit") {
						list = append(list, path)
					}
				}
				return list
			}
			hits()
			w.want("stored responses", fmt.Sprint(hits()), fmt.Sprint(paths))
			w.ask(`{"query":`+strconv.Quote(`mutation{a(input:{`+c.arguments+`}){b}}`)+`}`, "Authorization: Bearer b")
			fresh := slices.DeleteFunc(slices.Clone(paths), func(path string) bool { return slices.Contains(c.stale, path) })
			w.want("fresh responses after the mutation", fmt.Sprint(hits()), fmt.Sprint(fresh))
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
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if strings.Contains(string(body), "closeIssue") {
				rw.WriteHeader(http.StatusBadGateway)
				return
			}
			new(answers).ServeHTTP(rw, r)
		}, withRules(policy.GraphQLCacheRule{Operation: "List", TTL: time.Minute}))
		w.ask(listIssues("widgets"))
		w.ask(closeIssue)
		for range 2 { // at once, and when the upstream has certainly stopped
			w.want("Cache-Status", strings.HasPrefix(w.ask(listIssues("widgets")).Header.Get("Cache-Status"), "weir; fwd=stale"), true)
			time.Sleep(stoppedWorking)
		}
	})
}

// A client with several credentials may write with one and read with another.
func TestMutationOfAPoolMakesAllQueriesStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, new(answers).ServeHTTP, withRules(policy.GraphQLCacheRule{Operation: "List", TTL: time.Minute}), func(c *Config) {
			c.Identify = func(r *http.Request) (Identity, error) {
				id, err := identifyByToken(r)
				if r.Header.Get("Authorization") == "Bearer b" {
					id.Pick = func(CredentialRequest) (Identity, bool) { return Identity{}, false }
				}
				return id, err
			}
		})
		w.ask(listIssues("widgets"))
		w.ask(closeIssue, "Authorization: Bearer b")
		w.want("Cache-Status", strings.HasPrefix(w.ask(listIssues("widgets")).Header.Get("Cache-Status"), "weir; fwd=stale"), true)
	})
}

// A stored response is shared between replicas, and so is a mutation. A query that began before the mutation is not
// restored.
func TestQueriesAreStoredForAllReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := &answers{}
		w := newWorld(t, up.ServeHTTP, withRules(policy.GraphQLCacheRule{Operation: "List", TTL: time.Minute}))
		list, _ := w.replicas(2)
		ask := func(g *Gateway, body, token string) *httptest.ResponseRecorder {
			r := httptest.NewRequest(http.MethodPost, "/graphql", strings.NewReader(body))
			r.Header.Set("Authorization", "Bearer "+token)
			rec := httptest.NewRecorder()
			g.ServeHTTP(rec, r)
			return rec
		}
		var clients sync.WaitGroup
		for i := range 10 {
			clients.Go(func() { ask(list[i%2], listIssues("widgets"), "a") })
		}
		clients.Wait()
		w.want("requests upstream", w.upstreamSaw(), 1)
		for i := range 2 {
			ask(list[i], listIssues("widgets"), "a")
		}
		w.want("requests upstream of stored queries", w.upstreamSaw(), 1)

		clients.Go(func() { ask(list[0], listIssues("gears"), "a") })
		time.Sleep(500 * time.Millisecond)
		clients.Go(func() { ask(list[1], closeIssue, "a") })
		clients.Wait()
		for _, repo := range []string{"widgets", "gears"} {
			for i := range 2 {
				seen := w.upstreamSaw()
				r := ask(list[1-i], listIssues(repo), "a")
				w.want(fmt.Sprint("requests for ", repo, " after the mutation: ", r.Header().Get("Cache-Status")), w.upstreamSaw()-seen, 1-i)
			}
		}
	})
}
