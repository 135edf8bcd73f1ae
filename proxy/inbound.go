package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/inbound"
)

// throttle refuses a request from an address that sends too fast, or has too many requests in progress. ServeHTTP calls
// throttle before all other checks, because throttle is the cheapest check. If the client does not read refusals, throttle
// closes the connection.
func (g *Gateway) throttle(ex *exchange) error {
	ex.address = g.TrustedProxies.ClientAddress(ex.in)
	var refusal error
	switch {
	case !g.RateLimiter.Allow(ex.address, ex.record.Start):
		refusal = rateExceeded(ex.address, time.Second) // the rate is at least one request per second
	case !g.RateLimiter.Enter(ex.address, ex.record.Start):
		refusal = &failure{
			status: http.StatusTooManyRequests, detail: "inbound", retryAfter: time.Second,
			message: "Too Many Requests: this address has as many requests in progress as the gateway lets one address have",
			cause:   fmt.Errorf("limits.inbound.burst: requests in progress of %s exceeded", ex.address),
		}
	default:
		ex.leave = g.RateLimiter.Leave
		return nil
	}
	switch {
	case g.RateLimiter.EnterRefused(ex.address, ex.record.Start):
		ex.leave = g.RateLimiter.LeaveRefused
	case !g.TrustedProxies.SentBy(ex.in): // other clients share the connection of a trusted proxy
		inbound.Disconnect(ex.in)
	}
	inbound.ShortenWrites(ex.w.ResponseWriter)
	return refusal
}

// rateExceeded is the refusal for an address above its rate, whose request can succeed after a time.
func rateExceeded(address netip.Addr, after time.Duration) error {
	return &failure{
		status: http.StatusTooManyRequests, detail: "inbound", retryAfter: after,
		message: "Too Many Requests: this address sends faster than the gateway lets one address send",
		cause:   fmt.Errorf("limits.inbound.rate: request rate of %s exceeded", address),
	}
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

// unknownRetry is the Retry-After if no component knows when a retry can succeed.
const unknownRetry = time.Second

// shed refuses a request if too many requests wait. If the result is nil, Shedder.Leave must be called after the wait.
func (g *Gateway) shed(p policy.Priority) error {
	if g.Shedder.Enter(p) {
		return nil
	}
	return &failure{
		status: http.StatusServiceUnavailable, detail: "overload", retryAfter: unknownRetry,
		message: "Service Unavailable: too many requests wait in this gateway",
	}
}

// bodyFault returns the refusal for an invalid or incomplete request body, or err if the body is valid. The client may have
// closed only its sending side, so it gets a response.
func (ex *exchange) bodyFault(err error) error {
	invalid := ex.body.Err()
	if invalid == nil {
		return err
	}
	f := &failure{status: http.StatusBadRequest, message: "Bad Request: the framing of the body is invalid", cause: invalid, closes: true}
	switch {
	case invalid.Timeout:
		f.status, f.message = http.StatusRequestTimeout, "Request Timeout: the body arrives too slowly"
	case invalid.Incomplete:
		f.message = "Bad Request: the body is incomplete; the client stopped sending before its end"
	}
	return f
}

// drained returns the refusal for a request that the drain has canceled, otherwise nil. The refusal suggests a retry
// only if the upstream cannot have executed an unsafe request.
func (ex *exchange) drained() *failure {
	switch {
	case !errors.Is(context.Cause(ex.in.Context()), inbound.ErrDrained):
		return nil
	case ex.record.Attempts > 0 && !ex.question.match.Operation.Safe():
		return &failure{
			status: http.StatusGatewayTimeout, detail: "drain", cause: inbound.ErrDrained,
			message: "Gateway Timeout: shutting down before the upstream responded; the request may have been executed",
		}
	}
	return &failure{
		status: http.StatusServiceUnavailable, detail: "drain", retryAfter: unknownRetry, cause: inbound.ErrDrained,
		message: "Service Unavailable: shutting down; retry against another replica",
	}
}

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

// recorder is the client's ResponseWriter, and records the status and the size of the response.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
	closes bool // the response closes the connection
	drain  *inbound.Drain
}

// newRecorder returns the recorder for the response to a request. The connection closes after a body that another
// program may frame differently. Such bodies belong to HTTP/1.0 requests, or may have both Content-Length and chunks
// (RFC 9112 section 6.1). Another program could see a second request in the same bytes.
func newRecorder(w http.ResponseWriter, r *http.Request, timeout time.Duration, drain *inbound.Drain) *recorder {
	closes := r.ProtoMajor == 1 && (r.ProtoMinor == 0 || len(r.TransferEncoding) > 0)
	return &recorder{ResponseWriter: inbound.LimitWrites(w, r, timeout), closes: closes, drain: drain}
}

func (r *recorder) WriteHeader(status int) {
	if status >= 200 && r.status == 0 {
		r.status = status
		if r.closes || r.drain.Begun() {
			r.Header().Set("Connection", "close")
		}
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	n, err := r.ResponseWriter.Write(p)
	r.bytes += int64(n)
	return n, err
}

// flush waits until a short HTTP/2 response is written to the connection, so that the request counts as in progress as
// long as it holds memory. Write already waits for long responses.
func (r *recorder) flush(in *http.Request) {
	if in.ProtoMajor > 1 && r.status != 0 {
		_ = http.NewResponseController(r).Flush() // an error means that the client has disconnected
	}
}

// showAbort lets the client see that the response is incomplete. The begun response is written to the connection, because
// clients repeat a request after an empty reply. In HTTP/1.0 the end of the connection may be the end of the body, so the
// connection is reset.
func (r *recorder) showAbort(in *http.Request, broken bool) {
	if broken && r.status != 0 {
		_ = http.NewResponseController(r).Flush() // an error means that the client has disconnected
	}
	if !in.ProtoAtLeast(1, 1) {
		inbound.ResetAtEnd(in)
	}
}

// Unwrap supports [http.ResponseController].
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
