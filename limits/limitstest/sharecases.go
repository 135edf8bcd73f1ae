package limitstest

import (
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// write returns a claim that costs five of 900 points.
func write() limits.Claim {
	c := get("core")
	c.Points = 5
	return c
}

// spendPoints spends points of the operation op in one request.
func (h *harness) spendPoints(points int) {
	h.Helper()
	c := write()
	c.Points = points
	h.spend(c, answered())
}

// limited gets a limit error for a claim, and waits until the end of the cool-down.
func (h *harness) limited(c limits.Claim) {
	h.Helper()
	h.spend(c, limitedBy(time.Microsecond))
	time.Sleep(time.Until(h.account().BlockedUntil))
}

// pointsLimit returns the limit of points of the operation op.
func (h *harness) pointsLimit() int {
	h.Helper()
	return h.budget("points:op").Limit
}

// shareCases test the shares that limit errors lower.
var shareCases = []testCase{
	{"repeated errors lower the limit to four fifths of the use", func(h *harness) {
		h.spendPoints(620)
		h.limited(write())
		h.check("limit after one error", h.pointsLimit(), 900)
		h.limited(write()) // 630 points are 700/1000 of the limit
		h.check("limit after two errors", h.pointsLimit(), 504)
		h.check("share", h.budget("points:op").Allowance, 0.56)
		other := write()
		other.Operation = "other"
		h.settled(h.granted(other), answered())
		h.check("share of another operation", h.budget("points:other").Allowance, 0.0)
		time.Sleep(60 * second)
		h.spendPoints(504)
		h.refused(write(), limits.Points, 60*second)
	}},
	{"an error an hour after another error does not lower the limit", func(h *harness) {
		for range 3 {
			h.spendPoints(620)
			h.limited(write())
			time.Sleep(time.Hour)
		}
		h.spendPoints(5)
		h.check("limit", h.pointsLimit(), 900)
	}},
	{"a lowered limit rises by a twentieth an hour after the first hour", func(h *harness) {
		h.spendPoints(620)
		h.limited(write())
		h.limited(write())
		lowered := time.Now()
		for _, c := range []struct {
			after time.Duration
			limit int
		}{
			{time.Hour - 3*second, 504}, {time.Hour, 508}, {time.Hour + 5*time.Minute, 508}, {2 * time.Hour, 553},
			{9*time.Hour + 40*time.Minute, 895}, {9*time.Hour + 42*time.Minute, 900},
		} {
			time.Sleep(time.Until(lowered.Add(c.after)))
			h.spendPoints(5)
			h.check(c.after.String(), h.pointsLimit(), c.limit)
		}
		h.check("share", h.budget("points:op").Allowance, 0.0)
	}},
	{"further errors of the same window do not lower the limit again", func(h *harness) {
		h.spendPoints(890)
		for range 2 {
			h.limited(get("core"))
		}
		h.check("limit", h.pointsLimit(), 712) // 891 points
		time.Sleep(60 * second)
		h.spendPoints(700)
		h.limited(write())
		h.check("limit in the next window", h.pointsLimit(), 563) // 705 points
	}},
	{"the fullest budget of the limited request explains the error", func(h *harness) {
		c := write()
		c.CreatesContent = true
		for range 55 {
			h.spend(c, answered())
		}
		for range 2 {
			h.limited(c) // content 70 %, points 31 %
		}
		h.check("content", h.budget("content:1m0s").Limit, 45) // 57 requests: 712/1000, times 4/5
		h.check("content of the hour", h.budget("content:1h0m0s").Limit, 500)
		h.check("points", h.pointsLimit(), 900)
	}},
	{"a budget that is less than half full does not explain an error", func(h *harness) {
		h.spendPoints(430)
		for range 3 {
			h.limited(write())
		}
		h.check("limit", h.pointsLimit(), 900)
	}},
	{"a budget that is half full explains an error", func(h *harness) {
		h.spendPoints(440)
		for range 2 {
			h.limited(write())
		}
		h.check("limit after errors at 445 and 450 points", h.pointsLimit(), 900)
		h.limited(write())
		h.check("limit after another error at 455 points", h.pointsLimit(), 363)
	}},
	{"full concurrency explains an error", func(h *harness) {
		h.spend(get("core"), answered())
		var open []limits.Permit
		for range 99 {
			c := get("core")
			c.Operation = "long"
			open = append(open, h.granted(c))
		}
		h.spendPoints(700)
		for range 3 { // every permit in use occupies a slot, also after the ceiling is lower
			p := limits.Permit{Claim: write()}
			h.lastID++
			p.ID = h.lastID
			h.renewed(second, append(open, p)...)
			h.settled(p, limitedBy(time.Microsecond))
			time.Sleep(5 * second)
			h.renewed(second, open...)
		}
		h.check("limit", h.pointsLimit(), 900)
	}},
	{"full CPU time explains an error", func(h *harness) {
		h.spendPoints(620)
		c := write()
		c.Operation, c.CPU = "slow", 70*second
		o := answered()
		o.Elapsed = 70 * second
		h.spend(c, o) // 78 % of the CPU time, and 69 % of the points
		for range 3 {
			h.limited(write())
		}
		h.check("limit", h.pointsLimit(), 900)
	}},
	{"an exhausted primary window explains an error", func(h *harness) {
		h.spendPoints(700)
		for range 3 {
			o := reported("core", 5000, 5000, time.Now().Add(10*second))
			o.Limited, o.RetryAfter = policy.LimitSecondary, 2*second
			h.spend(write(), o)
			time.Sleep(time.Until(h.account().BlockedUntil))
			time.Sleep(10 * second)
		}
		h.check("limit", h.pointsLimit(), 900)
	}},
	{"errors of concurrent requests count once", func(h *harness) {
		h.spendPoints(600)
		time.Sleep(second)
		var open []limits.Permit
		for range 10 {
			open = append(open, h.granted(write()))
		}
		time.Sleep(second)
		for _, p := range open {
			h.settled(p, limitedBy(time.Microsecond))
		}
		h.check("limit", h.pointsLimit(), 900)
	}},
	{"a share is at least a tenth, and one request is always possible", func(h *harness) {
		for range 12 {
			h.spendPoints(5)
			h.spendPoints(h.pointsLimit() - 10)
			h.limited(write())
			time.Sleep(time.Minute)
		}
		h.spendPoints(5)
		h.check("limit", h.pointsLimit(), 90)
		time.Sleep(time.Minute)
		c := get("core")
		c.Points = 900
		h.spend(c, answered())
		h.refused(get("core"), limits.Points, 60*second)
	}},
	{"a low share is lowered although other budgets are full", func(h *harness) {
		h.spendPoints(620)
		h.limited(write())
		h.limited(write())
		h.check("limit", h.pointsLimit(), 504)
		time.Sleep(2 * time.Minute)
		h.spendPoints(480)
		slow := write()
		slow.Operation, slow.CPU = "slow", 90*second
		o := answered()
		o.Elapsed = 90 * second
		h.spend(slow, o)
		h.limited(write())
		h.check("lowered limit", h.pointsLimit(), 387) // 485 points: 538/1000, times 4/5
	}},
}
