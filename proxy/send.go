package proxy

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/bodies"
	"github.com/weirgate/weir/proxy/breaker"
	"github.com/weirgate/weir/proxy/caller"
	"github.com/weirgate/weir/proxy/fields"
	"github.com/weirgate/weir/proxy/learned"
	"github.com/weirgate/weir/proxy/record"
	"github.com/weirgate/weir/proxy/refusal"
	"github.com/weirgate/weir/proxy/tags"
	"github.com/weirgate/weir/proxy/wire"
)

// send sends a request until the response is final. The request is repeated in these cases:
//   - The connection broke before the response.
//   - The response is a limit error, and the client can wait for the end of the limit.
//   - The upstream does not accept a token of the gateway yet, or not any more.
//   - The upstream denies a permission that a new token of the gateway may have.
//   - The upstream still computes statistics (202), and the attempt is that of a background task.
//
// Each repetition needs a new permit.
func (g *Gateway) send(a *attempt, out *http.Request) (*http.Response, error) {
	caller, retries, prepared := *a.caller, 0, false
	endToken := func(int) {}
	defer func() { endToken(learned.NotSent) }() // has no effect after a request
	for {                                        // the client's deadline ends the repetition
		var err error
		if endToken, err = g.beginToken(a); err != nil {
			return nil, err
		}
		allowed, trial := g.breaker.Allow(caller.Account, time.Now())
		if !allowed {
			return nil, errUnreachable
		}
		p, err := g.makeReady(a, out, caller, !prepared)
		if err != nil {
			if trial {
				g.breaker.CancelTrial(caller.Account)
			}
			return nil, err
		}
		prepared = true
		if trial && !a.record.Background {
			// A disconnect of the client must not end the trial without a result.
			a.ctx = a.untilDrained()
		}
		a.requestedAt = time.Now()
		a.call.SetPaused(false)
		s := a.trace.Stage(a.ctx, record.StageRequest)
		p.sent = true
		resp, outcome, err := g.roundTrip(a, s.Propagate(out), *p.permit)
		s.EndRequest(resp, outcome.Limited, err)
		if err == nil {
			a.call.SetAnswered()
			outcome.Ended = bodies.HasEnded(resp)
		}
		if err == nil && !outcome.Ended { // the concurrency slot is released at the end of the body
			p.ReadCloser, p.left = resp.Body, resp.ContentLength
			resp.Body = p
		}
		a.count(outcome, p.settle(outcome))
		if resp != nil && outcome.Limited != policy.NotLimited {
			g.limitErrors.Add(p.permit.Account, resp.StatusCode)
		}
		if err == nil {
			g.learnIdentity(a, resp, outcome) // after settle, so that the other replicas know the cool-down of both names
		}
		g.observeUpstream(a, err)
		repeat := a.endCredentialUse(out, resp, outcome)
		if err != nil {
			if outcome.Sent {
				endToken(learned.Unanswered)
			} else {
				endToken(learned.NotSent)
			}
			if g.retries(a, err, retries) {
				retries++
				continue
			}
			return nil, err
		}
		if !repeat {
			g.observeToken(a, resp.StatusCode)
		}
		endToken(resp.StatusCode) // after observeToken, which may have accepted the token

		if resp.StatusCode < http.StatusBadRequest || outcome.Limited != policy.NotLimited { // an error may name any resource
			g.Resources.Learn(a.claimScope, caller.Kind, a.resource, outcome.Rate.Resource)
		}
		if repeat || g.waitsForLimit(a, outcome) {
			bodies.Discard(resp.Body)
			a.call.SetPaused(true)
			continue // the next permit waits for the credential, and until the limit has ended
		}
		if err := g.readAhead(a, resp); err != nil {
			return nil, err
		}
		wait, again := g.nextPoll(a, resp)
		if !again {
			if len(resp.Header["Date"]) == 0 { // RFC 9110 section 6.6.1
				resp.Header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
			}
			fields.FilterResponse(a.match.Operation, g.Dialect.Vendor, resp.Header)
			return resp, nil
		}
		bodies.Discard(resp.Body)
		a.call.SetPaused(true)
		caller.Priority = policy.Batch // polls yield to clients
		if err := a.pause(a.ctx, wait); err != nil {
			return nil, err
		}
	}
}

// readAhead checks the body of a small response before the response to the client begins. The error may be that of a request body
// whose end the upstream did not wait for.
func (g *Gateway) readAhead(a *attempt, resp *http.Response) error {
	if invalid := a.body.Err(); invalid != nil && resp.StatusCode < http.StatusBadRequest {
		_ = resp.Body.Close()
		return invalid
	}
	if a.method == http.MethodHead || resp.Body == http.NoBody {
		return nil
	}
	return bodies.ReadAhead(resp, a.identityAsked)
}

// beginToken permits a request with the credential of the attempt. end must be called as in [learned.ClientTokens.Begin], and
// has no effect after an error.
func (g *Gateway) beginToken(a *attempt) (end func(status int), err error) {
	if !a.sendsClientToken() {
		return func(int) {}, nil
	}
	began := time.Now()
	end, err = g.tokens.Begin(a.ctx, a.address, a.caller.Class, a.deadline(g.Wait))
	a.record.Waited += time.Since(began)
	if err != nil {
		if a.record.Sent == 0 {
			a.result.account = "" // made-up tokens must not displace accounts in the history
		}
		return func(int) {}, err
	}
	return end, nil
}

// makeReady waits for the credential, acquires a permit, and prepares the request. A request with an unusable credential
// keeps no permit, because a request that is not sent must reserve no quota.
func (g *Gateway) makeReady(a *attempt, out *http.Request, caller policy.Caller, first bool) (*permitted, error) {
	if a.graphQL != nil {
		if err := g.refuseHeavy(a); err != nil {
			return nil, err
		}
	}
	for {
		if err := g.awaitCredential(a); err != nil {
			return nil, err
		}
		permit, err := g.queue(a, caller)
		if err != nil {
			return nil, err
		}
		p := &permitted{g: g, a: a, ctx: a.detach(), permit: permit, earlier: a.permitted}
		a.permitted = p
		if err = g.prepare(a, out, first); err == nil {
			return p, nil
		}
		p.settle(limits.Outcome{})
		if !errors.Is(err, policy.ErrCredentialBusy) {
			return nil, err
		}
	}
}

// awaitCredential waits until the credential can be sent, before a permit is requested.
func (g *Gateway) awaitCredential(a *attempt) error {
	if a.identity.Credential == nil {
		return nil
	}
	began := time.Now()
	if a.credentialBy.IsZero() {
		a.credentialBy = a.deadline(g.Wait)
		if soon := began.Add(minTokenWait); a.credentialBy.Before(soon) {
			a.credentialBy = soon
		}
	}
	err := a.identity.Credential.Await(a.ctx, a.credentialBy, a.credentialUse())
	a.record.Waited += time.Since(began)
	return err
}

const (
	// minTokenWait is the minimum wait for a held credential, even if the client waits less.
	minTokenWait = 2 * time.Second
	// minTokenPause is the time that a client must still wait for the repetition of a request that got 403 or 404.
	minTokenPause = 500 * time.Millisecond
)

// credentialUse returns how the request uses a held credential.
func (a *attempt) credentialUse() policy.CredentialUse {
	repeatable := !a.forwardsBody() || a.wholeBody && len(a.in.Trailer) == 0
	query := a.graphQL != nil && a.graphQL.Kind == policy.GraphQLQuery
	return policy.CredentialUse{Safe: repeatable && (a.match.Operation.Safe() || query), Repeatable: repeatable, Denied: a.denied}
}

// queue waits for a permit. The wait ends at the client's deadline, or after AlternativeWait if another credential can
// be tried.
func (g *Gateway) queue(a *attempt, caller policy.Caller) (*limits.Permit, error) {
	until := a.deadline(g.Wait)
	if soon := time.Now().Add(AlternativeWait); a.hasAlternative && soon.Before(until) {
		until = soon
	}
	claim := g.claim(a.question, caller)
	if a.permitted.sentFor(caller.Account) {
		claim.Writes = 0 // the client has sent one request
	}
	if a.identity.FormerAccount != "" {
		g.mergeFormer(a.identity)
	}
	s := a.trace.Stage(a.ctx, record.StageQueue)
	permit, err := g.Limiter.Acquire(s.Context, claim, caller, until)
	s.EndQueue(permit, err)
	return permit, err
}

// claim returns the claim for a permit to send the question.
func (g *Gateway) claim(q *question, caller policy.Caller) limits.Claim {
	op := q.operation
	claim := limits.Claim{Operation: q.claimScope, Resource: q.resource, Points: op.Points, CreatesContent: op.CreatesContent}
	if op.Writes() {
		claim.Writes, claim.WriteTag = 1, g.Limiter.TagName(caller.Client, q.tag)
	}
	if call := q.graphQL; call != nil {
		claim.Writes *= max(1, call.Mutations)
		claim.Query, claim.UpperEstimate = call.Hash, call.UpperCost()
	}
	return claim
}

// AlternativeWait is the maximum wait for a permit while another credential can be tried. Short congestion usually
// ends earlier.
const AlternativeWait = 200 * time.Millisecond

// mergeFormer merges what an account used under its former name.
func (g *Gateway) mergeFormer(i *caller.Identity) {
	if known := g.Ledger.Canonical(i.FormerAccount); known != i.FormerAccount { // the upstream has named the identity
		g.Ledger.Merge(i.Account, known, i.Kind)
	} else {
		g.Ledger.Merge(i.FormerAccount, i.Account, i.Kind)
	}
}

// prepare sets the credential on a request that has a permit, and the conditions after the first permit.
func (g *Gateway) prepare(a *attempt, out *http.Request, first bool) error {
	if !first {
		out.Header = out.Header.Clone() // the transport may still read the header of the earlier request
	}
	if err := a.sendCredential(out); err != nil {
		return err
	}
	if first {
		g.setConditions(a, out)
	}
	return nil
}

// sendCredential sets the credential on a request that has a permit.
func (a *attempt) sendCredential(out *http.Request) (err error) {
	switch {
	case a.identity.Credential != nil:
		a.sentCredential, err = a.identity.Credential.Authorize(out.Header, a.credentialUse())
	case a.identity.Passed:
		out.Header["Authorization"] = a.authorization
	}
	return err
}

// permitted is a request with a permit, and the body of its response. Every permitted is settled once. If the body had not ended
// then, the permitted is ended at the end of the body or in Close. A body ends with its last byte, even if its reader does not read
// io.EOF.
type permitted struct {
	io.ReadCloser // nil before a response with a body
	g             *Gateway
	a             *attempt
	ctx           context.Context // survives a disconnect of the client
	permit        *limits.Permit
	earlier       *permitted // of the same exchange
	sent, settled bool
	left          int64       // bytes of the body that have not been read; negative if the length is unknown
	ended         atomic.Bool // the concurrency slot is free
}

// sentFor reports whether this request, or an earlier one of the exchange, was sent with a permit of an account.
func (p *permitted) sentFor(account string) bool {
	return p != nil && (p.sent && p.permit.Account == account || p.earlier.sentFor(account))
}

// settle reports the outcome of the permit to the ledger, even after a disconnect of the client. Without the outcome, the
// ledger would hold the permit's quota until the permit expires. settle returns the cost of the request.
func (p *permitted) settle(outcome limits.Outcome) (cost int) {
	g, a := p.g, p.a
	if p.settled = true; outcome.Rate.Resource != "" {
		a.result.resource = outcome.Rate.Resource
	}
	s := a.trace.Stage(p.ctx, record.StageSettle)
	cost, err := g.Limiter.Settle(s.Context, *p.permit, outcome)
	s.End("", err)
	if err != nil {
		// The ledger logs once that its store is unavailable, and settles later.
		g.Log.DebugContext(s.Context, "permit not settled", "request", a.record.ID, "error", err)
	}
	return cost
}

// abandon ends the permits of an exchange after a panic. A request that may have arrived counts as sent.
func (p *permitted) abandon() {
	for ; p != nil; p = p.earlier {
		switch {
		case !p.settled:
			if use := p.a.sentCredential; use != nil {
				use.End(p.a.match.Operation, 0, false)
			}
			p.settle(limits.Outcome{Sent: p.sent})
		case p.ReadCloser != nil:
			_ = p.Close()
		}
	}
}

func (p *permitted) Read(b []byte) (int, error) {
	n, err := p.ReadCloser.Read(b)
	if p.left > 0 {
		p.left = max(0, p.left-int64(n))
	}
	if err != nil || p.left == 0 {
		p.end(p.left != 0 && err != io.EOF)
	}
	return n, err
}

// Close implements io.Closer.
func (p *permitted) Close() error {
	err := p.ReadCloser.Close()
	p.end(true)
	return err
}

// end frees the concurrency slot.
func (p *permitted) end(aborted bool) {
	if p.ended.CompareAndSwap(false, true) {
		p.g.Limiter.Release(p.ctx, *p.permit, aborted)
	}
}

// count adds a request with a cost to the record, and the limit error of the response to the result.
func (a *attempt) count(o limits.Outcome, cost int) {
	a.result.limited, a.result.limitAnswer = o.Limited, ""
	if o.Limited != policy.NotLimited {
		a.result.limitAnswer = a.limitError.Name
	}
	a.result.outsideRange = cmp.Or(o.Rate.Ignored, o.Outside)
	if !o.Sent {
		return
	}
	a.record.Sent++
	a.record.Spent += cost * o.Resent
	if !o.Uncounted {
		a.record.Spent += cost
	}
}

// learnIdentity merges the account of the attempt if the response names its user or its installation. It also merges
// the account of an installation token that the response contains.
func (g *Gateway) learnIdentity(a *attempt, resp *http.Response, o limits.Outcome) {
	caller := *a.caller
	account, i, ok := caller.Account, learned.Identity{}, false
	switch {
	case o.Limited != policy.NotLimited:
		i, ok = learned.IdentityIn(a.limitError.Message)
		ok = ok && i.Kind == caller.Kind.Base() && !isWorkflowLimit(o)
	case resp.StatusCode == http.StatusOK && a.method == http.MethodGet && a.match.Path == "/user":
		if caller.Kind.Base() == policy.User {
			text := peekJSON(resp)
			id, _ := field(text, "id").(json.Number)
			if i, ok = learned.NewIdentity(string(policy.User), id.String()); ok {
				login, _ := field(text, "login").(string)
				g.Identities.LearnLogin(login, account, i.Account())
			}
		}
	case resp.StatusCode == http.StatusCreated && a.method == http.MethodPost && g.AccountOf != nil:
		if path := mintingPath.FindStringSubmatch(a.match.Path); path != nil {
			token, _ := field(peekJSON(resp), "token").(string)
			i, ok = learned.NewIdentity(string(policy.Installation), path[1])
			account, ok = g.AccountOf(token), ok && token != ""
		}
	}
	if ok && g.Identities.Learn(account, i, time.Now()) {
		g.Ledger.Merge(account, i.Account(), i.Kind)
	}
}

// mintingPath is the path of the operation that makes an installation token.
var mintingPath = regexp.MustCompile(`^/app/installations/([0-9]+)/access_tokens$`)

// isWorkflowLimit reports whether a response has the limit of a workflow's token. Such a token looks like an installation
// token, but the upstream counts each repository separately.
func isWorkflowLimit(o limits.Outcome) bool {
	return o.Rate.Limit == policy.DefaultLimits().For(policy.Workflow, policy.Core).Max
}

// peekJSON returns the decoded beginning of a JSON body.
func peekJSON(resp *http.Response) []byte {
	if !strings.Contains(resp.Header.Get("Content-Type"), "json") {
		return nil
	}
	return bodies.PeekText(resp)
}

// field returns a simple member of a JSON object, or nil. The object may be truncated after the member.
func field(object []byte, name string) any {
	d := json.NewDecoder(bytes.NewReader(object))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil
		}
		if key == name {
			value, _ := d.Token()
			return value
		}
		var skipped json.RawMessage
		if d.Decode(&skipped) != nil {
			return nil
		}
	}
	return nil
}

var errUnreachable = &refusal.Error{
	Status: http.StatusServiceUnavailable, Detail: "breaker", RetryAfter: breaker.TrialInterval,
	Message: "Service Unavailable: the upstream does not respond at the moment",
}

// Reachable reports whether the circuit breaker for the upstream is closed.
func (g *Gateway) Reachable() bool { return !g.breaker.Open() }

// observeUpstream reports the result of a request to the breaker.
func (g *Gateway) observeUpstream(a *attempt, err error) {
	switch {
	case err == nil:
		if g.breaker.Succeed() {
			g.Log.InfoContext(a.detach(), "circuit breaker closed: the upstream responds again")
		}
	case a.isUpstreamFault(err) && g.breaker.Fail(a.caller.Account, time.Now()):
		g.Log.ErrorContext(a.detach(), "circuit breaker opened: the upstream does not respond", "error", err)
	}
}

// isUpstreamFault reports whether the upstream caused the error. The upstream does not cause a disconnect of the
// client, an invalid request body or a broken idle connection.
func (a *attempt) isUpstreamFault(err error) bool {
	switch {
	case a.reused && wire.IsBroken(err) && !wire.IsStreamReset(err), a.body.Err() != nil:
		return false
	case wire.IsTimeout(err), errors.Is(err, wire.ErrInterim), errors.Is(err, wire.ErrUnpermitted):
		return true
	}
	return !errors.Is(err, context.Canceled)
}

// endCredentialUse records the response to a request with a held credential, and reports whether the request is repeated. The
// repetition then waits for the credential. resp is nil for a request without a response.
func (a *attempt) endCredentialUse(out *http.Request, resp *http.Response, o limits.Outcome) (repeat bool) {
	sent, status := a.sentCredential, 0
	if resp != nil {
		status = resp.StatusCode
	}
	if a.sentCredential = nil; sent == nil {
		return false
	}
	a.unclear = sent.End(a.match.Operation, status, o.Limited != policy.NotLimited)
	denied := a.lacksPermission
	if a.lacksPermission = false; !a.unclear && !denied || denied && a.denied {
		return false
	}
	use := a.credentialUse()
	switch {
	case !use.Repeatable, a.ctx.Err() != nil:
		return false
	case !a.unclear: // parts of a denied mutation may have succeeded
		if a.denied = a.graphQL == nil || use.Safe; a.denied {
			holdBack(resp) // releases the concurrency slot during the wait
			a.denied = sent.Renewed(a.ctx, a.credentialBy)
		}
		if !a.denied {
			return false
		}
	case status != http.StatusUnauthorized && !time.Now().Add(minTokenPause).Before(a.credentialBy):
		return false // the response may concern the request
	}
	if a.forwardsBody() {
		out.Body = io.NopCloser(bytes.NewReader(a.buffered.Data))
	}
	return true
}

// retries reports whether a request is sent again after the connection broke, and waits before the retry. Only a safe
// request is retried, within the client's deadline and the retry budget.
func (g *Gateway) retries(a *attempt, err error, before int) bool {
	pause := time.Duration((1 + rand.Float64()) * float64(minRetryPause<<(2*before)))
	switch {
	case !a.match.Operation.Safe(), before == maxRetries, !wire.IsBroken(err), a.body.Err() != nil, a.ctx.Err() != nil, g.breaker.Open():
		return false
	case time.Now().Add(pause).After(a.deadline(g.Wait)):
		return false
	}
	s := a.trace.Stage(a.ctx, record.StageRetry)
	if !g.breaker.TakeRetry() {
		s.End("", errRetryBudget)
		return false
	}
	if idle, ok := g.Transport.(interface{ CloseIdleConnections() }); ok && a.reused {
		idle.CloseIdleConnections() // other idle connections are probably broken as well
	}
	a.call.SetPaused(true)
	err = sleep(a.ctx, pause)
	s.EndWait("", err)
	return err == nil
}

const (
	// maxRetries bounds the retries of one request.
	maxRetries = 2
	// minRetryPause is the shortest pause before the first retry.
	minRetryPause = 50 * time.Millisecond
)

var errRetryBudget = errors.New("the retry budget is exhausted")

// observeToken records the response to a request with the credential of the attempt. A redirect proves the credential
// only if the operation is documented to redirect, such as to an archive.
func (g *Gateway) observeToken(a *attempt, status int) {
	op, caller := a.match.Operation, *a.caller
	redirects := status == http.StatusFound && slices.Contains(slices.Concat(op.Success, op.Errors), status)
	if status < http.StatusBadRequest && !learned.IsSuccess(status) && !redirects {
		return
	}
	conclusive := op.Accepts(caller.Kind) && !isFeed(a.match.Path)
	known := a.identity.Credential != nil || a.last != nil // another replica may have seen that the upstream accepted the credential
	if g.tokens.Observe(caller.Class, status, conclusive, time.Now()) || conclusive && known && status == http.StatusUnauthorized {
		g.Cache.Purge(a.detach(), tags.Credential(caller.Class)) // on all replicas
	}
}

// waitsForLimit reports whether a request with a limit error is repeated after the end of the limit. The request must
// be safe, the limiter must delay the repetition, and the limit must end before the client's deadline. Otherwise the
// client gets the upstream's limit response.
func (g *Gateway) waitsForLimit(a *attempt, o limits.Outcome) bool {
	now := time.Now()
	var end time.Time
	switch {
	case o.Limited == policy.NotLimited || !a.match.Operation.Safe() || a.hasAlternative || !g.Limiter.Enforces():
		return false
	case o.Limited == policy.LimitContent, o.Limited == policy.LimitPrimary && cmp.Or(o.Rate.Resource, a.resource) != a.resource:
		return false // admission would not wait
	case o.RetryAfter > 0:
		end = now.Add(o.RetryAfter)
	case o.Limited == policy.LimitPrimary || o.Rate.Limit != 0 && o.Rate.Used >= o.Rate.Limit:
		end = now.Add(o.Rate.Reset.Sub(o.Rate.Date)) // the clocks may differ
		if o.Rate.Date.IsZero() {
			end = o.Rate.Reset
		}
	default:
		end = now.Add(time.Minute)
	}
	return end.After(now) && !end.Add(limitRounding).After(a.deadline(g.Wait))
}

// limitRounding is added to the end of a limit, because the upstream rounds the end to seconds.
const limitRounding = 2 * time.Second

// pause waits between two polls.
func (ex *exchange) pause(ctx context.Context, wait time.Duration) error {
	s := ex.trace.Stage(ctx, record.StagePoll)
	err := sleep(ctx, wait)
	s.EndWait("", err)
	return err
}

// sleep waits for d. If the context ends earlier, sleep returns the cause.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
