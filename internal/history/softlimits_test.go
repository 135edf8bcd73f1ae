package history

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/limits"
)

// use sets the use of the client "builds" in a window of an hour with a limit of 1,000 requests.
func (w *fixture) use(used int, reset time.Time) {
	w.set(nil, limits.Account{Name: "a", Budgets: []limits.Budget{
		{Resource: "core", Limit: 2000, Used: used, Remaining: 2000 - used, Reset: reset, Window: time.Hour},
		{Resource: "client:core:builds", Client: "builds", Limit: 1000, Upper: 1000, Used: used, Remaining: 1000 - used, Reset: reset, Window: time.Hour},
	}})
}

// softLimitsOf returns the thresholds in the events of a watcher.
func softLimitsOf(watcher *Watcher) string {
	var thresholds []string
	for _, e := range received(watcher) {
		if s, ok := e.Data.(SoftLimit); ok && e.Name == "soft_limit" {
			thresholds = append(thresholds, s.Threshold)
		}
	}
	return strings.Join(thresholds, " ")
}

func TestSoftLimitsAreReportedOncePerWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		w.use(0, time.Time{})
		w.run()
		watcher := watch(t, w.History, WatchOptions{Event: "soft_limit"})
		end := time.Now().Add(time.Hour)
		step := func(used int, want string) {
			t.Helper()
			w.use(used, end.Add(time.Duration(used%3)*time.Second)) // the reset changes by the clocks of reports
			time.Sleep(5 * time.Second)
			synctest.Wait()
			equal(t, fmt.Sprint(used, " requests"), softLimitsOf(watcher), want)
		}
		step(900, "") // perhaps requests of the previous window
		w.use(0, end)
		time.Sleep(50 * time.Minute)
		for _, s := range []struct {
			used int
			want string
		}{{499, ""}, {500, "50"}, {501, ""}, {799, ""}, {1000, "80 100"}, {1000, ""}, {790, ""}, {1001, ""}} {
			step(s.used, s.want)
		}
		time.Sleep(time.Until(end.Add(3 * time.Second)))
		w.use(0, time.Time{})
		end = end.Add(time.Hour)
		time.Sleep(time.Minute)
		step(499, "")
		w.use(0, end)
		time.Sleep(55 * time.Minute)
		step(600, "50")
		time.Sleep(2 * time.Hour)
		w.use(0, time.Time{})
		time.Sleep(time.Minute)
		synctest.Wait()
		equal(t, "soft limits after their window", len(w.softLimits), 0)
	})
}

func TestForecastIsReportedOncePerWindow(t *testing.T) {
	for requestsPerMinute, want := range map[int]string{10: "", 16: "50", 20: "forecast 50 80", 40: "forecast 50 80 100"} {
		synctest.Test(t, func(t *testing.T) {
			w := newFixture(t)
			w.run()
			watcher := watch(t, w.History, WatchOptions{Event: "soft_limit"})
			start := time.Now()
			var first SoftLimit
			var got []string
			for minute := range 45 {
				w.use(min(1000, minute*requestsPerMinute), start.Add(time.Hour))
				time.Sleep(time.Minute)
				synctest.Wait()
				for _, e := range received(watcher) {
					s := e.Data.(SoftLimit)
					if got = append(got, s.Threshold); s.Threshold == "forecast" {
						first = s
					} else if !s.Ends.IsZero() {
						t.Errorf("%s has a forecast", s.Threshold)
					}
				}
				if minute < 5 && len(got) > 0 {
					t.Errorf("minute %d: %s", minute, got)
				}
			}
			equal(t, fmt.Sprint(requestsPerMinute, " requests per minute"), strings.Join(got, " "), want)
			expected := start.Add(time.Duration(1000/max(1, requestsPerMinute)) * time.Minute)
			if difference := first.Ends.Sub(expected).Abs(); !first.Ends.IsZero() && difference > 10*time.Minute {
				t.Errorf("%d requests per minute: the forecast differs by %v", requestsPerMinute, difference)
			}
		})
	}
}

func TestSoftLimitIsRepeatedAfterAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		var calls []SoftLimit
		w.sources.SoftLimit = func(_ context.Context, s SoftLimit) error {
			if calls = append(calls, s); len(calls) == 1 {
				return errors.New("store lost")
			}
			return nil
		}
		w.run()
		watcher := watch(t, w.History, WatchOptions{Event: "soft_limit"})
		reset := time.Now().Add(30 * time.Minute)
		w.use(1000, reset)
		time.Sleep(time.Minute)
		synctest.Wait()
		equal(t, "events", softLimitsOf(watcher), "80 100 50")
		want := SoftLimit{Account: "a", Client: "builds", Resource: "core", Threshold: "50", Used: 1000, Limit: 1000, Reset: reset}
		if len(calls) != 4 || calls[0] != want || calls[3] != want {
			t.Errorf("calls %+v", calls)
		}
	})
}

func TestSoftLimitsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		var budgets []limits.Budget
		for i := range maxSoftLimits {
			budgets = append(budgets, limits.Budget{
				Resource: fmt.Sprintf("client:core:%d", i), Client: fmt.Sprint(i), Upper: 1000, Used: 800, Reset: time.Now().Add(time.Minute), Window: time.Hour,
			})
		}
		w.set(nil, limits.Account{Name: "a", Budgets: budgets})
		w.run()
		time.Sleep(time.Second)
		synctest.Wait()
		equal(t, "soft limits", len(w.softLimits), maxSoftLimits)
	})
}
