//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// fleet is a set of gateway replicas that share one store, in front of the reference
// service. The service counts every request that breaks a limit.
type fleet struct {
	*testing.T
	dir      string    // configuration files and Redis data
	service  string    // URL of the upstream
	store    string    // store.url of the replicas
	redis    *exec.Cmd // the server that oneRedis started
	address  string    // address of the server in redis
	replicas []*replica
	overload tally // requests of saturate
	light    tally // requests of an account far from its limits
}

// fleetLimits are the documented limits with shorter windows, so that many windows fit into
// a test.
const fleetLimits = `
limits:
  cold_start: trust
  inbound: {rate: 0}
  primary: {user: 800, window: 10s}
  search: {authenticated: 30, window: 3s}
  concurrent: 40
  points: {rest: 300, graphql: 500, window: 3s}
  cpu: {total: 120s, graphql: 60s, window: 3s}
  content: [{max: 40, window: 2s}, {max: 150, window: 12s}]
`

// phase returns the duration of each part of a scenario. WEIR_FLEET_PHASE overrides it.
func phase(t *testing.T) time.Duration { return duration(t, "WEIR_FLEET_PHASE", 2*time.Second) }

// newFleet starts n replicas. The function store starts the store and returns its URL.
func newFleet(t *testing.T, n int, store func(*fleet) string) *fleet {
	t.Helper()
	f := emptyFleet(t)
	f.store = store(f)
	f.startService("service", fleetLimits)
	send(t, http.MethodPut, f.service+"/repos/acme/widgets/subscription", `{"subscribed":true}`, "Authorization: Bearer tok-owner")
	for range n {
		f.replicas = append(f.replicas, f.startReplica())
	}
	return f
}

// emptyFleet returns a fleet without replicas, service and store.
func emptyFleet(t *testing.T) *fleet {
	t.Helper()
	return &fleet{T: t, dir: t.TempDir()}
}

// startService starts the reference service with a dialect and limits.
func (f *fleet) startService(dialect, limits string) {
	f.Helper()
	address := testservers.FreeAddress(f.T)
	f.service = "http://" + address
	start(f.T, "service", "--config", f.file("service.yaml", `upstream: {url: "`+f.service+`", dialect: `+dialect+"}\n"+limits), "--listen", address)
	f.awaitHTTP(f.service + "/_service/violations")
}

// startReplica starts a replica with the limits of the fleet.
func (f *fleet) startReplica() *replica {
	f.Helper()
	return serve(f.T, f.file("gateway.yaml", `upstream: {url: "`+f.service+`", timeout: 5s}`+"\n"+`store: {url: "`+f.store+`"}`+fleetLimits))
}

// file writes a file into the directory of the fleet and returns its path.
func (f *fleet) file(name, text string) string {
	f.Helper()
	return write(f.T, filepath.Join(f.dir, name), text)
}

// oneRedis starts one Redis server as the store.
func oneRedis(f *fleet) string {
	f.address = testservers.FreeAddress(f.T)
	f.redis = f.startRedis(f.address)
	return "redis://" + f.address
}

// startRedis starts a Redis server without persistence. The test kills it.
func (f *fleet) startRedis(address string, args ...string) *exec.Cmd {
	host, port, _ := net.SplitHostPort(address)
	args = append(args, "--bind", host, "--port", port, "--save", "", "--appendonly", "no", "--dir", f.dir)
	server := exec.Command(cmp.Or(os.Getenv("WEIR_REDIS_SERVER"), "redis-server"), args...)
	err := server.Start()
	stopIf(f, err != nil, "start redis-server: %v; run make e2e", err)
	f.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGCONT)
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	return server
}

// awaitHTTP waits until a URL responds.
func (f *fleet) awaitHTTP(url string) {
	f.Helper()
	f.eventually(url+" responds", func(ctx context.Context) bool {
		_, _, err := do(http.DefaultClient, newRequest(ctx, http.MethodGet, url, ""))
		return err == nil
	})
}

// eventually waits until a condition holds.
func (f *fleet) eventually(condition string, holds func(context.Context) bool) {
	f.Helper()
	testservers.Eventually(f, condition, holds)
}

// tally counts responses.
type tally struct {
	mu       sync.Mutex
	outcomes map[string]int // by kind of request and reason of a refusal
	times    []time.Duration
}

func (c *tally) add(outcome string, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.outcomes == nil {
		c.outcomes = map[string]int{}
	}
	c.outcomes[outcome]++
	c.times = append(c.times, took)
}

// take returns a summary and the longest time since the previous call.
func (c *tally) take() (summary string, longest time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.times) == 0 {
		return "no responses", 0
	}
	slices.Sort(c.times)
	longest = c.times[len(c.times)-1]
	summary = fmt.Sprintf("%v, median %v, longest %v", c.outcomes, c.times[len(c.times)/2].Round(time.Millisecond), longest.Round(time.Millisecond))
	c.outcomes, c.times = nil, nil
	return summary, longest
}

type request struct{ kind, method, path, body string }

// requests are the requests of saturate. Each kind reaches a different limit first.
var requests = []request{
	{"points", "GET", "/repos/acme/widgets/subscription", ""},
	{"points", "GET", "/repos/acme/widgets/subscription", ""},
	{"content", "POST", "/app-manifests/%d/conversions", ""},
	{"search", "GET", "/search/commits?q=gear", ""},
	{"graphql", "POST", "/graphql", `{"query":"{ viewer { login } }"}`},
}

// saturate sends far more requests than the limits allow to all replicas, until stop is called. A second account sends a
// few requests to the first two replicas, which must not wait.
func (f *fleet) saturate() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(f.Context())
	var clients sync.WaitGroup
	stop = func() {
		cancel()
		clients.Wait()
	}
	f.Cleanup(stop)
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	for i := range 40 {
		clients.Go(func() {
			kind := requests[i%len(requests)]
			for n := i; ctx.Err() == nil; n++ {
				path := strings.Replace(kind.path, "%d", fmt.Sprint(n), 1)
				if !f.request(ctx, client, &f.overload, "tok-owner", n%len(f.replicas), kind, path) {
					sleep(ctx, 20*time.Millisecond)
				}
			}
		})
	}
	for i := range 2 {
		clients.Go(func() {
			for ctx.Err() == nil {
				f.request(ctx, client, &f.light, "tok-member", i, requests[0], requests[0].path)
				sleep(ctx, 200*time.Millisecond)
			}
		})
	}
	sleep(ctx, 2*time.Second)
	f.checkViolations("at the start")
	return ctx, stop
}

// request sends one request to a replica, and reports whether it succeeded.
func (f *fleet) request(ctx context.Context, client *http.Client, counts *tally, token string, replica int, kind request, path string) bool {
	began := time.Now()
	resp, _, err := do(client, newRequest(ctx, kind.method, f.replicas[replica].url+path, kind.body,
		"Authorization: Bearer "+token, "Cache-Control: no-store", "Prefer: wait=1"))
	if err != nil {
		return false // the replica is down
	}
	_, reason, _ := strings.Cut(resp.Header.Get("Cache-Status"), "detail=")
	counts.add(strings.TrimSpace(fmt.Sprint(kind.kind, " ", resp.StatusCode, " ", reason)), time.Since(began))
	return resp.StatusCode < 400
}

// violationReport is the report of the reference service about its limits.
type violationReport struct {
	Violations       int                                 `json:"violations"`
	SentWhileLimited int                                 `json:"sent_while_limited"`
	ByLimit          map[string]int                      `json:"by_limit"`
	Highest          map[string]struct{ Sum, Limit int } `json:"highest"`
}

// violations returns the report of the reference service.
func (f *fleet) violations() (v violationReport, err error) {
	_, text, err := do(http.DefaultClient, newRequest(f.Context(), http.MethodGet, f.service+"/_service/violations", ""))
	if err != nil {
		return v, err
	}
	return v, json.Unmarshal([]byte(text), &v)
}

// checkViolations fails the test if a limit was broken, or if a request of the light account waited for long. Replicas
// learn of each other within a second. The limit of four seconds also allows for a busy machine.
func (f *fleet) checkViolations(after string) {
	f.Helper()
	v, err := f.violations()
	must(f, err)
	failIf(f, v.Violations != 0 || v.SentWhileLimited != 0, "%s: %d violations, %d requests sent while limited: %v, highest %v", after, v.Violations, v.SentWhileLimited, v.ByLimit, v.Highest)
	overload, _ := f.overload.take()
	light, longest := f.light.take()
	f.Logf("%s: overload %s; light load %s", after, overload, light)
	failIf(f, longest > 4*time.Second, "%s: a request of the light account took %v", after, longest)
}
