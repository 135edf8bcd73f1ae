package hostile

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// saturated is a scenario in which one budget binds: every client asks for the
// same operations without a pause, and answers take 50 to 300 ms.
type saturated struct {
	limit   string
	weights []int         // of operations
	window  time.Duration // of the limit
	rules   func(*policy.Limits)
	promise float64 // how full every window of the upstream's must be
}

// ample lets CPU time bind nobody, so that another budget does.
func ample(l *policy.Limits) { l.CPU.Total, l.CPU.GraphQL = 1000*time.Hour, 1000*time.Hour }

func saturations() []saturated {
	const most = 1_000_000
	return []saturated{
		{points, []int{1}, time.Minute, func(l *policy.Limits) { ample(l); l.Primary.User = most }, 0.99},
		{points + " graphql", []int{0, 0, 0, 0, 0, 0, 1, 1}, time.Minute, ample, 0.99},
		{content, []int{0, 0, 0, 1}, time.Minute, func(l *policy.Limits) { ample(l); l.Content[1].Max = most }, 0.99},
		{content + " long", []int{0, 0, 0, 1}, time.Hour, ample, 0.995},
		{policy.Search, []int{0, 0, 0, 0, 1}, time.Minute, ample, 0.99},
		{policy.CodeSearch, []int{0, 0, 0, 0, 0, 1}, time.Minute, ample, 0.99},
		{primary, []int{1, 1, 1}, time.Hour, ample, 0.995},
		{cpu, []int{1, 1, 1}, time.Minute, func(l *policy.Limits) { l.Primary.User, l.Points.REST = most, most }, 0},
		{concurrency, []int{1, 1, 1}, 500 * time.Millisecond, func(l *policy.Limits) { ample(l); l.Primary.User, l.Points.REST = most, most }, 0},
	}
}

// scenario is the saturated scenario at so many replicas, for so many windows
// in steady state.
func (s saturated) scenario(replicas, windows int, aligned bool) Scenario {
	rules := limits.Rules{Limits: policy.DefaultLimits()}
	s.rules(&rules.Limits)
	weights := make([]int, len(operations()))
	copy(weights, s.weights)
	return Scenario{
		Name: fmt.Sprintf("saturated, %d replicas", replicas), Seed: 1, Rules: rules, Replicas: replicas, Accounts: 1, Clients: 200 / replicas,
		Span: time.Duration(windows+1) * s.window, Steady: s.window, Weights: weights, Backlog: true, Timeout: 10 * time.Second,
		Nature: Nature{
			Limits: rules.Limits, Kind: policy.User, Part: 1, Busy: true, Fastest: 50 * time.Millisecond, Latency: 300 * time.Millisecond,
			Offset: 7*time.Minute + 300*time.Millisecond, Aligned: aligned, Grant: map[string]int{policy.GraphQL: 1_000_000},
		},
	}
}

// TestSaturationUsesTheLimits prints how much of each limit is used when one
// binds, over WEIR_WINDOWS windows, and holds the fullness of the upstream's
// windows against what is promised (limits.md I14).
func TestSaturationUsesTheLimits(t *testing.T) {
	windows := setting(t, "WEIR_WINDOWS", 2)
	var mu sync.Mutex
	table := newTable()
	t.Run("scenarios", func(t *testing.T) {
		for _, s := range saturations() {
			for _, replicas := range []int{1, 4} {
				for _, aligned := range []bool{false, true}[:min(2, windows-1)] {
					t.Run(fmt.Sprintf("%s, %d replicas, aligned %v", s.limit, replicas, aligned), func(t *testing.T) {
						t.Parallel()
						scenario := s.scenario(replicas, windows, aligned)
						r := inBubble(t, scenario, nil)
						if len(r.Violations) > 0 {
							t.Error(r.Violations)
						}
						if full := least(r.Tallies[s.limit].Held); full < s.promise {
							t.Errorf("a window was only %s full", percent(full))
						}
						mu.Lock()
						defer mu.Unlock()
						table.add(&scenario, &r, s.limit)
					})
				}
			}
		}
	})
	table.print(t)
}
