package redisclient

import (
	"errors"
	"sync"
)

// Batcher combines calls that arrive at the same time into batches, so that the calls share one round trip. At most one
// batch runs at a time. Items that arrive during a batch form the next batches, in order of arrival. A Batcher starts
// no goroutine: one of the waiting [Batcher.Do] calls runs each batch. The zero value is ready to use. A Batcher is
// safe for concurrent use.
type Batcher[T any] struct {
	mu      sync.Mutex
	waiting []*batchItem[T]
	running bool
}

type batchItem[T any] struct {
	value T
	err   error
	// next receives false when the batch of the item has ended, or true when this Do call must run the batch.
	next chan bool
}

var errBatchPanicked = errors.New("redis batch panicked")

// Do adds an item to the next batch, waits until the batch has run, and returns its error. A batch has at most maxSize
// items. Each batch runs the function of one Do call, so all Do calls must pass equivalent functions. The run function
// must return.
func (b *Batcher[T]) Do(value T, maxSize int, run func([]T) error) error {
	item := &batchItem[T]{value: value, next: make(chan bool, 1)}
	b.mu.Lock()
	b.waiting = append(b.waiting, item)
	runs := !b.running
	b.running = true
	b.mu.Unlock()
	if runs || <-item.next {
		b.runBatch(maxSize, run)
	}
	return item.err
}

// runBatch runs one batch, then starts the next batch if items are waiting.
func (b *Batcher[T]) runBatch(maxSize int, run func([]T) error) {
	b.mu.Lock()
	n := min(len(b.waiting), maxSize)
	batch := b.waiting[:n:n]
	b.waiting = b.waiting[n:]
	b.mu.Unlock()
	values := make([]T, n)
	for i, item := range batch {
		values[i] = item.value
	}
	err := errBatchPanicked
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, item := range batch {
			item.err = err
			item.next <- false
		}
		if b.running = len(b.waiting) > 0; b.running {
			b.waiting[0].next <- true
		}
	}()
	err = run(values)
}
