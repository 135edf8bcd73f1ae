package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
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
	// trafficTime bounds the time of further requests on a busy machine.
	trafficTime = 10 * time.Second
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

// lossNotes notes when a replica could not tell the other replica about a purge: during the outage, and on a busy machine
// also at other times.
type lossNotes struct {
	mu       sync.Mutex
	replicas int // without Redis
	last     time.Time
}

// read reads a line of the log of a replica.
func (l *lossNotes) read(line map[string]any) {
	message, _ := line["msg"].(string)
	change, known := map[string]int{
		"purges of other replicas unavailable": 1, "purges of other replicas available": -1, "purge not confirmed by all replicas": 0, "shared cache unavailable": 0,
	}[message]
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.replicas += change; known {
		l.last = time.Now()
	}
}

// since reports whether a purge may not have reached the other replica since a time.
func (l *lossNotes) since(began time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.replicas > 0 || l.last.Add(maxPurge).After(began)
}

// trafficJudge knows the lowest versions that callers may get.
type trafficJudge struct {
	*testing.T
	api      *trafficAPI
	gateways []*gateway
	losses   *lossNotes

	hits, judged atomic.Int64

	mu         sync.Mutex
	least      map[string]int // by caller, replica and path
	everywhere int            // writes that both replicas had to show
}

// proves reports whether enough responses and writes were checked. On a busy machine, many writes stop waiting for the other
// replica.
func (j *trafficJudge) proves(total int) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.hits.Load() >= int64(total)/10 && j.judged.Load() >= int64(total)/2 && j.everywhere >= total/100
}

func leastKey(caller, replica int, path string) string {
	return fmt.Sprint(caller, " ", replica, " ", path)
}

// maxPurge is the longest time for which a write waits for the other replicas.
const maxPurge = 2 * time.Second

// wrote records that callers must see the versions of a change. If Redis was reachable and the write did not stop
// waiting for the other replica, this is true for both replicas, and otherwise for the replica of the change.
func (j *trafficJudge) wrote(issue string, versions [3]int, callers []int, replica int, began time.Time) {
	everywhere := !j.losses.since(began) && time.Since(began) < maxPurge
	j.mu.Lock()
	defer j.mu.Unlock()
	if everywhere {
		j.everywhere++
	}
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
// webhooks, revoked rights, new tokens, and an outage of Redis in the middle. WEIR_CACHE_REQUESTS sets the least
// number of requests.
func TestRandomTrafficGetsNoWrongResponse(t *testing.T) {
	t.Parallel()
	total := testservers.Setting(t, "WEIR_CACHE_REQUESTS", 3000)
	api := &trafficAPI{versions: map[string]int{}}
	up, socket := serveAPI(t, api.ServeHTTP), testservers.Redis(t)
	j := &trafficJudge{T: t, api: api, losses: &lossNotes{}, least: map[string]int{}}
	var links []*testservers.Link
	for range 2 {
		link := testservers.NewSocketLink(t, socket)
		links = append(links, link)
		j.gateways = append(j.gateways, openVerbose(t, configure(up, inJSON, inboundRate(0, 0), func(c *config.Config) {
			c.Cache.Lag = 0 // the upstream is never late
			c.Upstream.Dialect, c.Upstream.Limits, c.Store.URL = "github", false, "unix://"+link.Address
			c.Cache.ETags, c.Webhooks.Secret = "upstream", "webhook-secret"
		}), jsonLog(j.losses.read), slog.LevelDebug))
	}
	var sent atomic.Int64
	var clients sync.WaitGroup
	end := sync.OnceValue(func() time.Time { return time.Now().Add(trafficTime) })
	for client := range 12 {
		rng := rand.New(rand.NewPCG(20261125, uint64(client)))
		clients.Go(func() {
			for n := sent.Add(1); n <= int64(total) || !j.proves(total) && time.Now().Before(end()); n = sent.Add(1) {
				if n == int64(total)/2 {
					outage(links)
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
					j.deliver(issue, repository, replica)
				case p < 30:
					j.readRevoked(issue, caller, replica)
				case p < 70:
					j.write(issue, caller, replica)
				default:
					path := callerPaths[rng.IntN(len(callerPaths))]
					if i := rng.IntN(trafficRepositories*len(repositoryPaths) + len(callerPaths)); i >= len(callerPaths) {
						path = fmt.Sprintf("/repos/acme/r%d", repository) + repositoryPaths[rng.IntN(len(repositoryPaths))]
					}
					if j.read(path, caller, replica) {
						j.judged.Add(1)
					}
				}
			}
		})
	}
	clients.Wait()
	t.Logf("%d requests, %d hits, %d bodies judged, %d writes shown everywhere, %d requests upstream",
		sent.Load(), j.hits.Load(), j.judged.Load(), j.everywhere, api.requests)
	failIf(t, !j.proves(total), "the traffic proves nothing")
}

// outage cuts the connections of both gateways to Redis for three seconds. The other clients continue.
func outage(links []*testservers.Link) {
	for _, l := range links {
		l.Cut()
	}
	time.Sleep(3 * time.Second)
	for _, l := range links {
		l.Restore()
	}
}

// send sends a request with the valid token of a caller, or with a former one, to a replica.
func (j *trafficJudge) send(replica int, method, path string, caller, former int) *httptest.ResponseRecorder {
	j.api.mu.Lock()
	token := j.api.tokens[caller] - former
	j.api.mu.Unlock()
	w := sendTo(j.gateways[replica], method, path, "", fmt.Sprintf("Authorization: Bearer caller-%d-token-%d", caller, token))
	if strings.HasPrefix(w.Header().Get("Cache-Status"), "weir; hit") {
		j.hits.Add(1)
	}
	return w
}

// readRevoked reads an issue with the former token of a caller.
func (j *trafficJudge) readRevoked(issue string, caller, replica int) {
	j.api.mu.Lock()
	revoked := time.Since(j.api.newToken[caller]) > trafficFresh+trafficSlack
	j.api.mu.Unlock()
	w := j.send(replica, http.MethodGet, issue, caller, 1)
	failIf(j, revoked && w.Code == http.StatusOK, "%s: got %q with a token that was revoked more than %v ago, %s", issue, w.Body, trafficFresh, w.Header().Get("Cache-Status"))
}

// write changes an issue. The caller must see the change in all later reads.
func (j *trafficJudge) write(issue string, caller, replica int) {
	began := time.Now()
	w := j.send(replica, http.MethodPatch, issue, caller, 0)
	if w.Code != http.StatusOK {
		return
	}
	var versions [3]int
	_, err := fmt.Sscanf(w.Body.String(), "[%d %d %d]", &versions[0], &versions[1], &versions[2])
	failIf(j, err != nil, "write: %s: %v", w.Body, err)
	j.wrote(issue, versions, []int{caller}, replica, began)
}

// deliver changes an issue outside of the gateways, and delivers the event. All callers must see the change afterwards.
func (j *trafficJudge) deliver(issue string, repository, replica int) {
	began := time.Now()
	j.api.mu.Lock()
	versions := j.api.change(issue)
	j.api.mu.Unlock()
	body := fmt.Sprintf(`{"action":"edited","repository":{"full_name":"acme/r%d","owner":{"login":"acme"}}}`, repository)
	code := deliver(j.gateways[replica], "X-GitHub-", "webhook-secret", "issues", fmt.Sprint(issue, versions), body, "Content-Type: application/json")
	if code/100 != 2 {
		j.Errorf("webhook: %d", code)
		return
	}
	j.wrote(issue, versions, []int{0, 1, 2, 3, 4, 5}, replica, began)
}

// read reads a path, and reports whether the response had a body that could be wrong.
func (j *trafficJudge) read(path string, caller, replica int) bool {
	j.mu.Lock()
	least := j.least[leastKey(caller, replica, path)]
	j.mu.Unlock()
	repository, began := repositoryOf(path), time.Now()
	j.api.mu.Lock()
	oldest := j.api.versions[path]
	j.api.mu.Unlock()
	w := j.send(replica, http.MethodGet, path, caller, 0)
	text, status := w.Body.String(), w.Header().Get("Cache-Status")
	if w.Code != http.StatusOK {
		return false
	}
	if repository < 0 {
		want := fmt.Sprintf("%s of caller %d", path, caller)
		failIf(j, text != want, "got %q, want %q, %s", text, want, status)
		return true
	}
	version := -1
	if m := versionOf.FindStringSubmatch(text); m != nil && strings.HasPrefix(text, path+" ") {
		version, _ = strconv.Atoi(m[1])
	}
	switch {
	case version < 0:
		j.Errorf("%s: got %q, %s", path, text, status)
	case j.hiddenBefore(caller, repository, began.Add(-trafficFresh-trafficSlack)):
		j.Errorf("%s: caller %d lost the right to see %q more than %v ago, %s", path, caller, text, trafficFresh, status)
	case version < least:
		j.Errorf("%s: caller %d got version %d of replica %d after version %d, %s", path, caller, version, replica, least, status)
	case version < oldest && !strings.HasPrefix(status, "weir; hit") && !strings.Contains(status, "collapsed") && !strings.Contains(status, "detail="):
		j.Errorf("%s: version %d was forwarded, although the upstream had %d, %s", path, version, oldest, status)
	}
	return true
}

// hiddenBefore reports whether a caller has had no right to see a repository since a time.
func (j *trafficJudge) hiddenBefore(caller, repository int, since time.Time) bool {
	j.api.mu.Lock()
	defer j.api.mu.Unlock()
	return j.api.hidden[caller][repository] && j.api.hiddenAt[caller][repository].Before(since)
}
