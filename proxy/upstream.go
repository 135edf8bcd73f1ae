package proxy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/contentcoding"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/coalesce"
)

// answer gets the response from the upstream, with a separate request or through a coalesced call.
func (g *Gateway) answer(ex *exchange, out *http.Request) (*http.Response, error) {
	switch {
	case ex.call != nil && ex.polls == 0: // a background task, which leads its call already
		return g.fetchForFleet(ex, out)
	case ex.call == nil && ex.coalesces():
		return g.coalesce(ex, out)
	}
	return g.fetch(ex, out)
}

// fetch sends the question upstream, with conditions for stored responses, and stores the response. After an unsafe
// request that may have succeeded, fetch purges the responses that the request may have changed.
func (g *Gateway) fetch(ex *exchange, out *http.Request) (*http.Response, error) {
	// The generation is read before the request is sent, so that a later purge makes the response stale.
	since := g.Cache.FetchGeneration(ex.tags)
	resp, err := g.sendWithRetries(ex, out)
	if err != nil {
		if !ex.match.Operation.Safe() && ex.record.Spent > 0 {
			g.purgeUncertain(ex)
		}
		ex.call.Finish(resultOfError(err), err)
		return g.staleOr(ex, err)
	}
	if reason := ex.staleReason(resp); reason != "" {
		discard(resp.Body)
		ex.call.Finish(coalesce.Private, nil)
		ex.record.Cache.ForwardStatus = resp.StatusCode
		return g.useFallback(ex, reason), nil
	}
	switch resp.StatusCode {
	case http.StatusNotModified:
		if ex.match.Operation.Safe() && (ex.conditional || isUnconditional(ex.header)) {
			return g.notModified(ex, out, resp, since)
		}
	case http.StatusBadRequest, http.StatusPreconditionFailed, http.StatusRequestHeaderFieldsTooLarge:
		if ex.conditional && !onlyStale(ex.candidates) { // the upstream may refuse the number of ETags
			return g.fetchUnconditionally(ex, out, resp)
		}
	}
	a := cache.Response{Status: resp.StatusCode, Header: resp.Header, Requested: ex.sent, Answered: time.Now()}
	g.endAccess(ex, resp.StatusCode)
	g.deleteOldPart(ex, resp)
	ex.record.Cache.ForwardStatus = resp.StatusCode
	switch {
	case ex.computed() && resp.StatusCode == http.StatusAccepted:
		if ex.record.Background {
			ex.call.Finish(coalesce.Computing, nil)
		}
	case ex.cacheable && ex.method != http.MethodHead, ex.graphQL != nil && ex.call != nil:
		return g.store(ex, resp, out.Header, a, since), nil
	case ex.ranged && resp.StatusCode == http.StatusPartialContent:
		ex.key = partKey(ex.key)
		return g.store(ex, resp, out.Header, a, since), nil
	case ex.outdatesStored(resp):
		g.deleteStored(ex)
	case !ex.match.Operation.Safe() && resp.StatusCode < 400:
		g.Cache.Purge(ex.in.Context(), g.tagsOfResponse(ex, resp)...)
	case !ex.match.Operation.Safe() && (resp.StatusCode >= http.StatusInternalServerError || resp.StatusCode == http.StatusRequestTimeout):
		g.purgeUncertain(ex) // the upstream may have failed after the change
	}
	return resp, nil
}

// purgeUncertain purges the responses that an unsafe request with an unknown result may have changed. Until the upstream has
// certainly stopped working on the request, these responses are stale even if they are fetched again.
func (g *Gateway) purgeUncertain(ex *exchange) {
	g.Cache.PurgeUnsettled(ex.detach(), stoppedWorking, g.tagsOfUncertain(&ex.question)...)
}

// stoppedWorking is the time after which the upstream has stopped working on a request: ten seconds (Document B section
// 8.4), and a margin.
const stoppedWorking = 15 * time.Second

// fetchUnconditionally repeats a request with only the client's own conditions.
func (g *Gateway) fetchUnconditionally(ex *exchange, out *http.Request, resp *http.Response) (*http.Response, error) {
	discard(resp.Body)
	ex.unconditional = true
	ex.call.SetPaused(true)                      // resumed when the request has a permit
	return g.fetch(ex, out.Clone(out.Context())) // the transport may still read the header of out
}

// sendWithRetries sends a request until the response is final. The request is repeated in these cases:
//   - The connection broke.
//   - The response is a limit error, and the client can wait for the end of the limit.
//   - The upstream does not accept a token of the gateway yet, or not any more.
//   - The upstream still computes statistics (202), and this exchange is a background task.
//
// Each repetition needs a new permit.
func (g *Gateway) sendWithRetries(ex *exchange, out *http.Request) (*http.Response, error) {
	caller, retries, prepared := ex.identity.Caller, 0, false
	endToken := func(int) {}
	defer func() { endToken(notSent) }() // has no effect after an attempt
	for {                                // the client's deadline ends the repetition
		var err error
		if endToken, err = g.beginToken(ex, out.Context()); err != nil {
			return nil, err
		}
		trial, err := g.breaker.allow(caller.Account, time.Now())
		if err != nil {
			return nil, err
		}
		permit, err := g.acquire(ex, out, caller, !prepared)
		if err != nil {
			if trial {
				g.breaker.cancelTrial(caller.Account)
			}
			return nil, err
		}
		prepared = true
		ex.record.Account = permit.Account
		if trial && !ex.record.Background {
			// A disconnect of the client must not end the trial without a result.
			out = out.WithContext(ex.untilDrained())
		}
		ex.sent = time.Now()
		ex.call.SetPaused(false)
		s := g.beginStage(ex, out.Context(), stageAttempt)
		resp, outcome, err := g.send(ex, g.propagate(s, out), *permit)
		s.showLimit(outcome)
		s.end(attemptResult(resp, err), err)
		if err == nil {
			outcome.Ended = hasEnded(resp)
		}
		ex.count(resp, outcome, g.settle(ex, *permit, outcome))
		if err == nil {
			if !outcome.Ended { // the concurrency slot is released at the end of the body
				resp.Body = &permittedBody{resp.Body, resp.ContentLength, func(aborted bool) { g.release(ex, *permit, aborted) }}
			}
			g.learnIdentity(ex, resp, outcome) // after settle, so that the other replicas know the cool-down of both names
		}
		g.observeUpstream(ex, err)
		repeat := ex.endCredentialUse(out, resp, outcome)
		if err != nil {
			if outcome.Sent {
				endToken(unanswered)
			} else {
				endToken(notSent)
			}
			if g.retries(ex, out.Context(), err, retries) {
				retries++
				continue
			}
			return nil, err
		}
		if !repeat {
			g.observeToken(ex, resp.StatusCode)
		}
		endToken(resp.StatusCode) // after observeToken, which may have accepted the token

		if resp.StatusCode < http.StatusBadRequest || outcome.Limited != limits.NotLimited { // an error may name any resource
			g.Resources.learn(ex.claimScope, caller.Kind, ex.resource, outcome.Rate.Resource)
		}
		if repeat || g.waitsForLimit(ex, outcome) {
			discard(resp.Body)
			ex.call.SetPaused(true)
			continue // the next permit waits for the credential, and until the limit has ended
		}
		if err := g.readAhead(ex, resp); err != nil {
			return nil, err
		}
		wait, again := g.nextPoll(ex, resp)
		if !again {
			g.filterResponse(ex.match.Operation, resp.Header)
			return resp, nil
		}
		discard(resp.Body)
		ex.call.SetPaused(true)
		caller.Priority = policy.Batch // polls yield to clients
		if err := g.pause(ex, out.Context(), wait); err != nil {
			return nil, err
		}
	}
}

// acquire waits for the credential, acquires a permit, and prepares the request. A request with an unusable credential gets no
// permit, because a request that is not sent must reserve no quota.
func (g *Gateway) acquire(ex *exchange, out *http.Request, caller policy.Caller, first bool) (*limits.Permit, error) {
	for {
		if err := g.awaitCredential(ex, out.Context()); err != nil {
			return nil, err
		}
		permit, err := g.admit(ex, out.Context(), caller)
		if err != nil {
			return nil, err
		}
		if err = g.prepare(ex, out, *permit, first); !errors.Is(err, ErrCredentialBusy) {
			return permit, err
		}
	}
}

// admit acquires a permit. The wait ends at the client's deadline, or after alternativeWait if another credential can
// be tried.
func (g *Gateway) admit(ex *exchange, ctx context.Context, caller policy.Caller) (*limits.Permit, error) {
	op, until := ex.operation, ex.deadline(g.Wait)
	if soon := time.Now().Add(alternativeWait); ex.hasAlternative && soon.Before(until) {
		until = soon
	}
	claim := limits.Claim{Operation: ex.claimScope, Resource: ex.resource, Points: op.Points, CreatesContent: op.CreatesContent}
	if q := ex.graphQL; q != nil {
		claim.Query, claim.UpperEstimate = q.Hash, q.UpperCost()
	}
	g.mergeFormer(ex.identity)
	s := g.beginStage(ex, ctx, stageQueue)
	permit, err := g.Limiter.Acquire(s.ctx, claim, caller, until)
	s.showShared(permit, err)
	ex.record.Account = g.Ledger.Canonical(caller.Account)
	ex.record.Waited += s.end(queueResult(permit, err), err)
	return permit, err
}

// prepare sets the credential on a request that has a permit, and the conditions after the first permit. If an error or panic
// occurs, prepare settles the permit without an outcome.
func (g *Gateway) prepare(ex *exchange, out *http.Request, permit limits.Permit, first bool) (err error) {
	done := false
	defer func() {
		if !done {
			g.settle(ex, permit, limits.Outcome{})
		}
	}()
	if !first {
		out.Header = out.Header.Clone() // the transport may still read the header of the earlier attempt
	}
	if err = ex.setCredential(out); err == nil {
		if first {
			g.setConditions(ex, out)
		}
		done = true
	}
	return err
}

// count adds an attempt with a cost to the record, and sets ex.limited to the limit error of the response. Every sent request
// costs quota, except an authenticated request with a 304.
func (ex *exchange) count(resp *http.Response, o limits.Outcome, cost int) {
	ex.record.Attempts++
	ex.limited, ex.record.Limited, ex.record.LimitAnswer = o.Limited, o.Limited, ""
	if o.Limited != limits.NotLimited {
		ex.record.LimitAnswer = ex.limitError.Name
	}
	ex.record.OutsideRange = cmp.Or(o.Rate.Ignored, o.Outside)
	if o.Sent {
		ex.record.Spent += cost * (1 + o.Resent)
	}
	if resp != nil && resp.StatusCode == http.StatusNotModified && ex.identity.Caller.Kind != policy.Unauthenticated {
		ex.record.Spent -= cost
	}
}

// settle reports the outcome of a permit to the ledger, even after a disconnect of the client. Without the outcome, the
// ledger would hold the permit's quota until the permit expires. settle returns the cost of the request.
func (g *Gateway) settle(ex *exchange, permit limits.Permit, outcome limits.Outcome) (cost int) {
	if outcome.Rate.Resource != "" {
		ex.record.Resource = outcome.Rate.Resource
	}
	s := g.beginStage(ex, ex.detach(), stageSettle)
	cost, err := g.Limiter.Settle(s.ctx, permit, outcome)
	s.end("", err)
	if err != nil {
		// The ledger logs once that its store is unavailable, and settles later.
		g.Log.DebugContext(s.ctx, "permit not settled", "request", ex.record.ID, "error", err)
	}
	return cost
}

// release frees the concurrency slot of a permit.
func (g *Gateway) release(ex *exchange, permit limits.Permit, aborted bool) {
	if err := g.Limiter.Release(ex.detach(), permit, aborted); err != nil {
		g.Log.DebugContext(ex.detach(), "permit not released", "request", ex.record.ID, "error", err)
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
func (g *Gateway) waitsForLimit(ex *exchange, o limits.Outcome) bool {
	now := time.Now()
	var end time.Time
	switch {
	case o.Limited == limits.NotLimited || !ex.match.Operation.Safe() || ex.hasAlternative || !g.Limiter.Enforces():
		return false
	case o.Limited == limits.ContentLimit, o.Limited == limits.PrimaryLimit && cmp.Or(o.Rate.Resource, ex.resource) != ex.resource:
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
	return end.After(now) && !end.Add(limitRounding).After(ex.deadline(g.Wait))
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
func (g *Gateway) recognizeLimit(ex *exchange, resp *http.Response, outcome *limits.Outcome, permit limits.Permit) limits.LimitError {
	a := policy.UpstreamAnswer{
		Status: resp.StatusCode, Header: resp.Header, GraphQL: ex.graphQL != nil,
		Unproven: ex.sentCredential != nil && ex.sentCredential.IsUnproven(),
	}
	if g.mayReportLimit(ex, resp) {
		a.Body = peekText(resp)
	}
	e := g.Limiter.ReadLimitError(permit.Account, a)
	retryAfter := boundRetryAfter(resp.Header, outcome)
	if e.Kind != limits.NotLimited {
		outcome.RetryAfter = retryAfter
	}
	if e.Repeated == 0 {
		outcome.Limited = e.Kind
	}
	ex.lateLimit = nil
	if a.GraphQL && resp.StatusCode == http.StatusOK && len(a.Body) >= maxPeek && e.Kind == limits.NotLimited && resp.Header.Get("Content-Encoding") == "" {
		ex.lateLimit = g.watchEnd(ex, resp, permit)
	}
	if a.GraphQL && resp.StatusCode == http.StatusOK {
		cost, executed, outside := limits.ReadCost(a.Body)
		if outside {
			outcome.Outside = policy.GraphQLCost.Name
		}
		if outcome.Succeeded = executed; ex.graphQL.ReportsCost {
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
func (g *Gateway) mayReportLimit(ex *exchange, resp *http.Response) bool {
	const longestError = 1 << 10
	switch status := resp.StatusCode; {
	case resp.Body == http.NoBody:
		return false
	case ex.graphQL != nil:
		return status < http.StatusInternalServerError
	case status >= http.StatusBadRequest:
		return status < http.StatusInternalServerError && (g.Host == "" || status == http.StatusForbidden || status == http.StatusTooManyRequests)
	case status != http.StatusOK, resp.ContentLength == 0, resp.ContentLength > longestError, g.Host != "",
		!g.isPlainType(ex, resp.Header.Get("Content-Type")), g.Dialect.Accept(ex.in.Header["Accept"]) != "":
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
func (g *Gateway) isPlainType(ex *exchange, contentType string) bool {
	mediaType, _, _ := strings.Cut(contentType, ";")
	mediaType = strings.ToLower(strings.TrimSpace(mediaType))
	return mediaType == "application/json" || ex.match.Operation.Known() && (mediaType == "text/plain" || g.Dialect.Accept([]string{mediaType}) == "")
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
