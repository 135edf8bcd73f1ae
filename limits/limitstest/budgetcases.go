package limitstest

import (
	"fmt"
	"strings"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// Margins that a ledger adds to times in whole seconds. The margin applies to a Retry-After and to a reset with many
// reports. The jitter applies to a reset with few reports.
const (
	margin = time.Second
	jitter = 2 * time.Second
)

// windowCases test the fixed windows of the upstream.
var windowCases = []testCase{
	{"reports that are behind let no request exceed the window", func(h *harness) {
		reset := time.Now().Add(time.Hour).Truncate(second)
		for sent := range 20 {
			switch sent {
			case 5, 12: // no response, and a response without headers
				h.settled(h.granted(get("core")), limits.Outcome{Sent: true, Answered: sent == 12, Ended: true})
				time.Sleep(11 * second)
			default:
				h.spend(get("core"), reported("core", max(0, sent+1-3), 20, reset))
			}
		}
		h.refused(get("core"), limits.Primary, time.Until(reset)+margin)
	}},
	{"reports that are far behind let no request exceed the window", func(h *harness) {
		reset := time.Now().Add(time.Hour).Truncate(second)
		for sent := range 20 {
			h.spend(get("core"), reported("core", max(0, sent+1-15), 20, reset))
		}
		h.refused(get("core"), limits.Primary, time.Until(reset)+margin)
	}},
	{"a 304 uses nothing of a window", func(h *harness) {
		o := reported("core", 1, 20, time.Now().Add(time.Hour))
		h.spend(get("core"), o)
		o.Uncounted = true
		for range 50 {
			h.spend(get("core"), o)
		}
		h.check("used", h.budget("core").Used, 1)
	}},
	{"an exhausted window reopens two seconds after its reset", func(h *harness) {
		reset := time.Now().Add(600 * second)
		h.spend(get("core"), reported("core", 4999, 5000, reset))
		h.spend(get("core"), reported("core", 5000, 5000, reset))
		h.refused(get("core"), limits.Primary, 600*second+jitter)
		time.Sleep(600*second + jitter - time.Microsecond)
		h.refused(get("core"), limits.Primary, time.Microsecond)
		time.Sleep(time.Microsecond)
		h.granted(get("core"))
	}},
	{"an exhausted window reopens one second after a reset with ten reports", func(h *harness) {
		reset := time.Now().Add(600 * second)
		for i := range 10 {
			h.spend(get("core"), reported("core", 4991+i, 5000, reset))
		}
		h.refused(get("core"), limits.Primary, 600*second+margin)
	}},
	{"a reported limit stays valid after its window", func(h *harness) {
		search := get("search")
		for i := range 6 {
			h.spend(search, reported("search", i+1, 6, time.Now().Add(30*second)))
			time.Sleep(second)
		}
		time.Sleep(30 * second)
		h.refused(search, limits.Primary, 24*second)
		time.Sleep(24 * second)
		h.granted(search)
		h.refused(search, limits.Primary, untilSettled)
	}},
	{"only a report of the open window ends its slow start", func(h *harness) {
		old := time.Now().Add(10 * second)
		late := h.granted(get("core"))
		h.spend(get("core"), reported("core", 10, 20, old))
		outcome := reported("core", 9, 20, old)
		time.Sleep(10*second + jitter)
		for range 2 {
			h.granted(get("core"))
		}
		h.settled(late, outcome)
		h.settled(h.granted(get("core")), limits.Outcome{Sent: true, Answered: true, Ended: true, Failed: true})
		h.refused(get("core"), limits.Primary, untilSettled)
	}},
	{"permits in use count", func(h *harness) {
		reset := time.Now().Add(time.Hour)
		h.spend(get("core"), reported("core", 4998, 5000, reset))
		first, second := h.granted(get("core")), h.granted(get("core"))
		h.refused(get("core"), limits.Primary, untilSettled)
		h.settled(second, reported("core", 4998, 5000, reset)) // a 304, not counted
		h.granted(get("core"))
		h.refused(get("core"), limits.Primary, untilSettled)
		h.settled(first, limits.Outcome{}) // not sent
		h.granted(get("core"))
	}},
	{"a request without a response stays unconfirmed", func(h *harness) {
		reset := time.Now().Add(time.Hour)
		h.spend(get("core"), reported("core", 4998, 5000, reset))
		h.settled(h.granted(get("core")), limits.Outcome{Sent: true})
		lost := h.granted(get("core"))
		h.refused(get("core"), limits.Primary, untilSettled)
		h.settled(lost, limits.Outcome{})
		time.Sleep(10 * second) // the upstream has stopped working on the first request
		time.Sleep(second)
		h.spend(get("core"), reported("core", 4999, 5000, reset)) // sent later, so the reported count includes the lost request
		h.granted(get("core"))
		h.refused(get("core"), limits.Primary, untilSettled)
	}},
	{"three requests may be sent before the first response", func(h *harness) {
		var open []limits.Permit
		for range 3 {
			open = append(open, h.granted(get("core")))
		}
		h.refused(get("core"), limits.Primary, untilSettled)
		time.Sleep(second)
		h.granted(get("core")) // the first three requests may be lost
		h.refused(get("core"), limits.Primary, untilSettled)
		h.settled(open[0], reported("core", 1, 1000, time.Now().Add(time.Hour)))
		for range 90 {
			h.granted(get("core"))
		}
	}},
	{"requests that were not sent use nothing of the slow start", func(h *harness) {
		unsent := limits.Outcome{}
		for range 20 {
			h.settled(h.granted(get("core")), unsent)
		}
		var open []limits.Permit
		for range 3 {
			open = append(open, h.granted(get("core")))
		}
		h.refused(get("core"), limits.Primary, untilSettled)
		h.settled(open[0], unsent)
		h.settled(h.granted(get("core")), unsent)
		h.granted(get("core"))
		h.refused(get("core"), limits.Primary, untilSettled)
		time.Sleep(second)
		h.settled(h.granted(get("core")), unsent) // a second after the last request that was sent
		h.granted(get("core"))
		h.refused(get("core"), limits.Primary, untilSettled)
	}},
	{"the order of responses does not matter", func(h *harness) {
		reset := time.Now().Add(time.Hour)
		for _, used := range []int{4000, 3990, 4010, 4005} {
			h.spend(get("core"), reported("core", used, 5000, reset.Add(time.Duration(used%3-1)*second)))
		}
		h.check("used", h.budget("core").Used, 4010)
		h.spend(get("core"), reported("core", 60, 60, reset.Add(-2*time.Hour))) // an earlier window, which does not count the request
		h.check("used", h.budget("core").Used, 4011)
		h.check("limit", h.budget("core").Limit, 5000)
	}},
	{"late responses of an ended window are ignored", func(h *harness) {
		old := time.Now().Add(60 * second)
		late, renewed := h.granted(get("core")), h.granted(get("core"))
		outcome := reported("core", 5000, 5000, old)
		h.spend(get("core"), reported("core", 4999, 5000, old))
		for range 3 {
			time.Sleep(20 * second)
			h.renewed(0, renewed)
		}
		time.Sleep(jitter)
		h.settled(late, outcome)
		h.check("used", h.budget("core").Used, 0)
		outcome = reported("core", 5000, 5000, old.Add(second))
		outcome.Rate.Date = outcome.Rate.Date.Add(-2 * second) // the response was made before the end of the window
		h.settled(renewed, outcome)
		h.check("used, with another rounding of the reset", h.budget("core").Used, 0)
	}},
	{"a reset is at most an hour away", func(h *harness) {
		h.spend(get("core"), reported("core", 5000, 5000, time.Now().Add(30*24*time.Hour)))
		h.refused(get("core"), limits.Primary, time.Hour+jitter)
	}},
	{"a date in the future does not hide later reports", func(h *harness) {
		reset := time.Now().Add(50 * time.Minute)
		wrong := reported("core", 20, 5000, reset)
		wrong.Rate.Date = wrong.Rate.Date.Add(48 * time.Minute) // the window seems to end in two minutes
		h.spend(get("core"), wrong)
		time.Sleep(3 * time.Minute)
		h.spend(get("core"), reported("core", 5000, 5000, reset))
		h.refused(get("core"), limits.Primary, 47*time.Minute+jitter)
	}},
	{"one wrong date among others changes nothing", func(h *harness) {
		reset := time.Now().Add(50 * time.Minute)
		h.confirm(3, 5000, reset)
		for _, offset := range []time.Duration{48 * time.Minute, -5 * time.Minute} {
			wrong := reported("core", 20, 5000, reset)
			wrong.Rate.Date = wrong.Rate.Date.Add(offset)
			h.spend(get("core"), wrong)
			time.Sleep(5 * time.Minute)
			h.spend(get("core"), reported("core", 30, 5000, reset))
		}
		h.spend(get("core"), reported("core", 5000, 5000, reset))
		h.refused(get("core"), limits.Primary, 45*time.Minute+jitter) // the later end counts
	}},
	{"the clock of the upstream may differ", func(h *harness) {
		for i, offset := range []time.Duration{-time.Hour, 1900 * time.Millisecond, -1900 * time.Millisecond,
			24 * time.Hour} {
			c := get("core")
			c.Account = fmt.Sprint("clock ", i)
			o := reported("core", 5000, 5000, time.Now().Add(offset+60*second).Truncate(second))
			o.Rate.Date = time.Now().Add(offset).Truncate(second)
			h.spend(c, o)
			c.ID = 0
			over := time.Until(o.Rate.Reset.Add(-offset)) // on the local clock
			_, d := h.admit(c)
			if wait := d.Wait; wait < over+jitter || wait > over+jitter+second {
				h.Errorf("clock %v ahead: refused for %v, want about %v", offset, wait, over)
			}
		}
	}},
	{"regions that count separately must both admit a request", func(h *harness) {
		early, late := time.Now().Add(100*second), time.Now().Add(400*second)
		h.spend(get("core"), reported("core", 5000, 5000, early))
		time.Sleep(second)
		h.settled(h.granted(claimOf("b")), limits.Outcome{}) // another account is not affected
		h.refused(get("core"), limits.Primary, 101*second)
		time.Sleep(101 * second)
		h.spend(get("core"), reported("core", 10, 5000, late))
		h.spend(get("core"), reported("core", 4000, 5000, late.Add(100*second)))
		h.check("used", h.budget("core").Used, 4000)
		h.spend(get("core"), reported("core", 5000, 5000, late))
		h.refused(get("core"), limits.Primary, 300*second) // 102 of 400 s have passed; 2 s margin
	}},
	{"the response names the resource", func(h *harness) {
		reset := time.Now().Add(time.Hour)
		h.settled(h.granted(get("core")), reported("search", 30, 30, reset))
		h.refused(get("search"), limits.Primary, time.Hour+jitter)
		h.granted(get("core"))
	}},
	{"every resource that a response names has its own window", func(h *harness) {
		reset := time.Now().Add(time.Hour)
		h.spend(get("core"), reported("core", 1, 5000, reset))
		for i := range 3 {
			h.spend(get("core"), reported("export_jobs", i+1, 3, reset))
		}
		h.check("core used", h.budget("core").Used, 1)
		h.check("limit of the named resource", h.budget("export_jobs").Limit, 3)
		h.refused(get("export_jobs"), limits.Primary, time.Hour+jitter)
		h.granted(get("core"))
		h.check("resources", strings.Join(h.resources(), " "), "core export_jobs")
	}},
	{"a resource without a report has the limit of core", func(h *harness) {
		h.settled(h.granted(get("export_jobs")), limits.Outcome{Sent: true, Answered: true, Ended: true, Failed: true})
		h.check("limit", h.budget("export_jobs").Limit, 5000)
		h.check("window", h.budget("export_jobs").Window, time.Hour)
		h.check("core", h.budget("core"), limits.Budget{})
	}},
	{"resources are listed in the order of the documents", func(h *harness) {
		for _, name := range []string{"zebra", "audit_log", "search", "apple", "core"} {
			h.spend(get(name), reported(name, 1, 5000, time.Now().Add(time.Hour)))
		}
		want := "core search audit_log apple zebra"
		h.check("resources", strings.Join(h.resources(), " "), want)
		var listed []string
		for _, b := range h.account().Budgets[:5] {
			listed = append(listed, b.Resource)
		}
		h.check("budgets", strings.Join(listed, " "), want)
	}},
	{"a primary limit error closes only its resource", func(h *harness) {
		o := reported("core", 4000, 5000, time.Now().Add(60*second))
		o.Limited = policy.LimitPrimary
		h.spend(get("core"), o)
		h.refused(get("core"), limits.Primary, 60*second+jitter)
		h.granted(get("search"))
	}},
	{"a primary limit error without headers closes the resource for one window", func(h *harness) {
		h.spend(get("core"), limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: policy.LimitPrimary})
		h.refused(get("core"), limits.Primary, time.Hour+jitter)
	}},
	{"a reset by the local clock does not hide the windows of the upstream's clock", func(h *harness) {
		h.spend(get("core"), limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: policy.LimitPrimary})
		time.Sleep(time.Hour + jitter)
		behind := reported("core", 5000, 5000, time.Now().Add(-2*time.Hour))
		behind.Rate.Date = time.Now().Add(-3 * time.Hour)
		h.spend(get("core"), behind) // exhausted for an hour
		h.refused(get("core"), limits.Primary, time.Hour+jitter)
	}},
	{"batch claims leave the last part of a window", func(h *harness) {
		batch := get("core")
		batch.Batch = true
		reset := time.Now().Add(time.Hour)
		h.spend(batch, reported("core", 4749, 5000, reset))
		h.spend(batch, reported("core", 4751, 5000, reset))
		h.refused(batch, limits.Primary, 14400*time.Millisecond+time.Microsecond) // one more request is allowed after 1/250 of the hour
		h.granted(get("core"))
		time.Sleep(time.Hour - 10*second)
		h.spend(get("core"), reported("core", 4990, 5000, reset))
		h.granted(batch) // no reserve at the end of the window
	}},
	{"a limit of zero grants nothing", func(h *harness) {
		c := get("code_search")
		c.Kind = policy.Unauthenticated
		h.refused(c, limits.Primary, 60*second)
	}},
	{"unsuccessful responses without rate headers are counted", func(h *harness) {
		c := get("core")
		c.Kind = policy.Unauthenticated // 60 per hour
		for range 57 {
			h.spend(c, limits.Outcome{Sent: true, Answered: true, Ended: true})
		}
		batch := c
		batch.Batch = true
		h.refused(batch, limits.Primary, time.Hour+jitter) // a twentieth is reserved
		for range 3 {
			h.spend(c, limits.Outcome{Sent: true, Answered: true, Ended: true})
		}
		h.refused(c, limits.Primary, time.Hour+jitter)
	}},
}

// unlimitedCases test windows of an upstream without limits.
var unlimitedCases = []testCase{
	{"three successes without rate headers end the limit", func(h *harness) {
		c := get("core")
		c.Kind = policy.Unauthenticated // 60 per hour
		for range 3 {
			h.check("unlimited", h.unlimited("core"), false)
			h.spend(c, silent())
		}
		for range 300 {
			h.spend(c, silent())
		}
		batch := c
		batch.Batch = true
		h.spend(batch, limits.Outcome{Sent: true, Answered: true, Ended: true, Failed: true})
		h.settled(h.granted(c), limits.Outcome{Sent: true})
		h.check("unlimited", h.unlimited("core"), true)
		h.check("unlimited search", h.unlimited("search"), false)
		h.check("budget of core", h.budget("core"), limits.Budget{})
		h.check("points", h.budget("points:op").Used, 304)
	}},
	{"an unlimited search has no log", func(h *harness) {
		for range 200 {
			h.spend(get("search"), silent())
		}
		h.check("unlimited", h.unlimited("search"), true)
	}},
	{"the other limits of an unlimited window apply", func(h *harness) {
		c := get("core")
		c.CreatesContent = true
		for range 80 {
			h.spend(c, silent())
		}
		h.refused(c, limits.Content, 60*second)
	}},
	{"a report ends the unlimited window", func(h *harness) {
		for range 100 {
			h.spend(get("core"), silent())
		}
		time.Sleep(second)
		h.spend(get("core"), reported("core", 58, 60, time.Now().Add(time.Hour)))
		h.check("unlimited", h.unlimited("core"), false)
		h.check("used", h.budget("core").Used, 58)
		h.spend(get("core"), silent())
		h.spend(get("core"), silent())
		h.refused(get("core"), limits.Primary, time.Hour+jitter)
		time.Sleep(time.Hour + jitter)
		for range 3 {
			h.spend(get("core"), silent())
		}
		h.check("unlimited after a report", h.unlimited("core"), false)
	}},
	{"a report of any resource ends all unlimited windows", func(h *harness) {
		for range 100 {
			h.spend(get("search"), silent())
		}
		h.spend(get("core"), reported("core", 1, 5000, time.Now().Add(time.Hour)))
		h.check("unlimited", h.unlimited("search"), false)
		time.Sleep(60*second + jitter)
		for range 30 {
			h.spend(get("search"), silent())
		}
		h.refused(get("search"), limits.Primary, 60*second+jitter)
	}},
	{"rate headers that cannot be used end the unlimited window", func(h *harness) {
		for range 3 {
			h.spend(get("core"), silent())
		}
		o := silent()
		o.Rate.Invalid = true
		h.spend(get("core"), o)
		h.check("unlimited", h.unlimited("core"), false)
	}},
	{"a primary limit error ends the unlimited window", func(h *harness) {
		for range 100 {
			h.spend(get("core"), silent())
		}
		h.spend(get("core"), limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: policy.LimitPrimary})
		h.refused(get("core"), limits.Primary, time.Hour+jitter)
		h.check("unlimited", h.unlimited("core"), false)
	}},
	{"a secondary limit error ends the unlimited windows", func(h *harness) {
		c := get("core")
		c.Kind = policy.Unauthenticated // 60 per hour
		for range 100 {
			h.spend(c, silent())
			h.spend(get("search"), silent())
		}
		h.spend(c, limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: policy.LimitSecondary, RetryAfter: 9 * second})
		h.check("unlimited", h.unlimited("core"), false)
		h.check("unlimited search", h.unlimited("search"), false)
		time.Sleep(10 * second)
		for range 57 { // two requests were counted before the window was unlimited, and the limited one
			h.spend(c, silent())
		}
		h.refused(c, limits.Primary, time.Hour+jitter)
	}},
	{"unsuccessful responses do not end the limit", func(h *harness) {
		c := get("core")
		c.Kind = policy.Unauthenticated // 60 per hour
		for range 60 {
			h.spend(c, limits.Outcome{Sent: true, Answered: true, Ended: true})
		}
		h.refused(c, limits.Primary, time.Hour+jitter)
	}},
}

func claimOf(account string) limits.Claim {
	c := get("core")
	c.Account = account
	return c
}

// spend899 spends 899 of 900 points.
func (h *harness) spend899() {
	h.Helper()
	write := get("core")
	write.Points = 5
	for range 179 {
		h.spend(write, answered())
	}
	for range 4 {
		h.spend(get("core"), answered())
	}
}

// logCases test the sliding logs.
var logCases = []testCase{
	{"points return one window after the response", func(h *harness) {
		write := get("core")
		write.Points = 5
		for range 180 {
			h.spend(write, answered())
		}
		h.refused(get("core"), limits.Points, 60*second)
		h.check("points", h.budget("points:op").Used, 900)
		other := get("core")
		other.Operation = "other"
		h.granted(other) // each operation has its own budget
		time.Sleep(60*second - time.Microsecond)
		h.refused(get("core"), limits.Points, time.Microsecond)
		time.Sleep(time.Microsecond)
		h.granted(get("core"))
	}},
	{"a cost is held until the response arrives, and spent then", func(h *harness) {
		h.spend899()
		last := h.granted(get("core"))
		time.Sleep(10 * second)
		h.refused(get("core"), limits.Points, untilSettled)
		h.settled(last, answered())
		h.refused(get("core"), limits.Points, 50*second)
		time.Sleep(50 * second)
		h.spend899()
		h.refused(get("core"), limits.Points, 10*second)
	}},
	{"merged spends return together with the last spend", func(h *harness) {
		write := get("core")
		write.Points = 450
		h.spend(write, answered())
		time.Sleep(200 * time.Millisecond) // less than 1/256 of a minute
		h.spend(write, answered())
		h.refused(write, limits.Points, 60*second)
		time.Sleep(60 * second)
		h.spend(write, answered())
		time.Sleep(235 * time.Millisecond)
		h.spend(write, answered())
		h.refused(write, limits.Points, 60*second-235*time.Millisecond)
		time.Sleep(120 * second)
		write.Points = 300
		for range 3 { // each spend is close to the previous spend, but the third spend is not close to the first
			h.spend(write, answered())
			time.Sleep(150 * time.Millisecond)
		}
		h.refused(write, limits.Points, 60*second-300*time.Millisecond)
	}},
	{"search has an exact log in addition to its window", func(h *harness) {
		for i := range 30 {
			h.spend(get("search"), reported("search", i+1, 30, time.Now().Add(60*second-time.Duration(i)*second)))
			time.Sleep(second)
		}
		// The upstream's window returns all tokens together. The log returns one per second.
		time.Sleep(31 * second)
		for i := range 2 {
			h.spend(get("search"), reported("search", i+1, 30, time.Now().Add(60*second)))
		}
		h.refused(get("search"), limits.Primary, second)
	}},
	{"GraphQL has its own points budget", func(h *harness) {
		c := get("graphql")
		c.Points = 1000
		h.spend(c, reported("graphql", 1, 5000, time.Now().Add(time.Hour)))
		h.spend(c, reported("graphql", 2, 5000, time.Now().Add(time.Hour)))
		h.refused(c, limits.Points, 60*second)
	}},
	{"content creation has two windows", func(h *harness) {
		c := get("core")
		c.CreatesContent, c.Points = true, 1
		for range 80 {
			h.spend(c, answered())
		}
		h.refused(c, limits.Content, 60*second)
		h.granted(get("core"))
		for range 5 {
			time.Sleep(60 * second)
			for range 80 {
				h.spend(c, answered())
			}
		}
		time.Sleep(60 * second)
		for range 20 {
			h.spend(c, answered())
		}
		h.refused(c, limits.Content, 3600*second-360*second)
	}},
	{"predicted CPU time is held, and elapsed time is charged", func(h *harness) {
		c := get("core")
		c.CPU = 30 * second
		p1, p2, p3 := h.granted(c), h.granted(c), h.granted(c)
		h.refused(c, limits.CPU, untilSettled)
		o := answered()
		o.Elapsed = 10 * second
		h.settled(p1, o)
		h.settled(p2, o)
		h.check("cpu", h.budget("cpu").Used, 20_000)
		h.granted(c)
		h.settled(p3, o)
		c.CPU = 31 * second
		h.refused(c, limits.CPU, untilSettled)
	}},
	{"GraphQL may use only a part of the CPU time", func(h *harness) {
		c := get("graphql")
		c.CPU = 60 * second
		p := h.granted(c)
		c.CPU = second
		h.refused(c, limits.CPU, untilSettled)
		rest := get("core")
		rest.CPU = 30 * second
		h.granted(rest)
		h.settled(p, limits.Outcome{})
		h.granted(c)
	}},
	{"a request that is predicted to exceed the CPU limit is sent alone", func(h *harness) {
		c := get("core")
		c.CPU = time.Hour
		p := h.granted(c)
		h.refused(c, limits.CPU, untilSettled)
		h.settled(p, limits.Outcome{})
		h.granted(c)
	}},
	{"the reason is the budget with the longest wait", func(h *harness) {
		c := get("core")
		c.CreatesContent, c.Points = true, 900
		h.spend(c, answered())
		time.Sleep(10 * second)
		for range 79 {
			d := get("core")
			d.CreatesContent, d.Operation = true, "other"
			h.spend(d, answered())
		}
		h.refused(c, limits.Content, 50*second) // both budgets refuse for the same time
		d := get("core")
		d.CreatesContent, d.Operation = true, "other"
		time.Sleep(50 * second)
		h.spend(d, answered())
		c.Points = 1
		h.refused(d, limits.Content, 10*second)
	}},
}
