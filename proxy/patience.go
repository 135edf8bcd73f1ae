package proxy

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// minRate is how many bytes a second a body must bring, or take, over the time that
// is waited for its client: one that sends a byte now and then holds a connection, a
// place among the concurrent requests and a connection upstream.
const minRate = 1 << 10

// clientBody is the body of a client's request. Each piece of it must come within the
// patience there is for one, all of them at minRate, and the whole of it within a time;
// that in which nobody reads counts for nothing. What goes wrong is the client's fault, and an error of
// Read says so.
type clientBody struct {
	io.ReadCloser
	control  *http.ResponseController
	patience time.Duration
	left     time.Duration // of patience, at most that
	most     time.Duration // for all that is still to come; not bounded where bounded is not set
	bounded  bool
	// streams is set for HTTP/2: there a deadline that passes while nobody reads ends the body.
	streams bool
	mu      sync.Mutex
	over    bool // the handler has returned, and control must not be used
	// fault is set when the body was not what it should be. A client that has left has
	// none.
	fault atomic.Pointer[failure]
}

// patiently puts a clientBody in the place of a request's body, in a copy: the server
// looks at its own request when the answer begins. From now on somebody must read, be
// it the server that looks for the end of a body that is of no use here.
func patiently(w http.ResponseWriter, r *http.Request, patience, most time.Duration) (*http.Request, *clientBody) {
	if r.Body == nil || r.ContentLength == 0 { // HTTP/2 has a reader where there is no body, too
		return r, nil
	}
	b := &clientBody{ReadCloser: r.Body, control: http.NewResponseController(w), patience: patience, left: patience, most: most, bounded: most > 0, streams: r.ProtoMajor > 1}
	if !b.streams {
		b.until(time.Now().Add(patience))
	}
	r = r.WithContext(r.Context())
	r.Body = b
	return r, b
}

// until sets the deadline of the connection or, in HTTP/2, of the stream.
func (b *clientBody) until(t time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.over {
		_ = b.control.SetReadDeadline(t) // where there is none the server's own must do
	}
}

// end is for when the handler returns: who reads on behind it (a transport may) must
// not touch a connection that is another request's, or a stream that is gone.
func (b *clientBody) end() {
	if b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.over = true
	}
}

func (b *clientBody) Read(p []byte) (int, error) {
	began, wait := time.Now(), b.left
	if b.bounded {
		if b.most <= 0 {
			return 0, b.blame(&failure{status: http.StatusRequestTimeout, message: "Request Timeout: the body takes too long"})
		}
		wait = min(wait, b.most)
	}
	b.until(began.Add(max(wait, time.Millisecond)))
	n, err := b.ReadCloser.Read(p)
	waited, brought := time.Since(began), time.Duration(n)*time.Second/minRate
	b.left, b.most = max(0, min(b.patience, b.left-waited+brought)), b.most-waited
	switch {
	case err == nil && b.streams:
		b.until(time.Time{})
	case err == nil || errors.Is(err, io.ErrUnexpectedEOF):
	case errors.Is(err, io.EOF):
		b.until(time.Time{}) // the server listens now whether the client leaves
	case isTimeout(err):
		err = b.blame(&failure{status: http.StatusRequestTimeout, message: "Request Timeout: the body comes too slowly", cause: err})
	default:
		err = b.blame(&failure{status: http.StatusBadRequest, message: "Bad Request: the body is not framed as HTTP has it", cause: err})
	}
	return n, err
}

func (b *clientBody) blame(f *failure) error {
	b.fault.Store(f)
	return f
}

// blame is what an error comes from: where a request's body was at fault, that is it.
func (ex *exchange) blame(err error) error {
	if ex.body != nil {
		if f := ex.body.fault.Load(); f != nil {
			return f
		}
	}
	return err
}

// piece is how much of an answer is written under one deadline: with what a client
// has patience for, minRate holds for answers, too.
const piece = 32 << 10

// recorder is the client's ResponseWriter, remembering what went out.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
	// streams is set for HTTP/2, where a client may take in nothing of an answer and
	// much of others on the same connection. Of HTTP/1 the connection is watched
	// ([Connections]): it outlives the answer.
	streams  *http.ResponseController
	patience time.Duration
	// closes ends the connection with the answer; so does a drain that has begun.
	closes bool
	drain  *Drain
}

// record returns the recorder of the answer to a request.
func record(w http.ResponseWriter, r *http.Request, patience time.Duration, drain *Drain) recorder {
	rec := recorder{ResponseWriter: w, patience: patience, drain: drain}
	if r.ProtoMajor > 1 {
		rec.streams = http.NewResponseController(w)
	}
	// A request of both a length and chunks is read by its chunks, and one cannot tell
	// any more that it was. Whoever read it otherwise on its way has the rest of the
	// connection for something else (RFC 9112 section 6.1). So has who sent chunks by
	// HTTP/1.0, of which nothing is left to be seen.
	rec.closes = r.ProtoMajor == 1 && (r.ProtoMinor == 0 || len(r.TransferEncoding) > 0)
	return rec
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
	if r.streams == nil {
		n, err := r.ResponseWriter.Write(p)
		r.bytes += int64(n)
		return n, err
	}
	written := 0
	for {
		part := p[written:min(len(p), written+piece)]
		_ = r.streams.SetWriteDeadline(time.Now().Add(r.patience)) // a stream has one
		n, err := r.ResponseWriter.Write(part)
		written += n
		r.bytes += int64(n)
		if err != nil || written == len(p) {
			return written, err
		}
	}
}

func (r *recorder) wrote() bool { return r.status != 0 }

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
