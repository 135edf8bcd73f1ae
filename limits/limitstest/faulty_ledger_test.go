package limitstest

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// alteringLedger changes outcomes before it settles them.
type alteringLedger struct {
	Ledger
	alter func(*limits.Outcome)
}

func (s alteringLedger) Settle(ctx context.Context, p limits.Permit, o limits.Outcome) error {
	s.alter(&o)
	return s.Ledger.Settle(ctx, p, o)
}

// unrenewedLedger ignores renewals.
type unrenewedLedger struct{ Ledger }

func (unrenewedLedger) Renew([]limits.OpenPermit) {}

// hastyLedger releases aborted responses immediately.
type hastyLedger struct{ Ledger }

func (h hastyLedger) Release(ctx context.Context, p limits.Permit, _ bool) {
	h.Ledger.Release(ctx, p, false)
}

// cheapLedger reserves nine tenths of the cost of a claim.
type cheapLedger struct{ Ledger }

func (l cheapLedger) Admit(ctx context.Context, c limits.Claim) limits.Decision {
	c.Cost = c.Cost * 9 / 10
	return l.Ledger.Admit(ctx, c)
}

// altering opens ledgers that change outcomes.
func altering(alter func(*limits.Outcome)) OpenReplicas {
	return ShareLedger(func(rules limits.Rules) Ledger { return alteringLedger{newMemory(rules), alter} })
}

// withLimits opens ledgers with other limits than the upstream has.
func withLimits(change func(*policy.Limits)) OpenReplicas {
	return ShareLedger(func(rules limits.Rules) Ledger {
		rules.Content = slices.Clone(rules.Content)
		change(&rules.Limits)
		return newMemory(rules)
	})
}

// TestFaultyLedgersViolateLimits checks that the upstream detects a ledger that exceeds a limit slightly, for every
// limit.
func TestFaultyLedgersViolateLimits(t *testing.T) {
	limited := func(n *Profile) { n.SecondaryErrors = 0.01 }
	stall := func(n *Profile) { n.StallOdds, n.Stall = 0.1, 20*time.Second }
	abort := func(n *Profile) { n.BodyOdds, n.Body, n.Aborting = 1, time.Second, 1 }
	for _, c := range []struct {
		limit string // violated limit
		load  string // saturation that shows the violation
		open  OpenReplicas
		fault func(*Profile)
	}{
		{points, points, withLimits(func(l *policy.Limits) { l.Points.REST++ }), nil},
		{points + " graphql", points + " graphql", withLimits(func(l *policy.Limits) { l.Points.GraphQL++ }), nil},
		{points, points, withLimits(func(l *policy.Limits) { l.Points.Window -= 400 * time.Millisecond }), nil},
		{points, points, altering(func(o *limits.Outcome) {
			o.Sent, o.Answered = o.Sent && o.Rate.Used%100 != 0, o.Answered && o.Rate.Used%100 != 0
		}), nil},
		{content, content, withLimits(func(l *policy.Limits) { l.Content[0].Max++ }), nil},
		{content + " long", content + " long", withLimits(func(l *policy.Limits) { l.Content[1].Max++ }), nil},
		{policy.Search + " sliding", policy.Search, altering(func(o *limits.Outcome) { o.Rate.Limit++ }),
			func(n *Profile) { n.SlidingSearch = true }},
		{policy.CodeSearch, policy.CodeSearch, altering(func(o *limits.Outcome) { o.Rate.Limit++ }), nil},
		{primary, primary, altering(func(o *limits.Outcome) { o.Rate, o.Succeeded = policy.Rate{}, true }), nil},
		{primary + " graphql", primary + " graphql", ShareLedger(func(r limits.Rules) Ledger { return cheapLedger{newMemory(r)} }), nil},
		{cpu, cpu, altering(func(o *limits.Outcome) { o.Elapsed = o.Elapsed * 95 / 100 }), nil},
		{cpu, cpu, ShareLedger(func(r limits.Rules) Ledger { return unrenewedLedger{newMemory(r)} }), stall},
		{concurrency, concurrency, ShareLedger(func(r limits.Rules) Ledger { return hastyLedger{newMemory(r)} }), abort},
		{concurrency, concurrency, altering(func(o *limits.Outcome) { o.Sent = o.Answered }), stall},
		{concurrency, concurrency, withLimits(func(l *policy.Limits) { l.Concurrent++ }), nil},
		{primary, primary, altering(func(o *limits.Outcome) { o.Rate.Used, o.Uncounted = o.Rate.Used-3, true }), nil},
		{primary, primary, altering(func(o *limits.Outcome) { o.Rate.Reset = o.Rate.Reset.Add(-3 * time.Second) }), nil},
		{cooling, points, altering(func(o *limits.Outcome) { o.Limited = policy.NotLimited }), limited},
		{cooling, points, altering(func(o *limits.Outcome) { o.RetryAfter = o.RetryAfter * 2 / 3 }), limited},
	} {
		t.Run(c.limit, func(t *testing.T) {
			t.Parallel()
			for _, s := range Saturations() {
				if s.Limit != c.load {
					continue
				}
				failIf(t, !s.violates(t, c.limit, c.open, c.fault), "no violation seen")
			}
		})
	}
}

// violates reports whether a limit is violated in one of many runs. A small fault depends on the order of goroutines.
func (s Saturation) violates(t *testing.T, limit string, open OpenReplicas, fault func(*Profile)) (seen bool) {
	for seed := uint64(1); seed <= 40 && !seen; seed++ {
		scenario := s.Scenario(4, 1, false)
		scenario.Seed = seed
		scenario.Duration = max(scenario.Duration, 20*time.Second)
		if fault != nil {
			fault(&scenario.Upstream)
		}
		synctest.Test(t, func(t *testing.T) {
			tally := scenario.Run(t, open, nil).Tallies[limit]
			seen = tally != nil && tally.Violations > 0
		})
	}
	return seen
}
