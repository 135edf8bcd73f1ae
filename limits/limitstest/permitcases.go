package limitstest

import (
	"time"

	"github.com/weirgate/weir/limits"
)

// leases are stories of permits in flight (limits.md sections 5.3, 5.5).
var leases = []story{
	{"a place is free when the body has ended", func(b *book) {
		b.spend(get("core"), plain())
		var flying []limits.Permit
		for range 100 {
			flying = append(flying, b.granted(get("core")))
		}
		b.refused(get("core"), limits.Concurrency, soon)
		o := plain()
		o.Ended = false
		b.settled(flying[0], o)
		b.refused(get("core"), limits.Concurrency, soon)
		b.released(flying[0], false)
		b.granted(get("core"))
		b.settled(flying[1], plain())
		b.granted(get("core"))
	}},
	{"an aborted request keeps its place for a while", func(b *book) {
		b.spend(get("core"), plain())
		var flying []limits.Permit
		for range 100 {
			flying = append(flying, b.granted(get("core")))
		}
		o := plain()
		o.Ended = false
		b.settled(flying[0], o)
		b.released(flying[0], true)
		b.settled(flying[1], limits.Outcome{Sent: true})
		pass(10*second - time.Microsecond)
		b.refused(get("core"), limits.Concurrency, soon)
		pass(time.Microsecond)
		b.granted(get("core"))
		b.granted(get("core"))
		b.refused(get("core"), limits.Concurrency, soon)
	}},
	{"a permit that nobody renews ends, and is charged", func(b *book) {
		write := get("core")
		write.Points = 450
		b.granted(write)
		b.granted(write)
		pass(30*second - time.Microsecond)
		b.refused(write, limits.Points, soon)
		b.want("in flight", b.account().InUse, 2)
		pass(time.Microsecond)
		b.refused(write, limits.Points, 60*second)
		b.want("in flight", b.account().InUse, 0)
		b.want("used", b.budget("core").Used, 2)
		pass(60 * second)
		b.granted(write)
	}},
	{"a permit that is renewed lives on", func(b *book) {
		p := b.granted(get("core"))
		for range 20 {
			pass(5 * second)
			b.renewed(5*second, p)
		}
		b.want("in flight", b.account().InUse, 1)
		b.settled(p, plain())
		b.want("in flight", b.account().InUse, 0)
	}},
	{"a permit that had ended is taken up again", func(b *book) {
		p := b.granted(get("core"))
		pass(31 * second)
		b.want("in flight", b.account().InUse, 0)
		b.renewed(31*second, p)
		b.want("in flight", b.account().InUse, 1)
		b.settled(p, plain())
		b.want("in flight", b.account().InUse, 0)
		b.want("charged twice rather than not at all", b.budget("points:op").Used, 2)
	}},
	{"CPU time in flight grows", func(b *book) {
		c := get("core")
		c.CPU = 30 * second
		p, q := b.granted(c), b.granted(c)
		b.renewed(20*second, p, q)
		b.want("held", b.budget("cpu").Held, 60_000)
		b.renewed(50*second, p, q)
		b.want("held", b.budget("cpu").Held, 100_000)
		b.refused(c, limits.CPU, soon)
		o := plain()
		o.Elapsed = 50 * second
		b.settled(p, o)
		b.settled(q, o)
		b.want("taken", b.budget("cpu").Used, 100_000) // more than there is
		c.CPU = second
		b.refused(c, limits.CPU, 60*second)
	}},
	{"asking again with the same ID changes nothing", func(b *book) {
		c := get("core")
		c.ID = 77
		b.granted(c)
		b.granted(c)
		b.want("in flight", b.account().InUse, 1)
		b.settled(limits.Permit{Claim: c}, plain())
		b.settled(limits.Permit{Claim: c}, plain())
		b.released(limits.Permit{Claim: c}, false)
		b.want("in flight", b.account().InUse, 0)
		b.want("points", b.budget("points:op").Used, 1)
	}},
	{"a request that was not sent costs nothing", func(b *book) {
		c := get("search")
		c.CreatesContent, c.CPU = true, second
		b.settled(b.granted(c), limits.Outcome{Elapsed: second})
		for _, budget := range b.account().Budgets {
			b.want(budget.Resource, budget.Used+budget.Held, 0)
		}
		b.want("in flight", b.account().InUse, 0)
	}},
	{"what the transport sent again is charged again", func(b *book) {
		c := get("core")
		c.Points, c.CPU = 5, second
		o := plain()
		o.Resent, o.Elapsed = 2, second
		b.settled(b.granted(c), o)
		b.want("points of the one answered", b.budget("points:op").Used, 5)
		b.want("points of the others", b.budget("points:op").Held, 10)
		b.want("in flight", b.account().InUse, 1)
		pass(10 * second)
		b.want("points", b.budget("points:op").Used, 15)
		b.want("cpu", b.budget("cpu").Used, 1000)
		b.want("used", b.budget("core").Used, 3)
		b.want("in flight", b.account().InUse, 0)
	}},
	{"copies of a request that was given up are charged too", func(b *book) {
		c := get("core")
		c.Points = 5
		p := b.granted(c)
		b.settled(p, limits.Outcome{Sent: true, Resent: 1})
		b.settled(p, limits.Outcome{Sent: true, Resent: 1})
		b.want("points", b.budget("points:op").Held, 10)
		b.want("in flight", b.account().InUse, 2)
		pass(10 * second)
		b.want("points", b.budget("points:op").Used, 10)
		b.want("used", b.budget("core").Used, 2)
	}},
	{"copies have a place beside the answer's", func(b *book) {
		o := plain()
		o.Resent, o.Ended = 1, false
		p := b.granted(get("core"))
		b.settled(p, o)
		b.settled(p, o)
		b.want("in flight", b.account().InUse, 2)
		pass(10 * second)
		b.want("in flight after a while", b.account().InUse, 1)
		b.released(p, false)
		b.want("in flight at the end", b.account().InUse, 0)
		b.want("used", b.budget("core").Used, 2)
	}},
	{"an answer after the permit's end still teaches", func(b *book) {
		p := b.granted(get("core"))
		pass(31 * second)
		b.settled(p, told("core", 5000, 5000, time.Now().Add(60*second)))
		b.refused(get("core"), limits.Primary, 60*second+jitter)
	}},
}

// limitedBy is the outcome of a request that was answered with a secondary
// limit error.
func limitedBy(retryAfter time.Duration) limits.Outcome {
	o := plain()
	o.Limited, o.RetryAfter = limits.SecondaryLimit, retryAfter
	return o
}

// cooldowns are stories of secondary limit errors (design section 5.4).
var cooldowns = []story{
	{"retry-after is kept, and a second more", func(b *book) {
		b.spend(get("core"), limitedBy(17*second))
		b.refused(get("search"), limits.Cooldown, 17*second+margin)
		b.want("blocked", time.Until(b.account().BlockedUntil), 17*second+margin)
	}},
	{"with remaining 0 the reset is waited for", func(b *book) {
		o := told("core", 5000, 5000, time.Now().Add(300*second))
		o.Limited = limits.SecondaryLimit
		b.spend(get("core"), o)
		b.refused(get("search"), limits.Cooldown, 300*second+jitter)
	}},
	{"otherwise a minute", func(b *book) {
		b.spend(get("core"), limitedBy(0))
		b.refused(get("search"), limits.Cooldown, 60*second)
	}},
	{"without any header a minute", func(b *book) {
		b.spend(get("core"), limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: limits.SecondaryLimit})
		b.refused(get("search"), limits.Cooldown, 60*second)
	}},
	{"it doubles while errors repeat, up to about an hour", func(b *book) {
		for _, minutes := range []int{1, 2, 4, 8, 16, 32, 64, 64} {
			rest := time.Duration(minutes) * time.Minute
			b.spend(get("core"), limitedBy(0))
			b.refused(get("core"), limits.Cooldown, rest)
			pass(rest)
		}
	}},
	{"errors of requests that were in flight are one misfortune", func(b *book) {
		b.spend(get("core"), plain())
		pass(second)
		var flying []limits.Permit
		for range 10 {
			flying = append(flying, b.granted(get("core")))
		}
		pass(second)
		for _, p := range flying {
			b.settled(p, limitedBy(0))
		}
		b.refused(get("core"), limits.Cooldown, 60*second)
		b.want("half of the places are left", b.account().Concurrent, 50)
	}},
	{"errors of permits taken up again are one misfortune too", func(b *book) {
		b.spend(get("core"), plain())
		p, q := b.granted(get("core")), b.granted(get("core"))
		pass(31 * second)
		b.renewed(31*second, p, q)
		b.settled(p, limitedBy(0))
		b.settled(q, limitedBy(0))
		b.refused(get("core"), limits.Cooldown, 60*second)
		b.want("half of the places are left", b.account().Concurrent, 50)
	}},
	{"one probe decides", func(b *book) {
		b.spend(get("core"), limitedBy(10*second))
		pass(11 * second)
		probe := b.granted(get("core"))
		b.refused(get("core"), limits.Cooldown, soon)
		b.settled(probe, limitedBy(0))
		b.refused(get("core"), limits.Cooldown, 120*second) // the second in a row
		pass(120 * second)
		b.settled(b.granted(get("core")), limits.Outcome{}) // not sent: another must probe
		failed := plain()
		failed.Failed = true
		b.spend(get("core"), failed) // a 503 proves nothing
		probe = b.granted(get("core"))
		b.refused(get("core"), limits.Cooldown, soon)
		b.settled(probe, plain())
		b.granted(get("core"))
	}},
	{"a probe that is lost is replaced", func(b *book) {
		b.spend(get("core"), limitedBy(10*second))
		pass(11 * second)
		b.granted(get("core"))
		pass(30 * second)
		b.settled(b.granted(get("core")), limits.Outcome{Sent: true}) // no answer
		b.granted(get("core"))
	}},
	{"an error that comes while the probe is away asks for another probe", func(b *book) {
		older := b.granted(get("core"))
		b.spend(get("core"), limitedBy(10*second))
		pass(11 * second)
		b.granted(get("core")) // the probe
		b.settled(older, limitedBy(10*second))
		b.refused(get("core"), limits.Cooldown, 11*second)
		pass(11 * second)
		b.granted(get("core"))
	}},
	{"an error in the slow start is one more in a row", func(b *book) {
		b.spend(get("core"), limitedBy(0))
		pass(60 * second)
		b.spend(get("core"), plain()) // the probe
		b.spend(get("core"), plain())
		b.spend(get("core"), limitedBy(0))
		b.refused(get("core"), limits.Cooldown, 120*second)
	}},
	{"after the probe the number in flight doubles every five seconds", func(b *book) {
		b.spend(get("core"), plain())
		b.spend(get("core"), limitedBy(10*second))
		pass(11 * second)
		b.spend(get("core"), plain())
		var flying []limits.Permit
		fill := func(most int) {
			for len(flying) < most {
				flying = append(flying, b.granted(get("core")))
			}
		}
		for _, most := range []int{1, 2, 4, 8, 16, 32} {
			fill(most)
			b.refused(get("core"), limits.Concurrency, soon)
			pass(5 * second)
			b.renewed(second, flying...)
		}
		fill(50) // half of a hundred: the ceiling that the error has left
	}},
	{"full use raises the ceiling", func(b *book) {
		b.spend(get("core"), plain())
		b.spend(get("core"), limitedBy(10*second))
		pass(11 * second)
		b.spend(get("core"), plain())
		pass(60 * second)
		b.spend(get("core"), plain())
		b.want("places", b.account().Concurrent, 50)
		var flying []limits.Permit
		for range 50 {
			flying = append(flying, b.granted(get("core")))
		}
		b.want("places", b.account().Concurrent, 51)
		b.granted(get("core"))
		b.refused(get("core"), limits.Concurrency, soon)
		b.settled(flying[0], plain())
		pass(10 * second)
		b.granted(get("core"))
		b.want("places", b.account().Concurrent, 52)
	}},
	{"an answer to an older request ends no cool-down", func(b *book) {
		b.spend(get("core"), plain())
		old := b.granted(get("core"))
		pass(second)
		b.spend(get("core"), limitedBy(10*second))
		b.settled(old, plain())
		b.refused(get("core"), limits.Cooldown, 10*second+margin)
	}},
}
