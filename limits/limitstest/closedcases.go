package limitstest

import (
	"context"
	"errors"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// closedRetry is the wait of a claim of a closed account.
const closedRetry = time.Hour

// close gets a limit error and three failed probes, which close the account. One earlier request stays open.
func (h *harness) close() (earlier limits.Permit) {
	h.Helper()
	h.spend(get("core"), answered())
	earlier = h.granted(get("core"))
	for range 4 {
		h.check("closed before the last probe", h.account().ClosedSince, time.Time{})
		h.spend(get("core"), limitedBy(10*second))
		time.Sleep(time.Until(h.account().BlockedUntil))
		h.renewed(second, earlier)
	}
	return earlier
}

// closedCases test accounts that failed probes have closed. Three failed probes close an account.
var closedCases = []testCase{
	{"a closed account grants nothing", func(h *harness) {
		closed := time.Now().Add((11 + 21 + 41) * second)
		h.close()
		h.check("closed since", h.account().ClosedSince, closed)
		for range 20 {
			h.refused(get("core"), limits.Closed, closedRetry)
			h.refused(get("search"), limits.Closed, closedRetry)
			time.Sleep(closedRetry)
		}
		h.check("closed since", h.account().ClosedSince, closed)
		h.granted(claimOf("b")) // another account
	}},
	{"an operator opens a closed account", func(h *harness) {
		earlier := h.close()
		h.opened()
		h.check("closed since", h.account().ClosedSince, time.Time{})
		probe := h.granted(get("core"))
		h.refused(get("core"), limits.Cooldown, untilSettled)
		h.settled(probe, answered())
		h.settled(earlier, answered())
		h.granted(get("core"))
	}},
	{"an account that is neither closed nor in a cool-down cannot be opened", func(h *harness) {
		for range 2 {
			if err := h.Open(context.Background(), "a"); !errors.Is(err, limits.ErrNotClosed) {
				h.Errorf("got %v, want %v", err, limits.ErrNotClosed)
			}
			h.spend(get("core"), limitedBy(10*second))
			time.Sleep(11 * second)
		}
	}},
	{"an operator ends a cool-down", func(h *harness) {
		h.spend(get("core"), limitedBy(time.Hour))
		h.opened()
		probe := h.granted(get("core"))
		h.refused(get("core"), limits.Cooldown, untilSettled)
		h.settled(probe, answered())
		h.granted(get("core"))
	}},
	{"an operator ends a pause of content creation", func(h *harness) {
		o := answered()
		o.Limited, o.RetryAfter = policy.LimitContent, time.Hour
		c := get("core")
		c.CreatesContent = true
		h.spend(c, o)
		h.opened()
		h.granted(c)
	}},
	{"an operator opens an exhausted window, which begins slowly", func(h *harness) {
		reset := time.Now().Add(30 * time.Minute)
		early := h.granted(get("core"))
		h.spend(get("core"), reported("core", 1_000_000, 5000, reset))
		h.refused(get("core"), limits.Primary, 30*time.Minute+jitter)
		time.Sleep(second)
		h.opened()
		h.settled(early, reported("core", 1_000_000, 5000, reset)) // of a request before the opening
		time.Sleep(second)
		h.spend(get("core"), limits.Outcome{Sent: true, Answered: true, Ended: true})
		h.granted(get("core"))
		h.granted(get("core"))
		_, d := h.admit(get("core"))
		h.check("granted during the slow start", d.Granted, false)
		time.Sleep(second)
		h.spend(get("core"), reported("core", 7, 5000, reset))
		for range 20 {
			h.granted(get("core"))
		}
		h.spend(get("core"), reported("core", 5000, 5000, reset))
		h.refused(get("core"), limits.Primary, 30*time.Minute+jitter-3*second)
	}},
	{"a second opening ends the cool-down of a closed account", func(h *harness) {
		for range 4 {
			time.Sleep(time.Until(h.account().BlockedUntil))
			h.spend(get("core"), limitedBy(time.Hour))
		}
		h.opened()
		h.refused(get("core"), limits.Cooldown, time.Hour+margin)
		h.opened()
		h.granted(get("core"))
	}},
	{"an opened account still waits for Retry-After", func(h *harness) {
		for range 4 {
			time.Sleep(time.Until(h.account().BlockedUntil))
			h.spend(get("core"), limitedBy(10*second))
		}
		h.opened()
		h.refused(get("core"), limits.Cooldown, 10*second+margin) // not doubled any more
	}},
	{"an opened account gets the full number of probes", func(h *harness) {
		h.close()
		h.opened()
		for range 3 {
			h.check("closed", h.account().ClosedSince, time.Time{})
			h.spend(get("core"), limitedBy(10*second))
			time.Sleep(time.Until(h.account().BlockedUntil))
		}
		h.refused(get("core"), limits.Closed, closedRetry)
	}},
	{"the success of an earlier request opens a closed account", func(h *harness) {
		earlier := h.close()
		failed := answered()
		failed.Failed, failed.Ended = true, false
		other := h.account()
		h.settled(earlier, failed)
		h.check("closed after a 503", h.account().ClosedSince, other.ClosedSince)
		h.settled(limits.Permit{Claim: limits.Claim{ID: 1000, Account: "a", Resource: "core"}}, answered()) // of an expired permit
		h.check("closed after a success", h.account().ClosedSince, time.Time{})
		h.granted(get("core")) // the probe
		h.refused(get("core"), limits.Cooldown, untilSettled)
	}},
	{"a successful probe ends the series of failed probes", func(h *harness) {
		for range 4 {
			for range 2 {
				h.spend(get("core"), limitedBy(10*second))
				time.Sleep(time.Until(h.account().BlockedUntil))
			}
			h.spend(get("core"), answered())
		}
		h.check("closed", h.account().ClosedSince, time.Time{})
	}},
	{"probes without a result do not count", func(h *harness) {
		h.spend(get("core"), limitedBy(10*second))
		time.Sleep(11 * second)
		for range 10 {
			h.settled(h.granted(get("core")), limits.Outcome{Sent: true})
			failed := answered()
			failed.Failed = true
			h.spend(get("core"), failed)
			time.Sleep(10 * second)
		}
		h.check("closed", h.account().ClosedSince, time.Time{})
	}},
}
