package limitstest

import (
	"fmt"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// confirm sends n requests whose responses report a window.
func (h *harness) confirm(n, limit int, reset time.Time) {
	h.Helper()
	for i := range n {
		h.spend(get("core"), reported("core", i+1, limit, reset))
	}
}

// doubtCases test reports that contradict other reports, and pauses of content creation.
var doubtCases = []testCase{
	{"a contradictory report allows one probe, whose report refutes it", func(h *harness) {
		now := time.Now()
		for _, outlier := range []limits.Outcome{
			reported("core", 60, 60, now.Add(20*time.Minute)),
			reported("core", 0, 1, now.Add(20*time.Minute)),
			reported("core", 1, 1, now.Add(2*time.Hour)),
			reported("core", 60, 60, now.Add(time.Hour)),            // only another limit
			reported("core", 5000, 5000, now.Add(20*time.Minute)),   // only another reset
			reported("core", 15000, 15000, now.Add(20*time.Minute)), // an enterprise's limit
		} {
			h.confirm(12, 5000, now.Add(time.Hour))
			h.spend(get("core"), outlier)
			probe := h.granted(get("core"))
			if outlier.Rate.Used > 0 {
				h.refused(get("core"), limits.Primary, untilSettled)
			}
			h.settled(probe, reported("core", 14, 5000, now.Add(time.Hour)))
			for range 20 {
				h.granted(get("core"))
			}
			time.Sleep(31 * second) // the permits expire
			h.check("limit", h.budget("core").Limit, 5000)
		}
	}},
	{"a use beyond the limit needs a probe if requests were left", func(h *harness) {
		reset := time.Now().Add(time.Hour)
		for range 2 { // a refuted report does not confirm the next one
			h.spend(get("core"), reported("core", 10, 5000, reset))
			h.spend(get("core"), reported("core", 1_000_000, 5000, reset))
			probe := h.granted(get("core"))
			h.refused(get("core"), limits.Primary, untilSettled)
			h.settled(probe, reported("core", 12, 5000, reset))
		}
		h.granted(get("core"))
		h.spend(get("core"), reported("core", 5001, 5000, reset))
		h.spend(get("core"), reported("core", 5001, 5000, reset))
		h.refused(get("core"), limits.Primary, time.Hour+jitter)
	}},
	{"a probe that agrees closes the window", func(h *harness) {
		reset := time.Now().Add(20 * time.Minute)
		h.confirm(3, 5000, time.Now().Add(time.Hour))
		h.spend(get("core"), reported("core", 60, 60, reset))
		h.spend(get("core"), reported("core", 60, 60, reset))
		h.refused(get("core"), limits.Primary, 20*time.Minute+jitter)
		time.Sleep(20*time.Minute + jitter)
		h.granted(get("core"))
	}},
	{"reports with wrong dates hide no exhausted window", func(h *harness) {
		const day = 24 * time.Hour
		for i, shifts := range [][]time.Duration{{0, day, 2 * day}, {2 * day, day, 0}, {-2 * time.Hour, 2 * time.Hour, time.Hour}, {-day, 0, -2 * day, day}} {
			c, reset := claimOf(fmt.Sprint("account ", i)), time.Now().Add(30*time.Minute)
			report := func(shift time.Duration, used int) {
				o := reported("core", used, 5000, reset.Add(shift))
				o.Rate.Date = o.Rate.Date.Add(shift)
				h.spend(c, o)
			}
			for used, shift := range shifts {
				report(shift, used+1)
			}
			report(0, 5000)
			h.refused(c, limits.Primary, 30*time.Minute+jitter)
		}
	}},
	{"a repeated response does not confirm itself", func(h *harness) {
		h.confirm(3, 5000, time.Now().Add(time.Hour))
		p, outlier := h.granted(get("core")), reported("core", 60, 60, time.Now().Add(20*time.Minute))
		for range 3 {
			h.settled(p, outlier)
		}
		h.granted(get("core"))
	}},
	{"responses to requests in progress together do not confirm the doubt", func(h *harness) {
		reset := time.Now().Add(time.Hour)
		h.confirm(3, 5000, reset)
		outlier := reported("core", 60, 60, time.Now().Add(20*time.Minute))
		var together []limits.Permit
		for range 3 {
			together = append(together, h.granted(get("core")))
		}
		time.Sleep(second)
		for _, p := range together {
			h.settled(p, outlier)
		}
		probe := h.granted(get("core"))
		h.refused(get("core"), limits.Primary, untilSettled)
		h.settled(probe, reported("core", 7, 5000, reset))
		h.granted(get("core"))
		h.granted(get("core"))
	}},
	{"a limit error with the budget of the address needs a probe", func(h *harness) {
		reset := time.Now().Add(time.Hour)
		h.confirm(12, 5000, reset)
		o := reported("core", 60, 60, time.Now().Add(20*time.Minute))
		o.Limited = policy.LimitPrimary
		h.spend(get("core"), o)
		probe := h.granted(get("core"))
		h.refused(get("core"), limits.Primary, untilSettled)
		h.settled(probe, reported("core", 14, 5000, reset))
		h.spend(get("core"), o)
		time.Sleep(second)
		h.spend(get("core"), o) // the probe agrees
		h.refused(get("core"), limits.Primary, time.Hour)
	}},
	{"a new window that others exhaust needs no probe", func(h *harness) {
		now := time.Now().Truncate(time.Second)
		for range 12 {
			o := reported("core", 3, 5000, now.Add(time.Minute))
			o.Rate.Date = now
			h.spend(get("core"), o)
		}
		time.Sleep(time.Minute + time.Second/2) // the window has ended at the upstream, and is still open on this clock
		o := reported("core", 5000, 5000, now.Add(2*time.Minute))
		o.Rate.Date = now.Add(time.Minute)
		h.spend(get("core"), o)
		h.refused(get("core"), limits.Primary, time.Minute+2*time.Second)
	}},
	{"responses to earlier requests do not end the doubt", func(h *harness) {
		reset := time.Now().Add(time.Hour)
		h.confirm(3, 5000, reset)
		early := h.granted(get("core"))
		time.Sleep(second)
		h.spend(get("core"), reported("core", 60, 60, time.Now().Add(20*time.Minute)))
		h.settled(early, reported("core", 4, 5000, reset))
		probe := h.granted(get("core"))
		h.refused(get("core"), limits.Primary, untilSettled)
		h.settled(probe, reported("core", 6, 5000, reset))
		h.granted(get("core"))
		h.granted(get("core"))
	}},
	{"probes without a report follow each second", func(h *harness) {
		h.confirm(3, 5000, time.Now().Add(time.Hour))
		h.spend(get("core"), reported("core", 60, 60, time.Now().Add(20*time.Minute)))
		h.spend(get("core"), limits.Outcome{Sent: true, Answered: true, Ended: true})
		h.refused(get("core"), limits.Primary, second)
		time.Sleep(second)
		h.settled(h.granted(get("core")), limits.Outcome{}) // not sent
		h.settled(h.granted(get("core")), limits.Outcome{Sent: true})
		h.refused(get("core"), limits.Primary, untilSettled)
		time.Sleep(10 * second) // until the request is charged
		h.granted(get("core"))
	}},
	{"a limit error needs no probe", func(h *harness) {
		h.confirm(3, 5000, time.Now().Add(time.Hour))
		o := reported("core", 1000, 1000, time.Now().Add(20*time.Minute))
		o.Limited = policy.LimitPrimary
		h.spend(get("core"), o)
		h.refused(get("core"), limits.Primary, time.Hour+jitter)
	}},
	{"the exhausted limit of callers without a credential is doubtful from the first response", func(h *harness) {
		reset := time.Now().Add(20 * time.Minute)
		h.spend(get("core"), reported("core", 60, 60, reset))
		h.spend(get("core"), reported("core", 1, 5000, reset.Add(time.Hour)))
		h.granted(get("core"))
		h.granted(get("core"))
		anonymous := get("core")
		anonymous.Account, anonymous.Kind = "egress", policy.Unauthenticated
		h.spend(anonymous, reported("core", 60, 60, reset))
		h.refused(anonymous, limits.Primary, 20*time.Minute+jitter)
	}},
	{"a new limit counts from its second report", func(h *harness) {
		h.confirm(3, 5000, time.Now().Add(30*time.Minute))
		late := time.Now().Add(50 * time.Minute)
		h.spend(get("core"), reported("core", 1, 100, late))
		h.spend(get("core"), reported("core", 2, 100, late))
		h.check("limit", h.budget("core").Limit, 100)
		h.spend(get("core"), reported("core", 100, 100, late))
		h.refused(get("core"), limits.Primary, 50*time.Minute+jitter)
	}},
	{"a higher limit of a known window counts from its second report", func(h *harness) {
		reset := time.Now().Add(time.Hour)
		for range 2 { // the next report refutes the first outlier
			h.spend(get("core"), reported("core", 4990, 5000, reset))
			h.spend(get("core"), reported("core", 20, 15000, reset))
			h.check("limit after an outlier", h.budget("core").Limit, 5000)
		}
		h.spend(get("core"), reported("core", 30, 15000, reset))
		h.check("limit", h.budget("core").Limit, 15000)
	}},
	{"the rate headers of a 401 say nothing", func(h *harness) {
		reset := time.Now().Add(time.Hour)
		h.confirm(2, 5000, reset)
		for range 4 {
			o := reported("core", 60, 60, reset.Add(-20*time.Minute))
			o.Unauthorized = true
			h.spend(get("core"), o)
		}
		h.check("limit", h.budget("core").Limit, 5000)
		for range 5 {
			h.granted(get("core"))
		}
	}},
	{"the rate headers of a 401 do not end an unlimited window", func(h *harness) {
		for range 3 {
			h.spend(get("core"), silent())
		}
		o := reported("core", 60, 60, time.Now().Add(time.Hour))
		o.Unauthorized = true
		h.spend(get("core"), o)
		h.check("unlimited", h.unlimited("core"), true)
	}},
	{"a content limit refuses only content creation", func(h *harness) {
		content := get("core")
		content.CreatesContent = true
		o := reported("core", 1, 5000, time.Now().Add(3*time.Hour))
		o.Limited = policy.LimitContent
		h.spend(content, o)
		h.refused(content, limits.Content, time.Minute)
		h.granted(get("core"))
		time.Sleep(time.Minute)
		o.RetryAfter = 100 * second
		h.spend(content, o)
		h.refused(content, limits.Content, 201*second) // doubled, and a second for rounding
		time.Sleep(201 * second)
		success := answered()
		success.Succeeded = true
		h.spend(content, success)
		h.spend(content, o)
		h.refused(content, limits.Content, 101*second)
	}},
	{"content errors of concurrent requests count once", func(h *harness) {
		content := get("core")
		content.CreatesContent = true
		h.confirm(1, 5000, time.Now().Add(time.Hour))
		var open []limits.Permit
		for range 5 {
			open = append(open, h.granted(content))
		}
		for _, p := range open {
			time.Sleep(second)
			o := answered()
			o.Limited = policy.LimitContent
			h.settled(p, o)
		}
		h.refused(content, limits.Content, time.Minute)
	}},
	{"a primary limit error without a reset lasts for retry-after", func(h *harness) {
		h.spend(get("core"), limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: policy.LimitPrimary, RetryAfter: 90 * second})
		h.refused(get("core"), limits.Primary, 90*second+jitter)
	}},
}
