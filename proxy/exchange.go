package proxy

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/textproto"
	"runtime/debug"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/fields"
	"github.com/weirgate/weir/proxy/inbound"
	"github.com/weirgate/weir/proxy/record"
	"github.com/weirgate/weir/proxy/refusal"
	"github.com/weirgate/weir/proxy/secrets"
	"github.com/weirgate/weir/proxy/spool"
	"github.com/weirgate/weir/proxy/tracing"
)

// exchange is the client's side of a request in progress. Only the goroutine that serves the request changes the exchange.
// The exchange is never copied.
type exchange struct {
	w  inbound.Recorder
	in *http.Request
	upload
	address      netip.Addr // of the client
	counted      counted    // how RateLimiter counts the request in progress
	waitingSince time.Time  // start of the wait for the deadline
	debug        bool       // the client may send the field Weir-Debug
	authorized   bool       // the client may send the request; only these clients get the trace of the request
	prefix       string     // prefix of the client's path: Config.Prefix, "/api/v3", or both
	prefer       fields.Preference
	// question is nil before the operation is known, and has no credential before ask has chosen one. publish replaces it by the question of
	// the attempt whose result the client gets.
	question  *question
	shed      error                                 // the refusal of an overloaded gateway
	broken    bool                                  // the upstream's body ended early
	lateLimit *lateLimit                            // of the published attempt
	permitted *permitted                            // the last request upstream, from its permit on
	pass      func(int, textproto.MIMEHeader) error // passes a 1xx response to the client
	answer    io.Closer                             // the body that is forwarded
	trace     tracing.Request
	record    *record.Record // observers keep the record after the exchange
}

// upload is the body of the client's request.
type upload struct {
	body      *inbound.Body // body of in; nil without a body
	buffered  *spool.Buffer // prefix of the body that was read in advance; nil before that read
	wholeBody bool          // buffered contains the complete body
}

// open returns a new exchange with a client.
func (g *Gateway) open(w http.ResponseWriter, r *http.Request) *exchange {
	ex := g.newExchange(w, r)
	ex.in, ex.trace = g.tracer.Serve(ex.in, ex.record)
	return ex
}

// openBackground returns a new exchange without a client. cause is the span of the request that caused it.
func (g *Gateway) openBackground(in *http.Request, cause trace.SpanContext) *exchange {
	ex := g.newExchange(&discardWriter{http.Header{}}, in)
	ex.in, ex.trace = g.tracer.Background(ex.in, ex.record, cause)
	return ex
}

func (g *Gateway) newExchange(w http.ResponseWriter, r *http.Request) *exchange {
	ex := &exchange{w: inbound.NewRecorder(w, r, g.Timeout, g.Drain), waitingSince: time.Now()}
	ex.in, ex.body = inbound.LimitBody(w, r, g.Timeout, g.BodyTimeout)
	ex.record = &record.Record{ID: rand.Text(), Start: ex.waitingSince, Request: record.Request{Method: record.MethodLabel(r.Method), Route: record.OtherRoute, Path: record.OtherRoute, Upstream: g.Upstream.Hostname()}}
	ex.prefer = fields.ParsePrefer(r.Header[fields.Prefer])
	return ex
}

// throttle refuses a request from an address that sends too fast, or has too many requests in progress. ServeHTTP calls
// throttle before all other checks, because throttle is the cheapest check. If the client does not read refusals, throttle
// closes the connection.
func (g *Gateway) throttle(ex *exchange) error {
	ex.address = g.TrustedProxies.ClientAddress(ex.in)
	var err error
	switch {
	case !g.RateLimiter.Allow(ex.address, ex.record.Start):
		err = rateExceeded(ex.address, time.Second) // the rate is at least one request per second
	case !g.RateLimiter.Enter(ex.address, ex.record.Start):
		err = &refusal.Error{
			Status: http.StatusTooManyRequests, Detail: "inbound", RetryAfter: time.Second,
			Message: "Too Many Requests: this address has as many requests in progress as the gateway lets one address have",
			Cause:   fmt.Errorf("limits.inbound.burst: requests in progress of %s exceeded", ex.address),
		}
	default:
		ex.counted = countedInProgress
		return nil
	}
	switch {
	case g.RateLimiter.EnterRefused(ex.address, ex.record.Start):
		ex.counted = countedRefused
	case !g.TrustedProxies.SentBy(ex.in): // other clients share the connection of a trusted proxy
		inbound.Disconnect(ex.in)
	}
	inbound.ShortenWrites(ex.w.ResponseWriter)
	return err
}

// counted is the way in which the RateLimiter counts a request in progress.
type counted int

const (
	notCounted counted = iota
	countedInProgress
	countedRefused
)

// leave ends the request in progress of the RateLimiter.
func (g *Gateway) leave(ex *exchange) {
	switch ex.counted {
	case countedInProgress:
		g.RateLimiter.Leave(ex.address)
	case countedRefused:
		g.RateLimiter.LeaveRefused(ex.address)
	}
}

// rateExceeded returns the refusal for an address above its rate, whose request can succeed after a time.
func rateExceeded(address netip.Addr, after time.Duration) error {
	return &refusal.Error{
		Status: http.StatusTooManyRequests, Detail: "inbound", RetryAfter: after,
		Message: "Too Many Requests: this address sends faster than the gateway lets one address send",
		Cause:   fmt.Errorf("limits.inbound.rate: request rate of %s exceeded", address),
	}
}

// viaOf returns the Via value that is added to a request. Another version 1.x counts as 1.1 (RFC 9110 section 2.5).
func (g *Gateway) viaOf(r *http.Request) []string {
	if via, ok := g.via[r.Proto]; ok {
		return via
	}
	return g.via["HTTP/1.1"]
}

// forwardsBody reports whether the request has a body that is sent upstream.
func (ex *exchange) forwardsBody() bool {
	return ex.body != nil && ex.in.Method != http.MethodGet && ex.in.Method != http.MethodHead
}

// discardBody reads a body that is not sent upstream to its end, because an incomplete request must not succeed.
func (ex *exchange) discardBody() error {
	_, err := io.Copy(io.Discard, ex.in.Body)
	ex.waitingSince = time.Now()
	if err != nil {
		return ex.bodyFault(err)
	}
	return nil
}

// bodyFault returns the refusal for an invalid or incomplete request body, or err if the body is valid. The client may have
// closed only its sending side, so it gets a response.
func (ex *exchange) bodyFault(err error) error {
	invalid := ex.body.Err()
	if invalid == nil {
		return err
	}
	f := &refusal.Error{Status: http.StatusBadRequest, Message: "Bad Request: the framing of the body is invalid", Cause: invalid, Closes: true}
	switch {
	case invalid.Timeout:
		f.Status, f.Message = http.StatusRequestTimeout, "Request Timeout: the body arrives too slowly"
	case invalid.Incomplete:
		f.Message = "Bad Request: the body is incomplete; the client stopped sending before its end"
	}
	return f
}

// bytesPerRequest is the size of a GraphQL call for which it counts as one more request of its address, because the time
// to analyse a call grows with its size.
const bytesPerRequest = 4 << 10

// throttleSize refuses a GraphQL call of an address that sends too many large calls.
func (g *Gateway) throttleSize(ex *exchange, body []byte) error {
	n := len(body) / bytesPerRequest
	if n == 0 {
		return nil
	}
	if after := g.RateLimiter.AllowN(ex.address, n, time.Now()); after > 0 {
		return rateExceeded(ex.address, after)
	}
	return nil
}

// detach returns the request's context without its cancellation, for work that must survive a disconnect.
func (ex *exchange) detach() context.Context { return context.WithoutCancel(ex.in.Context()) }

// untilDrained returns a context that survives a disconnect of the client. Only the drain cancels the context.
func (ex *exchange) untilDrained() context.Context {
	in := ex.in.Context()
	ctx, cancel := context.WithCancelCause(ex.detach())
	context.AfterFunc(in, func() {
		if cause := context.Cause(in); errors.Is(cause, inbound.ErrDrained) {
			cancel(cause)
		}
	})
	return ctx
}

// drained returns the refusal for a request that the drain has canceled, otherwise nil. The refusal suggests a retry
// only if the upstream cannot have executed an unsafe request.
func (ex *exchange) drained() *refusal.Error {
	switch {
	case !errors.Is(context.Cause(ex.in.Context()), inbound.ErrDrained):
		return nil
	case ex.record.Sent > 0 && !ex.question.match.Operation.Safe():
		return &refusal.Error{
			Status: http.StatusGatewayTimeout, Detail: "drain", Cause: inbound.ErrDrained,
			Message: "Gateway Timeout: shutting down before the upstream responded; the request may have been executed",
		}
	}
	return &refusal.Error{
		Status: http.StatusServiceUnavailable, Detail: "drain", RetryAfter: refusal.UnknownRetry, Cause: inbound.ErrDrained,
		Message: "Service Unavailable: shutting down; retry against another replica",
	}
}

// finish completes and traces the record of the exchange, and calls Observe. After a panic, finish ends the permits of the
// exchange, and responds with 500 if no response has begun. Otherwise finish panics with [http.ErrAbortHandler], so that
// the client sees an incomplete response. An exchange without a response ends in the same way, because net/http would
// respond with 200.
func (g *Gateway) finish(ex *exchange) {
	p := recover()
	defer ex.body.Detach()
	defer ex.buffered.Release()
	defer inbound.LimitEnd(ex.w.ResponseWriter)
	if ex.counted != notCounted {
		defer func() {
			if ex.body == nil { // net/http resets a stream with an unread body
				ex.w.FlushShort(ex.in)
			}
			g.leave(ex)
		}()
	}
	switch {
	case p == nil:
	case ex.answer != nil:
		_ = ex.answer.Close()
	default:
		ex.permitted.abandon()
	}
	if err, _ := p.(error); p != nil && !errors.Is(err, http.ErrAbortHandler) {
		g.Log.ErrorContext(ex.detach(), "panic in a request", "request", ex.record.ID, "panic", p, "stack", string(debug.Stack()))
		if ex.w.Status == 0 {
			g.refuse(ex, &refusal.Error{Status: http.StatusInternalServerError, Message: "Internal Server Error"})
			p = nil
		}
	}
	ex.record.Status, ex.record.Bytes = ex.w.Status, ex.w.Bytes
	ex.record.Elapsed = time.Since(ex.record.Start)
	if p != nil || errors.Is(context.Cause(ex.in.Context()), context.Canceled) && ex.w.Status == 0 {
		ex.record.Status = refusal.ClientGone
		if ex.broken {
			ex.record.Status = http.StatusBadGateway // the record has 502, although the client got another status
		}
	}
	g.conclude(ex)
	ex.trace.End(ex.in, ex.address)
	if g.Observe != nil {
		g.Observe(ex.record)
	}
	if (p != nil || ex.w.Status == 0) && !ex.record.Background { // a background task has no client
		ex.w.ShowAbort(ex.in, ex.broken)
		panic(http.ErrAbortHandler)
	}
}

// conclude sets the fields that describe the result and the target at the end of the request.
func (g *Gateway) conclude(ex *exchange) {
	r := ex.record
	if ex.lateLimit != nil {
		e, failure := ex.lateLimit.result()
		r.QueryFailure = failure
		if e.Kind != policy.NotLimited {
			r.SetLimit(e)
		}
	}
	r.Account = g.Ledger.Canonical(r.Account)
	r.Outcome = r.Cache.Outcome()
	r.Target = ex.question.targetHash()
	switch q := ex.question; {
	case q == nil, r.Background, r.Spent > 0, r.Status == refusal.ClientGone, r.Operation == rateLimitOperation:
	case r.Status == http.StatusNotModified && q.caller.Kind != policy.Unauthenticated:
		// An authenticated 304 costs no quota at the upstream either.
	default:
		r.Saved = r.Outcome != record.OutcomeRefused && r.Outcome != record.OutcomeBypass && r.Outcome != record.OutcomeMiss
	}
}

// maskedPath returns the path for records and traces, without segments that may contain a secret. For an unknown operation,
// maskedPath returns the route.
func (ex *exchange) maskedPath() string {
	if ex.question == nil || !ex.question.match.Operation.Known() {
		return ex.record.Route
	}
	return secrets.MaskPath(ex.question.match.Path, ex.in.Header)
}

// targetHash returns a hash that identifies the target of a request, with its query and with a GraphQL query and its
// variables. Two requests with the same hash and the same caller are the same question. The hash is empty for a GraphQL
// call that cannot share a response, such as a mutation.
func (q *question) targetHash() string {
	switch {
	case q == nil, q.graphQL != nil && q.graphQL.Question == "":
		return ""
	case q.graphQL != nil:
		return hexOf(cache.NewKey(q.match.Path, q.match.Query, q.graphQL.Question))
	}
	return hexOf(cache.NewKey(q.match.Path, q.match.Query))
}

func hexOf(key cache.Key) string { return hex.EncodeToString(key[:8]) }

// deadline returns the end of the client's wait. The client waits for byDefault without a Prefer field.
func (ex *exchange) deadline(byDefault time.Duration) time.Time {
	if ex.prefer.Given {
		byDefault = ex.prefer.Wait
	}
	return ex.waitingSince.Add(byDefault)
}
