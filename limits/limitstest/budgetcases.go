package limitstest

import (
	"fmt"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// What is waited beyond what the upstream tells in whole seconds: after a
// retry-after and a reset that many answers have told, and after one that few
// have.
const (
	margin = time.Second
	jitter = 2 * time.Second
)

// windowCases are stories of the upstream's fixed windows (design sections 5.2,
// 5.3).
var windowCases = []story{
	{"a window that is used up opens two seconds after its reset", func(b *book) {
		reset := time.Now().Add(600 * second)
		b.spend(get("core"), told("core", 4999, 5000, reset))
		b.spend(get("core"), told("core", 5000, 5000, reset))
		b.refused(get("core"), limits.Primary, 600*second+jitter)
		pass(600*second + jitter - time.Microsecond)
		b.refused(get("core"), limits.Primary, time.Microsecond)
		pass(time.Microsecond)
		b.granted(get("core"))
	}},
	{"or one second, when ten answers have agreed on it", func(b *book) {
		reset := time.Now().Add(600 * second)
		for i := range 10 {
			b.spend(get("core"), told("core", 4991+i, 5000, reset))
		}
		b.refused(get("core"), limits.Primary, 600*second+margin)
	}},
	{"a limit that was told is kept when its window ends", func(b *book) {
		search := get("search")
		for i := range 6 {
			b.spend(search, told("search", i+1, 6, time.Now().Add(30*second)))
			pass(second)
		}
		pass(30 * second)
		b.refused(search, limits.Primary, 24*second)
		pass(24 * second)
		b.granted(search)
		b.refused(search, limits.Primary, soon)
	}},
	{"only an answer that tells of the window ends its slow start", func(b *book) {
		old := time.Now().Add(10 * second)
		late := b.granted(get("core"))
		b.spend(get("core"), told("core", 10, 20, old))
		outcome := told("core", 9, 20, old)
		pass(10*second + jitter)
		for range 2 {
			b.granted(get("core"))
		}
		b.settled(late, outcome)
		b.settled(b.granted(get("core")), limits.Outcome{Sent: true, Answered: true, Ended: true, Failed: true})
		b.refused(get("core"), limits.Primary, soon)
	}},
	{"requests in flight count", func(b *book) {
		reset := time.Now().Add(time.Hour)
		b.spend(get("core"), told("core", 4998, 5000, reset))
		first, second := b.granted(get("core")), b.granted(get("core"))
		b.refused(get("core"), limits.Primary, soon)
		b.settled(second, told("core", 4998, 5000, reset)) // a 304 that was not counted
		b.granted(get("core"))
		b.refused(get("core"), limits.Primary, soon)
		b.settled(first, limits.Outcome{}) // never sent: costs nothing
		b.granted(get("core"))
	}},
	{"a request without an answer was perhaps counted", func(b *book) {
		reset := time.Now().Add(time.Hour)
		b.spend(get("core"), told("core", 4998, 5000, reset))
		b.settled(b.granted(get("core")), limits.Outcome{Sent: true})
		lost := b.granted(get("core"))
		b.refused(get("core"), limits.Primary, soon)
		b.settled(lost, limits.Outcome{})
		pass(10 * second) // now the first is surely over
		pass(second)
		b.spend(get("core"), told("core", 4999, 5000, reset)) // sent later, so it would show the lost one
		b.granted(get("core"))
		b.refused(get("core"), limits.Primary, soon)
	}},
	{"only a few go before the first answer", func(b *book) {
		var flying []limits.Permit
		for range 3 {
			flying = append(flying, b.granted(get("core")))
		}
		b.refused(get("core"), limits.Primary, soon)
		pass(second)
		b.granted(get("core")) // those may be lost
		b.refused(get("core"), limits.Primary, soon)
		b.settled(flying[0], told("core", 1, 1000, time.Now().Add(time.Hour)))
		for range 90 {
			b.granted(get("core"))
		}
	}},
	{"answers in any order teach the same", func(b *book) {
		reset := time.Now().Add(time.Hour)
		for _, used := range []int{4000, 3990, 4010, 4005} {
			b.spend(get("core"), told("core", used, 5000, reset.Add(time.Duration(used%3-1)*second)))
		}
		b.want("used", b.budget("core").Used, 4010)
		b.spend(get("core"), told("core", 60, 60, reset.Add(-2*time.Hour))) // of a window that is long over
		b.want("used", b.budget("core").Used, 4010)
		b.want("limit", b.budget("core").Limit, 5000)
	}},
	{"late answers of a window that has ended say nothing", func(b *book) {
		old := time.Now().Add(60 * second)
		late := b.granted(get("core"))
		outcome := told("core", 5000, 5000, old)
		b.spend(get("core"), told("core", 4999, 5000, old))
		pass(60*second + jitter)
		b.settled(late, outcome)
		b.want("used", b.budget("core").Used, 0)
		late = b.granted(get("core"))
		outcome = told("core", 5000, 5000, old.Add(second))
		outcome.Rate.Date = outcome.Rate.Date.Add(-2 * second) // written before the end
		b.settled(late, outcome)
		b.want("used, with the reset rounded otherwise", b.budget("core").Used, 0)
	}},
	{"no reset is farther than a day", func(b *book) {
		b.spend(get("core"), told("core", 5000, 5000, time.Now().Add(30*24*time.Hour)))
		b.refused(get("core"), limits.Primary, 24*time.Hour+jitter)
	}},
	{"the upstream's clock may be any other", func(b *book) {
		for i, ahead := range []time.Duration{-time.Hour, 1900 * time.Millisecond, -1900 * time.Millisecond, 24 * time.Hour} {
			c := get("core")
			c.Account = fmt.Sprint("clock ", i)
			o := told("core", 5000, 5000, time.Now().Add(ahead+60*second).Truncate(second))
			o.Rate.Date = time.Now().Add(ahead).Truncate(second)
			b.spend(c, o)
			c.ID = 0
			over := time.Until(o.Rate.Reset.Add(-ahead)) // on our clock
			_, d := b.ask(c)
			if wait := time.Until(d.Until); wait < over+jitter || wait > over+jitter+second {
				b.Errorf("%v ahead: refused for %v, the window ends in %v", ahead, wait, over)
			}
		}
	}},
	{"regions that count apart must both allow", func(b *book) {
		early, late := time.Now().Add(100*second), time.Now().Add(400*second)
		b.spend(get("core"), told("core", 5000, 5000, early))
		pass(second)
		b.settled(b.granted(claimOf("b")), limits.Outcome{}) // another account goes on
		b.refused(get("core"), limits.Primary, 101*second)
		pass(101 * second)
		b.spend(get("core"), told("core", 10, 5000, late))
		b.spend(get("core"), told("core", 4000, 5000, late.Add(100*second)))
		b.want("used", b.budget("core").Used, 4000)
		b.spend(get("core"), told("core", 5000, 5000, late))
		b.refused(get("core"), limits.Primary, 300*second) // 102 of 400 s have passed, and two seconds more
	}},
	{"the upstream names the resource", func(b *book) {
		reset := time.Now().Add(time.Hour)
		b.settled(b.granted(get("core")), told("search", 30, 30, reset))
		b.refused(get("search"), limits.Primary, time.Hour+jitter)
		b.granted(get("core"))
	}},
	{"invented resources count as core", func(b *book) {
		for i := range 50 {
			b.spend(get(fmt.Sprint("made-up-", i)), told(fmt.Sprint("other-", i), i, 5000, time.Now().Add(time.Hour)))
		}
		names := map[string]bool{}
		for _, budget := range b.account().Budgets {
			names[budget.Resource] = true
		}
		if !names["core"] || len(names) != 2 { // and points:op
			b.Errorf("budgets: %v", names)
		}
	}},
	{"a primary limit error closes the resource only", func(b *book) {
		o := told("core", 4000, 5000, time.Now().Add(60*second))
		o.Limited = limits.PrimaryLimit
		b.spend(get("core"), o)
		b.refused(get("core"), limits.Primary, 60*second+jitter)
		b.granted(get("search"))
	}},
	{"a primary limit error without headers closes it for a window", func(b *book) {
		b.spend(get("core"), limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: limits.PrimaryLimit})
		b.refused(get("core"), limits.Primary, time.Hour+jitter)
	}},
	{"what is made up after such an error says nothing of another clock's windows", func(b *book) {
		b.spend(get("core"), limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: limits.PrimaryLimit})
		pass(time.Hour + jitter)
		behind := told("core", 5000, 5000, time.Now().Add(-2*time.Hour))
		behind.Rate.Date = time.Now().Add(-3 * time.Hour)
		b.spend(get("core"), behind) // full for an hour
		b.refused(get("core"), limits.Primary, time.Hour+jitter)
	}},
	{"batch leaves the last part of a window to others", func(b *book) {
		batch := get("core")
		batch.Batch = true
		reset := time.Now().Add(time.Hour)
		b.spend(batch, told("core", 4749, 5000, reset))
		b.spend(batch, told("core", 4751, 5000, reset))
		b.refused(batch, limits.Primary, 14400*time.Millisecond+time.Microsecond) // a 250th of the hour frees one more
		b.granted(get("core"))
		pass(time.Hour - 10*second)
		b.spend(get("core"), told("core", 4990, 5000, reset))
		b.granted(batch) // at its end the window is for all
	}},
	{"nothing is granted where nothing is allowed", func(b *book) {
		c := get("code_search")
		c.Kind = policy.Unauthenticated
		b.refused(c, limits.Primary, 60*second)
	}},
	{"an upstream that tells nothing is counted for", func(b *book) {
		c := get("core")
		c.Kind = policy.Unauthenticated // 60 an hour
		for range 57 {
			b.spend(c, limits.Outcome{Sent: true, Answered: true, Ended: true})
		}
		batch := c
		batch.Batch = true
		b.refused(batch, limits.Primary, time.Hour+jitter) // a twentieth is for others
		for range 3 {
			b.spend(c, limits.Outcome{Sent: true, Answered: true, Ended: true})
		}
		b.refused(c, limits.Primary, time.Hour+jitter)
	}},
}

func claimOf(account string) limits.Claim {
	c := get("core")
	c.Account = account
	return c
}

// logs are stories of the sliding windows (design section 5.2).
var logs = []story{
	{"points return one window after their answers", func(b *book) {
		write := get("core")
		write.Points = 5
		for range 180 {
			b.spend(write, plain())
		}
		b.refused(get("core"), limits.Points, 60*second)
		b.want("points", b.budget("points:op").Used, 900)
		other := get("core")
		other.Operation = "other"
		b.granted(other) // each operation has its own
		pass(60*second - time.Microsecond)
		b.refused(get("core"), limits.Points, time.Microsecond)
		pass(time.Microsecond)
		b.granted(get("core"))
	}},
	{"what is in flight is held, and stamped when its answer comes", func(b *book) {
		b.spend(get("core"), plain())
		for range 898 {
			b.spend(get("core"), plain())
		}
		last := b.granted(get("core"))
		pass(10 * second)
		b.refused(get("core"), limits.Points, soon)
		b.settled(last, plain())
		b.refused(get("core"), limits.Points, 50*second)
		pass(50 * second)
		for range 899 {
			b.spend(get("core"), plain())
		}
		b.refused(get("core"), limits.Points, 10*second)
	}},
	{"spends that lie near together return with the last of them", func(b *book) {
		write := get("core")
		write.Points = 450
		b.spend(write, plain())
		pass(200 * time.Millisecond) // less than a 256th of a minute
		b.spend(write, plain())
		b.refused(write, limits.Points, 60*second)
		pass(60 * second)
		b.spend(write, plain())
		pass(235 * time.Millisecond)
		b.spend(write, plain())
		b.refused(write, limits.Points, 60*second-235*time.Millisecond)
		pass(120 * second)
		write.Points = 300
		for range 3 { // each near to the one before, the last not to the first
			b.spend(write, plain())
			pass(150 * time.Millisecond)
		}
		b.refused(write, limits.Points, 60*second-300*time.Millisecond)
	}},
	{"search has an exact log beside its window", func(b *book) {
		for i := range 30 {
			b.spend(get("search"), told("search", i+1, 30, time.Now().Add(60*second-time.Duration(i)*second)))
			pass(second)
		}
		// All of the upstream's window returns at once; the log lets one through
		// for each second that passes.
		pass(31 * second)
		for i := range 2 {
			b.spend(get("search"), told("search", i+1, 30, time.Now().Add(60*second)))
		}
		b.refused(get("search"), limits.Primary, second)
	}},
	{"GraphQL has points of its own", func(b *book) {
		c := get("graphql")
		c.Points = 1000
		b.spend(c, told("graphql", 1, 5000, time.Now().Add(time.Hour)))
		b.spend(c, told("graphql", 2, 5000, time.Now().Add(time.Hour)))
		b.refused(c, limits.Points, 60*second)
	}},
	{"content creation has two windows", func(b *book) {
		c := get("core")
		c.CreatesContent, c.Points = true, 1
		for range 80 {
			b.spend(c, plain())
		}
		b.refused(c, limits.Content, 60*second)
		b.granted(get("core"))
		for range 5 {
			pass(60 * second)
			for range 80 {
				b.spend(c, plain())
			}
		}
		pass(60 * second)
		for range 20 {
			b.spend(c, plain())
		}
		b.refused(c, limits.Content, 3600*second-360*second)
	}},
	{"CPU time is held as expected, and charged as taken", func(b *book) {
		c := get("core")
		c.CPU = 30 * second
		one, two := b.granted(c), b.granted(c)
		three := b.granted(c)
		b.refused(c, limits.CPU, soon)
		o := plain()
		o.Elapsed = 10 * second
		b.settled(one, o)
		b.settled(two, o)
		b.want("cpu", b.budget("cpu").Used, 20_000)
		b.granted(c)
		b.settled(three, o)
		c.CPU = 31 * second
		b.refused(c, limits.CPU, soon)
	}},
	{"GraphQL may take part of the CPU time", func(b *book) {
		c := get("graphql")
		c.CPU = 60 * second
		p := b.granted(c)
		c.CPU = second
		b.refused(c, limits.CPU, soon)
		rest := get("core")
		rest.CPU = 30 * second
		b.granted(rest)
		b.settled(p, limits.Outcome{})
		b.granted(c)
	}},
	{"a request that would take more CPU time than there is goes alone", func(b *book) {
		c := get("core")
		c.CPU = time.Hour
		p := b.granted(c)
		b.refused(c, limits.CPU, soon)
		b.settled(p, limits.Outcome{})
		b.granted(c)
	}},
	{"the strictest budget is named", func(b *book) {
		c := get("core")
		c.CreatesContent, c.Points = true, 900
		b.spend(c, plain())
		pass(10 * second)
		for range 79 {
			d := get("core")
			d.CreatesContent, d.Operation = true, "other"
			b.spend(d, plain())
		}
		b.refused(c, limits.Content, 50*second) // both, and as long
		d := get("core")
		d.CreatesContent, d.Operation = true, "other"
		pass(50 * second)
		b.spend(d, plain())
		c.Points = 1
		b.refused(d, limits.Content, 10*second)
	}},
}
