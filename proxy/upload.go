package proxy

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"time"
)

// maxUploadBuffer bounds how much of a request body is buffered before a permit is requested.
const maxUploadBuffer = 1 << 20

// bufferSmallBody reads a small request body before a permit is requested, so that a slow client
// holds neither a concurrency slot nor an upstream connection. Larger bodies are streamed. The
// queue time of the request starts after the read.
func (g *Gateway) bufferSmallBody(ex *exchange) error {
	if !ex.forwardsBody() || ex.in.ContentLength > maxUploadBuffer || ex.buffered != nil {
		return nil
	}
	if len(ex.in.Header["Expect"]) > 0 {
		return nil // the upstream decides whether it accepts the body (RFC 9110 section 10.1.1)
	}
	_, err := g.bufferBody(ex)
	return err
}

// forwardsBody reports whether the request has a body that is sent upstream.
func (ex *exchange) forwardsBody() bool {
	return ex.body != nil && ex.in.Method != http.MethodGet && ex.in.Method != http.MethodHead
}

// bufferBody reads the request body until its end, maxUploadBuffer or the memory budget, and
// makes these bytes readable again. It returns the body if it is complete, or nil.
func (g *Gateway) bufferBody(ex *exchange) (complete []byte, err error) {
	b := &bufferedBody{budget: &g.Background.buffers, rest: ex.in.Body}
	ex.buffered = b
	size := int64(copyBuffer)
	if length := ex.in.ContentLength; length >= 0 {
		size = min(size, max(length, 512))
	}
	chunk := make([]byte, size)
	for err == nil && len(b.data) <= maxUploadBuffer && !b.full {
		var n int
		n, err = ex.in.Body.Read(chunk)
		b.append(chunk[:n])
	}
	ex.in.Body = b.reader(err)
	ex.waitingSince = time.Now()
	switch {
	case errors.Is(err, io.EOF):
		return b.data, nil
	case err != nil:
		return nil, ex.bodyFault(&failure{status: statusClientGone, cause: err})
	}
	return nil, nil
}

// bufferedBody is the buffered start of a request body. It uses memory of the budget until the
// request ends.
type bufferedBody struct {
	data   []byte
	rest   io.ReadCloser
	budget *bufferBudget
	full   bool // the budget is exhausted
}

func (b *bufferedBody) append(p []byte) {
	b.data = append(b.data, p...)
	if !b.budget.reserve(len(p)) {
		b.full = true
		b.budget.release(len(b.data) - len(p))
		b.budget = nil
	}
}

// reader returns the whole body again, after a read that returned err.
func (b *bufferedBody) reader(err error) io.ReadCloser {
	rest := io.Reader(b.rest)
	if err != nil {
		rest = brokenReader{err}
	}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(b.data), rest), b.rest}
}

// release returns the memory to the budget.
func (b *bufferedBody) release() {
	if b != nil {
		b.budget.release(len(b.data))
		b.budget = nil
	}
}
