package limitstest

import (
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// permitCases test permits in use.
var permitCases = []testCase{
	{"a slot is free at the end of the body", func(h *harness) {
		h.spend(get("core"), answered())
		var open []limits.Permit
		for range 100 {
			open = append(open, h.granted(get("core")))
		}
		h.refused(get("core"), limits.Concurrency, untilSettled)
		o := answered()
		o.Ended = false
		h.settled(open[0], o)
		h.refused(get("core"), limits.Concurrency, untilSettled)
		h.released(open[0], false)
		h.granted(get("core"))
		h.settled(open[1], answered())
		h.granted(get("core"))
	}},
	{"an aborted request keeps its slot for ten seconds", func(h *harness) {
		h.spend(get("core"), answered())
		var open []limits.Permit
		for range 100 {
			open = append(open, h.granted(get("core")))
		}
		o := answered()
		o.Ended = false
		h.settled(open[0], o)
		h.released(open[0], true)
		h.settled(open[1], limits.Outcome{Sent: true})
		time.Sleep(10*second - time.Microsecond)
		h.refused(get("core"), limits.Concurrency, untilSettled)
		time.Sleep(time.Microsecond)
		h.granted(get("core"))
		h.granted(get("core"))
		h.refused(get("core"), limits.Concurrency, untilSettled)
	}},
	{"a permit that is not renewed expires, and is charged", func(h *harness) {
		write := get("core")
		write.Points = 450
		h.granted(write)
		h.granted(write)
		time.Sleep(30*second - time.Microsecond)
		h.refused(write, limits.Points, untilSettled)
		h.check("in use", h.account().InUse, 2)
		time.Sleep(time.Microsecond)
		h.refused(write, limits.Points, 60*second)
		h.check("in use", h.account().InUse, 0)
		h.check("used", h.budget("core").Used, 2)
		time.Sleep(60 * second)
		h.granted(write)
	}},
	{"a renewed permit does not expire", func(h *harness) {
		p := h.granted(get("core"))
		for range 20 {
			time.Sleep(5 * second)
			h.renewed(5*second, p)
		}
		h.check("in use", h.account().InUse, 1)
		h.settled(p, answered())
		h.check("in use", h.account().InUse, 0)
	}},
	{"renewing an expired permit reserves again", func(h *harness) {
		p := h.granted(get("core"))
		time.Sleep(31 * second)
		h.check("in use", h.account().InUse, 0)
		h.renewed(31*second, p)
		h.check("in use", h.account().InUse, 1)
		h.settled(p, answered())
		h.check("in use", h.account().InUse, 0)
		h.check("charged twice", h.budget("points:op").Used, 2)
	}},
	{"renewing raises the held CPU time", func(h *harness) {
		c := get("core")
		c.CPU = 30 * second
		p, q := h.granted(c), h.granted(c)
		h.renewed(20*second, p, q)
		h.check("held", h.budget("cpu").Held, 60_000)
		h.renewed(50*second, p, q)
		h.check("held", h.budget("cpu").Held, 100_000)
		h.refused(c, limits.CPU, untilSettled)
		o := answered()
		o.Elapsed = 50 * second
		h.settled(p, o)
		h.settled(q, o)
		h.check("used", h.budget("cpu").Used, 100_000) // more than the limit
		c.CPU = second
		h.refused(c, limits.CPU, 60*second)
	}},
	{"repeating a claim with the same ID changes nothing", func(h *harness) {
		c := get("core")
		c.ID = 77
		h.granted(c)
		h.granted(c)
		h.check("in use", h.account().InUse, 1)
		h.settled(limits.Permit{Claim: c}, answered())
		h.settled(limits.Permit{Claim: c}, answered())
		h.released(limits.Permit{Claim: c}, false)
		h.check("in use", h.account().InUse, 0)
		h.check("points", h.budget("points:op").Used, 1)
	}},
	{"a request that was not sent costs nothing", func(h *harness) {
		c := get("search")
		c.CreatesContent, c.CPU = true, second
		h.settled(h.granted(c), limits.Outcome{Elapsed: second})
		for _, budget := range h.account().Budgets {
			h.check(budget.Resource, budget.Used+budget.Held, 0)
		}
		h.check("in use", h.account().InUse, 0)
	}},
	{"copies sent by the transport are charged", func(h *harness) {
		c := get("core")
		c.Points, c.CPU = 5, second
		o := answered()
		o.Resent, o.Elapsed = 2, second
		h.settled(h.granted(c), o)
		h.check("points of the answered request", h.budget("points:op").Used, 5)
		h.check("points of the copies", h.budget("points:op").Held, 10)
		h.check("in use", h.account().InUse, 1)
		time.Sleep(10 * second)
		h.check("points", h.budget("points:op").Used, 15)
		h.check("cpu", h.budget("cpu").Used, 1000)
		h.check("used", h.budget("core").Used, 3)
		h.check("in use", h.account().InUse, 0)
	}},
	{"copies of an abandoned request are charged", func(h *harness) {
		c := get("core")
		c.Points = 5
		p := h.granted(c)
		h.settled(p, limits.Outcome{Sent: true, Resent: 1})
		h.settled(p, limits.Outcome{Sent: true, Resent: 1})
		h.check("points", h.budget("points:op").Held, 10)
		h.check("in use", h.account().InUse, 2)
		time.Sleep(10 * second)
		h.check("points", h.budget("points:op").Used, 10)
		h.check("used", h.budget("core").Used, 2)
	}},
	{"copies occupy a separate slot for ten seconds", func(h *harness) {
		o := answered()
		o.Resent, o.Ended = 1, false
		p := h.granted(get("core"))
		h.settled(p, o)
		h.settled(p, o)
		h.check("in use", h.account().InUse, 2)
		time.Sleep(10 * second)
		h.check("in use after ten seconds", h.account().InUse, 1)
		h.released(p, false)
		h.check("in use at the end", h.account().InUse, 0)
		h.check("used", h.budget("core").Used, 2)
	}},
	{"the response to an expired permit is used", func(h *harness) {
		p := h.granted(get("core"))
		time.Sleep(31 * second)
		h.settled(p, reported("core", 5000, 5000, time.Now().Add(60*second)))
		h.refused(get("core"), limits.Primary, 60*second+jitter)
	}},
}

// limitedBy returns the outcome of a response that is a secondary limit error.
func limitedBy(retryAfter time.Duration) limits.Outcome {
	o := answered()
	o.Limited, o.RetryAfter = policy.LimitSecondary, retryAfter
	return o
}

// cooldownCases test secondary limit errors.
var cooldownCases = []testCase{
	{"the cool-down lasts for Retry-After and one second", func(h *harness) {
		h.spend(get("core"), limitedBy(17*second))
		h.refused(get("search"), limits.Cooldown, 17*second+margin)
		h.check("blocked", time.Until(h.account().BlockedUntil), 17*second+margin)
	}},
	{"with remaining 0 the cool-down lasts until the reset", func(h *harness) {
		o := reported("core", 5000, 5000, time.Now().Add(300*second))
		o.Limited = policy.LimitSecondary
		h.spend(get("core"), o)
		h.refused(get("search"), limits.Cooldown, 300*second+jitter)
	}},
	{"without Retry-After the cool-down lasts one minute", func(h *harness) {
		h.spend(get("core"), limitedBy(0))
		h.refused(get("search"), limits.Cooldown, 60*second)
	}},
	{"without any header the cool-down lasts one minute", func(h *harness) {
		h.spend(get("core"), limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: policy.LimitSecondary})
		h.refused(get("search"), limits.Cooldown, 60*second)
	}},
	{"repeated errors double the cool-down up to an hour", func(h *harness) {
		for _, minutes := range []int{1, 2, 4, 8, 16, 32, 60, 60} {
			rest := time.Duration(minutes) * time.Minute
			h.spend(get("core"), limitedBy(0))
			h.refused(get("core"), limits.Cooldown, rest)
			time.Sleep(rest)
		}
	}},
	{"repeated errors double Retry-After up to an hour", func(h *harness) {
		for _, seconds := range []int{200, 400, 800, 1600, 3200, 3600, 3600} {
			rest := time.Duration(seconds)*second + margin
			h.spend(get("core"), limitedBy(200*second))
			h.refused(get("core"), limits.Cooldown, rest)
			time.Sleep(rest)
		}
		h.spend(get("core"), limitedBy(2*time.Hour))
		h.refused(get("core"), limits.Cooldown, time.Hour+margin)
	}},
	{"successes after the slow start end the series of errors", func(h *harness) {
		for range 3 {
			h.spend(get("core"), limitedBy(10*second))
			time.Sleep(time.Until(h.account().BlockedUntil))
		}
		h.spend(get("core"), answered()) // the probe
		time.Sleep(60 * second)
		h.spend(get("core"), answered())
		h.spend(get("core"), answered())
		h.spend(get("core"), limitedBy(10*second))
		h.refused(get("core"), limits.Cooldown, 10*second+margin)
	}},
	{"errors of concurrent requests count as one error", func(h *harness) {
		h.spend(get("core"), answered())
		time.Sleep(second)
		var open []limits.Permit
		for range 10 {
			open = append(open, h.granted(get("core")))
		}
		time.Sleep(second)
		for _, p := range open {
			h.settled(p, limitedBy(0))
		}
		h.refused(get("core"), limits.Cooldown, 60*second)
		h.check("half of the slots", h.account().Concurrent, 50)
	}},
	{"errors of renewed expired permits count as one error", func(h *harness) {
		h.spend(get("core"), answered())
		p, q := h.granted(get("core")), h.granted(get("core"))
		time.Sleep(31 * second)
		h.renewed(31*second, p, q)
		h.settled(p, limitedBy(0))
		h.settled(q, limitedBy(0))
		h.refused(get("core"), limits.Cooldown, 60*second)
		h.check("half of the slots", h.account().Concurrent, 50)
	}},
	{"only one probe is granted, and its response decides", func(h *harness) {
		h.spend(get("core"), limitedBy(10*second))
		time.Sleep(11 * second)
		probe := h.granted(get("core"))
		h.refused(get("core"), limits.Cooldown, untilSettled)
		h.settled(probe, limitedBy(0))
		h.refused(get("core"), limits.Cooldown, 120*second) // second consecutive error
		time.Sleep(120 * second)
		h.settled(h.granted(get("core")), limits.Outcome{}) // not sent, so the next permit is the probe
		failed := answered()
		failed.Failed = true
		h.spend(get("core"), failed) // a 503 is inconclusive
		probe = h.granted(get("core"))
		h.refused(get("core"), limits.Cooldown, untilSettled)
		h.settled(probe, answered())
		h.granted(get("core"))
	}},
	{"a lost probe is replaced", func(h *harness) {
		h.spend(get("core"), limitedBy(10*second))
		time.Sleep(11 * second)
		h.granted(get("core"))
		time.Sleep(30 * second)
		h.settled(h.granted(get("core")), limits.Outcome{Sent: true}) // no response
		h.granted(get("core"))
	}},
	{"probes that hang do not pile up", func(h *harness) {
		h.spend(get("core"), limitedBy(10*second))
		time.Sleep(11 * second)
		for range 3 {
			for range 2 { // a lost probe is replaced
				h.settled(h.granted(get("core")), limits.Outcome{Sent: true})
			}
			h.refused(get("core"), limits.Cooldown, untilSettled)
			h.check("slots", h.account().InUse, 2)
			time.Sleep(10 * second) // the upstream has stopped
		}
		h.spend(get("core"), answered())
		h.granted(get("core"))
	}},
	{"an error during the probe requires another probe", func(h *harness) {
		older := h.granted(get("core"))
		h.spend(get("core"), limitedBy(10*second))
		time.Sleep(11 * second)
		h.granted(get("core")) // the probe
		h.settled(older, limitedBy(10*second))
		h.refused(get("core"), limits.Cooldown, 11*second)
		time.Sleep(11 * second)
		h.granted(get("core"))
	}},
	{"an error during the slow start continues the series of errors", func(h *harness) {
		h.spend(get("core"), limitedBy(0))
		time.Sleep(60 * second)
		h.spend(get("core"), answered()) // the probe
		h.spend(get("core"), answered())
		h.spend(get("core"), limitedBy(0))
		h.refused(get("core"), limits.Cooldown, 120*second)
	}},
	{"after the probe the slots double every five seconds", func(h *harness) {
		h.spend(get("core"), answered())
		h.spend(get("core"), limitedBy(10*second))
		time.Sleep(11 * second)
		h.spend(get("core"), answered())
		var open []limits.Permit
		fill := func(most int) {
			for len(open) < most {
				open = append(open, h.granted(get("core")))
			}
		}
		for _, most := range []int{1, 2, 4, 8, 16, 32} {
			fill(most)
			h.refused(get("core"), limits.Concurrency, untilSettled)
			time.Sleep(5 * second)
			h.renewed(second, open...)
		}
		fill(50) // half of 100: the ceiling after the error
	}},
	{"full use raises the ceiling", func(h *harness) {
		h.spend(get("core"), answered())
		h.spend(get("core"), limitedBy(10*second))
		time.Sleep(11 * second)
		h.spend(get("core"), answered())
		time.Sleep(60 * second)
		h.spend(get("core"), answered())
		h.check("slots", h.account().Concurrent, 50)
		var open []limits.Permit
		for range 50 {
			open = append(open, h.granted(get("core")))
		}
		h.check("slots", h.account().Concurrent, 51)
		h.granted(get("core"))
		h.refused(get("core"), limits.Concurrency, untilSettled)
		h.settled(open[0], answered())
		time.Sleep(10 * second)
		h.granted(get("core"))
		h.check("slots", h.account().Concurrent, 52)
	}},
	{"the response to an older request does not end a cool-down", func(h *harness) {
		h.spend(get("core"), answered())
		old := h.granted(get("core"))
		time.Sleep(second)
		h.spend(get("core"), limitedBy(10*second))
		h.settled(old, answered())
		h.refused(get("core"), limits.Cooldown, 10*second+margin)
	}},
}
