//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/testservers"
)

// steadyLoad sends requests that are far from every limit. Every response other than a success is a failure.
type steadyLoad struct {
	mu       sync.Mutex
	sent     map[string]int
	failures []string
}

// steadyRequests are the requests of steadyLoad: a cached response, an uncached response, a statistics endpoint that is
// polled, and a write that must not be retried.
var steadyRequests = []struct {
	name, method, path, body string
	fields                   []string
	every                    time.Duration
}{
	{"cached", "GET", "/gitignore/templates", "", nil, time.Millisecond},
	{"uncached", "GET", "/repos/acme/widgets/subscribers", "", []string{"Cache-Control: no-store"}, 200 * time.Millisecond},
	{"statistics", "GET", "/repos/acme/widgets/stats/contributors", "", []string{"Prefer: wait=6", "Cache-Control: no-cache"}, 500 * time.Millisecond},
	{"write", "PUT", "/repos/acme/widgets/subscription", `{"subscribed":true}`, nil, 300 * time.Millisecond},
}

// start starts clients with their own connections. The clients send requests until ctx ends.
func (l *steadyLoad) start(ctx context.Context, clients *sync.WaitGroup, url string) {
	l.sent = map[string]int{}
	for _, token := range []string{"tok-owner", "tok-owner-2", "tok-member", "tok-security-manager"} {
		for _, r := range steadyRequests {
			clients.Go(func() {
				transport := &http.Transport{}
				defer transport.CloseIdleConnections()
				client := &http.Client{Timeout: 20 * time.Second, Transport: transport}
				for ctx.Err() == nil {
					req := newRequest(context.Background(), r.method, url+r.path, "", append(r.fields, "Authorization: Bearer "+token)...)
					req.Body, req.GetBody = io.NopCloser(strings.NewReader(r.body)), nil // net/http cannot rewind this body, so it never retries
					l.send(r.name, client, req)
					sleep(ctx, r.every)
				}
			})
		}
	}
}

func (l *steadyLoad) send(name string, client *http.Client, req *http.Request) {
	resp, _, err := do(client, req)
	failure := ""
	if err == nil && resp.StatusCode >= 300 {
		failure = fmt.Sprintf("%s: %s, %s", name, resp.Status, resp.Header.Get("Cache-Status"))
	}
	if err != nil {
		failure = fmt.Sprintf("%s: %v", name, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent[name]++
	if failure != "" {
		l.failures = append(l.failures, failure)
	}
}

// readiness returns the response of a replica to a readiness probe.
func readiness(ctx context.Context, admin string) (status int, text string) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	resp, text, err := do(http.DefaultClient, newRequest(ctx, http.MethodGet, "http://"+admin+"/readyz", ""))
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, text
}

// TestRollingRestartFailsNoRequest restarts three replicas in sequence, behind a TCP balancer that probes their
// readiness. No request may fail, and no limit may be broken. No permit, lease or registration of an old process may
// remain in Redis.
func TestRollingRestartFailsNoRequest(t *testing.T) {
	f := emptyFleet(t)
	f.store = oneRedis(f)
	f.startService("service", "")
	config := f.file("gateway.yaml", `upstream: {url: "`+f.service+`"}`+"\n"+`store: {url: "`+f.store+`"}`+
		"\nlimits: {inbound: {rate: 0}}\ndrain: {delay: 1s, timeout: 8s}\n")
	var addresses []string
	for range 3 {
		r := serveAt(t, config, testservers.FreeAddress(t), testservers.FreeAddress(t))
		f.replicas, addresses = append(f.replicas, r), append(addresses, r.address)
	}
	balancer := testservers.NewBalancer(t, addresses...)
	ctx, stop := context.WithCancel(t.Context())
	var probes, clients sync.WaitGroup
	defer probes.Wait()
	defer stop()
	admins := []string{f.replicas[0].admin, f.replicas[1].admin, f.replicas[2].admin}
	probes.Go(func() {
		for ctx.Err() == nil {
			for i, admin := range admins {
				status, _ := readiness(ctx, admin)
				balancer.SetOut(i, status != http.StatusOK)
			}
			sleep(ctx, 100*time.Millisecond)
		}
	})
	var load steadyLoad
	loading, stopLoad := context.WithCancel(ctx)
	defer clients.Wait()
	defer stopLoad()
	load.start(loading, &clients, fmt.Sprintf("http://127.0.0.1:%d", balancer.Port()))
	sleep(ctx, time.Second)
	for i, r := range f.replicas {
		r.signal(syscall.SIGTERM)
		err := r.exited()
		failIf(t, err != nil, "replica %d: %v", i, err)
		f.replicas[i] = serveAt(t, config, addresses[i], r.admin)
		f.eventually("the new process is ready", func(ctx context.Context) bool {
			status, _ := readiness(ctx, r.admin)
			return status == http.StatusOK
		})
		sleep(ctx, 500*time.Millisecond)
	}
	stopLoad()
	clients.Wait()
	failIf(t, len(load.failures) > 0, "%d requests failed: %q", len(load.failures), load.failures[:min(10, len(load.failures))])
	for _, r := range steadyRequests {
		failIf(t, load.sent[r.name] < 5, "%s: %d requests sent, want at least 5", r.name, load.sent[r.name])
	}
	f.checkViolations("after the restarts")
	f.wantNothingLeft()
}

// wantNothingLeft checks that Redis holds no open permit, and no lease or registration of a
// process that has exited.
func (f *fleet) wantNothingLeft() {
	f.Helper()
	began := time.Now()
	f.eventually("no permit is in use", func(ctx context.Context) bool {
		n, err := permitsInUse(ctx, f.replicas[0].admin)
		return err == nil && n == 0
	})
	if took := time.Since(began); took > 15*time.Second { // half of the lease of a permit that is never released
		f.Errorf("permits were in use for %v", took)
	}
	client := redis.NewClient(&redis.Options{Addr: f.address})
	defer func() { _ = client.Close() }()
	lists := client.Keys(f.Context(), "weir:{weir}:replicas*").Val() // the service is not the public API, so the name has a suffix
	stopIf(f, len(lists) != 1, "got the lists of replicas %q, want one", lists)
	registered := client.ZRange(f.Context(), lists[0], 0, -1).Val()
	failIf(f, len(registered) != len(f.replicas), "%d replicas are registered, want %d", len(registered), len(f.replicas))
	for _, key := range client.Keys(f.Context(), "weir:account:*").Val() {
		for name := range client.HGetAll(f.Context(), key).Val() {
			rest, ok := strings.CutPrefix(name, "x:~")
			if replica, _, _ := strings.Cut(rest, "~"); ok && !slices.Contains(registered, replica) {
				f.Errorf("replica %s has exited and still holds the lease %s", replica, name)
			}
		}
	}
}
