package main

import (
	"math"
	"testing"
)

func TestMemoryBudgetIsShared(t *testing.T) {
	for _, c := range []struct {
		limit, configured, cache int64
		waiting                  int
	}{
		{math.MaxInt64, 256 << 20, 256 << 20, 10_000},
		{4 << 30, 256 << 20, 256 << 20, 10_000},
		{1 << 30, 256 << 20, 256 << 20, 6_898},
		{256 << 20, 256 << 20, 128 << 20, 1_724},
	} {
		if cache, waiting := memoryShares(c.limit, c.configured); cache != c.cache || waiting != c.waiting {
			t.Errorf("limit %d: cache %d, %d waiting; want %d and %d", c.limit, cache, waiting, c.cache, c.waiting)
		}
	}
}

func TestDescriptorBudgetIsShared(t *testing.T) {
	for descriptors, want := range map[int]int{0: 0, 100: 64, 1024: 384, 65536: 32640} {
		if got := maxConnections(descriptors); got != want {
			t.Errorf("%d descriptors: %d for connections, want %d", descriptors, got, want)
		}
	}
}
