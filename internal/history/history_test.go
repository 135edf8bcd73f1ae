package history

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/proxy"
)

// world is a history that is run over sources which a test sets.
type world struct {
	*History
	t        *testing.T
	mu       sync.Mutex
	accounts []limits.Account
	err      error
	queue    map[string]int
	listings int
	takes    time.Duration // a listing
}

func newWorld(t *testing.T) *world {
	w := &world{t: t}
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
		Waiting: func() map[string]int {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.queue
		},
		State: func() any { return map[string]string{"version": "test"} },
	})
	return w
}

// run lets it look at its sources until the test ends.
func (w *world) run() {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx)
	}()
	w.t.Cleanup(func() {
		cancel()
		<-done
	})
}

func (w *world) set(err error, accounts ...limits.Account) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.accounts, w.err = accounts, err
}

func account(name string, left, of int, reset time.Duration) limits.Account {
	return limits.Account{Name: name, Kind: "user", InUse: 2, Concurrent: 100, Budgets: []limits.Budget{
		{Resource: "core", Limit: of, Used: of - left, Remaining: left, Reset: time.Now().Add(reset)},
	}}
}

func watch(t *testing.T, h *History, want Wanted) *Watcher {
	t.Helper()
	w, err := h.Watch(want)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// told are the events that a watcher has been told of so far.
func told(w *Watcher) (events []Event) {
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

func hit(i int) *proxy.Record {
	return &proxy.Record{ID: fmt.Sprint(i), Status: 200, Operation: "users/get", Client: "builds", Outcome: "hit", Saved: true, Cache: "weir; hit; ttl=1", Elapsed: time.Millisecond}
}

func miss() *proxy.Record {
	return &proxy.Record{Status: 200, Operation: "users/get", Client: "builds", Outcome: "miss", Spent: 1, Cache: "weir; fwd=uri-miss; fwd-status=200", Attempts: 2, Elapsed: 40 * time.Millisecond}
}

func TestSeriesCountWhatRequestsCameTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.Observe(hit(1))
		w.Observe(hit(2))
		w.Observe(miss())
		background := miss()
		background.Background = true
		w.Observe(background)
		time.Sleep(step)
		w.Observe(&proxy.Record{Status: 429, Outcome: "refused", Cache: "weir; detail=primary"})
		s := w.Series()
		last := func(name string) []uint32 { return s.Values[name][len(s.Values[name])-2:] }
		for name, want := range map[string][]uint32{"hit": {2, 0}, "miss": {1, 0}, "refused": {0, 1}, "saved": {2, 0}, "upstream": {4, 0}, "error": {0, 0}, "waiting": {0, 0}} {
			if diff := cmp.Diff(want, last(name)); diff != "" || len(s.Values[name]) != 360 {
				t.Errorf("%s: %s", name, diff)
			}
		}
		if end := s.Start + int64(len(s.Values["hit"]))*int64(s.Step); end-time.Now().Unix() < 0 || end-time.Now().Unix() > int64(s.Step) {
			t.Errorf("starts at %d, now it is %d", s.Start, time.Now().Unix())
		}
		time.Sleep(time.Hour)
		for name, values := range w.Series().Values {
			for _, v := range values {
				if v != 0 {
					t.Fatalf("%s is older than an hour", name)
				}
			}
		}
	})
}

func TestCostsByOperationAndClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for range 99 {
			w.Observe(hit(1))
		}
		w.Observe(miss())
		w.Observe(&proxy.Record{Status: 200, Operation: "unknown", Route: "/repos/{owner}/{repo}/pulls", Account: "0a1b", Outcome: "validated", Cache: "weir; fwd=stale; fwd-status=304", Attempts: 1, Elapsed: time.Second})
		want := Costs{
			Operations: []Operation{
				{"users/get", 100, 99, 0, 2, 805808, 951 * time.Microsecond, 40 * time.Millisecond},
				{"/repos/{owner}/{repo}/pulls", 1, 0, 1, 1, time.Second, time.Second, time.Second},
			},
			Spenders: []Spender{{"builds", "users/get", 100, 1, 2, 99}, {"0a1b", "/repos/{owner}/{repo}/pulls", 1, 0, 1, 0}},
		}
		got := w.Costs()
		for i := range got.Operations { // within a bucket it is an estimate
			if m := got.Operations[i].Median; m > got.Operations[i].P95 {
				t.Errorf("median %v", m)
			}
			got.Operations[i].Median, got.Operations[i].P95 = want.Operations[i].Median, want.Operations[i].P95
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		time.Sleep(time.Hour + time.Minute)
		if got := w.Costs(); len(got.Operations)+len(got.Spenders) > 0 {
			t.Errorf("after an hour: %v", got)
		}
	})
}

func TestQuantilesLieWithinTheirBucket(t *testing.T) {
	var all times
	for i := range 1000 {
		all.observe(time.Duration(i+1) * time.Millisecond)
	}
	for share, exact := range map[float64]time.Duration{0.5: 500 * time.Millisecond, 0.95: 950 * time.Millisecond, 1: time.Second} {
		if got := all.quantile(share); got < exact*8/10 || got > exact*12/10 {
			t.Errorf("%v: %v, exactly %v", share, got, exact)
		}
	}
	if got := new(times).quantile(0.5); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

// TestNamesAreBounded: a hundred thousand paths, tokens, clients and methods take no more
// room than a few hundred, and do not displace those that count.
func TestNamesAreBounded(t *testing.T) {
	w := newWorld(t)
	for range 1000 {
		w.Observe(miss())
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	flood := func(from, to int) {
		for i := from; i < to; i++ {
			w.Observe(&proxy.Record{
				Status: 200, Method: fmt.Sprintf("M%d", i), Operation: "unknown", Route: fmt.Sprintf("/%d/%s", i, strings.Repeat("x", 500)),
				Account: fmt.Sprintf("token-%d", i), Client: fmt.Sprintf("client-%d", i), Cache: "weir; fwd=uri-miss", Attempts: 1,
			})
		}
	}
	flood(0, 1000)
	before := heap()
	flood(1000, 100000)
	if after := heap(); after > before+1<<20 {
		t.Errorf("%d bytes became %d", before, after)
	}
	costs := w.Costs()
	if len(costs.Operations) != maxOperations+1 || len(costs.Spenders) != maxSpenders+1 {
		t.Errorf("%d operations, %d spenders", len(costs.Operations), len(costs.Spenders))
	}
	var requests uint32
	kept := false
	for _, s := range costs.Spenders {
		requests += s.Requests
		kept = kept || s == Spender{"builds", "users/get", 1000, 1000, 2000, 0}
		if len(s.Operation) > maxNameLength {
			t.Fatalf("%d bytes of name", len(s.Operation))
		}
	}
	if requests != 101000 || !kept {
		t.Errorf("%d requests, the one that counts: %v", requests, kept)
	}
}

// TestNewcomersTakePlacesInTurn: into a full table one comes at a time, however many ask, and
// nothing that was counted is lost; in place of one that has counted more only when it was asked
// as often.
func TestNewcomersTakePlacesInTurn(t *testing.T) {
	table := newTable[int](10, func(into *int, more int) { *into += more })
	now := time.Now()
	names := 0
	come := func(n int) (taken int) {
		for range n {
			names++
			table.count(names, now, 1)
			if table.rows[names] != nil {
				taken++
			}
		}
		return taken
	}
	if got := come(10); got != 10 {
		t.Fatalf("%d of the first ten have a place", got)
	}
	for range 3 {
		if got := come(1000); got != 1 || len(table.rows) != 10 {
			t.Errorf("%d of a thousand took one of %d places", got, len(table.rows))
		}
		now = now.Add(askEvery)
	}
	for name := range table.rows {
		table.count(name, now, 1)
		table.count(name, now, 1)
		names += 2
	}
	for i, want := range []int{0, 0, 1, 1} {
		now = now.Add(askEvery)
		if got := come(1); got != want {
			t.Errorf("%d of those who ask for the %d. time took the place of one that counted thrice, want %d", got, i+1, want)
		}
	}
	all := 0
	table.sums(division(now, period), func(_ *int, n int) { all += n })
	if all != names {
		t.Errorf("%d of %d are counted", all, names)
	}
}

// TestStrangersDisplaceNobodyWhoCounts: 400 who come once a second keep their rows in a flood of
// names that come once.
func TestStrangersDisplaceNobodyWhoCounts(t *testing.T) {
	for _, strangers := range []int{1, 100, 1000} { // each second
		table := newTable[string](maxSpenders, addSpent)
		now, stranger := time.Unix(1_000_000_000, 0), 0
		for second := range 600 {
			if second%60 == 59 {
				table.age()
			}
			for i := range 400 {
				table.count(fmt.Sprint("regular", (i*7919+second*31)%400), now, spent{requests: 1})
				for range strangers*(i+1)/400 - strangers*i/400 {
					stranger++
					table.count(fmt.Sprint("stranger", stranger), now, spent{requests: 1})
				}
				now = now.Add(time.Second / 400)
			}
		}
		there := 0
		for i := range 400 {
			if table.rows[fmt.Sprint("regular", i)] != nil {
				there++
			}
		}
		if there < 390 {
			t.Errorf("beside %d strangers a second %d of 400 have a row", strangers, there)
		}
	}
}

func TestAccountsAreBounded(t *testing.T) {
	tr := tracks{of: map[budgetName]*track{}}
	accounts := make([]limits.Account, 1000)
	for i := range accounts {
		accounts[i] = limits.Account{Name: fmt.Sprint(i)}
		for j := range 10 {
			accounts[i].Budgets = append(accounts[i].Budgets, limits.Budget{Resource: fmt.Sprint(j), Limit: 10000, Used: i*10 + j, Remaining: 10000 - i*10 - j})
		}
	}
	for range 3 {
		tr.note(accounts, time.Now())
	}
	if len(tr.of) != maxTracks || tr.of[budgetName{"999", "9"}] == nil || tr.of[budgetName{"0", "1"}] != nil {
		t.Errorf("%d tracks", len(tr.of))
	}
	for i := range accounts {
		accounts[i].Name = "other" + accounts[i].Name
	}
	tr.note(accounts, time.Now())
	if len(tr.of) != maxTracks {
		t.Errorf("%d tracks of others", len(tr.of))
	}
	tr.note(nil, time.Now().Add(2*time.Hour))
	if len(tr.of) != 0 {
		t.Errorf("%d tracks of nobody", len(tr.of))
	}
}

func TestForecast(t *testing.T) {
	for _, c := range []struct {
		name  string
		left  []int // each 10 s
		reset time.Duration
		rate  float64
		ends  time.Duration // from the last; 0 is never
		early bool
	}{
		{"spent evenly, ends before the reset", []int{1000, 900, 800, 700}, time.Hour, 10, 70 * time.Second, true},
		{"spent evenly, lasts", []int{1000, 900, 800, 700}, time.Minute, 10, 70 * time.Second, false},
		{"not spent", []int{700, 700, 700}, time.Hour, 0, 0, false},
		{"comes back", []int{100, 50, 700}, time.Hour, 0, 0, false},
		{"spent since it came back", []int{100, 50, 900, 800}, time.Hour, 10, 80 * time.Second, true},
		{"one sample", []int{700}, time.Hour, 0, 0, false},
		{"spent", []int{10, 0}, time.Hour, 1, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr := tracks{of: map[budgetName]*track{}}
				var a limits.Account
				for i, left := range c.left {
					if i > 0 {
						time.Sleep(step)
					}
					a = account("a", left, 5000, c.reset)
					tr.note([]limits.Account{a}, time.Now())
				}
				d := tr.describe(a, 3, time.Now())
				f, ok := d.Forecasts["core"]
				if ok != (c.rate > 0) || f.Rate != c.rate || f.Early != c.early || ok && f.Ends.Sub(time.Now().Truncate(time.Second)) != c.ends {
					t.Errorf("%v %+v", ok, f)
				}
				if d.Waiting != 3 {
					t.Errorf("%d wait", d.Waiting)
				}
				line := tr.lines("a", time.Now())["core"]
				if last := line[len(line)-1]; len(line) != 120 || last == nil || *last != c.left[len(c.left)-1] {
					t.Errorf("%d points", len(line))
				}
			})
		})
	}
}

// BenchmarkObserve is what each request pays: a hit, and one of a name that nobody knows.
func BenchmarkObserve(b *testing.B) {
	for name, next := range map[string]func(i int) *proxy.Record{
		"hit": func(int) *proxy.Record { return hit(0) },
		"new name": func(i int) *proxy.Record {
			return &proxy.Record{Client: fmt.Sprint(i), Route: "/" + fmt.Sprint(i), Cache: "weir; fwd=uri-miss"}
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

// TestAnHourIsAnHour: what was counted a little less than an hour ago is told.
func TestAnHourIsAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.run()
		for range 10 {
			w.Observe(&proxy.Record{Operation: "repos/get", Client: "ci", Status: 200, Outcome: "miss", Attempts: 1, Spent: 1})
		}
		time.Sleep(58 * time.Minute)
		if costs := w.Costs(); len(costs.Spenders) != 1 || costs.Spenders[0].Spent != 10 {
			t.Errorf("%+v", costs.Spenders)
		}
	})
}

// TestForecastsOverGaps: a listing that takes long leaves steps without a sample.
func TestForecastsOverGaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracked := tracks{of: map[budgetName]*track{}}
		b := limits.Budget{Resource: "core", Limit: 5000, Used: 1, Remaining: 5000, Reset: time.Now().Add(time.Hour)}
		for range 6 {
			tracked.note([]limits.Account{{Name: "a", Budgets: []limits.Budget{b}}}, time.Now())
			time.Sleep(25 * time.Second)
			b.Remaining -= 100
		}
		f, ok := tracked.forecast("a", b, time.Now())
		if !ok || f.Rate < 3.9 || f.Rate > 4.1 || !f.Early {
			t.Errorf("%+v, %v", f, ok)
		}
		b.Remaining = 1 << 60
		if f, ok := tracked.forecast("a", b, time.Now()); ok && f.Ends.Before(time.Now()) {
			t.Errorf("%+v", f)
		}
	})
}
