package inbound

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// minRate is the lowest accepted transfer rate in bytes per second, in both directions. Slower clients would hold
// connections and concurrency permits for a long time.
const minRate = 1 << 10

// writeSize is the number of bytes that are written under one deadline. With a timeout of 30 seconds, the minimum rate
// is about [minRate].
const writeSize = 32 << 10

// BodyError is an error of the client that prevents reading the request body.
type BodyError struct {
	Timeout    bool // the body is too slow
	Incomplete bool // the client has stopped sending, or has disconnected
	Err        error
}

func (e *BodyError) Error() string {
	reason := "invalid framing"
	switch {
	case e.Timeout:
		reason = "too slow"
	case e.Incomplete:
		reason = "incomplete"
	}
	return fmt.Sprintf("read request body: %s: %v", reason, e.Err)
}

func (e *BodyError) Unwrap() error { return e.Err }

var errBodyTime = errors.New("total time exceeded")

// Body is a request body with read deadlines. Each read must return within the pause timeout. The average rate must be
// at least [minRate], and all reads together must end within the total timeout. Only time spent inside Read counts.
type Body struct {
	io.ReadCloser
	control *http.ResponseController
	pause   time.Duration // the maximum pause
	credit  time.Duration // the rest of the pause; received bytes increase the credit
	total   time.Duration // the rest of the total time
	// http2 is set for HTTP/2, where a read deadline that passes outside Read ends the body.
	http2 bool
	conn  *conn // nil without [Connections]

	mu       sync.Mutex
	detached bool // the handler has returned, so control must not be used
	closed   atomic.Bool
	reading  sync.Mutex // held during Read
	err      atomic.Pointer[BodyError]
	ctx      context.Context // of the request
}

// LimitBody returns a copy of a request whose body has read deadlines, and that body. For a request without a body,
// LimitBody returns the request and nil. A total of 0 means no bound. The request is copied because net/http still uses
// the original body when the response starts.
func LimitBody(w http.ResponseWriter, r *http.Request, pause, total time.Duration) (*http.Request, *Body) {
	if r.Body == nil || r.ContentLength == 0 { // HTTP/2 sets Body without a body, too
		return r, nil
	}
	if total <= 0 {
		total = math.MaxInt64
	}
	b := &Body{
		ReadCloser: r.Body, control: http.NewResponseController(w),
		pause: pause, credit: pause, total: total, http2: r.ProtoMajor > 1, ctx: r.Context(),
	}
	b.conn, _ = r.Context().Value(connKey{}).(*conn)
	if !b.http2 {
		b.setDeadline(time.Now().Add(pause)) // also limits net/http, which reads the rest of an unread body
	}
	r = r.WithContext(r.Context())
	r.Body = b
	return r, b
}

// setDeadline sets the read deadline of the HTTP/1 connection or of the HTTP/2 stream.
func (b *Body) setDeadline(t time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.detached {
		_ = b.control.SetReadDeadline(t) // without support, the deadlines of the server apply
	}
}

// Detach ends the use of the connection. A handler must call Detach before the handler returns. A transport may read
// the body later, and must not change deadlines of the next request.
func (b *Body) Detach() {
	if b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.detached = true
	}
}

// Err returns the error of the client that ended the body, or nil. net/http cancels the context of a request before the Read
// that saw the disconnect returns, so Err waits for that Read.
func (b *Body) Err() *BodyError {
	if b == nil {
		return nil
	}
	if errors.Is(context.Cause(b.ctx), context.Canceled) {
		b.reading.Lock()
		defer b.reading.Unlock()
	}
	return b.err.Load()
}

// Read reads from the body under a deadline. Errors of the client are of type [*BodyError].
func (b *Body) Read(p []byte) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	if b.total <= 0 {
		return 0, b.fail(&BodyError{Timeout: true, Err: errBodyTime})
	}
	start := time.Now()
	b.setDeadline(start.Add(max(min(b.credit, b.total), time.Millisecond)))
	n, err := b.ReadCloser.Read(p)
	if b.conn != nil {
		b.conn.bodies.Add(int64(n))
	}
	elapsed, received := time.Since(start), time.Duration(n)*time.Second/minRate
	b.credit = max(0, min(b.pause, b.credit-elapsed+received))
	b.total -= elapsed
	switch {
	case err == nil && b.http2:
		b.setDeadline(time.Time{})
	case err == nil:
	case errors.Is(err, io.ErrUnexpectedEOF), b.http2 && isDisconnect(err):
		err = b.fail(&BodyError{Incomplete: true, Err: err})
	case errors.Is(err, io.EOF):
		b.setDeadline(time.Time{}) // net/http starts to watch for a disconnect
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = b.fail(&BodyError{Timeout: true, Err: err})
	case b.closed.Load(): // the gateway needs no more of the body
	default:
		err = b.fail(&BodyError{Err: err})
	}
	return n, err
}

// isDisconnect reports whether a read over HTTP/2 failed because the client has reset the stream or closed the connection.
// net/http exports no types for these errors.
func isDisconnect(err error) bool {
	return err != nil && (strings.HasPrefix(err.Error(), "stream error: ") || err.Error() == "client disconnected")
}

// Close ends the use of the body. A further read is no error of the client.
func (b *Body) Close() error {
	b.closed.Store(true)
	return b.ReadCloser.Close()
}

func (b *Body) fail(err *BodyError) error {
	b.err.Store(err)
	return err
}

// LimitWrites returns a response writer with a deadline for each write of an HTTP/2 response. Between the writes there is no
// deadline, because the upstream may pause. The deadlines of
// [Connections] cannot detect a client that reads only other streams of the same connection. For HTTP/1, LimitWrites
// returns w.
func LimitWrites(w http.ResponseWriter, r *http.Request, timeout time.Duration) http.ResponseWriter {
	if r.ProtoMajor < 2 {
		return w
	}
	return &streamWriter{w, http.NewResponseController(w), timeout}
}

type streamWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
}

func (w *streamWriter) Write(p []byte) (int, error) {
	written := 0
	for {
		part := p[written:min(len(p), written+writeSize)]
		w.limit()
		n, err := w.ResponseWriter.Write(part)
		_ = w.control.SetWriteDeadline(time.Time{}) // it would reset the stream during a pause of the upstream
		written += n
		if err != nil || written == len(p) {
			return written, err
		}
	}
}

// ShortenWrites limits each write of a refused HTTP/2 response to one second. A client that does not read would otherwise
// keep refused requests in memory.
func ShortenWrites(w http.ResponseWriter) {
	if s, ok := w.(*streamWriter); ok {
		s.timeout = min(s.timeout, time.Second)
	}
}

// FlushError flushes under a deadline.
func (w *streamWriter) FlushError() error {
	w.limit()
	err := w.control.Flush()
	_ = w.control.SetWriteDeadline(time.Time{})
	return err
}

func (w *streamWriter) limit() {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.timeout)) // HTTP/2 supports deadlines
}

// LimitEnd sets a deadline for what the server writes after the handler has returned.
func LimitEnd(w http.ResponseWriter) {
	if s, ok := w.(*streamWriter); ok {
		s.limit()
	}
}

// Unwrap supports [http.ResponseController].
func (w *streamWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
