package limits

import (
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/policy"
)

// TestABudgetThatIsToldAgainIsThatOfNow: what is remembered of one is never told for longer
// than it holds, whatever was done and however time went on.
func TestABudgetThatIsToldAgainIsThatOfNow(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			m := NewMemory(Rules{Limits: policy.DefaultLimits(), ColdStart: "trust"})
			resources := rapid.SampledFrom([]string{policy.Core, policy.Search, policy.Search, policy.GraphQL, "new"})
			var flying []Permit
			for id := range uint64(rapid.IntRange(1, 60).Draw(rt, "steps")) {
				switch rapid.SampledFrom([]string{"admit", "admit", "settle", "settle", "release", "wait", "wait", "list"}).Draw(rt, "step") {
				case "admit":
					c := claim(id+1, resources.Draw(rt, "resource"))
					if d, _ := m.Admit(t.Context(), c); d.Granted {
						flying = append(flying, Permit{Claim: c})
					}
				case "settle", "release":
					if len(flying) == 0 {
						break
					}
					p := flying[0]
					flying = flying[1:]
					o := Outcome{Sent: rapid.Bool().Draw(rt, "sent"), Answered: rapid.Bool().Draw(rt, "answered"), Ended: true, Elapsed: time.Second}
					if used := rapid.IntRange(-1, 10).Draw(rt, "used"); o.Answered && used >= 0 {
						reset := time.Now().Add(time.Duration(rapid.IntRange(1, 3600).Draw(rt, "reset")) * time.Second).Truncate(time.Second)
						o.Rate = Rate{Limit: 5000, Used: used, Reset: reset, Date: time.Now().Truncate(time.Second), Resource: p.Resource}
					}
					_ = m.Settle(t.Context(), p, o)
				case "wait":
					time.Sleep(time.Duration(rapid.IntRange(1, rapid.SampledFrom([]int{1000, 30_000, 4_000_000}).Draw(rt, "most")).Draw(rt, "ms")) * time.Millisecond)
				case "list":
					_, _ = m.Accounts(t.Context(), 10)
				}
				told := resources.Draw(rt, "told")
				for range 3 {
					got, _ := m.Budget(t.Context(), "a", policy.User, told)
					a := m.accounts.find("a").account
					if a == nil {
						break
					}
					if want, _ := a.budget(told, &m.rules, m.now()); got != want {
						rt.Fatalf("told %+v, and it is %+v", got, want)
					}
					time.Sleep(time.Duration(rapid.SampledFrom([]int{0, 1, 1000, 30_000}).Draw(rt, "then")) * time.Millisecond)
				}
			}
		})
	})
}

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
