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
		failIf(t, marked(key) != "true true" || marked(NewKey("b")) != "false false", "the wrong keys are marked")
		time.Sleep(uncacheableFor)
		failIf(t, marked(key) != "false false", "the mark has not expired")
		m.MarkUncacheable("op", key)
		m.MarkCacheable("op", key)
		failIf(t, marked(key) != "false false", "a cacheable response did not remove the mark")
		for i := range 2 * maxUncacheable {
			m.MarkUncacheable("op", NewKey(fmt.Sprint(i)))
		}
		n := m.uncacheable.keys.Len()
		failIf(t, n > maxUncacheable, "%d keys are marked", n)
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
			stopIf(t, skips("op"), "the operation is marked after %d responses", i)
			m.MarkUncacheable("op", NewKey(fmt.Sprint(i)))
		}
		for range 3 {
			failIf(t, skips("op") || !skips("op"), "want one look-up per second")
			time.Sleep(time.Second)
		}
		failIf(t, skips("other"), "another operation is marked")
		m.MarkCacheable("op", NewKey("new"))
		for range 2 {
			failIf(t, skips("op"), "a cacheable response did not remove the mark")
		}
	})
}
