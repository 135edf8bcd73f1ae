package history

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/record"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }
func stopIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.StopIf(t, c, f, a...) }

// must returns a value that the setup of a test needs.
func must[T any](value T, err error) T { return testservers.Must(value, err) }

// equal compares a value with the expected value.
func equal[T any](t testing.TB, name string, got, want T) {
	t.Helper()
	testservers.Equal(t, name, got, want)
}

// fixture is a history over sources that a test sets.
type fixture struct {
	*History
	*testing.T
	mu       sync.Mutex
	accounts []limits.Account
	err      error
	queue    map[limits.ClientResource]int
	listings int
	takes    time.Duration // duration of a listing
}

func newFixture(t *testing.T) *fixture {
	w := &fixture{T: t}
	w.History = New(Sources{
		Accounts: func(context.Context, int) ([]limits.Account, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.listings++
			accounts, err := w.accounts, w.err
			w.mu.Unlock()
			time.Sleep(w.takes)
			w.mu.Lock()
			return accounts, err
		},
		Waiting: func() map[limits.ClientResource]int {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.queue
		},
		State: func() any { return map[string]string{"version": "test"} },
		Label: func(account string) string {
			if account == "0a1b" {
				return "account 0a"
			}
			return account
		},
	})
	return w
}

// inBubble runs a test with a fixture in virtual time.
func inBubble(t *testing.T, test func(w *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(newFixture(t)) })
}

// run runs the history until the test ends.
func (w *fixture) run() {
	ctx, cancel := context.WithCancel(w.Context())
	var running sync.WaitGroup
	running.Go(func() { w.History.Run(ctx) })
	w.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

// pass lets virtual time pass, and waits until the history has done its work.
func (w *fixture) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// expectListings checks the number of listings since the start.
func (w *fixture) expectListings(least, most int) {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	failIf(w, w.listings < least || w.listings > most, "%d listings, want %d to %d", w.listings, least, most)
}

func (w *fixture) set(err error, accounts ...limits.Account) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.accounts, w.err = accounts, err
}

func account(name string, remaining, limit int, reset time.Duration) limits.Account {
	return limits.Account{Name: name, Kind: "user", InUse: 2, Concurrent: 100, Budgets: []limits.Budget{
		{Resource: "core", Limit: limit, Used: limit - remaining, Remaining: remaining, Reset: time.Now().Add(reset)},
	}}
}

func (w *fixture) watch(options WatchOptions) *Watcher {
	watcher := must(w.Watch(options))
	w.Cleanup(watcher.Close)
	return watcher
}

// expect returns the events in the buffer of a watcher, which must have these names.
func (w *fixture) expect(what string, watcher *Watcher, names string) []Event {
	w.Helper()
	events := received(watcher)
	got := namesOf(events)
	stopIf(w, got != names, "%s: got the events %s, want %s", what, got, names)
	return events
}

// received returns the events in the buffer of a watcher.
func received(w *Watcher) (events []Event) {
	for {
		select {
		case e, ok := <-w.Events():
			if !ok {
				return append(events, Event{Name: "end"})
			}
			events = append(events, e)
		default:
			return events
		}
	}
}

func namesOf(events []Event) string {
	names := make([]string, len(events))
	for i, e := range events {
		names[i] = e.Name
	}
	return strings.Join(names, " ")
}

func hit(i int) *record.Record {
	return &record.Record{ID: fmt.Sprint(i), Status: 200, Request: record.Request{Operation: "users/get", Client: "builds"}, Outcome: "hit", Saved: true, Cache: record.CacheStatus{Hit: true, TTL: 1, HasTTL: true}, Elapsed: time.Millisecond}
}

func miss() *record.Record {
	return &record.Record{Status: 200, Request: record.Request{Operation: "users/get", Client: "builds"}, Outcome: "miss", Spent: 1, Cache: record.CacheStatus{Forward: record.ForwardMiss, ForwardStatus: 200}, Sent: 2, Elapsed: 40 * time.Millisecond}
}

func TestSeriesCountResults(t *testing.T) {
	inBubble(t, func(w *fixture) {
		w.Observe(hit(1))
		w.Observe(hit(2))
		w.Observe(miss())
		background := miss()
		background.Background = true
		w.Observe(background)
		time.Sleep(stepLength)
		w.Observe(&record.Record{Status: 429, Outcome: "refused", Cache: record.CacheStatus{Detail: "primary"}})
		w.Observe(&record.Record{Status: 403, Outcome: "miss", Cache: record.CacheStatus{Forward: record.ForwardMiss, ForwardStatus: 403}, Report: record.Report{Limited: policy.LimitSecondary}})
		s := w.Series()
		last := func(name string) []uint32 { return s.Values[name][358:] }
		equal(w, "points of a series", len(s.Values["hit"]), 360)
		testservers.EqualEach(w, last, map[string][]uint32{
			"hit": {2, 0}, "miss": {1, 0}, "refused": {0, 1}, "limited": {0, 1}, "saved": {2, 0}, "spent": {2, 0}, "upstream": {4, 0}, "error": {0, 0},
			"waiting": {0, 0},
		})
		end := s.Start + int64(len(s.Values["hit"]))*int64(s.Step)
		failIf(w, end-time.Now().Unix() < 0 || end-time.Now().Unix() > int64(s.Step), "the series starts at %d, now is %d", s.Start, time.Now().Unix())
		time.Sleep(time.Hour)
		for name, values := range w.Series().Values {
			failIf(w, slices.Max(values) != 0, "%s holds values that are older than an hour", name)
		}
	})
}

func TestCostsByOperationAndClient(t *testing.T) {
	inBubble(t, func(w *fixture) {
		w.run()
		for range 98 {
			w.Observe(hit(1))
		}
		release, nightly := hit(1), miss()
		release.Tag, nightly.Tag = "release", "nightly"
		w.Observe(release)
		w.Observe(nightly)
		w.Observe(&record.Record{Status: 200, Request: record.Request{Operation: "unknown", Route: "/repos/{owner}/{repo}/pulls", Account: "0a1b", Version: "2022-11-28"}, Outcome: "validated", Cache: record.CacheStatus{Forward: record.ForwardStale, ForwardStatus: 304}, Sent: 1, Elapsed: time.Second})
		want := Costs{
			Operations: []Operation{
				{"users/get", 100, 99, 0, 2, 805808, 951 * time.Microsecond, 40 * time.Millisecond},
				{"/repos/{owner}/{repo}/pulls", 1, 0, 1, 1, time.Second, time.Second, time.Second},
			},
			Tags: []Spender{
				{Client: "builds", Tag: "nightly", ClientLabel: "builds", Use: Use{1, 1, 2, 0}},
				{Client: "builds", Tag: "release", ClientLabel: "builds", Use: Use{1, 0, 0, 1}},
			},
			Spenders: []Spender{
				{Client: "builds", Operation: "users/get", ClientLabel: "builds", Use: Use{100, 1, 2, 99}},
				{Client: "0a1b", Operation: "/repos/{owner}/{repo}/pulls", ClientLabel: "account 0a", Use: Use{1, 0, 1, 0}},
			},
			Accounts: []Spender{
				{Client: "0a1b", Account: "0a1b", ClientLabel: "account 0a", AccountLabel: "account 0a", Use: Use{1, 0, 1, 0}},
			},
			Versions: []Spender{
				{Client: "builds", Version: "none", ClientLabel: "builds", Use: Use{100, 1, 2, 99}},
				{Client: "0a1b", Version: "2022-11-28", ClientLabel: "account 0a", Use: Use{1, 0, 1, 0}},
			},
		}
		got := w.Costs()
		for i := range got.Operations { // quantiles are estimates
			m := got.Operations[i].Median
			failIf(w, m > got.Operations[i].P95, "median %v", m)
			got.Operations[i].Median, got.Operations[i].P95 = want.Operations[i].Median, want.Operations[i].P95
		}
		equal(w, "costs", got, want)
		time.Sleep(58 * time.Minute)
		equal(w, "spenders after 58 minutes", w.Costs().Spenders, want.Spenders)
		time.Sleep(3 * time.Minute)
		if got := w.Costs(); len(got.Operations)+len(got.Spenders)+len(got.Tags) > 0 {
			w.Errorf("after an hour: %v", got)
		}
	})
}

// The last hour is compared with the hour before. Older requests are dropped.
func TestCostsIncludeTheHourBefore(t *testing.T) {
	inBubble(t, func(w *fixture) {
		w.Observe(miss())
		time.Sleep(time.Hour + time.Minute)
		w.Observe(miss())
		w.Observe(hit(1))
		equal(w, "spender", w.Costs().Spenders[0], Spender{
			Client: "builds", Operation: "users/get", ClientLabel: "builds", Use: Use{2, 1, 2, 1}, Before: Use{1, 1, 2, 0},
		})
		before := func() string {
			got := w.Series().Before
			return fmt.Sprint(got["miss"], got["hit"], got["upstream"], got["spent"], got["saved"])
		}
		equal(w, "the hour before", before(), "1 0 2 1 0")
		got := w.Costs().Operations[0]
		failIf(w, got.Requests != 2 || got.Max != 40*time.Millisecond, "the operation of the last hour: %+v", got)
		time.Sleep(time.Hour)
		w.Observe(hit(2))
		equal(w, "spender, an hour later", w.Costs().Spenders[0], Spender{
			Client: "builds", Operation: "users/get", ClientLabel: "builds", Use: Use{1, 0, 0, 1}, Before: Use{2, 1, 2, 1},
		})
		equal(w, "the hour before, an hour later", before(), "1 1 2 1 1")
	})
}

func TestStepsOfTheClockBackKeepTheAgesOfCounts(t *testing.T) {
	for _, back := range []time.Duration{0, 2 * time.Minute, 50 * time.Minute, 3 * time.Hour, 24 * time.Hour} {
		c, now := newCounts[string](4), time.Now()
		c.at("a", now).requests += 1000
		now = now.Add(-back)
		c.at("a", now)
		for minute := 1; minute <= 130; minute++ {
			now = now.Add(time.Minute)
			c.at("a", now).requests++
			want := hours{last: count{requests: uint32(min(minute, periodCount))}, before: count{requests: uint32(min(max(0, minute-periodCount), periodCount))}}
			switch {
			case minute < periodCount:
				want.last.requests += 1000
			case minute < 2*periodCount:
				want.before.requests += 1000
			}
			got := c.sum("a", interval(now, periodLength))
			stopIf(t, got.last.requests != want.last.requests || got.before.requests != want.before.requests, "%d minutes after a step back by %v: got %d and %d requests, want %d and %d",
				minute, back, got.last.requests, got.before.requests, want.last.requests, want.before.requests)
		}
	}
}

func TestAccountsHaveLabels(t *testing.T) {
	w := newFixture(t)
	described := w.Describe([]limits.Account{{Name: "0a1b"}, {Name: "octo-bot"}})
	failIf(t, described[0].Label != "account 0a" || described[0].Name != "0a1b" || described[1].Label != "octo-bot", "accounts: %+v", described)
	r := w.Request(&record.Record{Request: record.Request{Account: "0a1b"}})
	failIf(t, r.AccountLabel != "account 0a" || r.Account != "0a1b", "request: %+v", r)
}

func TestQuantilesAreCloseToExactValues(t *testing.T) {
	var all histogram
	for i := range 1000 {
		all.observe(time.Duration(i+1) * time.Millisecond)
	}
	for share, exact := range map[float64]time.Duration{0.5: 500 * time.Millisecond, 0.95: 950 * time.Millisecond, 1: time.Second} {
		got := all.quantile(share)
		failIf(t, got < exact*8/10 || got > exact*12/10, "quantile %v: %v, want about %v", share, got, exact)
	}
	equal(t, "quantile without observations", new(histogram).quantile(0.5), 0)
}

// A flood of 100,000 paths, tokens, clients and methods must not use more memory than a few hundred, or displace frequent
// names.
func TestNamesAreBounded(t *testing.T) {
	w := newFixture(t)
	for range 1000 {
		frequent := miss()
		frequent.Tag = "nightly"
		w.Observe(frequent)
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	flood := func(from, to int) {
		for i := from; i < to; i++ {
			w.Observe(&record.Record{
				Status: 200, Request: record.Request{Method: fmt.Sprintf("M%d", i), Operation: "unknown", Route: fmt.Sprintf("/%d/%s", i, strings.Repeat("x", 500)), Account: fmt.Sprintf("token-%d", i), Client: fmt.Sprintf("client-%d", i), Tag: fmt.Sprintf("run-%d", i)}, Cache: record.CacheStatus{Forward: record.ForwardMiss}, Sent: 1,
			})
		}
	}
	flood(0, 1000)
	before := heap()
	flood(1000, 100000)
	after := heap()
	failIf(t, after > before+1<<20, "the heap grew from %d to %d bytes", before, after)
	costs := w.Costs()
	failIf(t, len(costs.Operations) != maxOperations+1 || len(costs.Spenders) != maxRows+1 || len(costs.Tags) != maxRows+1, "%d operations, %d spenders, %d tags", len(costs.Operations), len(costs.Spenders), len(costs.Tags))
	for name, c := range map[string]struct {
		rows     []Spender
		frequent Spender
	}{
		"tags":     {costs.Tags, Spender{Client: "builds", Tag: "nightly", ClientLabel: "builds", Use: Use{1000, 1000, 2000, 0}}},
		"spenders": {costs.Spenders, Spender{Client: "builds", Operation: "users/get", ClientLabel: "builds", Use: Use{1000, 1000, 2000, 0}}},
	} {
		requests := uint32(0)
		for _, s := range c.rows {
			if requests += s.Requests; len(s.Operation) > maxNameLength {
				t.Fatalf("a name has %d bytes", len(s.Operation))
			}
		}
		failIf(t, requests != 101000 || !slices.Contains(c.rows, c.frequent), "%s: %d requests, want 101000 with those of the frequent name", name, requests)
	}
}

// New names replace a row once per pause. No count is lost.
func TestReplaceIsRateLimitedAndKeepsCounts(t *testing.T) {
	table := newCounts[int](10)
	now := time.Now()
	names := 0
	addNames := func(n int) (rows int) {
		for range n {
			names++
			table.at(names, now).add(count{requests: 1})
			if table.rows[names] != nil {
				rows++
			}
		}
		return rows
	}
	if got := addNames(10); got != 10 {
		t.Fatalf("%d of the first ten names have a row", got)
	}
	for range 3 {
		got := addNames(1000)
		failIf(t, got != 1 || len(table.rows) != 10, "%d of 1,000 names have one of %d rows, want 1", got, len(table.rows))
		now = now.Add(replacePause)
	}
	total := 0
	for _, n := range table.sums(0, interval(now, periodLength)) {
		total += int(n.last.requests)
	}
	equal(t, "sum of the counts", total, names)
}

// Names with one count per second keep their rows in a flood of names that are counted once. Replacements are random, so the test
// takes the mean of a few tables.
func TestFrequentNamesKeepTheirRows(t *testing.T) {
	const tables = 4
	for _, newNames := range []int{1, 100, 1000} { // each second
		rows := 0
		for range tables {
			table := newCounts[string](maxRows)
			now, next := time.Unix(1_000_000_000, 0), 0
			for second := range 150 {
				for i := range 400 {
					table.at(fmt.Sprint("regular", (i*7919+second*31)%400), now).add(count{requests: 1})
					for range newNames*(i+1)/400 - newNames*i/400 {
						next++
						table.at(fmt.Sprint("new", next), now).add(count{requests: 1})
					}
					now = now.Add(time.Second / 400)
				}
			}
			for i := range 400 {
				if table.rows[fmt.Sprint("regular", i)] != nil {
					rows++
				}
			}
		}
		failIf(t, rows < 390*tables, "with %d new names a second, %d of %d frequent names have a row", newNames, rows, 400*tables)
	}
}

func TestBudgetSamplesAreBounded(t *testing.T) {
	samples := budgetSamples{}
	accounts := make([]limits.Account, 1000)
	for i := range accounts {
		accounts[i] = limits.Account{Name: fmt.Sprint(i)}
		for j := range 10 {
			accounts[i].Budgets = append(accounts[i].Budgets, limits.Budget{Resource: fmt.Sprint(j), Limit: 10000, Used: i*10 + j, Remaining: 10000 - i*10 - j})
		}
	}
	for range 3 {
		samples.add(accounts, time.Now())
	}
	failIf(t, len(samples) != maxSeries || samples[budgetName{"0", "1"}] == nil || samples[budgetName{"999", "9"}] != nil, "%d series", len(samples))
	for i := range accounts {
		accounts[i].Name = "other" + accounts[i].Name
	}
	samples.add(accounts, time.Now())
	equal(t, "series after all accounts changed", len(samples), maxSeries)
	samples.add(nil, time.Now().Add(2*time.Hour))
	equal(t, "series after two hours without accounts", len(samples), 0)
}

func TestForecast(t *testing.T) {
	for _, c := range []struct {
		name      string
		remaining []int // one sample per 10 s
		reset     time.Duration
		rate      float64
		ends      time.Duration // after the last sample
		early     bool
	}{
		{"exhausted before the reset", []int{1000, 900, 800, 700}, time.Hour, 10, 70 * time.Second, true},
		{"lasts until the reset", []int{1000, 900, 800, 700}, time.Minute, 10, 70 * time.Second, false},
		{"not spent", []int{700, 700, 700}, time.Hour, 0, 0, false},
		{"reset", []int{100, 50, 700}, time.Hour, 0, 0, false},
		{"spent since the reset", []int{100, 50, 900, 800}, time.Hour, 10, 80 * time.Second, true},
		{"one sample", []int{700}, time.Hour, 0, 0, false},
		{"exhausted", []int{10, 0}, time.Hour, 1, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				samples := budgetSamples{}
				var a limits.Account
				for i, remaining := range c.remaining {
					if i > 0 {
						time.Sleep(stepLength)
					}
					a = account("a", remaining, 5000, c.reset)
					samples.add([]limits.Account{a}, time.Now())
				}
				d := samples.describe(a, 3, time.Now())
				f, ok := d.Forecasts["core"]
				failIf(t, ok != (c.rate > 0) || f.Rate != c.rate || f.Early != c.early || ok && f.Ends.Sub(time.Now().Truncate(time.Second)) != c.ends, "forecast %+v, found: %v", f, ok)
				equal(t, "waiting requests", d.Waiting, 3)
				line := samples.lines("a", time.Now())["core"]
				last := line[len(line)-1]
				failIf(t, len(line) != 120 || last == nil || *last != c.remaining[len(c.remaining)-1], "%d points", len(line))
			})
		})
	}
}

func TestRecentRequestsAreNewestFirst(t *testing.T) {
	h := New(Sources{Label: func(account string) string { return "label of " + account }})
	for n := range recentSize + 5 {
		got := len(h.Recent())
		stopIf(t, got != min(n, recentSize), "got %d requests after %d", got, n)
		h.Observe(&record.Record{ID: fmt.Sprint(n), Request: record.Request{Account: "a"}, Status: 200, Outcome: record.OutcomeHit, Cache: record.CacheStatus{Hit: true}})
	}
	list := h.Recent()
	for i, r := range list {
		want := fmt.Sprint(recentSize + 4 - i)
		stopIf(t, r.ID != want || r.AccountLabel != "label of a" || r.Result != Hit, "request %d: got %+v, want ID %s", i, r, want)
	}
}

// BenchmarkObserve measures the cost for each request, with a known and with a new name.
func BenchmarkObserve(b *testing.B) {
	for name, next := range map[string]func(i int) *record.Record{
		"hit": func(int) *record.Record { return hit(0) },
		"new name": func(i int) *record.Record {
			return &record.Record{Request: record.Request{Client: fmt.Sprint(i), Route: "/" + fmt.Sprint(i)}, Cache: record.CacheStatus{Forward: record.ForwardMiss}}
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			h := New(Sources{})
			for i := 0; b.Loop(); i++ {
				h.Observe(next(i))
			}
		})
	}
}

// A slow listing leaves steps without a sample.
func TestForecastSkipsGaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		samples := budgetSamples{}
		b := limits.Budget{Resource: "core", Limit: 5000, Used: 1, Remaining: 5000, Reset: time.Now().Add(time.Hour)}
		for range 6 {
			samples.add([]limits.Account{{Name: "a", Budgets: []limits.Budget{b}}}, time.Now())
			time.Sleep(25 * time.Second)
			b.Remaining -= 100
		}
		f, ok := samples.forecast("a", b, time.Now())
		failIf(t, !ok || f.Rate < 3.9 || f.Rate > 4.1 || !f.Early, "forecast %+v, found: %v", f, ok)
		b.Remaining = 1 << 60
		if f, ok := samples.forecast("a", b, time.Now()); ok && f.Ends.Before(time.Now()) {
			t.Errorf("forecast in the past: %+v", f)
		}
	})
}

// TestAccountsHaveRequestsOfClients checks the waiting and denied requests of clients. Denied requests expire after an hour.
func TestAccountsHaveRequestsOfClients(t *testing.T) {
	inBubble(t, func(w *fixture) {
		w.queue = map[limits.ClientResource]int{{Account: "a", Resource: "core", Client: "agent"}: 2, {Account: "a", Resource: "search", Client: "agent"}: 3}
		for _, s := range []record.Stage{
			{Name: "queue", Detail: "client", Failed: true}, {Name: "queue", Detail: "points", Failed: true},
			{Name: "queue", Detail: "canceled", Failed: true}, {Name: "queue", Detail: "store", Failed: true}, {Name: "queue", Detail: "points"},
		} {
			w.Observe(&record.Record{Request: record.Request{Account: "a", Client: "agent", Resource: "core"}, Tracing: record.Tracing{Stages: []record.Stage{s}}})
		}
		accounts := []limits.Account{{Name: "a", Budgets: []limits.Budget{
			{Resource: "core"}, {Resource: "client:core:agent", Client: "agent"}, {Resource: "client:core:gh", Client: "gh"},
		}}}
		want := map[string]ClientRequests{"client:core:agent": {Waiting: 2, Denied: 2}}
		if got := w.Describe(accounts)[0]; got.Waiting != 5 || !maps.Equal(got.Clients, want) {
			w.Errorf("got %d waiting and %v, want 5 and %v", got.Waiting, got.Clients, want)
		}
		time.Sleep(time.Hour)
		got := w.Describe(accounts)[0].Clients["client:core:agent"]
		failIf(w, got.Denied != 0, "after an hour: %+v", got)
	})
}

// TestRareRequestsAreKept checks that many hits displace neither a refusal nor an error nor a slow request.
func TestRareRequestsAreKept(t *testing.T) {
	inBubble(t, func(w *fixture) {
		w.Observe(&record.Record{ID: "refused", Status: 429, Outcome: "refused", Cache: record.CacheStatus{Detail: "primary"}, Start: time.Now()})
		w.Observe(&record.Record{ID: "failed", Status: 502, Outcome: "miss", Cache: record.CacheStatus{Forward: record.ForwardMiss}, Start: time.Now()})
		w.Observe(&record.Record{ID: "slow", Status: 200, Outcome: "miss", Cache: record.CacheStatus{Forward: record.ForwardMiss}, Elapsed: time.Minute, Start: time.Now(), Request: record.Request{Path: "/repos/acme/widgets"}})
		for i := range 1000 {
			w.Observe(hit(i))
		}
		list := w.Recent()
		equal(w, "requests", len(list), recentSize+3)
		equal(w, "rare requests", fmt.Sprint(list[recentSize].ID, list[recentSize+1].ID, list[recentSize+2].ID), "slowfailedrefused")
		equal(w, "path", list[recentSize].Path, "/repos/acme/widgets")
	})
}
