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

// sinner is a ledger that mishears outcomes.
type sinner struct {
	limits.Ledger
	mishear func(*limits.Outcome)
}

func (s sinner) Settle(ctx context.Context, p limits.Permit, o limits.Outcome) error {
	s.mishear(&o)
	return s.Ledger.Settle(ctx, p, o)
}

// sleeper is a ledger that learns nothing of requests in flight.
type sleeper struct{ limits.Ledger }

func (sleeper) Renew(context.Context, []limits.OpenPermit) error { return nil }

// hasty is a ledger that takes an aborted answer for one that has ended.
type hasty struct{ limits.Ledger }

func (h hasty) Release(ctx context.Context, p limits.Permit, _ bool) error {
	return h.Ledger.Release(ctx, p, false)
}

// mishearing opens ledgers that mishear outcomes.
func mishearing(mishear func(*limits.Outcome)) OpenReplicas {
	return ShareLedger(func(rules limits.Rules) limits.Ledger { return sinner{newMemory(rules), mishear} })
}

// generous opens ledgers that keep other rules than they are told.
func generous(change func(*policy.Limits)) OpenReplicas {
	return ShareLedger(func(rules limits.Rules) limits.Ledger {
		rules.Content = slices.Clone(rules.Content)
		change(&rules.Limits)
		return newMemory(rules)
	})
}

// TestSinsAreSeen makes sure that the upstream notices a ledger that lets
// through a little more than it may, of every limit.
func TestSinsAreSeen(t *testing.T) {
	spoil := func(n *Profile) { n.SecondaryErrors = 0.01 }
	stall := func(n *Profile) { n.StallOdds, n.Stall = 0.1, 20*time.Second }
	abort := func(n *Profile) { n.BodyOdds, n.Body, n.Aborting = 1, time.Second, 1 }
	for _, c := range []struct {
		limit string // of the violation
		load  string // the saturation that shows it
		open  OpenReplicas
		spoil func(*Profile)
	}{
		{points, points, generous(func(l *policy.Limits) { l.Points.REST++ }), nil},
		{points + " graphql", points + " graphql", generous(func(l *policy.Limits) { l.Points.GraphQL++ }), nil},
		{points, points, generous(func(l *policy.Limits) { l.Points.Window -= 400 * time.Millisecond }), nil},
		{points, points, mishearing(func(o *limits.Outcome) {
			o.Sent, o.Answered = o.Sent && o.Rate.Used%100 != 0, o.Answered && o.Rate.Used%100 != 0
		}), nil},
		{content, content, generous(func(l *policy.Limits) { l.Content[0].Max++ }), nil},
		{content + " long", content + " long", generous(func(l *policy.Limits) { l.Content[1].Max++ }), nil},
		{policy.Search + " sliding", policy.Search, generous(func(l *policy.Limits) { l.Search.Authenticated++ }), func(n *Profile) { n.SlidingSearch, n.NoRateHeaders = true, true }},
		{policy.CodeSearch, policy.CodeSearch, generous(func(l *policy.Limits) { l.Search.Code++ }), func(n *Profile) { n.NoRateHeaders = true }},
		{cpu, cpu, mishearing(func(o *limits.Outcome) { o.Elapsed = o.Elapsed * 95 / 100 }), nil},
		{cpu, cpu, ShareLedger(func(r limits.Rules) limits.Ledger { return sleeper{newMemory(r)} }), stall},
		{concurrency, concurrency, ShareLedger(func(r limits.Rules) limits.Ledger { return hasty{newMemory(r)} }), abort},
		{concurrency, concurrency, mishearing(func(o *limits.Outcome) { o.Sent = o.Answered }), stall},
		{concurrency, concurrency, generous(func(l *policy.Limits) { l.Concurrent++ }), nil},
		{primary, primary, mishearing(func(o *limits.Outcome) { o.Rate.Used -= 3 }), nil},
		{primary, primary, mishearing(func(o *limits.Outcome) { o.Rate.Reset = o.Rate.Reset.Add(-3 * time.Second) }), nil},
		{cooling, points, mishearing(func(o *limits.Outcome) { o.Limited = limits.NotLimited }), spoil},
		{cooling, points, mishearing(func(o *limits.Outcome) { o.RetryAfter = o.RetryAfter * 2 / 3 }), spoil},
	} {
		t.Run(c.limit, func(t *testing.T) {
			t.Parallel()
			for _, s := range Saturations() {
				if s.Limit != c.load {
					continue
				}
				if !s.shows(t, c.limit, c.open, c.spoil) {
					t.Error("no violation seen")
				}
			}
		})
	}
}

// shows reports whether a limit is broken in one of many runs: goroutines take
// turns as they like, and a small sin needs the right moment.
func (s Saturation) shows(t *testing.T, limit string, open OpenReplicas, spoil func(*Profile)) (seen bool) {
	for seed := uint64(1); seed <= 40 && !seen; seed++ {
		scenario := s.Scenario(4, 1, false)
		scenario.Seed = seed
		scenario.Duration = max(scenario.Duration, 20*time.Second)
		if spoil != nil {
			spoil(&scenario.Upstream)
		}
		synctest.Test(t, func(t *testing.T) {
			tally := scenario.Run(t, open, nil).Tallies[limit]
			seen = tally != nil && tally.Violations > 0
		})
	}
	return seen
}
