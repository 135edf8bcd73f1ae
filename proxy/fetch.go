package proxy

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/coalesce"
	"github.com/weirgate/weir/proxy/learned"
	"github.com/weirgate/weir/proxy/spool"
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
	g.shown.noteWrite(a.question)
	if err != nil {
		if !a.match.Operation.Safe() && a.record.Spent > 0 {
			g.purgeUncertain(a)
		}
		ending = coalesce.Ending{Result: resultOfError(err), Err: err}
		resp, err = g.staleOr(a, err)
		return resp, ending, err
	}
	if reason := a.staleReason(resp); reason != "" {
		discard(resp.Body)
		a.result.cache.ForwardStatus = resp.StatusCode
		return g.useFallback(a, reason), ending, nil
	}
	switch resp.StatusCode {
	case http.StatusNotModified:
		if a.match.Operation.Safe() && (a.conditional || isUnconditional(a.header)) {
			return g.notModified(a, out, resp)
		}
	case http.StatusBadRequest, http.StatusPreconditionFailed, http.StatusRequestHeaderFieldsTooLarge:
		if a.conditional && !onlyStale(a.candidates) { // the upstream may refuse the number of ETags
			return g.fetchUnconditionally(a, out, resp)
		}
	}
	a.result.cache.ForwardStatus = resp.StatusCode
	if newer := g.newerThan(a, resp.StatusCode, resp.Header); newer != nil {
		discard(resp.Body)
		return newer, ending, nil
	}
	answer := cache.Response{Status: resp.StatusCode, Header: resp.Header, Requested: a.sent, Answered: time.Now()}
	if resp.StatusCode >= http.StatusMultipleChoices { // the upstream denies the path or has moved its object
		g.endAccess(a, resp.StatusCode)
		g.endRedirected(a, resp.StatusCode)
	}
	g.deleteOldPart(a, resp)
	switch {
	case a.computed() && resp.StatusCode == http.StatusAccepted:
		ending.Result = coalesce.Pending // a background task polls
		if a.record.Background {
			ending.Result = coalesce.Computing
		}
	case a.cacheable && a.method != http.MethodHead, a.graphQL != nil && a.call != nil:
		resp, ending = g.store(a, a.key, resp, out.Header, answer)
	case a.ranged && resp.StatusCode == http.StatusPartialContent:
		resp, ending = g.store(a, partKey(a.key), resp, out.Header, answer)
	case a.method == http.MethodHead && a.call != nil:
		if a.outdatesStored(resp) {
			g.deleteStored(a)
		}
		ending = g.shareHead(a, answer)
	case a.outdatesStored(resp):
		g.deleteStored(a)
	case !a.match.Operation.Safe() && resp.StatusCode < 400:
		g.Cache.PurgeUnsettled(a.in.Context(), g.Lag, cache.CauseWrite, g.tagsOfResponse(a, resp)...)
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
	case a.result.limited == limits.PrimaryLimit && !a.hasAlternative:
		return string(limits.Primary)
	case a.result.limited == limits.ContentLimit && !a.hasAlternative:
		return string(limits.Content)
	case a.result.limited != limits.NotLimited && !a.hasAlternative:
		return string(limits.Cooldown)
	}
	return ""
}

// isServerError reports whether a stale response may replace a response with this status (RFC 5861 section 4).
func isServerError(status int) bool {
	return status == http.StatusInternalServerError || http.StatusBadGateway <= status && status <= http.StatusGatewayTimeout
}

// staleOr returns the stale fallback after a failed request, or err without a fallback. The request got no permit, or
// the upstream cannot be reached. A response that must be revalidated cannot replace an error (RFC 9111 section
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
		a.result.cache = CacheStatus{Hit: true}
		return g.useFallback(a, "overload"), nil
	case a.shed != nil:
		return nil, err
	case a.fallback == nil && a.stale != nil && a.stale.NeverStale(a.rule) && !limited:
		return nil, &failure{
			status: http.StatusGatewayTimeout, detail: "upstream", cause: err,
			message: "Gateway Timeout: the stored response must be revalidated, and the upstream cannot be reached",
		}
	case a.fallback == nil:
		return nil, err
	case limited:
		if a.record.Sent == 0 {
			a.result.cache = CacheStatus{Hit: true} // no request was forwarded
		}
		return g.useFallback(a, string(refused.Reason)), nil
	}
	a.result.err = err.Error()
	return g.useFallback(a, "upstream"), nil
}

// useFallback returns the stale fallback and puts the reason into Cache-Status.
func (g *Gateway) useFallback(a *attempt, reason string) *http.Response {
	now := time.Now()
	a.result.cache.setTTL(a.fallback, now)
	a.result.cache.Detail = reason
	return g.entryResponse(a, a.fallback, now)
}

// fetchUnconditionally repeats a request with only the client's own conditions.
func (g *Gateway) fetchUnconditionally(a *attempt, out *http.Request, resp *http.Response) (*http.Response, coalesce.Ending, error) {
	discard(resp.Body)
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
	stored, _ := g.Cache.Memory.Lookup(a.key, a.header)
	if stored == nil || g.Cache.Purged(stored.Tags, stored.Since) {
		return nil
	}
	now := time.Now()
	if !stored.Succeeds(status, h, a.began, now) {
		return nil
	}
	stored = stored.Lagged()
	g.Cache.Put(a.in.Context(), a.key, stored, func(bool) {})
	a.result.cache.setTTL(stored, now)
	a.result.cache.suspect(cache.CauseLag)
	return g.entryResponse(a, stored, now)
}

// deleteOldPart removes the stored part of a response if a complete response has other validators.
func (g *Gateway) deleteOldPart(a *attempt, resp *http.Response) {
	if !a.cacheable || resp.StatusCode != http.StatusOK {
		return
	}
	if part, _ := g.Cache.Memory.Lookup(partKey(a.key), a.header); part != nil && part.Differs(resp) {
		g.Cache.Delete(a.in.Context(), partKey(a.key))
	}
}

// store returns the response for the client. When the body is complete, store stores it, or passes it to the followers of
// the call: the response to a GraphQL query without a rule, or a client error that cannot be stored. A response that is stored
// or passed loses its trailers, because another goroutine may read the body.
func (g *Gateway) store(
	a *attempt, key cache.Key, resp *http.Response, sent http.Header, answer cache.Response,
) (*http.Response, coalesce.Ending) {
	private := coalesce.Ending{Result: coalesce.Private}
	if a.mayBeLimited() {
		return resp, coalesce.Ending{Result: coalesce.Refused} // each follower needs a separate permit
	}
	lifetime, vary, ok := g.storable(a, answer)
	if ok && !a.identityAsked && resp.Header.Get("Content-Encoding") != "" {
		g.Cache.MarkCacheable(a.predicts, key) // the next request asks for the identity form
		return resp, private
	}
	passes := !ok && a.sharesError(answer) // to the followers, without storage
	if passes {
		vary, passes = g.errorVary(a, answer)
	}
	kept := spool.NewBuffer(&g.Background.buffers)
	fits := resp.ContentLength <= maxEntry && delimited(resp) && (!ok && !passes || hasEnded(resp) || kept.Reserve(resp.ContentLength))
	if !ok || !fits {
		if a.last != nil && a.replacesStored(resp.StatusCode) {
			g.deleteStored(a)
		}
		if ok && delimited(resp) {
			if shared := g.shareLarge(a, resp, g.newEntry(a, answer, vary, lifetime)); shared != nil {
				return shared, coalesce.Ending{Result: coalesce.Pending}
			}
		}
		if resp.StatusCode == http.StatusOK && (!ok || resp.ContentLength > maxEntry || !delimited(resp)) { // an error does not predict whether the next response can be stored
			g.Cache.MarkUncacheable(a.predicts, key)
		}
		if !passes || !fits {
			return resp, private
		}
	}
	// The entry copies the header now, because the response to the client changes the header later.
	e := g.newEntry(a, answer, vary, lifetime)
	single := a.graphQL == nil && !passes && a.resultFor(e) == coalesce.Private
	own := *resp
	own.Trailer = nil
	complete := func(body []byte, ok bool) coalesce.Ending {
		if !ok && len(body) > maxEntry {
			g.Cache.MarkUncacheable(a.predicts, key)
		}
		if !ok || a.graphQL != nil && !policy.HasGraphQLData(body) && !policy.HasFinalGraphQLErrors(body) {
			return private
		}
		if e.Body = body; passes || a.graphQL != nil && !policy.HasGraphQLData(body) {
			return coalesce.Ending{Result: coalesce.Shared, Response: e}
		}
		if e.Status == http.StatusPartialContent && !e.IsWholePart(a.in.Header.Get("Range")) {
			return private
		}
		if a.graphQL != nil {
			if !a.cacheable {
				e.Tags = append(e.Tags, tags.OfNodes(e.Body)...)
				return coalesce.Ending{Result: coalesce.Shared, Response: e}
			}
			a.completeQueryEntry(e)
		}
		a.boundUnfinished(e)
		g.checkComputedETag(a, sent, e)
		g.checkEvents(a, e)
		g.Cache.MarkCacheable(a.predicts, key)
		g.Cache.Put(a.in.Context(), key, e, a.call.SetShared)
		return coalesce.Ending{Result: coalesce.Stored}
	}
	// The end of the body decides whether the response is stored. Cache-Status of a larger response precedes its body, so it has
	// stored only if the length shows that the response can be stored.
	stored, ending := a.graphQL == nil && !passes && resp.ContentLength >= 0, coalesce.Ending{Result: coalesce.Pending}
	hasTTL := true
	body, ok := resp.Body.(*completeBody)
	if !ok {
		body = &completeBody{}
	}
	if ok || resp.ContentLength == 0 {
		ending = complete(body.whole, true)
		stored = ending.Result == coalesce.Stored
	} else {
		hasTTL = !a.match.Operation.MayBeUnfinished() // the end of the body decides
		finish := func(body []byte, ok bool) { a.call.Finish(complete(body, ok)) }
		s := spool.New(resp.Body, resp.ContentLength, kept, finish)
		if !passes && a.mayShareBody(e) {
			g.shareThrough(a, s, e)
		}
		own.Body = s.Leader()
		g.fillInBackground(a.record.ID, a.call, s)
	}
	if a.result.cache.Stored = stored; stored && hasTTL {
		a.result.cache.setTTL(e, answer.Answered)
	}
	a.result.cache.suspect(e.Suspect)
	if single {
		ending = private
	}
	return &own, ending
}

// shareHead returns the ending of a call with HEAD. Its followers get a response without a body, which the cache does not store,
// under the conditions of a response to GET.
func (g *Gateway) shareHead(a *attempt, answer cache.Response) coalesce.Ending {
	if a.mayBeLimited() {
		return coalesce.Ending{Result: coalesce.Refused} // each follower needs a separate permit
	}
	lifetime, vary, ok := g.storable(a, answer)
	if !ok && answer.Status == http.StatusOK {
		g.Cache.MarkUncacheable(a.match.Operation.ID, a.key)
	}
	isError := !ok && a.sharesError(answer)
	if isError {
		vary, ok = g.errorVary(a, answer)
	}
	e := g.newEntry(a, answer, vary, lifetime)
	if !ok || !isError && a.resultFor(e) == coalesce.Private {
		return coalesce.Ending{Result: coalesce.Private}
	}
	return coalesce.Ending{Result: coalesce.Shared, Response: e}
}

// mayBeLimited reports whether the last response is a limit error, or may be a limit error that the next response confirms.
// Such a response is neither stored nor shared.
func (a *attempt) mayBeLimited() bool { return a.limitError.Kind != limits.NotLimited }

// storable reports whether a response may be stored or, for a GraphQL query without a rule, given to followers. It returns
// the freshness lifetime and the request fields in Vary.
func (g *Gateway) storable(a *attempt, answer cache.Response) (lifetime time.Duration, vary []cache.Field, ok bool) {
	lifetime, allowed := cache.Storable(answer, a.cacheControl, a.rule)
	vary, selectable := g.varyFields(a, answer)
	if a.graphQL != nil {
		return a.ttl, vary, queryStorable(answer) && selectable
	}
	if a.isFailure(answer.Status) {
		// The credential may have caused the error, and may get access later. A standard field without a part in the key
		// may also have caused the error, so only requests with the same standard fields get the stored error.
		anonymous := !a.rule.OneCaller
		vary, selectable = g.errorVary(a, answer)
		allowed = allowed && anonymous && (a.last == nil || a.isFailure(a.last.Status)) && isPlain(a.header)
	}
	return lifetime, vary, allowed && selectable
}

// isFailure reports whether a status that can be stored is an error that may concern the request or the state of the
// upstream instead of the resource. Such an error never replaces a stored response, and is never served stale.
func (q *question) isFailure(status int) bool {
	return q.rule.AnyStatus && status >= http.StatusBadRequest && status != http.StatusNotFound && status != http.StatusGone
}

// maxPlain is the size of the largest request header whose error is stored.
const maxPlain = 4 << 10

// isPlain reports whether a request header is short and in ASCII. The upstream may refuse other headers.
func isPlain(h http.Header) bool {
	for _, values := range h {
		for _, value := range values {
			if strings.ContainsFunc(value, func(r rune) bool { return r > unicode.MaxASCII }) {
				return false
			}
		}
	}
	return headerSize(h) <= maxPlain
}

// coveredFields returns the request fields that a Vary field may name without creating a variant of the question.
func (g *Gateway) coveredFields(q *question) []string {
	if len(q.keyed) > 0 {
		return slices.Concat(q.keyed, g.covered)
	}
	return g.covered
}

// varyFields returns the request fields outside the key that another request must share to get the same response. ok is false if
// Vary excludes all other requests.
func (g *Gateway) varyFields(a *attempt, answer cache.Response) (vary []cache.Field, ok bool) {
	covered := g.coveredFields(a.question)
	vary, ok = cache.VaryFields(answer.Header, a.header, covered)
	implied, _ := cache.VaryFields(http.Header{"Vary": a.implied(vary)}, a.header, covered)
	return append(vary, implied...), ok
}

// errorVary is varyFields for an error, which the standard fields and any number may have caused, too.
func (g *Gateway) errorVary(a *attempt, answer cache.Response) (vary []cache.Field, ok bool) {
	vary, ok = g.varyFields(a, answer)
	implied, _ := cache.VaryFields(http.Header{"Vary": slices.Concat(policy.StandardFields, a.numbers)}, a.header, g.coveredFields(a.question))
	return append(vary, implied...), ok
}

// sharedErrors are the statuses of an error or a rename that all identical requests of a security class get at the same
// time. Not listed are 401 and 403, because they may concern the state of the credential or a limit, and 408, 429 and 5xx.
var sharedErrors = map[int]bool{
	http.StatusMovedPermanently: true, http.StatusTemporaryRedirect: true, http.StatusPermanentRedirect: true,
	http.StatusBadRequest: true, http.StatusNotFound: true, http.StatusMethodNotAllowed: true, http.StatusNotAcceptable: true,
	http.StatusConflict: true, http.StatusGone: true, http.StatusUnsupportedMediaType: true,
	http.StatusUnprocessableEntity: true, http.StatusUnavailableForLegalReasons: true,
}

// sharesError reports whether the followers of the call get the error in a response that cannot be stored.
func (a *attempt) sharesError(answer cache.Response) bool {
	if a.call == nil || a.graphQL != nil || !sharedErrors[answer.Status] {
		return false
	}
	d := cache.ParseDirectives(answer.Header["Cache-Control"])
	return !a.unclear && isPlain(a.header) && !d.Has("no-store") && (a.rule.OneCaller || !d.Has("private")) && len(answer.Header["Set-Cookie"]) == 0
}

// newEntry returns the entry of a response without its body.
func (g *Gateway) newEntry(a *attempt, answer cache.Response, vary []cache.Field, lifetime time.Duration) *cache.Entry {
	e := cache.NewEntry(g.withoutCaller(a, answer), nil, lifetime)
	e.Vary, e.BaseKey, e.Tags = vary, a.baseKey, a.tagged().Stored(e.Status)
	e.Began(a.began)
	e.Replaces(a.last, g.Lag)
	a.boundLifetime(e)
	return e
}

// withoutCaller removes the fields that may identify the caller from a response that all callers share.
func (g *Gateway) withoutCaller(a *attempt, answer cache.Response) cache.Response {
	if a.match.Operation.Cache.Class == policy.Shared {
		return answer.WithoutCaller(g.Dialect.Describe)
	}
	return answer
}

// boundLifetime applies the longest lifetime of the operation to a stored response.
func (a *attempt) boundLifetime(e *cache.Entry) {
	if most := a.match.Operation.Cache.MaxTTL; most > 0 {
		e.Lifetime = min(e.Lifetime, most)
	}
}

// unfinishedTag is the tag of stored responses about unfinished states.
const unfinishedTag = "unfinished"

// boundUnfinished shortens the lifetime of a stored response with a body about an unfinished state, and adds its tag.
func (a *attempt) boundUnfinished(e *cache.Entry) {
	if op := a.match.Operation; op.MayBeUnfinished() && op.Unfinished(e.Body) {
		e.Lifetime = min(e.Lifetime, policy.UnfinishedLifetime())
		e.Tags = append(e.Tags, unfinishedTag)
	}
}

// resultFor returns the result of a call whose response is stored as e.
func (a *attempt) resultFor(e *cache.Entry) coalesce.Result {
	if e.SingleUse(a.rule) {
		return coalesce.Private
	}
	return coalesce.Stored
}

// checkEvents reports a lost event if a revalidation replaced a response whose changes webhooks report, and no event
// has arrived. e is the new response.
func (g *Gateway) checkEvents(a *attempt, e *cache.Entry) {
	old := a.stale
	if g.WebhookFresh == 0 || old == nil || old.Suspect != "" || old.Status != http.StatusOK || e.Status != http.StatusOK || bytes.Equal(old.Body, e.Body) ||
		g.Cache.Purged(old.Tags, old.Since) || !g.reported(a.question, old) {
		return
	}
	objects, _ := g.eventSource(a.question)
	g.Log.Warn("response changed without a webhook event; its repository or organization is revalidated until the next delivery",
		"request", a.record.ID, "object", objects[0], "operation", a.match.Operation.ID)
	g.Cache.ReportLost(a.detach(), objects[0])
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
	case status < 400, status == http.StatusNotFound, status == http.StatusGone, status == http.StatusUnavailableForLegalReasons:
		return true
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return a.result.limited == limits.NotLimited && a.match.Operation.Cache.Class != policy.Shared
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

// purgeAfterFailure purges the responses to the client that a failed unsafe request shows to be outdated, so that the client
// does not repeat the request because of them. An object that fails validation may be unchanged, so its responses are
// revalidated only once.
func (g *Gateway) purgeAfterFailure(a *attempt, status int) {
	if !slices.Contains(refutes, status) {
		return
	}
	lag := g.Lag
	if status == http.StatusUnprocessableEntity {
		lag = 0
	}
	g.Cache.PurgeUnsettled(a.in.Context(), lag, cache.CauseFailedWrite, tags.OfObject(g.Catalogue, a.tagged(), g.ownCallers(a.question), status == http.StatusUnprocessableEntity)...)
}

// refutes contains the statuses of unsafe requests which show that the object is not in the state that the client has seen.
var refutes = []int{
	http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusConflict, http.StatusGone, http.StatusPreconditionFailed, http.StatusUnprocessableEntity,
}
