package proxy

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/proxy/coalesce"
)

// attempt is one try at a question: the stored responses that may answer it, and the request upstream with its repetitions. An
// attempt ends with its result and a response or an error. Only the goroutine of the exchange changes the attempt.
type attempt struct {
	*exchange
	*question
	result result
	// ctx is the context of the requests upstream. It ends when the client disconnects, unless other clients wait for the response.
	ctx context.Context
	storedResponses
	sentConditions
	began cache.Fetch // of the last request
	// hasAlternative is set if another credential of the client can be tried, or if an earlier credential was
	// rate-limited or got a hidden response.
	hasAlternative bool
	// identityAsked is set if the request asks the upstream for the identity form of the response.
	identityAsked bool
	// credentialBy is the end of the wait for a held credential; zero before the wait. sentCredential is the held credential of
	// the request in progress, otherwise it is nil.
	credentialBy   time.Time
	sentCredential SentCredential
	// unclear is set if the last response may be one to a token that the upstream does not know yet, and the client cannot
	// wait for a repetition.
	unclear    bool
	call       *coalesce.Call    // call that this attempt leads; nil without a call
	polls      int               // number of 202 responses to polled statistics
	sent       time.Time         // start of the last request
	reused     bool              // the last request used an existing connection
	limitError limits.LimitError // of the last response; further responses may have to confirm it
	lateLimit  *lateLimit        // recognizes a limit error at the end of a long body; usually nil
}

// result is the part of a [Record] that depends on the attempt. The record gets the result of the attempt whose response the
// client gets.
type result struct {
	account, resource string
	cache             CacheStatus
	err               string
	// limited is the limit error of the last response, and limitAnswer the row that recognized it.
	limited      limits.LimitKind
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
	// uncacheable is set if the last response to the question could not be stored. skipShared is set if look-ups omit
	// the shared tier.
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

// try returns a new attempt at a question.
func (g *Gateway) try(ex *exchange, q *question) *attempt {
	return &attempt{
		exchange: ex, question: q, ctx: ex.in.Context(), identityAsked: q.key != cache.Key{},
		result: result{account: q.identity.Caller.Account, resource: q.resource},
	}
}

// outbound returns the header of the request upstream, without the credential and the conditions.
func (a *attempt) outbound() http.Header {
	h := maps.Clone(a.header)
	if !a.identityAsked && len(a.acceptEncoding) > 0 {
		h["Accept-Encoding"] = a.acceptEncoding
	}
	return h
}

// chooseByBudget chooses the credential again before a request is forwarded, with regard to budgets. It returns the attempt with
// that credential.
func (g *Gateway) chooseByBudget(a *attempt) *attempt {
	if a.identity.Pick == nil {
		return a
	}
	identity, ok := a.identity.Pick(g.budgetedRequest(a.question, nil))
	if !ok || identity.Caller.Class == a.identity.Caller.Class {
		return a
	}
	return g.try(a.exchange, g.withCredential(a.exchange, a.question, identity))
}

// tried is an attempt with its response or its error.
type tried struct {
	*attempt
	resp    *http.Response // nil with an error
	err     error
	refusal *limits.Refusal // set if the limiter refused a permit
}

// newTried returns an attempt with its response or its error.
func newTried(a *attempt, resp *http.Response, err error) tried {
	t := tried{attempt: a, resp: resp, err: err}
	_ = errors.As(err, &t.refusal) // stays nil for other errors
	return t
}

// verdict classifies an attempt with one of several credentials: final, or the reason to try another credential.
type verdict int

const (
	verdictFinal    verdict = iota
	verdictLimited          // the credential is at a limit
	verdictHidden           // the credential may lack access: 403 or 404
	verdictRejected         // the upstream does not accept the credential
)

// earlierAttempts contains the attempts that are not final.
type earlierAttempts struct {
	classes         []string // security classes of the credentials that were tried
	limited, hidden []tried
	// rejected is set after the upstream has rejected a credential. A second rejection is final.
	rejected bool
}

// answerWithAny gets the response with a credential of the client, starting with the chosen credential. Each credential
// is tried once. The credential with the earliest end of its limit is then tried again, as long as the client waits.
// The returned attempt is the one whose response or error the client gets.
//
// An unsafe request is repeated only if the request was not sent, or has no body and got 401.
func (g *Gateway) answerWithAny(a *attempt, out *http.Request) (*attempt, *http.Response, error) {
	pick := a.identity.Pick
	if pick == nil || a.record.Background {
		resp, err := g.answer(a, out)
		return a, resp, err
	}
	var before earlierAttempts
	for {
		t := g.tryCredential(a, out, &before)
		v := t.verdict(before.rejected)
		if v == verdictFinal {
			return before.use(t)
		}
		before.add(t, v)
		request := g.budgetedRequest(a.question, before.classes)
		request.Limited = v == verdictLimited
		next, ok := pick(request)
		if v == verdictRejected && t.resp != nil && (ok || len(before.limited)+len(before.hidden) > 0) {
			discard(t.resp.Body)
		}
		if !ok {
			return g.lastAttempt(t, out, before)
		}
		a = g.try(a.exchange, g.withCredential(a.exchange, a.question, next))
	}
}

// tryCredential makes one attempt with the credential of its question.
func (g *Gateway) tryCredential(a *attempt, out *http.Request, before *earlierAttempts) tried {
	first := len(before.classes) == 0
	before.classes = append(before.classes, a.identity.Caller.Class)
	_, more := a.identity.Pick(a.credentialRequest(before.classes))
	a.hasAlternative = more || len(before.limited) > 0 || len(before.hidden) > 0
	var resp *http.Response
	var err error
	switch {
	case !first:
		resp, err = g.answerAgain(a, out) //nolint:bodyclose // answerWithAny returns or discards the response
	case a.hidden != nil:
		resp = g.useHit(a, a.hidden) //nolint:bodyclose // as above
	default:
		resp, err = g.answer(a, out) //nolint:bodyclose // as above
	}
	return newTried(a, resp, err)
}

// answerAgain gets the response with another credential, from the cache or from the upstream.
func (g *Gateway) answerAgain(a *attempt, out *http.Request) (*http.Response, error) {
	if e := g.usableEntry(a); e != nil {
		return g.useHit(a, e), nil
	}
	out = out.Clone(a.ctx)
	out.Header = a.outbound()
	return g.answer(a, out)
}

// useHit returns a stored response as the result of an attempt.
func (g *Gateway) useHit(a *attempt, e *cache.Entry) *http.Response {
	now := time.Now()
	a.result.cache = hitOf(e, now)
	return g.entryResponse(a, e, now)
}

// mayBeHidden reports whether another credential of the client may have access to a resource after this credential got
// status.
func (q *question) mayBeHidden(status int) bool {
	return q.identity.Pick != nil && (status == http.StatusForbidden || status == http.StatusNotFound) &&
		q.match.Operation.Safe() && !q.match.Operation.Personal
}

func (t tried) verdict(rejectedBefore bool) verdict {
	safe := t.match.Operation.Safe()
	var unusable *UnusableError
	switch {
	case errors.As(t.err, &unusable):
		return verdictRejected
	case t.refusal != nil && t.hasAlternative:
		return verdictLimited
	case t.err != nil:
		return verdictFinal
	case t.result.limited != limits.NotLimited:
		if safe && t.hasAlternative {
			return verdictLimited
		}
	case t.resp.StatusCode == http.StatusUnauthorized:
		if (safe || t.in.ContentLength == 0) && !rejectedBefore {
			return verdictRejected
		}
	case t.mayBeHidden(t.resp.StatusCode):
		return verdictHidden
	}
	return verdictFinal
}

// add records an attempt. The first hidden response is kept, and other responses are discarded.
func (f *earlierAttempts) add(t tried, v verdict) {
	switch v {
	case verdictLimited:
		f.limited = append(f.limited, t)
		if t.resp != nil {
			discard(t.resp.Body)
		}
	case verdictHidden:
		if len(f.hidden) == 0 {
			holdBack(t.resp)
		} else {
			discard(t.resp.Body)
		}
		f.hidden = append(f.hidden, t)
	case verdictRejected:
		f.rejected = f.rejected || t.resp != nil
	}
}

// holdBack buffers a response, so that its concurrency slot is released while other credentials are tried. The end of a
// response over maxHeldBack is lost if the upstream closes the connection.
func holdBack(resp *http.Response) {
	_, _ = peek(resp, maxHeldBack) // an error follows the body again
}

// use returns an attempt for the client. A success shows that the credentials with a hidden response lack access. The first
// hidden response replaces an error, unless a credential is at a limit.
func (f *earlierAttempts) use(t tried) (*attempt, *http.Response, error) {
	success := t.err == nil && t.resp.StatusCode < http.StatusBadRequest
	hidden := f.hidden
	if !success && len(hidden) > 0 && len(f.limited) == 0 {
		if t.resp != nil {
			discard(t.resp.Body)
		}
		t, hidden = hidden[0], hidden[1:]
	}
	for _, h := range hidden {
		if success {
			h.reportHidden(f.classes, true)
		}
		discard(h.resp.Body)
	}
	return t.attempt, t.resp, t.err
}

// lastAttempt returns the attempt for the client after no credential had a final response. If a credential was rate-limited,
// it is tried again, because only this credential may be able to see the resource.
func (g *Gateway) lastAttempt(last tried, out *http.Request, before earlierAttempts) (*attempt, *http.Response, error) {
	if len(before.limited) > 0 {
		q := soonest(before.limited).question
		a := g.try(last.exchange, g.withCredential(last.exchange, q, q.identity)) // the upstream may have named another resource
		resp, err := g.answerAgain(a, out)
		return before.use(newTried(a, resp, err))
	}
	for _, h := range before.hidden {
		h.reportHidden(before.classes, false)
	}
	if len(before.hidden) > 0 {
		last = before.hidden[0]
	}
	return last.attempt, last.resp, last.err
}

// reportHidden reports that the credential of an attempt got 403 or 404. visible means that another credential of the client
// got a better response.
func (t tried) reportHidden(classes []string, visible bool) {
	if !t.unclear {
		t.identity.OnHidden(t.credentialRequest(classes), t.resp.StatusCode, visible)
	}
}

// soonest returns the attempt whose limit ends first, as far as known.
func soonest(list []tried) tried {
	best := list[0]
	for _, t := range list[1:] {
		if t.refusal != nil && (best.refusal == nil || t.refusal.Until.Before(best.refusal.Until)) {
			best = t
		}
	}
	return best
}
