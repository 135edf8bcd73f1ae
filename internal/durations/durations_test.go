package durations

import (
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

func TestDurationsHaveOneNotation(t *testing.T) {
	for _, c := range []struct {
		d                   time.Duration
		text, left, seconds string
	}{
		{0, "0s", "0s", "0s"},
		{1, "1ns", "1s", "0.000000001s"},
		{554321, "554µs", "1s", "0.000554321s"},
		{4214 * time.Microsecond, "4.21ms", "1s", "0.004214s"},
		{999960 * time.Microsecond, "1s", "1s", "0.99996s"},
		{1234 * time.Millisecond, "1.23s", "2s", "1.234s"},
		{-1500 * time.Millisecond, "-1.5s", "-1.5s", "-1.5s"},
		{59*time.Second + 1, "59s", "1m", "59.000000001s"},
		{59960 * time.Millisecond, "1m", "1m", "59.96s"},
		{90 * time.Second, "1m30s", "1m30s", "90s"},
		{12*time.Minute + 3*time.Second + 1, "12m3s", "12m4s", "723.000000001s"},
		{time.Hour + 59*time.Second, "1h", "1h", "3659s"},
		{time.Hour + 62*time.Second, "1h1m", "1h1m", "3662s"},
		{26 * time.Hour, "26h", "26h", "93600s"},
		{365 * 24 * time.Hour, "8760h", "8760h", "31536000s"},
	} {
		text, left, seconds := Text(c.d), Left(c.d), Seconds(c.d)
		testservers.FailIf(t, text != c.text || left != c.left || seconds != c.seconds, "%d: got %q, %q and %q, want %q, %q and %q", c.d, text, left, seconds, c.text, c.left, c.seconds)
	}
}
