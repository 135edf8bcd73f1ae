package limitstest

import (
	"fmt"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// Saturation is a scenario in which one budget binds: every client asks for the
// same operations without a pause, and answers take 50 to 300 ms.
type Saturation struct {
	// Limit is the one that binds, Window how long its window is.
	Limit  string
	Window time.Duration
	// MinFullness is how full every window of the upstream's must be.
	MinFullness float64
	weights     []int // of operations
	rules       func(*policy.Limits)
}

// ample lets CPU time bind nobody, so that another budget does.
func ample(l *policy.Limits) { l.CPU.Total, l.CPU.GraphQL = 1000*time.Hour, 1000*time.Hour }

// Saturations has one for every limit.
func Saturations() []Saturation {
	const most = 1_000_000
	return []Saturation{
		{points, time.Minute, 0.99, []int{1}, func(l *policy.Limits) { ample(l); l.Primary.User = most }},
		{points + " graphql", time.Minute, 0.99, []int{0, 0, 0, 0, 0, 0, 1, 1}, ample},
		{content, time.Minute, 0.99, []int{0, 0, 0, 1}, func(l *policy.Limits) { ample(l); l.Content[1].Max = most }},
		{content + " long", time.Hour, 0.995, []int{0, 0, 0, 1}, ample},
		{policy.Search, time.Minute, 0.99, []int{0, 0, 0, 0, 1}, ample},
		{policy.CodeSearch, time.Minute, 0.99, []int{0, 0, 0, 0, 0, 1}, ample},
		{primary, time.Hour, 0.995, []int{1, 1, 1}, ample},
		{cpu, time.Minute, 0, []int{1, 1, 1}, func(l *policy.Limits) { l.Primary.User, l.Points.REST = most, most }},
		{concurrency, 500 * time.Millisecond, 0, []int{1, 1, 1}, func(l *policy.Limits) { ample(l); l.Primary.User, l.Points.REST = most, most }},
	}
}

// Scenario is the saturation of so many replicas, for so many windows in steady
// state.
func (s Saturation) Scenario(replicas, windows int, aligned bool) Scenario {
	rules := limits.Rules{Limits: policy.DefaultLimits()}
	s.rules(&rules.Limits)
	weights := make([]int, len(operations()))
	copy(weights, s.weights)
	return Scenario{
		Name: fmt.Sprintf("saturated, %d replicas", replicas), Seed: 1, Rules: rules, Replicas: replicas, Accounts: 1, Clients: 200 / replicas,
		Duration: time.Duration(windows+1) * s.Window, WarmUp: s.Window, Weights: weights, Backlog: true, Timeout: 10 * time.Second,
		Upstream: Profile{
			Limits: rules.Limits, Kind: policy.User, Part: 1, Busy: true, Fastest: 50 * time.Millisecond, Latency: 300 * time.Millisecond,
			Offset: 7*time.Minute + 300*time.Millisecond, Aligned: aligned, Grant: map[string]int{policy.GraphQL: 1_000_000},
		},
	}
}
