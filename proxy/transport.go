package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// NewTransport returns the transport for one upstream: HTTP/2 where the
// upstream offers it, no proxy from the environment, no transparent
// decompression, and idle connections dropped before the upstream drops them
// (after about 60 s).
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

// errStalled ends a wire attempt in which nothing has moved for the timeout.
var errStalled = errors.New("the upstream did not answer in time")

// watch ends a wire attempt that makes no progress. A body of any size may
// take any time as long as it moves.
type watch struct {
	timer   *time.Timer
	timeout time.Duration
	cancel  context.CancelCauseFunc
}

func watchProgress(ctx context.Context, timeout time.Duration) (context.Context, *watch) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watch{timeout: timeout, cancel: cancel}
	w.timer = time.AfterFunc(timeout, func() { cancel(errStalled) })
	return ctx, w
}

func (w *watch) progress() { w.timer.Reset(w.timeout) }

func (w *watch) stop() {
	w.timer.Stop()
	w.cancel(nil)
}

// watchedBody tells the watch of every byte. The response's body (ends true)
// ends the watch when it is closed.
type watchedBody struct {
	io.ReadCloser
	watch *watch
	ends  bool
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.watch.progress()
	}
	return n, err
}

func (b *watchedBody) Close() error {
	err := b.ReadCloser.Close()
	if b.ends {
		b.watch.stop()
	}
	return err
}

// bufferPool holds the buffers by which bodies are copied.
type bufferPool struct{ pool sync.Pool }

const copyBuffer = 32 << 10

func (p *bufferPool) Get() []byte {
	if b, ok := p.pool.Get().(*[copyBuffer]byte); ok {
		return b[:]
	}
	return make([]byte, copyBuffer)
}

func (p *bufferPool) Put(b []byte) { p.pool.Put((*[copyBuffer]byte)(b)) }
