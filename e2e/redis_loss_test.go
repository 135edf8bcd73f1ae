//go:build e2e

package e2e

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// TestLimitsHoldWhileRedisFails overloads four replicas while one replica is killed, and
// while Redis is paused, killed, and restarted empty.
func TestLimitsHoldWhileRedisFails(t *testing.T) {
	f := newFleet(t, 4, oneRedis)
	long := phase(t)
	down := duration(t, "WEIR_FLEET_REDIS_DOWN", long)
	ctx := f.saturate()
	sleep(ctx, 2*long)
	f.checkViolations("without faults")

	f.replicas[3].signal(syscall.SIGKILL)
	sleep(ctx, long)
	f.checkViolations("after a replica was killed")

	_ = f.redis.Process.Signal(syscall.SIGSTOP)
	sleep(ctx, down)
	_ = f.redis.Process.Signal(syscall.SIGCONT)
	f.checkViolations("after Redis was paused")
	sleep(ctx, long)
	f.checkViolations("after Redis continued")

	_ = f.redis.Process.Kill()
	_ = f.redis.Wait()
	sleep(ctx, down)
	f.checkViolations("after Redis was killed")
	f.redis = f.startRedis(f.address)
	sleep(ctx, 2*long)
	f.checkViolations("after Redis restarted empty")
}

// TestPausedReplicaBreaksNoLimit pauses one of two replicas for longer than most windows. Then the replica continues,
// and must break no limit and lose no permit.
func TestPausedReplicaBreaksNoLimit(t *testing.T) {
	f := newFleet(t, 2, oneRedis)
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	f.startClients(ctx, &clients)
	sleep(ctx, 3*time.Second)
	paused := f.replicas[1]
	paused.signal(syscall.SIGSTOP)
	sleep(ctx, 2*phase(t))
	paused.signal(syscall.SIGCONT)
	f.checkViolations("after a replica was paused")
	sleep(ctx, phase(t))
	f.checkViolations("after the replica continued")
	stop()
	clients.Wait()
	f.eventually("all permits are released", func(ctx context.Context) bool {
		sleep(ctx, time.Second)
		n, err := permitsInUse(ctx, paused.admin)
		return err == nil && n == 0
	})
}

// TestReplicaStartsWithoutRedis starts a replica while Redis is unreachable. The replica answers requests with a
// cold-start part of the quota, and joins when Redis responds.
func TestReplicaStartsWithoutRedis(t *testing.T) {
	t.Parallel()
	f := emptyFleet(t)
	f.startService(fleetLimits)
	send(t, http.MethodPut, f.service+requests[0].path, `{"subscribed":true}`, "Authorization: Bearer tok-owner")
	f.address = testservers.FreeAddress(t)
	f.store = "redis://" + f.address
	config := f.file("cold.yaml", `upstream: {url: "`+f.service+`"}`+"\n"+`store: {url: "`+f.store+`"}`+strings.Replace(fleetLimits, "trust", "ramp", 1))
	r := f.serve(config, testservers.FreeAddress(t), testservers.FreeAddress(t))
	client := &http.Client{Timeout: 20 * time.Second}
	ask := func() int {
		resp, _ := send(t, "GET", r.url+requests[0].path, "", "Authorization: Bearer tok-owner")
		return resp.StatusCode
	}
	if status := ask(); status != http.StatusOK {
		t.Errorf("status %d without redis, want 200", status)
	}
	state := func() string {
		resp, err := client.Get("http://" + r.admin + "/api/v1/state")
		if err != nil {
			return err.Error()
		}
		defer func() { _ = resp.Body.Close() }()
		text, _ := io.ReadAll(resp.Body)
		return string(text)
	}
	if text := state(); !strings.Contains(text, "until redis responds") {
		t.Errorf("state %s, want the cold start", text)
	}
	f.startRedis(f.address)
	f.eventually("the replica joined", func(context.Context) bool { return !strings.Contains(state(), "cold_start") })
	if status := ask(); status != http.StatusOK {
		t.Errorf("status %d after redis responded, want 200", status)
	}
}

// TestPermitsOfKilledReplicaExpire kills a replica with open requests. Another replica must see that the permits of the
// killed replica expire with the lease.
func TestPermitsOfKilledReplicaExpire(t *testing.T) {
	t.Parallel() // the test waits for a lease most of the time
	f := newFleet(t, 2, oneRedis)
	if resp, text := send(t, "PUT", f.service+"/_service/faults", `{"delay_before":"60s"}`); resp.StatusCode != 200 {
		t.Fatal(resp.Status, text)
	}
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer stop()
	sleep(ctx, 2*time.Second)
	const n = 3 // requests that may be sent before the first response
	client := http.DefaultClient
	for range n {
		clients.Go(func() { f.request(ctx, client, &f.overload, "tok-owner", 0, requests[0], requests[0].path) })
	}
	inUse := func(want int) func(context.Context) bool {
		return func(ctx context.Context) bool {
			got, err := permitsInUse(ctx, f.replicas[1].admin)
			return err == nil && got == want
		}
	}
	f.eventually("the requests are open", inUse(n))
	f.replicas[0].signal(syscall.SIGKILL)
	killed := time.Now()
	f.eventually("their permits are released", inUse(0))
	if took := time.Since(killed); took > 35*time.Second { // the lease of 30 seconds, a poll, and a busy machine
		t.Errorf("permits were released after %v, want at most 35s", took)
	}
}
