package limitstest

import (
	"fmt"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// Saturation is a scenario in which one budget limits the traffic. Every client sends the same operations without a
// pause, and responses take 50 to 300 ms.
type Saturation struct {
	// Limit is the limiting budget. Window is the length of the window of Limit.
	Limit  string
	Window time.Duration
	// MinFullness is the required use of every window of the upstream, as a fraction.
	MinFullness float64
	weights     []int // weights of the operations
	rules       func(*policy.Limits)
	// maxPrice is the largest true cost of a GraphQL call. Estimates are up to one and a half times the true cost.
	maxPrice int
}

// unlimitedCPU removes the limits of CPU time, so that another budget limits.
func unlimitedCPU(l *policy.Limits) { l.CPU.Total, l.CPU.GraphQL = 1000*time.Hour, 1000*time.Hour }

// Saturations returns one saturation for every limit.
func Saturations() []Saturation {
	const most = 1_000_000
	return []Saturation{
		{points, time.Minute, 0.99, []int{1}, func(l *policy.Limits) { unlimitedCPU(l); l.Primary.User = most }, 0},
		{points + " graphql", time.Minute, 0.99, []int{0, 0, 0, 0, 0, 0, 1, 1}, unlimitedCPU, 0},
		{content, time.Minute, 0.99, []int{0, 0, 0, 1},
			func(l *policy.Limits) { unlimitedCPU(l); l.Content[1].Max = most }, 0},
		{content + " long", time.Hour, 0.995, []int{0, 0, 0, 1}, unlimitedCPU, 0},
		{policy.Search, time.Minute, 0.99, []int{0, 0, 0, 0, 1}, unlimitedCPU, 0},
		{policy.CodeSearch, time.Minute, 0.99, []int{0, 0, 0, 0, 0, 1}, unlimitedCPU, 0},
		{primary, time.Hour, 0.995, []int{1, 1, 1}, unlimitedCPU, 0},
		{primaryName(policy.GraphQL), time.Hour, 0.99, []int{0, 0, 0, 0, 0, 0, 1},
			func(l *policy.Limits) { unlimitedCPU(l); l.Points.GraphQL = most }, 50},
		{cpu, time.Minute, 0, []int{1, 1, 1}, func(l *policy.Limits) { l.Primary.User, l.Points.REST = most, most }, 0},
		{concurrency, 500 * time.Millisecond, 0, []int{1, 1, 1},
			func(l *policy.Limits) { unlimitedCPU(l); l.Primary.User, l.Points.REST = most, most }, 0},
	}
}

// Scenario returns the scenario for a number of replicas, over a number of measured windows.
func (s Saturation) Scenario(replicas, windows int, aligned bool) Scenario {
	rules := limits.Rules{Limits: policy.DefaultLimits()}
	s.rules(&rules.Limits)
	weights := make([]int, len(operations()))
	copy(weights, s.weights)
	graphQL := policy.Window{Max: 1_000_000, Window: time.Hour}
	if s.maxPrice > 0 {
		graphQL.Max = rules.For(policy.User, policy.GraphQL).Max
	}
	return Scenario{
		Name: fmt.Sprintf("saturated, %d replicas", replicas), Seed: 1, Rules: rules,
		Replicas: replicas, Accounts: 1, Clients: 200 / replicas,
		Duration: time.Duration(windows+1) * s.Window, WarmUp: s.Window, Weights: weights, Backlog: true, Timeout: 10 * time.Second,
		Upstream: Profile{
			Limits: rules.Limits, Kind: policy.User, Part: 1, Busy: true, Fastest: 50 * time.Millisecond, Latency: 300 * time.Millisecond,
			Offset: 7*time.Minute + 300*time.Millisecond, Aligned: aligned, GraphQL: graphQL, ReportedCosts: 0.5,
		},
		MaxPrice: s.maxPrice, Overestimate: 1.5,
	}
}
