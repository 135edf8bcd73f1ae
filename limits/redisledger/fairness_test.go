package redisledger

import (
	"testing"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits/limitstest"
)

// TestClientsShareFairlyOverRedis runs WEIR_FAIR_SCENARIOS random scenarios for each property of fairness, with replicas
// that share one Redis server.
func TestClientsShareFairlyOverRedis(t *testing.T) {
	sockets := [2]string{testservers.Redis(t), testservers.Redis(t)}
	limitstest.RunFairness(t, setting(t, "WEIR_FAIR_SCENARIOS", 1), func(t *testing.T, s limitstest.Scenario) limitstest.Report {
		r, _ := runWithFaults(t, sockets, s, faults{}, nil)
		return r
	})
}
