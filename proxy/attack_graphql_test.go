package proxy

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/policy"
)

// pricingUpstream charges calls to a window of 5,000. It reports the use when a call arrives, and responds later.
type pricingUpstream struct {
	price func(body string) int
	reply string

	mu   sync.Mutex
	used int
}

func (p *pricingUpstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	p.mu.Lock()
	p.used += p.price(string(body))
	used := p.used
	p.mu.Unlock()
	setFields(w, append(rates(5000, used, time.Hour), "X-Ratelimit-Resource: "+policy.GraphQL)...)
	time.Sleep(200 * time.Millisecond)
	_, _ = io.WriteString(w, p.reply)
}

// Calls with a low cost teach the gateway, and calls with a high cost follow at the same time. The names of aliases, absent
// variables and commas in values must not make the estimate too low.
func TestCheapCallsDoNotHideTheCostOfOthers(t *testing.T) {
	type call struct {
		Variables struct {
			First int
			IDs   []string
		}
	}
	priced := func(price func(call) int) func(string) int {
		return func(body string) int {
			var c call
			_ = json.Unmarshal([]byte(body), &c)
			return max(1, price(c))
		}
	}
	pages := priced(func(c call) int { return (1 + 51*c.Variables.First + 50) / 100 })
	nodes := priced(func(c call) int { return len(c.Variables.IDs) * 101 / 100 })
	always51 := func(string) int { return 51 }
	const heavyQuery = `query Q($x: Int) { repository(owner: "a", name: "b") { pullRequests(first: 100) { nodes { repository { issues(first: 50) { nodes { labels(first: 30) { nodes { id } } } } } } } } `
	for name, c := range map[string]struct {
		query, reply            string
		price                   func(body string) int
		firstValues, thenValues string // variables
	}{
		"an alias that differs from rateLimit by case": {
			heavyQuery + `rateLimit { cost } ratelimit: repository(owner: "me", name: "r") { cost: forkCount } }`,
			`{"data":{"rateLimit":{"cost":51},"ratelimit":{"cost":1}}}`, always51, "", "",
		},
		"an alias that differs from cost by case": {
			heavyQuery + `rateLimit { cost COST: nodeCount } }`, `{"data":{"rateLimit":{"cost":51,"COST":1}}}`, always51, "", "",
		},
		"an absent variable": {
			`query Q($first: Int, $last: Int, $x: Int) { repository(owner: "a", name: "b") { pullRequests(first: $first, last: $last) { nodes { comments(first: 50) { nodes { reactions(first: 10) { nodes { id } } } } } } } }`,
			`{"data":{"x":1}}`, pages, `"first":1,`, `"first":100,`,
		},
		"commas in an ID": {
			`query Q($ids: [ID!]!, $x: Int) { nodes(ids: $ids) { ... on Repository { issues(first: 100) { nodes { labels(first: 10) { nodes { id } } } } } } }`,
			`{"data":{"x":1}}`, nodes, `"ids":["` + strings.Repeat(",", 300) + `"],`, `"ids":["R_1"` + strings.Repeat(`,"R_1"`, 49) + `],`,
		},
	} {
		upstream := &pricingUpstream{price: c.price, reply: c.reply, used: 3000}
		setup(upstream.ServeHTTP).sub(t, name, func(w *world) {
			ask := func(values string, x int) {
				w.ask(graphQLBody(c.query, `"variables":{`+values+`"x":`+strconv.Itoa(x)+`}`))
			}
			for i := range 4 {
				ask(c.firstValues, i)
			}
			var clients sync.WaitGroup
			for i := range 60 {
				clients.Go(func() { ask(c.thenValues, 10+i) })
			}
			clients.Wait()
			failIf(t, upstream.used > 5000 || upstream.used < 4500, "%d of 5000 used", upstream.used)
		})
	}
}

// A body that the gateway cannot analyse is charged by the growth of the reported use.
func TestCallsThatCannotBeAnalysedAreCharged(t *testing.T) {
	for name, body := range map[string]string{
		"a repeated member":           `{"query":"","query":"{viewer{login}}"}`,
		"a persisted query":           `{"extensions":{"persistedQuery":{"version":1,"sha256Hash":"abc"}}}`,
		"a body that is not buffered": `{"query":"{viewer{login}}"}` + strings.Repeat(" ", 2<<20),
	} {
		setup((&pricingUpstream{price: func(string) int { return 101 }, reply: `{"data":{"x":1}}`}).ServeHTTP).sub(t, name, func(w *world) {
			w.ask(body)
			w.ask(body)
			w.want("spent", w.recent()[0].Spent, 101)
		})
	}
}

// A follower does not get a response that varies on a field in which it differs from the leader.
func TestSharedQueryVaries(t *testing.T) {
	setup(delayed(func(w http.ResponseWriter, r *http.Request) {
		replies(fmt.Sprintf(`{"data":{"language":%q}}`, language(r)), "Vary: Accept-Language")(w, r)
	})).run(t, func(w *world) {
		var clients sync.WaitGroup
		for _, language := range []string{"en", "de"} {
			clients.Go(func() {
				r := w.ask(listIssues("widgets"), "Accept-Language: "+language)
				w.want("body of "+language, r.body, fmt.Sprintf(`{"data":{"language":%q}}`, language))
			})
			time.Sleep(100 * time.Millisecond)
		}
		clients.Wait()
	})
}

// A query may show a repository that it does not name: the fork of a pull request, or the repository under its new name.
func TestOwnWriteToAnotherRepositoryMakesQueriesStale(t *testing.T) {
	for path, method := range map[string]string{"/repos/me/widgets/contents/a": http.MethodPut, "/repos/acme/gadgets/pulls/7": http.MethodPatch} {
		setup(new(answers).ServeHTTP, storingLists(), withCatalogue).sub(t, path, func(w *world) {
			w.ask(listIssues("widgets"))
			w.do(method, path, strings.NewReader("{}"), bearer("a"))
			w.ask(listIssues("widgets"))
			w.want("requests upstream", w.upstreamSaw(), 3)
		})
	}
}

// A mutation names nodes, so Weir does not know which REST responses it changes.
func TestOwnMutationMakesRESTResponsesStale(t *testing.T) {
	mutate := func(w *world) { w.ask(closeIssue) }
	runScenarios(t, scenario{
		name: "an issue", path: "/repos/acme/widgets/issues/1", upstream: replies(noData, "Cache-Control: private, max-age=60"), options: []option{withCatalogue},
		steps: []step{
			{token: "a"}, {token: "b"}, {do: mutate},
			{token: "a", cache: "weir; fwd=stale; fwd-status=200; stored; ttl=60"}, {token: "b", cached: true, cache: "weir; hit; ttl=60"},
		},
	})
}

// The names in mutations and the hashes of persisted queries do not fill the memory. Each kind has 18 MB, more than the bound.
func TestLongNamesInGraphQLCallsAreNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, (&pricingUpstream{price: func(string) int { return 1 }, reply: `{"data":{"rateLimit":{"cost":1}}}`}).ServeHTTP)
		before := heapSize()
		for i := range 20 {
			long := strconv.Itoa(i) + strings.Repeat("x", 900_000)
			w.ask(`{"query":"mutation($id:ID!){a(input:{id:$id}){b}}","variables":{"id":"` + long + `"}}`)
			w.ask(`{"extensions":{"persistedQuery":{"version":1,"sha256Hash":"` + long + `"}}}`)
		}
		time.Sleep(2 * time.Hour)
		w.get("/user")
		grown := int64(heapSize()) - int64(before)
		failIf(t, grown > 10<<20, "the heap grew by %d MiB", grown>>20)
		runtime.KeepAlive(w)
	})
}
