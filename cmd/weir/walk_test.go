package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/redisclient"
	"github.com/weirgate/weir/internal/service"
	"github.com/weirgate/weir/internal/service/quirk"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
)

// The random walk sends random requests of many clients through whole gateways to the reference service with all its
// quirks, in virtual time. The clients and their moves are in walk_moves_test.go. The oracle (walk_oracle_test.go) finds
// violations, from the service's own counts and a journal of the requests that reached it. walk_defects_test.go lists the
// quirks and the traffic that the gateway cannot stand yet.

// walkSetup selects the gateways of a walk.
type walkSetup struct {
	redis    bool // replicas share miniredis; otherwise one gateway has a ledger in memory
	replicas int
	http2    bool // between clients and gateway, and between gateway and service
}

// slowerOnRedis is the factor of requests in memory. miniredis compiles a script for each call.
const slowerOnRedis = 20

// walkSetups are the setups of seeds 0, 1, 2, and so on.
var walkSetups = []walkSetup{
	{replicas: 1, http2: true}, {replicas: 1}, {replicas: 1, http2: true}, {redis: true, replicas: 4, http2: true},
	{replicas: 1}, {replicas: 1, http2: true}, {redis: true, replicas: 1}, {redis: true, replicas: 4},
}

func (s walkSetup) String() string {
	return fmt.Sprintf("redis=%t,replicas=%d,http2=%t", s.redis, s.replicas, s.http2)
}

// walkQuirks returns all quirks. Some replace others, so they depend on the seed.
func walkQuirks(seed uint64) quirk.Set {
	set := testservers.Must(quirk.Parse([]byte(`{"latency":"5ms","delay_before":"50ms","delay_after":"100ms","delay_is_cpu":true,"slow_body":"20ms",
		"truncate_every":97,"error_every":71,"clock_offset":"2s","incomplete_every":5,"secondary_every":400,"limit_answers":true,"episode_every":60,
		"headers_behind":3,"odd_rate_every":700,"wrong_rate_on_401":true,"resource_limits_exceeded":0.05,"link_missing_in_304":0.5,
		"etag_missing_in_304":0.2,"etag_other_strength":0.3,"error_validators":0.5,"unfinished_for":"5s",
		"token_unknown_for":"1.5s","permission_snapshot":["GET /repos/*/*/hooks"],"old_names":{"acme/gadgets":"acme/widgets"},
		"ended_versions":["2021-01-01"],"goaway_every":100,"refused_stream":0.01,"reset_after_processing":0.01}`), quirk.Set{}))
	set.ErrorStatus = []int{500, 502, 503, 504}[seed%4]
	set.ReplicaLag = quirk.Duration(seed % 7 * uint64(500*time.Millisecond))
	set.Endless202, set.LinksByName, set.ETagsPerToken = seed%5 == 1, seed%2 == 1, seed%3 == 2
	return set
}

// walkLimits returns small limits, so that each client reaches them.
func walkLimits() policy.Limits {
	l := policy.DefaultLimits()
	l.Primary.User, l.Primary.Enterprise, l.Primary.Installation, l.Primary.OAuthApp, l.Primary.Workflow = 150, 300, 150, 100, 60
	l.Primary.Unauthenticated, l.Primary.Window = 40, time.Minute
	l.Points.REST, l.Points.GraphQL, l.Concurrent = 40, 60, 10
	l.Content = []policy.Window{{Max: 20, Window: time.Minute}, {Max: 60, Window: 5 * time.Minute}}
	return l
}

// walk is a walk in progress.
type walk struct {
	*testing.T
	walkSetup
	*oracle
	seed     uint64
	requests int64
	traffic  map[string]bool // that the open defects permit
	sent     atomic.Int64
	service  *service.Service
	gateways []*gateway
	clients  []http.RoundTripper // by gateway
}

// runWalk sends requests and returns the findings of the oracle.
func runWalk(t *testing.T, seed uint64, requests int, change func(*quirk.Set), traffic map[string]bool) (wrong []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &walk{T: t, seed: seed, requests: int64(requests), walkSetup: walkSetups[seed%uint64(len(walkSetups))], traffic: traffic}
		faults := walkQuirks(seed)
		change(&faults)
		if w.redis {
			w.requests /= slowerOnRedis
		}
		w.open(faults)
		var group sync.WaitGroup
		for i := range walkers {
			c := w.client(&walkActors[i%len(walkActors)], rand.New(rand.NewPCG(seed, uint64(i))))
			group.Go(c.run)
		}
		group.Wait()
		time.Sleep(30 * time.Second) // the gateways finish the requests whose clients have left
		wrong = w.conclude()
	})
	return wrong
}

// open starts the service and the gateways.
func (w *walk) open(faults quirk.Set) {
	t := w.T
	t.Cleanup(func() { time.Sleep(time.Minute) }) // both sides of a pipe may wait to end TLS
	hooks := testservers.ListenPipe("hooks.test:80")
	w.service = must(service.New(service.Config{Limits: walkLimits(), Seed: w.seed, Dial: hooks.Dial, Quirks: faults}))(t)
	t.Cleanup(w.service.Close)
	w.oracle = newOracle(w.service, faults)

	api := testservers.ListenPipe("api.test:443").Buffered()
	upstream := &http.Server{Handler: w.observe(w.service), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	protocols := []string{"http/1.1"}
	if w.http2 {
		protocols = []string{"h2"}
	}
	serveUntilEnd(t, upstream, w.service.Listener(api.TLS(protocols...)))

	store := "memory:"
	if w.redis {
		address := fmt.Sprintf("walk-%d.test:6379", w.seed)
		redisclient.DialWith(address, testservers.MiniRedis(t))
		t.Cleanup(func() { redisclient.DialWith(address, nil) })
		store = "redis://" + address
	}
	for i := range w.replicas {
		g := openLogged(t, configure("https://api.test", trusting, inJSON, inboundRate(100_000, 100_000), func(c *config.Config) {
			c.Upstream.Dialect, c.Store.URL, c.Limits.Limits = "github", store, walkLimits()
			c.Webhooks.Secret, c.Limits.Wait = "webhook-secret", 5*time.Second
			c.Cache.Key = "0123456789abcdef0123456789abcdef"
			c.Cache.Lag = max(c.Cache.Lag, time.Duration(faults.ReplicaLag))
			c.Credentials = []config.Credential{userToken("owner", "acme-owner", "tok-owner"), installedApp()}
			c.Clients = []config.Client{clientOf("builds", "key-of-builds", "owner"), clientOf("agents", "key-of-agents", "owner"), clientOf("bots", "key-of-bots", "bot")}
		}), jsonLog(func(line map[string]any) { w.readAccessLine(i, line) }))
		g.transport.DialContext, g.transport.TLSClientConfig = api.Dial, testservers.PipeClientTLS()
		w.gateways = append(w.gateways, g)
		w.clients = append(w.clients, w.front(g))
	}
	random := rand.New(rand.NewPCG(w.seed, 1000))
	serveUntilEnd(t, &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.gateways[random.IntN(len(w.gateways))].ServeHTTP(rw, r) // the service sends one delivery at a time
	})}, hooks)
	noError(t, w.service.SetWebhooks([]service.Webhook{
		{URL: "http://hooks.test/_weir/webhooks", Secret: "webhook-secret", ContentType: "json", Events: []string{"*"}, Target: "acme"},
	}))
}

// front serves clients of a gateway, with the production timeouts, and returns a transport to it.
func (w *walk) front(g *gateway) http.RoundTripper {
	l := testservers.ListenPipe("gateway.test:443").Buffered()
	server := newServer(g, slog.New(slog.DiscardHandler))
	transport := &http.Transport{DialContext: l.Dial, DisableCompression: true, MaxIdleConnsPerHost: 100, IdleConnTimeout: 30 * time.Second}
	w.Cleanup(transport.CloseIdleConnections)
	var listener net.Listener = l
	if w.http2 {
		transport.TLSClientConfig, transport.ForceAttemptHTTP2 = testservers.PipeClientTLS(), true
		listener = l.TLS("h2")
	}
	serveUntilEnd(w.T, server, listener)
	return transport
}

// origin returns the origin of the gateways for clients.
func (w *walk) origin() string {
	if w.http2 {
		return "https://gateway.test"
	}
	return "http://gateway.test"
}

func serveUntilEnd(t *testing.T, server *http.Server, l net.Listener) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l) // until Close
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
		_ = server.Close() // closes a connection that was accepted during the first Close
	})
}

// walkCommand repeats the walk of a seed.
func walkCommand(seed uint64, requests int) string {
	return fmt.Sprintf("WEIR_SEED=%d WEIR_WALK_REQUESTS=%d go test ./cmd/weir -count=1 -v -run '^TestRandomWalk$'", seed, requests)
}

// TestRandomWalk sends WEIR_WALK_REQUESTS requests for each of WEIR_WALK_SEEDS seeds, or for WEIR_SEED.
func TestRandomWalk(t *testing.T) {
	seeds, requests := testservers.Setting(t, "WEIR_WALK_SEEDS", len(walkSetups)), testservers.Setting(t, "WEIR_WALK_REQUESTS", 300)
	first := testservers.Setting(t, "WEIR_SEED", -1)
	if first >= 0 {
		seeds = 1
	}
	for seed := range seeds {
		seed := uint64(max(0, first) + seed)
		t.Run(fmt.Sprintf("seed=%d,%v", seed, walkSetups[seed%uint64(len(walkSetups))]), func(t *testing.T) {
			wrong := runWalk(t, seed, requests, withoutOpenDefects, map[string]bool{})
			if len(wrong) > 0 {
				t.Errorf("%d findings; repeat with\n%s\n%s", len(wrong), walkCommand(seed, requests), strings.Join(wrong[:min(20, len(wrong))], "\n"))
			}
		})
	}
}

// sleepFor waits for a random part of a time, or until ctx ends.
func sleepFor(ctx context.Context, random *rand.Rand, d time.Duration) {
	testservers.Sleep(ctx, time.Duration(random.Int64N(int64(d)+1)))
}
