//go:build e2e

package e2e

import (
	"context"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// TestKilledGatewayExceedsNoLimit kills an overloaded gateway with a ledger file at random moments, and starts it again. No limit may be
// broken, and requests must succeed within the shortest window (2 s) and five seconds. The ledger counts two windows in the file: those of
// content and of the primary limit.
func TestKilledGatewayExceedsNoLimit(t *testing.T) {
	f := emptyFleet(t)
	limits := strings.NewReplacer("{max: 150, window: 12s}", "{max: 100, window: 10m}", "cold_start: trust", "cold_start: ramp").Replace(fleetLimits)
	listen := testservers.FreeAddress(t)
	f.startService("service", limits)
	send(t, http.MethodPut, f.service+requests[0].path, `{"subscribed":true}`, "Authorization: Bearer tok-owner")
	config := f.file("gateway.yaml", `upstream: {url: "`+f.service+`", timeout: 5s}`+"\n"+`store: {url: "memory:`+filepath.Join(f.dir, "ledger")+`"}`+limits)
	gateway := serveAt(t, config, listen, anyPort)
	f.replicas = []*replica{gateway, gateway} // the address remains
	ctx, stop := f.saturate()
	var longest time.Duration
	for range testservers.Setting(t, "WEIR_KILLS", 2) {
		sleep(ctx, time.Duration(rand.Int64N(int64(4*time.Second))))
		gateway.signal(syscall.SIGKILL)
		_ = gateway.exited()
		f.overload.take()
		gateway = serveAt(t, config, listen, anyPort)
		began := time.Now()
		testservers.Eventually(t, "a request succeeds", func(context.Context) bool { return f.overload.has(" 20") })
		longest = max(longest, time.Since(began))
	}
	f.checkViolations("after the kills")
	stop()
	if t.Logf("requests succeed %v after a start", longest); longest > 7*time.Second {
		t.Errorf("no request succeeds for %v after a start", longest)
	}
}

// has reports whether an outcome contains a text.
func (c *tally) has(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for outcome := range c.outcomes {
		if strings.Contains(outcome, text) {
			return true
		}
	}
	return false
}
