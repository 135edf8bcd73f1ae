//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// TestDemo checks the behaviours that the README shows: a hit, statistics without a 202, a
// webhook that changes statistics, and the refusal of the 31st search.
func TestDemo(t *testing.T) {
	d := startDemo(t)
	for i, want := range []string{"weir; fwd=uri-miss; fwd-status=200; stored;", "weir; hit;"} {
		resp, body := get(t, d.gateway+"/gitignore/templates")
		if !strings.HasPrefix(resp.Header.Get("Cache-Status"), want) || !strings.Contains(body, `"Go"`) || resp.Header.Get("X-RateLimit-Limit") != "60" {
			t.Errorf("request %d: %v %s", i+1, resp.Header, body)
		}
	}
	const activity = "/repos/acme/widgets/stats/commit_activity"
	resp, before := get(t, d.gateway+activity)
	if resp.StatusCode != 200 || !strings.Contains(before, `"total"`) {
		t.Errorf("statistics: %d %s", resp.StatusCode, before)
	}
	send(t, http.MethodPost, d.service+"/_service/events", `{"event":"push","repository":"acme/widgets","commits":3}`)
	testservers.Eventually(t, "the push changes the statistics", func(context.Context) bool {
		_, after := get(t, d.gateway+activity)
		return after != before
	})
	for i := range 31 {
		resp, body := get(t, fmt.Sprintf("%s/search/commits?q=gear+%d", d.gateway, i), "Authorization: Bearer tok-owner")
		want := 200
		if i == 30 {
			want = 429
		}
		if resp.StatusCode != want || want == 429 && resp.Header.Get("Retry-After") == "" {
			t.Errorf("search %d: %d %v %s", i+1, resp.StatusCode, resp.Header, body)
		}
	}
	if _, body := get(t, d.service+"/_service/violations"); !strings.Contains(body, `"violations":0`) {
		t.Error(body)
	}
	if _, body := get(t, d.admin+"/api/v1/accounts"); !strings.Contains(body, `"egress:shared"`) {
		t.Error(body)
	}
}

// TestDemoAnswersOpenRequestsAtExit terminates the demo during a statistics request of three seconds. The gateway polls
// the reference service for this request, so the service must stop after the gateway.
func TestDemoAnswersOpenRequestsAtExit(t *testing.T) {
	d := startDemo(t, "--traffic", "off")
	stop := time.AfterFunc(1500*time.Millisecond, func() { d.signal(syscall.SIGTERM) })
	defer stop.Stop()
	resp, _ := get(t, d.gateway+"/repos/acme/widgets/stats/code_frequency")
	if resp.StatusCode != http.StatusOK {
		t.Errorf("%s, %s", resp.Status, resp.Header.Get("Cache-Status"))
	}
	if err := d.exited(); err != nil {
		t.Error(err)
	}
}
