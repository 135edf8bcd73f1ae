package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/inbound"
)

// NewTransport returns the transport for the upstream. The transport uses HTTP/2 if the upstream supports HTTP/2, no
// proxy from the environment and no transparent decompression. Idle connections are closed before the upstream's idle
// timeout of about 60 s.
func NewTransport() *http.Transport {
	return &http.Transport{
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		ForceAttemptHTTP2:      true,
		TLSHandshakeTimeout:    10 * time.Second,
		ExpectContinueTimeout:  time.Second,
		IdleConnTimeout:        30 * time.Second,
		MaxIdleConns:           256,
		MaxIdleConnsPerHost:    256,
		MaxResponseHeaderBytes: 256 << 10,
		DisableCompression:     true,
		WriteBufferSize:        32 << 10,
		ReadBufferSize:         32 << 10,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: 15 * time.Second,
			PingTimeout:     5 * time.Second,
		},
	}
}

// These errors end an attempt.
var (
	errStalled = errors.New("the upstream did not respond in time")
	errInterim = errors.New("the upstream sent too many interim responses")
	errStatus  = errors.New("the upstream sent an invalid status")
	// errUnpermitted ends a request that the transport would otherwise send again without a permit.
	errUnpermitted = fmt.Errorf("the upstream closed the connection during the request: %w", io.ErrUnexpectedEOF)
)

// maxInterim bounds the interim responses (1xx) of one attempt.
const maxInterim = 100

// send sends the request once. The outcome is also valid with an error. A request counts as sent unless it is provably
// unsent ([wire.mayHaveArrived]).
func (g *Gateway) send(a *attempt, out *http.Request, permit limits.Permit) (*http.Response, limits.Outcome, error) {
	ctx, cancel := context.WithCancelCause(a.ctx)
	w := &wire{start: time.Now(), timeout: a.match.Operation.HeaderSilence(g.Timeout), ctx: ctx, cancel: cancel}
	w.timer = time.AfterFunc(w.timeout, func() { cancel(errStalled) })
	hooks, sent := w.hooks(a.interim, a.match.Operation.Safe()), *out
	if out.Body != nil && out.Body != http.NoBody {
		uploaded := g.Limiter.Upload(permit)
		hooks.WroteRequest = func(httptrace.WroteRequestInfo) { w.noteSent(); uploaded() }
		sent.Body = &requestBody{out.Body, w}
	}
	resp, err := g.Transport.RoundTrip(sent.WithContext(httptrace.WithClientTrace(ctx, hooks)))
	o := limits.Outcome{Sent: err == nil || w.mayHaveArrived(ctx), Resent: int(w.copies.Load())}
	if o.Sent {
		o.Elapsed = time.Since(w.start) - time.Duration(w.sent.Load())
	}
	a.reused = w.reused.Load()
	if err == nil && policy.Status.IsOutside(int64(resp.StatusCode)) { // net/http cannot send it to a client
		_ = resp.Body.Close()
		err, o.Outside = fmt.Errorf("%w: %d", errStatus, resp.StatusCode), policy.Status.Name
	}
	if err != nil {
		err = w.cause(err)
		w.stop()
		return nil, o, err
	}
	if hasNoContent(resp) {
		_ = resp.Body.Close()
		resp.Body = http.NoBody
		w.stop()
	} else {
		body := &responseBody{resp.Body, w, a.match.Operation.BodySilence(resp.Header.Get("Content-Type"), g.Timeout)}
		w.timer.Reset(body.timeout)
		if body := resp.Body; hooks.WroteRequest != nil && resp.ProtoMajor > 1 { // a request with a body
			// The transport does not notice a cancellation while it waits for the upstream to accept more of the request.
			context.AfterFunc(ctx, func() { _ = body.Close() })
		}
		resp.Body = body
	}
	o.Answered = true
	o.Failed = resp.StatusCode >= http.StatusInternalServerError ||
		resp.StatusCode == http.StatusRequestTimeout || resp.StatusCode == http.StatusTooEarly
	o.Succeeded = resp.StatusCode < http.StatusBadRequest
	o.Unauthorized = resp.StatusCode == http.StatusUnauthorized
	o.Uncounted = resp.StatusCode == http.StatusNotModified && permit.Kind != policy.Unauthenticated || a.match.Operation.ID == rateLimitOperation
	o.Rate = g.Limiter.ReadRate(resp.Header)
	a.limitError = g.recognizeLimit(a, resp, &o, permit)
	return resp, o, nil
}

// wire is the state of one attempt. The attempt is canceled after a pause of the timeout during the request or before the
// response; a response body has a timeout of its own. The total time of a body has no bound. The transport reports events from its own goroutines.
type wire struct {
	start   time.Time
	timeout time.Duration
	timer   *time.Timer
	ctx     context.Context // of the attempt
	cancel  context.CancelCauseFunc

	reused    atomic.Bool  // the connection had been used before
	connected atomic.Bool  // the transport has had a connection for the request
	written   atomic.Int32 // number of times that the header was written
	copies    atomic.Int32 // number of times that the header was written before the last connection or stream
	sent      atomic.Int64 // time of the latest sent part of the request, in nanoseconds since start
	interim   atomic.Int32 // number of interim responses
	ended     atomic.Bool  // set before the transport sends the request again
}

func (w *wire) hooks(interim func(int, textproto.MIMEHeader) error, safe bool) *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		// If a reused connection ends without a response, the transport sends a request again, even an unsafe request
		// with an Idempotency-Key. GotConn prevents the copy, which has no permit; [Gateway.retries] decides about
		// retries. Over HTTP/2, the transport may send a copy of a safe request, and the permit is charged for the copy,
		// too. A copy of an unsafe request has a permit of its own, and could be processed twice: the transport of Go
		// 1.26 also sends one after the upstream has reset the stream with PROTOCOL_ERROR.
		GotConn: func(c httptrace.GotConnInfo) {
			w.connected.Store(true)
			w.noteSent()
			switch written := w.written.Load(); {
			case written == 0:
				w.reused.Store(c.Reused)
			case isHTTP2(c.Conn) && safe:
				w.copies.Store(written)
			default:
				w.ended.Store(true)
				w.cancel(errUnpermitted)
				if !isHTTP2(c.Conn) { // other requests share a connection of HTTP/2
					_ = c.Conn.Close()
				}
			}
		},
		WroteHeaders: func() {
			if !w.ended.Load() && w.written.Add(1) == 1 {
				w.noteSent()
			}
		},
		Got1xxResponse: func(status int, header textproto.MIMEHeader) error {
			if w.interim.Add(1) > maxInterim {
				w.cancel(errInterim)
			}
			return interim(status, header)
		},
	}
}

// mayHaveArrived reports whether the upstream may have received the header of the request. After a cancellation,
// RoundTrip returns before its goroutines have ended, and over HTTP/2 they may still write the header. So a canceled
// request is provably unsent only if it had no connection.
func (w *wire) mayHaveArrived(ctx context.Context) bool {
	return w.written.Load() > 0 || w.connected.Load() && ctx.Err() != nil
}

// noteSent records that another part of the request was sent. Outcome.Elapsed starts at the last part, so that the
// upload does not count as upstream time.
func (w *wire) noteSent() { w.sent.Store(int64(time.Since(w.start))) }

// cause returns the reason why the attempt was canceled, or err if it was not canceled. The transport itself returns
// context.Canceled over HTTP/2, which would look like a disconnect of the client.
func (w *wire) cause(err error) error {
	if cause := context.Cause(w.ctx); cause != nil {
		return cause
	}
	return err
}

func (w *wire) stop() {
	w.timer.Stop()
	w.cancel(nil)
}

// hasNoContent reports whether a response ends with its header (RFC 9110 section 6.4.1), with any Content-Length.
// Over HTTP/2, the transport returns an error for the body of such a response if it has a Content-Length.
func hasNoContent(resp *http.Response) bool {
	return resp.Body == http.NoBody || resp.StatusCode == http.StatusNoContent || resp.StatusCode == http.StatusNotModified ||
		resp.Request != nil && resp.Request.Method == http.MethodHead
}

func isHTTP2(c net.Conn) bool {
	secure, ok := c.(interface{ ConnectionState() tls.ConnectionState })
	return ok && secure.ConnectionState().NegotiatedProtocol == "h2"
}

// requestBody reports the progress of an upload. An error of the client ends the attempt, so that neither the upstream nor the
// client takes a part of the body for the whole.
type requestBody struct {
	io.ReadCloser
	wire *wire
}

func (b *requestBody) Read(p []byte) (int, error) {
	b.wire.timer.Stop() // the client has a deadline of its own (inbound.Body)
	n, err := b.ReadCloser.Read(p)
	b.wire.timer.Reset(b.wire.timeout)
	b.wire.noteSent()
	_, invalid := errors.AsType[*inbound.BodyError](err)
	if _, refused := errors.AsType[*failure](err); invalid || refused {
		b.wire.cancel(err)
	}
	return n, err
}

// responseBody reports the progress of a response, and ends the attempt when it is closed.
type responseBody struct {
	io.ReadCloser
	wire    *wire
	timeout time.Duration // longest pause
}

func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.wire.timer.Reset(b.timeout)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.wire.cause(err)
	}
	return n, err
}

func (b *responseBody) Close() error {
	err := b.ReadCloser.Close()
	b.wire.stop()
	return err
}

// copyBuffer is the size of the buffers for copying bodies.
const copyBuffer = 32 << 10

// bufferPool is an [httputil.BufferPool] (BenchmarkPass).
type bufferPool struct{ pool sync.Pool }

func (p *bufferPool) Get() []byte {
	if b, ok := p.pool.Get().(*[copyBuffer]byte); ok {
		return b[:]
	}
	return make([]byte, copyBuffer)
}

func (p *bufferPool) Put(b []byte) { p.pool.Put((*[copyBuffer]byte)(b)) }
