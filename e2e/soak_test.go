//go:build e2e && soak

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// soak is a fleet under mixed traffic, with faults in sequence.
type soak struct {
	*fleet
	long       time.Duration
	seed       uint64
	upstream   *testservers.Link   // connects the replicas to the upstream
	redisLinks []*testservers.Link // connect each replica to Redis
	client     *http.Client
	expected   map[string]expectation // by token and path

	mu       sync.Mutex
	outcomes map[string]int // requests by kind and outcome
	faults   map[string]int
	latest   string // latest fault
	seen     violationReport
	// limitedUntil is the time until which the upstream may refuse requests that were sent before it began to limit
	// their account.
	limitedUntil time.Time
}

// expectation is the direct response of the upstream to a token.
type expectation struct {
	status int
	body   []byte
	etag   string
}

// soakLogins are the logins of the callers, by token. Each caller has different rights, so the
// service sends different responses for the same paths.
var soakLogins = map[string]string{
	"tok-owner": "acme-owner", "tok-member": "acme-member", "tok-outsider": "outsider", "tok-security-manager": "builder-01", "tok-enterprise": "builder-02",
}

var soakTokens = slices.Sorted(maps.Keys(soakLogins))

// soakPaths returns paths whose response depends on the caller. Only some callers may see these paths, and together the
// responses exceed the cache.
func soakPaths() (paths []string) {
	for range 4 {
		paths = append(paths, "/feeds", "/orgs/acme/invitations", "/orgs/acme/members", "/orgs/acme/rulesets", "/repos/acme/secret/subscribers", "/user/migrations")
	}
	for n := range 30 {
		paths = append(paths, fmt.Sprint("/repos/acme/widgets/subscribers?per_page=", 70+n))
	}
	return paths
}

// soakSearch is never cached. A caller outside the organization finds less.
const soakSearch = "/search/commits?q=gear+repo:acme/widgets+repo:acme/secret&per_page=100"

// TestSoak runs three replicas under mixed traffic and random faults for WEIR_SOAK, from the seed WEIR_SOAK_SEED. No
// limit may be broken, and no caller may get a response of another caller. All permits, goroutines and descriptors must
// be released in the end. The build tag soak excludes the test from "make e2e".
func TestSoak(t *testing.T) {
	s := newSoak(t)
	t.Logf("WEIR_SOAK=%v WEIR_SOAK_SEED=%d", s.long, s.seed)
	before := s.idleResources()
	ctx, stop := context.WithTimeout(t.Context(), s.long)
	defer stop()
	var traffic, watch sync.WaitGroup
	for i := range 20 {
		traffic.Go(func() { s.runClient(ctx, rand.New(rand.NewPCG(s.seed, uint64(i+1)))) })
	}
	watching, stopWatch := context.WithCancel(t.Context())
	defer stopWatch()
	watch.Go(func() {
		for sleep(watching, time.Second); watching.Err() == nil; sleep(watching, time.Second) {
			s.checkLimits()
		}
	})
	s.runFaults(ctx, rand.New(rand.NewPCG(s.seed, 0)))
	traffic.Wait()
	s.client.CloseIdleConnections()
	stopWatch()
	watch.Wait()
	s.checkReleased(before)
	s.checkLimits()
	t.Logf("requests: %v\nfaults: %v", s.outcomes, s.faults)
}

func newSoak(t *testing.T) *soak {
	t.Helper()
	s := &soak{
		fleet: emptyFleet(t), long: duration(t, "WEIR_SOAK", 10*time.Minute), seed: rand.Uint64N(1e9),
		expected: map[string]expectation{}, outcomes: map[string]int{}, faults: map[string]int{},
	}
	if seed := os.Getenv("WEIR_SOAK_SEED"); seed != "" {
		var err error
		if s.seed, err = strconv.ParseUint(seed, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	s.client = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	oneRedis(s.fleet)
	s.startService("service", fleetLimits)
	s.upstream = testservers.NewLink(t, strings.TrimPrefix(s.service, "http://"))
	s.recordExpectations()
	for i := range 3 {
		s.redisLinks = append(s.redisLinks, testservers.NewLink(t, s.address))
		s.configure(i, 0)
		s.replicas = append(s.replicas, serveAt(t, s.config(i), testservers.FreeAddress(t), testservers.FreeAddress(t)))
	}
	return s
}

func (s *soak) config(i int) string { return filepath.Join(s.dir, fmt.Sprint("replica", i, ".yaml")) }

// configure writes the configuration of a replica with a small cache. Another generation
// makes it a changed file.
func (s *soak) configure(i, generation int) {
	write(s.T, s.config(i), fmt.Sprintf("upstream: {url: \"http://%s\", timeout: %ds}\nstore: {url: \"redis://%s\"}\ncache: {memory: 2MiB}\n",
		s.upstream.Address, 5+generation%2, s.redisLinks[i].Address)+fleetLimits)
}

// restart starts a replica again at its addresses.
func (s *soak) restart(i int) {
	r := s.replicas[i]
	r.process = serveAt(s.T, s.config(i), r.address, r.admin).process // clients read the rest of r
}

// recordExpectations sends each request directly to the upstream, under the host name that the replicas use, and resets
// the limits afterwards.
func (s *soak) recordExpectations() {
	s.Helper()
	for _, token := range soakTokens {
		for _, path := range append(soakPaths(), soakSearch) {
			if _, known := s.expected[token+path]; known {
				continue
			}
			resp, body := get(s.T, "http://"+s.upstream.Address+path, "Authorization: Bearer "+token)
			stopIf(s, resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNotFound, "%s %s: %s", token, path, resp.Status)
			s.expected[token+path] = expectation{resp.StatusCode, []byte(body), resp.Header.Get("Etag")}
		}
		s.control(http.MethodDelete, "/_service/violations", "")
	}
	http.DefaultClient.CloseIdleConnections()
}

// control sends a request to the control API of the reference service.
func (s *soak) control(method, path, body string) {
	resp, _ := send(s.T, method, s.service+path, body)
	failIf(s, resp.StatusCode >= http.StatusBadRequest, "%s %s: %s", method, path, resp.Status)
}

// soakRequest is one request of a client.
type soakRequest struct {
	kind, method, path, token, body string
	fields                          []string
	etag                            string        // of If-None-Match
	admin                           bool          // send the request to the admin listener
	timeout                         time.Duration // after which the client disconnects
	readPause                       time.Duration // between pieces of the response body
	wrong                           func(status int, body []byte) bool
}

// runClient sends random requests until ctx ends.
func (s *soak) runClient(ctx context.Context, r *rand.Rand) {
	paths := soakPaths()
	for ctx.Err() == nil {
		request := s.randomRequest(r, soakTokens[r.IntN(len(soakTokens))], paths[r.IntN(len(paths))])
		s.runRequest(ctx, s.replicas[r.IntN(len(s.replicas))], request)
		sleep(ctx, time.Duration(10+r.IntN(80))*time.Millisecond)
	}
}

func (s *soak) randomRequest(r *rand.Rand, token, path string) *soakRequest {
	q := &soakRequest{method: http.MethodGet, path: path, token: token, fields: []string{"Prefer: wait=" + strconv.Itoa(r.IntN(3))}}
	q.wrong = s.differs(q)
	switch n := r.IntN(100); {
	case n < 40:
		q.kind = "read"
		if r.IntN(4) == 0 {
			q.fields = append(q.fields, "Cache-Control: "+[]string{"no-cache", "no-store", "max-age=1"}[r.IntN(3)])
		}
	case n < 57: // with an entity tag of this caller or of another caller
		q.kind = "conditional"
		q.etag = cmp.Or(s.expected[soakTokens[r.IntN(len(soakTokens))]+path].etag, `"none"`)
		q.fields = append(q.fields, "If-None-Match: "+q.etag)
	case n < 62:
		q.kind, q.path = "search", soakSearch
	case n < 70:
		q.kind, q.method, q.path, q.wrong = "write", http.MethodPost, fmt.Sprintf("/app-manifests/%d/conversions", r.IntN(1e6)), nil
		if r.IntN(2) == 0 {
			q.method, q.path, q.body = http.MethodPut, "/repos/acme/empty/subscription", `{"subscribed":true}`
		}
	case n < 71: // of the largest size that the upstream accepts, or larger than Weir buffers
		q.kind, q.method, q.path, q.wrong = "upload", http.MethodPut, "/repos/acme/empty/subscription", nil
		q.body = `{"subscribed":true,"filler":"` + strings.Repeat("x", (1+r.IntN(2))*900<<10) + `"}`
	case n < 78: // each fault ends with a push to monolith; only members may see secret
		repository := []string{"monolith", "secret"}[r.IntN(2)]
		q.kind, q.path = "statistics", "/repos/acme/"+repository+"/stats/"+[]string{"participation", "commit_activity", "contributors"}[r.IntN(3)]
		q.wrong = func(status int, _ []byte) bool {
			return repository == "secret" && token == "tok-outsider" && status < http.StatusBadRequest
		}
	case n < 86:
		q.kind, q.method, q.path, q.body = "graphql", http.MethodPost, "/graphql", `{"query":"{ viewer { login } }"}`
		q.wrong = func(status int, body []byte) bool {
			return status == http.StatusOK && !bytes.Contains(body, []byte(`"login":"`+soakLogins[token]+`"`))
		}
	case n < 92:
		q.kind, q.timeout = "disconnect", time.Duration(1+r.IntN(30))*time.Millisecond
		q.fields = append(q.fields, "Cache-Control: no-store")
	case n < 94:
		q.kind, q.path, q.readPause = "slow reader", soakSearch, 100*time.Millisecond
	case n < 98:
		invalid := []soakRequest{
			{method: "GET", path: "/repos/a/%2e%2e/b"}, {method: "BREW", path: "/feeds"}, {method: "GET", path: "/feeds", token: fmt.Sprint("tok-unknown-", r.IntN(8))},
			{method: "POST", path: "/graphql", token: token, body: "{"}, {method: "GET", path: "/search/commits", token: token},
		}
		*q = invalid[r.IntN(len(invalid))]
		q.kind, q.wrong = "invalid", func(status int, _ []byte) bool { return status < http.StatusBadRequest }
	case n < 99:
		q.kind, q.method, q.path, q.admin, q.wrong = "purge", http.MethodPost, "/api/v1/cache/purge", true, nil
		q.body = fmt.Sprintf(`{"tag":"%s","hard":%v}`, []string{"org:acme", "repo:acme/widgets", "url:/feeds"}[r.IntN(3)], r.IntN(2) == 0)
	default:
		q.kind, q.path, q.token, q.wrong = "anonymous", "/gitignore/templates", "", nil
	}
	return q
}

// differs returns a function that reports whether a response differs from the direct response of the upstream to the
// same token.
func (s *soak) differs(q *soakRequest) func(int, []byte) bool {
	return func(status int, body []byte) bool {
		want := s.expected[q.token+q.path]
		switch status {
		case http.StatusOK:
			return want.status != http.StatusOK || !bytes.Equal(body, want.body)
		case http.StatusNotModified:
			return want.status != http.StatusOK || q.etag != want.etag
		case http.StatusNotFound:
			return want.status != http.StatusNotFound
		}
		return false
	}
}

// runRequest sends a request, checks the response, and counts the outcome.
func (s *soak) runRequest(ctx context.Context, to *replica, q *soakRequest) {
	limited := ctx
	if q.timeout > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, q.timeout)
		defer cancel()
	}
	base := to.url
	if q.admin {
		base = "http://" + to.admin
	}
	req := newRequest(limited, q.method, base+q.path, q.body, q.fields...)
	if q.token != "" {
		req.Header.Set("Authorization", "Bearer "+q.token)
	}
	resp, err := s.client.Do(req)
	var body []byte
	if err == nil {
		body, err = io.ReadAll(&slowReader{resp.Body, ctx, q.readPause})
		_ = resp.Body.Close()
	}
	outcome := "disconnected"
	switch {
	case err == nil:
		outcome = fmt.Sprint(resp.StatusCode)
	case limited.Err() == nil:
		outcome = "connection lost"
	}
	s.mu.Lock()
	s.outcomes[q.kind+" "+outcome]++
	s.mu.Unlock()
	if err == nil && q.wrong != nil && q.wrong(resp.StatusCode, body) {
		s.Errorf("%s %s with token %q and %v: wrong response %d, %.200q (%s)", q.method, q.path, q.token, q.fields, resp.StatusCode, body, resp.Header.Get("Cache-Status"))
	}
}

// slowReader pauses before each read of 8 KiB.
type slowReader struct {
	io.Reader
	ctx   context.Context
	pause time.Duration
}

func (r *slowReader) Read(p []byte) (int, error) {
	if r.pause > 0 {
		sleep(r.ctx, r.pause)
		p = p[:min(len(p), 8<<10)]
	}
	return r.Reader.Read(p)
}

// checkLimits fails the test if a limit was broken since the previous call. The upstream may start to limit an account
// without a reason. Then the upstream may refuse up to five open requests.
func (s *soak) checkLimits() {
	v, err := s.violations()
	if err != nil {
		s.Errorf("reference service: %v", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	late := v.SentWhileLimited - s.seen.SentWhileLimited
	if late <= 5 && time.Now().Before(s.limitedUntil) {
		late = 0
	}
	failIf(s, v.Violations > s.seen.Violations || late > 0, "latest fault %q: %d violations, %d requests sent while limited: %v", s.latest, v.Violations, v.SentWhileLimited, v.ByLimit)
	s.seen = v
}

// resources are the goroutines and the descriptors of a process.
type resources struct{ goroutines, descriptors int }

// idleResources closes idle connections and returns the resources of each replica.
func (s *soak) idleResources() (all []resources) {
	s.upstream.Break()
	http.DefaultClient.CloseIdleConnections()
	sleep(s.Context(), time.Second)
	for i, r := range s.replicas {
		_, metrics := get(s.T, "http://"+r.admin+"/metrics", "Connection: close")
		found := regexp.MustCompile(`(?m)^go_goroutine_count\S* (\d+)$`).FindStringSubmatch(metrics)
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.cmd.Process.Pid))
		stopIf(s, err != nil || found == nil, "replica %d: %v, %v", i, err, found)
		n, _ := strconv.Atoi(found[1])
		all = append(all, resources{n, len(open)})
	}
	return all
}

// checkReleased waits until all permits are released, and compares the resources of idle replicas with their resources
// before the traffic. The connection pools to Redis may have grown.
func (s *soak) checkReleased(before []resources) {
	if s.long < time.Minute {
		return // permits of killed replicas expire after 30 seconds
	}
	s.eventually("all permits are released", func(ctx context.Context) bool {
		total := 0
		for _, r := range s.replicas {
			n, err := permitsInUse(ctx, r.admin)
			if err != nil {
				return false
			}
			total += n
		}
		return total == 0
	})
	grown := 20 + 20*runtime.GOMAXPROCS(0)
	for i, r := range s.idleResources() {
		b := before[i]
		failIf(s, r.goroutines > b.goroutines+grown || r.descriptors > b.descriptors+grown, "replica %d while idle: %+v before, %+v after", i, b, r)
	}
}
