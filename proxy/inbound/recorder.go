package inbound

import (
	"net/http"
	"time"
)

// Recorder is the client's ResponseWriter, and records the status and the size of the response.
type Recorder struct {
	http.ResponseWriter
	Status int
	Bytes  int64
	Closes bool // the response closes the connection
	drain  *Drain
}

// NewRecorder returns the recorder for the response to a request. The connection closes after a body that another
// program may frame differently. Such bodies belong to HTTP/1.0 requests, or may have both Content-Length and chunks
// (RFC 9112 section 6.1). Another program could see a second request in the same bytes.
func NewRecorder(w http.ResponseWriter, r *http.Request, timeout time.Duration, drain *Drain) Recorder {
	closes := r.ProtoMajor == 1 && (r.ProtoMinor == 0 || len(r.TransferEncoding) > 0)
	return Recorder{ResponseWriter: LimitWrites(w, r, timeout), Closes: closes, drain: drain}
}

// WriteHeader writes the header.
func (r *Recorder) WriteHeader(status int) {
	if status >= 200 && r.Status == 0 {
		r.Status = status
		if r.Closes || r.drain.Begun() {
			r.Header().Set("Connection", "close")
		}
	}
	r.ResponseWriter.WriteHeader(status)
}

// Write writes a part of the body.
func (r *Recorder) Write(p []byte) (int, error) {
	if r.Status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	n, err := r.ResponseWriter.Write(p)
	r.Bytes += int64(n)
	return n, err
}

// FlushShort waits until a short HTTP/2 response is written to the connection, so that the request counts as in progress as
// long as it holds memory. Write already waits for long responses.
func (r *Recorder) FlushShort(in *http.Request) {
	if in.ProtoMajor > 1 && r.Status != 0 {
		_ = http.NewResponseController(r).Flush() // an error means that the client has disconnected
	}
}

// ShowAbort lets the client see that the response is incomplete. The begun response is written to the connection, because
// clients repeat a request after an empty reply. In HTTP/1.0 the end of the connection may be the end of the body, so the
// connection is reset.
func (r *Recorder) ShowAbort(in *http.Request, broken bool) {
	if broken && r.Status != 0 {
		_ = http.NewResponseController(r).Flush() // an error means that the client has disconnected
	}
	if !in.ProtoAtLeast(1, 1) {
		ResetAtEnd(in)
	}
}

// Unwrap supports [http.ResponseController].
func (r *Recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
