// Package coalesce lets identical questions share one upstream request.
//
// The first client with a question becomes the leader of a [Call] and sends the request. Other clients with the same
// question become followers during the call. A follower waits for the [Result] of the call and then reads the response
// from the cache, or from the call if the response is not stored. [Group.Join] is the entry point. lease.go extends a
// call to all replicas through a lease in the shared cache.
//
// Invariants:
//   - A key includes the security class, so only one class shares a response. Reference data has one class for all callers.
//   - A call has exactly one result. Followers never receive an error that concerns only the leader.
//   - The upstream request survives the leader's disconnect while a follower waits. The disconnect
//     of the last client cancels the request.
//   - A call that began before a purge of its response accepts no more followers.
package coalesce

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/contentcoding"
	"github.com/weirgate/weir/policy"
)

// Result is the result of a call for one follower.
type Result int

const (
	// Pending means that the call goes on, because the body arrives or a background task continues.
	Pending Result = iota
	// Stored means that the response is in the cache.
	Stored
	// Passed means that the response is in [Call.Response], and not in the cache.
	Passed
	// Streaming means that the body is too large for the cache, and arrives in [Call.Stream]. The follower stays until it calls
	// Leave.
	Streaming
	// Private means that only the leader may use the response. Each follower must send a separate request.
	Private
	// Refused means that the leader got no permit before the leader's deadline. A follower with a later deadline may
	// lead the next call.
	Refused
	// Failed means that the upstream cannot be reached, so another leader would also fail. [Call.Wait] also returns
	// Failed if the follower's context ends.
	Failed
	// Computing means that the upstream still computes the response. Either the follower's deadline has passed, or the
	// polls have ended.
	Computing
	// Paused means that the deadline of [Call.Wait] passed while the request was not on its way upstream. This deadline
	// is the client's deadline, or earlier if the follower might get a permit sooner.
	Paused
)

// String returns the name of the result in traces.
func (r Result) String() string {
	return [...]string{"pending", "stored", "shared", "streaming", "private", "refused", "failed", "computing", "paused"}[r]
}

// Ending is the end of a call.
type Ending struct {
	Result   Result
	Err      error        // cause of Failed
	Response *cache.Entry // set with Passed
}

// Stream is a body that followers read while it arrives.
type Stream struct {
	Response *cache.Entry // without the body
	Length   int64        // Content-Length, or -1
	// Open returns the body from its start, in a content coding or, without one, in the identity form. Its Close calls left.
	Open func(c *contentcoding.Coding, left func()) io.ReadCloser
	// Release is called after the call has ended and all its followers have left.
	Release func()
}

// These errors are the causes of a canceled call.
var (
	errAbandoned = fmt.Errorf("all clients of the call have left: %w", context.Canceled)
	errClosed    = fmt.Errorf("the gateway is closed: %w", context.Canceled)
)

// Question describes the upstream request of a call, with the account and priority of the leader.
type Question struct {
	Key      cache.Key
	Path     string
	Account  string
	Priority policy.Priority
	// Since is the purge generation at the start of the call.
	Since cache.Generation
	// Patience is the longest wait of a follower for the response header, or zero without a bound.
	Patience time.Duration
}

// Computation describes a response that the upstream still computes.
type Computation struct {
	Response *cache.Entry // the upstream's 202; nil without a computation
	Next     time.Time    // time of the next poll
	Polls    int          // number of polls by this replica
}

// Group contains the calls in progress. The zero value is ready for use. A Group is safe for concurrent use.
type Group struct {
	mu    sync.Mutex
	calls map[cache.Key]*Call
}

// Call is one upstream request on behalf of several clients. The methods that report progress of the request accept a
// nil Call, for requests that are not coalesced.
type Call struct {
	Question
	began time.Time
	group *Group
	done  chan struct{} // closed when the call has its result

	mu          sync.Mutex
	followers   int
	absent      int // followers that are expected to return
	leaderLeft  bool
	cancel      context.CancelCauseFunc // set before leaderLeft
	paused      bool                    // the request is not on its way upstream
	answered    bool                    // the response header has arrived
	pausedC     chan struct{}           // closed while paused
	computation Computation
	shared      chan bool         // receives whether the other replicas can read the response
	leader      trace.SpanContext // invalid if the leader is not sampled
	ending      Ending
	stream      Stream
	streaming   chan struct{} // closed when stream is set
}

// Join returns the call for a question. If the call is in progress, Join adds a follower. Otherwise Join creates a call
// and returns true: the leader must call Lead, and finally Finish. purged reports whether a response that was requested
// at a generation is outdated.
func (g *Group) Join(q Question, purged func(since cache.Generation) bool) (c *Call, leads bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c := g.calls[q.Key]; c != nil && c.follow() {
		if !purged(c.Since) {
			return c, false
		}
		c.Leave()
	}
	c = &Call{
		Question: q, began: time.Now(), group: g, done: make(chan struct{}), shared: make(chan bool, 1),
		paused: true, pausedC: make(chan struct{}), streaming: make(chan struct{}),
	}
	close(c.pausedC)
	if g.calls == nil {
		g.calls = map[cache.Key]*Call{}
	}
	g.calls[q.Key] = c
	return c, true
}

// Lead sets the function that cancels the leader's request, and the leader's span.
func (c *Call) Lead(cancel context.CancelCauseFunc, span trace.SpanContext) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancel, c.leader = cancel, span
}

// LeaderLeft records the leader's disconnect. The call is canceled if no follower waits.
func (c *Call) LeaderLeft() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaderLeft = true
	c.cancelUnwanted()
}

// Detach makes the leader a follower of its own call, which continues in the background. cancel cancels the background
// request. The result is false if the call has ended.
func (c *Call) Detach(cancel context.CancelCauseFunc) bool {
	if !c.follow() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaderLeft, c.cancel = true, cancel
	return true
}

// Response returns the response of a call with the result Passed.
func (c *Call) Response() *cache.Entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ending.Response
}

// SetStream lets the followers read the body while it arrives. The call must not have ended.
func (c *Call) SetStream(s Stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stream = s
	close(c.streaming)
}

// Stream returns the body of a call with the result Streaming.
func (c *Call) Stream() Stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stream
}

// Finish ends the call. Only the first ending counts, and an ending with the result Pending has no effect. A nil Call is not
// coalesced.
func (c *Call) Finish(e Ending) {
	if c == nil || e.Result == Pending {
		return
	}
	c.group.mu.Lock()
	if c.group.calls[c.Key] == c {
		delete(c.group.calls, c.Key)
	}
	c.group.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending.Result == Pending {
		c.ending = e
		close(c.done)
		c.cancelUnwanted()
		c.releaseStream()
	}
}

// releaseStream releases the stream if no follower can open it any more. mu must be held.
func (c *Call) releaseStream() {
	if release := c.stream.Release; release != nil && c.ending.Result != Pending && c.followers == c.absent {
		c.stream.Release = nil
		release()
	}
}

// Close cancels the call because the gateway shuts down.
func (c *Call) Close() {
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.cancel(errClosed)
	}
}

// follow adds a follower. The result is false if the call has ended or is being canceled.
func (c *Call) follow() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending.Result != Pending || c.leaderLeft && c.followers == 0 {
		return false
	}
	c.followers++
	return true
}

// Leave removes a follower.
func (c *Call) Leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.followers--
	c.cancelUnwanted()
	c.releaseStream()
}

// cancelUnwanted cancels the request if all clients have left. mu must be held.
func (c *Call) cancelUnwanted() {
	if c.leaderLeft && (c.followers == 0 || c.ending.Result != Pending) {
		c.cancel(errAbandoned)
	}
}

// Wait blocks a follower until the end of the call. After the deadline, Wait continues to block only while the request
// is on its way upstream. Otherwise Wait returns Computing, or Paused if the upstream computes no response. Wait then
// removes the follower. After Computing the follower stays, because the client is expected to return for the response.
// Wait returns Private if the patience ends while the request is on its way upstream without a response header.
func (c *Call) Wait(ctx context.Context, deadline time.Time) (r Result, err error) {
	defer func() {
		switch r {
		case Streaming: // until the follower has read the body
		case Computing:
			c.mu.Lock()
			c.absent++
			c.mu.Unlock()
		default:
			c.Leave()
		}
	}()
	timeout := time.After(time.Until(deadline))
	var impatient <-chan time.Time // nil without a bound
	if c.Patience > 0 {
		impatient = time.Tick(c.Patience)
	}
	var paused <-chan struct{} // nil before the deadline
	for {
		select {
		case <-c.streaming:
			return Streaming, nil
		case <-c.done:
			if c.Stream().Response != nil { // both channels were closed
				return Streaming, nil
			}
			return c.ending.Result, c.ending.Err
		case <-ctx.Done():
			return Failed, context.Cause(ctx)
		case <-impatient:
			if c.isSilent() {
				return Private, nil
			}
		case <-timeout:
			c.mu.Lock()
			paused = c.pausedC
			c.mu.Unlock()
		case <-paused:
			if c.Computation().Response != nil {
				return Computing, nil
			}
			return Paused, nil
		}
	}
}

// SetPaused records whether the request is paused. A paused request waits for a permit or between two attempts, and is
// not on its way upstream.
func (c *Call) SetPaused(paused bool) {
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.setPaused(paused)
	}
}

// setPaused is SetPaused for a call whose mu is held.
func (c *Call) setPaused(paused bool) {
	switch {
	case paused == c.paused:
	case paused:
		close(c.pausedC)
	default:
		c.pausedC, c.answered = make(chan struct{}), false
	}
	c.paused = paused
}

// SetAnswered records that the response header has arrived.
func (c *Call) SetAnswered() {
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.answered = true
	}
}

// isSilent reports whether the request is on its way upstream, without a response header.
func (c *Call) isSilent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.paused && !c.answered
}

// SetComputing records that the upstream computes the response, and the time of the next poll.
func (c *Call) SetComputing(response *cache.Entry, next time.Time) {
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.computation = Computation{response, next, c.computation.Polls + 1}
	}
}

// Computation returns the state of the upstream's computation.
func (c *Call) Computation() Computation {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.computation
}

// SetShared records whether the other replicas can read the response from the shared cache. It must be called for each
// call with the result Stored, before or after Finish. Only the first call of SetShared has an effect.
func (c *Call) SetShared(shared bool) {
	if c != nil {
		select {
		case c.shared <- shared:
		default:
		}
	}
}

// Leader returns the span of the leader's request. The span is invalid if the request is not sampled.
func (c *Call) Leader() trace.SpanContext {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leader
}

// Poll describes a call whose response the upstream still computes, for the admin API.
type Poll struct {
	Path    string    `json:"path"`
	Account string    `json:"account"`
	Since   time.Time `json:"since"`
	// Next is the time of the next poll.
	Next time.Time `json:"next"`
	// Polls is the number of polls by this replica. Waiting is the number of followers.
	Polls   int `json:"polls"`
	Waiting int `json:"waiting"`
}

// Any reports whether a call in progress matches.
func (g *Group) Any(match func(*Call) bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.calls {
		if match(c) {
			return true
		}
	}
	return false
}

// Polls returns the calls whose responses the upstream still computes.
func (g *Group) Polls() (polls []Poll) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.calls {
		c.mu.Lock()
		if p := c.computation; p.Response != nil {
			polls = append(polls, Poll{c.Path, c.Account, c.began, p.Next, p.Polls, c.followers})
		}
		c.mu.Unlock()
	}
	return polls
}
