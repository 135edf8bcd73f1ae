package cache

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestUncacheableKeysAreMarkedForALimitedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, key := NewMemory(1<<20), NewKey("a")
		m.MarkUncacheable("op", key)
		marked := func(key Key) string { return fmt.Sprint(m.Uncacheable("op", key)) }
		if marked(key) != "true true" || marked(NewKey("b")) != "false false" {
			t.Error("the wrong keys are marked")
		}
		time.Sleep(uncacheableFor)
		if marked(key) != "false false" {
			t.Error("the mark has not expired")
		}
		m.MarkUncacheable("op", key)
		m.MarkCacheable("op", key)
		if marked(key) != "false false" {
			t.Error("a cacheable response did not remove the mark")
		}
		for i := range 2 * maxUncacheable {
			m.MarkUncacheable("op", NewKey(fmt.Sprint(i)))
		}
		if n := m.uncacheable.keys.Len(); n > maxUncacheable {
			t.Errorf("%d keys are marked", n)
		}
	})
}

func TestUncacheableOperationsAreProbedOncePerSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(1 << 20)
		skips := func(operation string) bool {
			_, skip := m.Uncacheable(operation, NewKey("new"))
			return skip
		}
		for i := range uncacheableRun {
			if skips("op") {
				t.Fatalf("the operation is marked after %d responses", i)
			}
			m.MarkUncacheable("op", NewKey(fmt.Sprint(i)))
		}
		for range 3 {
			if skips("op") || !skips("op") {
				t.Error("want one look-up per second")
			}
			time.Sleep(time.Second)
		}
		if skips("other") {
			t.Error("another operation is marked")
		}
		m.MarkCacheable("op", NewKey("new"))
		for range 2 {
			if skips("op") {
				t.Error("a cacheable response did not remove the mark")
			}
		}
	})
}
