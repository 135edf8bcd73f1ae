package proxy

import (
	"context"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/semaphore"

	"github.com/weirgate/weir/proxy/coalesce"
)

// Background runs work that continues after a client's disconnect: revalidation, polling, and reading bodies for the
// cache. Background also contains the coalesced calls, and outlives a [Gateway].
type Background struct {
	calls   coalesce.Group
	ctx     context.Context // canceled by Close
	stop    context.CancelFunc
	running sync.WaitGroup
	// refreshes bounds the background revalidations. polls bounds the polled questions.
	refreshes, polls *semaphore.Weighted
	// buffers bounds the bytes in memory for clients, and files those in temporary files.
	buffers, files bufferBudget
}

// maxBackground bounds the concurrent background revalidations, and separately the polled questions.
const maxBackground = 256

// NewBackground returns a Background that runs until [Background.Close].
func NewBackground() *Background {
	ctx, stop := context.WithCancel(context.Background())
	return &Background{
		ctx: ctx, stop: stop, refreshes: semaphore.NewWeighted(maxBackground), polls: semaphore.NewWeighted(maxBackground),
		buffers: bufferBudget{limit: min(maxHeld, debug.SetMemoryLimit(-1)/heldShare)},
		files:   bufferBudget{limit: maxSpooled},
	}
}

// Close cancels all work and blocks until the work has ended. No work may be started afterwards.
func (b *Background) Close() {
	b.stop()
	b.running.Wait()
}

// refresh revalidates a stale entry in the background, and reports whether clients may get the stale entry (RFC 5861
// section 3). The result is false if too many revalidations are running.
func (g *Gateway) refresh(a *attempt) bool {
	switch {
	case a.record.Background:
		return false // a is the revalidation
	case a.cacheControl.Has("only-if-cached"):
		return true // such a request must not cause an upstream request
	}
	c, leads := g.join(a, 0)
	if !leads {
		c.Leave()
		return true
	}
	if !g.Background.refreshes.TryAcquire(1) {
		c.Finish(coalesce.Ending{Result: coalesce.Private})
		return false
	}
	task := backgroundTask{
		slots: g.Background.refreshes, question: *a.question, call: c, cause: a.span.SpanContext(), wait: g.Wait,
	}
	task.question.method = http.MethodGet
	ctx, cancel := context.WithCancelCause(g.Background.ctx)
	task.cancel = cancel
	c.Lead(cancel, trace.SpanContext{})
	g.Background.running.Go(func() { g.serveInBackground(ctx, task) })
	return true
}

// backgroundTask is a question whose response is stored for the followers of a call.
type backgroundTask struct {
	question question            // a copy, which the task changes before it begins
	slots    *semaphore.Weighted // the task holds one slot
	call     *coalesce.Call
	cause    trace.SpanContext // span of the request that started the task
	wait     time.Duration     // maximum wait for permits and polls
	pause    time.Duration     // pause before the first request
	cancel   context.CancelCauseFunc
}

// serveInBackground handles a question like [Gateway.ServeHTTP], but without a client.
func (g *Gateway) serveInBackground(ctx context.Context, task backgroundTask) {
	defer task.slots.Release(1)
	defer task.cancel(nil)
	q, c := &task.question, task.call
	q.acceptEncoding = nil // no client reads the response
	q.header = q.header.Clone()
	for _, name := range append([]string{"Cache-Control"}, validators...) { // these fields concern only the client
		q.header.Del(name)
	}
	in, err := http.NewRequestWithContext(ctx, q.method, g.target(q.match).String(), http.NoBody)
	if err != nil {
		panic(err) // the URL is valid: the client's request had the same target
	}
	ex := g.open(&discardWriter{http.Header{}}, in)
	g.traceBackground(ex, task.cause)
	defer g.finish(ex)
	c.Lead(task.cancel, ex.span.SpanContext())
	defer c.Finish(coalesce.Ending{Result: coalesce.Private}) // has no effect if the call has a result
	ex.prefer = preference{wait: task.wait, given: true}
	ex.question = q
	r, caller := ex.record, q.identity.Caller
	r.Route, r.Operation, r.Resource = q.route, q.match.Operation.ID, q.resource
	r.Account, r.Client, r.Tag, r.Background = caller.Account, caller.Client, q.tag, true
	if task.pause <= 0 || g.pause(ex, ex.in.Context(), task.pause) == nil {
		a := g.try(ex, q)
		a.call = c
		if c.Computation().Response != nil {
			a.polls = 1 // the client's request was the first poll
		}
		g.usableEntry(a)
		g.forward(a)
	}
}

// discardWriter is the ResponseWriter of a background task.
type discardWriter struct{ header http.Header }

func (w *discardWriter) Header() http.Header       { return w.header }
func (*discardWriter) Write(p []byte) (int, error) { return len(p), nil }
func (*discardWriter) WriteHeader(int)             {}
