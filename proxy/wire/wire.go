// Package wire sends single HTTP requests to the upstream, and ends those that make no progress.
package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync/atomic"
	"time"
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
			SendPingTimeout:           15 * time.Second,
			PingTimeout:               5 * time.Second,
			MaxReceiveBufferPerStream: streamWindow,
		},
	}
}

// streamWindow bounds the bytes of one response over HTTP/2 that are in flight, or wait in memory for a slow client. A round trip of
// 100 ms needs 4 MB for 40 MB/s, and more if a delay in the gateway makes it longer.
const streamWindow = 6 << 20

// maxInterim bounds the interim responses (1xx) of one request.
const maxInterim = 100

// Request is the state of one HTTP request. The request is canceled after a pause of Timeout during the upload or before the
// response; a response body has its own timeout. The total time of a body has no bound. The transport reports events from its own
// goroutines.
type Request struct {
	Timeout time.Duration
	// Safe permits that the transport sends a copy of the request over HTTP/2.
	Safe bool
	// Pass gets the interim responses.
	Pass func(status int, header textproto.MIMEHeader) error
	// Ends reports whether an error of the request body ends the request, so that neither the upstream nor the client takes a
	// part of the body for the whole.
	Ends func(error) bool
	// Uploaded is called when the body is sent. Nil means that the request has no body.
	Uploaded func()

	start  time.Time
	timer  *time.Timer
	ctx    context.Context // of the request
	cancel context.CancelCauseFunc
	hooks  httptrace.ClientTrace

	reused    atomic.Bool  // the connection had been used before
	connected atomic.Bool  // the transport has had a connection for the request
	written   atomic.Int32 // number of times that the header was written
	copies    atomic.Int32 // number of times that the header was written before the last connection or stream
	sent      atomic.Int64 // time of the latest sent part of the request, in nanoseconds since start
	interim   atomic.Int32 // number of interim responses
	ended     atomic.Bool  // set before the transport sends the request again
}

// Do sends the request with a transport. [Request.Stop] must be called unless the body of the response is closed.
func (w *Request) Do(ctx context.Context, transport http.RoundTripper, out *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	w.ctx, w.cancel, w.start = ctx, cancel, time.Now()
	w.timer = time.AfterFunc(w.Timeout, func() { cancel(ErrStalled) }) // a stopped timer may stay in memory, so it does not refer to w
	w.setHooks()
	if w.Uploaded != nil {
		w.hooks.WroteRequest = func(httptrace.WroteRequestInfo) { w.noteSent(); w.Uploaded() }
	}
	sent := out.WithContext(httptrace.WithClientTrace(w.ctx, &w.hooks))
	if w.Uploaded != nil {
		sent.Body = &requestBody{out.Body, w}
	}
	return transport.RoundTrip(sent)
}

// LimitBody ends the request when the body of its response is closed, or after a pause in it.
func (w *Request) LimitBody(resp *http.Response, pause time.Duration) {
	if hasNoContent(resp) {
		_ = resp.Body.Close()
		resp.Body = http.NoBody
		w.Stop()
		return
	}
	received := resp.Body
	w.timer.Reset(pause)
	if w.Uploaded != nil && resp.ProtoMajor > 1 {
		// The transport does not notice a cancellation while it waits for the upstream to accept more of the request.
		context.AfterFunc(w.ctx, func() { _ = received.Close() })
	}
	resp.Body = &responseBody{received, w, pause}
}

// Copies returns the number of times that the transport sent the request before the last connection or stream.
func (w *Request) Copies() int { return int(w.copies.Load()) }

// Reused reports whether the connection had been used before.
func (w *Request) Reused() bool { return w.reused.Load() }

// Elapsed returns the time since the last part of the request was sent.
func (w *Request) Elapsed() time.Duration { return time.Since(w.start) - time.Duration(w.sent.Load()) }

// setHooks sets the hooks of the request.
func (w *Request) setHooks() {
	w.hooks = httptrace.ClientTrace{
		// If a reused connection ends without a response, the transport sends a request again, even an unsafe request
		// with an Idempotency-Key. GotConn prevents the copy, which has no permit; the gateway decides about retries. Over
		// HTTP/2, the transport may send a copy of a safe request, and the permit is charged for the copy, too. A copy of
		// an unsafe request has its own permit, and could be processed twice: the transport of Go 1.26 also sends one
		// after the upstream has reset the stream with PROTOCOL_ERROR.
		GotConn: func(c httptrace.GotConnInfo) {
			w.connected.Store(true)
			w.noteSent()
			switch written := w.written.Load(); {
			case written == 0:
				w.reused.Store(c.Reused)
			case isHTTP2(c.Conn) && w.Safe:
				w.copies.Store(written)
			default:
				w.ended.Store(true)
				w.cancel(ErrUnpermitted)
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
				w.cancel(ErrInterim)
			}
			return w.Pass(status, header)
		},
	}
}

// MayHaveArrived reports whether the upstream may have received the header of the request. After a cancellation,
// RoundTrip returns before its goroutines have ended, and over HTTP/2 they may still write the header. So a canceled
// request is provably unsent only if it had no connection.
func (w *Request) MayHaveArrived() bool {
	return w.written.Load() > 0 || w.connected.Load() && w.ctx.Err() != nil
}

// noteSent records that another part of the request was sent. Outcome.Elapsed starts at the last part, so that the
// upload does not count as upstream time.
func (w *Request) noteSent() { w.sent.Store(int64(time.Since(w.start))) }

// Cause returns the reason why the request was canceled, or err if it was not canceled. The transport itself returns
// context.Canceled over HTTP/2, which would look like a disconnect of the client.
func (w *Request) Cause(err error) error {
	if cause := context.Cause(w.ctx); cause != nil {
		return cause
	}
	return err
}

// Stop ends the request.
func (w *Request) Stop() {
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

// requestBody reports the progress of an upload.
type requestBody struct {
	io.ReadCloser
	wire *Request
}

func (b *requestBody) Read(p []byte) (int, error) {
	b.wire.timer.Stop() // the client has another deadline (inbound.Body)
	n, err := b.ReadCloser.Read(p)
	b.wire.timer.Reset(b.wire.Timeout)
	b.wire.noteSent()
	if err != nil && b.wire.Ends(err) {
		b.wire.cancel(err)
	}
	return n, err
}

// responseBody reports the progress of a response, and ends the request when it is closed.
type responseBody struct {
	io.ReadCloser
	wire    *Request
	timeout time.Duration // longest pause
}

func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.wire.timer.Reset(b.timeout)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.wire.Cause(err)
	}
	return n, err
}

func (b *responseBody) Close() error {
	err := b.ReadCloser.Close()
	b.wire.Stop()
	return err
}
