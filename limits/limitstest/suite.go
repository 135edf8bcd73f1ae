// Package ledgertest is the suite that makes a ledger a ledger: the rules of
// design section 5 as stories, and a naive model that every ledger must agree
// with on random histories.
//
// Every test runs in a bubble of virtual time (testing/synctest); a ledger that
// keeps time elsewhere must follow the bubble's clock.
//
// Where the invariants of limits.md section 5.9 are tests:
//
//	I1 to I3    limits/limitstest: an upstream counts by itself, over every ledger
//	I4, I6, I20 here: random histories, every step held against the model
//	I5          here: the same, every step made twice
//	I7, I8      here: properties of random histories
//	I9          limits/redisledger: Redis's clock goes back; memory has a monotonic one
//	I10, I11    limits/redisledger: failovers, empty servers, replicas cut off
//	I12         here for places, limits/redisledger for keys
//	I13         here, and limits/limitstest
//	I14         limits/limitstest and limits/redisledger: saturation
//	I15         here
//	I16, I17, I19 limits: the queue of the limiter
//	I18         here: what batch leaves to those who come later
package limitstest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// Open returns an empty ledger that keeps these rules, and cleans it up when
// the test ends. It is called inside the bubble.
type Open func(t *testing.T, rules limits.Rules) limits.Ledger

// RunSuite runs the whole suite.
func RunSuite(t *testing.T, open Open) {
	for _, group := range [][]story{windowCases, logs, leases, cooldowns} {
		for _, s := range group {
			t.Run(s.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { s.tell(newBook(t, open, limits.Rules{Limits: policy.DefaultLimits()})) })
			})
		}
	}
	histories(t, open)
	properties(t, open)
	reserve(t, open)
}

// story is a short history of one account.
type story struct {
	name string
	tell func(*book)
}

// book is a ledger with one account, told about step by step.
type book struct {
	*testing.T
	limits.Ledger
	lastID uint64
}

func newBook(t *testing.T, open Open, rules limits.Rules) *book {
	return &book{T: t, Ledger: open(t, rules)}
}

// second is one second; stories count in them.
const second = time.Second

func pass(d time.Duration) { time.Sleep(d) }

func get(resource string) limits.Claim {
	return limits.Claim{Account: "a", Kind: policy.User, Operation: "op", Resource: resource, Points: 1}
}

// ask claims; a claim without an ID gets the next one.
func (b *book) ask(c limits.Claim) (limits.Permit, limits.Decision) {
	b.Helper()
	if c.ID == 0 {
		b.lastID++
		c.ID = b.lastID
	}
	d, err := b.Admit(context.Background(), c)
	if err != nil {
		b.Fatal(err)
	}
	return limits.Permit{Claim: c}, d
}

func (b *book) granted(c limits.Claim) limits.Permit {
	b.Helper()
	p, d := b.ask(c)
	if !d.Granted {
		b.Fatalf("not granted: %s for %v", d.Reason, time.Until(d.Until))
	}
	return p
}

// soon is what a refusal says that a permit in flight decides.
const soon = time.Duration(0)

// refused checks that a claim is refused, why, and for how long.
func (b *book) refused(c limits.Claim, reason limits.Reason, wait time.Duration) {
	b.Helper()
	_, d := b.ask(c)
	got := soon
	if !d.Until.IsZero() {
		got = time.Until(d.Until)
	}
	if d.Granted || d.Reason != reason || got != wait {
		b.Errorf("granted %v, %s for %v; want %s for %v", d.Granted, d.Reason, got, reason, wait)
	}
}

// settled settles a permit with an outcome.
func (b *book) settled(p limits.Permit, o limits.Outcome) {
	b.Helper()
	if err := b.Settle(context.Background(), p, o); err != nil {
		b.Fatal(err)
	}
}

// told is the outcome of a request whose answer tells of the window.
func told(resource string, used, limit int, reset time.Time) limits.Outcome {
	return limits.Outcome{Sent: true, Answered: true, Ended: true, Rate: limits.Rate{
		Limit: limit, Used: used, Reset: reset, Date: time.Now().Truncate(second), Resource: resource,
	}}
}

// plain is the outcome of a request whose answer tells of a window that is
// nearly unused.
func plain() limits.Outcome { return told("core", 1, 5000, time.Now().Add(time.Hour)) }

// spend has a request answered at once.
func (b *book) spend(c limits.Claim, o limits.Outcome) {
	b.Helper()
	b.settled(b.granted(c), o)
}

func (b *book) released(p limits.Permit, aborted bool) {
	b.Helper()
	if err := b.Release(context.Background(), p, aborted); err != nil {
		b.Fatal(err)
	}
}

func (b *book) renewed(elapsed time.Duration, permits ...limits.Permit) {
	b.Helper()
	var flights []limits.OpenPermit
	for _, p := range permits {
		flights = append(flights, limits.OpenPermit{Permit: p, Elapsed: elapsed})
	}
	if err := b.Renew(context.Background(), flights); err != nil {
		b.Fatal(err)
	}
}

// account is the state of the account as people see it.
func (b *book) account() limits.Account {
	b.Helper()
	list, err := b.Accounts(context.Background(), 10)
	if err != nil {
		b.Fatal(err)
	}
	for _, a := range list {
		if a.Name == "a" {
			return a
		}
	}
	return limits.Account{}
}

// budget is one of the account's budgets, by name.
func (b *book) budget(name string) limits.Budget {
	b.Helper()
	for _, budget := range b.account().Budgets {
		if budget.Resource == name {
			return budget
		}
	}
	return limits.Budget{}
}

func (b *book) want(what string, got, want any) {
	b.Helper()
	if got != want {
		b.Errorf("%s: %v, want %v", what, got, want)
	}
}
