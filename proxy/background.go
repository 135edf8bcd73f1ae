package proxy

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// Background runs what goes on when its client has left. It outlives a gateway.
type Background struct {
	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
	// refreshes bounds how many entries are validated without a client that waits,
	// polls how many answers are asked for again until they are computed.
	refreshes, polls chan struct{}
	room             room
}

// maxUnattended is how many refreshes, and how many polls, are at once; who finds no
// place waits for the answer, or is told that it is still computed.
const maxUnattended = 256

// NewBackground returns one that runs until it is closed.
func NewBackground() *Background {
	ctx, stop := context.WithCancel(context.Background())
	return &Background{
		ctx: ctx, stop: stop, refreshes: make(chan struct{}, maxUnattended), polls: make(chan struct{}, maxUnattended), room: room{most: maxHeld},
	}
}

// Close ends what runs, and waits for it. Nothing must be begun after it.
func (b *Background) Close() {
	b.stop()
	b.running.Wait()
}

// run runs something that ends soon after ctx.
func (b *Background) run(do func()) { b.running.Go(do) }

// refresh validates in the background an entry that is used meanwhile, unless that is
// done already. It reports false when it cannot.
func (g *Gateway) refresh(x *exchange) bool {
	switch {
	case x.record.Background:
		return false // that is what it does
	case x.ask.Has("only-if-cached"):
		return true // nothing is sent for it
	}
	f, first := g.join(x)
	if !first {
		f.leave()
		return true
	}
	select {
	case g.Background.refreshes <- struct{}{}:
	default:
		g.landed(f, alone, nil)
		return false
	}
	q := x.question
	q.method = http.MethodGet
	ctx, cancel := context.WithCancelCause(g.Background.ctx)
	f.cancel = cancel
	g.Background.run(func() {
		defer func() { <-g.Background.refreshes }()
		defer cancel(nil)
		g.serveNobody(ctx, q, f, 0, g.Wait)
	})
	return true
}

// serveNobody asks a question, after a pause, whose answer is for the cache, and for
// those who wait for the flight.
func (g *Gateway) serveNobody(ctx context.Context, q question, f *flight, pause, patience time.Duration) {
	in, err := http.NewRequestWithContext(ctx, q.method, q.url.String(), http.NoBody)
	if err != nil {
		panic(err) // it was a request before
	}
	x := g.begin(&nowhere{http.Header{}}, in)
	defer g.finish(x)
	x.question, x.flight = q, f
	if f.computation().answer != nil {
		x.polls = 1 // the first has found that it is computed
	}
	defer g.land(x, alone, nil) // if it has not
	x.prefer = preference{wait: patience, given: true}
	x.header = q.header.Clone()
	for _, name := range append([]string{"Cache-Control"}, validators...) { // a client's
		x.header.Del(name)
	}
	x.record.Route, x.record.Operation, x.record.Resource = q.label, q.match.Operation.ID, q.match.Operation.Resource
	x.record.Account, x.record.Client, x.record.Background = q.who.Caller.Account, q.who.Caller.Client, true
	if sleep(ctx, pause) == nil {
		g.recall(x)
		g.forward(x)
	}
}

// nowhere is a client that is not there.
type nowhere struct{ header http.Header }

func (n *nowhere) Header() http.Header       { return n.header }
func (*nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (*nowhere) WriteHeader(int)             {}
