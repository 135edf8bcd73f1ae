package history

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/proxy/record"
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
		err := json.Unmarshal(text, &r)
		failIf(w, err != nil || r.ID != "7" || r.Result != Hit || r.Why == "", "request %s, %v", text, err)
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
var refused = &record.Record{Status: 403, Cache: record.CacheStatus{Forward: record.ForwardMiss, ForwardStatus: 403}, Sent: 1}

// block lets the accounts be one that is blocked.
func (w *fixture) block() {
	w.set(nil, limits.Account{Name: "a", BlockedUntil: time.Now().Add(time.Minute)})
}

// expectBlocked checks that a watcher received the account of block once.
func (w *fixture) expectBlocked(what string, watcher *Watcher) {
	w.Helper()
	failIf(w, w.expect(what, watcher, "accounts")[0].Data.(Accounts).Changed[0].BlockedUntil.IsZero(), "%s: the account is not blocked", what)
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
	got := received(slow)
	stopIf(t, len(got) != maxBuffered || got[0].ID != 1, "%d events", len(got))
	w.Observe(hit(0))
	events := w.expect("after the overflow", slow, "skipped request")
	failIf(t, events[0].Data != (Skipped{50}) || events[1].ID != maxBuffered+51, "events after the overflow: %+v", events)
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
	_, err := w.Watch(WatchOptions{})
	failIf(t, !errors.Is(err, errClosed), "%v", err)
	w.Observe(hit(0)) // has no watcher
	w.Close()
}
