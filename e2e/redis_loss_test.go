//go:build e2e

package e2e

import (
	"context"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// TestLimitsHoldWhileRedisFails overloads four replicas while Redis is paused, killed, and restarted empty. Then one replica is
// killed, and another replica is paused for longer than most windows. No limit may be broken, and the permits of both replicas
// must be released.
func TestLimitsHoldWhileRedisFails(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 4, oneRedis)
	long := phase(t)
	down := duration(t, "WEIR_FLEET_REDIS_DOWN", long)
	paused := f.replicas[2]
	ctx, stop := f.saturate()
	for _, c := range []struct {
		after string
		fault func()
		wait  time.Duration
	}{
		{"without faults", func() {}, 2 * long},
		{"Redis was paused", func() { _ = f.redis.Process.Signal(syscall.SIGSTOP) }, down},
		{"Redis continued", func() { _ = f.redis.Process.Signal(syscall.SIGCONT) }, long},
		{"Redis was killed", func() { _, _ = f.redis.Process.Kill(), f.redis.Wait() }, down},
		{"Redis restarted empty", func() { f.redis = f.startRedis(f.address) }, 2 * long},
		{"a replica was killed", func() { f.replicas[3].signal(syscall.SIGKILL) }, long},
		{"a replica was paused", func() { paused.signal(syscall.SIGSTOP) }, 2 * long},
		{"the replica continued", func() { paused.signal(syscall.SIGCONT) }, long},
	} {
		c.fault()
		sleep(ctx, c.wait)
		f.checkViolations(c.after)
	}
	stop()
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
	f.startService("service", fleetLimits)
	path, address := requests[0].path, testservers.FreeAddress(t)
	send(t, http.MethodPut, f.service+path, `{"subscribed":true}`, "Authorization: Bearer tok-owner")
	r := serve(t, f.file("cold.yaml", `upstream: {url: "`+f.service+`"}`+"\n"+`store: {url: "redis://`+address+`"}`+
		strings.Replace(fleetLimits, "trust", "ramp", 1)))
	wantOK := func(when string) {
		t.Helper()
		resp, _ := get(t, r.url+path, "Authorization: Bearer tok-owner")
		want(t, "status "+when, resp.StatusCode, http.StatusOK)
	}
	state := func() string {
		_, text := get(t, "http://"+r.admin+"/api/v1/state")
		return text
	}
	wantOK("without Redis")
	wantMatch(t, "state", state(), "until redis responds")
	f.startRedis(address)
	f.eventually("the replica joined", func(context.Context) bool { return !strings.Contains(state(), "cold_start") })
	wantOK("after Redis responded")
}
