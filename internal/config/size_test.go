package config

import (
	"testing"

	"pgregory.net/rapid"
)

func TestSize(t *testing.T) {
	for text, want := range map[string]Size{"0": 0, "12": 12, "12B": 12, "3KiB": 3 << 10, "256MiB": 256 << 20, "2 GiB": 2 << 30} {
		if got, err := parseSize(text); got != want || err != nil {
			t.Errorf("%s: got %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", " ", "-1", "1.5MiB", "MiB", "1MB", "1mib", "1e3", "0x10", "9999999999GiB"} {
		if got, err := parseSize(text); err == nil {
			t.Errorf("%q: accepted as %d", text, got)
		}
	}
	for size, want := range map[Size]string{0: "0B", 1: "1B", 1 << 20: "1MiB", 1536: "1536B", 1536 << 10: "1536KiB"} {
		if size.String() != want {
			t.Errorf("%d: got %s, want %s", int64(size), size, want)
		}
	}
}

func TestSizeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := Size(rapid.Int64Range(0, 1<<50).Draw(t, "size"))
		if got, err := parseSize(size.String()); got != size || err != nil {
			t.Fatalf("%s parses as %d, %v", size, got, err)
		}
	})
}
