package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/testservers"
)

// The API of the random traffic has 40 URLs: seven for each of five repositories, and five that depend on the caller.
const (
	trafficCallers, trafficRepositories = 6, 5
	// trafficFresh is the lifetime of a response. trafficSlack allows for requests in progress on a busy machine.
	trafficFresh, trafficSlack = 2 * time.Second, time.Second
)

var (
	repositoryPaths = []string{"", "/issues", "/labels", "/issues/1", "/issues/2", "/issues/3", "/issues/4"}
	callerPaths     = []string{"/user", "/user/repos", "/user/issues", "/user/orgs", "/user/emails"}
)

// trafficAPI is an upstream whose responses name the caller or the version of the object. Each caller has one valid
// token and may see some of the repositories.
type trafficAPI struct {
	mu       sync.Mutex
	tokens   [trafficCallers]int // number of the valid token
	newToken [trafficCallers]time.Time
	hidden   [trafficCallers][trafficRepositories]bool
	hiddenAt [trafficCallers][trafficRepositories]time.Time
	versions map[string]int // by path
	requests int
}

func (a *trafficAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests++
	caller, token := 0, 0
	h := w.Header()
	h.Set("Cache-Control", fmt.Sprint("private, max-age=", int(trafficFresh.Seconds())))
	h.Set("Vary", "Authorization")
	if n, _ := fmt.Sscanf(r.Header.Get("Authorization"), "Bearer caller-%d-token-%d", &caller, &token); n != 2 || token != a.tokens[caller] {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	path := r.URL.Path
	text := fmt.Sprintf("%s of caller %d", path, caller)
	if repository := repositoryOf(path); repository >= 0 {
		if a.hidden[caller][repository] {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		if r.Method == http.MethodPatch {
			_, _ = fmt.Fprint(w, a.change(path))
			return
		}
		text = fmt.Sprintf("%s version %d", path, a.versions[path])
	}
	etag := fmt.Sprintf("%q", hex.EncodeToString(sha256.New().Sum([]byte(text))))
	h.Set("Etag", etag)
	if strings.Contains(r.Header.Get("If-None-Match"), etag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = fmt.Fprint(w, text)
}

// change changes an issue, its list and its repository, and returns their versions. mu must be held.
func (a *trafficAPI) change(path string) (versions [3]int) {
	for i, p := range changedPaths(path) {
		a.versions[p]++
		versions[i] = a.versions[p]
	}
	return versions
}

// changedPaths returns the paths that a change of an issue changes.
func changedPaths(issue string) [3]string {
	list := issue[:strings.LastIndexByte(issue, '/')]
	return [3]string{issue, list, strings.TrimSuffix(list, "/issues")}
}

func repositoryOf(path string) int {
	n := -1
	_, _ = fmt.Sscanf(path, "/repos/acme/r%d", &n)
	return n
}

// outages records when Redis was unreachable.
type outages struct {
	mu         sync.Mutex
	from, till time.Time
}

// during reports whether Redis may have been unreachable, or purges may have waited for it, in a period.
func (o *outages) during(from, till time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.from.IsZero() && till.After(o.from) && (o.till.IsZero() || from.Before(o.till.Add(maxPurge)))
}

// trafficJudge knows the lowest versions that callers may get.
type trafficJudge struct {
	api     *trafficAPI
	outages outages

	mu    sync.Mutex
	least map[string]int // by caller, replica and path
}

func leastKey(caller, replica int, path string) string {
	return fmt.Sprint(caller, " ", replica, " ", path)
}

// maxPurge is the longest time for which a write waits for the other replicas.
const maxPurge = 2 * time.Second

// wrote records that callers must see the versions of a change. If Redis was reachable and the write did not stop
// waiting for the other replica, this is true for both replicas, and otherwise for the replica of the change.
func (j *trafficJudge) wrote(issue string, versions [3]int, callers []int, replica int, began time.Time) {
	everywhere := !j.outages.during(began, time.Now()) && time.Since(began) < maxPurge
	j.mu.Lock()
	defer j.mu.Unlock()
	for i, path := range changedPaths(issue) {
		for _, caller := range callers {
			for r := range 2 {
				if r == replica || everywhere {
					key := leastKey(caller, r, path)
					j.least[key] = max(j.least[key], versions[i])
				}
			}
		}
	}
}

var versionOf = regexp.MustCompile(`version (\d+)$`)

// TestRandomTrafficGetsNoWrongResponse sends random requests of six callers to two gateways on one Redis, with changes,
// webhooks, revoked rights, new tokens, and an outage of Redis in the middle. WEIR_CACHE_REQUESTS sets the number of
// requests.
func TestRandomTrafficGetsNoWrongResponse(t *testing.T) {
	t.Parallel()
	total := 4000
	if text := os.Getenv("WEIR_CACHE_REQUESTS"); text != "" {
		var err error
		if total, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	api := &trafficAPI{versions: map[string]int{}}
	up := httptest.NewServer(api)
	t.Cleanup(up.Close)
	socket := testservers.Redis(t)
	var links [2]*testservers.Link
	var gateways [2]*gateway
	for i := range gateways {
		links[i] = testservers.NewSocketLink(t, socket)
		cfg := config.Default()
		cfg.Upstream.URL, cfg.Upstream.Dialect, cfg.Upstream.Limits = up.URL, "github", false
		cfg.Store.URL, cfg.Limits.Inbound.Rate, cfg.Cache.ETags, cfg.Webhooks.Secret = "unix://"+links[i].Address, 0, "upstream", "webhook-secret"
		g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(g.close)
		gateways[i] = g
	}
	j := &trafficJudge{api: api, least: map[string]int{}}
	var sent, hits, judged atomic.Int64
	send := func(replica int, r *http.Request) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		gateways[replica].ServeHTTP(w, r)
		if strings.HasPrefix(w.Header().Get("Cache-Status"), "weir; hit") {
			hits.Add(1)
		}
		return w
	}
	var clients sync.WaitGroup
	for client := range 12 {
		rng := rand.New(rand.NewPCG(20261125, uint64(client)))
		clients.Go(func() {
			for n := sent.Add(1); n <= int64(total); n = sent.Add(1) {
				if n == int64(total)/2 {
					j.outage(links[:])
				}
				caller, replica, repository := rng.IntN(trafficCallers), rng.IntN(2), rng.IntN(trafficRepositories)
				issue := fmt.Sprintf("/repos/acme/r%d/issues/%d", repository, 1+rng.IntN(4))
				switch p := rng.IntN(1000); {
				case p < 5:
					api.mu.Lock()
					api.hidden[caller][repository] = !api.hidden[caller][repository]
					api.hiddenAt[caller][repository] = time.Now()
					api.mu.Unlock()
				case p < 8:
					api.mu.Lock()
					api.tokens[caller]++
					api.newToken[caller] = time.Now()
					api.mu.Unlock()
				case p < 20:
					j.deliver(t, issue, repository, replica, send)
				case p < 30:
					j.readRevoked(t, issue, caller, replica, send)
				case p < 70:
					j.write(t, issue, caller, replica, send)
				default:
					path := callerPaths[rng.IntN(len(callerPaths))]
					if i := rng.IntN(trafficRepositories*len(repositoryPaths) + len(callerPaths)); i >= len(callerPaths) {
						path = fmt.Sprintf("/repos/acme/r%d", repository) + repositoryPaths[rng.IntN(len(repositoryPaths))]
					}
					if j.read(t, path, caller, replica, send) {
						judged.Add(1)
					}
				}
			}
		})
	}
	clients.Wait()
	t.Logf("%d requests, %d hits, %d bodies judged, %d requests upstream", total, hits.Load(), judged.Load(), api.requests)
	if hits.Load() < int64(total)/10 || judged.Load() < int64(total)/2 {
		t.Errorf("%d hits and %d judged bodies of %d requests prove nothing", hits.Load(), judged.Load(), total)
	}
}

// outage cuts the connections of both gateways to Redis for three seconds. The other clients continue.
func (j *trafficJudge) outage(links []*testservers.Link) {
	j.outages.mu.Lock()
	j.outages.from = time.Now()
	j.outages.mu.Unlock()
	for _, l := range links {
		l.Cut()
	}
	time.Sleep(3 * time.Second)
	for _, l := range links {
		l.Restore()
	}
	j.outages.mu.Lock()
	j.outages.till = time.Now()
	j.outages.mu.Unlock()
}

func (j *trafficJudge) request(method, path string, caller int) *http.Request {
	j.api.mu.Lock()
	defer j.api.mu.Unlock()
	r := httptest.NewRequest(method, path, http.NoBody)
	r.Header.Set("Authorization", fmt.Sprintf("Bearer caller-%d-token-%d", caller, j.api.tokens[caller]))
	return r
}

// readRevoked reads an issue with the former token of a caller.
func (j *trafficJudge) readRevoked(t *testing.T, issue string, caller, replica int, send func(int, *http.Request) *httptest.ResponseRecorder) {
	r := httptest.NewRequest(http.MethodGet, issue, http.NoBody)
	j.api.mu.Lock()
	r.Header.Set("Authorization", fmt.Sprintf("Bearer caller-%d-token-%d", caller, j.api.tokens[caller]-1))
	revoked := time.Since(j.api.newToken[caller]) > trafficFresh+trafficSlack
	j.api.mu.Unlock()
	if w := send(replica, r); revoked && w.Code == http.StatusOK {
		t.Errorf("%s: got %q with a token that was revoked more than %v ago, %s", issue, w.Body, trafficFresh, w.Header().Get("Cache-Status"))
	}
}

// write changes an issue. The caller must see the change in all later reads.
func (j *trafficJudge) write(t *testing.T, issue string, caller, replica int, send func(int, *http.Request) *httptest.ResponseRecorder) {
	began := time.Now()
	w := send(replica, j.request(http.MethodPatch, issue, caller))
	if w.Code != http.StatusOK {
		return
	}
	var versions [3]int
	if _, err := fmt.Sscanf(w.Body.String(), "[%d %d %d]", &versions[0], &versions[1], &versions[2]); err != nil {
		t.Errorf("write: %s: %v", w.Body, err)
	}
	j.wrote(issue, versions, []int{caller}, replica, began)
}

// deliver changes an issue outside of the gateways, and delivers the event. All callers must see the change afterwards.
func (j *trafficJudge) deliver(t *testing.T, issue string, repository, replica int, send func(int, *http.Request) *httptest.ResponseRecorder) {
	began := time.Now()
	j.api.mu.Lock()
	versions := j.api.change(issue)
	j.api.mu.Unlock()
	body := fmt.Sprintf(`{"action":"edited","repository":{"full_name":"acme/r%d","owner":{"login":"acme"}}}`, repository)
	mac := hmac.New(sha256.New, []byte("webhook-secret"))
	_, _ = mac.Write([]byte(body))
	r := httptest.NewRequest(http.MethodPost, "/_weir/webhooks", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-GitHub-Event", "issues")
	r.Header.Set("X-GitHub-Delivery", fmt.Sprint(issue, versions))
	r.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	if w := send(replica, r); w.Code/100 != 2 {
		t.Errorf("webhook: %d %s", w.Code, w.Body)
		return
	}
	j.wrote(issue, versions, []int{0, 1, 2, 3, 4, 5}, replica, began)
}

// read reads a path, and reports whether the response had a body that could be wrong.
func (j *trafficJudge) read(t *testing.T, path string, caller, replica int, send func(int, *http.Request) *httptest.ResponseRecorder) bool {
	j.mu.Lock()
	least := j.least[leastKey(caller, replica, path)]
	j.mu.Unlock()
	r, began := j.request(http.MethodGet, path, caller), time.Now()
	repository := repositoryOf(path)
	j.api.mu.Lock()
	oldest := j.api.versions[path]
	j.api.mu.Unlock()
	w := send(replica, r)
	text, status := w.Body.String(), w.Header().Get("Cache-Status")
	if w.Code != http.StatusOK {
		return false
	}
	if repository < 0 {
		if want := fmt.Sprintf("%s of caller %d", path, caller); text != want {
			t.Errorf("got %q, want %q, %s", text, want, status)
		}
		return true
	}
	version := -1
	if m := versionOf.FindStringSubmatch(text); m != nil && strings.HasPrefix(text, path+" ") {
		version, _ = strconv.Atoi(m[1])
	}
	switch {
	case version < 0:
		t.Errorf("%s: got %q, %s", path, text, status)
	case j.hiddenBefore(caller, repository, began.Add(-trafficFresh-trafficSlack)):
		t.Errorf("%s: caller %d lost the right to see %q more than %v ago, %s", path, caller, text, trafficFresh, status)
	case version < least:
		t.Errorf("%s: caller %d got version %d of replica %d after version %d, %s", path, caller, version, replica, least, status)
	case version < oldest && !strings.HasPrefix(status, "weir; hit") && !strings.Contains(status, "collapsed") && !strings.Contains(status, "detail="):
		t.Errorf("%s: version %d was forwarded, although the upstream had %d, %s", path, version, oldest, status)
	}
	return true
}

// hiddenBefore reports whether a caller has had no right to see a repository since a time.
func (j *trafficJudge) hiddenBefore(caller, repository int, since time.Time) bool {
	j.api.mu.Lock()
	defer j.api.mu.Unlock()
	return j.api.hidden[caller][repository] && j.api.hiddenAt[caller][repository].Before(since)
}
