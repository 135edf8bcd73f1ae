package proxy

import (
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
)

// act is one thing that happens in a history: some clients ask at the same time, or
// something befalls what is kept.
type act struct {
	// purge is what is purged, while the first ask, and before others do.
	asks, later []askedFor
	purge       string
	// revoke makes the API refuse a token from now on; crash gives a replica an empty
	// memory; evict empties the tier that all share; away takes that from them.
	revoke, crash, evict, away bool
	token, replica             int
	pass                       time.Duration
}

// askedFor is one client's request.
type askedFor struct {
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

func drawActs(t *rapid.T) []act {
	number := func(n int, what string) int { return rapid.IntRange(0, n-1).Draw(t, what) }
	acts, pauses := make([]act, 0, 30), []time.Duration{time.Second, 30 * time.Second, 2 * time.Minute, 20 * time.Minute}
	if number(8, "a day may pass") == 0 { // in every second of which the caches look what has expired
		pauses = append(pauses, 25*time.Hour)
	}
	for range rapid.IntRange(3, 30).Draw(t, "acts") {
		a := act{token: number(4, "token"), replica: number(2, "replica")}
		group := func() (list []askedFor) {
			for range rapid.IntRange(1, 5).Draw(t, "clients") {
				list = append(list, askedFor{
					replica: number(2, "replica"), token: number(4, "token"), path: number(len(historyPaths), "path"), language: number(2, "language"),
					method: rapid.SampledFrom([]string{"GET", "GET", "GET", "HEAD"}).Draw(t, "method"), fields: rapid.SampledFrom(conditions).Draw(t, "fields"),
				})
			}
			return list
		}
		switch number(12, "what") {
		case 0, 7:
			a.purge = rapid.SampledFrom(historyTags).Draw(t, "tag")
			a.asks, a.later = group(), group()
		case 1:
			a.revoke = true
		case 2:
			a.crash = true
		case 3:
			a.evict = true
		case 4:
			a.away = true
		case 5, 6:
			a.pass = rapid.SampledFrom(pauses).Draw(t, "pass")
		default:
			a.asks = group()
		}
		acts = append(acts, a)
	}
	return acts
}

// owned is an API that says in every answer who may see it, in which language, and how
// old.
type owned struct {
	digests bool // its ETags hang on the token (facts of the github dialect)
	mu      sync.Mutex
	revoked map[string]bool
	version int // grows with every purge
	polls   int
}

func (o *owned) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if sleep(r.Context(), 20*time.Millisecond) != nil {
		return // nobody is there, or the history has ended
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

// view is what a token may see: two may see the same, and prove it to each other.
func view(token string) string {
	if token == "token 0" || token == "token 1" {
		return "team"
	}
	return "own of " + token
}

// TestAttack19NoAnswerReachesAnotherClass: over histories of callers, tokens, revocations,
// variants, purges, evictions and crashes, on two replicas that share a tier, an
// answer that was fetched with one credential is given to no other that may not see
// it, its fields to no other at all, a variant to nobody who asked for another one,
// and nothing from before a purge to who comes after it (design section 6.2).
func TestAttack19NoAnswerReachesAnotherClass(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		digests, acts := rapid.Bool().Draw(rt, "ETags hang on the token"), drawActs(rt)
		wrong := ""
		synctest.Test(t, func(t *testing.T) { wrong = happen(t, acts, digests) })
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
}

// happen lets a history happen, and returns what is wrong.
func happen(t *testing.T, acts []act, digests bool) (wrong string) {
	api := &owned{digests: digests, revoked: map[string]bool{}}
	dialect := func(*Config) {}
	if digests {
		dialect = github
	}
	w := newWorld(t, api.ServeHTTP, dialect)
	list, common := w.replicas(2)
	purged := map[string]int{} // the version since when a tag's answers are right
	for _, a := range acts {
		switch {
		case a.purge != "":
			before := maps.Clone(purged)
			early := make(chan string, 1)
			go func() { early <- together(list, a.asks, before) }()
			time.Sleep(10 * time.Millisecond)
			api.mu.Lock()
			api.version++
			purged[a.purge] = api.version
			api.mu.Unlock()
			list[a.replica].Cache.Purge(t.Context(), a.purge)
			if wrong = together(list, a.later, purged) + <-early; wrong != "" {
				return wrong
			}
		case a.revoke:
			api.mu.Lock()
			api.revoked[fmt.Sprint("token ", a.token)] = true
			api.mu.Unlock()
		case a.crash:
			list[a.replica] = w.replica(common)
		case a.evict:
			common.mu.Lock()
			clear(common.entries)
			common.mu.Unlock()
		case a.away:
			common.mu.Lock()
			common.away = !common.away
			common.mu.Unlock()
		case a.pass > 0:
			time.Sleep(a.pass)
		default:
			if wrong = together(list, a.asks, purged); wrong != "" {
				return wrong
			}
		}
	}
	time.Sleep(time.Second) // what nobody waits for any more ends, too
	return ""
}

// together lets clients ask at the same time, and returns what was wrong.
func together(list []*Gateway, asks []askedFor, purged map[string]int) (wrong string) {
	var mu sync.Mutex
	var clients sync.WaitGroup
	for _, q := range asks {
		clients.Go(func() {
			r := httptest.NewRequest(q.method, historyPaths[q.path], http.NoBody)
			token, language := fmt.Sprint("token ", q.token), []string{"de", "fr"}[q.language]
			r.Header.Set("Authorization", token)
			r.Header.Set("Accept-Language", language)
			for i := 0; i < len(q.fields); i += 2 {
				r.Header.Set(q.fields[i], q.fields[i+1])
			}
			w := httptest.NewRecorder()
			serveFast(list[q.replica], w, r)
			if what := misplaced(w, q, token, language, purged); what != "" {
				mu.Lock()
				defer mu.Unlock()
				wrong += fmt.Sprintf("%+v: %s: %d %q, %s\n", q, what, w.Code, w.Body, w.Header().Get("Cache-Status"))
			}
		})
	}
	clients.Wait()
	return wrong
}

// misplaced says what an answer is that this client must not get.
func misplaced(w *httptest.ResponseRecorder, q askedFor, token, language string, purged map[string]int) string {
	text := w.Body.String()
	switch {
	case q.method == http.MethodHead && text != "":
		return "a body of a HEAD"
	case w.Code == http.StatusNotModified && q.fields == nil:
		return "304 to who has nothing"
	case q.method == http.MethodHead || w.Code != http.StatusOK:
		return ""
	}
	whose, rest, _ := strings.Cut(text, "|")
	spoken, version, _ := strings.Cut(rest, "|")
	reference := q.path == 0 // the same for all
	switch {
	case whose != view(token) && !reference:
		return "another's answer"
	case w.Header().Get("X-Oauth-Scopes") != token && w.Header().Get("X-Oauth-Scopes") != "" && !reference:
		return "another's field"
	case spoken != language:
		return "another variant"
	}
	n := 0
	_, _ = fmt.Sscan(version, &n) // what it cannot read is 0
	for tag, since := range purged {
		if n < since && tagged(tag, historyPaths[q.path]) {
			return "from before the purge of " + tag
		}
	}
	return ""
}

func tagged(tag, path string) bool {
	switch tag {
	case "repo:acme/widgets", "org:acme":
		return strings.HasPrefix(path, "/repos/acme/widgets/")
	case "op:statistics/contributors":
		return strings.HasSuffix(path, "/stats/contributors")
	}
	return tag == "url:"+path
}

// replica is one more gateway like that of w, on that tier.
func (w *world) replica(c *sharedTier) *Gateway {
	config := w.gateway.Config
	memory := cache.NewMemory(64 << 20)
	config.Cache, config.Background = cache.NewStore(memory, c), NewBackground()
	c.mu.Lock()
	defer c.mu.Unlock()
	memory.PurgeUntil(c.generation) // the new replica does not know the earlier purges
	c.memories = append(c.memories, memory)
	w.Cleanup(func() {
		config.Background.Close()
	})
	return New(config)
}
