package proxy

import (
	"errors"
	"io"
	"net/http"
	"time"
)

// maxUploadBuffer bounds the bytes of a request body that are buffered before a permit is requested.
const maxUploadBuffer = 1 << 20

// bufferSmallBody reads a small request body before a permit is requested, so that a slow client holds neither a
// concurrency slot nor an upstream connection. Larger bodies are streamed. The queue time of the request starts after
// the read.
func (g *Gateway) bufferSmallBody(ex *exchange) error {
	if !ex.forwardsBody() || ex.in.ContentLength > maxUploadBuffer || ex.buffered != nil {
		return nil
	}
	if len(ex.in.Header["Expect"]) > 0 {
		return nil // the upstream decides whether to accept the body (RFC 9110 section 10.1.1)
	}
	_, err := g.bufferBody(ex)
	return err
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

// bufferBody reads the request body until its end, maxUploadBuffer or the memory budget. The bytes remain readable for
// the transport. A complete body is returned, otherwise nil.
func (g *Gateway) bufferBody(ex *exchange) (complete []byte, err error) {
	ex.buffered = &buffer{budget: &g.Background.buffers}
	chunk := make([]byte, 4<<10) // a client may send slowly
	for more := true; err == nil && more; {
		var n int
		n, err = ex.in.Body.Read(chunk)
		more = ex.buffered.append(chunk[:n]) && len(ex.buffered.data) <= maxUploadBuffer
	}
	ex.in.Body = rejoin(ex.buffered.data, err, ex.in.Body)
	ex.waitingSince = time.Now()
	switch {
	case errors.Is(err, io.EOF):
		ex.wholeBody = true
		return ex.buffered.data, nil
	case err != nil:
		return nil, ex.bodyFault(err)
	}
	return nil, nil
}
