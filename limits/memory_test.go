package limits_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/limits/limitstest"
	"github.com/weirgate/weir/policy"
)

func TestMemoryPassesTheLedgerSuite(t *testing.T) {
	limitstest.RunSuite(t, func(testing.TB) limitstest.Open {
		return func(_ *testing.T, rules limits.Rules) limitstest.Ledger { return limits.NewMemory(rules) }
	})
}

func TestAccountsReturnsTheMostRecentlyUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := limits.NewMemory(limits.Rules{Limits: policy.DefaultLimits(), ColdStart: "trust"})
		for i, name := range []string{"a", "c", "b"} {
			if d := m.Admit(t.Context(), limits.Claim{ID: uint64(i + 1), Account: name, Kind: policy.User,
				Operation: "op", Resource: policy.Core, Points: 1}); !d.Granted {
				t.Fatal(d)
			}
			time.Sleep(time.Second)
		}
		list, err := m.Accounts(t.Context(), 2)
		if err != nil || len(list) != 2 || list[0].Name != "b" || list[1].Name != "c" {
			t.Errorf("got %+v, %v; want b and c", list, err)
		}
	})
}
