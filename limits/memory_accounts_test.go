package limits

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/policy"
)

func claimOf(account string, id uint64) Claim {
	c := claim(id, policy.Core)
	c.Account = account
	return c
}

func TestRunRemovesIdleAccounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(Rules{Limits: policy.DefaultLimits(), ColdStart: "trust"})
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { m.Run(ctx) })
		for i := range uint64(3000) {
			m.spend(t, claimOf(fmt.Sprint("account ", i), i), Outcome{Sent: true, Answered: true, Ended: true, Succeeded: true})
		}
		time.Sleep(30*time.Minute + 30*time.Second)
		m.spend(t, claimOf("busy", 5000), Outcome{Sent: true, Answered: true, Ended: true, Succeeded: true})
		list, _ := m.Accounts(ctx, 5000)
		failIf(t, len(list) != 3001, "%d accounts, want 3001 within their windows", len(list))
		time.Sleep(32 * time.Minute)
		stop()
		running.Wait()
		n := len(m.accounts)
		failIf(t, n != 1 || m.accounts["busy"] == nil || m.peak != 1, "%d accounts (peak %d), want only the busy account", n, m.peak)
	})
}

func TestAccountsOfRefusedTokensAreNotKept(t *testing.T) {
	refused, found := Outcome{Sent: true, Answered: true, Unauthorized: true}, Outcome{Sent: true, Answered: true, Ended: true}
	limited := found
	limited.Limited = policy.LimitSecondary
	for _, c := range []struct {
		name     string
		outcomes []Outcome
		kept     bool
	}{
		{"401", []Outcome{refused}, false},
		{"401 twice", []Outcome{refused, refused}, false},
		{"not sent", []Outcome{{}}, true},
		{"404 and 401", []Outcome{found, refused}, true},
		{"no response and 401", []Outcome{{Sent: true}, refused}, true},
		{"limit error and 401", []Outcome{limited, refused}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := NewMemory(Rules{Limits: policy.DefaultLimits(), ColdStart: "trust"})
			for i := range c.outcomes {
				m.spend(t, claimOf("a", uint64(i)), Outcome{})
			}
			for i, o := range c.outcomes {
				failIf(t, m.accounts["a"] == nil, "the account was removed during a request")
				for range min(2, len(c.outcomes)-i) { // a repeated call during another request has no effect
					_ = m.Settle(t.Context(), Permit{Claim: claimOf("a", uint64(i))}, o)
					m.Release(t.Context(), Permit{Claim: claimOf("a", uint64(i))}, false)
				}
			}
			kept := m.accounts["a"] != nil
			failIf(t, kept != c.kept, "account kept: %t, want %t", kept, c.kept)
		})
	}
	t.Run("refused claim", func(t *testing.T) {
		m := NewMemory(Rules{Limits: policy.DefaultLimits(), ColdStart: "strict"})
		d := m.Admit(t.Context(), claimOf("a", 1))
		failIf(t, d.Granted || len(m.accounts) != 0, "%+v, %d accounts; want a refusal without an account", d, len(m.accounts))
	})
}

// longestAdmit returns the longest duration of Admit and Settle while work runs, and the duration of work.
func longestAdmit(m *Memory, work func()) (longest, total time.Duration) {
	done, began := make(chan time.Duration), time.Now()
	go func() {
		work()
		done <- time.Since(began)
	}()
	claim := claimOf("client", 1<<40)
	for {
		select {
		case total = <-done:
			return longest, total
		default:
			claim.ID++
			before := time.Now()
			m.Admit(context.Background(), claim)
			_ = m.Settle(context.Background(), Permit{Claim: claim}, Outcome{})
			longest = max(longest, time.Since(before))
		}
	}
}

// A listing of all accounts takes much longer than any call of Admit during the listing. The best of many rounds counts,
// because a busy machine may pause any call.
func TestListingDoesNotDelayAdmit(t *testing.T) {
	m := NewMemory(Rules{Limits: policy.DefaultLimits(), ColdStart: "trust"})
	for i := range uint64(20_000) { // uses every kind of budget
		c := claimOf(fmt.Sprint("account ", i), i)
		c.CreatesContent, c.CPU = true, time.Millisecond
		m.spend(t, c, Outcome{Sent: true, Answered: true, Ended: true, Succeeded: true})
	}
	for name, work := range map[string]func(){
		"listing": func() { _, _ = m.Accounts(context.Background(), 1000) },
		"sweep":   m.sweep,
	} {
		best := 1.0
		for round := 0; round < 30 && best > 0.25; round++ {
			longest, total := longestAdmit(m, work)
			best = min(best, float64(longest)/float64(total))
		}
		failIf(t, best > 0.25, "%s: Admit took at least %.0f %% of its time", name, 100*best)
	}
}

// The window of the search has ended, and its sliding log still contains the searches.
func TestSweepKeepsTheLimitOfASearchInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(Rules{Limits: policy.DefaultLimits(), ColdStart: "trust"})
		o := answer(policy.CodeSearch, 1)
		o.Rate.Limit, o.Rate.Reset = 4, time.Now().Add(30*time.Second)
		for id := range uint64(4) {
			m.spend(t, claim(id, policy.CodeSearch), o)
		}
		time.Sleep(50 * time.Second)
		m.sweep()
		d := m.Admit(t.Context(), claim(5, policy.CodeSearch))
		failIf(t, d.Granted, "a fifth search was granted within a minute")
	})
}
