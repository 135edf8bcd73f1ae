package limitstest

import "testing"

// TestClientsShareFairly runs WEIR_FAIR_SCENARIOS random scenarios for each property of fairness, with replicas that
// share one ledger.
func TestClientsShareFairly(t *testing.T) {
	RunFairness(t, setting(t, "WEIR_FAIR_SCENARIOS", 2), func(t *testing.T, s Scenario) Report { return inBubble(t, s, nil) })
}
