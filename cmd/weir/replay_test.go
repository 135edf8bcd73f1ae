package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/replay"
	"github.com/weirgate/weir/internal/service"
	"github.com/weirgate/weir/internal/service/quirk"
	"github.com/weirgate/weir/internal/testservers"
)

// maxReplayError is the largest permitted difference between a prediction and the real run, relative to the requests.
const maxReplayError = 0.03

// realRun is a gateway in front of the reference service, in virtual time. The service, and not the gateway, counts
// the spent quota; the clients count hits and refusals.
type realRun struct {
	*testing.T
	gateway *gateway
	service *service.Service
	log     bytes.Buffer // access log of the gateway

	mu                             sync.Mutex
	requests, spent, hits, refused int
	other                          bytes.Buffer // access log of another proxy, as JSON lines
}

// replayConfiguration returns the configuration of all runs.
func replayConfiguration() *config.Config {
	return configure("http://service.test", trusting, inboundRate(0, 0), func(cfg *config.Config) {
		cfg.Webhooks.Secret = "hook-secret"
		cfg.Credentials = []config.Credential{userToken("owner", "owner", "tok-owner"), userToken("member", "member", "tok-member")}
		for name, credential := range map[string]string{"bots": "owner", "ci": "owner", "agents": "member"} {
			cfg.Clients = append(cfg.Clients, config.Client{Name: name, Key: keyHash("key-of-" + name), Credentials: []string{credential}, Share: 1, Priority: "normal"})
		}
		cfg.Clients = append(cfg.Clients, config.Client{Name: "dashboards", Key: keyHash("key-of-dashboards"), Credentials: []string{"owner"}, Share: 3, Priority: "interactive"})
	})
}

func startRealRun(t *testing.T, cfg *config.Config) *realRun {
	t.Helper()
	r := &realRun{T: t}
	r.gateway = openLogged(t, cfg, &r.log)
	listener := testservers.ServePipe(t, "gateway.test:80", &http.Server{Handler: r.gateway})
	quirks := quirk.Set{Latency: quirk.Duration(20 * time.Millisecond), DelayAfter: quirk.Duration(150 * time.Millisecond)}
	r.service = newTestService(t, listener, quirks, cfg.Limits.Limits)
	connectTo(t, r.gateway, http.HandlerFunc(r.upstream))
	hook := service.Webhook{URL: "http://gateway.test" + cfg.Webhooks.Path, Secret: cfg.Webhooks.Secret, Events: []string{"*"}, Target: "acme"}
	noError(t, r.service.SetWebhooks([]service.Webhook{hook}))
	return r
}

// responseTime is a field of the upstream's responses with their response time in milliseconds.
const responseTime = "X-Response-Time"

// upstream serves a request of the gateway, and counts the quota that it costs.
func (r *realRun) upstream(w http.ResponseWriter, req *http.Request) {
	start := time.Now()
	recorded := serveRequest(r.service, req)
	w.Header().Set(responseTime, fmt.Sprint(float64(time.Since(start))/float64(time.Millisecond)))
	cost := 1
	if recorded.Code == http.StatusNotModified || recorded.Code == http.StatusForbidden || recorded.Code == http.StatusTooManyRequests {
		cost = 0
	}
	r.mu.Lock()
	r.spent += cost
	r.mu.Unlock()
	maps.Copy(w.Header(), recorded.Header())
	w.WriteHeader(recorded.Code)
	_, _ = w.Write(recorded.Body.Bytes())
}

// send sends a request of a client to the gateway, and writes a line to the log of the other proxy. Its duration is the
// response time of the upstream: with the wait for a permit, the replayed request would wait twice.
func (r *realRun) send(client, method, target, body string, fields ...string) *httptest.ResponseRecorder {
	start := time.Now()
	w := sendTo(r.gateway, method, target, body, append(fields, "Authorization: Bearer key-of-"+client, "Content-Type: application/json")...)
	status := w.Header().Get("Cache-Status")
	line := must(json.Marshal(map[string]any{
		"start_time": start.Format(time.RFC3339Nano), "user": client, "method": method, "path": target, "status": w.Code, "bytes": w.Body.Len(),
		"duration_ms": w.Header().Get(responseTime), "etag": w.Header().Get("Etag"),
	}))(r)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests++
	r.other.Write(append(line, '\n'))
	switch {
	case target == "/rate_limit": // Weir's own answer
	case strings.Contains(status, "; hit"), strings.Contains(status, "; collapsed"):
		r.hits++
	case w.Code == http.StatusTooManyRequests:
		r.refused++
	}
	return w
}

// event causes an event at the service, which sends a webhook.
func (r *realRun) event(body string) {
	w := sendTo(r.service, http.MethodPost, "/_service/events", body)
	failIf(r, w.Code != http.StatusAccepted, "event %s: got %d %s", body, w.Code, w.Body)
}

// paced returns a client that sends n requests with random pauses.
func paced(n int, pause time.Duration, seed uint64, send func(rng *rand.Rand)) func() {
	return func() {
		rng := rand.New(rand.NewPCG(seed, 1))
		for range n {
			time.Sleep(time.Duration(rng.ExpFloat64() * float64(pause)))
			send(rng)
		}
	}
}

func pickOne(rng *rand.Rand, targets ...string) string { return targets[rng.IntN(len(targets))] }

// pollingTraffic returns dashboards, bots and agents that poll, with writes and webhooks between their reads.
func pollingTraffic(r *realRun) (clients []func()) {
	reads := []string{
		"/repos/acme/widgets/subscribers", "/repos/acme/widgets/subscribers?page=2", "/repos/acme/widgets/rulesets", "/orgs/acme/members",
		"/orgs/acme/rulesets", "/repos/acme/widgets/rules/branches/main", "/repos/acme/secret/subscribers", "/gitignore/templates",
		"/gitignore/templates/Go", "/codes_of_conduct", "/user/subscriptions", "/orgs/acme/invitations", "/repos/acme/widgets/stats/contributors",
		"/repos/acme/widgets/stats/participation", "/rate_limit",
	}
	for i, name := range []string{"dashboards", "dashboards", "bots", "agents", "agents", "ci"} {
		clients = append(clients, paced(300, 4*time.Second, uint64(i), func(rng *rand.Rand) { r.send(name, http.MethodGet, pickOne(rng, reads...), "") }))
	}
	clients = append(clients,
		paced(40, 30*time.Second, 11, func(rng *rand.Rand) {
			r.send("bots", http.MethodPut, "/repos/acme/widgets/subscription", fmt.Sprintf(`{"subscribed":%t}`, rng.IntN(2) == 0))
		}),
		paced(12, 100*time.Second, 12, func(*rand.Rand) { r.event(`{"event":"push","repository":"acme/widgets","commits":3}`) }),
	)
	return clients
}

// burstTraffic returns CI jobs that exceed the points and the primary limit, beside a dashboard.
func burstTraffic(r *realRun) (clients []func()) {
	for job := range 30 {
		clients = append(clients, func() {
			rng := rand.New(rand.NewPCG(uint64(job), 2))
			for range 5 { // bursts
				for range 12 {
					r.send("ci", http.MethodGet, fmt.Sprintf("/repos/acme/monolith/compare/a%d...b%d", rng.IntN(400), rng.IntN(400)), "")
				}
				time.Sleep(time.Duration(20+rng.IntN(20)) * time.Second)
			}
		})
	}
	reads := []string{"/repos/acme/widgets/subscribers", "/orgs/acme/members", "/repos/acme/widgets/rulesets"}
	return append(clients, paced(150, time.Second, 21, func(rng *rand.Rand) { r.send("dashboards", http.MethodGet, pickOne(rng, reads...), "") }))
}

// mixedTraffic returns clients that revalidate, search and call GraphQL.
func mixedTraffic(r *realRun) (clients []func()) {
	for i, name := range []string{"dashboards", "agents", "bots"} {
		etags := map[string]string{}
		reads := []string{"/repos/acme/widgets/subscribers", "/orgs/acme/members", "/repos/acme/widgets/rulesets", "/repos/acme/secret/subscribers"}
		clients = append(clients, paced(150, 3*time.Second, uint64(30+i), func(rng *rand.Rand) {
			target := pickOne(rng, reads...)
			if w := r.send(name, http.MethodGet, target, "", "If-None-Match: "+etags[target]); w.Code == http.StatusOK {
				etags[target] = w.Header().Get("Etag")
			}
		}))
	}
	for i, name := range []string{"agents", "ci"} {
		clients = append(clients,
			paced(90, 1500*time.Millisecond, uint64(40+i), func(rng *rand.Rand) {
				r.send(name, http.MethodGet, fmt.Sprintf("/search/commits?q=gear+repo:acme/widgets&page=%d", 1+rng.IntN(60)), "")
			}),
			paced(60, 4*time.Second, uint64(50+i), func(rng *rand.Rand) {
				query := fmt.Sprintf(`{"query":"{ repository(owner: \"acme\", name: \"widgets\") { watchers(first: %d) { nodes { login } } } }"}`, 1+rng.IntN(4))
				r.send(name, http.MethodPost, "/graphql", query)
			}))
	}
	return append(clients, paced(10, 60*time.Second, 61, func(rng *rand.Rand) {
		r.send("bots", http.MethodPut, "/repos/acme/widgets/subscription", fmt.Sprintf(`{"subscribed":%t}`, rng.IntN(2) == 0))
	}))
}

// replayed replays a log.
func replayed(t *testing.T, cfg *config.Config, log *replay.Log) *replay.Report {
	t.Helper()
	return must(replay.Run(t.Context(), must(replayConfig(cfg))(t), replay.Ordered(log)))(t)
}

// TestReplayPredictsARealRun compares replays with real runs of the gateway against the reference service. A replay reads
// only the access log of the run. The access log is that of Weir, or that of another proxy that logs sizes and ETags.
func TestReplayPredictsARealRun(t *testing.T) {
	for _, c := range []struct {
		name    string
		traffic func(*realRun) []func()
		change  func(*config.Config)
	}{
		{"polling with writes and webhooks", pollingTraffic, inJSON},
		{"a burst beyond the limits", burstTraffic, func(c *config.Config) {
			l := &c.Limits.Limits
			l.Primary.User, l.Primary.Window, l.Points.REST = 700, 5*time.Minute, 300
		}},
		{"conditional requests, search and GraphQL", mixedTraffic, func(*config.Config) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := replayConfiguration()
			c.change(cfg)
			var r *realRun
			synctest.Test(t, func(t *testing.T) {
				r = startRealRun(t, cfg)
				var running sync.WaitGroup
				for _, run := range c.traffic(r) {
					running.Go(run)
				}
				running.Wait()
				time.Sleep(time.Minute) // polls in the background end
				v := r.service.Violations()
				failIf(t, v.Violations > 0, "the real run violated limits: %+v", v.ByLimit)
			})
			for _, log := range []*replay.Log{
				{Name: "weir", Reader: &r.log, Format: replay.Auto}, {Name: "other proxy", Reader: &r.other, Format: replay.Auto},
			} {
				report := replayed(t, cfg, log)
				failIf(t, report.Requests != r.requests, "%s: %d requests in the report, want %d", log.Name, report.Requests, r.requests)
				for _, figure := range []struct {
					name            string
					predicted, real int
				}{
					{"quota", report.Spent, r.spent}, {"hits", report.Hits + report.Collapsed, r.hits}, {"refusals", report.Refused, r.refused},
				} {
					difference := math.Abs(float64(figure.predicted-figure.real)) / float64(r.requests)
					t.Logf("%s: %s: predicted %d, real %d of %d requests: error %.2f %%", log.Name, figure.name, figure.predicted, figure.real, r.requests, 100*difference)
					failIf(t, difference > maxReplayError, "%s: the error of %s is above %g %%", log.Name, figure.name, 100*maxReplayError)
					failIf(t, log.Name == "weir" && math.Abs(float64(figure.predicted-figure.real)) > maxReplayError*float64(figure.real), "%s: %s differ by more than %g %% of the real number", log.Name, figure.name, 100*maxReplayError)
				}
			}
		})
	}
}

// TestReplaySpendsAllCredentialsOfAClient checks that a replay uses another credential of a client at the limit of one, and
// that it applies the scope of the client.
func TestReplaySpendsAllCredentialsOfAClient(t *testing.T) {
	cfg := replayConfiguration()
	cfg.Limits.Primary.User, cfg.Limits.Wait = 5, 0
	builds := clientOf("builds", "key", "owner", "member")
	builds.Limit, builds.Methods = 0, []string{"GET"}
	cfg.Clients = []config.Client{builds}
	var log strings.Builder
	for i := range 12 {
		fmt.Fprintf(&log, `{"ts":%d,"method":"GET","path":"/repos/acme/r%d/subscribers","status":200}`+"\n", 1_800_000_000+10*i, i)
	}
	fmt.Fprintln(&log, `{"ts":1800000200,"method":"PUT","path":"/repos/acme/widgets/subscription","status":200}`)
	report := replayed(t, cfg, &replay.Log{Name: "log", Reader: strings.NewReader(log.String()), Format: replay.JSONL})
	failIf(t, report.Forbidden != 1 || report.Spent != 10 || report.Refused != 2 || len(report.Accounts) != 2, "%d forbidden, %d spent, %d refused, accounts %+v", report.Forbidden, report.Spent, report.Refused, report.Accounts)
}
