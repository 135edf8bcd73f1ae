package spool

import (
	"sync"
	"testing"
)

// A reservation that does not fit makes no other one fail.
func TestBudgetReservesWhatFits(t *testing.T) {
	b, failed := Budget{Limit: 2}, 0
	var running sync.WaitGroup
	running.Go(func() {
		for range 1_000_000 {
			if b.Reserve(3) {
				t.Error("reserved more than the limit")
			}
		}
	})
	for range 1_000_000 {
		if b.Reserve(0) && b.Reserve(2) {
			b.used.Add(-2)
		} else {
			failed++
		}
	}
	if running.Wait(); failed > 0 {
		t.Errorf("%d reservations failed", failed)
	}
}
