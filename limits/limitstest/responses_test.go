package limitstest_test

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/limits/limitstest"
	"github.com/weirgate/weir/policy"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }

func TestNoNumberOfAResponseBlocksAnAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ledger := limits.NewMemory(limits.Rules{Limits: policy.DefaultLimits()})
		r := limitstest.NewResponder(t, func() {}, ledger)
		r.RunResponses(testservers.Setting(t, "WEIR_RESPONSES", 5000), rand.New(rand.NewPCG(1, 2)))
	})
}
