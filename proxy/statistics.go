package proxy

import (
	"cmp"
	"context"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/coalesce"
)

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
	s := g.Statistics
	pause = min(time.Duration(float64(s.First)*math.Pow(s.Factor, float64(a.polls))), s.Max)
	a.polls++
	a.record.Polls++
	now := time.Now()
	answer := cache.Response{Status: resp.StatusCode, Header: resp.Header, Requested: a.sent, Answered: now}
	body, _ := peek(resp, maxPeek) // a 202 has no or a small body
	a.call.SetComputing(cache.NewEntry(answer, body, 0), now.Add(pause))
	left := time.Until(a.deadline(s.Wait))
	if left <= 0 || !a.record.Background {
		resp.Header.Set("Retry-After", retryAfter(pause))
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
		slots: g.Background.polls, question: *a.question, call: a.call, cause: a.span.SpanContext(), wait: g.Statistics.Budget,
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
	discard(resp.Body)
	task.call.SetPaused(true)
	a.call = nil
	task.question.identity.Caller.Priority = policy.Batch // polls yield to clients
	task.pause = time.Until(task.call.Computation().Next)
	g.Background.running.Go(func() { g.serveInBackground(ctx, task) })
	return true
}

// stillComputing returns the response for a client whose deadline has passed: the stale fallback, or otherwise the
// upstream's 202.
func (g *Gateway) stillComputing(a *attempt, call *coalesce.Call) *http.Response {
	if a.fallback != nil {
		a.result.cache = CacheStatus{Hit: true} // no request was forwarded for this client
		return g.useFallback(a, "computing")
	}
	c := call.Computation()
	if a.record.Attempts == 0 {
		a.result.cache.ForwardStatus = c.Response.Status
	}
	a.result.cache.Collapsed = true
	resp := g.entryResponse(a, c.Response, time.Now())
	resp.Header.Set("Retry-After", retryAfter(time.Until(c.Next)+time.Second)) // one more second for the poll itself
	return resp
}
