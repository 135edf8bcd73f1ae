package limitstest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// TestFailedProbesBackOff checks that an account whose limit is always exceeded gets few probes, although every limit
// error has a short Retry-After.
func TestFailedProbesBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, openMemory, limits.Rules{Limits: policy.DefaultLimits()})
		probes := 0
		for began := time.Now(); time.Since(began) < 150*time.Second; time.Sleep(100 * time.Millisecond) {
			if p, d := h.admit(get(policy.Core)); d.Granted {
				probes++
				h.settled(p, limitedBy(2*time.Second))
			}
		}
		failIf(t, probes > 7, "%d limit errors in 150 s, want at most 7", probes)
	})
}
