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

	"github.com/weirgate/weir/proxy/tags"
)

// simulation simulates an API and the traffic of an organization's automation.
// 50 clients with five tokens request data of 200 repositories. Popular repositories get most of the requests.
// Users push to the repositories, and each push sends a webhook to the gateway.
type simulation struct {
	*testing.T
	mu sync.Mutex
	// spent counts the requests that are charged to primary limits, by resource.
	spent map[string]int
	// polls counts the responses with status 202.
	polls int
	// pushes counts the pushes of each repository. delivered is the number of the last push whose webhook has arrived.
	pushes, delivered map[string]int
	// ready is the time at which the statistics after the last push are computed.
	ready map[string]time.Time
	// changes counts the writes, by credential and path.
	changes map[string]int
}

const (
	savingsClients, savingsTokens, savingsRepos = 50, 5, 200
	// savingsGap is the mean pause between the requests of a client.
	savingsGap = 10 * time.Second
	// savingsPushes is the number of pushes per day. Repositories with more requests also get more pushes.
	savingsPushes = 600
)

// savingsMix is the share of each kind of request. The kinds are operations of the catalogue.
var savingsMix = []struct {
	percent int
	path    string // method (default GET) and path; %s is the name of a repository
}{
	{12, "/gitignore/templates/Go"}, {6, "/gitignore/templates"}, {4, "/emojis"}, {3, "/meta"},
	{18, "/repos/%s/subscribers"}, {10, "/repos/%s/rulesets"}, {8, "/repos/%s/subscription"}, {8, "/repos/%s"},
	{12, "/repos/%s/stats/contributors"}, {6, "/repos/%s/stats/commit_activity"}, {4, "/repos/%s/stats/participation"},
	{4, "/rate_limit"}, {3, "/search/issues?q=repo:%s"}, {2, "PUT /repos/%s/subscription"},
}

// ServeHTTP implements the API, charges requests to the limits and recomputes statistics after a push.
func (s *simulation) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	time.Sleep(50 * time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	h := w.Header()
	resource := "core"
	if strings.HasPrefix(r.URL.Path, "/search/") {
		resource = "search"
	}
	reset := time.Until(time.Now().Truncate(time.Hour).Add(time.Hour))
	setFields(w, append(rates(1_000_000, 100_000, reset), "X-RateLimit-Resource: "+resource)...)
	s.spent[resource]++
	key := r.Header.Get("Authorization") + r.URL.Path
	if r.Method != http.MethodGet {
		s.changes[key]++
		w.WriteHeader(http.StatusNoContent)
		return
	}
	repo := ""
	if parts := strings.Split(r.URL.Path, "/"); len(parts) > 3 && parts[1] == "repos" {
		repo = parts[2] + "/" + parts[3]
	}
	version := s.changes[key]
	if strings.Contains(r.URL.Path, "/stats/") {
		if time.Now().Before(s.ready[repo]) {
			s.polls++
			w.WriteHeader(http.StatusAccepted)
			return
		}
		version = s.pushes[repo]
	}
	if resource == "search" {
		h.Set("Cache-Control", "no-cache")
	} else {
		h.Set("Cache-Control", "private, max-age=60, s-maxage=60")
		hash := fnv.New64()
		_, _ = fmt.Fprint(hash, key, version)
		h.Set("Etag", fmt.Sprintf(`W/"%x"`, hash.Sum64()))
	}
	if etag := h.Get("Etag"); etag != "" && r.Header.Get("If-None-Match") == etag {
		s.spent[resource]-- // a 304 is free
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = fmt.Fprint(w, version)
}

// repo returns a random repository. Repository 2n is drawn half as often as repository n.
func (s *simulation) repo(rng *rand.Rand) string {
	n := int(math.Pow(savingsRepos, rng.Float64())) - 1
	return fmt.Sprintf("o%d/r%d", n%7, n)
}

// push pushes to random repositories until the simulation ends. The webhook of a push arrives a second later.
func (s *simulation) push(g *Gateway, duration time.Duration) {
	rng := rand.New(rand.NewPCG(1, 0))
	for end := time.Now().Add(duration); ; {
		time.Sleep(time.Duration(rng.ExpFloat64() * float64(24*time.Hour) / savingsPushes))
		if time.Now().After(end) {
			return
		}
		repo := s.repo(rng)
		s.mu.Lock()
		s.pushes[repo]++
		n := s.pushes[repo]
		s.ready[repo] = time.Now().Add(time.Duration(2+rng.IntN(20)) * time.Second)
		s.mu.Unlock()
		time.Sleep(time.Second)
		owner, _, _ := strings.Cut(repo, "/")
		g.Cache.Purge(s.Context(), tags.OfEvent(g.Catalogue, "push", repo, owner, false)...)
		s.mu.Lock()
		s.delivered[repo] = max(s.delivered[repo], n)
		s.mu.Unlock()
	}
}

// client sends requests until the simulation ends, and returns the number that would use quota of the core
// resource without Weir. The rate limit status is free, and searches use another resource.
func (s *simulation) client(g *Gateway, n int, duration time.Duration) (requests int) {
	rng := rand.New(rand.NewPCG(2, uint64(n)))
	for end := time.Now().Add(duration); ; {
		time.Sleep(time.Duration(rng.ExpFloat64() * float64(savingsGap)))
		if time.Now().After(end) {
			return requests
		}
		share, kind := rng.IntN(100), 0
		for share >= savingsMix[kind].percent {
			share -= savingsMix[kind].percent
			kind++
		}
		repo := s.repo(rng)
		method, target, hasMethod := strings.Cut(savingsMix[kind].path, " ")
		if !hasMethod {
			method, target = http.MethodGet, savingsMix[kind].path
		}
		if strings.Contains(target, "%s") {
			target = fmt.Sprintf(target, repo)
		}
		s.mu.Lock()
		minVersion := s.delivered[repo]
		s.mu.Unlock()
		r := httptest.NewRequest(method, target, http.NoBody)
		r.Header.Set("Authorization", fmt.Sprint("token ", n%savingsTokens))
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		if target != "/rate_limit" && !strings.HasPrefix(target, "/search/") {
			requests++
		}
		s.check(target, w, minVersion)
	}
}

// check reports errors and outdated statistics. Statistics are outdated if they are older than a push
// whose webhook had arrived before the request.
func (s *simulation) check(target string, w *httptest.ResponseRecorder, minVersion int) {
	switch {
	case w.Code >= http.StatusBadRequest:
		s.Errorf("%s: got the error %d, %s", target, w.Code, w.Header().Get("Cache-Status"))
	case w.Code == http.StatusOK && strings.Contains(target, "/stats/"):
		version, err := strconv.Atoi(w.Body.String())
		failIf(s, err != nil || version < minVersion, "%s: statistics of push %s, want push %d or later: %s", target, w.Body, minVersion, w.Header().Get("Cache-Status"))
	}
}

// savingsDuration returns the simulated duration that the environment variable WEIR_SAVINGS sets, or the default.
func savingsDuration(t *testing.T, byDefault time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv("WEIR_SAVINGS")
	if text == "" {
		return byDefault
	}
	duration, err := time.ParseDuration(text)
	noError(t, err)
	return duration
}

// TestADayCostsATenth measures how much quota the gateway saves for the simulated traffic of a day.
// See savingsDuration.
func TestADayCostsATenth(t *testing.T) {
	duration := savingsDuration(t, 10*time.Minute)
	synctest.Test(t, func(t *testing.T) {
		s := &simulation{T: t, pushes: map[string]int{}, delivered: map[string]int{}, ready: map[string]time.Time{}, changes: map[string]int{}, spent: map[string]int{}}
		w := newWorld(t, s.ServeHTTP, lagging)
		var clients sync.WaitGroup
		requests := make([]int, savingsClients)
		clients.Go(func() { s.push(w.gateway, duration) })
		for n := range requests {
			clients.Go(func() { requests[n] = s.client(w.gateway, n, duration) })
		}
		clients.Wait()
		total := 0
		for _, n := range requests {
			total += n
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		spent := s.spent["core"]
		t.Logf("%v: %d requests that cost quota without Weir, %d with it: %.1f %%; %d requests reached the API, %d of them polls, %d searches",
			duration, total, spent, 100*float64(spent)/float64(total), w.upstreamSaw(), s.polls, s.spent["search"])
		failIf(t, duration >= 24*time.Hour && spent > total/10, "the gateway spent more than a tenth of the quota")
	})
}
