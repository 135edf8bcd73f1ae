package proxy

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// day is traffic as an organization's automation makes it, and the API that it goes
// to: 50 clients with five tokens ask about 200 repositories, the popular ones far
// more often than the others; people push, and the API tells of it by webhooks.
type day struct {
	*testing.T
	mu sync.Mutex
	// spent is what the API has counted against its primary limits, by resource; polls
	// are those that were answered 202.
	spent map[string]int
	polls int
	// pushes of each repository; told are those whose webhooks have arrived.
	pushes, told map[string]int
	// ready is when the statistics of a repository as it is now are computed.
	ready map[string]time.Time
	// changes are those that clients have made, by whose and of what.
	changes map[string]int
}

const (
	savingsClients, savingsTokens, savingsRepos = 50, 5, 200
	// savingsGap is the mean pause of a client.
	savingsGap = 10 * time.Second
	// A repository is pushed to as often as it is asked for, and so often in all.
	savingsPushes = 600
)

// mix is how often each kind of request is made, in hundredths, and by what it is
// answered: the catalogue's operations, as they are used.
var mix = []struct {
	parts int
	path  string // of a repository "%s", or of nothing
}{
	{12, "/gitignore/templates/Go"}, {6, "/gitignore/templates"}, {4, "/emojis"}, {3, "/meta"},
	{18, "/repos/%s/subscribers"}, {10, "/repos/%s/rulesets"}, {8, "/repos/%s/subscription"}, {8, "/repos/%s"},
	{12, "/repos/%s/stats/contributors"}, {6, "/repos/%s/stats/commit_activity"}, {4, "/repos/%s/stats/participation"},
	{4, "/rate_limit"}, {3, "/search/issues?q=repo:%s"}, {2, "PUT /repos/%s/subscription"},
}

// ServeHTTP is the API: it counts what is counted, and computes statistics anew
// after a push.
func (d *day) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	time.Sleep(50 * time.Millisecond)
	d.mu.Lock()
	defer d.mu.Unlock()
	h := w.Header()
	h.Set("X-RateLimit-Limit", "1000000")
	h.Set("X-RateLimit-Remaining", "900000")
	h.Set("X-RateLimit-Used", "100000")
	h.Set("X-RateLimit-Reset", strconv.FormatInt(time.Now().Truncate(time.Hour).Add(time.Hour).Unix(), 10))
	resource := "core"
	if strings.HasPrefix(r.URL.Path, "/search/") {
		resource = "search"
	}
	h.Set("X-RateLimit-Resource", resource)
	d.spent[resource]++
	mine := r.Header.Get("Authorization") + r.URL.Path
	if r.Method != http.MethodGet {
		d.changes[mine]++
		w.WriteHeader(http.StatusNoContent)
		return
	}
	repo := ""
	if parts := strings.Split(r.URL.Path, "/"); len(parts) > 3 && parts[1] == "repos" {
		repo = parts[2] + "/" + parts[3]
	}
	version := d.changes[mine]
	if strings.Contains(r.URL.Path, "/stats/") {
		if time.Now().Before(d.ready[repo]) {
			d.polls++
			w.WriteHeader(http.StatusAccepted)
			return
		}
		version = d.pushes[repo]
	}
	if resource == "search" {
		h.Set("Cache-Control", "no-cache")
	} else {
		h.Set("Cache-Control", "private, max-age=60, s-maxage=60")
		sum := fnv.New64()
		_, _ = fmt.Fprint(sum, mine, version)
		h.Set("Etag", fmt.Sprintf(`W/"%x"`, sum.Sum64()))
	}
	if etag := h.Get("Etag"); etag != "" && r.Header.Get("If-None-Match") == etag {
		d.spent[resource]-- // what has not changed costs nothing
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = fmt.Fprint(w, version)
}

// repo draws a repository, each half as often as the one half as far down the list.
func (d *day) repo(rng *rand.Rand) string {
	n := int(math.Pow(savingsRepos, rng.Float64())) - 1
	return fmt.Sprintf("o%d/r%d", n%7, n)
}

// people push, and webhooks arrive a second or two later.
func (d *day) people(g *Gateway, long time.Duration) {
	rng := rand.New(rand.NewPCG(1, 0))
	for end := time.Now().Add(long); ; {
		time.Sleep(time.Duration(rng.ExpFloat64() * float64(24*time.Hour) / savingsPushes))
		if time.Now().After(end) {
			return
		}
		repo := d.repo(rng)
		d.mu.Lock()
		d.pushes[repo]++
		n := d.pushes[repo]
		d.ready[repo] = time.Now().Add(time.Duration(2+rng.IntN(20)) * time.Second)
		d.mu.Unlock()
		time.Sleep(time.Second)
		owner, _, _ := strings.Cut(repo, "/")
		g.Cache.Purge(d.Context(), g.TagsOfEvent("push", repo, owner)...)
		d.mu.Lock()
		d.told[repo] = max(d.told[repo], n)
		d.mu.Unlock()
	}
}

// client asks until the day is over, and returns how often what costs the quota of
// core: neither the rate limit status nor searches do.
func (d *day) client(g *Gateway, n int, long time.Duration) (asked int) {
	rng := rand.New(rand.NewPCG(2, uint64(n)))
	for end := time.Now().Add(long); ; {
		time.Sleep(time.Duration(rng.ExpFloat64() * float64(savingsGap)))
		if time.Now().After(end) {
			return asked
		}
		part, kind := rng.IntN(100), 0
		for part >= mix[kind].parts {
			part -= mix[kind].parts
			kind++
		}
		repo := d.repo(rng)
		method, target, other := strings.Cut(mix[kind].path, " ")
		if !other {
			method, target = http.MethodGet, mix[kind].path
		}
		if strings.Contains(target, "%s") {
			target = fmt.Sprintf(target, repo)
		}
		d.mu.Lock()
		least := d.told[repo]
		d.mu.Unlock()
		r := httptest.NewRequest(method, target, http.NoBody)
		r.Header.Set("Authorization", fmt.Sprint("token ", n%savingsTokens))
		w := httptest.NewRecorder()
		serveFast(g, w, r)
		if target != "/rate_limit" && !strings.HasPrefix(target, "/search/") {
			asked++
		}
		d.judge(target, w, least)
	}
}

// judge fails the test for statistics from before a push whose webhook had arrived
// when they were asked for, and for what was refused.
func (d *day) judge(target string, w *httptest.ResponseRecorder, least int) {
	switch {
	case w.Code >= http.StatusBadRequest:
		d.Errorf("%s: %d %s", target, w.Code, w.Header().Get("Cache-Status"))
	case w.Code == http.StatusOK && strings.Contains(target, "/stats/"):
		if version, err := strconv.Atoi(w.Body.String()); err != nil || version < least {
			d.Errorf("%s: of push %s, %d were known: %s", target, w.Body, least, w.Header().Get("Cache-Status"))
		}
	}
}

// TestADayCostsATenth: WEIR_SAVINGS is how long the day is.
func TestADayCostsATenth(t *testing.T) {
	long := time.Hour
	if text := os.Getenv("WEIR_SAVINGS"); text != "" {
		var err error
		if long, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		d := &day{T: t, pushes: map[string]int{}, told: map[string]int{}, ready: map[string]time.Time{}, changes: map[string]int{}, spent: map[string]int{}}
		w := newWorld(t, d.ServeHTTP)
		var clients sync.WaitGroup
		asked := make([]int, savingsClients)
		clients.Go(func() { d.people(w.gateway, long) })
		for n := range asked {
			clients.Go(func() { asked[n] = d.client(w.gateway, n, long) })
		}
		clients.Wait()
		total := 0
		for _, n := range asked {
			total += n
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		spent := d.spent["core"]
		t.Logf("%v: %d requests that cost quota without Weir, %d with it: %.1f %%; %d requests reached the API, %d of them polls, %d searches",
			long, total, spent, 100*float64(spent)/float64(total), w.upstreamSaw(), d.polls, d.spent["search"])
		if long >= 24*time.Hour && spent > total/10 {
			t.Error("more than a tenth of the quota was spent")
		}
	})
}
