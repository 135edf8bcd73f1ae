package limitstest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// invariant is a property of an account after a random history (docs/internals/limits.md).
type invariant struct {
	name string
	// consistent means that the reports of the upstream do not contradict each other.
	consistent bool
	check      func(b *harness, d drawn) (violation string)
}

// drawn contains the random input of an invariant.
type drawn struct {
	history []step
	claim   limits.Claim
	wait    time.Duration
	more    int
}

func draw(t *rapid.T) drawn {
	return drawn{
		drawHistory(t), drawClaim(t), time.Duration(rapid.IntRange(1, 90).Draw(t, "wait")) * second,
		rapid.IntRange(1, 5).Draw(t, "more"),
	}
}

var invariants = []invariant{
	{"I7 settling an expired permit returns nothing", false, func(b *harness, _ drawn) string {
		c := get(policy.Core)
		c.ID, c.CreatesContent, c.CPU = 1000, true, second
		p, d := b.admit(c)
		if !d.Granted {
			return ""
		}
		time.Sleep(31 * second)
		before := b.account()
		b.settled(p, limits.Outcome{})
		return differ("account after settling as not sent", b.account(), before)
	}},
	{"I12 all slots are free after permits expire", false, func(b *harness, _ drawn) string {
		time.Sleep(30 * second)
		return differ("slots in use", b.account().InUse, 0)
	}},
	{"I13 nothing is granted during a cool-down, then one probe", false, func(b *harness, d drawn) string {
		time.Sleep(2 * time.Hour) // all windows have ended
		_ = b.Open(context.Background(), testAccount)
		// A ledger that has removed the account may refuse for one second.
		first, _ := b.admit(get(policy.Core))
		b.settled(first, limits.Outcome{})
		time.Sleep(second)
		p := b.granted(get(policy.Core))
		b.settled(p, limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: policy.LimitSecondary,
			RetryAfter: d.wait})
		if !b.account().ClosedSince.IsZero() {
			return "" // the request was the last of several failed probes
		}
		until := b.account().BlockedUntil
		time.Sleep(time.Until(until) - time.Microsecond)
		if _, early := b.admit(get(policy.Core)); early.Granted || early.Wait != time.Until(until) {
			return differ("claim before the end", early, limits.Decision{Wait: time.Until(until), Reason: limits.Cooldown})
		}
		time.Sleep(time.Microsecond)
		probe := b.granted(get(policy.Core))
		for range d.more {
			if _, another := b.admit(get(policy.Search)); another.Granted {
				return "a second probe was granted"
			}
		}
		b.settled(probe, answered())
		if _, after := b.admit(get(policy.Search)); !after.Granted {
			return "refused after the probe succeeded"
		}
		return ""
	}},
	{"I15 a refusal states when it ends", true, func(b *harness, d drawn) string {
		for _, s := range d.history { // close all other permits
			if s.kind == admits {
				b.settled(limits.Permit{Claim: s.claim}, limits.Outcome{})
				b.released(limits.Permit{Claim: s.claim}, false)
			}
		}
		time.Sleep(10 * second)
		c := d.claim
		c.ID, c.Batch, c.Paced = 1000, false, false
		// Several budgets may refuse in sequence. Unconfirmed requests of an ended window may refuse again.
		for range 10 {
			_, refusal := b.admit(c)
			if refusal.Granted || refusal.Wait == 0 || refusal.Reason == limits.Closed {
				return ""
			}
			time.Sleep(refusal.Wait - time.Microsecond)
			if _, early := b.admit(c); early.Granted {
				return fmt.Sprintf("granted a microsecond before %v (%s)", refusal.Wait, refusal.Reason)
			}
			time.Sleep(time.Microsecond)
			_, now := b.admit(c)
			if exact := refusal.Reason != limits.Primary; exact && !now.Granted && now.Reason == refusal.Reason {
				return differ("claim at the stated time", now, limits.Decision{Granted: true})
			}
		}
		return "refused ten times"
	}},
}

// runInvariants checks every invariant after random histories.
func runInvariants(runCase func(name string, test func(*testing.T, Open))) {
	for _, i := range invariants {
		runCase(i.name, func(t *testing.T, open Open) {
			rapid.Check(t, func(rt *rapid.T) {
				rules, d := drawRules(rt), draw(rt)
				var violation string
				synctest.Test(t, func(t *testing.T) {
					b := newHarness(t, open, rules)
					b.lastID = 2000
					c := &player{Ledger: b.Ledger, model: &model{rules: rules, kind: policy.User}, repeat: 1}
					for _, s := range d.history {
						s.outcome.consistent = i.consistent
						c.apply(s)
					}
					if violation = i.check(b, d); violation != "" {
						violation = strings.Join(c.log, "\n") + fmt.Sprintf("\n%+v\n", d.claim) + violation
					}
				})
				if violation != "" {
					rt.Fatal(violation)
				}
			})
		})
	}
	runCase("I8 the order of reports does not matter", func(t *testing.T, open Open) {
		rapid.Check(t, func(rt *rapid.T) {
			reports := drawReports(rt)
			shuffled := rapid.Permutation(append(reports, reports...)).Draw(rt, "order")
			var first, second limits.Account
			synctest.Test(t, func(t *testing.T) {
				first = afterReports(newHarness(t, open, limits.Rules{Limits: tightLimits()}), reports)
			})
			synctest.Test(t, func(t *testing.T) {
				second = afterReports(newHarness(t, open, limits.Rules{Limits: tightLimits()}), shuffled)
			})
			if difference := differ("account after another order", second, first); difference != "" {
				rt.Fatal(difference)
			}
		})
	})
}

// runBatchReserve checks the part of a window that batch claims leave to other claims.
func runBatchReserve(runCase func(name string, test func(*testing.T, Open))) {
	runCase("I18 batch claims leave a part of the window at any time", func(t *testing.T, open Open) {
		rapid.Check(t, func(rt *rapid.T) {
			minutes := rapid.IntRange(0, 59).Draw(rt, "minutes")
			got := 0
			synctest.Test(t, func(t *testing.T) {
				b := newHarness(t, open, limits.Rules{Limits: wideLimits()})
				reset := time.Now().Add(time.Hour)
				time.Sleep(time.Duration(minutes) * time.Minute)
				used := b.useUp(true, 0, reset)
				got = b.useUp(false, used, reset) - used
			})
			if least := windowLimit / 20 * (60 - minutes) / 60; got < least {
				rt.Fatalf("%d requests were left, want at least %d", got, least)
			}
		})
	})
}

// windowLimit is a primary limit that requests reach before any other limit.
const windowLimit = 120

func wideLimits() policy.Limits {
	l := policy.DefaultLimits()
	l.Primary.User, l.Points.REST = windowLimit, 1_000_000
	return l
}

// useUp sends requests until a claim is refused, and returns the use.
func (b *harness) useUp(batch bool, used int, reset time.Time) int {
	c := get(policy.Core)
	c.Batch = batch
	for {
		p, d := b.admit(c)
		if !d.Granted {
			return used
		}
		used++
		b.settled(p, reported(policy.Core, used, windowLimit, reset))
	}
}

// drawReports draws the reports of one window: resets that differ by one second, uses in any order, and reports of the
// previous window.
func drawReports(t *rapid.T) []policy.Rate {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) policy.Rate {
		reset := 60 + rapid.IntRange(0, 1).Draw(t, "flicker")
		if rapid.IntRange(0, 3).Draw(t, "old") == 3 {
			reset = -30
		}
		return policy.Rate{
			Limit: 50, Used: rapid.IntRange(0, 50).Draw(t, "used"), Resource: policy.Core,
			Reset: time.Unix(946684800+int64(reset), 0), Date: time.Unix(946684800, 0),
		}
	}), 1, 9).Draw(t, "reports")
}

// afterReports returns the account after responses with the given reports, which all arrive at one time.
func afterReports(b *harness, reports []policy.Rate) limits.Account {
	expired := get(policy.Core)
	expired.ID = 1
	for _, rate := range reports { // responses to expired permits
		b.settled(limits.Permit{Claim: expired}, limits.Outcome{Sent: true, Answered: true, Ended: true, Rate: rate})
	}
	return withoutUnused(b.account())
}
