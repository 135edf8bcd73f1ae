package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// Identity is the caller of a request, with the functions for the caller's upstream credential.
type Identity struct {
	Caller policy.Caller
	// FormerAccount is an earlier name of the caller's account, or empty. The ledger merges both accounts.
	FormerAccount string
	// Authorize sets the client's credential on a request to the upstream. If both Authorize and Credential are nil, no
	// credential is sent.
	Authorize func(context.Context, http.Header) error
	// Held marks a credential that the gateway holds. Otherwise the client sent its own credential, which only the
	// upstream can verify.
	Held bool
	// Credential is the credential that the gateway holds, otherwise nil.
	Credential HeldCredential
	// Scope selects the requests that the client may send; nil permits all requests.
	Scope *policy.Scope
	// Lent is the identity for the reads of public data by an anonymous client that its Scope allows; nil lends no
	// credential. If LentOnly is set, all other requests of the client are refused with ErrUnauthenticated.
	Lent     *Identity
	LentOnly bool
	// Debug permits the request field Weir-Debug.
	Debug bool
	// Tag is the tag that the client's token contains. If TagFromClaim is set, Tag applies instead of the request field
	// Weir-Tag, which the client can choose freely.
	Tag          string
	TagFromClaim bool
	// Pick chooses a credential of the client for a question. The result is false if all suitable credentials have been
	// tried. Pick is nil if the client has only one credential.
	Pick func(CredentialRequest) (Identity, bool)
	// OnHidden is called after the credential got 403 or 404. visible means that another credential of the client got a
	// better response. OnHidden is set if Pick is set.
	OnHidden func(r CredentialRequest, status int, visible bool)
}

// HeldCredential is a credential that the gateway holds. The upstream may not accept its token yet, or not any more. One
// request at a time then tests the token.
type HeldCredential interface {
	// Await blocks until the credential can be sent, or until a time. The error is an [UnusableError] or the error of the
	// context.
	Await(ctx context.Context, by time.Time, use CredentialUse) error
	// Authorize sets the credential on a request that is sent now. [SentCredential.End] must be called after the request.
	// The error is an [UnusableError] or [ErrCredentialBusy].
	Authorize(http.Header, CredentialUse) (SentCredential, error)
}

// SentCredential is a held credential in a request that was sent.
type SentCredential interface {
	// IsUnproven reports whether the upstream may not have known the credential when the request was sent.
	IsUnproven() bool
	// End records the response, with status 0 if the request got none. If End returns true, the response shows nothing about
	// the request, which should be repeated.
	End(op *policy.Operation, status int, limited bool) (repeat bool)
}

// CredentialUse describes the request for which a credential is used. Safe means that the request may be repeated after any
// response, and Repeatable that it may be repeated after a 401.
type CredentialUse struct{ Safe, Repeatable bool }

// ErrCredentialBusy means that another request tests the credential, so the credential must be awaited again.
var ErrCredentialBusy = errors.New("the credential must be awaited")

// CredentialRequest describes the question for which a credential is chosen.
type CredentialRequest struct {
	Operation *policy.Operation
	// Resource is the rate limit resource that the question counts against.
	Resource string
	// Path is the path of the question. Target is the part of Path that names a repository, an organization or similar.
	Path, Target string
	// Left returns the remaining budget of a caller's account for the resource. Left is nil if the choice must not
	// depend on budgets.
	Left func(policy.Caller) (remaining int, known bool)
	// Except lists the security classes of the credentials that were tried. Limited is set if the latest of these
	// credentials is at a limit.
	Except  []string
	Limited bool
}

// These errors are returned by Config.Identify.
var (
	// ErrUnauthenticated refuses a request with a missing or unknown credential.
	ErrUnauthenticated = errors.New("requires authentication")
	// ErrIdentityUnavailable refuses a request whose credential cannot be verified because the identity provider does
	// not respond.
	ErrIdentityUnavailable = errors.New("identity provider unavailable")
)

// UnusableError means that a credential cannot be sent before Until.
type UnusableError struct {
	Until time.Time
	Cause error // reason in the log
}

func (u *UnusableError) Error() string { return fmt.Sprintf("no usable credential: %v", u.Cause) }

func (u *UnusableError) Unwrap() error { return u.Cause }

const (
	// minTokenWait is the minimum wait for a held credential, even if the client waits less.
	minTokenWait = 2 * time.Second
	// minTokenPause is the time that a client must still wait for the repetition of a request that got 403 or 404.
	minTokenPause = 500 * time.Millisecond
	// alternativeWait is the maximum wait for a permit while another credential can be tried. Short congestion usually
	// ends earlier.
	alternativeWait = 200 * time.Millisecond
	// maxHeldBack bounds the part of a response that is buffered while other credentials are tried.
	maxHeldBack = 256 << 10
)

func (g *Gateway) credentialRequest(ex *exchange) CredentialRequest {
	return CredentialRequest{
		Operation: ex.match.Operation, Resource: ex.resource,
		Path: ex.match.Path, Target: targetOf(ex.match.Path), Except: ex.tried,
	}
}

// budgetedRequest returns a credential request with Left set, so that the choice may depend on budgets.
func (g *Gateway) budgetedRequest(ex *exchange) CredentialRequest {
	r := g.credentialRequest(ex)
	r.Left = func(caller policy.Caller) (int, bool) {
		caller.Tag = g.Limiter.TagBudget(caller, ex.tag)
		b, _ := g.Ledger.Budget(caller, ex.resource)
		return b.Remaining - b.Held, !b.Unlimited
	}
	return r
}

// targetOf returns the part of a path that names a repository, an organization or similar, in lower case. Without such
// a part it returns the whole path.
func targetOf(path string) string {
	segments := strings.SplitN(strings.ToLower(path), "/", 5)
	names := map[string]int{"repos": 2, "repositories": 1, "orgs": 1, "organizations": 1, "users": 1, "teams": 1}[segments[1]]
	if names == 0 || len(segments) < names+2 {
		return strings.ToLower(path)
	}
	return strings.Join(segments[:names+2], "/")
}

// lend gives an anonymous request the lent credential if it reads public data ([policy.Operation.Public]).
func (g *Gateway) lend(ex *exchange) error {
	lent, op := ex.identity.Lent, ex.match.Operation
	switch {
	case lent != nil && op.Public() && lent.Scope.Allows(ex.method, op):
		ex.identity = *lent
		ex.record.Client = lent.Caller.Client
	case ex.identity.LentOnly:
		return ErrUnauthenticated
	}
	return nil
}

// pickCredential chooses a credential without regard to budgets, because a hit needs no budget.
func (g *Gateway) pickCredential(ex *exchange) {
	identity := ex.identity
	if identity.Pick != nil {
		if picked, ok := identity.Pick(g.credentialRequest(ex)); ok {
			identity = picked
		}
	}
	g.useCredential(ex, identity)
}

// pickByBudget chooses the credential again before a request is forwarded, with regard to budgets, and reports whether
// the credential changed.
func (g *Gateway) pickByBudget(ex *exchange) bool {
	if ex.identity.Pick == nil {
		return false
	}
	identity, ok := ex.identity.Pick(g.budgetedRequest(ex))
	if !ok || identity.Caller.Class == ex.identity.Caller.Class {
		return false
	}
	g.useCredential(ex, identity)
	return true
}

// useCredential makes the exchange use a credential, and sets the header and the cache key. The key contains the
// security class of the credential, so the results of earlier look-ups are cleared.
func (g *Gateway) useCredential(ex *exchange, identity Identity) {
	ex.identity = identity
	ex.identity.Caller.Tag = g.Limiter.TagBudget(identity.Caller, ex.tag)
	ex.record.Account = identity.Caller.Account
	ex.resource = g.Resources.of(ex.claimScope, identity.Caller.Kind, ex.match.Operation.Resource)
	ex.record.Resource = ex.resource
	ex.stale, ex.fallback, ex.hidden = nil, nil, nil
	ex.cacheable, ex.ranged = false, false
	ex.header = http.Header{} // a background task may still read the old header
	g.outbound(ex.header, ex.in.Header, ex.match.Operation.Known())
	if ex.method == http.MethodGet || ex.method == http.MethodHead {
		for _, name := range contentFields {
			delete(ex.header, name)
		}
	}
	g.setKey(ex)
}

// credentialUse returns how the request uses a held credential.
func (ex *exchange) credentialUse() CredentialUse {
	repeatable := !ex.forwardsBody() || ex.wholeBody && len(ex.in.Trailer) == 0
	query := ex.graphQL != nil && ex.graphQL.Kind == policy.GraphQLQuery
	return CredentialUse{Safe: repeatable && (ex.match.Operation.Safe() || query), Repeatable: repeatable}
}

// awaitCredential waits until the credential can be sent, before a permit is requested.
func (g *Gateway) awaitCredential(ex *exchange, ctx context.Context) error {
	if ex.identity.Credential == nil {
		return nil
	}
	began := time.Now()
	if ex.credentialBy.IsZero() {
		ex.credentialBy = ex.deadline(g.Wait)
		if soon := began.Add(minTokenWait); ex.credentialBy.Before(soon) {
			ex.credentialBy = soon
		}
	}
	err := ex.identity.Credential.Await(ctx, ex.credentialBy, ex.credentialUse())
	ex.record.Waited += time.Since(began)
	return err
}

// setCredential sets the credential on a request that has a permit.
func (ex *exchange) setCredential(out *http.Request) (err error) {
	switch {
	case ex.identity.Credential != nil:
		ex.sentCredential, err = ex.identity.Credential.Authorize(out.Header, ex.credentialUse())
	case ex.identity.Authorize != nil:
		err = ex.identity.Authorize(out.Context(), out.Header)
	}
	return err
}

// endCredentialUse records the response to a request with a held credential, and reports whether the request is repeated. The
// repetition then waits for the credential. resp is nil for a request without a response.
func (ex *exchange) endCredentialUse(out *http.Request, resp *http.Response, o limits.Outcome) (repeat bool) {
	sent, status := ex.sentCredential, 0
	if resp != nil {
		status = resp.StatusCode
	}
	if ex.sentCredential = nil; sent == nil {
		return false
	}
	if ex.unclear = sent.End(ex.match.Operation, status, o.Limited != limits.NotLimited); !ex.unclear {
		return false
	}
	use := ex.credentialUse()
	switch {
	case !use.Repeatable, out.Context().Err() != nil:
		return false
	case status != http.StatusUnauthorized && !time.Now().Add(minTokenPause).Before(ex.credentialBy):
		return false // the response may concern the request
	}
	if ex.forwardsBody() {
		out.Body = io.NopCloser(bytes.NewReader(ex.buffered.data))
	}
	return true
}

// credentialResult is the result of the question with one credential. The result has a copy of the exchange, because
// the cache key contains the security class of the credential.
type credentialResult struct {
	ex      *exchange
	resp    *http.Response // nil with an error
	err     error
	refusal *limits.Refusal // set if the limiter refused a permit
}

// verdict classifies a credential's result: final, or the reason to try another credential.
type verdict int

const (
	verdictFinal    verdict = iota
	verdictLimited          // the credential is at a limit
	verdictHidden           // the credential may lack access: 403 or 404
	verdictRejected         // the upstream does not accept the credential
)

// earlierResults contains the results that are not final.
type earlierResults struct {
	limited, hidden []credentialResult
	// sent is set after the upstream has rejected a credential. A second rejection is final.
	sent bool
}

// answerWithAny gets the response with a credential of the client, starting with the chosen credential. Each credential
// is tried once. The credential with the earliest end of its limit is then tried again, as long as the client waits.
//
// An unsafe request is repeated only if the request was not sent, or has no body and got 401.
func (g *Gateway) answerWithAny(ex *exchange, out *http.Request) (*http.Response, error) {
	if ex.identity.Pick == nil || ex.record.Background {
		return g.answer(ex, out)
	}
	var before earlierResults
	identity := ex.identity
	for {
		a := g.tryCredential(ex, out, identity, &before)
		v := a.verdict(before.sent)
		if v == verdictFinal {
			return g.useResult(ex, a, before)
		}
		before.add(a, v)
		request := g.budgetedRequest(ex)
		request.Limited = v == verdictLimited
		next, ok := ex.identity.Pick(request)
		if v == verdictRejected && a.resp != nil && (ok || len(before.limited)+len(before.hidden) > 0) {
			discard(a.resp.Body)
		}
		if !ok {
			return g.lastResult(ex, out, a, before)
		}
		identity = next
	}
}

// add records a result. The first hidden response is kept, and other responses are discarded.
func (f *earlierResults) add(a credentialResult, v verdict) {
	switch v {
	case verdictLimited:
		f.limited = append(f.limited, a)
		if a.resp != nil {
			discard(a.resp.Body)
		}
	case verdictHidden:
		if len(f.hidden) == 0 {
			holdBack(a.resp)
		} else {
			discard(a.resp.Body)
		}
		f.hidden = append(f.hidden, a)
	case verdictRejected:
		f.sent = f.sent || a.resp != nil
	}
}

// holdBack buffers a response, so that its concurrency slot is released while other credentials are tried. The end of a
// response over maxHeldBack is lost if the upstream closes the connection.
func holdBack(resp *http.Response) {
	_, _ = peek(resp, maxHeldBack) // an error follows the body again
}

// tryCredential sends the question with one credential, in a copy of the exchange. The client's exchange records the
// tried credentials and the costs.
func (g *Gateway) tryCredential(ex *exchange, out *http.Request, identity Identity, before *earlierResults) credentialResult {
	first := len(ex.tried) == 0
	ex.tried = append(ex.tried, identity.Caller.Class)
	_, more := ex.identity.Pick(g.credentialRequest(ex))
	own := *ex
	own.hasAlternative = more || len(before.limited) > 0 || len(before.hidden) > 0
	a := credentialResult{ex: &own}
	switch {
	case first && own.hidden != nil:
		a.resp = g.useHit(&own, own.hidden) //nolint:bodyclose // answerWithAny returns or discards the response
	case first:
		a.resp, a.err = g.answer(&own, out) //nolint:bodyclose // as above
	default:
		a.resp, a.err = g.answerWith(&own, out.Clone(out.Context()), identity) //nolint:bodyclose // as above
	}
	ex.record.copyProgress(&own.record)
	_ = errors.As(a.err, &a.refusal) // stays nil for other errors
	return a
}

// answerWith gets the response with another credential, from the cache or from the upstream.
func (g *Gateway) answerWith(ex *exchange, out *http.Request, identity Identity) (*http.Response, error) {
	g.useCredential(ex, identity)
	out.Header = ex.header.Clone()
	if e := g.usableEntry(ex); e != nil {
		return g.useHit(ex, e), nil
	}
	return g.answer(ex, out)
}

// useHit returns a stored response as the result of a credential.
func (g *Gateway) useHit(ex *exchange, e *cache.Entry) *http.Response {
	now := time.Now()
	ex.record.Cache = hitOf(e, now)
	return g.entryResponse(ex, e, now)
}

// mayBeHidden reports whether another credential of the client may have access to a resource after this credential got
// status.
func (ex *exchange) mayBeHidden(status int) bool {
	return ex.identity.Pick != nil && (status == http.StatusForbidden || status == http.StatusNotFound) &&
		ex.match.Operation.Safe() && !ex.match.Operation.Personal
}

func (a credentialResult) verdict(rejectedBefore bool) verdict {
	safe := a.ex.match.Operation.Safe()
	var unusable *UnusableError
	switch {
	case errors.As(a.err, &unusable):
		return verdictRejected
	case a.refusal != nil && a.ex.hasAlternative:
		return verdictLimited
	case a.err != nil:
		return verdictFinal
	case a.ex.limited != limits.NotLimited:
		if safe && a.ex.hasAlternative {
			return verdictLimited
		}
	case a.resp.StatusCode == http.StatusUnauthorized:
		if (safe || a.ex.in.ContentLength == 0) && !rejectedBefore {
			return verdictRejected
		}
	case a.ex.mayBeHidden(a.resp.StatusCode):
		return verdictHidden
	}
	return verdictFinal
}

// useResult returns a credential's result for the client. A success shows that the credentials with a hidden result
// lack access. The first hidden result replaces an error, unless a credential is at a limit.
func (g *Gateway) useResult(ex *exchange, a credentialResult, before earlierResults) (*http.Response, error) {
	success := a.err == nil && a.resp.StatusCode < http.StatusBadRequest
	if !success && len(before.hidden) > 0 && len(before.limited) == 0 {
		if a.resp != nil {
			discard(a.resp.Body)
		}
		a, before.hidden = before.hidden[0], before.hidden[1:]
	}
	for _, h := range before.hidden {
		if success && !h.ex.unclear {
			h.ex.identity.OnHidden(g.credentialRequest(h.ex), h.resp.StatusCode, true)
		}
		discard(h.resp.Body)
	}
	return ex.adopt(a)
}

// lastResult returns the response for the client after no credential had a final result. If a credential was
// rate-limited, lastResult tries that credential again.
func (g *Gateway) lastResult(
	ex *exchange, out *http.Request, last credentialResult, before earlierResults,
) (*http.Response, error) {
	if len(before.limited) > 0 {
		// Only the rate-limited credential may be able to see the resource.
		own := *ex
		resp, err := g.answerWith(&own, out.Clone(out.Context()), soonest(before.limited).ex.identity)
		ex.record.copyProgress(&own.record)
		return g.useResult(ex, credentialResult{ex: &own, resp: resp, err: err}, before)
	}
	if len(before.hidden) == 0 {
		return ex.adopt(last)
	}
	for _, h := range before.hidden {
		if !h.ex.unclear {
			h.ex.identity.OnHidden(g.credentialRequest(h.ex), h.resp.StatusCode, false)
		}
	}
	return ex.adopt(before.hidden[0])
}

// soonest returns the result whose limit ends first, as far as known.
func soonest(list []credentialResult) credentialResult {
	best := list[0]
	for _, a := range list[1:] {
		if a.refusal != nil && (best.refusal == nil || a.refusal.Until.Before(best.refusal.Until)) {
			best = a
		}
	}
	return best
}

// adopt copies a credential's result into the client's exchange.
func (ex *exchange) adopt(a credentialResult) (*http.Response, error) {
	progress := ex.record
	ex.question, ex.record, ex.lateLimit = a.ex.question, a.ex.record, a.ex.lateLimit
	ex.record.copyProgress(&progress)
	return a.resp, a.err
}
