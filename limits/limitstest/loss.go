package limitstest

import (
	"errors"
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

// RunDataLoss checks that a replica restores the state after its store loses all data. The function lose empties the
// store and waits until the replica has detected the loss.
func RunDataLoss(t *testing.T, open Open, lose func(t *testing.T, l Ledger)) {
	rapid.Check(t, func(rt *rapid.T) {
		rules, history := drawRules(rt), drawHistory(rt)
		losses := rapid.SliceOfN(rapid.IntRange(0, len(history)-1), 1, 3).Draw(rt, "data losses after")
		if missing := loseInBubble(t, open, rules, history, losses, lose); missing != "" {
			rt.Fatal(missing)
		}
	})
}

// loseInBubble applies a history to an empty ledger, and returns the missing state. The store loses all data after some
// steps.
func loseInBubble(t *testing.T, open Open, rules limits.Rules, history []step, losses []int,
	lose func(*testing.T, Ledger)) (missing string) {
	synctest.Test(t, func(t *testing.T) {
		c := &player{Ledger: open(t, rules)}
		for i, s := range history {
			if _, err := c.applyToLedger(s, s.outcome.now()); err != nil && !errors.Is(err, limits.ErrNotClosed) {
				t.Fatal(err)
			}
			for range count(losses, i) {
				before := c.current(t)
				lose(t, c.Ledger)
				if missing = missingFrom(before, c.current(t)); missing != "" {
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

// current returns the account from the ledger, or an empty account.
func (c *player) current(t *testing.T) limits.Account {
	list, err := c.Accounts(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) == 0 {
		return limits.Account{}
	}
	return withoutUnused(list[0])
}

// missingFrom describes the state that an account has lost since an earlier time. It adds held and used amounts,
// because an abandoned permit is charged when the permit expires.
func missingFrom(before, after limits.Account) (missing string) {
	if after.InUse < before.InUse {
		missing += fmt.Sprintf("%d in use, want at least %d\n", after.InUse, before.InUse)
	}
	if after.BlockedUntil.Before(before.BlockedUntil) {
		missing += fmt.Sprintf("cool-down until %v, want %v\n", after.BlockedUntil, before.BlockedUntil)
	}
	budgets := map[string]limits.Budget{}
	for _, b := range after.Budgets {
		budgets[b.Resource] = b
	}
	for _, old := range before.Budgets {
		b, ok := budgets[old.Resource]
		if less := b.Used+b.Held < old.Used+old.Held; !ok || less && b.Remaining > 0 {
			missing += fmt.Sprintf("budget %+v, want at least %+v\n", b, old)
		}
	}
	return missing
}

// RunStoreOutages compares a replica with the model while the store is unavailable during parts of a history. The
// replica must not grant a claim that the model refuses. After each outage, the store must contain all grants and
// outcomes. The function disconnect starts an outage, and reconnect ends the outage.
func RunStoreOutages(t *testing.T, open Open, disconnect, reconnect func(t *testing.T, l Ledger)) {
	rapid.Check(t, func(rt *rapid.T) {
		rules, history := drawRules(rt), unify(drawHistory(rt))
		switches := rapid.SliceOfN(rapid.IntRange(0, len(history)-1), 1, 4).Draw(rt, "store switched before")
		violation := ""
		synctest.Test(t, func(t *testing.T) {
			c := &player{Ledger: open(t, rules), model: &model{rules: rules, kind: policy.User}}
			a := outage{player: c, claims: map[uint64]limits.Claim{}, stages: map[uint64]stage{}, stored: map[uint64]bool{}}
			if violation = a.play(t, history, switches, disconnect, reconnect); violation != "" {
				violation = strings.Join(c.log, "\n") + "\n" + violation
			}
		})
		if violation != "" {
			rt.Fatal(violation)
		}
	})
}

// unify makes every claim equal to one of the first two claims, because a lease exists only for earlier claims. The CPU
// time of each request is at most the predicted time. A replica without its store does not learn of the excess of other
// replicas. All reports have the same clock.
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

// outage applies a history while the store disconnects and reconnects. The ledger gets the calls of a limiter: renewals
// of open permits, and one settlement and one release of each permit.
type outage struct {
	*player
	down   bool
	claims map[uint64]limits.Claim // by ID, like the other maps
	stages map[uint64]stage
	stored map[uint64]bool // permits that the store contains
}

// stage is the progress of a claim.
type stage int

const (
	unclaimed stage = iota
	inUse
	inBody
	ended
)

// play applies a history and returns the first violation. The store disconnects or reconnects before some steps.
func (a *outage) play(t *testing.T, history []step, switches []int,
	disconnect, reconnect func(*testing.T, Ledger)) (violation string) {
	toggle := func() string {
		if a.down = !a.down; a.down {
			a.log = append(a.log, "disconnect")
			disconnect(t, a.Ledger)
			return ""
		}
		a.log = append(a.log, "reconnect")
		reconnect(t, a.Ledger)
		return missingFrom(withoutUnused(a.model.describe(time.Now().UnixMicro())), a.current(t))
	}
	for i, s := range history {
		for range count(switches, i) {
			if violation = toggle(); violation != "" {
				return violation
			}
		}
		if violation = a.follow(t, s); violation != "" {
			return violation
		}
	}
	if a.down {
		return toggle()
	}
	return ""
}

// follow applies a step if a limiter could make that call now, and returns a violation.
func (a *outage) follow(t *testing.T, s step) (violation string) {
	g := a.stages[s.claim.ID]
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
			a.claims[s.claim.ID], a.stages[s.claim.ID], a.stored[s.claim.ID] = s.claim, inUse, !a.down
			return a.model.mayGrant(s.claim, now.UnixMicro())
		}
		return ""
	case s.kind == settles && g == inUse:
		a.stages[s.claim.ID] = ended
		if s.outcome.Answered && !s.outcome.Ended {
			a.stages[s.claim.ID] = inBody
		}
	case s.kind == releases && g == inBody:
		a.stages[s.claim.ID] = ended
	default:
		return ""
	}
	now, o := time.Now(), s.outcome.now()
	if a.down && a.stored[s.claim.ID] {
		o.Resent = 0 // a replica without its store cannot charge the copies
	}
	if _, err := a.applyToLedger(s, o); err != nil && !a.down {
		t.Fatal(err)
	}
	a.applyToModel(s, o, now)
	return ""
}

// sleep waits in virtual time, at most three minutes, and renews the open permits.
func (a *outage) sleep(t *testing.T, d time.Duration) {
	a.log = append(a.log, fmt.Sprintf("wait %v", d))
	for end := time.Now().Add(min(d, 3*time.Minute)); time.Now().Before(end); {
		time.Sleep(min(time.Until(end), 10*time.Second))
		for id, c := range a.claims {
			if g := a.stages[id]; g != inUse && g != inBody {
				continue
			}
			a.Renew([]limits.OpenPermit{{Permit: limits.Permit{Claim: c}}})
			a.model.renew(c, 0, time.Now().UnixMicro())
		}
	}
}

// mayGrant records a permit that a ledger granted without its store. If the model refuses the claim, mayGrant returns
// an error text. The slow start of a window, the batch reserve and the pace are not required without a store.
func (m *model) mayGrant(c limits.Claim, now int64) (violation string) {
	c.Batch, c.Paced = false, false
	w := m.window(c.Resource)
	started := w.slowStarts
	if !w.answered {
		w.slowStarts = nil
	}
	d := m.admit(c, now)
	if !w.answered {
		w.slowStarts = slices.Concat(started, w.slowStarts)
	}
	if !d.Granted {
		return fmt.Sprintf("granted, but the model refuses: %+v", d)
	}
	return ""
}
