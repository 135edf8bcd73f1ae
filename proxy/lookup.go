package proxy

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/proxy/learned"
)

// answerFromCache writes a usable stored response, or the refusal for only-if-cached, and reports whether a response
// was written. A stale response stays in the exchange for revalidation.
func (g *Gateway) answerFromCache(a *attempt) bool {
	if a.ranged && g.answerRange(a) {
		return true
	}
	e := g.usableEntry(a)
	if e == nil {
		return g.refuseUncached(a)
	}
	if a.mayBeHidden(e.Status) && !a.cacheControl.Has("only-if-cached") {
		a.hidden = e
		return false
	}
	g.replyFromEntry(a, e, time.Now())
	return true
}

// usableEntry returns the stored response that the client may get without an upstream request. Otherwise usableEntry
// records the reason for the upstream request, and the stored response in the attempt. A stored error is never revalidated, because
// the upstream may confirm it although the object exists now. It is not served stale, either.
func (g *Gateway) usableEntry(a *attempt) *cache.Entry {
	if !a.cacheable {
		a.result.cache = CacheStatus{Forward: a.bypass()}
		return nil
	}
	e, purged := g.lookup(a)
	now := time.Now()
	a.result.cache = CacheStatus{Forward: ForwardStale}
	a.current = g.isCurrent(a, e, purged, now)
	switch {
	case a.current, a.isHit(e, purged, now):
		return e
	case e == nil:
		a.result.cache.Forward = ForwardMiss
		return nil
	case purged:
		if e.Suspect != "" {
			a.result.cache.Detail = DetailWasSuspect + string(e.Suspect)
		}
	case a.mustRevalidate(e, now):
		a.result.cache.Forward = ForwardRequest
	case e.Status >= http.StatusBadRequest:
	case !e.NeverStale(a.rule) && e.AllowedByMaxStale(now, a.cacheControl):
		return e
	case !e.NeverStale(a.rule) && e.UsableWhileRevalidating(now) && g.refresh(a):
		return e
	case !e.NeverStale(a.rule):
		a.fallback = e
	}
	if a.last = e; e.Status < http.StatusBadRequest {
		a.stale = e
	}
	return nil
}

// lookup returns the stored response to the question. If the question is known to have uncacheable responses, lookup
// reads only the memory tier. If the upstream has refused the credential, all its responses are stale, also those that another
// replica or an earlier process has stored.
func (g *Gateway) lookup(a *attempt) (e *cache.Entry, purged bool) {
	e, purged = g.stored(a)
	return e, purged || e != nil && g.hasLostAccess(a)
}

// hasLostAccess reports whether the upstream refused the credential in its last response.
func (g *Gateway) hasLostAccess(a *attempt) bool {
	return a.hasAccess() && g.tokens.HasLostAccess(a.identity.Caller.Class)
}

// stored is lookup without regard to the access of the credential.
func (g *Gateway) stored(a *attempt) (e *cache.Entry, purged bool) {
	if g.WebhookFresh > 0 { // [cache.Store.Lookup] would read the shared tier after the response's lifetime
		if e, purged = g.Cache.Memory.Lookup(a.key, a.header); g.isCurrent(a, e, purged, time.Now()) {
			return e, purged
		}
	}
	operation := a.match.Operation.ID
	if len(a.cacheControl) == 0 && g.Cache.SkipShared(operation, a.key) {
		a.skipShared = true
		e, purged = g.Cache.Memory.Lookup(a.key, a.header)
	} else {
		e, purged = g.Cache.Lookup(a.in.Context(), a.key, a.header)
	}
	if e != nil {
		g.Cache.MarkCacheable(operation, a.key)
		a.skipShared = false
	}
	a.uncacheable = g.Cache.Uncacheable(a.key)
	if e == nil && (a.uncacheable || a.skipShared) {
		a.passCoding()
	}
	return e, purged
}

// refuseUncached refuses a safe request with only-if-cached (RFC 9111 section 5.2.1.7) that the cache cannot answer,
// and reports whether the request was refused.
func (g *Gateway) refuseUncached(a *attempt) bool {
	if !a.cacheControl.Has("only-if-cached") || !a.match.Operation.Safe() {
		return false
	}
	g.refuse(a.exchange, &failure{status: http.StatusGatewayTimeout, message: "Gateway Timeout: not in the cache", detail: "only-if-cached"})
	return true
}

// answerRange writes a range of a fresh stored response (RFC 9110 section 14), and reports whether a response was
// written. The stored response is complete, or a part that contains the range. Other range requests are forwarded.
func (g *Gateway) answerRange(a *attempt) bool {
	if !strings.HasPrefix(a.in.Header.Get("Range"), "bytes=") {
		return false // the upstream may support other units
	}
	if g.hasLostAccess(a) {
		return false
	}
	e, purged := g.Cache.Lookup(a.in.Context(), a.key, a.header)
	now := time.Now()
	if a.isHit(e, purged, now) && e.Status == http.StatusOK {
		g.replyFromEntry(a, e, now)
		return true
	}
	if e != nil || len(a.in.Header["If-Range"]) > 0 || !isUnconditional(a.in.Header) {
		return false // a complete response may be newer than the part, and only the upstream evaluates conditions
	}
	e, purged = g.Cache.Lookup(a.in.Context(), partKey(a.key), a.header)
	if !a.isHit(e, purged, now) {
		return false
	}
	part := e.Part(a.in.Header.Get("Range"))
	if part == nil {
		return false
	}
	g.replyFromEntry(a, part, now)
	return true
}

// partKey returns the key of the stored part of a response, which is the last part that the upstream sent.
func partKey(key cache.Key) cache.Key { return cache.NewKey(string(key[:]), "part") }

// bypass returns the Cache-Status reason for a request without the cache (RFC 9211 section 2.2).
func (a *attempt) bypass() ForwardReason {
	switch {
	case a.method != http.MethodGet && a.method != http.MethodHead:
		return ForwardMethod
	case a.cacheControl.Has("no-store"):
		return ForwardRequest
	}
	return ForwardBypass
}

// isHit reports whether a look-up answers the question without an upstream request. The entry must be fresh and not
// purged, and the client's Cache-Control must allow the entry.
func (a *attempt) isHit(e *cache.Entry, purged bool, now time.Time) bool {
	return e != nil && !purged && e.Fresh(now) && !a.mustRevalidate(e, now)
}

// mustRevalidate reports whether the client's Cache-Control or Pragma excludes a fresh stored response (RFC 9111
// section 5.2.1).
func (a *attempt) mustRevalidate(e *cache.Entry, now time.Time) bool {
	if a.cacheControl.Has("no-cache") || len(a.cacheControl) == 0 && a.in.Header.Get("Pragma") == "no-cache" {
		return true
	}
	if oldest, ok := a.cacheControl.Seconds("max-age"); ok && e.Age(now) > oldest {
		return true
	}
	if least, ok := a.cacheControl.Seconds("min-fresh"); ok && e.Lifetime-e.Age(now) < least {
		return true
	}
	return false
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
	var unusable *UnusableError
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
		if a.record.Attempts == 0 {
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
