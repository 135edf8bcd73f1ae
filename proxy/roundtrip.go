package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weirgate/weir/internal/contentcoding"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/bodies"
	"github.com/weirgate/weir/proxy/fields"
	"github.com/weirgate/weir/proxy/inbound"
	"github.com/weirgate/weir/proxy/refusal"
	"github.com/weirgate/weir/proxy/wire"
)

// roundTrip sends the request once. The outcome is also valid with an error. A request counts as sent unless it is provably
// unsent ([wire.Request.MayHaveArrived]).
func (g *Gateway) roundTrip(a *attempt, out *http.Request, permit limits.Permit) (*http.Response, limits.Outcome, error) {
	w := wire.Request{
		Timeout: a.match.Operation.HeaderSilence(g.Timeout), Safe: a.match.Operation.Safe(), Ends: endsRequest,
		Pass: func(status int, header textproto.MIMEHeader) error {
			kept := fields.Interim(a.match.Operation, g.Dialect.Vendor, http.Header(header))
			g.localize(a.exchange, kept)
			return a.pass(status, textproto.MIMEHeader(kept))
		},
	}
	if out.Body != nil && out.Body != http.NoBody {
		w.Uploaded = g.Limiter.Upload(permit)
	}
	answered := false
	defer func() {
		if !answered { // also after a panic
			w.Stop()
		}
	}()
	resp, err := w.Do(a.ctx, g.Transport, out)
	o := limits.Outcome{Sent: err == nil || w.MayHaveArrived(), Resent: w.Copies()}
	if o.Sent {
		o.Elapsed = w.Elapsed()
	}
	a.reused = w.Reused()
	if err == nil && policy.Status.IsOutside(int64(resp.StatusCode)) { // net/http cannot send it to a client
		_ = resp.Body.Close()
		err, o.Outside = fmt.Errorf("%w: %d", errStatus, resp.StatusCode), policy.Status.Name
	}
	if err != nil {
		return nil, o, w.Cause(err) // the deferred function stops w
	}
	w.LimitBody(resp, a.match.Operation.BodySilence(resp.Header.Get("Content-Type"), g.Timeout))
	o.Answered = true
	o.Failed = resp.StatusCode >= http.StatusInternalServerError ||
		resp.StatusCode == http.StatusRequestTimeout || resp.StatusCode == http.StatusTooEarly
	o.Succeeded = resp.StatusCode < http.StatusBadRequest
	o.Unauthorized = resp.StatusCode == http.StatusUnauthorized
	o.Uncounted = resp.StatusCode == http.StatusNotModified && permit.Kind != policy.Unauthenticated || a.match.Operation.ID == rateLimitOperation
	o.Rate = g.Limiter.ReadRate(resp.Header)
	a.limitError = g.recognizeLimit(a, resp, &o, permit)
	answered = true
	return resp, o, nil
}

// errStatus ends a request whose response net/http cannot send to a client.
var errStatus = errors.New("the upstream sent an invalid status")

// endsRequest reports whether an error of a request body is an error of the client, or a refusal.
func endsRequest(err error) bool {
	_, invalid := errors.AsType[*inbound.BodyError](err)
	_, refused := errors.AsType[*refusal.Error](err)
	return invalid || refused
}

// recognizeLimit adds a limit error to the outcome, and returns the error. GraphQL reports a limit with status 200.
// recognizeLimit also adds the cost that a short response to a GraphQL call reports. It removes the rate headers of a refused
// credential, because they report another budget.
func (g *Gateway) recognizeLimit(a *attempt, resp *http.Response, outcome *limits.Outcome, permit limits.Permit) policy.LimitError {
	answer := policy.UpstreamAnswer{
		Status: resp.StatusCode, Header: resp.Header, GraphQL: a.graphQL != nil,
		Unproven: a.sentCredential != nil && a.sentCredential.IsUnproven(),
	}
	if g.mayReportLimit(a, resp) {
		answer.Body = bodies.PeekText(resp)
	}
	e := g.Limiter.ReadLimitError(permit.Account, answer)
	if a.sentCredential != nil && e.Kind == policy.NotLimited && (answer.GraphQL || resp.StatusCode == http.StatusForbidden) && policy.LacksPermission(answer.Body) {
		a.sentCredential.Denied()
		a.lacksPermission = true
	}
	retryAfter := boundRetryAfter(resp.Header, outcome)
	if e.Kind != policy.NotLimited {
		outcome.RetryAfter = retryAfter
	}
	if e.Repeated == 0 {
		outcome.Limited = e.Kind
	}
	a.lateLimit = nil
	if answer.GraphQL && resp.StatusCode == http.StatusOK && len(answer.Body) >= bodies.MaxPeek && e.Kind == policy.NotLimited && resp.Header.Get("Content-Encoding") == "" {
		a.lateLimit = g.watchEnd(a, resp, permit)
	} else if len(answer.Body) < bodies.MaxPeek {
		a.record.QueryFailure = g.observeQuery(a.question, permit.Account, answer, outcome.Elapsed)
	}
	if answer.GraphQL && resp.StatusCode == http.StatusOK {
		cost, executed, outside := policy.ReadGraphQLCost(answer.Body)
		if outside {
			outcome.Outside = policy.GraphQLCost.Name
		}
		if outcome.Succeeded = executed; a.graphQL.ReportsCost {
			outcome.Cost = cost
		}
	}
	if outcome.Unauthorized && permit.Kind != policy.Unauthenticated {
		outcome.Rate = policy.Rate{}
		policy.RemoveRate(resp.Header)
	}
	return e
}

// boundRetryAfter returns the Retry-After of a response. The client gets no value outside the range.
func boundRetryAfter(h http.Header, outcome *limits.Outcome) time.Duration {
	wait, v := policy.ReadRetryAfter(h, time.Now())
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
// REST is rarely one, so its length or its beginning decides. It must be JSON of the API, because other
// representations are texts of users.
func (g *Gateway) mayReportLimit(a *attempt, resp *http.Response) bool {
	const longestError = 1 << 10
	switch status := resp.StatusCode; {
	case resp.Body == http.NoBody:
		return false
	case a.graphQL != nil:
		return true
	case status >= http.StatusBadRequest:
		return g.Host == "" || status == http.StatusForbidden || status == http.StatusTooManyRequests
	case status >= http.StatusMultipleChoices, resp.ContentLength == 0, resp.ContentLength > longestError, g.Host != "",
		!g.isPlainType(a, resp.Header.Get("Content-Type")), g.Dialect.SelectsFile(a.Header["Accept"]):
		return false
	case resp.ContentLength > 0:
		return true
	}
	start, text := make([]byte, 0, longestError), []byte(nil)
	var err error
	for n := 0; err == nil && len(start) < longestError && policy.BeginsAsError(text); {
		n, err = resp.Body.Read(start[len(start):longestError])
		start = start[:len(start)+n]
		text = contentcoding.Decode(resp.Header.Get("Content-Encoding"), start, longestError)
	}
	resp.Body = bodies.Rejoin(start, err, resp.Body)
	return policy.BeginsAsError(text) && bytes.Contains(text, []byte(`"message"`))
}

// isPlainType reports whether a Content-Type may be that of an error in a success. An operation of the catalogue has JSON in
// its plain representation, so a missing or a wrong type does not hide an error.
func (g *Gateway) isPlainType(a *attempt, contentType string) bool {
	mediaType, _, _ := strings.Cut(contentType, ";")
	mediaType = strings.ToLower(strings.TrimSpace(mediaType))
	return mediaType == "application/json" || a.match.Operation.Known() && (mediaType == "text/plain" || g.Dialect.Accept([]string{mediaType}) == "")
}

// lateLimit is what the end of a GraphQL response shows that is too long for a peek. Its errors follow the data.
type lateLimit struct {
	mu      sync.Mutex // the body may be read ahead in another goroutine
	limit   policy.LimitError
	failure string
}

func (l *lateLimit) set(limit policy.LimitError, failure string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limit, l.failure = limit, failure
}

// result returns the limit error of the body, and the failure of the query, as far as the body has been read.
func (l *lateLimit) result() (e policy.LimitError, failure string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limit, l.failure
}

// watchEnd replaces the body of a response. A limit error in the last bytes of the body then counts for the account.
func (g *Gateway) watchEnd(a *attempt, resp *http.Response, permit limits.Permit) *lateLimit {
	l, header, ctx, q := &lateLimit{}, resp.Header.Clone(), a.detach(), a.question
	retryAfter, _ := policy.ReadRetryAfter(resp.Header, a.requestedAt)
	resp.Body = bodies.NewTail(resp.Body, func(tail []byte) {
		answer := policy.UpstreamAnswer{Status: http.StatusOK, Header: header, GraphQL: true, Body: lastErrors(tail)}
		var e policy.LimitError
		if answer.Body != nil {
			e = policy.ReadLimitError(answer)
		}
		l.set(e, "")
		if e.Kind != policy.NotLimited {
			if err := g.Limiter.SettleLate(ctx, permit, e.Kind, retryAfter); err != nil {
				g.Log.DebugContext(ctx, "limit error not settled", "request", a.record.ID, "error", err)
			}
		}
		l.set(e, g.observeQuery(q, permit.Account, answer, 0))
	})
	return l
}

// lastErrors returns an object with the list of errors of the outermost object that ends with tail, or nil. After any other list,
// further closing brackets follow, so the text from such a list on is no valid object.
func lastErrors(tail []byte) []byte {
	name := []byte(`"errors"`)
	for at := bytes.LastIndex(tail, name); at > 0; at = bytes.LastIndex(tail[:at], name) {
		if object := append([]byte("{"), tail[at:]...); json.Valid(object) {
			return object
		}
	}
	return nil
}
