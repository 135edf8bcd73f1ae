package proxy

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/proxy/coalesce"
)

const (
	// maxFollowed bounds the calls that one request follows without a usable result. Counted are a stored or shared response
	// that the client may not use, and, during statistics, any other result without a response.
	maxFollowed = 3
	// shortWait is the time for which a request follows a paused call, if the request might get a permit sooner than
	// the call.
	shortWait = 50 * time.Millisecond
)

// coalesces reports whether the question may share a call. Other clients cannot use a 304 to the client's own
// validators, or a stale response that max-stale or stale-if-error permits.
func (ex *exchange) coalesces() bool {
	if ex.graphQL != nil {
		return ex.key != cache.Key{} && !ex.match.Operation.Cache.NoCoalesce
	}
	if !ex.cacheable || ex.method != http.MethodGet || ex.match.Operation.Cache.NoCoalesce || ex.uncacheable {
		return false
	}
	if ex.cacheControl.Has("max-stale") || ex.cacheControl.Has("stale-if-error") {
		return false
	}
	return ex.stale != nil || isUnconditional(ex.header)
}

// join enters the call for the question as its leader or as a follower.
func (g *Gateway) join(ex *exchange) (c *coalesce.Call, leads bool) {
	caller := ex.identity.Caller
	q := coalesce.Question{
		Key: g.callKey(ex), Path: ex.match.Path, Account: caller.Account, Priority: caller.Priority, Since: g.Cache.FetchGeneration(ex.tags),
	}
	return g.Background.calls.Join(q, func(since cache.Generation) bool { return g.Cache.Purged(ex.tags(), since) })
}

// callKey returns the key of the call for the question. The key includes the request fields in Vary of the stored
// variants. Requests that left a paused call share a separate call.
func (g *Gateway) callKey(ex *exchange) cache.Key {
	parts := []string{string(ex.key[:])}
	variants, _ := g.Cache.Candidates(ex.in.Context(), ex.key, cache.Key{})
	if i := slices.IndexFunc(variants, func(e *cache.Entry) bool { return len(e.Vary) > 0 && !ex.isFailure(e.Status) }); i >= 0 {
		for _, f := range variants[i].Vary {
			parts = append(parts, f.Name, strings.Join(ex.header[f.Name], ", "))
		}
	}
	if ex.skipped > 0 {
		parts = append(parts, "skipped", strconv.Itoa(ex.skipped))
	}
	if len(parts) == 1 {
		return ex.key
	}
	return cache.NewKey(parts...)
}

// coalesce gets the response through a call. The leader sends the request. A follower gets the stored response, or the
// shared response of a GraphQL query without a rule.
func (g *Gateway) coalesce(ex *exchange, out *http.Request) (*http.Response, error) {
	for followed := 0; followed < maxFollowed; {
		c, leads := g.join(ex)
		if leads {
			resp, err := g.lead(ex, c, out)
			if err != nil || !g.pollInBackground(ex, resp) {
				return resp, err
			}
			// The background continues the call, and the leader waits below as a follower.
		}
		s := g.beginStage(ex, ex.in.Context(), stageCoalesce)
		result, err := c.Wait(ex.in.Context(), g.followUntil(ex, c))
		s.linkTo(c.Leader())
		ex.record.Waited += s.end(result.String(), err)
		switch {
		case result == coalesce.Stored:
			e, purged := g.Cache.Lookup(ex.in.Context(), ex.key, ex.header)
			if resp := g.responseOfCall(ex, e, purged, ex.start); resp != nil {
				return resp, nil
			}
			followed++
		case result == coalesce.Shared:
			if resp := g.sharedResponse(ex, c.Response()); resp != nil {
				return resp, nil
			}
			followed++
		case result == coalesce.Failed:
			return g.staleOr(ex, err)
		case result == coalesce.Computing:
			return g.stillComputing(ex, c), nil
		case result == coalesce.Refused:
			// This client may have a later deadline than the leader, and joins again.
		case result == coalesce.Paused && time.Now().Before(ex.deadline(g.maxWait(ex))):
			ex.skipped++
		case !ex.computed():
			return g.fetch(ex, out)
		default:
			followed++ // a single error does not end the wait for statistics
		}
	}
	return g.fetch(ex, out)
}

// followUntil returns the time until which the client follows a paused call. The time is shortWait from now if the
// request might get a permit sooner than the call. Such a request has another account, another priority or another
// credential to try.
func (g *Gateway) followUntil(ex *exchange, c *coalesce.Call) time.Time {
	until, own := ex.deadline(g.maxWait(ex)), ex.identity.Caller
	independent := ex.hasAlternative || own.Account != c.Account || own.Priority != c.Priority
	if soon := time.Now().Add(shortWait); independent && !ex.computed() && soon.Before(until) {
		return soon
	}
	return until
}

// maxWait returns the maximum wait of a client without a Prefer field.
func (g *Gateway) maxWait(ex *exchange) time.Duration {
	if ex.computed() {
		return g.Statistics.Wait
	}
	return g.Wait
}

// lead sends the request of a call. If the call has followers, the request survives a disconnect of the client.
func (g *Gateway) lead(ex *exchange, c *coalesce.Call, out *http.Request) (resp *http.Response, err error) {
	defer func() {
		if resp == nil { // including a panic
			c.Finish(coalesce.Private, nil)
		}
	}()
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(out.Context()))
	ex.call = c
	c.Lead(cancel, ex.span.SpanContext())
	context.AfterFunc(ex.in.Context(), c.LeaderLeft)
	// An earlier call may have ended between the look-up of this exchange and its Join.
	e, purged := g.Cache.Memory.Lookup(ex.key, ex.header)
	if resp := g.responseOfCall(ex, e, purged, time.Time{}); resp != nil {
		c.Finish(coalesce.Stored, nil)
		return resp, nil
	}
	return g.fetchForFleet(ex, out.WithContext(ctx))
}

// fetchForFleet sends the request of the exchange's call, unless another replica already fetches the response.
func (g *Gateway) fetchForFleet(ex *exchange, out *http.Request) (*http.Response, error) {
	if !ex.cacheable || ex.cacheControl.Has("no-cache") || ex.stale != nil && ex.stale.Lifetime == 0 || ex.skipShared {
		return g.fetch(ex, out) // another replica's response would not be used
	}
	var s stage
	var resp *http.Response
	ctx := out.Context()
	decision, err := ex.call.AwaitFleet(ctx, coalesce.Fleet{
		Leases: g.Cache, Go: g.Background.running.Go, Stop: g.Background.ctx.Done(), Deadline: ex.deadline(g.maxWait(ex)),
		Purged: func(since cache.Generation) bool { return g.Cache.Purged(ex.tags(), since) },
		Lookup: func() bool {
			e, purged := g.Cache.Lookup(ctx, ex.key, ex.header)
			// The clocks of two replicas may differ, so the response must be fresh.
			resp = g.responseOfCall(ex, e, purged, time.Time{}) //nolint:bodyclose // fetchForFleet returns resp
			return resp != nil
		},
		Waiting: func(leader trace.SpanContext) {
			s = g.beginStage(ex, ctx, stageCoalesce)
			s.linkTo(leader)
		},
	})
	if s.ex != nil {
		ex.record.Waited += s.end("another replica", err)
	}
	switch {
	case err != nil:
		return g.staleOr(ex, err)
	case decision == coalesce.Found:
		ex.call.Finish(coalesce.Stored, nil)
		return resp, nil
	case decision == coalesce.StillComputing:
		resp = g.stillComputing(ex, ex.call)
		ex.call.Finish(coalesce.Refused, nil) // followers may have a later deadline
		return resp, nil
	}
	return g.fetch(ex, out)
}

// responseOfCall returns e, the stored response of a finished call, or nil if the client may not use the response. The
// response must be fresh, or requested at or after notBefore. A zero notBefore has no effect.
func (g *Gateway) responseOfCall(ex *exchange, e *cache.Entry, purged bool, notBefore time.Time) *http.Response {
	now := time.Now()
	if e == nil || purged {
		return nil
	}
	recent := !notBefore.IsZero() && !e.Requested.Before(notBefore)
	if !recent && (!e.Fresh(now) || ex.mustRevalidate(e, now)) {
		return nil
	}
	ex.record.Cache.Collapsed = true
	ex.record.Cache.setTTL(e, now)
	return g.entryResponse(ex, e, now)
}

// sharedResponse returns e, the unstored response of a finished call, or nil if the client may not use it. The client must
// have the same fields in Vary, and no change since the start of the call may have made the response stale. If the client
// requires revalidation, the upstream request must be newer than the client's request.
func (g *Gateway) sharedResponse(ex *exchange, e *cache.Entry) *http.Response {
	now := time.Now()
	if !e.Selects(ex.header) || g.Cache.Purged(e.Tags, e.Since) || e.Requested.Before(ex.start) && ex.mustRevalidate(e, now) {
		return nil
	}
	ex.record.Cache.Collapsed = true
	return g.entryResponse(ex, e, now)
}

// resultFor returns the result of a call whose response is stored as e.
func (ex *exchange) resultFor(e *cache.Entry) coalesce.Result {
	if e.SingleUse(ex.rule) {
		return coalesce.Private
	}
	return coalesce.Stored
}

// resultOfError returns the result of a call that got no response.
func resultOfError(err error) coalesce.Result {
	var refusal *limits.Refusal
	var unusable *UnusableError
	var unverified *unverifiedError
	switch {
	case errors.As(err, &refusal), errors.As(err, &unusable): // followers may wait longer
		return coalesce.Refused
	case errors.Is(err, context.Canceled), errors.As(err, &unverified):
		return coalesce.Private // the error concerns only the leader's client
	}
	return coalesce.Failed
}
