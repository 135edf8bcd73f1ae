package proxy

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/coalesce"
)

// store returns the response for the client. When the body is complete, store stores it, or passes it to the followers of
// the call: the response to a GraphQL query without a rule, or a client error that cannot be stored. Such a response loses
// its trailers, because another goroutine reads the body.
func (g *Gateway) store(
	a *attempt, key cache.Key, resp *http.Response, sent http.Header, answer cache.Response,
) (*http.Response, coalesce.Ending) {
	private := coalesce.Ending{Result: coalesce.Private}
	if a.mayBeLimited() {
		return resp, coalesce.Ending{Result: coalesce.Refused} // each follower needs a separate permit
	}
	lifetime, vary, ok := g.storable(a, answer)
	if ok && !a.identityAsked && resp.Header.Get("Content-Encoding") != "" {
		g.Cache.MarkCacheable(a.match.Operation.ID, key) // the next request asks for the identity form
		return resp, private
	}
	passes := !ok && a.sharesError(answer) // to the followers, without storage
	if passes {
		vary, passes = g.errorVary(a, answer)
	}
	kept := &buffer{budget: &g.Background.buffers}
	fits := resp.ContentLength <= maxEntry && delimited(resp) && (!ok && !passes || hasEnded(resp) || kept.reserve(resp.ContentLength))
	if !ok || !fits {
		if a.last != nil && a.replacesStored(resp.StatusCode) {
			g.deleteStored(a)
		}
		if ok && delimited(resp) {
			if shared := g.shareLarge(a, resp, g.newEntry(a, answer, vary, lifetime)); shared != nil {
				return shared, coalesce.Ending{Result: coalesce.Pending}
			}
		}
		if resp.StatusCode == http.StatusOK && (!ok || resp.ContentLength > maxEntry) { // an error does not predict whether the next response can be stored
			g.Cache.MarkUncacheable(a.match.Operation.ID, key)
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
			g.Cache.MarkUncacheable(a.match.Operation.ID, key)
		}
		if !ok || a.graphQL != nil && !hasData(body) && !hasFinalErrors(body) {
			return private
		}
		if e.Body = body; passes || a.graphQL != nil && !hasData(body) {
			return coalesce.Ending{Result: coalesce.Shared, Response: e}
		}
		if e.Status == http.StatusPartialContent && !e.IsWholePart(a.in.Header.Get("Range")) {
			return private
		}
		if a.graphQL != nil {
			if !a.cacheable {
				a.tagNodes(e)
				return coalesce.Ending{Result: coalesce.Shared, Response: e}
			}
			a.completeQueryEntry(e)
		}
		a.boundUnfinished(e)
		g.checkComputedETag(a, sent, e)
		g.checkEvents(a, e)
		g.Cache.MarkCacheable(a.match.Operation.ID, key)
		g.Cache.Put(a.in.Context(), key, e, a.call.SetShared)
		return coalesce.Ending{Result: coalesce.Stored}
	}
	// The end of the body decides whether the response is stored. Cache-Status of a larger response precedes its body, so it has
	// stored only if the length shows that the response can be stored.
	stored, ending := a.graphQL == nil && !passes && resp.ContentLength >= 0, coalesce.Ending{Result: coalesce.Pending}
	hasTTL := true
	if body, ok := resp.Body.(completeBody); ok || resp.ContentLength == 0 {
		ending = complete(body.whole, true)
		stored = ending.Result == coalesce.Stored
	} else {
		hasTTL = !a.match.Operation.MayBeUnfinished() // the end of the body decides
		finish := func(body []byte, ok bool) { a.call.Finish(complete(body, ok)) }
		s := newSpool(resp, kept, finish)
		if !passes && a.mayShareBody(e) {
			g.shareThrough(a, s, e)
		}
		own.Body = s.leader
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

// newEntry returns the entry of a response without its body.
func (g *Gateway) newEntry(a *attempt, answer cache.Response, vary []cache.Field, lifetime time.Duration) *cache.Entry {
	e := cache.NewEntry(g.withoutCaller(a, answer), nil, lifetime)
	e.Vary, e.BaseKey, e.Tags = vary, a.baseKey, a.storedTags(e.Status)
	e.Began(a.began)
	e.Replaces(a.last, g.Lag)
	a.boundLifetime(e)
	return e
}

// fillInBackground reads a body ahead of the client. While the call has followers, the read continues after a
// disconnect of the client.
func (g *Gateway) fillInBackground(id string, call *coalesce.Call, s *spool) {
	g.Background.running.Go(func() {
		defer context.AfterFunc(g.Background.ctx, call.Close)()
		defer func() {
			if p := recover(); p != nil { // net/http recovers only panics of handlers
				g.Log.Error("panic while reading a response", "request", id, "panic", p, "stack", string(debug.Stack()))
				_ = s.body.Close()
				s.stop(errPanic)
				call.Finish(coalesce.Ending{Result: coalesce.Private})
			}
		}()
		s.fill()
	})
}

// mayBeLimited reports whether the last response is a limit error, or may be a limit error that the next response confirms.
// Such a response is neither stored nor shared.
func (a *attempt) mayBeLimited() bool { return a.limitError.Kind != limits.NotLimited }

// notModified returns the response that a 304 confirms (see confirmed). If the 304 confirms no response, the request is
// repeated without conditions. A 304 to a request without conditions is an error.
func (g *Gateway) notModified(a *attempt, out *http.Request, resp *http.Response) (*http.Response, coalesce.Ending, error) {
	if isUnconditional(out.Header) {
		discard(resp.Body)
		err := &failure{
			status: http.StatusBadGateway, detail: "upstream",
			message: "Bad Gateway: the upstream answered 304 to a request without conditions",
		}
		ending := coalesce.Ending{Result: coalesce.Failed, Err: err}
		resp, failed := g.staleOr(a, err)
		return resp, ending, failed
	}
	c, ok := g.confirmed(a, out.Header, resp.Header)
	if !ok {
		return g.fetchUnconditionally(a, out, resp)
	}
	discard(resp.Body)
	answer := cache.Response{Status: resp.StatusCode, Header: resp.Header, Requested: a.sent, Answered: time.Now()}
	if c.etag == "" && answer.Header.Get("Etag") != "" {
		answer.Header = http.Header{"Date": answer.Header["Date"], "Age": answer.Header["Age"]}
	}
	a.result.cache.ForwardStatus = resp.StatusCode
	resp, ending := g.updateStored(a, c, answer)
	return resp, ending, nil
}

// updateStored merges a 304 into the confirmed entry (RFC 9111 section 4.3.4), and returns the updated response.
func (g *Gateway) updateStored(a *attempt, c candidate, answer cache.Response) (*http.Response, coalesce.Ending) {
	now, e := answer.Answered, c.entry
	if newer := g.newerThan(a, e.Status, http.Header{"Etag": {cmp.Or(c.etag, e.ETag())}}); newer != nil {
		return newer, coalesce.Ending{Result: coalesce.Private}
	}
	if c.source == sourceOtherCaller {
		e = e.ForCaller(cmp.Or(answer.Header.Get("Etag"), c.etag), g.Dialect.Describe)
	}
	e = e.Validated(g.withoutCaller(a, answer))
	answer.Status, answer.Header = e.Status, e.Header
	lifetime, vary, ok := g.storable(a, answer)
	e.Lifetime, e.Vary, e.BaseKey, e.Tags = lifetime, vary, a.baseKey, a.storedTags(e.Status)
	e.Began(a.began)
	e.Replaces(a.last, g.Lag)
	a.result.cache.suspect(e.Suspect)
	a.boundLifetime(e)
	a.boundUnfinished(e)
	if !ok {
		g.deleteStored(a)
		return g.entryResponse(a, e, now), coalesce.Ending{Result: coalesce.Private}
	}
	g.Cache.MarkCacheable(a.match.Operation.ID, a.key)
	g.Cache.Put(a.in.Context(), a.key, e, a.call.SetShared)
	a.result.cache.Stored = true
	a.result.cache.setTTL(e, now)
	return g.entryResponse(a, e, now), coalesce.Ending{Result: a.resultFor(e)}
}

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
	d := cache.ParseDirectives(answer.Header["Cache-Control"])
	return a.call != nil && a.graphQL == nil && sharedErrors[answer.Status] && !a.unclear && isPlain(a.header) &&
		!d.Has("no-store") && (a.rule.OneCaller || !d.Has("private")) && len(answer.Header["Set-Cookie"]) == 0
}

// deleteStored removes the stored responses to the question, complete and partial.
func (g *Gateway) deleteStored(a *attempt) {
	g.Cache.Delete(a.in.Context(), a.key)
	g.Cache.Delete(a.in.Context(), partKey(a.key))
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

// withoutCaller removes the fields that may identify the caller from a response that all callers share.
func (g *Gateway) withoutCaller(a *attempt, answer cache.Response) cache.Response {
	if a.match.Operation.Cache.Class == policy.Shared {
		return answer.WithoutCaller(g.Dialect.Describe)
	}
	return answer
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

// delimited reports whether the framing marks the end of the body, so that a broken connection is detected (RFC 9112
// section 8).
func delimited(resp *http.Response) bool {
	return resp.ContentLength >= 0 || resp.ProtoMajor >= 2 || len(resp.TransferEncoding) > 0
}

const (
	// maxEntry is the size of the largest body that is stored.
	maxEntry = 8 << 20
	// smallBody is the size of the largest body that is read before the response to the client begins.
	smallBody = 16 << 10
	// maxHeld bounds the bytes that are buffered for clients. If GOMEMLIMIT divided by heldShare is lower, that bound
	// applies.
	maxHeld, heldShare = 256 << 20, 8
)

// errPanic is the error of a body whose reader panicked.
var errPanic = errors.New("the response could not be read completely")

// discard reads the rest of an unused response, so that the connection can be reused.
func discard(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, maxDiscard) // Close closes the connection after a longer or broken body
	_ = body.Close()
}

const maxDiscard = 256 << 10
