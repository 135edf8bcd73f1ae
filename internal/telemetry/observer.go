package telemetry

import (
	"sync"
	"time"

	"github.com/weirgate/weir/proxy/record"
)

// Observer takes the records of finished requests, counts them in the metrics, passes them on, and writes their access
// lines. A client never waits for this work: the observer has a queue, and a goroutine that empties the queue.
type Observer struct {
	telemetry *Telemetry
	next      func(*record.Record)
	lines     lineWriter
	access    accessLog

	mu     sync.Mutex
	queue  []*record.Record // oldest first
	closed bool

	recording sync.Mutex       // held while records leave the queue and are recorded, so that they stay in order
	spare     []*record.Record // an empty queue; guarded by recording

	wake    chan struct{} // has a value if the queue should be emptied soon
	timer   *time.Timer   // sends to wake; runs while the queue is not empty
	stop    chan struct{}
	running sync.WaitGroup
}

const (
	// maxQueued bounds the records in the queue. The observer drops and counts further records.
	maxQueued = 8192
	// maxBatch is the number of records in the queue at which the observer records them before flushDelay ends.
	maxBatch = 128
	// flushDelay is the time after which a record is recorded. It is half of the documented 100 ms.
	flushDelay = 50 * time.Millisecond
	// flushPause is the minimum pause between two batches. Without it, a flood of failures would cause one write per line.
	flushPause = time.Millisecond
)

// NewObserver returns an observer that calls next with each record, one at a time. The observer must be closed before the
// telemetry.
func (t *Telemetry) NewObserver(next func(*record.Record)) *Observer {
	o := &Observer{telemetry: t, next: next, wake: make(chan struct{}, 1), stop: make(chan struct{})}
	o.lines.open(t.output, &t.droppedLines)
	o.access = newAccessLog(t.config, &o.lines, t.logs)
	o.timer = time.AfterFunc(flushDelay, o.wakeUp)
	o.running.Go(o.run)
	return o
}

// Observe takes the record of a finished request, which must not change afterwards. It blocks only after Close, when it writes the record itself.
func (o *Observer) Observe(r *record.Record) {
	o.mu.Lock()
	n := len(o.queue) + 1
	if n > maxQueued {
		o.mu.Unlock()
		o.telemetry.droppedRecords.Add(1)
		return
	}
	o.queue = append(o.queue, r)
	closed := o.closed
	o.mu.Unlock()
	switch {
	case closed: // the request outlived the drain
		o.Flush()
		o.lines.flush()
	case n == maxBatch || failed(r):
		o.wakeUp()
	case n == 1:
		o.timer.Reset(flushDelay)
	}
}

func (o *Observer) wakeUp() {
	select {
	case o.wake <- struct{}{}:
	default: // already requested
	}
}

func (o *Observer) run() {
	for {
		select {
		case <-o.wake:
		case <-o.stop:
			return
		}
		o.Flush()
		select {
		case <-time.After(flushPause):
		case <-o.stop:
			return
		}
	}
}

// Flush records all requests that have finished, so that a reader of the metrics finds them. It does not wait until their
// access lines are written.
func (o *Observer) Flush() {
	o.recording.Lock()
	defer o.recording.Unlock()
	o.mu.Lock()
	batch := o.queue
	o.queue = o.spare
	o.mu.Unlock()
	for _, r := range batch {
		if !o.telemetry.disabled {
			o.telemetry.observe(r)
		}
		o.next(r)
		o.access.write(r)
	}
	clear(batch) // the records are garbage now
	o.spare = batch[:0]
	o.lines.wakeUp()
}

// Close records all requests that have finished, and blocks until their access lines are written, for at most
// closeTimeout.
func (o *Observer) Close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	close(o.stop)
	o.running.Wait()
	o.timer.Stop()
	o.Flush()
	o.lines.close()
}
