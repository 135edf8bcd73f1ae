package history

import (
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/proxy"
)

func TestWatchersReceiveTheStateAndItsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		reset := time.Now().Add(time.Hour)
		fixed := func(name string, remaining int) limits.Account {
			a := account(name, remaining, 5000, 0)
			a.Budgets[0].Reset = reset
			return a
		}
		w.set(nil, fixed("a", 5000), fixed("b", 5000))
		w.run()
		synctest.Wait()
		watcher := watch(t, w.History, WatchOptions{})
		first := received(watcher)
		if got := namesOf(first); got != "accounts operations state" {
			t.Fatalf("initial events: %s", got)
		}
		if a := first[0].Data.(Accounts); !a.All || len(a.Changed) != 2 {
			t.Errorf("initial accounts: %+v", a)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		equal(t, "events without a change", namesOf(received(watcher)), "state series")
		w.set(nil, fixed("a", 4999))
		time.Sleep(time.Second)
		synctest.Wait()
		events := received(watcher)
		if got := namesOf(events); got != "accounts state series" {
			t.Fatalf("events after the change: %s", got)
		}
		changed := events[0].Data.(Accounts)
		if changed.All || len(changed.Changed) != 1 || changed.Changed[0].Budgets[0].Remaining != 4999 || cmp.Diff(changed.Gone, []string{"b"}) != "" {
			t.Errorf("changed accounts: %+v", changed)
		}
		w.Observe(hit(7))
		events = received(watcher)
		if got := namesOf(events); got != "request" || events[0].ID != 1 {
			t.Fatalf("events after a request: %s %+v", got, events)
		}
		text := must(json.Marshal(events[0].Data))
		var r Request
		if err := json.Unmarshal(text, &r); err != nil || r.ID != "7" || r.Result != Hit || r.Why == "" {
			t.Errorf("request %s, %v", text, err)
		}
	})
}

func TestListingErrorIsPublishedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		w.set(nil, account("a", 1, 2, time.Hour))
		w.run()
		synctest.Wait()
		watcher := watch(t, w.History, WatchOptions{Event: "accounts"})
		received(watcher)
		w.set(errors.New("lost"))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		events := received(watcher)
		if len(events) != 1 || events[0].Data.(Accounts).Error != "lost" {
			t.Fatalf("events of the failed listing: %+v", events)
		}
		if late := received(watch(t, w.History, WatchOptions{Event: "accounts"})); late[0].Data.(Accounts).Error != "lost" || len(late[0].Data.(Accounts).Changed) != 1 {
			t.Errorf("events of a later watcher: %+v", late)
		}
		w.set(nil, account("a", 1, 2, time.Hour))
		time.Sleep(time.Second)
		synctest.Wait()
		if events = received(watcher); len(events) != 1 || events[0].Data.(Accounts).Error != "" {
			t.Errorf("events after the recovery: %+v", events)
		}
	})
}

func TestRefusalsTriggerAListing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		w.run()
		watcher := watch(t, w.History, WatchOptions{Event: "accounts"})
		received(watcher)
		time.Sleep(1500 * time.Millisecond)
		w.set(nil, limits.Account{Name: "a", BlockedUntil: time.Now().Add(time.Minute)})
		for range 100 {
			w.Observe(&proxy.Record{Status: 403, Cache: "weir; fwd=uri-miss; fwd-status=403", Attempts: 1})
		}
		synctest.Wait()
		if events := received(watcher); len(events) != 1 || events[0].Data.(Accounts).Changed[0].BlockedUntil.IsZero() {
			t.Errorf("events after the refusal: %+v", events)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.listings > 5 {
			t.Errorf("%d listings, want at most 5", w.listings)
		}
	})
}

func TestRefusalsAfterAListingTriggerAnother(t *testing.T) {
	for _, takes := range []time.Duration{0, 100 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			w := newFixture(t)
			w.takes = takes
			w.run()
			watcher := watch(t, w.History, WatchOptions{Event: "accounts"})
			time.Sleep(5 * time.Second)
			refused := &proxy.Record{Status: 403, Cache: "weir; fwd=uri-miss; fwd-status=403", Attempts: 1}
			w.Observe(refused) // triggers a listing
			time.Sleep(takes + 50*time.Millisecond)
			received(watcher)
			w.set(nil, limits.Account{Name: "a", BlockedUntil: time.Now().Add(time.Minute)})
			w.Observe(refused)
			time.Sleep(max(minListPause, (1+soonPauseFactor)*takes))
			synctest.Wait()
			if events := received(watcher); len(events) != 1 || events[0].Data.(Accounts).Changed[0].BlockedUntil.IsZero() {
				t.Errorf("with listings of %v: %+v", takes, events)
			}
		})
	}
}

func TestListingsAreRareWithoutWatchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		w.run()
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		w.mu.Lock()
		listings := w.listings
		w.mu.Unlock()
		if listings < 6 || listings > 8 {
			t.Errorf("%d listings in a minute", listings)
		}
		w.mu.Lock()
		w.queue = map[limits.ClientResource]int{{Account: "a"}: 3, {Account: "b"}: 4}
		w.mu.Unlock()
		time.Sleep(time.Second)
		synctest.Wait()
		if values := w.Series().Values["waiting"]; values[len(values)-1] != 7 {
			t.Errorf("%v requests wait, want 7", values[len(values)-1])
		}
	})
}

func TestSlowWatcherReceivesTheNumberOfSkippedRequests(t *testing.T) {
	w := newFixture(t)
	slow := watch(t, w.History, WatchOptions{Event: "request"})
	for i := range maxBuffered + 50 {
		w.Observe(hit(i))
	}
	if got := received(slow); len(got) != maxBuffered || got[0].ID != 1 {
		t.Fatalf("%d events", len(got))
	}
	w.Observe(hit(0))
	events := received(slow)
	if namesOf(events) != "skipped request" || events[0].Data != (Skipped{50}) || events[1].ID != maxBuffered+51 {
		t.Errorf("events after the overflow: %+v", events)
	}
	w.Observe(hit(0))
	equal(t, "events after the skipped event", namesOf(received(slow)), "request")
}

func TestRequestsPerSecondAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		watcher := watch(t, w.History, WatchOptions{Event: "request", MaxPerSecond: 3})
		for range 10 {
			w.Observe(hit(0))
		}
		equal(t, "events", namesOf(received(watcher)), "request request request")
		time.Sleep(time.Second)
		w.Observe(hit(0))
		events := received(watcher)
		if namesOf(events) != "skipped request" || events[0].Data != (Skipped{7}) {
			t.Errorf("events of the next second: %+v", events)
		}
	})
}

func TestReconnectedWatcherReceivesTheNumberOfMissedRequests(t *testing.T) {
	for _, c := range []struct {
		name   string
		after  uint64
		missed uint64
	}{
		{"seven missed requests", 2, 7},
		{"no missed request", 9, 0},
		{"first watch", 0, 0},
		{"ID of another replica", 1000, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newFixture(t)
			for range 9 {
				w.Observe(hit(0))
			}
			watcher := watch(t, w.History, WatchOptions{Event: "request", After: c.after})
			w.Observe(hit(0))
			var missed uint64
			for _, e := range received(watcher) {
				if s, ok := e.Data.(Skipped); ok {
					missed = s.Requests
				}
			}
			equal(t, "missed requests", missed, c.missed)
		})
	}
}

func TestWatchersAreBoundedAndEndWithTheHistory(t *testing.T) {
	w := newFixture(t)
	watchers := make([]*Watcher, maxWatchers)
	for i := range watchers {
		watchers[i] = watch(t, w.History, WatchOptions{})
	}
	if _, err := w.Watch(WatchOptions{}); !errors.Is(err, ErrTooMany) {
		t.Error(err)
	}
	watchers[0].Close()
	equal(t, "watchers", w.Watchers(), maxWatchers-1)
	another := watch(t, w.History, WatchOptions{})
	w.Close()
	if got := namesOf(received(another)); got != "accounts operations end" {
		t.Errorf("got %s, want the end after Close", got)
	}
	if _, err := w.Watch(WatchOptions{}); !errors.Is(err, errClosed) {
		t.Error(err)
	}
	w.Observe(hit(0)) // has no watcher
	w.Close()
}
