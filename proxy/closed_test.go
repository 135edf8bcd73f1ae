package proxy

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// TestClosedAccountIsRefusedAtOnce checks that requests of a closed account do not wait, and that the response names
// the remedy.
func TestClosedAccountIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ledger := limits.NewMemory(limits.Rules{Limits: policy.DefaultLimits(), Probes: 1})
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			responds(http.StatusForbidden, "Retry-After: 60")(w, nil)
			_, _ = fmt.Fprint(w, `{"message":"You have exceeded a secondary rate limit"}`)
		}, withLedger(ledger))
		for range 2 { // the limit error and the failed probe
			w.get("/users/octocat", "Prefer: wait=0")
			time.Sleep(5 * time.Minute)
		}
		seen, began := w.upstreamSaw(), time.Now()
		r := w.get("/users/octocat")
		w.want("wait", time.Since(began), time.Duration(0))
		w.want("requests upstream", w.upstreamSaw(), seen)
		w.want("status", r.StatusCode, http.StatusTooManyRequests)
		w.wantFields(r, "Retry-After: 3600", "Cache-Status: weir; detail=closed")
		if !strings.Contains(r.body, "secondary rate limit") || !strings.Contains(r.body, "An operator must open it") {
			t.Errorf("body %s", r.body)
		}
		if err := ledger.Open(context.Background(), "egress:test"); err != nil {
			t.Fatal(err)
		}
		w.get("/users/octocat", "Prefer: wait=0")
		w.want("requests upstream after the opening", w.upstreamSaw(), seen+1)
	})
}
