package redisclient

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestBatcherCombinesItemsThatArriveDuringABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var batcher Batcher[int]
		var batches [][]int
		var callers sync.WaitGroup
		for i := range 8 {
			callers.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				err := batcher.Do(i, 4, func(batch []int) error {
					batches = append(batches, batch)
					time.Sleep(time.Second)
					return nil
				})
				failIf(t, err != nil, "%v", err)
			})
		}
		callers.Wait()
		want := [][]int{{0}, {1, 2, 3, 4}, {5, 6, 7}}
		failIf(t, !slices.EqualFunc(batches, want, slices.Equal), "batches %v, want %v", batches, want)
	})
}

// All Do calls of a failed batch get its error, and the next batch runs.
func TestBatcherReturnsTheErrorToItsBatch(t *testing.T) {
	for _, c := range []struct {
		name   string
		fail   func() error
		failed []int // the items whose calls return an error
	}{
		{"error", func() error { return errors.New("failed") }, []int{1, 2}},
		{"panic in the caller of item 1", func() error { panic("failed") }, []int{2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var batcher Batcher[int]
				var failed []int
				var mu sync.Mutex
				var callers sync.WaitGroup
				for i := range 4 {
					callers.Go(func() {
						time.Sleep(time.Duration(i) * time.Millisecond)
						defer func() { _ = recover() }()
						err := batcher.Do(i, 2, func(batch []int) error {
							time.Sleep(time.Second)
							if slices.Contains(batch, 2) {
								return c.fail()
							}
							return nil
						})
						if err != nil {
							mu.Lock()
							defer mu.Unlock()
							failed = append(failed, i)
						}
					})
				}
				callers.Wait() // items 1 and 2 share a batch
				err := batcher.Do(9, 2, func([]int) error { return nil })
				failIf(t, err != nil, "%v", err)
				slices.Sort(failed)
				failIf(t, !slices.Equal(failed, c.failed), "items %v failed, want %v", failed, c.failed)
			})
		})
	}
}
