package proxy

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/bodies"
	"github.com/weirgate/weir/proxy/coalesce"
	"github.com/weirgate/weir/proxy/learned"
	"github.com/weirgate/weir/proxy/record"
	"github.com/weirgate/weir/proxy/refusal"
	"github.com/weirgate/weir/proxy/tags"
)

// fetch sends the question upstream, with conditions for stored responses, and stores the response. After an unsafe
// request that may have succeeded, fetch purges the responses that the request may have changed. The ending is that of the
// attempt's call.
func (g *Gateway) fetch(a *attempt, out *http.Request) (*http.Response, coalesce.Ending, error) {
	ending := coalesce.Ending{Result: coalesce.Private}
	// The generation is read before the request is sent, so that a later purge makes the response stale.
	a.began = g.Cache.BeginFetch(a.tags)
	resp, err := g.send(a, out)
	if a.identity.Scope != nil && a.operation.Writes() {
		g.shown.NoteWrite(a.caller.Client)
	}
	if err != nil {
		if !a.match.Operation.Safe() && a.record.Spent > 0 {
			g.purgeUncertain(a)
		}
		ending = coalesce.Ending{Result: resultOfError(err), Err: err}
		resp, err = g.staleOr(a, err)
		return resp, ending, err
	}
	if reason := a.staleReason(resp); reason != "" {
		bodies.Discard(resp.Body)
		a.result.cache.ForwardStatus = resp.StatusCode
		return g.useFallback(a, reason), ending, nil
	}
	switch resp.StatusCode {
	case http.StatusNotModified:
		if a.match.Operation.Safe() && (a.conditional || isUnconditional(a.Header)) {
			return g.notModified(a, out, resp)
		}
	case http.StatusBadRequest, http.StatusPreconditionFailed, http.StatusRequestHeaderFieldsTooLarge:
		if a.conditional && !onlyStale(a.candidates) { // the upstream may refuse the number of ETags
			return g.fetchWithoutStored(a, out, resp)
		}
	}
	a.result.cache.ForwardStatus = resp.StatusCode
	if newer := g.newerThan(a, resp.StatusCode, resp.Header); newer != nil {
		bodies.Discard(resp.Body)
		return newer, ending, nil
	}
	answer := cache.Response{Status: resp.StatusCode, Header: resp.Header, Requested: a.requestedAt, Answered: time.Now()}
	if resp.StatusCode >= http.StatusMultipleChoices { // the upstream may deny the path, or have moved its object
		g.endAccess(a, resp.StatusCode)
		g.endRedirected(a, resp.StatusCode)
	}
	g.endQueried(a, resp)
	g.deleteOldPart(a, resp)
	switch {
	case a.computed() && resp.StatusCode == http.StatusAccepted:
		ending.Result = coalesce.Pending // a background task polls
		if a.record.Background {
			ending.Result = coalesce.Computing
		}
	case a.cacheable && a.method != http.MethodHead, a.graphQL != nil && a.call != nil:
		resp, ending = g.storeResponse(a, a.key, resp, out.Header, answer)
	case a.ranged && resp.StatusCode == http.StatusPartialContent:
		resp, ending = g.storeResponse(a, partKey(a.key), resp, out.Header, answer)
	case a.method == http.MethodHead && a.call != nil:
		if a.outdatesStored(resp) {
			g.deleteStored(a)
		}
		ending = g.shareHead(a, answer)
	case a.outdatesStored(resp):
		g.deleteStored(a)
	case !a.match.Operation.Safe() && resp.StatusCode < 400:
		g.purgeAfterWrite(a, resp)
	case !a.match.Operation.Safe() && (resp.StatusCode >= http.StatusInternalServerError || resp.StatusCode == http.StatusRequestTimeout):
		g.purgeUncertain(a) // the upstream may have failed after the change
	case !a.match.Operation.Safe() && !a.mayBeLimited():
		g.purgeAfterFailure(a, resp.StatusCode)
	}
	return resp, ending, nil
}

// resultOfError returns the result of a call that got no response.
func resultOfError(err error) coalesce.Result {
	var refusal *limits.Refusal
	var unusable *policy.UnusableError
	var unverified *learned.UnverifiedError
	switch {
	case errors.As(err, &refusal), errors.As(err, &unusable): // followers may wait longer
		return coalesce.Refused
	case errors.Is(err, context.Canceled), errors.As(err, &unverified):
		return coalesce.Private // the error concerns only the leader's client
	}
	return coalesce.Failed
}

// staleReason returns the reason to replace the upstream's response by the stale fallback, or an empty string if the
// response is used.
func (a *attempt) staleReason(resp *http.Response) string {
	switch {
	case a.fallback == nil:
	case isServerError(resp.StatusCode) && a.fallback.UsableOnError(time.Now(), a.cacheControl):
		return "stale-if-error"
	case a.result.limited == policy.LimitPrimary && !a.hasAlternative:
		return string(limits.Primary)
	case a.result.limited == policy.LimitContent && !a.hasAlternative:
		return string(limits.Content)
	case a.result.limited != policy.NotLimited && !a.hasAlternative:
		return string(limits.Cooldown)
	}
	return ""
}

// isServerError reports whether a stale response may replace a response with this status (RFC 5861 section 4).
func isServerError(status int) bool {
	return status == http.StatusInternalServerError || http.StatusBadGateway <= status && status <= http.StatusGatewayTimeout
}

// staleOr returns the stale fallback after a failed request, or err without a fallback. The request got no permit, the
// gateway is overloaded, or the upstream cannot be reached. A response that must be revalidated cannot replace an error (RFC 9111 section
// 5.2.2.2).
func (g *Gateway) staleOr(a *attempt, err error) (*http.Response, error) {
	var refused *limits.Refusal
	var unusable *policy.UnusableError
	var unverified *learned.UnverifiedError
	switch limited := errors.As(err, &refused); {
	case a.in.Context().Err() != nil:
		return nil, context.Cause(a.in.Context()) // the client has left
	case limited && a.hasAlternative, errors.As(err, &unusable), errors.As(err, &unverified):
		return nil, err // another credential is tried; an unusable or unverified credential may have no access
	case a.shed != nil && a.fallback != nil:
		a.result.cache = record.CacheStatus{Hit: true}
		return g.useFallback(a, "overload"), nil
	case a.shed != nil:
		return nil, err
	case a.fallback == nil && a.stale != nil && a.stale.NeverStale(a.rule) && !limited:
		return nil, &refusal.Error{
			Status: http.StatusGatewayTimeout, Detail: "upstream", Cause: err,
			Message: "Gateway Timeout: the stored response must be revalidated, and the upstream cannot be reached",
		}
	case a.fallback == nil:
		return nil, err
	case limited:
		if a.record.Sent == 0 {
			a.result.cache = record.CacheStatus{Hit: true} // no request was forwarded
		}
		return g.useFallback(a, string(refused.Reason)), nil
	}
	a.result.err = err.Error()
	return g.useFallback(a, "upstream"), nil
}

// useFallback returns the stale fallback and puts the reason into Cache-Status.
func (g *Gateway) useFallback(a *attempt, reason string) *http.Response {
	now := time.Now()
	a.result.cache.SetTTL(a.fallback, now)
	a.result.cache.Detail = reason
	return g.entryResponse(a, a.fallback, now)
}

// fetchWithoutStored repeats a request without conditions for stored responses. Those of the client remain.
func (g *Gateway) fetchWithoutStored(a *attempt, out *http.Request, resp *http.Response) (*http.Response, coalesce.Ending, error) {
	bodies.Discard(resp.Body)
	a.unconditional = true
	a.call.SetPaused(true)              // resumed when the request has a permit
	return g.fetch(a, out.Clone(a.ctx)) // the transport may still read the header of out
}

// newerThan returns the stored response if the upstream has returned an earlier state, and otherwise nil. The client may have
// seen the stored response, and no change since then explains the earlier state. Another replica of the upstream lags. The
// stored response is suspect from then on.
func (g *Gateway) newerThan(a *attempt, status int, h http.Header) *http.Response {
	if !a.cacheable {
		return nil
	}
	stored, _ := g.Cache.Memory.Lookup(a.key, a.Header)
	if stored == nil || g.Cache.Purged(stored.Tags, stored.Since) {
		return nil
	}
	now := time.Now()
	if !stored.Succeeds(status, h, a.began, now) {
		return nil
	}
	stored = stored.Lagged()
	g.Cache.Put(a.in.Context(), a.key, stored, func(bool) {})
	a.result.cache.SetTTL(stored, now)
	a.result.cache.SetSuspect(cache.CauseLag)
	return g.entryResponse(a, stored, now)
}

// deleteOldPart removes the stored part of a response if a complete response has other validators.
func (g *Gateway) deleteOldPart(a *attempt, resp *http.Response) {
	if !a.cacheable || resp.StatusCode != http.StatusOK {
		return
	}
	if part, _ := g.Cache.Memory.Lookup(partKey(a.key), a.Header); part != nil && part.Differs(resp) {
		g.Cache.Delete(a.in.Context(), partKey(a.key))
	}
}

// outdatesStored reports whether a response to a HEAD request (RFC 9111 section 4.3.5) or to a range request shows that
// the stored response is outdated.
func (a *attempt) outdatesStored(resp *http.Response) bool {
	switch {
	case !a.ranged && (!a.cacheable || a.last == nil):
		return false
	case resp.StatusCode >= 400:
		return a.replacesStored(resp.StatusCode)
	}
	return a.cacheable && resp.StatusCode == http.StatusOK && (a.stale == nil || a.stale.Differs(resp))
}

// replacesStored reports whether a response with this status shows that the stored response is outdated. Limit errors
// return false. If all callers share the response, the refusal of one credential also returns false.
func (a *attempt) replacesStored(status int) bool {
	switch {
	case a.concernsCaller(status):
		return false
	case status < 400, status == http.StatusNotFound, status == http.StatusGone, status == http.StatusUnavailableForLegalReasons:
		return true
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return a.result.limited == policy.NotLimited && a.match.Operation.Cache.Class != policy.Shared
	}
	return false
}

// deleteStored removes the stored responses to the question, complete and partial.
func (g *Gateway) deleteStored(a *attempt) {
	g.Cache.Delete(a.in.Context(), a.key)
	g.Cache.Delete(a.in.Context(), partKey(a.key))
}

// purgeUncertain purges the responses that an unsafe request with an unknown result may have changed. Until the upstream has
// certainly stopped working on the request, these responses are stale even if they are fetched again.
func (g *Gateway) purgeUncertain(a *attempt) {
	g.Cache.PurgeUnsettled(a.detach(), stoppedWorking, cache.CauseWrite, g.tagsOfUncertain(a.question)...)
}

// stoppedWorking is the time after which the upstream has stopped working on a request: ten seconds (Document B section
// 8.4), and a margin.
const stoppedWorking = 15 * time.Second

// purgeAfterWrite purges the responses that the response to an unsafe request with a status below 400 makes stale.
func (g *Gateway) purgeAfterWrite(a *attempt, resp *http.Response) {
	result := policy.MutationSucceeded
	if a.graphQL != nil && !a.isQuery() && resp.StatusCode < http.StatusMultipleChoices {
		var status int
		if result, status = resultOfMutation(resp); result == policy.MutationFailed {
			if !a.mayBeLimited() {
				g.purgeAfterFailure(a, status)
			}
			return
		}
	}
	within := max(g.Lag, a.match.Operation.Settles(resp.StatusCode))
	g.Cache.PurgeUnsettled(a.in.Context(), within, cache.CauseWrite, g.tagsOfResponse(a, resp, result)...)
}

// purgeAfterFailure purges the responses to the client that a failed unsafe request shows to be outdated, so that the client
// does not repeat the request because of them. After a failed validation or a denial, the object may be unchanged, so its responses
// are revalidated only once.
func (g *Gateway) purgeAfterFailure(a *attempt, status int) {
	if !slices.Contains(refutes, status) {
		return
	}
	lag := g.Lag
	if status == http.StatusUnprocessableEntity || status == http.StatusForbidden {
		lag = 0
	}
	g.Cache.PurgeUnsettled(a.in.Context(), lag, cache.CauseFailedWrite, tags.OfObject(g.Catalogue, a.tagged(), g.ownCallers(a.question), status)...)
}

// refutes contains the statuses of unsafe requests which show that the object is not in the state that the client has seen. A denial
// may show that the object is locked, or that its repository is archived.
var refutes = []int{
	http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusConflict, http.StatusGone, http.StatusPreconditionFailed,
	http.StatusUnprocessableEntity, http.StatusLocked, http.StatusUnavailableForLegalReasons,
}
