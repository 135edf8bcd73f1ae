package proxy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/contentcoding"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/coalesce"
	"github.com/weirgate/weir/proxy/learned"
)

// answer gets the response from the upstream, with a separate request or through a coalesced call.
func (g *Gateway) answer(a *attempt, out *http.Request) (*http.Response, error) {
	switch {
	case a.call != nil: // a background task, which leads its call already
		return g.lead(a, out)
	case a.coalesces():
		return g.coalesce(a, out)
	}
	return g.fetchAlone(a, out)
}

// fetchAlone sends the question upstream without a call.
func (g *Gateway) fetchAlone(a *attempt, out *http.Request) (*http.Response, error) {
	resp, _, err := g.fetch(a, out)
	return resp, err
}

// fetch sends the question upstream, with conditions for stored responses, and stores the response. After an unsafe
// request that may have succeeded, fetch purges the responses that the request may have changed. The ending is that of the
// attempt's call.
func (g *Gateway) fetch(a *attempt, out *http.Request) (*http.Response, coalesce.Ending, error) {
	ending := coalesce.Ending{Result: coalesce.Private}
	// The generation is read before the request is sent, so that a later purge makes the response stale.
	a.began = g.Cache.BeginFetch(a.tags)
	resp, err := g.sendWithRetries(a, out)
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
	g.endAccess(a, resp.StatusCode)
	g.endRedirected(a, resp.StatusCode)
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

// refutes contains the statuses of unsafe requests which show that the object is not in the state that the client has seen.
var refutes = []int{
	http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusConflict, http.StatusGone, http.StatusPreconditionFailed, http.StatusUnprocessableEntity,
}

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
	g.Cache.PurgeUnsettled(a.in.Context(), lag, cache.CauseFailedWrite, g.tagsOfObject(a.question, status == http.StatusUnprocessableEntity)...)
}

// purgeUncertain purges the responses that an unsafe request with an unknown result may have changed. Until the upstream has
// certainly stopped working on the request, these responses are stale even if they are fetched again.
func (g *Gateway) purgeUncertain(a *attempt) {
	g.Cache.PurgeUnsettled(a.detach(), stoppedWorking, cache.CauseWrite, g.tagsOfUncertain(a.question)...)
}

// stoppedWorking is the time after which the upstream has stopped working on a request: ten seconds (Document B section
// 8.4), and a margin.
const stoppedWorking = 15 * time.Second

// fetchUnconditionally repeats a request with only the client's own conditions.
func (g *Gateway) fetchUnconditionally(a *attempt, out *http.Request, resp *http.Response) (*http.Response, coalesce.Ending, error) {
	discard(resp.Body)
	a.unconditional = true
	a.call.SetPaused(true)              // resumed when the request has a permit
	return g.fetch(a, out.Clone(a.ctx)) // the transport may still read the header of out
}

// sendWithRetries sends a request until the response is final. The request is repeated in these cases:
//   - The connection broke.
//   - The response is a limit error, and the client can wait for the end of the limit.
//   - The upstream does not accept a token of the gateway yet, or not any more.
//   - The upstream still computes statistics (202), and this exchange is a background task.
//
// Each repetition needs a new permit.
func (g *Gateway) sendWithRetries(a *attempt, out *http.Request) (*http.Response, error) {
	caller, retries, prepared := a.identity.Caller, 0, false
	endToken := func(int) {}
	defer func() { endToken(learned.NotSent) }() // has no effect after an attempt
	for {                                        // the client's deadline ends the repetition
		var err error
		if endToken, err = g.beginToken(a); err != nil {
			return nil, err
		}
		trial, err := g.breaker.allow(caller.Account, time.Now())
		if err != nil {
			return nil, err
		}
		permit, err := (*limits.Permit)(nil), g.refuseHeavy(a)
		if err == nil {
			permit, err = g.acquire(a, out, caller, !prepared)
		}
		if err != nil {
			if trial {
				g.breaker.cancelTrial(caller.Account)
			}
			return nil, err
		}
		prepared = true
		a.result.account = permit.Account
		if trial && !a.record.Background {
			// A disconnect of the client must not end the trial without a result.
			a.ctx = a.untilDrained()
		}
		a.sent = time.Now()
		a.call.SetPaused(false)
		s := g.beginStage(a.exchange, a.ctx, stageAttempt)
		resp, outcome, err := g.send(a, g.propagate(s, out), *permit)
		s.showLimit(outcome)
		s.endAttempt(resp, err)
		if err == nil {
			outcome.Ended = hasEnded(resp)
		}
		a.count(resp, outcome, g.settle(a, *permit, outcome))
		if resp != nil && outcome.Limited != limits.NotLimited {
			g.limitErrors.add(permit.Account, resp.StatusCode)
		}
		if err == nil {
			if !outcome.Ended { // the concurrency slot is released at the end of the body
				resp.Body = &permittedBody{resp.Body, resp.ContentLength, func(aborted bool) { g.release(a, *permit, aborted) }}
			}
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

		if resp.StatusCode < http.StatusBadRequest || outcome.Limited != limits.NotLimited { // an error may name any resource
			g.Resources.Learn(a.claimScope, caller.Kind, a.resource, outcome.Rate.Resource)
		}
		if repeat || g.waitsForLimit(a, outcome) {
			discard(resp.Body)
			a.call.SetPaused(true)
			continue // the next permit waits for the credential, and until the limit has ended
		}
		if err := g.readAhead(a, resp); err != nil {
			return nil, err
		}
		wait, again := g.nextPoll(a, resp)
		if !again {
			g.filterResponse(a.match.Operation, resp.Header)
			return resp, nil
		}
		discard(resp.Body)
		a.call.SetPaused(true)
		caller.Priority = policy.Batch // polls yield to clients
		if err := g.pause(a.exchange, a.ctx, wait); err != nil {
			return nil, err
		}
	}
}

// acquire waits for the credential, acquires a permit, and prepares the request. A request with an unusable credential gets no
// permit, because a request that is not sent must reserve no quota.
func (g *Gateway) acquire(a *attempt, out *http.Request, caller policy.Caller, first bool) (*limits.Permit, error) {
	for {
		if err := g.awaitCredential(a); err != nil {
			return nil, err
		}
		permit, err := g.admit(a, caller)
		if err != nil {
			return nil, err
		}
		if err = g.prepare(a, out, *permit, first); !errors.Is(err, ErrCredentialBusy) {
			return permit, err
		}
	}
}

// admit acquires a permit. The wait ends at the client's deadline, or after alternativeWait if another credential can
// be tried.
func (g *Gateway) admit(a *attempt, caller policy.Caller) (*limits.Permit, error) {
	op, until := a.operation, a.deadline(g.Wait)
	if soon := time.Now().Add(alternativeWait); a.hasAlternative && soon.Before(until) {
		until = soon
	}
	claim := limits.Claim{Operation: a.claimScope, Resource: a.resource, Points: op.Points, CreatesContent: op.CreatesContent}
	if op.Writes() {
		claim.Write, claim.WriteTag = true, g.Limiter.TagName(caller.Client, a.tag)
	}
	if q := a.graphQL; q != nil {
		claim.Query, claim.UpperEstimate = q.Hash, q.UpperCost()
	}
	g.mergeFormer(a.identity)
	s := g.beginStage(a.exchange, a.ctx, stageQueue)
	permit, err := g.Limiter.Acquire(s.ctx, claim, caller, until)
	s.showShared(permit, err)
	a.result.account = g.Ledger.Canonical(caller.Account)
	a.record.Waited += s.end(queueResult(permit, err), err)
	return permit, err
}

// prepare sets the credential on a request that has a permit, and the conditions after the first permit. If an error or panic
// occurs, prepare settles the permit without an outcome.
func (g *Gateway) prepare(a *attempt, out *http.Request, permit limits.Permit, first bool) (err error) {
	done := false
	defer func() {
		if !done {
			g.settle(a, permit, limits.Outcome{})
		}
	}()
	if !first {
		out.Header = out.Header.Clone() // the transport may still read the header of the earlier attempt
	}
	if err = a.sendCredential(out); err == nil {
		if first {
			g.setConditions(a, out)
		}
		done = true
	}
	return err
}

// count adds an attempt with a cost to the record, and sets ex.limited to the limit error of the response. Every sent request
// costs quota, except an authenticated request with a 304.
func (a *attempt) count(resp *http.Response, o limits.Outcome, cost int) {
	a.record.Attempts++
	a.result.limited, a.result.limited, a.result.limitAnswer = o.Limited, o.Limited, ""
	if o.Limited != limits.NotLimited {
		a.result.limitAnswer = a.limitError.Name
	}
	a.result.outsideRange = cmp.Or(o.Rate.Ignored, o.Outside)
	if o.Sent {
		a.record.Spent += cost * (1 + o.Resent)
	}
	if resp != nil && resp.StatusCode == http.StatusNotModified && a.identity.Caller.Kind != policy.Unauthenticated {
		a.record.Spent -= cost
	}
}

// settle reports the outcome of a permit to the ledger, even after a disconnect of the client. Without the outcome, the
// ledger would hold the permit's quota until the permit expires. settle returns the cost of the request.
func (g *Gateway) settle(a *attempt, permit limits.Permit, outcome limits.Outcome) (cost int) {
	if outcome.Rate.Resource != "" {
		a.result.resource = outcome.Rate.Resource
	}
	s := g.beginStage(a.exchange, a.detach(), stageSettle)
	cost, err := g.Limiter.Settle(s.ctx, permit, outcome)
	s.end("", err)
	if err != nil {
		// The ledger logs once that its store is unavailable, and settles later.
		g.Log.DebugContext(s.ctx, "permit not settled", "request", a.record.ID, "error", err)
	}
	return cost
}

// release frees the concurrency slot of a permit.
func (g *Gateway) release(a *attempt, permit limits.Permit, aborted bool) {
	if err := g.Limiter.Release(a.detach(), permit, aborted); err != nil {
		g.Log.DebugContext(a.detach(), "permit not released", "request", a.record.ID, "error", err)
	}
}

// permittedBody releases the concurrency slot at the end of the body or in Close. A body ends with its last byte, even
// if its reader does not read io.EOF.
type permittedBody struct {
	io.ReadCloser
	left    int64              // bytes that have not been read; negative if the length is unknown
	release func(aborted bool) // nil after the call
}

func (b *permittedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left > 0 {
		b.left = max(0, b.left-int64(n))
	}
	if err != nil || b.left == 0 {
		b.end(b.left != 0 && err != io.EOF)
	}
	return n, err
}

func (b *permittedBody) Close() error {
	err := b.ReadCloser.Close()
	b.end(true)
	return err
}

func (b *permittedBody) end(aborted bool) {
	if b.release != nil {
		b.release(aborted)
		b.release = nil
	}
}

// limitRounding is added to the end of a limit, because the upstream rounds the end to seconds.
const limitRounding = 2 * time.Second

// waitsForLimit reports whether a request with a limit error is repeated after the end of the limit. The request must
// be safe, the limiter must delay the repetition, and the limit must end before the client's deadline. Otherwise the
// client gets the upstream's limit response.
func (g *Gateway) waitsForLimit(a *attempt, o limits.Outcome) bool {
	now := time.Now()
	var end time.Time
	switch {
	case o.Limited == limits.NotLimited || !a.match.Operation.Safe() || a.hasAlternative || !g.Limiter.Enforces():
		return false
	case o.Limited == limits.ContentLimit, o.Limited == limits.PrimaryLimit && cmp.Or(o.Rate.Resource, a.resource) != a.resource:
		return false // admission would not wait
	case o.RetryAfter > 0:
		end = now.Add(o.RetryAfter)
	case o.Limited == limits.PrimaryLimit || o.Rate.Limit != 0 && o.Rate.Used >= o.Rate.Limit:
		end = now.Add(o.Rate.Reset.Sub(o.Rate.Date)) // the clocks may differ
		if o.Rate.Date.IsZero() {
			end = o.Rate.Reset
		}
	default:
		end = now.Add(time.Minute)
	}
	return end.After(now) && !end.Add(limitRounding).After(a.deadline(g.Wait))
}

// pause waits between two polls.
func (g *Gateway) pause(ex *exchange, ctx context.Context, wait time.Duration) error {
	s := g.beginStage(ex, ctx, stagePoll)
	err := sleep(ctx, wait)
	ex.record.Waited += s.end("", err)
	return err
}

// recognizeLimit adds a limit error to the outcome, and returns the error. GraphQL reports a limit with status 200.
// recognizeLimit also adds the cost that a short response to a GraphQL call reports. It removes the rate headers of a refused
// credential, because they report another budget.
func (g *Gateway) recognizeLimit(a *attempt, resp *http.Response, outcome *limits.Outcome, permit limits.Permit) limits.LimitError {
	answer := policy.UpstreamAnswer{
		Status: resp.StatusCode, Header: resp.Header, GraphQL: a.graphQL != nil,
		Unproven: a.sentCredential != nil && a.sentCredential.IsUnproven(),
	}
	if g.mayReportLimit(a, resp) {
		answer.Body = peekText(resp)
	}
	e := g.Limiter.ReadLimitError(permit.Account, answer)
	if a.sentCredential != nil && e.Kind == limits.NotLimited && (answer.GraphQL || resp.StatusCode == http.StatusForbidden) && policy.LacksPermission(answer.Body) {
		a.sentCredential.Denied()
	}
	retryAfter := boundRetryAfter(resp.Header, outcome)
	if e.Kind != limits.NotLimited {
		outcome.RetryAfter = retryAfter
	}
	if e.Repeated == 0 {
		outcome.Limited = e.Kind
	}
	a.lateLimit = nil
	if answer.GraphQL && resp.StatusCode == http.StatusOK && len(answer.Body) >= maxPeek && e.Kind == limits.NotLimited && resp.Header.Get("Content-Encoding") == "" {
		a.lateLimit = g.watchEnd(a, resp, permit)
	} else if len(answer.Body) < maxPeek {
		a.record.QueryFailure = g.observeQuery(a.question, permit.Account, answer, outcome.Elapsed)
	}
	if answer.GraphQL && resp.StatusCode == http.StatusOK {
		cost, executed, outside := limits.ReadCost(answer.Body)
		if outside {
			outcome.Outside = policy.GraphQLCost.Name
		}
		if outcome.Succeeded = executed; a.graphQL.ReportsCost {
			outcome.Cost = cost
		}
	}
	if outcome.Unauthorized && permit.Kind != policy.Unauthenticated {
		outcome.Rate = limits.Rate{}
		limits.RemoveRate(resp.Header)
	}
	return e
}

// boundRetryAfter returns the Retry-After of a response. The client gets no value outside the range.
func boundRetryAfter(h http.Header, outcome *limits.Outcome) time.Duration {
	wait, v := limits.ReadRetryAfter(h, time.Now())
	switch v {
	case policy.InRange:
		return wait
	case policy.Clamped:
		h.Set("Retry-After", strconv.Itoa(int(wait/time.Second)))
	case policy.Ignored:
		h.Del("Retry-After")
	}
	outcome.Outside = policy.RetryAfter.Name
	return wait
}

// mayReportLimit reports whether the body of a response must be read to recognize a limit error. A successful response of
// REST is rarely one, so its length or its beginning decides. The response must be in the plain representation, because
// other representations contain text of users.
func (g *Gateway) mayReportLimit(a *attempt, resp *http.Response) bool {
	const longestError = 1 << 10
	switch status := resp.StatusCode; {
	case resp.Body == http.NoBody:
		return false
	case a.graphQL != nil:
		return status < http.StatusInternalServerError
	case status >= http.StatusBadRequest:
		return status < http.StatusInternalServerError && (g.Host == "" || status == http.StatusForbidden || status == http.StatusTooManyRequests)
	case status != http.StatusOK, resp.ContentLength == 0, resp.ContentLength > longestError, g.Host != "",
		!g.isPlainType(a, resp.Header.Get("Content-Type")), g.Dialect.Accept(a.in.Header["Accept"]) != "":
		return false
	case resp.ContentLength > 0:
		return true
	}
	start := make([]byte, longestError)
	n, err := resp.Body.Read(start)
	resp.Body = rejoin(start[:n], err, resp.Body)
	return resp.Header.Get("Content-Encoding") == "" && bytes.HasPrefix(start, []byte("{")) && bytes.Contains(start[:n], []byte(`"message"`))
}

// isPlainType reports whether a Content-Type may be that of an error in a success. An operation of the catalogue has JSON in
// its plain representation, so a missing or a wrong type does not hide an error.
func (g *Gateway) isPlainType(a *attempt, contentType string) bool {
	mediaType, _, _ := strings.Cut(contentType, ";")
	mediaType = strings.ToLower(strings.TrimSpace(mediaType))
	return mediaType == "application/json" || a.match.Operation.Known() && (mediaType == "text/plain" || g.Dialect.Accept([]string{mediaType}) == "")
}

// maxPeek bounds the bytes of a body that are read to recognize a limit error or an identity.
const maxPeek = 8 << 10

// peek reads up to most bytes of the body and returns them. The body can still be read completely, with its error.
func peek(resp *http.Response, most int64) ([]byte, error) {
	start, err := io.ReadAll(io.LimitReader(resp.Body, most))
	if err == nil && int64(len(start)) < most {
		_ = resp.Body.Close()
		resp.Body = completeBody{bytes.NewReader(start), start}
		return start, nil
	}
	resp.Body = rejoin(start, err, resp.Body)
	return start, err
}

// completeBody is a response body that has been read from the upstream completely.
type completeBody struct {
	*bytes.Reader
	whole []byte
}

// Close implements io.Closer.
func (completeBody) Close() error { return nil }

// hasEnded reports whether nothing of a response remains to be read from the upstream.
func hasEnded(resp *http.Response) bool {
	_, complete := resp.Body.(completeBody)
	return complete || resp.ContentLength == 0 || resp.Body == http.NoBody
}

// peekText returns the decoded beginning of the body. The body can still be read completely.
func peekText(resp *http.Response) []byte {
	start, _ := peek(resp, maxPeek) // an error follows the beginning again
	return contentcoding.Decode(resp.Header.Get("Content-Encoding"), start, maxPeek)
}

// rejoin returns a body that begins with start. After start the body continues with the rest of body, or returns err if
// err is not nil.
func rejoin(start []byte, err error, body io.ReadCloser) io.ReadCloser {
	rest := io.Reader(body)
	if err != nil {
		rest = brokenReader{err}
	}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(start), rest), body}
}

// brokenReader returns an error that an earlier read returned.
type brokenReader struct{ err error }

func (b brokenReader) Read([]byte) (int, error) { return 0, b.err }

// sleep waits for d. If the context ends earlier, sleep returns the cause.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
