package limits

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirgate/weir/policy"
)

// spend admits a claim. If the outcome was sent, spend also settles the permit.
func (m *Memory) spend(t *testing.T, c Claim, o Outcome) {
	t.Helper()
	ctx := context.Background()
	d := m.Admit(ctx, c)
	stopIf(t, !d.Granted, "%d: %s for %v", c.ID, d.Reason, d.Wait)
	if o.Sent {
		_ = m.Settle(ctx, Permit{Claim: c}, o)
	}
}

// restarted returns a ledger with the saved state of m, after a pause.
func (m *Memory) restarted(t *testing.T, rules Rules, pause time.Duration) *Memory {
	t.Helper()
	var saved bytes.Buffer
	noError(t, m.Save(&saved, nil))
	time.Sleep(pause)
	fresh := NewMemory(rules)
	s, err := fresh.Load(&saved)
	stopIf(t, err != nil || !s.Clean, "%v %v", s, err)
	return fresh
}

func claim(id uint64, resource string) Claim {
	return Claim{ID: id, Account: "a", Kind: policy.User, Operation: "op", Resource: resource, Points: 1,
		CPU: time.Second}
}

func answer(resource string, used int) Outcome {
	return Outcome{Sent: true, Answered: true, Ended: true, Elapsed: time.Second, Rate: policy.Rate{
		Limit: 5000, Used: used, Reset: time.Now().Add(time.Hour), Date: time.Now(), Resource: resource,
	}}
}

// After a graceful restart, the new process must decide like the old process.
func TestLoadRestoresTheSavedState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules := Rules{Limits: policy.DefaultLimits(), ColdStart: "strict"}
		old := NewMemory(rules)
		old.cold = false
		for i := range uint64(20) {
			old.spend(t, claim(i+1, "core"), answer("core", int(i)+1))
			old.spend(t, claim(i+100, "search"), answer("search", int(i)+1))
			time.Sleep(time.Second)
		}
		limited := answer("core", 30)
		limited.Limited, limited.RetryAfter = policy.LimitSecondary, 30*time.Second
		old.spend(t, claim(500, "core"), limited)
		fresh := old.restarted(t, rules, 10*time.Second)
		for range 10 {
			before, _ := old.Accounts(context.Background(), 10)
			after, _ := fresh.Accounts(context.Background(), 10)
			diff := cmp.Diff(before, after)
			stopIf(t, diff != "", "%v", diff)
			id := uint64(time.Now().UnixNano())
			want := old.Admit(context.Background(), claim(id, "search"))
			got := fresh.Admit(context.Background(), claim(id, "search"))
			stopIf(t, got != want, "got %+v, want %+v as before the restart", got, want)
			time.Sleep(7 * time.Second)
		}
	})
}

func TestSaveChargesPermitsInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules := Rules{Limits: policy.DefaultLimits()}
		m := NewMemory(rules)
		m.spend(t, claim(1, "core"), Outcome{})
		fresh := m.restarted(t, rules, 0)
		list, _ := fresh.Accounts(context.Background(), 1)
		failIf(t, list[0].InUse != 0 || list[0].Budgets[0].Used != 1, "got %+v, want one request used and no permit in use", list[0])
	})
}

func TestLoadRefusesInvalidSnapshots(t *testing.T) {
	m := NewMemory(Rules{Limits: policy.DefaultLimits()})
	for text, want := range map[string]string{
		"":                        "read saved ledger: ",
		"{":                       "read saved ledger: ",
		`{"Version":7}` + "\n":    "version 7 is not supported",
		`{"Version":4}` + "\nx\n": "line 2",
	} {
		_, err := m.Load(strings.NewReader(text))
		failIf(t, err == nil || !strings.Contains(err.Error(), want) || !m.cold, "Load(%s): got %v, want an error with %q", text, err, want)
	}
}

// After a cold start, the budgets are reduced for one window.
func TestColdStartReducesBudgets(t *testing.T) {
	for _, c := range []struct {
		start  string
		points []int64 // points that remain after 0, 15, 30, 45 and 60 seconds
	}{
		{"trust", []int64{900, 900, 900, 900, 900}},
		{"ramp", []int64{225, 393, 562, 731, 900}},
		{"strict", []int64{0, 0, 0, 0, 900}},
	} {
		t.Run(c.start, func(t *testing.T) {
			for i, want := range c.points {
				synctest.Test(t, func(t *testing.T) {
					m := NewMemory(Rules{Limits: policy.DefaultLimits(), ColdStart: c.start})
					time.Sleep(time.Duration(i) * 15 * time.Second)
					a := newAccount("a", policy.User)
					s := Spend{Budget: Points, Scope: "op", Limit: 900, Cost: 1, Window: time.Minute}
					_, log := a.log(&s)
					m.fill(a, s, m.started, c.start)
					log.expire(m.now())
					got := 900 - log.Total
					failIf(t, got != want, "after %d s: got %d points, want %d", 15*i, got, want)
				})
			}
		})
	}
}

func TestLoadKeepsUnlimitedWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules := Rules{Limits: policy.DefaultLimits(), ColdStart: "trust"}
		silent := Outcome{Sent: true, Answered: true, Ended: true, Succeeded: true}
		limited := func(id uint64) Claim {
			c := claim(id, "search")
			c.Account = "limited"
			return c
		}
		old := NewMemory(rules)
		for i := range uint64(100) {
			old.spend(t, claim(i+1, "search"), silent)
			if i < 10 {
				old.spend(t, limited(i+1), silent)
			}
		}
		reported := silent
		reported.Rate.Invalid = true
		old.spend(t, limited(500), reported)
		fresh := old.restarted(t, rules, 10*time.Second)
		for account, want := range map[string]bool{"a": true, "limited": false} {
			b, _ := fresh.Budget(policy.Caller{Account: account, Kind: policy.User}, "search")
			failIf(t, b.Unlimited != want, "account %s: got %+v, want unlimited %v", account, b, want)
		}
	})
}
