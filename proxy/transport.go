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
)

// NewTransport returns the transport for the upstream. It uses HTTP/2 if the upstream offers it, no
// proxy from the environment and no transparent decompression. Idle connections are closed before
// the upstream closes them, after about 60 s.
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

// Errors that end an attempt.
var (
	errStalled = errors.New("the upstream did not respond in time")
	errInterim = errors.New("the upstream sent too many interim responses")
	// errUnpermitted ends a request that the transport tries to send again by itself.
	errUnpermitted = fmt.Errorf("the upstream closed the connection during the request: %w", io.ErrUnexpectedEOF)
)

// maxInterim bounds the interim responses (1xx) to one request.
const maxInterim = 100

// send makes one attempt. The outcome is valid with an error as well.
func (g *Gateway) send(ex *exchange, out *http.Request, permit limits.Permit) (*http.Response, limits.Outcome, error) {
	w := &wire{start: time.Now()}
	ctx, cancel := context.WithCancelCause(out.Context())
	watch := &watchdog{timeout: g.Timeout, cancel: cancel}
	watch.timer = time.AfterFunc(g.Timeout, func() { cancel(errStalled) })
	hooks, sent := w.hooks(cancel, ex.interim), *out
	if out.Body != nil && out.Body != http.NoBody {
		uploaded := g.Limiter.Upload(permit)
		hooks.WroteRequest = func(httptrace.WroteRequestInfo) { w.progress(); uploaded() }
		sent.Body = &requestBody{out.Body, watch, w}
	}
	resp, err := g.Transport.RoundTrip(sent.WithContext(httptrace.WithClientTrace(ctx, hooks)))
	outcome := w.outcome()
	ex.reused = w.reused.Load()
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		watch.stop()
		return nil, outcome, err
	}
	watch.reset()
	if resp.Body != http.NoBody {
		resp.Body = &responseBody{resp.Body, watch}
	} else {
		watch.stop()
	}
	outcome.Sent, outcome.Answered = true, true
	outcome.Failed = resp.StatusCode >= http.StatusInternalServerError ||
		resp.StatusCode == http.StatusRequestTimeout || resp.StatusCode == http.StatusTooEarly
	outcome.Rate, _ = limits.ReadRate(resp.Header)
	recognizeLimit(resp, &outcome)
	return resp, outcome, nil
}

// wire collects the events of one attempt. The transport reports them from its own goroutines.
type wire struct {
	reused  atomic.Bool  // the connection had been used before
	written atomic.Int32 // how often the header was written
	// given is when the upstream received the latest part of the request, in nanoseconds
	// since start.
	given   atomic.Int64
	start   time.Time
	interim atomic.Int32 // number of interim responses
	ended   atomic.Bool  // before the transport could send the request again
}

// hooks returns the hooks of the attempt.
func (w *wire) hooks(cancel context.CancelCauseFunc, interim func(int, textproto.MIMEHeader) error) *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		// The transport sends a request again if a reused connection ends without a response,
		// even an unsafe request with an Idempotency-Key. That copy would have no permit, so it
		// is prevented here; [Gateway.retries] decides about retries. HTTP/2 is exempt: there
		// the upstream confirms that it did not process the request.
		GotConn: func(c httptrace.GotConnInfo) {
			if w.written.Load() == 0 {
				w.reused.Store(c.Reused)
			} else if !isHTTP2(c.Conn) {
				w.ended.Store(true)
				cancel(errUnpermitted)
				_ = c.Conn.Close()
			}
		},
		WroteHeaders: func() {
			if !w.ended.Load() && w.written.Add(1) == 1 {
				w.progress()
			}
		},
		Got1xxResponse: func(status int, header textproto.MIMEHeader) error {
			if w.interim.Add(1) > maxInterim {
				cancel(errInterim)
			}
			return interim(status, header)
		},
	}
}

// progress records that the upstream received more of the request.
func (w *wire) progress() { w.given.Store(int64(time.Since(w.start))) }

// outcome returns what the events say about the attempt.
func (w *wire) outcome() limits.Outcome {
	written := int(w.written.Load())
	o := limits.Outcome{Sent: written > 0, Resent: max(0, written-1)}
	if o.Sent {
		o.Elapsed = time.Since(w.start) - time.Duration(w.given.Load())
	}
	return o
}

func isHTTP2(c net.Conn) bool {
	secure, ok := c.(interface{ ConnectionState() tls.ConnectionState })
	return ok && secure.ConnectionState().NegotiatedProtocol == "h2"
}

// watchdog cancels an attempt that makes no progress for the timeout. A body may take any time in
// total.
type watchdog struct {
	timer   *time.Timer
	timeout time.Duration
	cancel  context.CancelCauseFunc
}

func (w *watchdog) reset() { w.timer.Reset(w.timeout) }

func (w *watchdog) stop() {
	w.timer.Stop()
	w.cancel(nil)
}

// requestBody resets the watchdog with every read of a request's body. The time for the upload does not
// count as the upstream's.
type requestBody struct {
	io.ReadCloser
	watch *watchdog
	wire  *wire
}

func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.watch.reset()
	}
	b.wire.progress()
	return n, err
}

// responseBody resets the watchdog with every read of a response's body. Close stops the watchdog.
type responseBody struct {
	io.ReadCloser
	watch *watchdog
}

func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.watch.reset()
	}
	return n, err
}

func (b *responseBody) Close() error {
	err := b.ReadCloser.Close()
	b.watch.stop()
	return err
}

// copyBuffer is the size of the buffers that bodies are copied with.
const copyBuffer = 32 << 10

// bufferPool is an [httputil.BufferPool].
type bufferPool struct{ pool sync.Pool }

func (p *bufferPool) Get() []byte {
	if b, ok := p.pool.Get().(*[copyBuffer]byte); ok {
		return b[:]
	}
	return make([]byte, copyBuffer)
}

func (p *bufferPool) Put(b []byte) { p.pool.Put((*[copyBuffer]byte)(b)) }
