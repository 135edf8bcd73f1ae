package proxy

import (
	"context"
	"errors"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/contentcoding"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/bodies"
	"github.com/weirgate/weir/proxy/coalesce"
	"github.com/weirgate/weir/proxy/screen"
	"github.com/weirgate/weir/proxy/spool"
	"github.com/weirgate/weir/proxy/tags"
)

// storeResponse returns the response for the client. When the body is complete, storeResponse stores it, or passes it to the followers of
// the call: the response to a GraphQL query without a rule, or an error or a redirect that cannot be stored. A response that is stored
// or passed loses its trailers, because another goroutine may read the body.
func (g *Gateway) storeResponse(
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
	fits := resp.ContentLength <= maxEntry && bodies.Delimited(resp) && (!ok && !passes || bodies.HasEnded(resp) || kept.Reserve(resp.ContentLength))
	if !ok || !fits {
		if a.last != nil && a.replacesStored(resp.StatusCode) {
			g.deleteStored(a)
		}
		if ok && bodies.Delimited(resp) {
			if shared := g.shareLarge(a, resp, g.newEntry(a, answer, vary, lifetime)); shared != nil {
				return shared, coalesce.Ending{Result: coalesce.Pending}
			}
		}
		if resp.StatusCode == http.StatusOK && (!ok || resp.ContentLength > maxEntry || !bodies.Delimited(resp)) { // an error does not predict whether the next response can be stored
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
		if e.Body = body; a.graphQL != nil && !policy.HasGraphQLData(body) {
			e.Tags = a.tagged().Stored(http.StatusNotFound) // its denial does not end it
			return coalesce.Ending{Result: coalesce.Passed, Response: e}
		}
		if passes {
			return coalesce.Ending{Result: coalesce.Passed, Response: e}
		}
		if e.Status == http.StatusPartialContent && !e.IsWholePart(a.in.Header.Get("Range")) {
			return private
		}
		if a.graphQL != nil {
			if !a.cacheable {
				e.Tags = append(e.Tags, tags.OfNodes(e.Body)...)
				return coalesce.Ending{Result: coalesce.Passed, Response: e}
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
	if body, ok := bodies.Whole(resp); ok || resp.ContentLength == 0 {
		ending = complete(body, true)
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
		a.result.cache.SetTTL(e, answer.Answered)
	}
	a.result.cache.SetSuspect(e.Suspect)
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
		g.Cache.MarkUncacheable(a.predicts, a.key)
	}
	isError := !ok && a.sharesError(answer)
	if isError {
		vary, ok = g.errorVary(a, answer)
	}
	e := g.newEntry(a, answer, vary, lifetime)
	if !ok || !isError && a.resultFor(e) == coalesce.Private {
		return coalesce.Ending{Result: coalesce.Private}
	}
	return coalesce.Ending{Result: coalesce.Passed, Response: e}
}

// maxEntry is the size of the largest body that is stored.
const maxEntry = spool.MaxBuffered

// mayBeLimited reports whether the last response is a limit error, or may be a limit error that the next response confirms.
// Such a response is neither stored nor shared.
func (a *attempt) mayBeLimited() bool { return a.limitError.Kind != policy.NotLimited }

// storable reports whether a response may be stored or, for a GraphQL query without a rule, given to followers. It returns
// the freshness lifetime and the request fields in Vary.
func (g *Gateway) storable(a *attempt, answer cache.Response) (lifetime time.Duration, vary []cache.Field, ok bool) {
	lifetime, allowed := cache.Storable(answer, a.cacheControl, a.rule)
	vary, selectable := g.varyFields(a, answer)
	if a.graphQL != nil {
		return a.ttl, vary, queryStorable(answer) && selectable
	}
	if a.concernsCaller(answer.Status) {
		return 0, nil, false
	}
	if a.isFailure(answer.Status) {
		// The credential may have caused the error, and may get access later. A standard field without a part in the key
		// may also have caused the error, so only requests with the same standard fields get the stored error.
		anonymous := !a.rule.OneCaller
		vary, selectable = g.errorVary(a, answer)
		allowed = allowed && anonymous && (a.last == nil || a.isFailure(a.last.Status)) && isPlain(a.Header)
	}
	return lifetime, vary, allowed && selectable
}

// concernsCaller reports whether a response with this status to a question about reference data may concern the credential, such as a
// redirect to a login. All callers share the key, so such a response is neither stored nor shared, and replaces no stored response.
func (q *question) concernsCaller(status int) bool {
	return q.match.Operation.Cache.Class == policy.Shared && status >= http.StatusMultipleChoices && q.caller.Kind != policy.Unauthenticated
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
	return screen.HeaderSize(h) <= maxPlain
}

// coveredFields returns the request fields that a Vary field may name without creating a variant of the question.
func (g *Gateway) coveredFields(q *question) []string {
	if len(q.Keyed) > 0 {
		return slices.Concat(q.Keyed, g.covered)
	}
	return g.covered
}

// varyFields returns the request fields outside the key that another request must share to get the same response. ok is false if
// Vary excludes all other requests.
func (g *Gateway) varyFields(a *attempt, answer cache.Response) (vary []cache.Field, ok bool) {
	covered := g.coveredFields(a.question)
	vary, ok = cache.VaryFields(answer.Header, a.Header, covered)
	implied, _ := cache.VaryFields(http.Header{"Vary": a.Implied(vary)}, a.Header, covered)
	return append(vary, implied...), ok
}

// errorVary is varyFields for an error, which the standard fields and any number may have caused, too.
func (g *Gateway) errorVary(a *attempt, answer cache.Response) (vary []cache.Field, ok bool) {
	vary, ok = g.varyFields(a, answer)
	implied, _ := cache.VaryFields(http.Header{"Vary": slices.Concat(policy.StandardFields, a.Numbers)}, a.Header, g.coveredFields(a.question))
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
	if a.call == nil || a.graphQL != nil || !sharedErrors[answer.Status] || a.concernsCaller(answer.Status) {
		return false
	}
	d := cache.ParseDirectives(answer.Header["Cache-Control"])
	return !a.unclear && isPlain(a.Header) && !d.Has("no-store") && (a.rule.OneCaller || !d.Has("private")) && len(answer.Header["Set-Cookie"]) == 0
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
	if g.WebhookFresh == 0 || old == nil || old.Suspect != "" || old.Status != http.StatusOK || e.Status != http.StatusOK || old.SameBody(e) ||
		g.Cache.Purged(old.Tags, old.Since) || !g.reported(a.question, old) {
		return
	}
	objects, _ := g.eventSource(a.question)
	g.Log.Warn("response changed without a webhook event; its repository or organization is revalidated until the next delivery",
		"request", a.record.ID, "object", objects[0], "operation", a.match.Operation.ID)
	g.Cache.ReportLost(a.detach(), objects[0])
}

// shareLarge returns a response whose body is read into a temporary file for all clients of the call, or nil if it cannot be
// shared. The entry describes the response.
func (g *Gateway) shareLarge(a *attempt, resp *http.Response, e *cache.Entry) *http.Response {
	if !a.mayShareBody(e) {
		return nil
	}
	s := spool.New(resp.Body, resp.ContentLength, spool.NewBuffer(&g.Background.buffers), func([]byte, bool) { a.call.Finish(coalesce.Ending{Result: coalesce.Private}) })
	g.shareThrough(a, s, e)
	if !s.ShareNow() {
		return nil
	}
	own := *resp
	own.Trailer, own.Body = nil, s.Leader()
	g.fillInBackground(a.record.ID, a.call, s)
	return &own
}

// mayShareBody reports whether the followers of the call may get a body before its end.
func (a *attempt) mayShareBody(e *cache.Entry) bool {
	return a.call != nil && a.graphQL == nil && e.Status == http.StatusOK && a.resultFor(e) == coalesce.Stored
}

// shareThrough lets the followers of the call read a spool after its bytes have moved to a file. The entry has no body. If gzip
// makes the body small enough, a packed entry is stored.
func (g *Gateway) shareThrough(a *attempt, s *spool.Spool, e *cache.Entry) {
	id := a.record.ID
	share := func() {
		if a.last != nil && a.replacesStored(e.Status) {
			g.deleteStored(a)
		}
		forms := spool.NewForms(s, func(coded *spool.Spool) { g.fillInBackground(id, nil, coded) })
		a.call.SetStream(coalesce.Stream{Response: e, Length: s.Length(), Open: forms.Open, Release: forms.Release})
	}
	outgrown := func() { g.Cache.MarkUncacheable(a.predicts, a.key) } // the next clients do not share the body
	var pack func(packed []byte, length int64)
	if contentcoding.Compressible(e.Header.Get("Content-Type")) && len(e.Header["Content-Encoding"]) == 0 && !a.match.Operation.MayBeUnfinished() {
		pack = func(packed []byte, length int64) {
			stored := *e
			stored.Packed, stored.Unpacked = packed, length
			g.checkEvents(a, &stored)
			g.Cache.MarkCacheable(a.predicts, a.key)
			g.Cache.Put(a.in.Context(), a.key, &stored, a.call.SetShared)
			a.call.Finish(coalesce.Ending{Result: coalesce.Stored})
		}
	}
	s.Share(&g.Background.files, share, outgrown, pack)
}

// errPanic is the error of a body whose reader panicked.
var errPanic = errors.New("the response could not be read completely")

// fillInBackground reads a body ahead of the client. While the call has followers, the read continues after a
// disconnect of the client.
func (g *Gateway) fillInBackground(id string, call *coalesce.Call, s *spool.Spool) {
	g.Background.running.Go(func() {
		defer context.AfterFunc(g.Background.ctx, call.Close)()
		defer func() {
			if p := recover(); p != nil { // net/http recovers only panics of handlers
				g.Log.Error("panic while reading a response", "request", id, "panic", p, "stack", string(debug.Stack()))
				s.Fail(errPanic)
				call.Finish(coalesce.Ending{Result: coalesce.Private})
			}
		}()
		s.Fill()
	})
}

// streamedResponse returns the response of a call in progress whose body the followers read while it arrives, or nil if the
// client may not use it.
func (g *Gateway) streamedResponse(a *attempt, c *coalesce.Call) *http.Response {
	stream := c.Stream()
	if !g.mayUseShared(a, stream.Response) {
		c.Leave()
		return nil
	}
	resp := g.entryResponse(a, stream.Response, time.Now())
	if resp.StatusCode == http.StatusNotModified {
		c.Leave()
		return resp
	}
	resp.Header.Del("Content-Length")
	var coding *contentcoding.Coding
	if resp.ContentLength = stream.Length; a.identityAsked {
		coding = a.selectCoding(resp.StatusCode, resp.Header, stream.Length)
	}
	if coding != nil {
		resp.ContentLength = -1
	} else if stream.Length >= 0 {
		resp.Header.Set("Content-Length", strconv.FormatInt(stream.Length, 10))
	}
	resp.Body = stream.Open(coding, c.Leave)
	return resp
}
