package proxy

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/proxy/coalesce"
	"github.com/weirgate/weir/proxy/record"
)

// answer gets the response with a separate request upstream or through a coalesced call.
func (g *Gateway) answer(a *attempt, out *http.Request) (*http.Response, error) {
	switch {
	case a.call != nil: // a background task, which leads its call already
		return g.lead(a, out)
	case a.coalesces():
		return g.coalesce(a, out)
	}
	return g.fetchAlone(a, out)
}

// fetchAlone sends the question upstream without a call.
func (g *Gateway) fetchAlone(a *attempt, out *http.Request) (*http.Response, error) {
	resp, _, err := g.fetch(a, out)
	return resp, err
}

// coalesces reports whether the question may share a call. Other clients cannot use a 304 to the client's own
// validators, or a stale response that max-stale or stale-if-error permits.
func (a *attempt) coalesces() bool {
	if a.graphQL != nil {
		return a.key != cache.Key{} && !a.match.Operation.Cache.NoCoalesce
	}
	if !a.cacheable || a.match.Operation.Cache.NoCoalesce || a.uncacheable {
		return false
	}
	if a.cacheControl.Has("max-stale") || a.cacheControl.Has("stale-if-error") {
		return false
	}
	return a.stale != nil || isUnconditional(a.Header)
}

const (
	// maxFollowed bounds the calls that one request follows without a usable result. Counted are a stored, passed or large response
	// that the client may not use, and, during statistics, any other result without a response.
	maxFollowed = 3
	// pollPatience is the time for which a request that may be a long poll waits for the response header of another request.
	pollPatience = 5 * time.Second
	// shortWait is the time for which a request follows a paused call, if the request might get a permit sooner than
	// the call.
	shortWait = 50 * time.Millisecond
)

// coalesce gets the response through a call. The leader sends the request. A follower gets the stored response, the
// large body while it arrives, or a response that the call passes without storage.
func (g *Gateway) coalesce(a *attempt, out *http.Request) (*http.Response, error) {
	for skipped := 0; a.followed < maxFollowed; {
		c, leads := g.join(a, a.method, skipped)
		if leads {
			resp, err := g.startCall(a, c, out)
			if err != nil || !g.pollInBackground(a, resp) {
				return resp, err
			}
			// The background continues the call, and the leader waits below as a follower.
		}
		s := a.trace.Stage(a.in.Context(), record.StageCoalesce)
		result, err := c.Wait(a.in.Context(), g.followUntil(a, c))
		s.LinkTo(c.Leader())
		s.EndWait(result.String(), err)
		switch {
		case result == coalesce.Stored:
			e, purged := g.Cache.Lookup(a.in.Context(), a.key, a.Header)
			if resp := g.responseOfCall(a, e, purged, a.record.Start); resp != nil {
				return resp, nil
			}
			a.followed++
		case result == coalesce.Passed:
			if resp := g.sharedResponse(a, c.Response()); resp != nil {
				return resp, nil
			}
			a.followed++
		case result == coalesce.Streaming:
			if resp := g.streamedResponse(a, c); resp != nil {
				return resp, nil
			}
			a.followed++
		case result == coalesce.Failed:
			return g.staleOr(a, err)
		case result == coalesce.Computing:
			return g.stillComputing(a, c), nil
		case result == coalesce.Refused:
			// This client may have a later deadline than the leader, and joins again.
		case result == coalesce.Paused && time.Now().Before(a.deadline(g.maxWait(a))):
			skipped++
		case !a.computed():
			return g.fetchAlone(a, out)
		default:
			a.followed++ // a single error does not end the wait for statistics
		}
	}
	return g.fetchAlone(a, out)
}

// join enters the call for the question with a method, as its leader or as a follower. skipped is the number of paused calls that
// the client left before.
func (g *Gateway) join(a *attempt, method string, skipped int) (c *coalesce.Call, leads bool) {
	caller := *a.caller
	q := coalesce.Question{
		Key: g.callKey(a, method, skipped), Path: a.match.Path, Account: caller.Account, Priority: caller.Priority, Since: g.Cache.Generation(),
	}
	if a.match.Operation.HeaderSilence(0) > 0 {
		q.Patience = pollPatience
	}
	return g.Background.calls.Join(q, func(since cache.Generation) bool { return g.Cache.Purged(a.tags(), since) })
}

// callKey returns the key of the call for the question. The key includes the request fields in Vary of the stored
// variants. Requests with HEAD, and those that left a paused call, share a separate call.
func (g *Gateway) callKey(a *attempt, method string, skipped int) cache.Key {
	parts := []string{string(a.key[:])}
	variants, _ := g.Cache.Candidates(a.in.Context(), a.key, cache.Key{})
	if i := slices.IndexFunc(variants, func(e *cache.Entry) bool { return len(e.Vary) > 0 && !a.isFailure(e.Status) }); i >= 0 {
		for _, f := range variants[i].Vary {
			parts = append(parts, f.Name, strings.Join(a.Header[f.Name], ", "))
		}
	}
	if method == http.MethodHead {
		parts = append(parts, method)
	}
	if skipped > 0 {
		parts = append(parts, "skipped", strconv.Itoa(skipped))
	}
	if len(parts) == 1 {
		return a.key
	}
	return cache.NewKey(parts...)
}

// startCall sends the request of a new call. If the call has followers, the request survives a disconnect of the client.
func (g *Gateway) startCall(a *attempt, c *coalesce.Call, out *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(a.detach())
	a.ctx, a.call = ctx, c
	c.Lead(cancel, a.trace.Context())
	context.AfterFunc(a.in.Context(), c.LeaderLeft)
	return g.lead(a, out)
}

// lead answers the call that the attempt leads, from memory if another call has stored the response, and finishes the call, unless its body arrives or a background task
// continues it.
func (g *Gateway) lead(a *attempt, out *http.Request) (resp *http.Response, err error) {
	call, ending := a.call, coalesce.Ending{Result: coalesce.Private} // after a panic
	defer func() { call.Finish(ending) }()
	if a.polls > 0 {
		resp, ending, err = g.fetch(a, out)
		return resp, err
	}
	// An earlier call may have ended between the look-up of the attempt and its Join.
	e, purged := g.Cache.Memory.Lookup(a.key, a.Header)
	if resp := g.responseOfCall(a, e, purged, time.Time{}); resp != nil {
		ending.Result = coalesce.Stored
		return resp, nil
	}
	resp, ending, err = g.fetchForFleet(a, out)
	return resp, err
}

// responseOfCall returns e, the stored response of a finished call, or nil if the client may not use the response. The
// response must be fresh, or requested at or after notBefore. A zero notBefore has no effect.
func (g *Gateway) responseOfCall(a *attempt, e *cache.Entry, purged bool, notBefore time.Time) *http.Response {
	now := time.Now()
	if e == nil {
		return nil
	}
	purged = purged || g.hasLostAccess(a)
	recent := !notBefore.IsZero() && !e.Requested.Before(notBefore)
	if purged && (!recent || g.hasChanged(a, e)) { // the next response would be suspect, too
		return nil
	}
	if !recent && (!e.Fresh(now) || a.mustRevalidate(e, now)) {
		return nil
	}
	a.result.cache.Collapsed = true
	a.result.cache.SetTTL(e, now)
	a.result.cache.SetSuspect(e.Suspect)
	return g.entryResponse(a, e, now)
}

// fetchForFleet sends the request of the attempt's call, unless another replica already fetches the response.
func (g *Gateway) fetchForFleet(a *attempt, out *http.Request) (*http.Response, coalesce.Ending, error) {
	if !a.cacheable || a.method == http.MethodHead || a.cacheControl.Has("no-cache") || a.last != nil && a.last.Lifetime == 0 || a.skipShared || !g.Cache.IsShared() {
		return g.fetch(a, out) // another replica's response would not be used
	}
	endWait := func(error) {} // without a wait
	var resp *http.Response
	ctx := a.ctx
	decision, err := a.call.AwaitFleet(ctx, coalesce.Fleet{
		Leases: g.Cache, Go: g.Background.running.Go, Stop: g.Background.ctx.Done(), Deadline: a.deadline(g.maxWait(a)),
		Purged: func(since cache.Generation) bool { return g.Cache.Purged(a.tags(), since) },
		Lookup: func() bool {
			e, purged := g.Cache.Lookup(ctx, a.key, a.Header)
			// The clocks of two replicas may differ, so the response must be fresh.
			resp = g.responseOfCall(a, e, purged, time.Time{}) //nolint:bodyclose // fetchForFleet returns resp
			return resp != nil
		},
		Waiting: func(leader trace.SpanContext) {
			s := a.trace.Stage(ctx, record.StageCoalesce)
			s.LinkTo(leader)
			endWait = func(err error) { s.EndWait("another replica", err) }
		},
	})
	endWait(err)
	switch {
	case err != nil:
		resp, err = g.staleOr(a, err)
		return resp, coalesce.Ending{Result: coalesce.Private}, err
	case decision == coalesce.Found:
		return resp, coalesce.Ending{Result: coalesce.Stored}, nil
	case decision == coalesce.StillComputing: // followers may have a later deadline
		return g.stillComputing(a, a.call), coalesce.Ending{Result: coalesce.Refused}, nil
	}
	return g.fetch(a, out)
}

// followUntil returns the time until which the client follows a paused call. The time is shortWait from now if the
// request might get a permit sooner than the call. Such a request has another account, another priority or another
// credential to try.
func (g *Gateway) followUntil(a *attempt, c *coalesce.Call) time.Time {
	until, own := a.deadline(g.maxWait(a)), *a.caller
	independent := a.hasAlternative || own.Account != c.Account || own.Priority != c.Priority
	if soon := time.Now().Add(shortWait); independent && !a.computed() && soon.Before(until) {
		return soon
	}
	return until
}

// maxWait returns the maximum wait of a client without a Prefer field.
func (g *Gateway) maxWait(a *attempt) time.Duration {
	if a.computed() {
		return g.Statistics.Wait
	}
	return g.Wait
}

// sharedResponse returns e, the unstored response of a finished call, or nil if the client may not use it. The client must
// have the same fields in Vary, and no change since the start of the call may have made the response stale. If the client
// requires revalidation, the upstream request must be newer than the client's request.
func (g *Gateway) sharedResponse(a *attempt, e *cache.Entry) *http.Response {
	if !g.mayUseShared(a, e) {
		return nil
	}
	resp := g.entryResponse(a, e, time.Now())
	if a.method == http.MethodHead && resp.StatusCode != http.StatusNotModified {
		delete(resp.Header, "Content-Length")
		if resp.ContentLength = -1; len(e.Header["Content-Length"]) > 0 {
			resp.Header["Content-Length"] = e.Header["Content-Length"]
			resp.ContentLength, _ = strconv.ParseInt(e.Header.Get("Content-Length"), 10, 64) // net/http has checked it
		}
	}
	return resp
}

// mayUseShared reports whether the client may use e, and records the use.
func (g *Gateway) mayUseShared(a *attempt, e *cache.Entry) bool {
	recent := !e.Requested.Before(a.record.Start)
	if !e.Selects(a.Header) || g.hasChanged(a, e) || !recent && (g.Cache.Outdated(e) || a.mustRevalidate(e, time.Now())) {
		return false
	}
	a.result.cache.Collapsed = true
	a.result.cache.SetSuspect(e.Suspect)
	return true
}

// hasChanged reports whether the client should get a later response than e, which was requested after the client's request,
// because it was purged since. During frequent changes, the last call that the client follows is good enough: otherwise, all
// clients would send separate requests at the same time.
func (g *Gateway) hasChanged(a *attempt, e *cache.Entry) bool {
	return g.Cache.Purged(e.Tags, e.Since) && (a.followed < maxFollowed-1 || g.hasLostAccess(a))
}
