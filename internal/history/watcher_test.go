package history

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/proxy"
)

// summary describes an event of accounts: all or the changed accounts with their remaining budgets, the gone accounts, and
// the error of the listing.
func summary(e Event) string {
	a := e.Data.(Accounts)
	var changed []string
	for _, c := range a.Changed {
		changed = append(changed, fmt.Sprint(c.Name, " ", c.Budgets[0].Remaining))
	}
	return fmt.Sprint("all ", a.All, ", changed ", changed, ", gone ", a.Gone, ", error ", a.Error)
}

func TestWatchersReceiveTheStateAndItsChanges(t *testing.T) {
	inBubble(t, func(w *fixture) {
		w.set(nil, account("a", 5000, 5000, time.Hour), account("b", 5000, 5000, time.Hour))
		w.run()
		synctest.Wait()
		watcher := w.watch(WatchOptions{})
		initial := summary(w.expect("initially", watcher, "accounts operations state")[0])
		equal(w, "initial accounts", initial, "all true, changed [a 5000 b 5000], gone [], error ")
		w.pass(time.Second)
		w.expect("without a change", watcher, "state series")
		w.set(nil, account("a", 4999, 5000, time.Hour-time.Second))
		w.pass(time.Second)
		changed := summary(w.expect("after the change", watcher, "accounts state series")[0])
		equal(w, "changed accounts", changed, "all false, changed [a 4999], gone [b], error ")
		w.Observe(hit(7))
		event := w.expect("after a request", watcher, "request")[0]
		equal(w, "ID of the event", event.ID, 1)
		text := must(json.Marshal(event.Data))
		var r Request
		if err := json.Unmarshal(text, &r); err != nil || r.ID != "7" || r.Result != Hit || r.Why == "" {
			w.Errorf("request %s, %v", text, err)
		}
	})
}

func TestListingErrorIsPublishedOnce(t *testing.T) {
	inBubble(t, func(w *fixture) {
		w.set(nil, account("a", 1, 2, time.Hour))
		w.run()
		synctest.Wait()
		watcher := w.watch(WatchOptions{Event: "accounts"})
		received(watcher)
		w.set(errors.New("lost"))
		w.pass(5 * time.Second)
		equal(w, "failed listing", summary(w.expect("failure", watcher, "accounts")[0]), "all false, changed [], gone [], error lost")
		late := w.watch(WatchOptions{Event: "accounts"})
		equal(w, "later watcher", summary(w.expect("later watcher", late, "accounts")[0]), "all true, changed [a 1], gone [], error lost")
		w.set(nil, account("a", 1, 2, time.Hour))
		w.pass(time.Second)
		equal(w, "recovery", w.expect("recovery", watcher, "accounts")[0].Data.(Accounts).Error, "")
	})
}

// refused is a request that the upstream refused with a limit error.
var refused = &proxy.Record{Status: 403, Cache: proxy.CacheStatus{Forward: proxy.ForwardMiss, ForwardStatus: 403}, Attempts: 1}

// block lets the accounts be one that is blocked.
func (w *fixture) block() {
	w.set(nil, limits.Account{Name: "a", BlockedUntil: time.Now().Add(time.Minute)})
}

// expectBlocked checks that a watcher received the account of block once.
func (w *fixture) expectBlocked(what string, watcher *Watcher) {
	w.Helper()
	if w.expect(what, watcher, "accounts")[0].Data.(Accounts).Changed[0].BlockedUntil.IsZero() {
		w.Errorf("%s: the account is not blocked", what)
	}
}

func TestRefusalsTriggerAListing(t *testing.T) {
	inBubble(t, func(w *fixture) {
		w.run()
		watcher := w.watch(WatchOptions{Event: "accounts"})
		received(watcher)
		time.Sleep(1500 * time.Millisecond)
		w.block()
		for range 100 {
			w.Observe(refused)
		}
		synctest.Wait()
		w.expectBlocked("after the refusal", watcher)
		w.expectListings(0, 5)
	})
}

func TestRefusalsAfterAListingTriggerAnother(t *testing.T) {
	for _, takes := range []time.Duration{0, 100 * time.Millisecond} {
		inBubble(t, func(w *fixture) {
			w.takes = takes
			w.run()
			watcher := w.watch(WatchOptions{Event: "accounts"})
			time.Sleep(5 * time.Second)
			w.Observe(refused) // triggers a listing
			time.Sleep(takes + 50*time.Millisecond)
			received(watcher)
			w.block()
			w.Observe(refused)
			w.pass(max(minListPause, (1+soonPauseFactor)*takes))
			w.expectBlocked(fmt.Sprint("listings of ", takes), watcher)
		})
	}
}

func TestListingsAreRareWithoutWatchers(t *testing.T) {
	inBubble(t, func(w *fixture) {
		w.run()
		w.pass(time.Minute + time.Second)
		w.expectListings(6, 8)
		w.mu.Lock()
		w.queue = map[limits.ClientResource]int{{Account: "a"}: 3, {Account: "b"}: 4}
		w.mu.Unlock()
		w.pass(time.Second)
		values := w.Series().Values["waiting"]
		equal(w, "waiting requests", values[len(values)-1], 7)
	})
}

func TestSlowWatcherReceivesTheNumberOfSkippedRequests(t *testing.T) {
	w := newFixture(t)
	slow := w.watch(WatchOptions{Event: "request"})
	for i := range maxBuffered + 50 {
		w.Observe(hit(i))
	}
	if got := received(slow); len(got) != maxBuffered || got[0].ID != 1 {
		t.Fatalf("%d events", len(got))
	}
	w.Observe(hit(0))
	events := w.expect("after the overflow", slow, "skipped request")
	if events[0].Data != (Skipped{50}) || events[1].ID != maxBuffered+51 {
		t.Errorf("events after the overflow: %+v", events)
	}
	w.Observe(hit(0))
	w.expect("after the skipped event", slow, "request")
}

func TestRequestsPerSecondAreBounded(t *testing.T) {
	inBubble(t, func(w *fixture) {
		watcher := w.watch(WatchOptions{Event: "request", MaxPerSecond: 3})
		for range 10 {
			w.Observe(hit(0))
		}
		w.expect("ten requests", watcher, "request request request")
		time.Sleep(time.Second)
		w.Observe(hit(0))
		equal(w, "skipped", w.expect("the next second", watcher, "skipped request")[0].Data, any(Skipped{7}))
	})
}

func TestReconnectedWatcherReceivesTheNumberOfMissedRequests(t *testing.T) {
	for _, c := range []struct {
		name   string
		after  uint64
		events string
	}{
		{"seven missed requests", 2, "skipped request"},
		{"no missed request", 9, "request"},
		{"first watch", 0, "request"},
		{"ID of another replica", 1000, "request"},
	} {
		w := newFixture(t)
		for range 9 {
			w.Observe(hit(0))
		}
		watcher := w.watch(WatchOptions{Event: "request", After: c.after})
		w.Observe(hit(0))
		if first := w.expect(c.name, watcher, c.events)[0]; first.Name == "skipped" {
			equal(t, c.name, first.Data, any(Skipped{7}))
		}
	}
}

func TestWatchersAreBoundedAndEndWithTheHistory(t *testing.T) {
	w := newFixture(t)
	watchers := make([]*Watcher, maxWatchers)
	for i := range watchers {
		watchers[i] = w.watch(WatchOptions{})
	}
	if _, err := w.Watch(WatchOptions{}); !errors.Is(err, ErrTooMany) {
		t.Error(err)
	}
	watchers[0].Close()
	equal(t, "watchers", w.Watchers(), maxWatchers-1)
	another := w.watch(WatchOptions{})
	w.Close()
	w.expect("after Close", another, "accounts operations end")
	if _, err := w.Watch(WatchOptions{}); !errors.Is(err, errClosed) {
		t.Error(err)
	}
	w.Observe(hit(0)) // has no watcher
	w.Close()
}

// use sets the use of the client "builds" in a window of an hour with a limit of 1,000 requests.
func (w *fixture) use(used int, reset time.Time) {
	w.set(nil, limits.Account{Name: "a", Budgets: []limits.Budget{
		{Resource: "core", Limit: 2000, Used: used, Remaining: 2000 - used, Reset: reset, Window: time.Hour},
		{
			Resource: "client:core:builds", Client: "builds", Limit: 1000, Upper: 1000, Used: used, Remaining: 1000 - used, Reset: reset, Window: time.Hour,
		},
	}})
}

// recordSoftLimits records the soft limits that the history reports. The returned function returns those that were recorded
// since its last call. A history without a watcher polls less often, so a test of hours takes less time.
func (w *fixture) recordSoftLimits() (take func() []SoftLimit) {
	var list []SoftLimit
	w.sources.SoftLimit = func(_ context.Context, s SoftLimit) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		list = append(list, s)
		return nil
	}
	return func() []SoftLimit {
		w.mu.Lock()
		defer w.mu.Unlock()
		taken := list
		list = nil
		return taken
	}
}

func thresholds(list []SoftLimit) string {
	var texts []string
	for _, s := range list {
		texts = append(texts, s.Threshold)
	}
	return strings.Join(texts, " ")
}

func TestSoftLimitsAreReportedOncePerWindow(t *testing.T) {
	inBubble(t, func(w *fixture) {
		take := w.recordSoftLimits()
		w.use(0, time.Time{})
		w.run()
		end := time.Now().Add(time.Hour)
		step := func(used int, want string) {
			w.Helper()
			w.use(used, end.Add(time.Duration(used%3)*time.Second)) // the reset changes by the clocks of reports
			watcher := w.watch(WatchOptions{Event: "soft_limit"})
			w.pass(5 * time.Second)
			reported := take()
			w.expect(fmt.Sprint(used, " requests"), watcher, strings.TrimSpace(strings.Repeat("soft_limit ", len(reported))))
			watcher.Close()
			equal(w, fmt.Sprint(used, " requests"), thresholds(reported), want)
		}
		step(900, "") // perhaps requests of the previous window
		w.use(0, end)
		w.pass(50 * time.Minute)
		for _, s := range []struct {
			used int
			want string
		}{{499, ""}, {500, "50"}, {501, ""}, {799, ""}, {1000, "80 100"}, {1000, ""}, {790, ""}, {1001, ""}} {
			step(s.used, s.want)
		}
		w.pass(time.Until(end.Add(3 * time.Second)))
		w.use(0, time.Time{})
		end = end.Add(time.Hour)
		w.pass(time.Minute)
		step(499, "")
		w.use(0, end)
		w.pass(55 * time.Minute)
		step(600, "50")
		w.pass(2 * time.Hour)
		w.use(0, time.Time{})
		w.pass(time.Minute)
		equal(w, "soft limits after their window", len(w.softLimits), 0)
	})
}

func TestForecastIsReportedOncePerWindow(t *testing.T) {
	for requestsPerMinute, want := range map[int]string{10: "", 16: "50", 20: "forecast 50 80", 40: "forecast 50 80 100"} {
		inBubble(t, func(w *fixture) {
			take, start := w.recordSoftLimits(), time.Now()
			var reported []SoftLimit
			w.run()
			for minute := range 45 {
				w.use(min(1000, minute*requestsPerMinute), start.Add(time.Hour))
				w.pass(time.Minute)
				if reported = append(reported, take()...); minute < 5 && len(reported) > 0 {
					w.Errorf("minute %d: %+v", minute, reported)
				}
			}
			ends := start.Add(time.Duration(1000/max(1, requestsPerMinute)) * time.Minute)
			for _, s := range reported {
				if (s.Threshold == "forecast") == s.Ends.IsZero() || !s.Ends.IsZero() && s.Ends.Sub(ends).Abs() > 10*time.Minute {
					w.Errorf("%d requests per minute, threshold %s: ends at %v, want %v", requestsPerMinute, s.Threshold, s.Ends, ends)
				}
			}
			equal(w, fmt.Sprint(requestsPerMinute, " requests per minute"), thresholds(reported), want)
		})
	}
}

func TestSoftLimitIsRepeatedAfterAnError(t *testing.T) {
	inBubble(t, func(w *fixture) {
		var calls []SoftLimit
		w.sources.SoftLimit = func(_ context.Context, s SoftLimit) error {
			if calls = append(calls, s); len(calls) == 1 {
				return errors.New("store lost")
			}
			return nil
		}
		w.run()
		watcher := w.watch(WatchOptions{Event: "soft_limit"})
		reset := time.Now().Add(30 * time.Minute)
		w.use(1000, reset)
		w.pass(time.Minute)
		var published []SoftLimit
		for _, e := range w.expect("after an error", watcher, "soft_limit soft_limit soft_limit") {
			published = append(published, e.Data.(SoftLimit))
		}
		equal(w, "events", thresholds(published), "80 100 50")
		want := SoftLimit{Account: "a", Client: "builds", Resource: "core", Threshold: "50", Used: 1000, Limit: 1000, Reset: reset}
		if len(calls) != 4 || calls[0] != want || calls[3] != want {
			w.Errorf("calls %+v", calls)
		}
	})
}

func TestSoftLimitsAreBounded(t *testing.T) {
	inBubble(t, func(w *fixture) {
		var budgets []limits.Budget
		for i := range maxSoftLimits {
			budgets = append(budgets, limits.Budget{
				Resource: fmt.Sprintf("client:core:%d", i), Client: fmt.Sprint(i), Upper: 1000, Used: 800, Reset: time.Now().Add(time.Minute), Window: time.Hour,
			})
		}
		w.set(nil, limits.Account{Name: "a", Budgets: budgets})
		w.run()
		w.pass(time.Second)
		equal(w, "soft limits", len(w.softLimits), maxSoftLimits)
	})
}
