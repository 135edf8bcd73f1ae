package limitstest

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }

// TestClientsShareFairly runs WEIR_FAIR_SCENARIOS random scenarios for each property of fairness, with replicas that
// share one ledger.
func TestClientsShareFairly(t *testing.T) {
	RunFairness(t, testservers.Setting(t, "WEIR_FAIR_SCENARIOS", 1), true, func(t *testing.T, s Scenario) (r Report) {
		synctest.Test(t, func(t *testing.T) {
			r = s.Run(t, func(t *testing.T, rules limits.Rules) func(int) Ledger {
				shared := demandOfReplicas{memory(t, rules)(0), s.Replicas}
				return func(int) Ledger { return shared }
			}, nil)
		})
		return r
	})
}

// demandOfReplicas estimates the claims that wait at all replicas from those at one replica, as the ledger in Redis does.
type demandOfReplicas struct {
	Ledger
	replicas int
}

func (l demandOfReplicas) Admit(ctx context.Context, c limits.Claim) limits.Decision {
	c.Waiting = max(1, c.Waiting) * l.replicas
	return l.Ledger.Admit(ctx, c)
}
