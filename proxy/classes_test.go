package proxy

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/proxy/caller"
)

// event is one step of a random history: concurrent requests, or a change of the state of caches or tokens.
type event struct {
	// requests lists the requests that clients send concurrently.
	requests []clientRequest
	// purge is the tag to purge during the requests. later lists the requests after the purge.
	purge string
	later []clientRequest
	// revoke revokes a token. crash restarts a replica with empty memory. evict removes all entries
	// of the shared tier. outage starts or ends an outage of the shared tier.
	revoke, crash, evict, outage bool
	token, replica               int
	pause                        time.Duration
}

// clientRequest is one request of a client.
type clientRequest struct {
	replica, token, path, language int
	method                         string
	fields                         []string
}

var (
	historyPaths = []string{"/gitignore/templates", "/repos/acme/widgets/subscribers", "/repos/acme/widgets/stats/contributors", "/users/octocat", "/unknown/thing"}
	historyTags  = []string{"repo:acme/widgets", "op:statistics/contributors", "url:/users/octocat", "url:/gitignore/templates", "org:acme"}
	conditions   = [][]string{
		nil, nil, nil, nil,
		{"Cache-Control", "no-cache"}, {"Cache-Control", "max-stale"}, {"Cache-Control", "only-if-cached"}, {"If-None-Match", `"guess"`},
		{"Range", "bytes=0-3"}, {"Cache-Control", "no-store"},
	}
)

func drawEvents(t *rapid.T) []event {
	number := func(n int, label string) int { return rapid.IntRange(0, n-1).Draw(t, label) }
	events, pauses := make([]event, 0, 30), []time.Duration{time.Second, 30 * time.Second, 2 * time.Minute, 20 * time.Minute}
	if number(8, "pauses of a day") == 0 { // long pauses are rare because the caches remove expired entries every second
		pauses = append(pauses, 25*time.Hour)
	}
	for range rapid.IntRange(3, 30).Draw(t, "events") {
		e := event{token: number(4, "token"), replica: number(2, "replica")}
		group := func() (list []clientRequest) {
			for range rapid.IntRange(1, 5).Draw(t, "clients") {
				list = append(list, clientRequest{
					replica: number(2, "replica"), token: number(4, "token"), path: number(len(historyPaths), "path"), language: number(2, "language"),
					method: rapid.SampledFrom([]string{"GET", "GET", "GET", "HEAD"}).Draw(t, "method"), fields: rapid.SampledFrom(conditions).Draw(t, "fields"),
				})
			}
			return list
		}
		switch number(12, "kind") {
		case 0, 7:
			e.purge = rapid.SampledFrom(historyTags).Draw(t, "tag")
			e.requests, e.later = group(), group()
		case 1:
			e.revoke = true
		case 2:
			e.crash = true
		case 3:
			e.evict = true
		case 4:
			e.outage = true
		case 5, 6:
			e.pause = rapid.SampledFrom(pauses).Draw(t, "pause")
		default:
			e.requests = group()
		}
		events = append(events, e)
	}
	return events
}

// labelledAPI names, in each response body, the view of the token, the language and the version.
type labelledAPI struct {
	digests bool // the ETags depend on the token, as in the github dialect
	mu      sync.Mutex
	revoked map[string]bool
	version int // every purge increments version
	polls   int
}

func (o *labelledAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if sleep(r.Context(), 20*time.Millisecond) != nil {
		return // the client has disconnected, or the test has ended
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	token := r.Header.Get("Authorization")
	h := w.Header()
	h.Set("Vary", "Accept, Authorization, Accept-Language")
	if o.revoked[token] {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if o.polls++; strings.Contains(r.URL.Path, "/stats/") && o.polls%3 != 0 {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	h.Set("Cache-Control", "private, max-age=60, stale-while-revalidate=30")
	text := fmt.Sprintf("%s|%s|%d", view(token), r.Header.Get("Accept-Language"), o.version)
	etag := strconv.Quote(text)
	if o.digests {
		etag = digestOf(r, text)
	}
	h.Set("Etag", etag)
	if strings.Contains(r.Header.Get("If-None-Match"), etag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("X-Oauth-Scopes", token)
	_, _ = fmt.Fprint(w, text)
}

// view returns the name of the data that a token may see. Tokens 0 and 1 may see the same data.
func view(token string) string {
	if token == "token 0" || token == "token 1" {
		return "team"
	}
	return "private to " + token
}

// TestNoResponseReachesAnotherSecurityClass covers attacks 19 to 22 of docs/internals/attacks.md. The test runs random
// histories on two replicas with a shared tier.
// A response must not reach a credential that may not see it, and its header fields must not reach any other
// credential. Each client must get the variant for its language. A purged response must not be served again.
func TestNoResponseReachesAnotherSecurityClass(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		digests, events := rapid.Bool().Draw(rt, "ETags depend on the token"), drawEvents(rt)
		failure := ""
		synctest.Test(t, func(t *testing.T) { failure = runHistory(t, events, digests) })
		if failure != "" {
			rt.Fatal(failure)
		}
	})
}

// runHistory executes the events and returns a description of wrong responses.
func runHistory(t *testing.T, events []event, digests bool) (failure string) {
	api := &labelledAPI{digests: digests, revoked: map[string]bool{}}
	dialect := func(*Config) {}
	if digests {
		dialect = github
	}
	w := newWorld(t, api.ServeHTTP, dialect)
	list, common := w.replicas(2)
	purged := map[string]int{} // version of the API after the last purge, by tag
	for _, e := range events {
		switch {
		case e.purge != "":
			before := maps.Clone(purged)
			early := make(chan string, 1)
			go func() { early <- sendAll(list, e.requests, before) }()
			time.Sleep(10 * time.Millisecond)
			api.mu.Lock()
			api.version++
			purged[e.purge] = api.version
			api.mu.Unlock()
			list[e.replica].Cache.Purge(t.Context(), e.purge)
			if failure = sendAll(list, e.later, purged) + <-early; failure != "" {
				return failure
			}
		case e.revoke:
			api.mu.Lock()
			api.revoked[fmt.Sprint("token ", e.token)] = true
			api.mu.Unlock()
		case e.crash:
			list[e.replica] = w.replica(common)
		case e.evict:
			common.change(func() { clear(common.entries) })
		case e.outage:
			common.change(func() { common.away = !common.away })
		case e.pause > 0:
			time.Sleep(e.pause)
		default:
			if failure = sendAll(list, e.requests, purged); failure != "" {
				return failure
			}
		}
	}
	time.Sleep(time.Second) // upstream requests without a waiting client must also end
	return ""
}

// sendAll sends the requests concurrently and returns a description of wrong responses.
func sendAll(list []*Gateway, requests []clientRequest, purged map[string]int) (failures string) {
	var mu sync.Mutex
	var clients sync.WaitGroup
	for _, q := range requests {
		clients.Go(func() {
			r := httptest.NewRequest(q.method, historyPaths[q.path], http.NoBody)
			token, language := fmt.Sprint("token ", q.token), []string{"de", "fr"}[q.language]
			r.Header.Set("Authorization", token)
			r.Header.Set("Accept-Language", language)
			for i := 0; i < len(q.fields); i += 2 {
				r.Header.Set(q.fields[i], q.fields[i+1])
			}
			w := httptest.NewRecorder()
			list[q.replica].ServeHTTP(w, r)
			if problem := checkResponse(w, q, token, language, purged); problem != "" {
				mu.Lock()
				defer mu.Unlock()
				failures += fmt.Sprintf("%+v: %s: %d %q, %s\n", q, problem, w.Code, w.Body, w.Header().Get("Cache-Status"))
			}
		})
	}
	clients.Wait()
	return failures
}

// checkResponse returns the reason why the client must not get the response, or an empty string.
func checkResponse(w *httptest.ResponseRecorder, q clientRequest, token, language string, purged map[string]int) string {
	text := w.Body.String()
	switch {
	case q.method == http.MethodHead && text != "":
		return "HEAD response with a body"
	case w.Code == http.StatusNotModified && q.fields == nil:
		return "304 to an unconditional request"
	case q.method == http.MethodHead || w.Code != http.StatusOK:
		return ""
	}
	gotView, rest, _ := strings.Cut(text, "|")
	gotLanguage, version, _ := strings.Cut(rest, "|")
	reference := q.path == 0 // reference data is shared by all clients
	switch {
	case gotView != view(token) && !reference:
		return "body of another security class"
	case w.Header().Get("X-Oauth-Scopes") != token && w.Header().Get("X-Oauth-Scopes") != "" && !reference:
		return "header field of another credential"
	case gotLanguage != language:
		return "variant in another language"
	}
	n := 0
	_, _ = fmt.Sscan(version, &n) // n is 0 if version is not a number
	for tag, since := range purged {
		if n < since && tagged(tag, historyPaths[q.path]) {
			return "older than the purge of " + tag
		}
	}
	return ""
}

// tagged reports whether the response for a path has the tag.
func tagged(tag, path string) bool {
	switch tag {
	case "repo:acme/widgets", "org:acme":
		return strings.HasPrefix(path, "/repos/acme/widgets/")
	case "op:statistics/contributors":
		return strings.HasSuffix(path, "/stats/contributors")
	}
	return tag == "url:"+path
}

// replica starts another gateway with the configuration of w and the given shared tier.
func (w *world) replica(c *sharedTier) *Gateway {
	config := w.gateway.Config
	memory := cache.NewMemory(64 << 20)
	config.Cache, config.Background = cache.NewStore(memory, c), NewBackground()
	c.mu.Lock()
	defer c.mu.Unlock()
	memory.PurgeUntil(c.generation) // the new replica does not know the earlier purges
	c.memories = append(c.memories, memory)
	ctx, stop := context.WithCancel(context.Background())
	var writing sync.WaitGroup
	writing.Go(func() { config.Cache.Run(ctx) })
	w.Cleanup(func() {
		config.Background.Close()
		stop()
		writing.Wait()
	})
	return New(config)
}

// The upstream lists the URLs of private feeds for Basic authentication only (Document B section 5.4), although both
// requests have the same token.
func TestFeedsDependOnTheScheme(t *testing.T) {
	const basic, feed = "Authorization: Basic YTp0b2stYQ==", "/feeds/users/a/private"
	oneCaller := identifying(func(_ *http.Request, id *caller.Identity) { id.Account, id.Class = "a", "a" })
	withBasic := step{path: feed, request: lines(basic), cached: true}
	withToken := step{path: feed, token: "a", status: 401} // says nothing about the token
	runScenarios(t, scenario{name: "feeds", path: "/feeds", response: lines("Cache-Control: private, max-age=60"), options: []option{oneCaller}, steps: []step{
		{token: "a", body: "1"}, {request: lines(basic), body: "2"}, {token: "a", cached: true, body: "1"}, {request: lines(basic), cached: true, body: "2"},
		{path: feed, request: lines(basic)}, withToken, withBasic, withToken, withBasic, withToken,
		{path: "/user", token: "a", body: "7"}, {path: "/user", request: lines(basic), cached: true, body: "7"},
	}})
}
