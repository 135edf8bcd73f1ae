package limits

import (
	"context"
	"fmt"
	"slices"
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
		if list, _ := m.Accounts(ctx, 5000); len(list) != 3001 {
			t.Errorf("%d accounts, want 3001 within their windows", len(list))
		}
		time.Sleep(32 * time.Minute)
		stop()
		running.Wait()
		if n := len(m.accounts); n != 1 || m.accounts["busy"] == nil || m.peak != 1 || len(m.unproven) != 0 {
			t.Errorf("%d accounts (peak %d, %d unproven), want only the busy account", n, m.peak, len(m.unproven))
		}
	})
}

func TestAccountsOfRefusedTokensAreNotKept(t *testing.T) {
	refused := Outcome{Sent: true, Answered: true, Unauthorized: true}
	for _, c := range []struct {
		name string
		use  func(m *Memory, admit func(id uint64) Permit)
		kept bool
	}{
		{"401", func(m *Memory, admit func(uint64) Permit) {
			p := admit(1)
			_ = m.Settle(t.Context(), p, refused)
			_ = m.Release(t.Context(), p, false)
		}, false},
		{"401 twice", func(m *Memory, admit func(uint64) Permit) {
			p, q := admit(1), admit(2)
			for range 2 { // a repeated call has no effect
				_ = m.Settle(t.Context(), p, refused)
				_ = m.Release(t.Context(), p, false)
			}
			if m.accounts["a"] == nil {
				t.Error("the account was removed during a request")
			}
			_ = m.Settle(t.Context(), q, refused)
			_ = m.Release(t.Context(), q, false)
		}, false},
		{"not sent", func(m *Memory, admit func(uint64) Permit) { _ = m.Settle(t.Context(), admit(1), Outcome{}) }, true},
		{"404 and 401", func(m *Memory, admit func(uint64) Permit) {
			_ = m.Settle(t.Context(), admit(1), Outcome{Sent: true, Answered: true, Ended: true})
			p := admit(2)
			_ = m.Settle(t.Context(), p, refused)
			_ = m.Release(t.Context(), p, false)
		}, true},
		{"no response and 401", func(m *Memory, admit func(uint64) Permit) {
			_ = m.Settle(t.Context(), admit(1), Outcome{Sent: true})
			p := admit(2)
			_ = m.Settle(t.Context(), p, refused)
			_ = m.Release(t.Context(), p, false)
		}, true},
		{"limit error and 401", func(m *Memory, admit func(uint64) Permit) {
			p := admit(1)
			_ = m.Settle(t.Context(), admit(2), Outcome{Sent: true, Answered: true, Ended: true, Limited: SecondaryLimit})
			_ = m.Settle(t.Context(), p, refused)
			_ = m.Release(t.Context(), p, false)
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := NewMemory(Rules{Limits: policy.DefaultLimits(), ColdStart: "trust"})
			c.use(m, func(id uint64) Permit {
				claim := claimOf("a", id)
				if d, _ := m.Admit(t.Context(), claim); !d.Granted {
					t.Fatalf("refused: %s", d.Reason)
				}
				return Permit{Claim: claim}
			})
			if kept := m.accounts["a"] != nil; kept != c.kept || !c.kept && len(m.unproven) != 0 {
				t.Errorf("account kept: %t, want %t; %d unproven accounts", kept, c.kept, len(m.unproven))
			}
		})
	}
	t.Run("refused claim", func(t *testing.T) {
		m := NewMemory(Rules{Limits: policy.DefaultLimits(), ColdStart: "strict"})
		if d, _ := m.Admit(t.Context(), claimOf("a", 1)); d.Granted || len(m.accounts) != 0 {
			t.Errorf("%+v, %d accounts; want a refusal without an account", d, len(m.accounts))
		}
	})
}

// manyAccounts returns a ledger in which n accounts have used every kind of budget.
func manyAccounts(n int) *Memory {
	m := NewMemory(Rules{Limits: policy.DefaultLimits(), ColdStart: "trust"})
	for i := range uint64(n) {
		c := claimOf(fmt.Sprint("account ", i), i)
		c.CreatesContent, c.CPU = true, time.Millisecond
		_, _ = m.Admit(context.Background(), c)
		_ = m.Settle(context.Background(), Permit{Claim: c}, Outcome{Sent: true, Answered: true, Ended: true, Succeeded: true})
	}
	return m
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
			_, _ = m.Admit(context.Background(), claim)
			_ = m.Settle(context.Background(), Permit{Claim: claim}, Outcome{})
			longest = max(longest, time.Since(before))
		}
	}
}

// A listing of all accounts takes much longer than any call of Admit during the listing. The median of several rounds
// counts, because the scheduler may pause any call.
func TestListingDoesNotDelayAdmit(t *testing.T) {
	m := manyAccounts(50_000)
	for name, work := range map[string]func(){
		"listing": func() { _, _ = m.Accounts(context.Background(), 1000) },
		"sweep":   m.sweep,
	} {
		var parts []float64
		for range 7 {
			longest, total := longestAdmit(m, work)
			t.Logf("%s: %v, Admit at most %v", name, total, longest)
			parts = append(parts, float64(longest)/float64(total))
		}
		if slices.Sort(parts); parts[3] > 0.25 {
			t.Errorf("%s: Admit took %.0f %% of its time", name, 100*parts[3])
		}
	}
}
