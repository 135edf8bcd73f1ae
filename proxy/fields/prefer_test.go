package fields

import (
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }
func noError(t testing.TB, err error)                 { t.Helper(); testservers.NoError(t, err) }

func TestParsePrefer(t *testing.T) {
	for _, c := range []struct {
		value string
		want  Preference
	}{
		{"", Preference{}},
		{"wait=5", Preference{5 * time.Second, true, "wait=5"}},
		{"return=minimal, wait=7", Preference{7 * time.Second, true, "wait=7"}},
		{`wait="3"`, Preference{3 * time.Second, true, "wait=3"}},
		{"respond-async, wait=9", Preference{0, true, "respond-async"}},
		{"wait=-1", Preference{}},
		{"wait=soon", Preference{}},
		{"wait=99999999", Preference{maxWait, true, "wait=99999999"}},
	} {
		got := ParsePrefer([]string{c.value})
		failIf(t, got != c.want, "%q: got %+v, want %+v", c.value, got, c.want)
	}
}
