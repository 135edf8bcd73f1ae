package main

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/redisclient"
	"github.com/weirgate/weir/internal/service"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
)

// agentFleet has 20 agents and a person that share a credential, through four replicas. One agent reads without a
// pause, one writes in a loop, and one asks for a repository that is not its own.
type agentFleet struct {
	*testing.T
	gateways []*gateway
	duration time.Duration

	mu       sync.Mutex
	asked    int            // requests of all clients
	statuses map[string]int // by kind of client and status
	writes   []time.Time    // that reached the service
	foreign  int            // requests for the foreign repository that reached the service
	quota    int            // that the service has charged
}

const (
	fleetAgents    = 20
	fleetPerMinute = 4
	fleetPerHour   = 7
)

// foreignCalls are calls about repositories outside of the scope of the agents.
var foreignCalls = [][3]string{
	{"POST", "/graphql", `{"query":"{repository(owner:\"acme\",name:\"secret\"){description}}"}`},
	{"POST", "/graphql", `{"query":"{search(query:\"repo:acme/secret\",type:ISSUE,first:1){issueCount}}"}`},
	{"POST", "/graphql", `{"query":"mutation{createIssue(input:{repositoryId:\"R_1002\",title:\"secret\"}){issue{id}}}"}`},
	{"GET", "/repos/acme/secret", ""},
	{"GET", "/repos/acme/secret/issues", ""},
	{"GET", "/search/issues?q=repo:acme/secret", ""},
	{"GET", "/repositories/1002", ""},
	{"POST", "/repos/acme/secret/issues", `{"title":"x"}`},
}

func (f *agentFleet) open() {
	f.Cleanup(func() { time.Sleep(time.Minute) }) // both sides of a pipe may wait to end TLS
	limits := policy.DefaultLimits()
	limits.Primary.User, limits.Primary.Window = 250, 10*time.Minute // the greedy agent meets the limit
	api := must(service.New(service.Config{Limits: limits, Seed: 1, Dialect: must(policy.LoadDialect("github"))(f.T)}))(f.T)
	f.Cleanup(api.Close)
	listener := testservers.ListenPipe("api.test:443").Buffered()
	serveUntilEnd(f.T, &http.Server{Handler: f.observe(api), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}, api.Listener(listener.TLS("h2")))
	redisclient.DialWith("fleet.test:6379", testservers.MiniRedis(f.T))
	f.Cleanup(func() { redisclient.DialWith("fleet.test:6379", nil) })
	for range 4 {
		g := openLogged(f.T, configure("https://api.test", trusting, inboundRate(0, 0), func(c *config.Config) {
			c.Upstream.Dialect, c.Store.URL, c.Limits.Limits = "github", "redis://fleet.test:6379", limits
			c.Credentials = []config.Credential{userToken("owner", "acme-owner", "tok-owner")}
			person := clientOf("person", "key-of-person", "owner")
			person.Priority, person.Guarantee = string(policy.Interactive), 0.3
			c.Clients = []config.Client{person}
			for i := range fleetAgents {
				agent := clientOf(fmt.Sprint("agent-", i), fmt.Sprint("key-of-agent-", i), "owner")
				agent.Limit, agent.Priority = 0.05, string(policy.Batch)
				agent.Writes = policy.WriteLimits{PerMinute: fleetPerMinute, PerHour: fleetPerHour}
				agent.Repositories = []string{"acme/widgets"}
				c.Clients = append(c.Clients, agent)
			}
		}), io.Discard)
		g.transport.DialContext, g.transport.TLSClientConfig = listener.Dial, testservers.PipeClientTLS()
		f.gateways = append(f.gateways, g)
	}
}

// observe counts the requests that reach the service.
func (f *agentFleet) observe(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		recorded := httptest.NewRecorder()
		api.ServeHTTP(recorded, r)
		f.mu.Lock()
		if recorded.Code != http.StatusNotModified {
			f.quota++
		}
		if r.Method == http.MethodPost && !strings.HasSuffix(r.URL.Path, "/graphql") {
			f.writes = append(f.writes, time.Now())
		}
		if strings.Contains(r.URL.Path+string(body), "secret") {
			f.foreign++
		}
		f.mu.Unlock()
		for name, values := range recorded.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(recorded.Code)
		_, _ = w.Write(recorded.Body.Bytes())
	})
}

// run sends a request of a client after each pause.
func (f *agentFleet) run(kind, key string, pause time.Duration, random *rand.Rand, next func(n int) (method, target, body string)) {
	for start, n := time.Now(), 0; time.Since(start) < f.duration; n++ {
		method, target, body := next(n)
		w := sendTo(f.gateways[random.IntN(len(f.gateways))], method, target, body, "Authorization: Bearer "+key, "Prefer: wait=2")
		status := w.Code
		if strings.Contains(w.Body.String(), `"errors"`) {
			status = http.StatusForbidden
		}
		f.mu.Lock()
		f.asked++
		f.statuses[fmt.Sprint(kind, " ", status)]++
		f.mu.Unlock()
		time.Sleep(pause/2 + time.Duration(random.Int64N(int64(pause))))
	}
}

// most returns the highest number of writes in any window. The ledger counts in microseconds.
func (f *agentFleet) most(window time.Duration) (most int) {
	for first, last := 0, 0; last < len(f.writes); last++ {
		for f.writes[last].Sub(f.writes[first]) >= window-time.Microsecond {
			first++
		}
		most = max(most, last-first+1)
	}
	return most
}

// TestAgentsLeaveTheOthersTheirGuarantees simulates WEIR_FLEET_MINUTES minutes.
func TestAgentsLeaveTheOthersTheirGuarantees(t *testing.T) {
	duration := time.Duration(testservers.Setting(t, "WEIR_FLEET_MINUTES", 2)) * time.Minute
	synctest.Test(t, func(t *testing.T) {
		f := &agentFleet{T: t, duration: duration, statuses: map[string]int{}}
		f.open()
		began := time.Now()
		shared := []string{"/issues", "/pulls", "/branches", "/labels", "", "/issues/2", "/contributors", "/tags"}
		var clients sync.WaitGroup
		start := func(kind, key string, pause time.Duration, next func(n int) (method, target, body string)) {
			random := rand.New(rand.NewPCG(1, uint64(len(key)*31)+uint64(key[len(key)-1])))
			clients.Go(func() { f.run(kind, key, pause, random, next) })
		}
		unique := func(kind string) func(int) (string, string, string) {
			return func(n int) (string, string, string) {
				return http.MethodGet, fmt.Sprint("/repos/acme/widgets/subscribers?page=", n, "&", kind), ""
			}
		}
		start("person", "key-of-person", 20*time.Second, unique("person"))
		for i := range fleetAgents {
			key := fmt.Sprint("key-of-agent-", i)
			switch i {
			case 0:
				start("greedy", key, 4*time.Second, unique("greedy"))
			case 1:
				start("writer", key, 5*time.Second, func(int) (string, string, string) {
					return http.MethodPost, "/repos/acme/widgets/issues/2/comments", `{"body":"x"}`
				})
			case 2:
				start("foreign", key, 30*time.Second, func(n int) (string, string, string) {
					c := foreignCalls[n%len(foreignCalls)]
					return c[0], c[1], c[2]
				})
			default:
				start("agent", key, 8*time.Second, func(n int) (string, string, string) {
					return http.MethodGet, "/repos/acme/widgets" + shared[n%len(shared)], ""
				})
			}
		}
		clients.Wait()
		t.Logf("%v: %d requests, quota %d (%.1f %%), %v", time.Since(began), f.asked, f.quota, float64(100*f.quota)/float64(f.asked), f.statuses)
		for _, kind := range []string{"person", "agent"} {
			for key, n := range f.statuses {
				failIf(t, strings.HasPrefix(key, kind+" ") && key != kind+" 200", "%d of %s", n, key)
			}
		}
		for _, c := range []struct {
			window time.Duration
			limit  int
		}{{time.Minute, fleetPerMinute}, {time.Hour, fleetPerHour}} {
			n := f.most(c.window)
			failIf(t, n > c.limit || n < c.limit*9/10, "%d writes in %v, want at most %d and almost as many", n, c.window, c.limit)
		}
		failIf(t, f.foreign != 0 || f.statuses["foreign 200"] != 0, "%d requests for the foreign repository reached the API", f.foreign)
		failIf(t, 100*f.quota > 15*f.asked, "quota %d of %d requests, want at most 15 %%", f.quota, f.asked)
	})
}
