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

// TestDemoAnswersOpenRequestsAtExit pushes to the repository of a statistics request, whose response must change. Then it
// terminates the demo during another statistics request. The gateway polls the reference service for this request for
// three seconds, so the service must stop after the gateway.
func TestDemoAnswersOpenRequestsAtExit(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "--traffic", "off")
	const activity = "/repos/acme/widgets/stats/commit_activity"
	resp, before := get(t, d.gateway+activity)
	failIf(t, resp.StatusCode != http.StatusOK || !strings.Contains(before, `"total"`), "statistics: %d %s", resp.StatusCode, before)
	send(t, http.MethodPost, d.service+"/_service/events", `{"event":"push","repository":"acme/widgets","commits":3}`)
	testservers.Eventually(t, "the push changes the statistics", func(context.Context) bool {
		_, after := get(t, d.gateway+activity)
		return after != before
	})
	stop := time.AfterFunc(1500*time.Millisecond, func() { d.signal(syscall.SIGTERM) })
	defer stop.Stop()
	resp, _ = get(t, d.gateway+"/repos/acme/widgets/stats/code_frequency")
	failIf(t, resp.StatusCode != http.StatusOK, "%s, %s", resp.Status, resp.Header.Get("Cache-Status"))
	must(t, d.exited())
}
