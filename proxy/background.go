package proxy

import (
	"context"
	"sync"
)

// Background runs what goes on when its client has left. It outlives a gateway.
type Background struct {
	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
}

// NewBackground returns one that runs until it is closed.
func NewBackground() *Background {
	ctx, stop := context.WithCancel(context.Background())
	return &Background{ctx: ctx, stop: stop}
}

// Close ends what runs, and waits for it. Nothing must be begun after it.
func (b *Background) Close() {
	b.stop()
	b.running.Wait()
}

// run runs something that giveUp ends.
func (b *Background) run(do func(), giveUp func()) {
	b.running.Go(func() {
		defer context.AfterFunc(b.ctx, giveUp)()
		do()
	})
}
