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

// RunDataLoss holds what a replica has written again after its store lost everything
// against what was there before: nothing may be missing (I10). lose empties the
// store and lets the replica find out.
func RunDataLoss(t *testing.T, open Open, lose func(t *testing.T, l limits.Ledger)) {
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

// less is what an account has less of than before. What is held for a request that
// was given up is as good as used: it is charged when it ends.
func less(before, after limits.Account) (missing string) {
	if after.InUse < before.InUse {
		missing += fmt.Sprintf("%d in flight, %d before\n", after.InUse, before.InUse)
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
		if gone := b.Used+b.Held < was.Used+was.Held; !ok || gone && b.Remaining > 0 {
			missing += fmt.Sprintf("%+v, before %+v\n", b, was)
		}
	}
	return missing
}

// RunStoreOutages holds a replica that is without its store for parts of a history
// against the model (I11): it grants nothing that the model refuses, and what it
// has granted and learned is in the store when that is back. away lets the
// replica lose its store, back lets it find it again.
func RunStoreOutages(t *testing.T, open Open, away, back func(t *testing.T, l limits.Ledger)) {
	rapid.Check(t, func(rt *rapid.T) {
		rules, history := drawRules(rt), alike(drawHistory(rt))
		turns := rapid.SliceOfN(rapid.IntRange(0, len(history)-1), 1, 4).Draw(rt, "away or back before")
		wrong := ""
		synctest.Test(t, func(t *testing.T) {
			c := &chronicle{Ledger: open(t, rules), model: &model{rules: rules, kind: policy.User}}
			a := absences{chronicle: c, stages: map[limits.Claim]stage{}, stored: map[limits.Claim]bool{}}
			if wrong = a.tell(t, history, turns, away, back); wrong != "" {
				wrong = strings.Join(c.story, "\n") + "\n" + wrong
			}
		})
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
}

// alike makes all claims of a history like one of the first two, something is set
// aside for what was asked for before, and lets each take some CPU time, but no
// more than expected: that nobody can know who is alone. The upstream has one clock
// there: of one that jumps, what is told late tells less.
func alike(history []step) []step {
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

// absences are those of a store. What a limiter would do meanwhile is done: permits
// in flight are renewed, and settled and released once.
type absences struct {
	*chronicle
	lost   bool
	stages map[limits.Claim]stage
	stored map[limits.Claim]bool // permits that the store knows
}

// stage is how far a claim has come.
type stage int

const (
	asked stage = iota
	inFlight
	answering
	ended
)

// tell tells a history, before some steps of which the store is lost or found, and
// returns what is wrong then.
func (a *absences) tell(t *testing.T, history []step, turns []int, away, back func(*testing.T, limits.Ledger)) (wrong string) {
	turn := func() string {
		if a.lost = !a.lost; a.lost {
			a.story = append(a.story, "away")
			away(t, a.Ledger)
			return ""
		}
		a.story = append(a.story, "back")
		back(t, a.Ledger)
		return less(used(a.model.describe(time.Now().UnixMicro())), a.known(t))
	}
	for i, s := range history {
		for range count(turns, i) {
			if wrong = turn(); wrong != "" {
				return wrong
			}
		}
		if wrong = a.follow(t, s); wrong != "" {
			return wrong
		}
	}
	if a.lost {
		return turn()
	}
	return ""
}

// follow makes a step that a limiter would make now.
func (a *absences) follow(t *testing.T, s step) (wrong string) {
	g := a.stages[s.claim]
	switch {
	case s.what == passes:
		a.pass(t, s.pass)
		return ""
	case s.what == admits && g == asked:
		now := time.Now()
		d, err := a.take(s, limits.Outcome{})
		if err != nil {
			t.Fatal(err)
		}
		if d.Granted {
			a.stages[s.claim], a.stored[s.claim] = inFlight, !a.lost
			return a.model.mayGrant(s.claim, now.UnixMicro())
		}
		return ""
	case s.what == settles && g == inFlight:
		a.stages[s.claim] = ended
		if s.outcome.Answered && !s.outcome.Ended {
			a.stages[s.claim] = answering
		}
	case s.what == releases && g == answering:
		a.stages[s.claim] = ended
	default:
		return ""
	}
	now, o := time.Now(), s.outcome.now()
	if a.lost && a.stored[s.claim] {
		o.Resent = 0 // what nothing was set aside for, nobody can know
	}
	if _, err := a.take(s, o); err != nil && !a.lost {
		t.Fatal(err)
	}
	a.tellModel(s, o, now)
	return ""
}

// pass lets time pass, a few minutes at most, and has permits in flight renewed.
func (a *absences) pass(t *testing.T, d time.Duration) {
	a.story = append(a.story, fmt.Sprintf("%v pass", d))
	for end := time.Now().Add(min(d, 3*time.Minute)); time.Now().Before(end); {
		time.Sleep(min(time.Until(end), 10*time.Second))
		for c, g := range a.stages {
			if g != inFlight && g != answering {
				continue
			}
			err := a.Renew(t.Context(), []limits.OpenPermit{{Permit: limits.Permit{Claim: c}}})
			if err != nil && !a.lost {
				t.Fatal(err)
			}
			a.model.renew(c, 0, time.Now().UnixMicro())
		}
	}
}

// mayGrant enters a flight that a ledger without its store has granted, and tells
// why the model would not have. That a window which no answer has told of yet is
// tried carefully, and that a batch leaves a part of it, is more than can be asked.
func (m *model) mayGrant(c limits.Claim, now int64) (wrong string) {
	c.Batch = false
	w := m.window(c.Resource)
	tries := w.tries
	if !w.answered {
		w.tries = 0
	}
	d := m.admit(c, now)
	w.tries += tries
	if !d.Granted {
		return fmt.Sprintf("granted, but the model refuses: %+v", d)
	}
	return ""
}
