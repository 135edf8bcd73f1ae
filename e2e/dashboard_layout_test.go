//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/admin"
	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/history"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/proxy/coalesce"
	"github.com/weirgate/weir/proxy/record"
)

// fakeGateway provides made-up data for the dashboard: many accounts, requests and alerts.
type fakeGateway struct {
	*testing.T
	accounts int
	random   *rand.Rand
	began    time.Time
	lost     atomic.Bool
	mu       sync.Mutex
	recent   []history.Request // newest first
	history  *history.History

	prometheus string // URL of the server of the trends, or empty
	stop       func() // ends the server and its event streams
}

// newFakeGateway returns a gateway that has processed a number of requests.
func newFakeGateway(t *testing.T, accounts, requests int) *fakeGateway {
	b := &fakeGateway{T: t, accounts: accounts, random: rand.New(rand.NewPCG(1, 2)), began: time.Now()}
	b.history = startHistory(t, history.Sources{Accounts: b.list, Waiting: b.waitingByClient, State: b.state, Label: credential.ShortLabel})
	for i := range requests {
		b.addRequest(i)
	}
	return b
}

// start serves the admin pages, and returns their URL.
func (b *fakeGateway) start() (url string) {
	server := httptest.NewServer(b.withHistory(admin.Handler(admin.Access{}, b.sources())))
	b.stop = func() {
		b.history.Close() // ends the event streams, for which the server waits
		server.CloseClientConnections()
		server.Close()
	}
	b.Cleanup(b.stop)
	return server.URL
}

// startHistory starts a history that samples its sources until the test ends.
func startHistory(t *testing.T, s history.Sources) *history.History {
	h := history.New(s)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { h.Run(ctx) })
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	t.Cleanup(h.Close)
	return h
}

func (b *fakeGateway) name(i int) string {
	if i%4 == 3 {
		return fmt.Sprintf("%08x%024x", uint32(i+1)*2654435761, i)
	}
	return fmt.Sprintf("%s-%03d", []string{"octo-bot", "release-train", "dependency-updates-for-everybody-in-the-organization"}[i%3], i)
}

// list returns accounts with budgets in every state. Some budgets shrink over time.
func (b *fakeGateway) list(_ context.Context, most int) ([]limits.Account, error) {
	if b.lost.Load() {
		return nil, errors.New("redis: connection refused")
	}
	now, passed := time.Now(), time.Since(b.began).Seconds()
	list := make([]limits.Account, 0, b.accounts)
	for i := range min(b.accounts, most) {
		a := limits.Account{Name: b.name(i), Kind: "user", InUse: max(0, 9-i), Concurrent: 100}
		if i%5 == 1 {
			a.Kind = "installation"
		}
		if i%17 == 4 && i < 60 {
			a.BlockedUntil, a.Concurrent = now.Add(time.Duration(40+i)*time.Second), 1
		}
		used := (i*37)%90 + 2
		add := func(resource string, limit, used int, reset time.Duration) {
			used = min(used, limit)
			a.Budgets = append(a.Budgets, limits.Budget{Resource: resource, Limit: limit, Used: used, Remaining: limit - used, Reset: now.Add(reset).UTC().Truncate(time.Second), Held: min(i%3, limit-used)})
		}
		add("core", 5000, used*50+int(passed*float64(1+i%9)), time.Duration(90+i*131%3300)*time.Second)
		if i%2 == 0 {
			add("search", 30, int(math.Mod(passed+float64(i), 31)), time.Duration(10+i%50)*time.Second)
		}
		if i%3 == 0 {
			add("points:repos/list-commits", 900, used*9, 40*time.Second)
			add("cpu", 90000, used*700, 50*time.Second)
		}
		if i < 2 { // several clients
			a.Budgets = append(a.Budgets,
				limits.Budget{Resource: "client:core:agent", Client: "agent", Limit: 4500, Used: 2950, Remaining: 1550, Nominal: 1666, Borrowed: 1284},
				limits.Budget{Resource: "client:core:dependency-updates-for-everybody", Client: "dependency-updates-for-everybody", Limit: 4500, Used: 240, Remaining: 4260, Guarantee: 1250, Nominal: 1666, Lent: 600},
				limits.Budget{Resource: "client:core:people", Client: "people", Limit: 4500, Used: 240, Remaining: 4260},
			)
		}
		list = append(list, a)
	}
	return list, nil
}

func (b *fakeGateway) waiting() map[string]int {
	if b.accounts == 0 {
		return nil
	}
	return map[string]int{b.name(0): 42, b.name(2): 3}
}

func (b *fakeGateway) waitingByClient() map[limits.ClientResource]int {
	waiting := map[limits.ClientResource]int{}
	for account, n := range b.waiting() {
		waiting[limits.ClientResource{Account: account, Resource: "core", Client: "agent"}] = n
	}
	return waiting
}

func (b *fakeGateway) state() any {
	state := map[string]any{
		"version": "v0.7.0", "started": b.began.Add(-26 * time.Hour), "now": time.Now(), "upstream": "https://api.example.com", "dialect": "service", "limits": "on", "guarded": false,
		"store": map[string]any{"kind": "redis", "replicas": 3}, "waiting": b.waiting(), "polling": []any{}, "refused": []any{},
		"cache":        map[string]any{"keys": 0, "bytes": 0, "max_bytes": 256 << 20},
		"memory":       map[string]any{"bytes": 312 << 20, "max_bytes": 512 << 20},
		"certificates": []any{},
	}
	if b.lost.Load() {
		state["store"] = map[string]any{"kind": "redis", "replicas": 3, "lost": b.began}
	}
	if b.accounts > 0 {
		state["polling"] = []coalesce.Poll{
			{Path: "/repos/acme/widgets/stats/contributors", Account: b.name(0), Since: b.began, Next: time.Now().Add(4 * time.Second), Polls: 3, Waiting: 12},
			{Path: "/repos/an-organization-with-a-long-name/a-repository-with-an-even-longer-name/stats/commit_activity", Account: b.name(1), Since: b.began, Next: time.Now().Add(15 * time.Second), Polls: 5, Waiting: 1},
		}
		state["refused"] = []map[string]any{{"credential": "ci", "until": b.began.Add(10 * time.Minute), "times": 2}}
		certificates := []any{}
		for i := range 6 {
			certificates = append(certificates, map[string]any{"name": fmt.Sprintf("/etc/weir/%d.pem", i), "expires": b.began.Add(80 * 24 * time.Hour)})
		}
		state["certificates"] = append(certificates, map[string]any{"name": "weir.a-long-name-of-an-organization.example.com", "expires": b.began.Add(9 * 24 * time.Hour)})
		state["cache"] = map[string]any{"keys": 48213, "bytes": 187 << 20, "max_bytes": 256 << 20}
	}
	return state
}

// sampleOperations returns operations with their usual duration.
func sampleOperations() []record.Record {
	return []record.Record{
		{Request: record.Request{Method: "GET", Route: "/repos/{owner}/{repo}/commits", Operation: "repos/list-commits", Resource: "core"}, Elapsed: 84 * time.Millisecond},
		{Request: record.Request{Method: "GET", Route: "/gitignore/templates/{name}", Operation: "gitignore/get-template", Resource: "core"}, Elapsed: 31 * time.Millisecond},
		{Request: record.Request{Method: "GET", Route: "/search/code", Operation: "search/code", Resource: "search"}, Elapsed: 900 * time.Millisecond},
		{Request: record.Request{Method: "GET", Route: "/repos/{owner}/{repo}/stats/contributors", Operation: "repos/get-contributors-stats", Resource: "core"}, Elapsed: 6 * time.Second},
		{Request: record.Request{Method: "POST", Route: "/repos/{owner}/{repo}/rulesets", Operation: "repos/create-repo-ruleset", Resource: "core"}, Elapsed: 220 * time.Millisecond},
		{Request: record.Request{Method: "GET", Route: "/orgs/{org}/members", Operation: "orgs/list-members", Resource: "core"}, Elapsed: 55 * time.Millisecond},
		{Request: record.Request{Method: "GET", Route: "/repos/{owner}/{repo}/code-scanning/alerts/{number}/instances", Operation: "code-scanning/list-alert-instances", Resource: "core"}, Elapsed: 140 * time.Millisecond},
		{Request: record.Request{Method: "GET", Route: "/repos/{owner}/{repo}/pulls/{number}/reviews", Operation: "unknown", Resource: "core"}, Elapsed: 70 * time.Millisecond},
	}
}

// addRequest records one random request.
func (b *fakeGateway) addRequest(i int) {
	kinds := sampleOperations()
	r := kinds[int(float64(len(kinds))*math.Pow(b.random.Float64(), 1.6))]
	r.ID, r.Status, r.Start, r.Bytes = fmt.Sprintf("REQ%05d", i), 200, time.Now(), int64(b.random.IntN(90000))
	r.Path = strings.NewReplacer("{owner}", "acme", "{repo}", "a-repository-with-a-long-name", "{org}", "acme", "{name}", "Go", "{number}", "7").Replace(r.Route)
	r.Account = b.name(b.random.IntN(9))
	r.Client = []string{"builds", "release-train", "dependency-updates", "", "dashboards", "code-search"}[b.random.IntN(6)]
	if b.accounts == 1000 && b.random.IntN(3) == 0 {
		r.Account, r.Client = b.name(i%200), fmt.Sprintf("team-%03d", i%200)
	}
	if r.Client == "builds" {
		r.Tag = fmt.Sprintf("acme/widgets-%d", i%12)
	}
	r.Elapsed = time.Duration(float64(r.Elapsed) * (0.4 + b.random.ExpFloat64()*0.5))
	sent := func(start time.Duration, status string) {
		r.Sent++
		r.Stages = append(r.Stages, record.Stage{Name: "attempt", Start: start, Elapsed: max(r.Elapsed-start, time.Millisecond), Detail: status})
	}
	switch n := b.random.IntN(100); {
	case n < 52:
		r.Cache, r.Saved, r.Elapsed = record.CacheStatus{Hit: true, TTL: 3211, HasTTL: true}, true, time.Duration(60+b.random.IntN(200))*time.Microsecond
	case n < 56:
		r.Cache, r.Saved, r.Elapsed = record.CacheStatus{Hit: true, TTL: -14, HasTTL: true, Detail: "primary"}, true, 200*time.Microsecond
	case n < 66:
		r.Cache, r.Saved = record.CacheStatus{Forward: record.ForwardStale, ForwardStatus: 304, Stored: true, TTL: 60, HasTTL: true}, true
		sent(300*time.Microsecond, "304")
	case n < 82:
		r.Cache, r.Spent = record.CacheStatus{Forward: record.ForwardMiss, ForwardStatus: 200, Stored: true, TTL: 60, HasTTL: true}, 1
		sent(400*time.Microsecond, "200")
	case n < 92:
		r.Cache, r.Spent, r.Waited = record.CacheStatus{Forward: record.ForwardMiss, ForwardStatus: 200, Stored: true, TTL: 60, HasTTL: true}, 1, r.Elapsed/2
		r.Stages = []record.Stage{{Name: "queue", Elapsed: r.Waited, Detail: "points"}}
		sent(r.Waited, "200")
	case n < 97:
		r.Cache, r.Status, r.Elapsed = record.CacheStatus{Detail: []string{"primary", "cooldown", "queue"}[n%3]}, 429, time.Millisecond
	case n < 99:
		r.Cache, r.Status, r.Error = record.CacheStatus{Detail: "upstream"}, 502, "dial tcp 192.0.2.1:443: connection refused"
	default:
		r.Cache, r.Spent, r.Background = record.CacheStatus{Forward: record.ForwardStale, ForwardStatus: 200, Stored: true, TTL: 60, HasTTL: true}, 1, true
		sent(0, "200")
	}
	r.Outcome = r.Cache.Outcome()
	b.history.Observe(&r)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.recent = append([]history.Request{b.history.Request(&r)}, b.recent[:min(len(b.recent), 255)]...)
}

func (b *fakeGateway) requests() any {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]history.Request{}, b.recent...)
}

// sources returns the data sources of the admin pages.
func (b *fakeGateway) sources() admin.Sources {
	s := admin.Sources{Reload: func() error { return nil }, Cache: func() (int, uint64) { return 0, 0 }, Purge: func(admin.Purge) (int, error) { return 1, nil }}
	s.Accounts, s.Requests, s.State, s.History = b.list, b.requests, b.state, b.history
	s.Refused, s.Defaults = func() any { return nil }, func() any { return config.Default().Masked() }
	s.Prometheus = func() admin.Prometheus { return admin.Prometheus{URL: b.prometheus} }
	s.Config = func() any {
		return map[string]any{"listen": ":8080", "admin": map[string]any{"listen": "127.0.0.1:9090", "token": "•••", "prometheus": map[string]any{"url": b.prometheus, "token": ""}}, "upstream": map[string]any{"url": "https://api.example.com", "dialect": "service", "timeout": "30s"},
			"limits": map[string]any{"primary": map[string]any{"user": 5000, "window": "1h"}, "concurrent": 100, "wait": "10s"}, "clients": []any{map[string]any{"name": "builds", "key": "•••", "share": 3}}, "webhooks": map[string]any{"secret": ""}}
	}
	s.Trail = admin.NewTrail(slog.New(slog.DiscardHandler))
	if b.accounts > 0 {
		for range 4 {
			s.Trail.Record(admin.Change{Operator: "session", Address: "127.0.0.1:1", Action: "purge", Target: "repo:acme/widgets", Outcome: "12 entries"})
		}
		s.Trail.Record(admin.Change{Operator: "file", Action: "reload", Target: "/etc/weir/weir.yaml", Outcome: "failed: weir.yaml:3:1: unknown key \"lissten\""})
	}
	return s
}

// withHistory replaces the history of a few seconds by a made-up history of one hour.
func (b *fakeGateway) withHistory(pages http.Handler) http.Handler {
	if b.accounts == 0 {
		return pages
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/v1/series":
		case "/api/v1/events":
			pages.ServeHTTP(eventsWithHourBefore{w}, r)
			return
		default:
			pages.ServeHTTP(w, r)
			return
		}
		if names := r.URL.Query()["account"]; len(names) > 0 {
			lines := b.history.Lines(names)
			for _, line := range lines {
				for _, left := range line {
					b.fill(left)
				}
			}
			reply(w, http.StatusOK, lines)
			return
		}
		series := b.history.Series()
		for name, most := range map[string]float64{"hit": 300, "stale": 12, "validated": 50, "miss": 90, "waited": 40, "refused": 12, "limited": 4, "error": 3, "saved": 310, "spent": 170, "upstream": 190, "waiting": 40, "in_flight": 60} {
			for i := range series.Values[name] {
				wave := 1 + 0.5*math.Sin(float64(i)/40) + 0.3*b.random.Float64()
				series.Values[name][i] = uint32(most / 2 * wave)
			}
		}
		_, _ = w.Write(withHourBefore([]byte(toJSON(struct {
			history.Series
			history.Costs
		}{series, b.history.Costs()}))))
	})
}

// eventsWithHourBefore adds an hour before the last hour to server-sent events.
type eventsWithHourBefore struct{ http.ResponseWriter }

func (w eventsWithHourBefore) Write(text []byte) (int, error) {
	if _, err := w.ResponseWriter.Write(withHourBefore(text)); err != nil {
		return 0, err
	}
	return len(text), nil
}

func (w eventsWithHourBefore) Unwrap() http.ResponseWriter { return w.ResponseWriter }

var (
	sumsBefore  = regexp.MustCompile(`"before":\{[^}]*\}`)
	spentBefore = regexp.MustCompile(`"spent":(\d+),"upstream":\d+,"saved":\d+`)
)

// withHourBefore replaces the hour before the last hour in JSON.
func withHourBefore(text []byte) []byte {
	text = sumsBefore.ReplaceAll(text, []byte(`"before":{"hit":58000,"stale":2900,"validated":10100,"miss":21400,"waited":7600,"refused":3100,"limited":240,"error":610,"saved":61200,"spent":33400,"upstream":45100}`))
	return spentBefore.ReplaceAllFunc(text, func(use []byte) []byte {
		spent, _ := strconv.Atoi(string(spentBefore.FindSubmatch(use)[1]))
		return fmt.Appendf(slices.Clip(use), `,"before":{"spent":%d}`, spent*(70+spent*13%60)/100)
	})
}

// fill fills a line of a chart with values that fall to the last value.
func (b *fakeGateway) fill(line []*int) {
	last := line[len(line)-1]
	if last == nil {
		last = line[len(line)-2]
	}
	if last == nil {
		return
	}
	value := *last
	for i := len(line) - 2; i >= 0; i-- {
		if value += b.random.IntN(*last/20 + 2); i == 40 {
			value = *last / 3
		}
		line[i] = new(int)
		*line[i] = value
	}
}

// TestDashboardLayout checks the layout of every screen in nine widths and two themes, and its accessibility with
// axe-core: without accounts, with a thousand accounts and 200 clients, with a lost store, and after the gateway has stopped.
func TestDashboardLayout(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		accounts int
		requests int
		lost     bool
		stopped  bool
	}{{"none", 0, 0, false, false}, {"thousand", 1000, 2000, false, false}, {"lost", 3, 40, true, false}, {"stopped", 9, 40, false, true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newFakeGateway(t, c.accounts, c.requests)
			page := openDashboard(t, b.start())
			page.loadAxe()
			if c.accounts > 0 {
				page.eventually("the page shows a forecast", `[...document.querySelectorAll(".forecast")].some(f => f.textContent.includes("ends in"))`)
			}
			b.lost.Store(c.lost)
			if c.lost {
				page.eventually("the page shows the lost store", `document.getElementById("banner").textContent.includes("has not responded") && !/\d/.test(document.getElementById("tiles").innerText) && document.getElementById("cooldowns").innerText.includes("Unknown")`)
			}
			screens := []string{"budgets", "spending", "requests", "system"}
			if c.requests > 0 {
				waited := value[string](page, `fetch("/api/v1/requests").then(r => r.json()).then(list => list.find(r => r.result === "waited").id)`)
				screens = append(screens, "spending?by=operation&client=builds", "requests?client=builds&result=miss", "requests/"+waited)
			}
			if c.stopped {
				page.expect("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE")
				b.stop()
				page.eventually("the page shows the lost connection", `document.getElementById("banner").innerText.includes("The gateway does not respond")`)
			}
			for _, address := range screens {
				if c.stopped {
					value[string](page, fmt.Sprintf("location.hash = %q", address))
				} else {
					visit(page, address)
				}
				checkScreen(page, c.name, address, true)
			}
			if c.accounts > 0 && !c.stopped {
				visit(page, "system")
				page.eventually("the page shows the certificate that ends first", `document.getElementById("upstream-facts").textContent.includes("a-long-name-of-an-organization")`)
				visit(page, "spending")
				page.eventually("the page shows what a client has borrowed", `/agent\s+core\s+1,666\s+0\s+4,500\s+2,950\s+1,284\s+0\s+42\s+0/.test(document.querySelector("#client-tables tbody tr").innerText)`)
			}
		})
	}
}

// TestDashboardOfTheDemo checks the layout of the demo with its sample traffic.
func TestDashboardOfTheDemo(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	page := openPage(t, d.admin+"/#requests")
	page.eventually("the sample traffic is shown", live+` && document.querySelectorAll("#request-rows tr").length > 15`)
	waited := value[string](page, `fetch("/api/v1/requests").then(r => r.json()).then(list => list.toSorted((a, b) => (b.stages?.length ?? 0) - (a.stages?.length ?? 0))[0].id)`)
	page.loadAxe()
	for _, address := range []string{"budgets", "spending", "requests", "requests/" + waited, "system"} {
		visit(page, address)
		checkScreen(page, "demo", address, true)
	}
}

// screenshotName returns the name of the screenshot of an address.
func screenshotName(data, address string) string {
	if strings.HasPrefix(address, "requests/") {
		return data + "-request"
	}
	return data + "-" + strings.NewReplacer("?", "-", "&", "-", "=", "-").Replace(address)
}

// widths are the widths of the layout test in pixels, from a small telephone to a wide monitor.
var widths = []int64{320, 360, 390, 600, 768, 1024, 1280, 1440, 1920}

// checkScreen checks the layout and the contrast of a screen in all widths in the light theme, and in the usual width in the
// dark theme: the themes differ in colors only. If audit is set, it writes screenshots of five widths in both themes, and
// checks the accessibility of the narrow and the usual one.
func checkScreen(page *browser, data, address string, audit bool) {
	page.Helper()
	name := screenshotName(data, address)
	for _, width := range widths {
		shown := audit && slices.Contains([]int64{360, 768, 1024, 1440, 1920}, width)
		for _, dark := range []bool{false, true} {
			if dark && !shown && width != 1440 {
				continue
			}
			page.setWindow(width, 900, dark)
			if !dark || width == 1440 {
				checkLayout(page, fmt.Sprintf("%s at %d", name, width))
			}
			if shown && (width == 1440 || width == 360 && !dark) {
				for _, problem := range value[[]string](page, axeProblems) {
					page.Errorf("%s at %d, %s: %s", name, width, theme(dark), problem)
				}
			}
			if shown {
				page.screenshot(fmt.Sprintf("%s-%d-%s", name, width, theme(dark)), true)
			}
		}
	}
}

// loadAxe loads axe-core into the page.
func (b *browser) loadAxe() {
	b.Helper()
	axe, err := os.ReadFile("../bin/e2e/node_modules/axe-core/axe.min.js")
	stopIf(b, err != nil, "%v; run make e2e", err)
	value[bool](b, string(axe)+"; true")
}

// axeProblems is a script that returns the rules of axe-core that the page violates, with the first element of each.
const axeProblems = `axe.run().then(r => r.violations.map(v => v.id + ": " + v.help + ": " + v.nodes[0].html.slice(0, 200)))`

func theme(dark bool) string {
	if dark {
		return "dark"
	}
	return "light"
}

// layoutProblems is a script that returns layout problems:
//
//   - an element outside the page
//   - text outside its box
//   - text that is cut, except a path, which the page of its request shows in full
//   - a word that continues in the next line, except hashes and the like
//   - text of low contrast (WCAG 2.2, 1.4.3)
//   - a table or field without a name
//   - an empty panel
//   - a scale without its end, or a word without its value
//   - an answer that the list beside it contradicts
//   - green on a page without a gateway
const layoutProblems = `(() => {
		const problems = [];
		const width = document.documentElement.clientWidth;
		for (const n of document.querySelectorAll(".nav")) if (n.scrollWidth > n.clientWidth + 1) problems.push("the navigation is cut");
		if (document.documentElement.scrollWidth > width) problems.push("the page scrolls sideways: " + document.documentElement.scrollWidth);
		const visible = (e) => e.checkVisibility({visibilityProperty: true}) && !e.closest(".visually-hidden, thead, svg, dialog:not([open])");
		for (const e of document.querySelectorAll("body *")) {
			if (!visible(e)) continue;
			const box = e.getBoundingClientRect();
			if (!e.closest(".nav, .uplot, .skip") && box.width && (box.right > width + 1 || box.left < -1)) problems.push("outside the page: " + e.tagName + "." + e.className);
			const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
			const cut = getComputedStyle(e).textOverflow === "ellipsis" || e.closest("select, option");
			if (own && !cut && e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== "inline") problems.push("text overflows: " + e.tagName + "." + e.className + " " + e.textContent.slice(0, 40));
		}
		const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
		const paint = (color) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
		const light = (c) => { const [r, g, b] = c.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
		for (const e of document.querySelectorAll("body *")) {
			if (!visible(e) || e.disabled || ![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
			let faint = false, ground = null;
			for (let p = e; p && !ground; p = p.parentElement) {
				faint ||= getComputedStyle(p).opacity < 1;
				const c = paint(getComputedStyle(p).backgroundColor);
				if (c[3] > 200) ground = c;
			}
			if (faint || !ground) continue;
			const [a, b] = [light(paint(getComputedStyle(e).color)), light(ground)].sort((x, y) => y - x);
			if ((a + 0.05) / (b + 0.05) < 4.5) problems.push("low contrast: " + ((a + 0.05) / (b + 0.05)).toFixed(2) + " " + e.tagName + "." + e.className + " " + e.textContent.slice(0, 30));
		}
		for (const f of document.querySelectorAll("input, select, button, nav, dialog, [role=meter], [role=region], svg[role=img]")) {
			if (!(f.labels?.length || f.getAttribute("aria-label") || f.getAttribute("aria-labelledby") || f.innerText?.trim())) problems.push("no accessible name: " + f.outerHTML.slice(0, 80));
		}
		if (document.documentElement.dataset.lost === "true") for (const e of document.querySelectorAll("body *")) {
			if (!visible(e) || e.closest("[data-lost] :is(.badge, .tiles, .panel, #alerts)") && getComputedStyle(e.closest(".badge, .tiles, .panel, #alerts")).filter === "grayscale(1)") continue;
			for (const [r, g, b, a] of [getComputedStyle(e).color, getComputedStyle(e).backgroundColor].map(paint)) if (a > 50 && g > r + 30 && g > b + 15) problems.push("green without a gateway: " + e.tagName + "." + e.className + " " + e.textContent.slice(0, 40));
		}
		const answer = [...document.querySelectorAll(".answer")].find(visible)?.innerText ?? "";
		if (answer.includes("every budget lasts") && [...document.querySelectorAll(".forecast")].some((f) => visible(f) && f.innerText.includes("▲"))) problems.push("the answer contradicts the list: " + answer);
		if (/ and \S+ and /.test(answer)) problems.push("names without commas: " + answer);
		for (const e of document.querySelectorAll("td")) if (visible(e) && e.innerText.trim() === "–" && getComputedStyle(e, "::before").content.includes("resets in")) problems.push("a reset without a time");
		for (const e of document.querySelectorAll(".fall-scale")) if (visible(e) && !visible(e.querySelector(".fall-time"))) problems.push("a scale without its end");
		for (const t of document.querySelectorAll("table")) if (!t.querySelector("thead th[scope=col]")) problems.push("table without headers: " + t.className);
		for (const p of document.querySelectorAll(".panel")) if (visible(p) && p.innerText.trim().split("\n").length < 2) problems.push("empty panel: " + p.innerText);
		const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), range = document.createRange();
		for (let t = texts.nextNode(); t; t = texts.nextNode()) {
			if (!t.data.trim() || !t.parentElement.checkVisibility({visibilityProperty: true}) || t.parentElement.closest(".visually-hidden, svg, select, .path, dialog:not([open])") || t.parentElement.closest("thead")?.offsetWidth === 1) continue;
			range.selectNodeContents(t);
			const lines = [...range.getClientRects()], clips = (overflow) => overflow === "hidden" || overflow === "clip";
			for (let p = t.parentElement; p; p = p.parentElement) {
				const {overflowX, overflowY} = getComputedStyle(p), box = p.getBoundingClientRect();
				if (overflowX === "auto" || overflowY === "auto") break; // it scrolls
				if (clips(overflowX) && lines.some((l) => l.right > box.right + 1 || l.left < box.left - 1) || clips(overflowY) && lines.some((l) => l.bottom > box.bottom + 1 || l.top < box.top - 1)) {
					problems.push("cut text: " + t.data);
					break;
				}
			}
			if (!visible(t.parentElement)) continue;
			for (const word of t.data.matchAll(/[\p{L}\p{N}]+/gu)) {
				if (word[0].length > 24) continue;
				range.setStart(t, word.index);
				range.setEnd(t, word.index + word[0].length);
				if (new Set([...range.getClientRects()].map((r) => Math.round(r.top))).size > 1) problems.push("broken word: " + word[0] + " in " + t.data.slice(0, 40));
			}
		}
		return problems;
	})()`

// checkLayout reports each layout problem of the page.
func checkLayout(page *browser, where string) {
	page.Helper()
	page.eventually("the page is drawn, "+where, `new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))`)
	for _, problem := range value[[]string](page, layoutProblems) {
		page.Errorf("%s: %s", where, problem)
	}
}
