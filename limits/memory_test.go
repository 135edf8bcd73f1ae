package limits_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/limits/limitstest"
	"github.com/weirgate/weir/policy"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); limits.FailIf(t, c, f, a...) }
func noError(t testing.TB, err error)                 { t.Helper(); limits.NoError(t, err) }
func stopIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); limits.StopIf(t, c, f, a...) }

func TestMemoryPassesTheLedgerSuite(t *testing.T) {
	limitstest.RunSuite(t, func(testing.TB) limitstest.Open {
		return func(_ *testing.T, rules limits.Rules) limitstest.Ledger { return limits.NewMemory(rules) }
	})
}

func TestAccountsReturnsTheMostRecentlyUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := limits.NewMemory(limits.Rules{Limits: policy.DefaultLimits(), ColdStart: "trust"})
		for i, name := range []string{"a", "c", "b"} {
			d := m.Admit(t.Context(), limits.Claim{ID: uint64(i + 1), Account: name, Kind: policy.User,
				Operation: "op", Resource: policy.Core, Points: 1})
			stopIf(t, !d.Granted, "%v", d)
			time.Sleep(time.Second)
		}
		list, err := m.Accounts(t.Context(), 2)
		failIf(t, err != nil || len(list) != 2 || list[0].Name != "b" || list[1].Name != "c", "got %+v, %v; want b and c", list, err)
	})
}

func TestKindIsThatOfAWorkflowOnlyIfItsLimitTells(t *testing.T) {
	for user, want := range map[int]int{5000: 1000, 1000: 5000} { // limits of core for users, and of GraphQL after a report of 1,000
		synctest.Test(t, func(t *testing.T) {
			rules := limits.Rules{Limits: policy.DefaultLimits(), ColdStart: "trust"}
			rules.Primary.User = user
			m := limits.NewMemory(rules)
			claim := limits.Claim{ID: 1, Account: "a", Kind: policy.User, Operation: "op", Resource: policy.Core, Points: 1}
			m.Admit(t.Context(), claim)
			err := m.Settle(t.Context(), limits.Permit{Claim: claim}, limits.Outcome{
				Sent: true, Answered: true, Ended: true, Succeeded: true,
				Rate: policy.Rate{Limit: 1000, Used: 1, Reset: time.Now().Add(time.Hour), Date: time.Now(), Resource: policy.Core},
			})
			noError(t, err)
			claim.ID, claim.Resource = 2, policy.GraphQL
			m.Admit(t.Context(), claim)
			list, _ := m.Accounts(t.Context(), 1)
			for _, b := range list[0].Budgets {
				failIf(t, b.Resource == policy.GraphQL && b.Limit != want, "a limit of %d for users: got a limit of %d for GraphQL, want %d", user, b.Limit, want)
			}
		})
	}
}
