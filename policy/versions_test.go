package policy

import (
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }
func noError(t testing.TB, err error)                 { t.Helper(); testservers.NoError(t, err) }
func stopIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.StopIf(t, c, f, a...) }

func TestEveryEndingVersionIsKnown(t *testing.T) {
	for name, d := range dialects {
		for _, e := range d.Ending {
			_, err := time.Parse(time.DateOnly, e.Since)
			failIf(t, err != nil || d.VersionLabel([]string{e.Version}) != e.Version, "%s: %+v: %v", name, e, err)
		}
	}
}
