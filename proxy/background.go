package proxy

import (
	"cmp"
	"context"
	"math"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/semaphore"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/bodies"
	"github.com/weirgate/weir/proxy/breaker"
	"github.com/weirgate/weir/proxy/coalesce"
	"github.com/weirgate/weir/proxy/fields"
	"github.com/weirgate/weir/proxy/learned"
	"github.com/weirgate/weir/proxy/pages"
	"github.com/weirgate/weir/proxy/record"
	"github.com/weirgate/weir/proxy/refusal"
	"github.com/weirgate/weir/proxy/spool"
)

// Background runs work that continues after a client's disconnect: revalidation, polling, and reading bodies for the
// cache. Background also contains the coalesced calls and the state of upstreams, and outlives a [Gateway].
type Background struct {
	calls   coalesce.Group
	ctx     context.Context // canceled by Close
	stop    context.CancelFunc
	running sync.WaitGroup
	// refreshes bounds the background revalidations. polls bounds the polled questions.
	refreshes, polls *semaphore.Weighted
	// buffers bounds the bytes in memory for clients, and files those in temporary files.
	buffers, files spool.Budget
	mu             sync.Mutex
	upstreams      *simplelru.LRU[string, *upstreamState] // by base URL
}

// upstreamState is what the requests to an upstream have shown. All gateways with the same Background and the same upstream share
// it, so that it survives a reload.
type upstreamState struct {
	breaker      breaker.Breaker
	limitErrors  learned.LimitErrors
	heavyQueries learned.HeavyQueries
	links        pages.Links
}

// maxUpstreams bounds the upstreams of a Background. The least recently configured upstream is removed first.
const maxUpstreams = 1024

// stateOf returns the state of an upstream.
func (b *Background) stateOf(base string) *upstreamState {
	b.mu.Lock()
	defer b.mu.Unlock()
	u, ok := b.upstreams.Get(base)
	if !ok {
		u = &upstreamState{links: pages.NewLinks()}
		b.upstreams.Add(base, u)
	}
	return u
}

// maxBackground bounds the concurrent background revalidations, and separately the polled questions.
const maxBackground = 256

const (
	// maxHeld bounds the bytes that are buffered for clients. If GOMEMLIMIT divided by heldShare is lower, that bound
	// applies.
	maxHeld, heldShare = 256 << 20, 8
	// maxSpooled bounds the bytes in temporary files.
	maxSpooled = 1 << 30
)

// NewBackground returns a Background that runs until [Background.Close].
func NewBackground() *Background {
	ctx, stop := context.WithCancel(context.Background())
	upstreams, _ := simplelru.NewLRU[string, *upstreamState](maxUpstreams, nil) // the size is valid
	return &Background{
		ctx: ctx, stop: stop, upstreams: upstreams, refreshes: semaphore.NewWeighted(maxBackground), polls: semaphore.NewWeighted(maxBackground),
		buffers: spool.Budget{Limit: min(maxHeld, debug.SetMemoryLimit(-1)/heldShare)},
		files:   spool.Budget{Limit: maxSpooled},
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
	c, leads := g.join(a, http.MethodGet, 0)
	if !leads {
		c.Leave()
		return true
	}
	if !g.Background.refreshes.TryAcquire(1) {
		c.Finish(coalesce.Ending{Result: coalesce.Private})
		return false
	}
	task := backgroundTask{
		slots: g.Background.refreshes, question: *a.question, call: c, cause: a.trace.Context(), wait: g.Wait,
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
	q.Header = q.Header.Clone()
	for _, name := range append([]string{"Cache-Control"}, validators...) { // these fields concern only the client
		q.Header.Del(name)
	}
	target := g.urls.Target(q.match)
	in, err := http.NewRequestWithContext(ctx, q.method, target.String(), http.NoBody)
	if err != nil {
		panic(err) // the URL is valid: the client's request had the same target
	}
	ex := g.openBackground(in, task.cause)
	defer g.finish(ex)
	c.Lead(task.cancel, ex.trace.Context())
	defer c.Finish(coalesce.Ending{Result: coalesce.Private}) // has no effect if the call has a result
	ex.prefer = fields.Preference{Wait: task.wait, Given: true}
	ex.question = q
	r, caller := ex.record, *q.caller
	r.Route, r.Operation, r.Resource = q.route, q.match.Operation.ID, q.resource
	r.Account, r.Client, r.Tag, r.Path, r.Background = caller.Account, caller.Client, q.tag, ex.maskedPath(), true
	if task.pause <= 0 || ex.pause(ex.in.Context(), task.pause) == nil {
		a := g.newAttempt(ex, q)
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

// Statistics configures the polling of responses that the upstream computes on demand. The upstream responds with 202
// until the result is ready.
type Statistics struct {
	// Wait is the maximum wait of a client without a Prefer field.
	Wait time.Duration
	// First is the pause before the first poll. Each pause is the previous pause multiplied by Factor, at most Max.
	First  time.Duration
	Factor float64
	Max    time.Duration
	// Budget is the total time for polls of one question, for all clients.
	Budget time.Duration
}

// Pause returns the pause before the next poll, after a number of polls.
func (s Statistics) Pause(polls int) time.Duration {
	return min(time.Duration(float64(s.First)*math.Pow(s.Factor, float64(polls))), s.Max)
}

// statisticsTTL is the freshness lifetime of statistics without an explicit lifetime.
const statisticsTTL = time.Minute

// computed reports whether a 202 to the question means that the upstream computes the response. For other operations a
// 202 is final.
func (q *question) computed() bool {
	return q.cacheable && q.method == http.MethodGet && q.match.Operation.Cache.Class == policy.Statistics
}

// maxPolls bounds the list of polls. maxPollPath bounds the bytes of each path in the list.
const (
	maxPolls    = 100
	maxPollPath = 200
)

// Polling returns the oldest polled questions in order, at most 100.
func (g *Gateway) Polling() []coalesce.Poll {
	polls := append([]coalesce.Poll{}, g.Background.calls.Polls()...)
	for i := range polls {
		polls[i].Path = polls[i].Path[:min(len(polls[i].Path), maxPollPath)]
	}
	slices.SortFunc(polls, func(a, b coalesce.Poll) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Path, b.Path))
	})
	return polls[:min(len(polls), maxPolls)]
}

// nextPoll returns the pause before the next poll. The result is false if the response is final. The result is also
// false if a client waits for this exchange, because the background polls for all clients.
func (g *Gateway) nextPoll(a *attempt, resp *http.Response) (pause time.Duration, again bool) {
	if a.match.Operation.Cache.Class != policy.Statistics || resp.StatusCode != http.StatusAccepted {
		return 0, false
	}
	pause = g.Statistics.Pause(a.polls)
	a.polls++
	a.record.Polls++
	now := time.Now()
	answer := cache.Response{Status: resp.StatusCode, Header: resp.Header, Requested: a.requestedAt, Answered: now}
	body, _ := bodies.Peek(resp, bodies.MaxPeek) // a 202 has no or a small body
	a.call.SetComputing(cache.NewEntry(answer, body, 0), now.Add(pause))
	left := time.Until(a.deadline(g.Statistics.Wait))
	if left <= 0 || !a.record.Background {
		resp.Header.Set("Retry-After", refusal.RetryAfter(pause))
		return 0, false
	}
	return min(pause, left), true
}

// pollInBackground starts a background task that polls for a computed response (202), and reports whether the task was
// started. The exchange must then follow the call.
func (g *Gateway) pollInBackground(a *attempt, resp *http.Response) bool {
	if !a.computed() || resp.StatusCode != http.StatusAccepted {
		return false
	}
	task := backgroundTask{
		slots: g.Background.polls, question: *a.question, call: a.call, cause: a.trace.Context(), wait: g.Statistics.Budget,
	}
	if !task.slots.TryAcquire(1) {
		task.call.Finish(coalesce.Ending{Result: coalesce.Computing})
		return false
	}
	ctx, cancel := context.WithCancelCause(g.Background.ctx)
	task.cancel = cancel
	if !task.call.Detach(cancel) {
		cancel(nil)
		task.slots.Release(1)
		task.call.Finish(coalesce.Ending{Result: coalesce.Computing})
		return false
	}
	bodies.Discard(resp.Body)
	task.call.SetPaused(true)
	a.call = nil
	yielding := *task.question.caller
	yielding.Priority = policy.Batch // polls yield to clients
	task.question.caller = &yielding
	task.pause = time.Until(task.call.Computation().Next)
	g.Background.running.Go(func() { g.serveInBackground(ctx, task) })
	return true
}

// stillComputing returns the response for a client whose deadline has passed: the stale fallback, or otherwise the
// upstream's 202.
func (g *Gateway) stillComputing(a *attempt, call *coalesce.Call) *http.Response {
	if a.fallback != nil {
		a.result.cache = record.CacheStatus{Hit: true} // no request was forwarded for this client
		return g.useFallback(a, "computing")
	}
	c := call.Computation()
	if a.record.Sent == 0 {
		a.result.cache.ForwardStatus = c.Response.Status
	}
	a.result.cache.Collapsed = true
	resp := g.entryResponse(a, c.Response, time.Now())
	resp.Header.Set("Retry-After", refusal.RetryAfter(time.Until(c.Next)+time.Second)) // one more second for the poll itself
	return resp
}
