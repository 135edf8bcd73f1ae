package limits

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/policy"
)

// TestABudgetChangesWhenItsTokensReturn, long before the window that was told of ends.
func TestABudgetChangesWhenItsTokensReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(Rules{Limits: policy.DefaultLimits(), ColdStart: "trust"})
		now := time.Now().Truncate(time.Second)
		m.spend(t, claim(1, policy.Search), Outcome{
			Sent: true, Answered: true, Ended: true, Elapsed: time.Second,
			Rate: Rate{Limit: 30, Used: 0, Reset: now.Add(time.Hour), Date: now, Resource: policy.Search},
		})
		for _, c := range []struct {
			after time.Duration
			used  int
		}{{0, 1}, {59 * time.Second, 1}, {2 * time.Second, 0}} {
			time.Sleep(c.after)
			if b, _ := m.Budget(t.Context(), "a", policy.User, policy.Search); b.Used != c.used {
				t.Errorf("%v later %d are used, want %d", c.after, b.Used, c.used)
			}
		}
	})
}
