package limitstest

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/weirgate/weir/limits"
)

func newMemory(rules limits.Rules) limits.Ledger { return limits.NewMemory(rules) }

var memory = ShareLedger(newMemory)

func openMemory(_ *testing.T, rules limits.Rules) limits.Ledger { return newMemory(rules) }

// setting returns a number from the environment.
func setting(t *testing.T, name string, fallback int) int {
	text := os.Getenv(name)
	if text == "" {
		return fallback
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// inBubble runs a scenario in virtual time.
func inBubble(t *testing.T, s Scenario, trace func(string, ...any)) (r Report) {
	synctest.Test(t, func(t *testing.T) { r = s.Run(t, memory, trace) })
	return r
}

// TestNoLimitIsExceeded runs WEIR_SCENARIOS random scenarios. If WEIR_SEED is set, the test runs only the scenario of
// that seed, and logs its events.
func TestNoLimitIsExceeded(t *testing.T) {
	if seed := setting(t, "WEIR_SEED", 0); seed != 0 {
		s := Draw(uint64(seed))
		t.Logf("%+v", s)
		r := inBubble(t, s, t.Logf)
		t.Errorf("seed %d: %d requests\n%s", seed, r.Requests, strings.Join(r.Violations, "\n"))
		return
	}
	const parts = 8
	n := setting(t, "WEIR_SCENARIOS", 200)
	var mu sync.Mutex
	table := NewTable()
	t.Run("I1 I2 I3 I13", func(t *testing.T) {
		for part := range parts {
			t.Run(strconv.Itoa(part), func(t *testing.T) {
				t.Parallel()
				for seed := part + 1; seed <= n; seed += parts {
					s := Draw(uint64(seed))
					r := inBubble(t, s, nil)
					if len(r.Violations) > 0 {
						t.Errorf("seed %d:\n%s", seed, strings.Join(r.Violations, "\n"))
					}
					mu.Lock()
					table.Add(&s, &r)
					mu.Unlock()
				}
			})
		}
	})
	table.Print(t)
}
