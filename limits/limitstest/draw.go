package limitstest

import (
	"math/rand/v2"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// Draw returns a random scenario for a seed.
func Draw(seed uint64) Scenario {
	rng := rand.New(rand.NewPCG(seed, 0))
	rules := limits.Rules{Limits: policy.DefaultLimits(), Probes: 1 + int(seed%5)}
	if rng.IntN(4) > 0 {
		rules.Limits = smallLimits(rng)
	}
	s := Scenario{
		Name: "drawn", Seed: seed, Rules: rules,
		Replicas: 1 + rng.IntN(8)*rng.IntN(2), Accounts: 1 + rng.IntN(3)*rng.IntN(2), Clients: 1 + rng.IntN(3),
		Burst: 1 + rng.IntN(40), Gap: 50*time.Millisecond + upTo(rng, 5*time.Second),
		Timeout: 10 * time.Second,
	}
	s.Duration = rules.Points.Window*3/2 + upTo(rng, 3*rules.Points.Window/2)
	if rng.IntN(3) == 0 {
		s.Cancel, s.Unsent = 0.1, 0.05
	}
	if rng.IntN(3) == 0 {
		s.LedgerLatency = upTo(rng, 20*time.Millisecond)
		s.Duplicates = 0.2 * rng.Float64()
	}
	if rng.IntN(6) == 0 {
		s.LedgerLatency = upTo(rng, time.Second)
	}
	if rng.IntN(4) == 0 {
		s.Crash = 0.5
	}
	s.Upstream = drawProfile(rng, rules.Limits)
	if rng.IntN(2) == 0 {
		s.MaxPrice, s.Overestimate = 1+rng.IntN(60), 1+2*rng.Float64()
		// The first requests of a window with an unknown limit must fit.
		s.Upstream.GraphQL = policy.Window{Max: (6 + rng.IntN(30)) * s.MaxPrice, Window: rules.Primary.Window}
		s.Upstream.ReportedCosts = max(0, 2*rng.Float64()-1)
	} else if n := &s.Upstream; rng.IntN(2) == 0 { // no ledger can know how many requests of other users late headers lack
		n.Behind, n.OtherTraffic, n.ClosedWindows = 1+rng.IntN(8), 0, 0
	}
	return s
}

// smallLimits returns small limits with short windows. Each window is long enough for resets in whole seconds.
func smallLimits(rng *rand.Rand) policy.Limits {
	l := policy.DefaultLimits()
	window := func() time.Duration { return time.Duration(20+rng.IntN(41)) * time.Second }
	l.Primary.User = 5 + rng.IntN(100)
	l.Primary.Window = window() + window()
	l.Search.Authenticated, l.Search.Code = 3+rng.IntN(28), 2+rng.IntN(9)
	l.Search.Window = window()
	l.Concurrent = 2 + rng.IntN(20)
	l.Points.REST, l.Points.GraphQL = 10+rng.IntN(300), 10+rng.IntN(300)
	l.Points.Window = window()
	l.CPU.Window = window()
	l.CPU.Total = time.Duration(1+rng.IntN(20)) * time.Second
	l.CPU.GraphQL = l.CPU.Total * 2 / 3
	first := window()
	l.Content = []policy.Window{{Max: 2 + rng.IntN(40), Window: first}, {Max: 4 + rng.IntN(150), Window: first * 3}}
	if rng.IntN(2) == 0 { // CPU time never limits, so that another budget limits
		l.CPU.Total, l.CPU.GraphQL = time.Hour, time.Hour
	}
	if rng.IntN(2) == 0 {
		l.Primary.User = 100_000
	}
	return l
}

// drawProfile returns the behaviour of a random upstream. Each fault occurs in some scenarios only.
func drawProfile(rng *rand.Rand, l policy.Limits) Profile {
	n := Profile{
		Limits: l, Kind: policy.User, Part: 1,
		Aligned: rng.IntN(2) == 0, SlidingSearch: rng.IntN(2) == 0,
		Latency: upTo(rng, 100*time.Millisecond),
		Offset:  upTo(rng, 6*time.Hour) - 3*time.Hour,
	}
	n.Date = Rounding(rng.IntN(3))
	n.Reset = n.Date
	some := func(most float64) float64 {
		if rng.IntN(3) > 0 {
			return 0
		}
		return most * rng.Float64()
	}
	if rng.IntN(2) == 0 {
		n.Latency = upTo(rng, 3*time.Second)
	}
	if n.StallOdds = some(0.1); n.StallOdds > 0 {
		n.Stall = upTo(rng, 40*time.Second)
	}
	n.Part = min(1, 2*rng.Float64())
	// All reports of one reset are within two seconds.
	if n.Flicker = rng.IntN(3) == 0; !n.Flicker && n.Date == Down {
		n.Reset = Rounding(rng.IntN(3))
		n.Jitter = rng.IntN(2) == 0
	}
	n.DroppedResponses, n.Failing, n.Unchanged, n.Resending = some(0.1), some(0.05), some(0.5), some(0.05)
	n.SecondaryErrors, n.ClosedWindows = some(0.01), some(0.005)
	if n.BodyOdds = some(1); n.BodyOdds > 0 {
		n.Body, n.Aborting = upTo(rng, 5*time.Second), some(0.5)
	}
	n.Misguessed = some(0.5)
	n.OtherTraffic = some(5)
	if rng.IntN(4) == 0 {
		n.Dial = upTo(rng, time.Second)
	}
	switch rng.IntN(12) {
	case 0:
		n.NoLimits, n.OtherTraffic, n.ClosedWindows = true, 0, 0
	case 1:
		n.NoDate, n.Offset = true, 0
	case 2, 3: // the granted limits differ from the documented limits
		n.Grant = map[string]int{
			policy.Core: 3 + rng.IntN(2*min(1000, l.Primary.User)), policy.Search: 3 + rng.IntN(2*l.Search.Authenticated), policy.CodeSearch: 3 + rng.IntN(20),
		}
	}
	return n
}
