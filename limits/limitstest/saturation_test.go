package limitstest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/weirgate/weir/internal/testservers"
)

// TestSaturationUsesTheLimits checks that saturated traffic uses every window as fully as required (I14), and logs the
// use. WEIR_WINDOWS sets the number of windows.
func TestSaturationUsesTheLimits(t *testing.T) {
	windows := testservers.Setting(t, "WEIR_WINDOWS", 2)
	var mu sync.Mutex
	table := NewTable()
	t.Run("I14", func(t *testing.T) {
		for _, s := range Saturations() {
			for _, replicas := range []int{1, 4} {
				for _, aligned := range []bool{false, true}[:min(2, windows-1)] {
					t.Run(fmt.Sprintf("%s, %d replicas, aligned %v", s.Limit, replicas, aligned), func(t *testing.T) {
						t.Parallel()
						scenario := s.Scenario(replicas, windows, aligned)
						r := inBubble(t, scenario, nil)
						failIf(t, len(r.Violations) > 0, "%v", r.Violations)
						if full := r.Fullness(s.Limit); full < s.MinFullness {
							t.Errorf("a window was only %s full", percent(full))
						}
						mu.Lock()
						defer mu.Unlock()
						table.Add(&scenario, &r, s.Limit)
					})
				}
			}
		}
	})
	table.Print(t)
}
