//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"testing"

	"github.com/chromedp/cdproto/page"
)

// recordUpdates is a script that adds up the time of all scripts from one accounts event to the next. The gateway sends
// such an event every second, so an element of updates is a live update with everything else of its second, in ms.
const recordUpdates = `
window.updates = [];
let current = 0;
const timed = (f, begins) => function (...args) {
  if (begins) {
    updates.push(current);
    current = 0;
  }
  const start = performance.now();
  try {
    return f.apply(this, args);
  } finally {
    current += performance.now() - start;
  }
};
const {addEventListener} = EventSource.prototype, {setTimeout, setInterval} = window;
EventSource.prototype.addEventListener = function (name, f, options) { addEventListener.call(this, name, timed(f, name === "accounts"), options); };
window.setTimeout = (f, ...args) => setTimeout(timed(f), ...args);
window.setInterval = (f, ...args) => setInterval(timed(f), ...args);
`

// TestDashboardSpeed measures the first paint, and the time of scripts during a live update with 1,000 changing accounts
// and 200 clients. The log has the figures. The assertions have a wide margin, because tests share the machine.
func TestDashboardSpeed(t *testing.T) {
	t.Parallel()
	b, url := startScreens(t, 1000, 2000)
	b.do(call(page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: recordUpdates}))
	var paints []float64
	for range 5 {
		b.open(url)
		b.eventually("the page is painted", `performance.getEntriesByName("first-contentful-paint").length === 1`)
		paints = append(paints, value[float64](b, `performance.getEntriesByName("first-contentful-paint")[0].startTime`))
	}
	checkMedian(t, "first contentful paint", paints, 1500)
	b.eventually("the page is live", live)
	for _, screen := range []string{"budgets", "spending", "requests", "system"} {
		visit(b, screen)
		before := value[int](b, "updates.length") + 2 // the first draws of the screen are not updates
		b.eventually("updates are recorded", fmt.Sprintf("updates.length >= %d", before+5))
		checkMedian(t, screen+", scripts per live update", value[[]float64](b, fmt.Sprintf("updates.slice(%d)", before)), 250)
	}
}

// checkMedian logs times in ms, and compares their median with a limit.
func checkMedian(t *testing.T, name string, times []float64, limit float64) {
	t.Helper()
	slices.Sort(times)
	median := times[len(times)/2]
	t.Logf("%s: minimum %.1f ms, median %.1f ms, maximum %.1f ms", name, times[0], median, times[len(times)-1])
	failIf(t, median > limit, "%s: median %.1f ms, want at most %v ms", name, median, limit)
}
