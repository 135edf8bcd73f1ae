package proxy

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/caller"
	"github.com/weirgate/weir/proxy/coalesce"
	"github.com/weirgate/weir/proxy/record"
	"github.com/weirgate/weir/proxy/refusal"
)

// attempt is the work on a question: the stored responses that may answer it, and the requests upstream. The requests of an
// attempt have one credential. An attempt ends with its result and a response or an error. Only the goroutine of the exchange
// changes the attempt.
type attempt struct {
	*exchange
	*question // of this attempt; that of the exchange may be another one until publish
	result    result
	// ctx is the context of the requests upstream. It ends when the client disconnects, unless other clients or the
	// circuit breaker wait for the response.
	ctx context.Context
	storedResponses
	sentConditions
	began cache.Fetch // of the last request
	// hasAlternative is set if another credential of the client can be tried, or if an earlier credential was
	// rate-limited or got a hidden response.
	hasAlternative bool
	// identityAsked is set if the request asks the upstream for the identity form of the response.
	identityAsked bool
	credentialProgress
	call        *coalesce.Call    // call that this attempt leads; nil without a call
	followed    int               // calls without a usable result
	polls       int               // number of 202 responses to polled statistics
	requestedAt time.Time         // start of the last request
	reused      bool              // the last request used an existing connection
	limitError  policy.LimitError // of the last response; further responses may have to confirm it
	lateLimit   *lateLimit        // recognizes a limit error at the end of a long body; usually nil
}

// credentialProgress is the use of a held credential by the requests of an attempt.
type credentialProgress struct {
	// credentialBy is the end of the wait for a held credential; zero before the wait. sentCredential is the held credential of
	// the request in progress, otherwise it is nil.
	credentialBy   time.Time
	sentCredential caller.SentCredential
	// unclear is set if the last response may be one to a token that the upstream does not know yet, and the client cannot
	// wait for a repetition.
	unclear bool
	// lacksPermission is set if the last response denied a permission. denied is set if the request was repeated for this reason.
	lacksPermission, denied bool
}

// result is the part of a [record.Record] that depends on the attempt. The record gets the result of the attempt whose response the
// client gets.
type result struct {
	account, resource string
	cache             record.CacheStatus
	err               string
	// limited is the limit error of the last response, and limitAnswer the row that recognized it.
	limited      policy.LimitKind
	limitAnswer  string
	outsideRange string
}

// storedResponses are the stored responses to the question of an attempt.
type storedResponses struct {
	// last is the stored response that cannot be used without an upstream request. stale is the same response, if it can
	// be revalidated, so it is no error. fallback is the same response, if clients may get it when the upstream fails.
	last, stale, fallback *cache.Entry
	// hidden is a stored 403 or 404 while another credential of the client may have access.
	hidden *cache.Entry
	// current is set if the stored response is used because webhooks report its changes.
	current bool
	// uncacheable is set if the last response to the question could not be stored. skipShared is set if the next one
	// probably cannot either: the shared tier and proofs of access are omitted, and the upstream selects the coding.
	uncacheable, skipShared bool
}

// sentConditions are the conditions of the request upstream.
type sentConditions struct {
	// candidates are the stored responses whose validators are sent upstream. conditional is set if the request has
	// conditions for stored responses. unconditional is set if the upstream confirmed no candidate and the request is
	// repeated.
	candidates                 []candidate
	conditional, unconditional bool
}

// newAttempt returns a new attempt at a question.
func (g *Gateway) newAttempt(ex *exchange, q *question) *attempt {
	return &attempt{
		exchange: ex, question: q, ctx: ex.in.Context(), identityAsked: q.key != cache.Key{} || q.graphQL != nil,
		result: result{account: q.caller.Account, resource: q.resource},
	}
}

// answerFromCache writes a usable stored response, or the refusal for only-if-cached, and reports whether a response
// was written. A stale response stays in the attempt for revalidation, and a stored 403 or 404
// while another credential may have access.
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

// answerRange writes a range of a fresh stored response (RFC 9110 section 14), and reports whether a response was
// written. The stored response is complete, or a part that contains the range. Other range requests are forwarded.
func (g *Gateway) answerRange(a *attempt) bool {
	if !strings.HasPrefix(a.in.Header.Get("Range"), "bytes=") {
		return false // the upstream may support other units
	}
	if g.hasLostAccess(a) {
		return false
	}
	e, purged := g.Cache.Lookup(a.in.Context(), a.key, a.Header)
	now := time.Now()
	if a.isHit(e, purged, now) && e.Status == http.StatusOK && e.Packed == nil {
		g.replyFromEntry(a, e, now)
		return true
	}
	if e != nil || len(a.in.Header["If-Range"]) > 0 || !isUnconditional(a.in.Header) {
		return false // a complete response may be newer than the part, and only the upstream evaluates conditions
	}
	e, purged = g.Cache.Lookup(a.in.Context(), partKey(a.key), a.Header)
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

// usableEntry returns the stored response that the client may get without an upstream request. Otherwise usableEntry
// records the reason for the upstream request, and the stored response in the attempt. A stored error is never revalidated, because
// the upstream may confirm it although the object exists now. It is not served stale, either.
func (g *Gateway) usableEntry(a *attempt) *cache.Entry {
	if !a.cacheable {
		a.result.cache = record.CacheStatus{Forward: a.bypass()}
		return nil
	}
	now := time.Now()
	e, purged := g.lookup(a, now)
	a.result.cache = record.CacheStatus{Forward: record.ForwardStale}
	switch {
	case a.current, a.isHit(e, purged, now):
		return e
	case e == nil:
		a.result.cache.Forward = record.ForwardMiss
		return nil
	case purged:
		if e.Suspect != "" {
			a.result.cache.Detail = record.DetailWasSuspect + string(e.Suspect)
		}
	case a.mustRevalidate(e, now):
		a.result.cache.Forward = record.ForwardRequest
	case e.Status >= http.StatusBadRequest:
	case !e.NeverStale(a.rule) && e.AllowedByMaxStale(now, a.cacheControl):
		return e
	case !e.NeverStale(a.rule) && !a.isShortened(e) && e.UsableWhileRevalidating(now) && g.refresh(a):
		return e
	case !e.NeverStale(a.rule):
		a.fallback = e
	}
	if a.last = e; e.Status < http.StatusBadRequest {
		a.stale = e
	}
	return nil
}

// bypass returns the Cache-Status reason for a request without the cache (RFC 9211 section 2.2).
func (a *attempt) bypass() record.ForwardReason {
	switch {
	case a.method != http.MethodGet && a.method != http.MethodHead:
		return record.ForwardMethod
	case a.cacheControl.Has("no-store"):
		return record.ForwardRequest
	}
	return record.ForwardBypass
}

// lookup returns the stored response to the question, and sets current. If the question is known to have uncacheable responses,
// lookup reads only the memory tier, unless the client sends Cache-Control. If the upstream has refused the credential, all its
// responses are stale, also those that another replica or an earlier process has stored.
func (g *Gateway) lookup(a *attempt, now time.Time) (e *cache.Entry, purged bool) {
	e, purged = g.Cache.Memory.Lookup(a.key, a.Header)
	a.current = g.isCurrent(a, e, purged, now)
	if !a.current && (e == nil || purged || !e.Fresh(now)) {
		a.uncacheable, a.skipShared = g.Cache.Uncacheable(a.predicts, a.key)
		if a.skipShared = a.skipShared && len(a.cacheControl) == 0; !a.skipShared && g.Cache.IsShared() {
			e, purged = g.Cache.LookupShared(a.in.Context(), a.key, a.Header, e, purged)
			a.current = g.isCurrent(a, e, purged, now)
		}
		if e != nil {
			g.Cache.MarkCacheable(a.predicts, a.key)
			a.uncacheable, a.skipShared = false, false
		}
	}
	switch {
	case e != nil:
		if g.hasLostAccess(a) {
			purged, a.current = true, false
		}
	case a.uncacheable || a.skipShared:
		a.passCoding()
	}
	return e, purged
}

// mayBeHidden reports whether another credential of the client may have access to a resource after this credential got
// status.
func (q *question) mayBeHidden(status int) bool {
	return q.identity.Pool != nil && (status == http.StatusForbidden || status == http.StatusNotFound) &&
		q.match.Operation.Safe() && !q.match.Operation.Personal
}

// hasLostAccess reports whether the upstream refused the credential in its last response. Anonymous requests and reference data
// have no access to lose.
func (g *Gateway) hasLostAccess(a *attempt) bool {
	return a.dependsOnAccess() && g.tokens.HasLostAccess(a.caller.Class)
}

// dependsOnAccess reports whether the responses to the question depend on the access of a credential.
func (q *question) dependsOnAccess() bool { return q.tagged().DependsOnAccess() }

// passCoding lets the upstream select the content coding of a response that will probably not be stored.
func (a *attempt) passCoding() {
	if len(a.acceptEncoding) > 0 && a.graphQL == nil {
		a.identityAsked = false
	}
}

// isCurrent reports whether a look-up answers the question because webhooks report changes, although the lifetime of the
// response has ended. RFC 9111 section 4.2.4 permits this by configuration. The response must have a lifetime,
// must not be suspect and must not require revalidation, and the client's Cache-Control must allow the response. A response
// about an unfinished state, or of an operation with a longest lifetime, is never current.
func (g *Gateway) isCurrent(a *attempt, e *cache.Entry, purged bool, now time.Time) bool {
	return e != nil && !purged && !e.Fresh(now) && e.Age(now) < g.WebhookFresh && e.Status == http.StatusOK && e.Lifetime > 0 &&
		e.Suspect == "" && !e.NeverStale(a.rule) && !a.mustRevalidate(e, now) && !a.isShortened(e) && g.reported(a.question, e)
}

// isShortened reports whether the gateway may have shortened the lifetime of a stored response.
func (q *question) isShortened(e *cache.Entry) bool {
	return q.match.Operation.Cache.MaxTTL > 0 || slices.Contains(e.Tags, unfinishedTag)
}

// reported reports whether webhooks report the changes of a stored response, and have done so since its fetch.
func (g *Gateway) reported(q *question, e *cache.Entry) bool {
	objects, events := g.eventSource(q)
	return len(objects) > 0 && g.Cache.Covered(objects, events, e.Since)
}

// eventSource returns the objects whose webhooks report the changes of the response to the question, and the events that
// report them. The first object is the subject of the response. The objects are empty if no webhook reports the changes.
func (g *Gateway) eventSource(q *question) (objects, events []string) {
	events = g.Catalogue.DecidedBy(q.match.Operation)
	at := q.match.Collection()
	if len(events) == 0 || q.match.Operation.Cache.Class != policy.PerCaller {
		return nil, nil
	}
	objects = []string{at.Root + ":" + at.Name}
	if organization, _, ok := strings.Cut(at.Name, "/"); ok {
		objects = append(objects, "org:"+organization)
	}
	return objects, events
}

// isHit reports whether a look-up answers the question without an upstream request. The entry must be fresh and not
// purged, and the client's Cache-Control must allow the entry.
func (a *attempt) isHit(e *cache.Entry, purged bool, now time.Time) bool {
	return e != nil && !purged && e.Fresh(now) && !a.mustRevalidate(e, now)
}

// mustRevalidate reports whether the client's Cache-Control or Pragma excludes a fresh stored response (RFC 9111
// section 5.2.1).
func (a *attempt) mustRevalidate(e *cache.Entry, now time.Time) bool {
	if a.cacheControl.Has("no-cache") || len(a.cacheControl) == 0 && cache.ParseDirectives(a.in.Header["Pragma"]).Has("no-cache") {
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

// refuseUncached refuses a safe request with only-if-cached (RFC 9111 section 5.2.1.7) that the cache cannot answer,
// and reports whether the request was refused.
func (g *Gateway) refuseUncached(a *attempt) bool {
	if !a.cacheControl.Has("only-if-cached") || !a.match.Operation.Safe() {
		return false
	}
	g.refuse(a.exchange, &refusal.Error{Status: http.StatusGatewayTimeout, Message: "Gateway Timeout: not in the cache", Detail: "only-if-cached"})
	return true
}
