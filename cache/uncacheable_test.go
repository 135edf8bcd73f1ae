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
		if !m.Uncacheable(key) || !m.SkipShared("op", key) || m.Uncacheable(NewKey("b")) {
			t.Error("the wrong keys are marked")
		}
		time.Sleep(uncacheableFor)
		if m.Uncacheable(key) {
			t.Error("the mark has not expired")
		}
		m.MarkUncacheable("op", key)
		m.MarkCacheable("op", key)
		if m.Uncacheable(key) || m.SkipShared("op", key) {
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
		for i := range uncacheableRun {
			if m.SkipShared("op", NewKey("new")) {
				t.Fatalf("the operation is marked after %d responses", i)
			}
			m.MarkUncacheable("op", NewKey(fmt.Sprint(i)))
		}
		for range 3 {
			if m.SkipShared("op", NewKey("new")) || !m.SkipShared("op", NewKey("new")) {
				t.Error("want one look-up per second")
			}
			time.Sleep(time.Second)
		}
		if m.SkipShared("other", NewKey("new")) {
			t.Error("another operation is marked")
		}
		m.MarkCacheable("op", NewKey("new"))
		for range 2 {
			if m.SkipShared("op", NewKey("new")) {
				t.Error("a cacheable response did not remove the mark")
			}
		}
	})
}
