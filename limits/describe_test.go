package limits

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/policy"
)

// The search log returns its tokens long before the reported window ends.
func TestBudgetChangesWhenTokensReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(Rules{Limits: policy.DefaultLimits(), ColdStart: "trust"})
		now := time.Now().Truncate(time.Second)
		m.spend(t, claim(1, policy.Search), Outcome{
			Sent: true, Answered: true, Ended: true, Uncounted: true, Elapsed: time.Second,
			Rate: policy.Rate{Limit: 30, Used: 0, Reset: now.Add(time.Hour), Date: now, Resource: policy.Search},
		})
		for _, c := range []struct {
			after time.Duration
			used  int
		}{{0, 1}, {59 * time.Second, 1}, {2 * time.Second, 0}} {
			time.Sleep(c.after)
			b, _ := m.Budget(policy.Caller{Account: "a", Kind: policy.User}, policy.Search)
			failIf(t, b.Used != c.used, "%v later: used %d, want %d", c.after, b.Used, c.used)
		}
	})
}

func TestConfigureChangesDocumentedLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules := Rules{Limits: policy.DefaultLimits(), ColdStart: "trust"}
		m := NewMemory(rules)
		for _, limit := range []int{30, 100} {
			rules.Search.Authenticated = limit
			m.Configure(rules)
			b, _ := m.Budget(policy.Caller{Account: "a", Kind: policy.User}, policy.Search)
			failIf(t, b.Limit != limit, "got limit %d, want %d", b.Limit, limit)
		}
	})
}
