package limitstest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// RunDataLoss checks that a replica restores the state after its store losses all
// data. The function lose empties the store, and lets the replica notice.
func RunDataLoss(t *testing.T, open Open, lose func(t *testing.T, l limits.Ledger)) {
	rapid.Check(t, func(rt *rapid.T) {
		rules, history := drawRules(rt), drawHistory(rt)
		losses := rapid.SliceOfN(rapid.IntRange(0, len(history)-1), 1, 3).Draw(rt, "data losses after")
		if missing := loseInBubble(t, open, rules, history, losses, lose); missing != "" {
			rt.Fatal(missing)
		}
	})
}

// loseInBubble applies a history to an empty ledger. The store loses all
// data after some steps. The result is the missing state.
func loseInBubble(t *testing.T, open Open, rules limits.Rules, history []step, losses []int,
	lose func(*testing.T, limits.Ledger)) (missing string) {
	synctest.Test(t, func(t *testing.T) {
		c := &player{Ledger: open(t, rules)}
		for i, s := range history {
			if _, err := c.applyToLedger(s, s.outcome.now()); err != nil {
				t.Fatal(err)
			}
			for range count(losses, i) {
				before := c.known(t)
				lose(t, c.Ledger)
				if missing = missingFrom(before, c.known(t)); missing != "" {
					missing = strings.Join(c.log, "\n") + "\n" + missing
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

// known returns the account as the ledger describes it, or an empty account.
func (c *player) known(t *testing.T) limits.Account {
	list, err := c.Accounts(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) == 0 {
		return limits.Account{}
	}
	return used(list[0])
}

// missingFrom returns what an account has less of than before. Held and used
// amounts count together, because an abandoned permit is charged when it
// expires.
func missingFrom(before, after limits.Account) (missing string) {
	if after.InUse < before.InUse {
		missing += fmt.Sprintf("%d in use, want at least %d\n", after.InUse, before.InUse)
	}
	if after.BlockedUntil.Before(before.BlockedUntil) {
		missing += fmt.Sprintf("cool-down until %v, want %v\n", after.BlockedUntil, before.BlockedUntil)
	}
	is := map[string]limits.Budget{}
	for _, b := range after.Budgets {
		is[b.Resource] = b
	}
	for _, was := range before.Budgets {
		b, ok := is[was.Resource]
		if gone := b.Used+b.Held < was.Used+was.Held; !ok || gone && b.Remaining > 0 {
			missing += fmt.Sprintf("budget %+v, want at least %+v\n", b, was)
		}
	}
	return missing
}

// RunStoreOutages compares a replica that has no store during parts of a
// history with the model. The replica must not grant what the model refuses.
// When the store is back, it must contain all grants and outcomes. The function
// away disconnects the replica from its store, and back reconnects it.
func RunStoreOutages(t *testing.T, open Open, away, back func(t *testing.T, l limits.Ledger)) {
	rapid.Check(t, func(rt *rapid.T) {
		rules, history := drawRules(rt), unify(drawHistory(rt))
		switches := rapid.SliceOfN(rapid.IntRange(0, len(history)-1), 1, 4).Draw(rt, "store switched before")
		wrong := ""
		synctest.Test(t, func(t *testing.T) {
			c := &player{Ledger: open(t, rules), model: &model{rules: rules, kind: policy.User}}
			a := outage{player: c, stages: map[limits.Claim]stage{}, stored: map[limits.Claim]bool{}}
			if wrong = a.play(t, history, switches, away, back); wrong != "" {
				wrong = strings.Join(c.log, "\n") + "\n" + wrong
			}
		})
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
}

// unify makes every claim of a history equal to one of the first two, because a
// lease exists only for earlier claims. Each request takes some CPU time, but
// no more than predicted, because a replica without its store cannot know the
// excess of other replicas. All reports have the same clock.
func unify(history []step) []step {
	var first [3]limits.Claim // by ID
	var clock draft
	if i := slices.IndexFunc(history, func(s step) bool { return s.outcome.Rate.Limit != 0 }); i >= 0 {
		clock = history[i].outcome
	}
	for i := range history {
		s := &history[i]
		s.outcome.date, s.outcome.dated = clock.date, clock.dated
		s.claim.CPU = max(s.claim.CPU, time.Millisecond)
		if id := s.claim.ID; id <= 2 {
			first[id] = s.claim
		} else {
			s.claim = first[1+id%2]
			s.claim.ID = id
		}
		s.outcome.Elapsed = min(s.outcome.Elapsed, s.claim.CPU)
	}
	return history
}

// outage applies a history while the store goes away and comes back. It does
// what a limiter would do: it renews open permits, and settles and releases
// each permit once.
type outage struct {
	*player
	down   bool
	stages map[limits.Claim]stage
	stored map[limits.Claim]bool // permits that the store contains
}

// stage is the progress of a claim.
type stage int

const (
	unclaimed stage = iota
	inUse
	inBody
	ended
)

// play applies a history. The store goes away or comes back before some steps.
// It returns the first violation.
func (a *outage) play(t *testing.T, history []step, switches []int,
	away, back func(*testing.T, limits.Ledger)) (wrong string) {
	toggle := func() string {
		if a.down = !a.down; a.down {
			a.log = append(a.log, "away")
			away(t, a.Ledger)
			return ""
		}
		a.log = append(a.log, "back")
		back(t, a.Ledger)
		return missingFrom(used(a.model.describe(time.Now().UnixMicro())), a.known(t))
	}
	for i, s := range history {
		for range count(switches, i) {
			if wrong = toggle(); wrong != "" {
				return wrong
			}
		}
		if wrong = a.follow(t, s); wrong != "" {
			return wrong
		}
	}
	if a.down {
		return toggle()
	}
	return ""
}

// follow applies a step if a limiter could take it now.
func (a *outage) follow(t *testing.T, s step) (wrong string) {
	g := a.stages[s.claim]
	switch {
	case s.kind == waits:
		a.sleep(t, s.pass)
		return ""
	case s.kind == admits && g == unclaimed:
		now := time.Now()
		d, err := a.applyToLedger(s, limits.Outcome{})
		if err != nil {
			t.Fatal(err)
		}
		if d.Granted {
			a.stages[s.claim], a.stored[s.claim] = inUse, !a.down
			return a.model.mayGrant(s.claim, now.UnixMicro())
		}
		return ""
	case s.kind == settles && g == inUse:
		a.stages[s.claim] = ended
		if s.outcome.Answered && !s.outcome.Ended {
			a.stages[s.claim] = inBody
		}
	case s.kind == releases && g == inBody:
		a.stages[s.claim] = ended
	default:
		return ""
	}
	now, o := time.Now(), s.outcome.now()
	if a.down && a.stored[s.claim] {
		o.Resent = 0 // a copy without a lease is unknown to the replica
	}
	if _, err := a.applyToLedger(s, o); err != nil && !a.down {
		t.Fatal(err)
	}
	a.applyToModel(s, o, now)
	return ""
}

// sleep lets time pass, at most three minutes, and renews the open permits.
func (a *outage) sleep(t *testing.T, d time.Duration) {
	a.log = append(a.log, fmt.Sprintf("wait %v", d))
	for end := time.Now().Add(min(d, 3*time.Minute)); time.Now().Before(end); {
		time.Sleep(min(time.Until(end), 10*time.Second))
		for c, g := range a.stages {
			if g != inUse && g != inBody {
				continue
			}
			err := a.Renew(t.Context(), []limits.OpenPermit{{Permit: limits.Permit{Claim: c}}})
			if err != nil && !a.down {
				t.Fatal(err)
			}
			a.model.renew(c, 0, time.Now().UnixMicro())
		}
	}
}

// mayGrant records a permit that a ledger without its store granted. It returns
// an error text if the model refuses the claim. The slow start of a window and
// the batch reserve are not required without a store.
func (m *model) mayGrant(c limits.Claim, now int64) (wrong string) {
	c.Batch = false
	w := m.window(c.Resource)
	started := w.slowStarted
	if !w.answered {
		w.slowStarted = 0
	}
	d := m.admit(c, now)
	w.slowStarted += started
	if !d.Granted {
		return fmt.Sprintf("granted, but the model refuses: %+v", d)
	}
	return ""
}
