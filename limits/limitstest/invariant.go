package limitstest

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// invariant is a property of limits.md section 5.9, of the account that a random
// history has left behind.
type invariant struct {
	name string
	// orderly is whether the upstream contradicts itself in nothing.
	orderly bool
	hold    func(b *book, d drawn) (broken string)
}

// drawn is what an invariant needs of chance.
type drawn struct {
	history []step
	claim   limits.Claim
	wait    time.Duration
	others  int
}

func draw(t *rapid.T) drawn {
	return drawn{
		drawHistory(t), drawClaim(t), time.Duration(rapid.IntRange(1, 90).Draw(t, "wait")) * second, rapid.IntRange(1, 5).Draw(t, "others"),
	}
}

var invariants = []invariant{
	{"I7 what is settled after its end gives nothing back", false, func(b *book, _ drawn) string {
		c := get(policy.Core)
		c.ID, c.CreatesContent, c.CPU = 1000, true, second
		p, d := b.ask(c)
		if !d.Granted {
			return ""
		}
		pass(31 * second)
		before := b.account()
		b.settled(p, limits.Outcome{})
		return differ("settled as not sent", b.account(), before)
	}},
	{"I12 all places come back when nobody renews them", false, func(b *book, _ drawn) string {
		pass(30 * second)
		return differ("places taken", b.account().InUse, 0)
	}},
	{"I13 after an error nothing, and then one probe", false, func(b *book, d drawn) string {
		pass(2 * time.Hour) // all windows are over
		// A ledger that has forgotten the account waits for a second.
		first, _ := b.ask(get(policy.Core))
		b.settled(first, limits.Outcome{})
		pass(second)
		p := b.granted(get(policy.Core))
		b.settled(p, limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: limits.SecondaryLimit, RetryAfter: d.wait})
		until := b.account().BlockedUntil
		pass(time.Until(until) - time.Microsecond)
		if _, early := b.ask(get(policy.Core)); early.Granted || !early.Until.Equal(until) {
			return differ("before the end", early, limits.Decision{Until: until, Reason: limits.Cooldown})
		}
		pass(time.Microsecond)
		probe := b.granted(get(policy.Core))
		for range d.others {
			if _, another := b.ask(get(policy.Search)); another.Granted {
				return "two probes"
			}
		}
		b.settled(probe, plain())
		if _, after := b.ask(get(policy.Search)); !after.Granted {
			return "nothing after the probe"
		}
		return ""
	}},
	{"I15 a refusal tells when it ends", true, func(b *book, d drawn) string {
		for _, s := range d.history { // nobody else is in flight
			if s.what == admits {
				b.settled(limits.Permit{Claim: s.claim}, limits.Outcome{})
				b.released(limits.Permit{Claim: s.claim}, false)
			}
		}
		pass(10 * second)
		c := d.claim
		c.ID, c.Batch = 1000, false
		// One budget after the other may stand in the way; and of a window that has
		// ended, what was perhaps counted.
		for range 10 {
			_, refusal := b.ask(c)
			if refusal.Granted || refusal.Until.IsZero() {
				return ""
			}
			pass(time.Until(refusal.Until) - time.Microsecond)
			if _, early := b.ask(c); early.Granted {
				return fmt.Sprintf("granted a microsecond before %v (%s)", refusal.Until.UTC(), refusal.Reason)
			}
			pass(time.Microsecond)
			_, now := b.ask(c)
			if exact := refusal.Reason != limits.Primary; exact && !now.Granted && now.Reason == refusal.Reason {
				return differ("at the time that was told", now, limits.Decision{Granted: true})
			}
		}
		return "refused again and again"
	}},
}

// properties holds every invariant after random histories.
func properties(t *testing.T, open Open) {
	for _, i := range invariants {
		t.Run(i.name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				rules, d := drawRules(rt), draw(rt)
				var broken string
				synctest.Test(t, func(t *testing.T) {
					b := newBook(t, open, rules)
					b.lastID = 2000
					c := &chronicle{Ledger: b.Ledger, model: &model{rules: rules, kind: policy.User}, repeat: 1}
					for _, s := range d.history {
						s.outcome.orderly = i.orderly
						c.told(s)
					}
					if broken = i.hold(b, d); broken != "" {
						broken = strings.Join(c.story, "\n") + fmt.Sprintf("\n%+v\n", d.claim) + broken
					}
				})
				if broken != "" {
					rt.Fatal(broken)
				}
			})
		})
	}
	t.Run("I8 the order of what is told does not matter", func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) {
			statements := drawStatements(rt)
			shuffled := rapid.Permutation(append(statements, statements...)).Draw(rt, "order")
			var one, other limits.Account
			synctest.Test(t, func(t *testing.T) { one = heard(newBook(t, open, limits.Rules{Limits: tight()}), statements) })
			synctest.Test(t, func(t *testing.T) { other = heard(newBook(t, open, limits.Rules{Limits: tight()}), shuffled) })
			if difference := differ("told in another order", other, one); difference != "" {
				rt.Fatal(difference)
			}
		})
	})
}

// reserve holds what batch must leave to others at any time of a window.
func reserve(t *testing.T, open Open) {
	t.Run("I18 who is in no batch finds a part of the window at any time", func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) {
			minutes := rapid.IntRange(0, 59).Draw(rt, "minutes")
			got := 0
			synctest.Test(t, func(t *testing.T) {
				b := newBook(t, open, limits.Rules{Limits: wideLimits()})
				reset := time.Now().Add(time.Hour)
				pass(time.Duration(minutes) * time.Minute)
				used := b.useUp(true, 0, reset)
				got = b.useUp(false, used, reset) - used
			})
			if least := most / 20 * (60 - minutes) / 60; got < least {
				rt.Fatalf("%d were left, of at least %d", got, least)
			}
		})
	})
}

// most is a primary limit that nothing else binds before.
const most = 120

func wideLimits() policy.Limits {
	l := policy.DefaultLimits()
	l.Primary.User, l.Points.REST = most, 1_000_000
	return l
}

// useUp sends until nothing is granted any more, and returns how much is used.
func (b *book) useUp(batch bool, used int, reset time.Time) int {
	c := get(policy.Core)
	c.Batch = batch
	for {
		p, d := b.ask(c)
		if !d.Granted {
			return used
		}
		used++
		b.settled(p, told(policy.Core, used, most, reset))
	}
}

// drawStatements draws what one window's answers have told: resets that flicker
// by a second, uses in any order, answers of the window before among them.
func drawStatements(t *rapid.T) []limits.Rate {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) limits.Rate {
		reset := 60 + rapid.IntRange(0, 1).Draw(t, "flicker")
		if rapid.IntRange(0, 3).Draw(t, "old") == 3 {
			reset = -30
		}
		return limits.Rate{
			Limit: 50, Used: rapid.IntRange(0, 50).Draw(t, "used"), Resource: policy.Core,
			Reset: time.Unix(946684800+int64(reset), 0), Date: time.Unix(946684800, 0),
		}
	}), 1, 9).Draw(t, "statements")
}

// heard is the account after statements, all at one time; two requests in a row
// are sent to hear them, and nothing else is known of it.
func heard(b *book, statements []limits.Rate) limits.Account {
	late := get(policy.Core)
	late.ID = 1
	for _, rate := range statements { // answers to permits that have ended long ago
		b.settled(limits.Permit{Claim: late}, limits.Outcome{Sent: true, Answered: true, Ended: true, Rate: rate})
	}
	return used(b.account())
}
