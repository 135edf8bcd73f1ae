package proxy

import (
	"context"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
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
		ctx: ctx, stop: stop, refreshes: make(chan struct{}, maxUnattended), polls: make(chan struct{}, maxUnattended),
		room: room{most: min(maxHeld, debug.SetMemoryLimit(-1)/heldShare)},
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
func (g *Gateway) refresh(ex *exchange) bool {
	switch {
	case ex.record.Background:
		return false // that is what it does
	case ex.cacheControl.Has("only-if-cached"):
		return true // nothing is sent for it
	}
	f, first := g.join(ex)
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
	q, cause := ex.question, ex.spanContext()
	q.method = http.MethodGet
	ctx, cancel := context.WithCancelCause(g.Background.ctx)
	f.cancel = cancel
	g.Background.run(func() {
		defer func() { <-g.Background.refreshes }()
		defer cancel(nil)
		g.serveNobody(ctx, errand{q, f, cause, g.Wait}, 0)
	})
	return true
}

// errand is a question whose answer is for the cache, and for those who wait for the
// flight.
type errand struct {
	question
	flight   *flight
	cause    trace.SpanContext // of what began it
	patience time.Duration
}

// serveNobody asks a question of nobody's, after a pause.
func (g *Gateway) serveNobody(ctx context.Context, e errand, pause time.Duration) {
	q, f := e.question, e.flight
	in, err := http.NewRequestWithContext(ctx, q.method, g.target(q.match).String(), http.NoBody)
	if err != nil {
		panic(err) // it was a request before
	}
	ex := g.open(&nowhere{http.Header{}}, in)
	g.traceBackground(ex, e.cause)
	defer g.finish(ex)
	ex.question, ex.call = q, f
	f.lead(ex.spanContext())
	if f.computation().answer != nil {
		ex.polls = 1 // the first has found that it is computed
	}
	defer g.land(ex, alone, nil) // if it has not
	ex.prefer = preference{wait: e.patience, given: true}
	ex.header = q.header.Clone()
	for _, name := range append([]string{"Cache-Control"}, validators...) { // a client's
		ex.header.Del(name)
	}
	ex.record.Route, ex.record.Operation, ex.record.Resource = q.route, q.match.Operation.ID, q.match.Operation.Resource
	ex.record.Account, ex.record.Client, ex.record.Background = q.identity.Caller.Account, q.identity.Caller.Client, true
	if pause <= 0 || g.pause(ex, ex.in.Context(), pause) == nil {
		g.recall(ex)
		g.forward(ex)
	}
}

// nowhere is a client that is not there.
type nowhere struct{ header http.Header }

func (n *nowhere) Header() http.Header       { return n.header }
func (*nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (*nowhere) WriteHeader(int)             {}
