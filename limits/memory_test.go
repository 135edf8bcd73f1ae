package limits_test

import (
	"flag"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/limits/limitstest"
	"github.com/weirgate/weir/policy"
)

// TestMain checks the same random cases in each run, or WEIR_CHECKS new ones. This package cannot import testservers.
func TestMain(m *testing.M) {
	flag.Parse()
	if checks := os.Getenv("WEIR_CHECKS"); checks != "" {
		_ = flag.Set("rapid.checks", checks) // never fails, or rapid checks its default number
	} else if flag.Lookup("rapid.seed").Value.String() == "0" {
		_ = flag.Set("rapid.seed", "1") // never fails
	}
	os.Exit(m.Run())
}

func TestMemoryPassesTheLedgerSuite(t *testing.T) {
	limitstest.RunSuite(t, func(_ *testing.T, rules limits.Rules) limits.Ledger { return limits.NewMemory(rules) })
}

func TestAccountsReturnsTheMostRecentlyUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := limits.NewMemory(limits.Rules{Limits: policy.DefaultLimits(), ColdStart: "trust"})
		for i, name := range []string{"a", "c", "b"} {
			if d, err := m.Admit(t.Context(), limits.Claim{ID: uint64(i + 1), Account: name, Kind: policy.User,
				Operation: "op", Resource: policy.Core, Points: 1}); err != nil || !d.Granted {
				t.Fatal(d, err)
			}
			time.Sleep(time.Second)
		}
		list, err := m.Accounts(t.Context(), 2)
		if err != nil || len(list) != 2 || list[0].Name != "b" || list[1].Name != "c" {
			t.Errorf("got %+v, %v; want b and c", list, err)
		}
	})
}
