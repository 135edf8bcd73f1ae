package ledgertest

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/limits"
)

// Losses holds what a replica has written again after its store lost everything
// against what was there before: nothing may be missing (I10). lose empties the
// store and lets the replica find out.
func Losses(t *testing.T, open Open, lose func(t *testing.T, l limits.Ledger)) {
	rapid.Check(t, func(rt *rapid.T) {
		rules, history := drawRules(rt), drawHistory(rt)
		lost := rapid.SliceOfN(rapid.IntRange(0, len(history)-1), 1, 3).Draw(rt, "lost after")
		if missing := lossesInBubble(t, open, rules, history, lost, lose); missing != "" {
			rt.Fatal(missing)
		}
	})
}

// lossesInBubble tells a history to an empty ledger, whose store loses all after
// some of the steps, and returns what is missing then.
func lossesInBubble(t *testing.T, open Open, rules limits.Rules, history []step, lost []int, lose func(*testing.T, limits.Ledger)) (missing string) {
	synctest.Test(t, func(t *testing.T) {
		c := &chronicle{Ledger: open(t, rules)}
		for i, s := range history {
			if _, err := c.take(s, s.outcome.now()); err != nil {
				t.Fatal(err)
			}
			for range count(lost, i) {
				before := c.known(t)
				lose(t, c.Ledger)
				if missing = less(before, c.known(t)); missing != "" {
					missing = strings.Join(c.story, "\n") + "\n" + missing
					return
				}
			}
		}
	})
	return missing
}

func count(list []int, n int) (times int) {
	for _, v := range list {
		if v == n {
			times++
		}
	}
	return times
}

// known is what the ledger knows of the account; nothing when it has none.
func (c *chronicle) known(t *testing.T) limits.Account {
	list, err := c.Accounts(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) == 0 {
		return limits.Account{}
	}
	return used(list[0])
}

// less is what an account has less of than before.
func less(before, after limits.Account) (missing string) {
	if after.InFlight < before.InFlight {
		missing += fmt.Sprintf("%d in flight, %d before\n", after.InFlight, before.InFlight)
	}
	if after.BlockedUntil.Before(before.BlockedUntil) {
		missing += fmt.Sprintf("cool-down until %v, %v before\n", after.BlockedUntil, before.BlockedUntil)
	}
	is := map[string]limits.Budget{}
	for _, b := range after.Budgets {
		is[b.Resource] = b
	}
	for _, was := range before.Budgets {
		b, ok := is[was.Resource]
		if gone := b.Used < was.Used || b.Used+b.Held < was.Used+was.Held; !ok || gone && b.Remaining > 0 {
			missing += fmt.Sprintf("%+v, before %+v\n", b, was)
		}
	}
	return missing
}
