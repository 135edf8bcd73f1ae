package limitstest

import (
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

func newMemory(rules limits.Rules) Ledger { return limits.NewMemory(rules) }

var memory = ShareLedger(newMemory)

func openMemory(_ *testing.T, rules limits.Rules) Ledger { return newMemory(rules) }

// inBubble runs a scenario in virtual time.
func inBubble(t *testing.T, s Scenario, trace func(string, ...any)) (r Report) {
	synctest.Test(t, func(t *testing.T) { r = s.Run(t, memory, trace) })
	return r
}

// TestNoLimitIsExceeded runs WEIR_SCENARIOS random scenarios. If WEIR_SEED is set, the test runs only the scenario of
// that seed, and logs its events.
func TestNoLimitIsExceeded(t *testing.T) {
	if seed := testservers.Setting(t, "WEIR_SEED", 0); seed != 0 {
		s := Draw(uint64(seed))
		t.Logf("%+v", s)
		r := inBubble(t, s, t.Logf)
		t.Errorf("seed %d: %d requests\n%s", seed, r.Requests, strings.Join(r.Violations, "\n"))
		return
	}
	const parts = 8
	n := testservers.Setting(t, "WEIR_SCENARIOS", 100)
	var mu sync.Mutex
	table := NewTable()
	t.Run("I1 I2 I3 I13", func(t *testing.T) {
		for part := range parts {
			t.Run(strconv.Itoa(part), func(t *testing.T) {
				t.Parallel()
				for seed := part + 1; seed <= n; seed += parts {
					s := Draw(uint64(seed))
					r := inBubble(t, s, nil)
					failIf(t, len(r.Violations) > 0, "seed %d:\n%s", seed, strings.Join(r.Violations, "\n"))
					mu.Lock()
					table.Add(&s, &r)
					mu.Unlock()
				}
			})
		}
	})
	table.Print(t)
}

// A replica has a report about the use of another program, and its call to the store is on the way. The upstream must
// not blame the decisions of the store until then.
func TestStoreLearnsReportsAfterTheLag(t *testing.T) {
	const lag = time.Second
	for _, c := range []struct {
		granted time.Duration // after the settlement
		limited policy.LimitKind
		excess  int64
	}{
		{lag / 2, policy.NotLimited, 0},
		{lag / 2, policy.LimitPrimary, 1},
		{2 * lag, policy.NotLimited, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			u := NewUpstream(Profile{Limits: policy.DefaultLimits(), Kind: policy.User}, 1, time.Time{})
			w := u.window(u.account("a"), policy.CodeSearch)
			w.spendByOtherUsers(time.Now(), w.max)
			u.Learned(&Response{
				Rate: policy.Rate{Limit: int(w.max)}, Limited: c.limited, account: "a", snapshot: w.snapshot(time.Now()),
			}, lag)
			time.Sleep(c.granted)
			_, excess := w.take(time.Now(), time.Now(), 1, nil)
			failIf(t, max(0, excess) != c.excess, "granted %v after the settlement, limit error %q: %d requests beyond the limit, want %d", c.granted, c.limited, excess, c.excess)
		})
	}
}
