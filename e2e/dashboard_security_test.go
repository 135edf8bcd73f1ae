//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/weirgate/weir/internal/admin"
	"github.com/weirgate/weir/internal/history"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/coalesce"
	"github.com/weirgate/weir/proxy/record"
)

// TestDashboardEscapesNames checks that the page shows every name from a client, the upstream
// or the configuration as text, never as HTML.
func TestDashboardEscapesNames(t *testing.T) {
	const evil = `"><img src=x onerror="window.pwned=1"><script>window.pwned=2</script><svg onload=window.pwned=3><a href="javascript:window.pwned=4">evil</a>`
	t.Parallel()
	b := &fakeGateway{T: t, history: startHistory(t, history.Sources{
		Accounts: func(context.Context, int) ([]limits.Account, error) {
			return []limits.Account{{Name: evil, Kind: policy.CallerKind(evil), InUse: 1, Concurrent: 1, BlockedUntil: time.Now().Add(time.Minute), Budgets: []limits.Budget{
				{Resource: evil, Limit: 10, Used: 10, Reset: time.Now().Add(time.Minute)},
				{Resource: "client:core:" + evil, Client: evil, Limit: 10, Used: 9, Remaining: 1, Nominal: 5},
			}}}, nil
		},
		Waiting: func() map[limits.ClientResource]int { return map[limits.ClientResource]int{{Account: evil}: 1} },
		State: func() any {
			return map[string]any{
				"version": evil, "started": time.Now(), "now": time.Now(), "upstream": "https://" + evil, "dialect": evil, "store": map[string]any{"kind": evil, "replicas": 1}, "waiting": map[string]int{evil: 1},
				"polling": []coalesce.Poll{{Path: evil, Account: evil}}, "refused": []map[string]any{{"credential": evil, "until": time.Now(), "times": 1}}, "cache": map[string]any{"keys": 1, "bytes": 1, "most": 1},
			}
		},
	})}
	r := &record.Record{
		ID: evil, Start: time.Now(), Request: record.Request{Method: evil, Route: evil, Operation: evil, Account: evil, Client: evil, Tag: evil, Resource: evil}, Status: 502, Cache: record.CacheStatus{Forward: evil, Detail: evil}, Error: evil, Tracing: record.Tracing{Trace: evil, Stages: []record.Stage{{Name: evil, Elapsed: time.Second, Detail: evil}}}, Sent: 1, Spent: 1,
	}
	b.history.Observe(r)
	s := b.sources()
	s.Requests = func() any { return []history.Request{b.history.Request(r)} }
	prometheus := serveHTTP(t, fakePrometheus([]string{evil}, map[string]string{evil: evil}))
	s.Prometheus = func() admin.Prometheus { return admin.Prometheus{URL: prometheus} }
	s.Config = func() any {
		return map[string]any{evil: []string{evil}, "admin": map[string]any{"prometheus": map[string]string{"url": prometheus}}}
	}
	s.Trail.Record(admin.Change{Operator: evil, Action: evil, Target: evil, Outcome: evil})
	s.Purge = func(admin.Purge) (int, error) { return 0, fmt.Errorf("unknown tag: %s", evil) }
	server := httptest.NewServer(admin.Handler(admin.Access{}, s))
	t.Cleanup(server.Close)
	t.Cleanup(b.history.Close)

	page := openPage(t, server.URL)
	page.eventually("the page is live", `document.getElementById("live")?.dataset.state === "live"`)
	name := url.QueryEscape(evil)
	for _, screen := range []struct {
		address string
		panels  []string
	}{
		{"budgets", []string{"upstream", "version", "budgets-answer", "alerts", "budget-rows", "trends-budgets", "cooldowns", "queues"}},
		{"budgets?account=" + name, []string{"budgets-chips", "budget-rows"}},
		{"spending", []string{"spending-answer", "spend", "trends-spending", "client-tables", "ratio"}},
		{"spending?by=operation&client=" + url.QueryEscape(evil[:120]), []string{"spending-chips", "spend"}},
		{"spending?by=tag", []string{"spend"}},
		{"spending?by=account", []string{"spend"}},
		{"requests", []string{"request-rows", "slow", "polls"}},
		{"requests?client=" + name + "&operation=" + name + "&account=" + name + "&tag=" + name, []string{"requests-chips", "request-rows"}},
		{"system", []string{"store", "refused", "audit", "config"}},
		{"requests/" + url.PathEscape(evil), []string{"request-title", "request-body"}},
		{"requests/" + url.PathEscape(evil+"2"), []string{"request-body"}},
	} {
		value[string](page, fmt.Sprintf("location.hash = %q", screen.address))
		for _, panel := range screen.panels {
			page.eventually(panel+" of "+screen.address+" shows the name as text", fmt.Sprintf(`document.getElementById(%q).textContent.includes("onerror=")`, panel))
		}
	}
	visit(page, "requests")
	page.do(chromedp.Click(chromedp.CSS("#request-rows .link")))
	page.eventually("the explanation shows the name as text", `document.getElementById("request-body").textContent.split("onerror=").length > 9`)
	visit(page, "system")
	page.do(chromedp.SendKeys(chromedp.CSS("#purge-target"), evil), chromedp.Click(chromedp.CSS("#purge-form .primary")), chromedp.Click(chromedp.CSS("#purge-yes")))
	page.eventually("the error shows the name as text", `document.getElementById("control-result").textContent.includes("onerror=")`)
	page.expect("400 (Bad Request)")
	want(t, "what the names created", value[string](page, `JSON.stringify([window.pwned ?? "", document.querySelectorAll('img[src="x"], main script, [onload], [onerror], a[href^=javascript]').length])`), `["",0]`)
}

// TestDashboardCannotBeFramed checks that a browser refuses to show the dashboard in a frame
// of another site, which could steal clicks.
func TestDashboardCannotBeFramed(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var paths []string
	pages := admin.Handler(admin.Access{}, newFakeGateway(t, 0, 0).sources())
	framed := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		paths = append(paths, r.URL.Path)
		mu.Unlock()
		pages.ServeHTTP(w, r)
	}))
	page := openPage(t, serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprintf(w, `<link rel=icon href=data:,><iframe src=%q onload="document.title = 'loaded'"></iframe>`, framed)
	})))
	page.eventually("the frame has loaded or was refused", `document.title === "loaded"`)
	page.expect("frame-ancestors", "X-Frame-Options", "ERR_BLOCKED_BY_RESPONSE")
	mu.Lock()
	defer mu.Unlock()
	if len(paths) != 1 || paths[0] != "/" { // a visible page requests its scripts
		t.Errorf("the frame is shown; requested paths: %v", paths)
	}
}
