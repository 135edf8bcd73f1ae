package limits

import (
	"fmt"
	"testing"
	"time"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); FailIf(t, c, f, a...) }
func noError(t testing.TB, err error)                 { t.Helper(); NoError(t, err) }
func stopIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); StopIf(t, c, f, a...) }

// FailIf fails the test if a condition holds.
func FailIf(t testing.TB, failed bool, format string, args ...any) {
	if failed {
		t.Helper()
		t.Errorf(format, args...)
	}
}

// NoError ends the test if an error is not nil.
func NoError(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// StopIf ends the test if a condition holds.
func StopIf(t testing.TB, failed bool, format string, args ...any) {
	if failed {
		t.Helper()
		t.Fatalf(format, args...)
	}
}

// Stepped returns a clock whose wall clock shows another time than that of c.
func (c *Clock) Stepped(by func() time.Duration) *Clock {
	return &Clock{c.start, c.elapsed, func() time.Time { return c.wall().Add(by()) }}
}

// NewMemoryAt is newMemoryAt.
var NewMemoryAt = newMemoryAt

// SharingNumbers returns the texts of docs/sharing.md with the numbers of the rules.
func SharingNumbers() []string {
	parts := map[int64]string{12: "twelfth", 20: "twentieth", 60: "sixtieth", 100: "hundredth"}
	return []string{
		"the last " + parts[releaseParts], "leave a " + parts[reserveParts] + " of an hourly budget", "and a " + parts[paceParts] + ".",
		"a " + parts[reservedParts] + " of the API's limit", fmt.Sprintf("one of %d permits", floorEvery),
		fmt.Sprintf("all tags beyond %d", maxTags), map[int64]string{600: "of ten minutes and longer"}[dividedFrom/second],
		map[int64]string{1: "until a second after"}[waitTime/second],
	}
}
