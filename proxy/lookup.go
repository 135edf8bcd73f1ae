package proxy

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/limits"
)

// answerFromCache writes a usable stored response, or the refusal for only-if-cached, and reports whether a response
// was written. A stale response stays in the exchange for revalidation.
func (g *Gateway) answerFromCache(ex *exchange) bool {
	if ex.ranged && g.answerRange(ex) {
		return true
	}
	e := g.usableEntry(ex)
	if e == nil {
		return g.refuseUncached(ex)
	}
	if ex.mayBeHidden(e.Status) && !ex.cacheControl.Has("only-if-cached") {
		ex.hidden = e
		return false
	}
	g.replyFromEntry(ex, e, time.Now())
	return true
}

// usableEntry returns the stored response that the client may get without an upstream request. Otherwise usableEntry
// records the reason for the upstream request, and sets ex.stale and ex.fallback if a stale response is stored.
func (g *Gateway) usableEntry(ex *exchange) *cache.Entry {
	if !ex.cacheable {
		ex.record.Cache = CacheStatus{Forward: ex.bypass()}
		return nil
	}
	e, purged := g.lookup(ex)
	now := time.Now()
	ex.record.Cache = CacheStatus{Forward: ForwardStale}
	ex.current = g.isCurrent(ex, e, purged, now)
	switch {
	case ex.current, ex.isHit(e, purged, now):
		return e
	case e == nil:
		ex.record.Cache.Forward = ForwardMiss
	case ex.isFailure(e.Status): // a stale error is neither served nor revalidated
	case purged:
		ex.stale = e
	case ex.mustRevalidate(e, now):
		ex.stale, ex.record.Cache.Forward = e, ForwardRequest
	case !e.NeverStale(ex.rule) && e.AllowedByMaxStale(now, ex.cacheControl):
		return e
	case !e.NeverStale(ex.rule) && e.UsableWhileRevalidating(now) && g.refresh(ex):
		return e
	default:
		ex.stale = e
		if !e.NeverStale(ex.rule) {
			ex.fallback = e
		}
	}
	return nil
}

// lookup returns the stored response to the question. If the question is known to have uncacheable responses, lookup
// reads only the memory tier. If the upstream has refused the credential, all its responses are stale, also those that another
// replica or an earlier process has stored.
func (g *Gateway) lookup(ex *exchange) (e *cache.Entry, purged bool) {
	e, purged = g.stored(ex)
	return e, purged || e != nil && ex.hasAccess() && g.tokens.hasLostAccess(ex.identity.Caller.Class)
}

// stored is lookup without regard to the access of the credential.
func (g *Gateway) stored(ex *exchange) (e *cache.Entry, purged bool) {
	if g.WebhookFresh > 0 { // [cache.Store.Lookup] would read the shared tier after the response's lifetime
		if e, purged = g.Cache.Memory.Lookup(ex.key, ex.header); g.isCurrent(ex, e, purged, time.Now()) {
			return e, purged
		}
	}
	operation := ex.match.Operation.ID
	if len(ex.cacheControl) == 0 && g.Cache.SkipShared(operation, ex.key) {
		ex.skipShared = true
		e, purged = g.Cache.Memory.Lookup(ex.key, ex.header)
	} else {
		e, purged = g.Cache.Lookup(ex.in.Context(), ex.key, ex.header)
	}
	if e != nil {
		g.Cache.MarkCacheable(operation, ex.key)
		ex.skipShared = false
	}
	ex.uncacheable = g.Cache.Uncacheable(ex.key)
	if e == nil && (ex.uncacheable || ex.skipShared) {
		ex.passCoding()
	}
	return e, purged
}

// refuseUncached refuses a safe request with only-if-cached (RFC 9111 section 5.2.1.7) that the cache cannot answer,
// and reports whether the request was refused.
func (g *Gateway) refuseUncached(ex *exchange) bool {
	if !ex.cacheControl.Has("only-if-cached") || !ex.match.Operation.Safe() {
		return false
	}
	g.refuse(ex, &failure{status: http.StatusGatewayTimeout, message: "Gateway Timeout: not in the cache", detail: "only-if-cached"})
	return true
}

// answerRange writes a range of a fresh stored response (RFC 9110 section 14), and reports whether a response was
// written. The stored response is complete, or a part that contains the range. Other range requests are forwarded.
func (g *Gateway) answerRange(ex *exchange) bool {
	if !strings.HasPrefix(ex.in.Header.Get("Range"), "bytes=") {
		return false // the upstream may support other units
	}
	if ex.hasAccess() && g.tokens.hasLostAccess(ex.identity.Caller.Class) {
		return false
	}
	e, purged := g.Cache.Lookup(ex.in.Context(), ex.key, ex.header)
	now := time.Now()
	if ex.isHit(e, purged, now) && e.Status == http.StatusOK {
		g.replyFromEntry(ex, e, now)
		return true
	}
	if e != nil || len(ex.in.Header["If-Range"]) > 0 || !isUnconditional(ex.in.Header) {
		return false // a complete response may be newer than the part, and only the upstream evaluates conditions
	}
	e, purged = g.Cache.Lookup(ex.in.Context(), partKey(ex.key), ex.header)
	if !ex.isHit(e, purged, now) {
		return false
	}
	part := e.Part(ex.in.Header.Get("Range"))
	if part == nil {
		return false
	}
	g.replyFromEntry(ex, part, now)
	return true
}

// partKey returns the key of the stored part of a response, which is the last part that the upstream sent.
func partKey(key cache.Key) cache.Key { return cache.NewKey(string(key[:]), "part") }

// bypass returns the Cache-Status reason for a request without the cache (RFC 9211 section 2.2).
func (ex *exchange) bypass() ForwardReason {
	switch {
	case ex.method != http.MethodGet && ex.method != http.MethodHead:
		return ForwardMethod
	case ex.cacheControl.Has("no-store"):
		return ForwardRequest
	}
	return ForwardBypass
}

// isHit reports whether a look-up answers the question without an upstream request. The entry must be fresh and not
// purged, and the client's Cache-Control must allow the entry.
func (ex *exchange) isHit(e *cache.Entry, purged bool, now time.Time) bool {
	return e != nil && !purged && e.Fresh(now) && !ex.mustRevalidate(e, now)
}

// mustRevalidate reports whether the client's Cache-Control or Pragma excludes a fresh stored response (RFC 9111
// section 5.2.1).
func (ex *exchange) mustRevalidate(e *cache.Entry, now time.Time) bool {
	if ex.cacheControl.Has("no-cache") || len(ex.cacheControl) == 0 && ex.in.Header.Get("Pragma") == "no-cache" {
		return true
	}
	if oldest, ok := ex.cacheControl.Seconds("max-age"); ok && e.Age(now) > oldest {
		return true
	}
	if least, ok := ex.cacheControl.Seconds("min-fresh"); ok && e.Lifetime-e.Age(now) < least {
		return true
	}
	return false
}

// staleReason returns the reason to replace the upstream's response by the stale fallback, or an empty string if the
// response is used.
func (ex *exchange) staleReason(resp *http.Response) string {
	switch {
	case ex.fallback == nil:
	case isServerError(resp.StatusCode) && ex.fallback.UsableOnError(time.Now(), ex.cacheControl):
		return "stale-if-error"
	case ex.limited == limits.PrimaryLimit && !ex.hasAlternative:
		return string(limits.Primary)
	case ex.limited == limits.ContentLimit && !ex.hasAlternative:
		return string(limits.Content)
	case ex.limited != limits.NotLimited && !ex.hasAlternative:
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
func (g *Gateway) staleOr(ex *exchange, err error) (*http.Response, error) {
	var refused *limits.Refusal
	var unusable *UnusableError
	var unverified *unverifiedError
	switch limited := errors.As(err, &refused); {
	case ex.in.Context().Err() != nil:
		return nil, context.Cause(ex.in.Context()) // the client has left
	case limited && ex.hasAlternative, errors.As(err, &unusable), errors.As(err, &unverified):
		return nil, err // another credential is tried; an unusable or unverified credential may have no access
	case ex.shed != nil && ex.fallback != nil:
		ex.record.Cache = CacheStatus{Hit: true}
		return g.useFallback(ex, "overload"), nil
	case ex.shed != nil:
		return nil, err
	case ex.fallback == nil && ex.stale != nil && ex.stale.NeverStale(ex.rule) && !limited:
		return nil, &failure{
			status: http.StatusGatewayTimeout, detail: "upstream", cause: err,
			message: "Gateway Timeout: the stored response must be revalidated, and the upstream cannot be reached",
		}
	case ex.fallback == nil:
		return nil, err
	case limited:
		if ex.record.Attempts == 0 {
			ex.record.Cache = CacheStatus{Hit: true} // no request was forwarded
		}
		return g.useFallback(ex, string(refused.Reason)), nil
	}
	ex.record.Error = err.Error()
	return g.useFallback(ex, "upstream"), nil
}

// useFallback returns the stale fallback and puts the reason into Cache-Status.
func (g *Gateway) useFallback(ex *exchange, reason string) *http.Response {
	now := time.Now()
	ex.record.Cache.setTTL(ex.fallback, now)
	ex.record.Cache.Detail = reason
	return g.entryResponse(ex, ex.fallback, now)
}
