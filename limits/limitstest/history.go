package limitstest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

const testAccount = "a"

// step is one event of a history: a pause or a call of the ledger.
type step struct {
	kind    action
	pass    time.Duration
	before  int // position of the claim of this step, counted back from the latest claim
	claim   limits.Claim
	outcome draft
	aborted bool
	elapsed time.Duration
}

type action int

const (
	waits action = iota
	admits
	settles
	releases
	renews
	opens
)

// draft is an outcome without absolute times. Reset and date are relative to the time of the step.
type draft struct {
	limits.Outcome
	reset, date time.Duration
	dated       bool
	// consistent means that all reports are from one upstream with one clock.
	consistent bool
}

func (d draft) now() limits.Outcome {
	o := d.Outcome
	if d.consistent && o.Rate.Limit != 0 {
		o.Rate.Date = time.Now().Truncate(time.Second)
		o.Rate.Reset = time.Now().Truncate(tightLimits().Primary.Window).Add(tightLimits().Primary.Window)
	} else if o.Rate.Limit != 0 {
		o.Rate.Reset = time.Now().Add(d.reset).Truncate(time.Second)
		if d.dated {
			o.Rate.Date = time.Now().Add(d.date).Truncate(time.Second)
		}
	}
	return o
}

func (s step) String() string {
	switch s.kind {
	case waits:
		return fmt.Sprintf("wait %v", s.pass)
	case admits:
		c := s.claim
		return fmt.Sprintf("admit %d: %s of %s, cost %d, %d points, content %v, %v CPU, batch %v, paced %v", c.ID, c.Operation,
			c.Resource, c.Cost, c.Points, c.CreatesContent, c.CPU, c.Batch, c.Paced)
	case settles:
		return fmt.Sprintf("settle %d: %+v, reset in %v, date %v off", s.claim.ID, s.outcome.Outcome, s.outcome.reset,
			s.outcome.date)
	case releases:
		return fmt.Sprintf("release %d, aborted %v", s.claim.ID, s.aborted)
	case opens:
		return "open the account"
	default:
		return fmt.Sprintf("renew %d, %v elapsed", s.claim.ID, s.elapsed)
	}
}

// tightLimits returns limits that a few requests reach.
func tightLimits() policy.Limits {
	l := policy.DefaultLimits()
	l.Primary.User, l.Primary.Window = 6, 90*time.Second
	l.Search.Authenticated, l.Search.Code, l.Search.Window = 3, 2, 40*time.Second
	l.Concurrent = 5
	l.Points.REST, l.Points.GraphQL, l.Points.Window = 14, 160, 30*time.Second
	l.CPU.Total, l.CPU.GraphQL, l.CPU.Window = 6*time.Second, 4*time.Second, 35*time.Second
	l.Content = []policy.Window{{Max: 3, Window: 20 * time.Second}, {Max: 5, Window: time.Minute}}
	return l
}

func drawRules(t *rapid.T) limits.Rules {
	r := limits.Rules{Limits: tightLimits(), Probes: rapid.SampledFrom([]int{0, 1, 2, 3, 10}).Draw(t, "probes")}
	if rapid.IntRange(0, 3).Draw(t, "headroom") == 0 {
		r.Headroom = 0.2
	}
	if rapid.Bool().Draw(t, "wide windows") {
		r.Primary.User = 1000
	}
	return r
}

// drawHistory draws the events of one account.
func drawHistory(t *rapid.T) []step {
	switch rapid.IntRange(0, 5).Draw(t, "outside use") {
	case 5:
		return drawOutsideUse(t)
	case 4:
		return drawOutliers(t)
	}
	least, silentUntil := 1, 0
	if rapid.IntRange(0, 3).Draw(t, "silent upstream") == 3 { // windows become unlimited
		least, silentUntil = 50, rapid.IntRange(30, 70).Draw(t, "silent until")
	}
	history := rapid.SliceOfN(rapid.Custom(drawStep), least, 70).Draw(t, "history")
	var claims []limits.Claim
	proven := false // a ledger removes an account whose responses are all 401
	for i := range history {
		s := &history[i]
		s.outcome.Unauthorized = s.outcome.Unauthorized && proven
		if o := &s.outcome.Outcome; i < silentUntil {
			o.Rate, o.Limited, o.RetryAfter, o.Failed, o.Succeeded = policy.Rate{}, policy.NotLimited, 0, false, o.Answered
		}
		before := min(s.before, len(claims))
		switch {
		case s.kind == waits, s.kind == opens:
		case s.kind == admits && (before < 3 || s.before > 5): // usually a new claim
			s.claim.ID = uint64(len(claims) + 1)
			claims = append(claims, s.claim)
		case before > 0:
			s.claim = claims[len(claims)-before]
			proven = proven || s.kind == settles && !s.outcome.Unauthorized
		default:
			s.kind, s.pass = waits, time.Microsecond // the step has no claim
		}
	}
	return history
}

// drawOutsideUse draws a history in which requests follow each other quickly and get many secondary limit errors, as if
// another program used the same budgets.
func drawOutsideUse(t *rapid.T) (history []step) {
	for id := range uint64(rapid.IntRange(20, 60).Draw(t, "requests")) {
		pass := rapid.SampledFrom([]time.Duration{time.Microsecond, time.Second, 5 * time.Second, time.Minute}).Draw(t, "pause")
		if rapid.IntRange(0, 9).Draw(t, "long pause") == 9 {
			pass = drawPause(t)
		}
		c := drawClaim(t)
		c.ID, c.Resource, c.Batch, c.Paced = id+1, policy.Core, false, false
		if c.Operation == policy.GraphQL {
			c.Operation = "users/get"
		}
		var d draft
		d.Sent, d.Answered, d.Succeeded = true, true, true
		d.Elapsed = time.Duration(rapid.IntRange(0, 400).Draw(t, "milliseconds")) * time.Millisecond
		if rapid.IntRange(0, 3).Draw(t, "limited") == 3 {
			d.Limited, d.Succeeded = policy.LimitSecondary, false
			d.RetryAfter = rapid.SampledFrom([]time.Duration{time.Microsecond, time.Second, 20 * time.Second}).Draw(t, "retry after")
		}
		history = append(history, step{kind: waits, pass: pass}, step{kind: admits, claim: c}, step{kind: settles, claim: c, outcome: d})
		if rapid.IntRange(0, 5).Draw(t, "open") > 0 {
			history = append(history, step{kind: releases, claim: c})
		}
	}
	return history
}

// drawOutliers draws a history of one window whose reports agree, except for some reports of two other budgets.
func drawOutliers(t *rapid.T) (history []step) {
	elapsed := time.Duration(0)
	budgets := []struct {
		limit int
		reset time.Duration
	}{{20, 400 * second}, {20, 400 * second}, {20, 400 * second}, {6, 300 * second}, {20, 500 * second}, {6, 400 * second}, {60, 300 * second}}
	var open []limits.Claim
	proven := false // a ledger removes an account whose responses are all 401
	for id := range uint64(rapid.IntRange(20, 60).Draw(t, "requests")) {
		c := drawClaim(t)
		c.ID, c.Resource, c.Operation, c.Cost, c.Batch, c.Paced, c.CPU = id+1, policy.Core, "users/get", 0, false, false, 0
		history = append(history, step{kind: admits, claim: c})
		if open = append(open, c); len(open) < 4 && rapid.Bool().Draw(t, "more") {
			continue
		}
		pass := rapid.SampledFrom([]time.Duration{time.Microsecond, 100 * time.Millisecond, second, 5 * second}).Draw(t, "pause")
		history = append(history, step{kind: waits, pass: pass})
		elapsed += pass
		i := rapid.IntRange(0, len(open)-1).Draw(t, "settled")
		var d draft
		d.Sent, d.Answered, d.Ended, d.Succeeded = true, true, true, true
		if b := rapid.SampledFrom(budgets).Draw(t, "budget"); rapid.IntRange(0, 9).Draw(t, "reported") > 0 {
			used := int(id) / 6
			if b != budgets[0] {
				used = rapid.SampledFrom([]int{0, b.limit, b.limit}).Draw(t, "used")
			}
			d.Rate, d.reset, d.dated = policy.Rate{Limit: b.limit, Used: used}, b.reset-elapsed, true
		}
		d.Unauthorized = rapid.IntRange(0, 9).Draw(t, "unauthorized") == 9 && proven
		proven = proven || !d.Unauthorized
		history = append(history, step{kind: settles, claim: open[i], outcome: d})
		open = append(open[:i], open[i+1:]...)
	}
	return history
}

func drawStep(t *rapid.T) step {
	s := step{kind: rapid.SampledFrom([]action{waits, waits, admits, admits, admits, settles, settles, settles,
		releases, renews, opens}).Draw(t, "kind")}
	switch s.kind {
	case waits:
		s.pass = drawPause(t)
		return s
	case opens:
		return s
	case admits:
		s.claim = drawClaim(t)
	case settles:
		s.outcome = drawOutcome(t)
	case releases:
		s.aborted = rapid.Bool().Draw(t, "aborted")
	case renews:
		s.elapsed = rapid.SampledFrom([]time.Duration{0, time.Second, 3 * time.Second}).Draw(t, "elapsed")
	}
	s.before = rapid.IntRange(1, 6).Draw(t, "before")
	return s
}

func drawPause(t *rapid.T) time.Duration {
	longest := rapid.SampledFrom([]time.Duration{
		time.Microsecond, 200 * time.Millisecond, 2 * time.Second, 12 * time.Second, 45 * time.Second, 3 * time.Minute, 2 * time.Hour,
	}).Draw(t, "up to")
	return time.Duration(rapid.Int64Range(1, longest.Microseconds()).Draw(t, "microseconds")) * time.Microsecond
}

func drawClaim(t *rapid.T) limits.Claim {
	c := limits.Claim{
		Account: testAccount, Kind: policy.User,
		Operation: rapid.SampledFrom([]string{"users/get", "issues/create"}).Draw(t, "operation"),
		Resource: rapid.SampledFrom([]string{policy.Core, policy.Core, policy.Search, policy.CodeSearch,
			policy.GraphQL, "invented", "in_vented-2.0"}).Draw(t, "resource"),
		Cost:           rapid.SampledFrom([]int{0, 0, 1, 2, 5, 30}).Draw(t, "cost"),
		Points:         rapid.SampledFrom([]int{1, 5}).Draw(t, "points"),
		CreatesContent: rapid.Bool().Draw(t, "content"),
		CPU: rapid.SampledFrom([]time.Duration{0, 50 * time.Millisecond, time.Second, time.Hour}).
			Draw(t, "CPU"),
		Batch: rapid.IntRange(0, 3).Draw(t, "batch") == 3, Paced: rapid.IntRange(0, 3).Draw(t, "paced") == 3,
	}
	if c.Resource == policy.GraphQL {
		c.Operation = policy.GraphQL
	}
	return c
}

func drawOutcome(t *rapid.T) draft {
	var d draft
	o := &d.Outcome
	if o.Sent = rapid.IntRange(0, 7).Draw(t, "unsent") < 7; !o.Sent {
		return d
	}
	o.Elapsed = time.Duration(rapid.IntRange(0, 4000).Draw(t, "milliseconds")) * time.Millisecond
	o.Resent = rapid.SampledFrom([]int{0, 0, 0, 0, 1, 2}).Draw(t, "resent")
	if o.Answered = rapid.IntRange(0, 6).Draw(t, "lost") < 6; !o.Answered {
		return d
	}
	o.Ended = rapid.Bool().Draw(t, "ended")
	o.Cost = rapid.SampledFrom([]int{0, 0, 0, 1, 2, 7}).Draw(t, "true cost")
	o.Unauthorized = rapid.IntRange(0, 9).Draw(t, "unauthorized") == 9
	o.Uncounted = rapid.IntRange(0, 5).Draw(t, "uncounted") == 5
	switch rapid.IntRange(0, 10).Draw(t, "limited") {
	case 10:
		o.Limited = policy.LimitContent
		o.RetryAfter = rapid.SampledFrom([]time.Duration{0, time.Second, 20 * time.Second, 2 * time.Hour}).Draw(t, "retry after")
	case 9:
		o.Limited = policy.LimitPrimary
		o.RetryAfter = rapid.SampledFrom([]time.Duration{0, 20 * time.Second}).Draw(t, "retry after")
	case 8:
		o.Limited = policy.LimitSecondary
		o.RetryAfter = rapid.SampledFrom([]time.Duration{0, 0, time.Second, 20 * time.Second}).Draw(t, "retry after")
	case 7:
		o.Failed = true
	}
	o.Succeeded = !o.Failed && rapid.IntRange(0, 3).Draw(t, "succeeded") > 0
	switch rapid.IntRange(0, 9).Draw(t, "silent") {
	case 9, 8:
	case 7:
		o.Rate.Invalid = true
	default:
		limit := rapid.SampledFrom([]int{3, 6, 20, 20, 60}).Draw(t, "limit")
		o.Rate = policy.Rate{
			Limit: limit, Used: drawUsed(t, limit),
			Resource: rapid.SampledFrom([]string{"", "", policy.Core, policy.Search, "invented", "in_vented-2.0"}).Draw(t, "named"),
		}
		d.reset = time.Duration(rapid.IntRange(-5, 95).Draw(t, "reset")) * time.Second
		d.dated = rapid.IntRange(0, 4).Draw(t, "dateless") < 4
		d.date = rapid.SampledFrom([]time.Duration{0, 0, -time.Second, time.Second, -time.Hour, 7 * time.Hour}).
			Draw(t, "date")
	}
	return d
}

// drawUsed draws a reported use. A use near the limit is frequent.
func drawUsed(t *rapid.T, limit int) int {
	if rapid.IntRange(0, 3).Draw(t, "exhausted") == 3 {
		return limit
	}
	return rapid.IntRange(0, limit+2).Draw(t, "used")
}

// player applies a history to a ledger and to the model.
type player struct {
	Ledger
	model  *model
	repeat int // number of times that each step is applied
	log    []string
}

// applyToLedger applies a step to the ledger, with the outcome o.
func (c *player) applyToLedger(s step, o limits.Outcome) (d limits.Decision, err error) {
	c.log = append(c.log, time.Now().UTC().Format("15:04:05.000000 ")+s.String())
	ctx, p := context.Background(), limits.Permit{Claim: s.claim}
	switch s.kind {
	case waits:
		time.Sleep(s.pass)
	case admits:
		return c.Admit(ctx, s.claim), nil
	case settles:
		err = c.Settle(ctx, p, o)
	case releases:
		c.Release(ctx, p, s.aborted)
	case renews:
		c.Renew([]limits.OpenPermit{{Permit: p, Elapsed: s.elapsed}})
	case opens:
		err = c.Open(ctx, testAccount)
	}
	return limits.Decision{}, err
}

// apply applies a step to the ledger and to the model, and returns the first difference.
func (c *player) apply(s step) (difference string) {
	now, o := time.Now(), s.outcome.now()
	before := c.account()
	times := c.repeat
	if s.kind == waits {
		times = 1
	}
	for range times {
		d, err := c.applyToLedger(s, o)
		if s.kind == opens {
			if opened := c.model.opened(now.UnixMicro()); opened != (err == nil) || err != nil && !errors.Is(err, limits.ErrNotClosed) {
				return fmt.Sprintf("open: got %v, the model opened the account: %v", err, opened)
			}
			continue
		}
		if err != nil {
			return err.Error()
		}
		if s.kind != admits {
			continue
		}
		difference = differ("decision", d, c.model.admit(s.claim, now.UnixMicro()))
		if after := c.account(); !d.Granted && difference == "" {
			difference = differ("I4: a refusal changed the account", after, before)
		}
		if difference != "" {
			return difference
		}
	}
	c.applyToModel(s, o, now)
	return differ("account", c.account(), withoutUnused(c.model.describe(time.Now().UnixMicro())))
}

// applyToModel applies a step to the model, unless the step is a claim.
func (c *player) applyToModel(s step, o limits.Outcome, now time.Time) {
	switch s.kind {
	case settles:
		c.model.settle(s.claim, o, now.UnixMicro())
	case releases:
		c.model.release(s.claim.ID, s.aborted, now.UnixMicro())
	case renews:
		c.model.renew(s.claim, s.elapsed, now.UnixMicro())
	case waits, admits, opens:
	}
}

// account returns the account from the ledger, or an error.
func (c *player) account() any {
	list, err := c.Accounts(context.Background(), 10)
	if err != nil {
		return err
	}
	for _, a := range list {
		if a.Name == testAccount {
			return withoutUnused(a)
		}
	}
	return withoutUnused(c.model.describe(time.Now().UnixMicro())) // an unknown account equals an unused account
}

// withoutUnused returns an account without its unused budgets.
func withoutUnused(a limits.Account) limits.Account {
	a.Budgets = slices.DeleteFunc(a.Budgets, func(b limits.Budget) bool { return b.Used == 0 && b.Held == 0 })
	slices.SortFunc(a.Budgets, func(x, y limits.Budget) int { return strings.Compare(x.Resource, y.Resource) })
	return a
}

func differ(name string, got, want any) string {
	if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
		return fmt.Sprintf("%s:\n got %s\nwant %s\n", name, g, w)
	}
	return ""
}

// compare applies a history to an empty ledger in virtual time, and repeats each step. It returns the first difference
// from the model.
func compare(t *testing.T, open Open, rules limits.Rules, history []step, repeat int) (difference string) {
	synctest.Test(t, func(t *testing.T) {
		c := &player{Ledger: open(t, rules), model: &model{rules: rules, kind: policy.User}, repeat: repeat}
		for _, s := range history {
			if difference = c.apply(s); difference != "" {
				difference = strings.Join(c.log, "\n") + "\n" + difference
				return
			}
		}
	})
	return difference
}

// runHistories compares the ledger with the model on random histories: the decisions, and the account after every step.
func runHistories(runCase func(name string, test func(*testing.T, Open))) {
	check := func(name string, repeat int) {
		runCase(name, func(t *testing.T, open Open) {
			rapid.Check(t, func(rt *rapid.T) {
				if difference := compare(t, open, drawRules(rt), drawHistory(rt), repeat); difference != "" {
					rt.Fatal(difference)
				}
			})
		})
	}
	check("I4 I6 I20 decisions equal the model, and a refusal changes nothing", 1)
	check("I5 repeated calls have no further effect", 2)
}
