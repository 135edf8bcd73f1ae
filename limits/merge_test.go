package limits

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/policy"
)

// mergeModel runs one random history on two accounts, and on an account that sees the events of both.
type mergeModel struct {
	*rapid.T
	rules    Rules
	separate [2]*account
	all      *account
	now      int64
	lastID   uint64
	open     []mergePermit
	used     int // of the upstream's window
	reset    time.Time
}

// mergePermit is a permit of one of the two accounts.
type mergePermit struct {
	account int
	permit  Permit
	settled bool
}

func newMergeModel(t *rapid.T) *mergeModel {
	rules := Rules{Limits: policy.DefaultLimits(), Probes: 3}
	rules.Points.REST, rules.Concurrent, rules.Search.Authenticated = 12, 6, 6
	m := &mergeModel{T: t, rules: rules, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()}
	m.separate = [2]*account{newAccount("a", policy.User), newAccount("b", policy.User)}
	m.all = newAccount("all", policy.User)
	m.reset = time.UnixMicro(m.now).Add(20 * time.Minute)
	return m
}

var mergeResources = []string{"core", policy.Search}

func (m *mergeModel) claim() Claim {
	m.lastID++
	c := Claim{ID: m.lastID, Kind: policy.User, Points: rapid.IntRange(1, 5).Draw(m.T, "points"), CPU: 50 * time.Millisecond}
	c.Operation = rapid.SampledFrom([]string{"x", "y"}).Draw(m.T, "operation")
	c.Resource = rapid.SampledFrom(mergeResources).Draw(m.T, "resource")
	c.CreatesContent, c.Batch = rapid.Bool().Draw(m.T, "creates"), rapid.Bool().Draw(m.T, "batch")
	c.Paced = rapid.Bool().Draw(m.T, "paced")
	return c
}

// step makes one random event. limitErrors permits secondary limit errors.
func (m *mergeModel) step(limitErrors bool) {
	switch rapid.IntRange(0, 5).Draw(m.T, "event") {
	case 0, 1, 2:
		i, c := rapid.IntRange(0, 1).Draw(m.T, "account"), m.claim()
		a := m.separate[i]
		now := a.advance(m.now)
		if !a.admit(&c, a.needs(nil, &c, m.rules.Spends(nil, &c), &m.rules, now), &m.rules, now, nil, false).Granted {
			return
		}
		// The account with all events sends the request even beyond a limit.
		m.all.Renew(&OpenPermit{Permit: Permit{Claim: c}}, &m.rules, m.now)
		v := m.all.reservations[c.ID]
		v.granted = m.now
		if !v.window.Confirmed {
			v.slowStart = v.window.start()
			v.window.slowStarted, v.window.lastSlowStart = v.window.slowStarted+1, m.now
		}
		m.open = append(m.open, mergePermit{i, Permit{Claim: c}, false})
	case 3, 4:
		if len(m.open) == 0 {
			return
		}
		at := rapid.IntRange(0, len(m.open)-1).Draw(m.T, "permit")
		p := &m.open[at]
		if p.settled {
			aborted := rapid.Bool().Draw(m.T, "aborted")
			m.separate[p.account].Release(p.permit.ID, aborted, m.now)
			m.all.Release(p.permit.ID, aborted, m.now)
			m.open = slices.Delete(m.open, at, at+1)
			return
		}
		p.settled = true
		o := m.outcome(p.permit, limitErrors)
		m.separate[p.account].Settle(&p.permit, &o, &m.rules, m.now)
		m.all.Settle(&p.permit, &o, &m.rules, m.now)
	default:
		m.now += int64(rapid.IntRange(1, 20000).Draw(m.T, "milliseconds")) * 1000
	}
}

func (m *mergeModel) outcome(p Permit, limitErrors bool) Outcome {
	o := Outcome{Sent: true, Answered: rapid.Bool().Draw(m.T, "answered"), Ended: rapid.Bool().Draw(m.T, "ended"), Elapsed: 20 * time.Millisecond}
	if !o.Answered {
		o.Sent = rapid.Bool().Draw(m.T, "sent")
		return o
	}
	o.Succeeded = true
	if p.Resource == "core" && rapid.Bool().Draw(m.T, "headers") {
		m.used++
		o.Rate = policy.Rate{
			Limit: 5000, Used: m.used * rapid.SampledFrom([]int{1, 500}).Draw(m.T, "factor"), Reset: m.reset,
			Date: time.UnixMicro(m.now).Truncate(time.Second), Resource: p.Resource,
		}
	}
	if rapid.IntRange(0, 4).Draw(m.T, "limited") == 0 {
		o.Succeeded, o.Limited = false, policy.LimitPrimary
		if limitErrors && rapid.Bool().Draw(m.T, "secondary") {
			o.Limited = policy.LimitSecondary
			o.RetryAfter = time.Duration(rapid.IntRange(0, 30).Draw(m.T, "retry-after")) * time.Second
		}
	}
	return o
}

// tokens returns the tokens that accounts use of each budget.
func (m *mergeModel) tokens(accounts ...*account) map[string]int64 {
	sums := map[string]int64{}
	for _, a := range accounts {
		p := &Part{account: *a}
		for _, budget := range p.Used(m.now) {
			if budget != probeBudget && !p.IsTemporary(budget) {
				sums[budget] += p.Use(budget, m.now).Total()
			}
		}
	}
	maps.DeleteFunc(sums, func(_ string, n int64) bool { return n == 0 })
	return sums
}

// A merged account grants no claim that one of both accounts would refuse.
func TestMergedAccountIsAsStrictAsBothAccounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMergeModel(t)
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			m.step(true)
		}
		c := m.claim()
		var refusals []string
		for _, a := range m.separate {
			a.advance(m.now)
			if d := a.check(&c, a.needs(nil, &c, m.rules.Spends(nil, &c), &m.rules, m.now), &m.rules, m.now, nil, false); !d.Granted {
				refusals = append(refusals, fmt.Sprint(a.Name, d))
			}
		}
		before := m.tokens(m.separate[0], m.separate[1])
		merged := m.separate[0]
		merged.merge(m.separate[1], m.now, 0)
		if after := m.tokens(merged); !maps.Equal(before, after) {
			t.Fatalf("tokens in use: %v before the merge, %v afterwards", before, after)
		}
		d := merged.check(&c, merged.needs(nil, &c, m.rules.Spends(nil, &c), &m.rules, m.now), &m.rules, m.now, nil, false)
		if d.Granted && len(refusals) > 0 {
			t.Fatalf("the merged account grants a claim that was refused: %v", refusals)
		}
		// All permits can be settled, and all tokens return.
		for _, p := range m.open {
			merged.Settle(&p.permit, &Outcome{Sent: true, Answered: true, Ended: true}, &m.rules, m.now)
			merged.Release(p.permit.ID, false, m.now)
		}
		m.now += 3 * 3600 * second
		merged.advance(m.now)
		if left := m.tokens(merged); len(left) > 0 {
			t.Fatalf("tokens in use after all windows: %v", left)
		}
	})
}

// A merged account grants no claim that an account with the events of both would refuse. The cool-down is not compared,
// because consecutive errors of two accounts do not double it.
func TestMergedAccountForgetsNoEvent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMergeModel(t)
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			m.step(false)
		}
		merged := m.separate[0]
		merged.merge(m.separate[1], m.now, 0)
		for range 3 {
			c := m.claim()
			d := merged.check(&c, merged.needs(nil, &c, m.rules.Spends(nil, &c), &m.rules, m.now), &m.rules, m.now, nil, false)
			now := m.all.advance(m.now)
			if want := m.all.check(&c, m.all.needs(nil, &c, m.rules.Spends(nil, &c), &m.rules, now), &m.rules, now, nil, false); d.Granted && !want.Granted {
				t.Fatalf("the merged account grants a claim that an account with all events refuses: %v", want)
			}
			m.now += int64(rapid.IntRange(0, 90).Draw(t, "seconds")) * second
			merged.advance(m.now)
		}
	})
}

// Aliases have no cycle and are bounded, and unused aliases expire.
func TestAliases(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s Aliases
		roots := map[string]string{}
		find := func(name string) string {
			for roots[name] != "" {
				name = roots[name]
			}
			return name
		}
		now := int64(1)
		names := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"})
		for range rapid.IntRange(1, 30).Draw(t, "merges") {
			from, into := names.Draw(t, "from"), names.Draw(t, "into")
			oldName, newName, merged := s.Add(from, into, now)
			if oldName != find(from) || newName != find(into) || merged != (oldName != newName) {
				t.Fatalf("Add(%s, %s) = %s, %s, %v", from, into, oldName, newName, merged)
			}
			if merged {
				roots[oldName] = newName
			}
			if name := names.Draw(t, "name"); s.Canonical(name, now) != find(name) {
				t.Fatalf("Canonical(%s) = %s, want %s", name, s.Canonical(name, now), find(name))
			}
		}
	})
	var s Aliases
	now := int64(1)
	for i := range maxAliases + 10 {
		s.Add(fmt.Sprint("token ", i), "user:1", now)
	}
	n := s.list.Len()
	failIf(t, n != maxAliases, "%d aliases, want %d", n, maxAliases)
	last := fmt.Sprint("token ", maxAliases)
	if got := s.Canonical(last, now+aliasKept); got != "user:1" {
		t.Errorf("%s belongs to %s, want user:1", last, got)
	}
	got := s.Canonical("token 20", now+2*aliasKept)
	failIf(t, got != "token 20", "an unused alias still belongs to %s", got)
}

// Calls about a permit that was granted before the merge use the merged account, also after a restart.
func TestMemoryMergeKeepsPermitsAndNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules := Rules{Limits: policy.DefaultLimits()}
		rules.Concurrent = 2
		m, ctx := NewMemory(rules), t.Context()
		admit := func(account string, id uint64) (Permit, Decision) {
			c := Claim{ID: id, Account: account, Kind: policy.User, Operation: "op", Resource: "core", Points: 1}
			d := m.Admit(ctx, c)
			return Permit{Claim: c}, d
		}
		a, _ := admit("token a", 1)
		b, _ := admit("token b", 2)
		for range 2 {
			m.Merge("token a", "user:1", policy.User)
			m.Merge("token b", "user:1", policy.User)
		}
		_, d := admit("token b", 3)
		failIf(t, d.Reason != Concurrency, "third claim of two slots: %+v", d)
		for _, p := range []Permit{a, b} {
			m.Renew([]OpenPermit{{p, time.Second}})
			_ = m.Settle(ctx, p, Outcome{Sent: true, Answered: true})
			m.Release(ctx, p, false)
		}
		list, _ := m.Accounts(ctx, 10)
		failIf(t, len(list) != 1 || list[0].Name != "user:1" || list[0].InUse != 0, "accounts: %+v", list)
		m = m.restarted(t, rules, 0)
		if b, _ := m.Budget(policy.Caller{Account: "token a", Kind: policy.User}, "core"); b.Used != 2 || m.Canonical("token b") != "user:1" {
			t.Errorf("after a restart: %+v, token b belongs to %s", b, m.Canonical("token b"))
		}
	})
}

// A cold start assumes spending of each account. Accounts that are merged are one account, so the assumption is not
// doubled.
func TestMergeDoesNotDoubleTheColdStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(Rules{Limits: policy.DefaultLimits(), ColdStart: "ramp"})
		claim := func(account string, id uint64) Claim {
			return Claim{ID: id, Account: account, Kind: policy.User, Operation: "op", Resource: "core", Points: 1, CreatesContent: true}
		}
		for i, name := range []string{"a", "b", "c"} {
			d := m.Admit(context.Background(), claim(name, uint64(i+1)))
			stopIf(t, !d.Granted, "%s: %+v", name, d)
			m.Merge(name, "user:1", policy.User)
		}
		time.Sleep(slowStep)
		d := m.Admit(context.Background(), claim("a", 9))
		failIf(t, !d.Granted, "after the merge: %+v", d)
	})
}

// slowStep lets the slow start of a window admit one request.
const slowStep = time.Second

// Claims with both names of a merged account share one queue.
func TestMergedNamesShareOneQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules := Rules{Limits: policy.DefaultLimits()}
		rules.Concurrent = 1
		m := NewMemory(rules)
		m.Merge("token a", "user:1", policy.User)
		m.Merge("token b", "user:1", policy.User)
		l := NewLimiter(m)
		acquire := func(account string) (*Permit, error) {
			claim := Claim{Operation: "op", Resource: "core", Points: 1}
			return l.Acquire(t.Context(), claim, policy.Caller{Kind: policy.User, Account: account, Class: account}, time.Now().Add(time.Minute))
		}
		first, err := acquire("token a")
		noError(t, err)
		for _, name := range []string{"token a", "token b"} {
			go func() {
				if p, err := acquire(name); err == nil {
					_, _ = l.Settle(context.Background(), *p, Outcome{})
				}
			}()
		}
		synctest.Wait()
		waiting := l.Waiting()
		failIf(t, !maps.Equal(waiting, map[ClientResource]int{{"user:1", "core", ""}: 2}), "waiting: %v", waiting)
		_, _ = l.Settle(context.Background(), *first, Outcome{})
		time.Sleep(time.Minute)
	})
}
