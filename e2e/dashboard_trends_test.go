//go:build e2e

package e2e

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp"
)

// fakePrometheus responds to the queries of the trends: clients of which each spends less than the one before, saved and
// refused requests, and budgets, given as resources by account. Without clients, no query has a series.
func fakePrometheus(clients []string, budgets map[string]string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		start, _ := strconv.Atoi(q.Get("start"))
		end, _ := strconv.Atoi(q.Get("end"))
		step, _ := strconv.Atoi(q.Get("step"))
		result := []any{}
		add := func(labels map[string]string, value func(i float64) float64) {
			var values [][2]any
			for at := start; at <= end; at += step {
				values = append(values, [2]any{at, strconv.FormatFloat(value(float64(at-start)/float64(step)), 'g', -1, 64)})
			}
			result = append(result, map[string]any{"metric": labels, "values": values})
		}
		wave := func(most float64) func(float64) float64 {
			return func(i float64) float64 { return most * (1 + math.Sin(i/8)) / 2 }
		}
		switch query := q.Get("query"); {
		case strings.Contains(query, "weir_spent_total"):
			for i, name := range clients {
				add(map[string]string{"weir_client": name}, wave(900/float64(i+1)))
			}
		case len(clients) == 0:
		case strings.Contains(query, "weir_saved_total"):
			add(nil, wave(2000))
		case strings.Contains(query, "weir_requests_total"):
			add(nil, wave(40))
		case strings.Contains(query, "weir_budget_utilization_ratio"):
			for account, resource := range budgets {
				add(map[string]string{"weir_account": account, "weir_resource": resource}, func(i float64) float64 {
					if i > 20 && i < 40 {
						return math.NaN()
					}
					return 0.5 - 0.1*float64(len(resource)%4) - 0.2*math.Cos(i/5)
				})
			}
		}
		reply(w, http.StatusOK, map[string]any{"status": "success", "data": map[string]any{"resultType": "matrix", "result": result}})
	}
}

// openTrends opens the dashboard of a fake gateway with three accounts, and with a Prometheus unless it is nil.
func openTrends(t *testing.T, prometheus http.Handler) (page *browser, url string) {
	t.Helper()
	b := newFakeGateway(t, 3, 40)
	if prometheus != nil {
		b.prometheus = serveHTTP(t, prometheus)
	}
	url = b.start()
	return openDashboard(t, url), url
}

// trendsText is a script that returns the visible text of the panel of trends of the present screen.
const trendsText = `[...document.querySelectorAll("#trends-spending, #trends-budgets")].filter(p => p.checkVisibility()).map(p => p.innerText).join("\n")`

func TestDashboardShowsTrendsOfDays(t *testing.T) {
	t.Parallel()
	names := []string{"builds", "release-train", "dependency-updates-for-everybody-in-the-organization", "dashboards", "code-search", "agent", "people", "backups", "reports"}
	const hash = "9e3779b9000000000000000000000003"
	page, url := openTrends(t, fakePrometheus(names, map[string]string{"octo-bot-000": "core", hash: "search", "release-train-001": "points:repos/list-commits", "ci": "graphql"}))
	page.loadAxe()

	visit(page, "spending")
	page.eventually("the charts are drawn", `document.querySelectorAll("#trends-spending canvas").length === 2`)
	page.eventually("the legend has seven clients and the others", `document.querySelectorAll("#legend-trends-spent .legend-entry").length === 8 && /^builds\s[\d.]+K/.test(document.getElementById("legend-trends-spent").innerText) && /others\s[\d.]+K$/.test(document.getElementById("legend-trends-spent").innerText)`)
	page.eventually("saved and refused requests are summed", `/saved\s[\d.]+K\s*refused\s[\d,]+$/.test(document.getElementById("legend-trends-saved").innerText)`)
	checkScreen(page, "trends", "spending", true)

	visit(page, "budgets")
	page.eventually("each budget has its lowest part", `document.querySelector("#trends-budgets canvas") && /core of octo-bot-000\s30\s%/.test(document.getElementById("legend-trends-budgets").innerText)`)
	page.eventually("a hash has a label", `document.getElementById("legend-trends-budgets").innerText.includes("search of account 9e3779b9\n")`)
	checkScreen(page, "trends", "budgets", true)

	// The days are in the address, and the keyboard selects them.
	page.setWindow(1440, 900, false)
	page.do(chromedp.Focus(chromedp.CSS(`#trends-budgets .days a:last-child`)), chromedp.KeyEvent("\r"))
	page.eventually("the address has the days", `location.hash === "#budgets?days=30" && document.querySelector("#trends-budgets .days [aria-current]").innerText === "30 days" && document.querySelector("#trends-budgets canvas")`)
	page.open(url + "/?shared#spending?days=1")
	page.eventually("a shared address shows its days", `document.querySelector("#trends-spending .days [aria-current]")?.innerText === "1 day" && document.querySelectorAll("#trends-spending canvas").length === 2 && performance.getEntriesByType("resource").some(r => r.name.endsWith("/api/v1/trends?range=1d"))`)
	page.do(chromedp.Click(chromedp.CSS("#spend-by a:nth-child(2)")))
	page.eventually("another group keeps the days", `location.hash.includes("by=operation") && location.hash.includes("days=1")`)
}

func TestDashboardShowsWhyThereAreNoTrends(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	broken.Store(true)
	working := fakePrometheus([]string{"builds"}, nil)
	page, _ := openTrends(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if broken.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = fmt.Fprint(w, `{"status": "error", "error": "query timed out in expression evaluation"}`)
			return
		}
		working(w, r)
	}))
	for _, screen := range []string{"spending", "budgets"} {
		visit(page, screen)
		page.eventually("the error is shown on "+screen, trendsText+`.includes("503 Service Unavailable: query timed out in expression evaluation") && !document.querySelector("#trends-"+`+strconv.Quote(screen)+`+" canvas")`)
		checkScreen(page, "trends-error", screen, false)
	}
	page.eventually("the rest of the screen works", `document.querySelectorAll("#budget-rows tr").length > 3`)
	page.expect("502 (Bad Gateway)")
	broken.Store(false)
	visit(page, "budgets?days=1")
	page.eventually("a Prometheus without budgets is explained", trendsText+`.includes("Prometheus has no requests of Weir in this time")`)
	visit(page, "spending?days=1")
	page.eventually("other days replace the error", `document.getElementById("legend-trends-spent").innerText.startsWith("builds")`)
	broken.Store(true)
	page.eventually("five minutes pass", `(() => { const now = performance.now.bind(performance); performance.now = () => now() + 300000; return true; })()`)
	page.eventually("a failed refresh keeps the charts", trendsText+`.includes("503 Service Unavailable") && document.querySelector("#trends-spending canvas").checkVisibility()`)

	empty, _ := openTrends(t, fakePrometheus(nil, nil))
	for _, screen := range []string{"spending", "budgets"} {
		visit(empty, screen)
		empty.eventually("an empty Prometheus is explained on "+screen, trendsText+`.includes("Configure it to scrape /metrics of every replica")`)
		checkScreen(empty, "trends-empty", screen, false)
	}

	none, _ := openTrends(t, nil)
	for _, screen := range []string{"spending", "budgets"} {
		visit(none, screen)
		none.eventually("the configuration is loaded", `import("/assets/js/model.js").then(m => m.model.configuration !== null)`)
		want(t, "trends of "+screen+" without a Prometheus", value[string](none, trendsText), "")
	}
	failIf(t, value[bool](none, `performance.getEntriesByType("resource").some(r => r.name.includes("/api/v1/trends"))`), "without a Prometheus, the page requests trends")
}
