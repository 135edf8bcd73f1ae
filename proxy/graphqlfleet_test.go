package proxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/service"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/tags"
)

// fleetRepositories are the repositories of acme that the agents poll, with a pull request of each, or zero.
var fleetRepositories = []struct {
	name     string
	id, pull int
}{{"widgets", 1001, 34}, {"secret", 1002, 2}, {"empty", 1003, 0}}

// ghQueries are the queries of gh pr list, pr status, pr checks (two), issue list and repo view, with the names and the
// shape of those that gh sends.
var ghQueries = []string{
	`query PullRequestList($owner: String!, $repo: String!, $limit: Int!) { repository(owner: $owner, name: $repo) {
		pullRequests(states: [OPEN], first: $limit, orderBy: {field: CREATED_AT, direction: DESC}) {
			totalCount nodes { number title state url headRefName isDraft headRepositoryOwner { id login } } pageInfo { hasNextPage endCursor } } } }`,
	`query PullRequestStatus($owner: String!, $repo: String!, $viewerQuery: String!, $limit: Int!) {
		repository(owner: $owner, name: $repo) { defaultBranchRef { name } pullRequests(headRefName: "part-1", first: $limit) { totalCount edges { node { ...pr } } } }
		viewerCreated: search(query: $viewerQuery, type: ISSUE, first: $limit) { totalCount: issueCount edges { node { ...pr } } } }
		fragment pr on PullRequest { number title state latestReviews(first: 100) { nodes { state author { login } } }
		commits(last: 1) { nodes { commit { statusCheckRollup { contexts(first: 100) { nodes { __typename ... on CheckRun { name conclusion } } } } } } } }`,
	`query PullRequestByNumber($owner: String!, $repo: String!, $number: Int!) { repository(owner: $owner, name: $repo) { pullRequest(number: $number) { number title headRefName id } } }`,
	`query PullRequestStatusChecks($id: ID!) { node(id: $id) { ... on PullRequest { title
		commits(last: 1) { nodes { commit { statusCheckRollup { contexts(first: 100) { nodes { __typename ... on CheckRun { name conclusion } } } } } } } } } }`,
	`query IssueList($owner: String!, $repo: String!, $limit: Int!) { repository(owner: $owner, name: $repo) { hasIssuesEnabled
		issues(first: $limit, orderBy: {field: CREATED_AT, direction: DESC}, states: [OPEN]) { totalCount nodes { number title state labels(first: 100) { nodes { id name } } } } } }`,
	`query RepositoryInfo($owner: String!, $repo: String!) { repository(owner: $owner, name: $repo) { id name description parent { name } viewerPermission viewerSubscription } }`,
}

// queriesOfGH returns the queries for a repository, without those for a pull request if pull is zero.
func queriesOfGH(pull int) []string {
	return slices.DeleteFunc(slices.Clone(ghQueries), func(query string) bool {
		return pull == 0 && (strings.Contains(query, "$id:") || strings.Contains(query, "$number:"))
	})
}

// bodyOf returns a query of gh about a repository as a request body.
func bodyOf(query, repo string, pull int, pullID string) string {
	variables := map[string]any{"owner": "acme", "repo": repo}
	for name, value := range map[string]any{
		"limit": 30, "number": pull, "id": pullID, "viewerQuery": "repo:acme/" + repo + " state:open is:pr author:@me",
	} {
		if strings.Contains(query, "$"+name+":") {
			variables[name] = value
		}
	}
	body, _ := json.Marshal(map[string]any{"query": query, "variables": variables})
	return string(body)
}

// ghFleet judges the responses that agents get: it compares them with the responses of the service after each change.
type ghFleet struct {
	*testing.T
	service *service.Service

	mu           sync.Mutex
	quota        int                          // consumed by the requests that the gateway sent
	version      int                          // number of the last change
	queries      map[string]map[string]string // body by name and repository, by token
	answers      map[string][]answerSince     // by token and body, oldest first
	made, own    map[string]int               // last change of each token: made, and acknowledged
	delivered    map[string]int               // last change of each repository that a webhook has reported
	judged, hits int
}

// answerSince is the service's response from a change on.
type answerSince struct {
	version int
	body    string
}

// serve sends a request to the service, and returns its cost. mu must be held.
func (f *ghFleet) serve(token, body string) (*httptest.ResponseRecorder, int) {
	f.service.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodDelete, "/_service/violations", http.NoBody)) // no limits
	r := httptest.NewRequest(http.MethodPost, "http://upstream.test/graphql", strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+token)
	w := httptest.NewRecorder()
	f.service.ServeHTTP(w, r)
	quota, err := strconv.Atoi(w.Header().Get("X-Ratelimit-Used"))
	failIf(f, err != nil, "quota of a response: %v", err)
	return w, quota
}

// snapshot records the service's present answers. mu must be held.
func (f *ghFleet) snapshot() {
	for token, bodies := range f.queries {
		for _, body := range bodies {
			key := token + body
			w, _ := f.serve(token, body)
			failIf(f, !strings.HasPrefix(w.Body.String(), `{"data":{`) || strings.Contains(w.Body.String(), `"errors"`), "%s: %s", body, w.Body)
			if list := f.answers[key]; len(list) == 0 || list[len(list)-1].body != w.Body.String() {
				f.answers[key] = append(list, answerSince{f.version, w.Body.String()})
			}
		}
	}
}

// ServeHTTP is the upstream of the gateway.
func (f *ghFleet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	time.Sleep(50 * time.Millisecond)
	f.mu.Lock()
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	answer, quota := f.serve(token, string(body))
	if bytes.Contains(body, []byte("mutation")) {
		f.version++
		f.made[token] = f.version
		f.snapshot()
	} else {
		f.quota += quota
	}
	f.mu.Unlock()
	time.Sleep(50 * time.Millisecond)
	for name, values := range answer.Header() {
		w.Header()[name] = values
	}
	_, _ = w.Write(answer.Body.Bytes())
}

// read sends a query through a gateway and compares the response with the state: it must not be older than the own
// changes of the token, and than the webhooks of the repository.
func (f *ghFleet) read(g *Gateway, token, repo, body string) {
	f.mu.Lock()
	oldest := max(f.own[token], f.delivered[repo])
	f.mu.Unlock()
	w := post(g, token, body)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.judged++
	if strings.Contains(w.Header().Get("Cache-Status"), "; hit") {
		f.hits++
	}
	list := f.answers[token+body]
	isCurrent := func(i int) bool {
		return list[i].body == w.Body.String() && (i == len(list)-1 || list[i+1].version > oldest)
	}
	for i := range list {
		if isCurrent(i) {
			return
		}
	}
	f.Errorf("%s: stale or wrong response (%d %s) to %.60s of %s: %.200s", token, w.Code, w.Header().Get("Cache-Status"), body, repo, w.Body)
}

func post(g *Gateway, token, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/graphql", strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r)
	return w
}

// change returns a mutation of a repository.
func (f *ghFleet) change(random *rand.Rand, repo int) string {
	title := fmt.Sprint("Title ", random.IntN(1_000_000))
	mutation, input := "createIssue", map[string]any{"repositoryId": fmt.Sprint("R_", fleetRepositories[repo].id), "title": title}
	if fleetRepositories[repo].pull > 0 && random.IntN(2) == 0 {
		mutation = "updatePullRequest"
		input = map[string]any{"pullRequestId": f.pullID(repo), "title": title}
	}
	body, _ := json.Marshal(map[string]any{
		"query":     "mutation Change($input: " + strings.ToUpper(mutation[:1]) + mutation[1:] + "Input!) { " + mutation + "(input: $input) { clientMutationId } }",
		"variables": map[string]any{"input": input},
	})
	return string(body)
}

func (f *ghFleet) pullID(repo int) string {
	return fmt.Sprintf("PR_%d%06d", fleetRepositories[repo].id, fleetRepositories[repo].pull)
}

// run simulates 20 agents with two tokens that poll the repositories for some time through two replicas, while users and
// agents change them. It returns the quota that the queries of the agents consume.
func (f *ghFleet) run(duration time.Duration, gh bool) int {
	const agents, changesByUsers, changesByAgents = 20, 40, 20 // changes per hour
	dialect, err := policy.LoadDialect("service")
	noError(f, err)
	f.service, err = service.New(service.Config{Limits: policy.DefaultLimits(), Seed: 1, Dialect: dialect})
	noError(f, err)
	defer f.service.Close()
	f.queries, f.answers, f.made, f.own, f.delivered = map[string]map[string]string{}, map[string][]answerSince{}, map[string]int{}, map[string]int{}, map[string]int{}
	tokens := []string{"tok-owner", "tok-member"}
	for _, token := range tokens {
		f.queries[token] = map[string]string{}
		for i, repo := range fleetRepositories {
			for _, query := range queriesOfGH(repo.pull) {
				f.queries[token][query+repo.name] = bodyOf(query, repo.name, repo.pull, f.pullID(i))
			}
		}
	}
	f.snapshot()
	w := newWorld(f.T, f.ServeHTTP, func(c *Config) {
		c.GraphQLCache.GH = gh
		c.Ledger, c.Limiter = limits.Unlimited{}, limits.NewLimiter(limits.Unlimited{})
	})
	replicas, _ := w.replicas(2)
	end := time.Now().Add(duration)
	var running sync.WaitGroup
	for i := range agents {
		running.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			time.Sleep(time.Duration(random.Int64N(int64(30 * time.Second))))
			for time.Now().Before(end) {
				for _, repo := range fleetRepositories {
					for _, query := range queriesOfGH(repo.pull) {
						token := tokens[i%len(tokens)]
						f.read(replicas[random.IntN(len(replicas))], token, repo.name, f.queries[token][query+repo.name])
					}
				}
				time.Sleep(25*time.Second + time.Duration(random.Int64N(int64(10*time.Second))))
			}
		})
	}
	deliver := func(repo string, version int) {
		f.mu.Lock()
		f.delivered[repo] = max(f.delivered[repo], version)
		f.mu.Unlock()
	}
	changes := func(perHour float64, seed uint64, apply func(*rand.Rand, int) int) {
		random := rand.New(rand.NewPCG(2, seed))
		for {
			time.Sleep(time.Duration(random.ExpFloat64() * float64(time.Hour) / perHour))
			if time.Now().After(end) {
				return
			}
			repo := random.IntN(len(fleetRepositories))
			version := apply(random, repo)
			time.Sleep(time.Second) // the webhook is on its way
			g, name := replicas[random.IntN(len(replicas))], fleetRepositories[repo].name
			g.Cache.Purge(f.Context(), tags.OfEvent(g.Catalogue, "issues", "acme/"+name, "acme", false)...)
			deliver(name, version)
		}
	}
	running.Go(func() {
		changes(changesByUsers, 1, func(random *rand.Rand, repo int) int {
			f.mu.Lock()
			defer f.mu.Unlock()
			w, _ := f.serve("tok-owner-2", f.change(random, repo))
			failIf(f, strings.Contains(w.Body.String(), `"errors"`), "change: %s", w.Body)
			f.version++
			f.snapshot()
			return f.version
		})
	})
	running.Go(func() {
		changes(changesByAgents, 2, func(random *rand.Rand, repo int) int {
			token := tokens[random.IntN(len(tokens))]
			w := post(replicas[random.IntN(len(replicas))], token, f.change(random, repo))
			failIf(f, w.Code != http.StatusOK || strings.Contains(w.Body.String(), `"errors"`), "change: %d %s", w.Code, w.Body)
			f.mu.Lock()
			defer f.mu.Unlock()
			f.own[token] = f.made[token]
			return f.made[token]
		})
	})
	running.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Logf("gh rules %v, %v: %d responses judged, %d of them stored, %d changes, quota %d", gh, duration, f.judged, f.hits, f.version, f.quota)
	return f.quota
}

// TestAFleetOfGHCostsAFifth replays 20 agents that poll the five queries of gh. With the rules for gh the queries cost at
// least 80 % less quota than without, and no response is stale. The acceptance run has an hour, see savingsDuration.
func TestAFleetOfGHCostsAFifth(t *testing.T) {
	duration := savingsDuration(t, 3*time.Minute)
	var quota []int
	for _, gh := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			quota = append(quota, (&ghFleet{T: t}).run(duration, gh))
		})
	}
	t.Logf("%.1f %% of the quota", 100*float64(quota[1])/float64(quota[0]))
	failIf(t, 5*quota[1] > quota[0] || slices.Contains(quota, 0), "got quota %d with the rules and %d without, want at most a fifth", quota[1], quota[0])
}
