// Package bodies reads the bodies of messages in advance: it peeks at their beginning, and detects those that are cut.
package bodies

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/weirgate/weir/internal/contentcoding"
)

// MaxPeek bounds the bytes of a body that are read to recognize a limit error or an identity.
const MaxPeek = 8 << 10

// Small is the size of the largest body that is read before the response to the client begins.
const Small = 16 << 10

// Peek reads up to most bytes of the body and returns them. The body can still be read completely, with its error.
func Peek(resp *http.Response, most int64) ([]byte, error) {
	start, err := io.ReadAll(io.LimitReader(resp.Body, most))
	if err == nil && int64(len(start)) < most {
		_ = resp.Body.Close()
		resp.Body = newCompleteBody(start)
		return start, nil
	}
	resp.Body = Rejoin(start, err, resp.Body)
	return start, err
}

// completeBody is a response body that has been read from the upstream completely.
type completeBody struct {
	bytes.Reader
	whole []byte
}

func newCompleteBody(whole []byte) *completeBody {
	b := &completeBody{whole: whole}
	b.Reset(whole)
	return b
}

// Close implements io.Closer.
func (*completeBody) Close() error { return nil }

// Whole returns a body that has been read from the upstream completely.
func Whole(resp *http.Response) (body []byte, ok bool) {
	b, ok := resp.Body.(*completeBody)
	if !ok {
		return nil, false
	}
	return b.whole, true
}

// HasEnded reports whether nothing of a response remains to be read from the upstream.
func HasEnded(resp *http.Response) bool {
	_, complete := Whole(resp)
	return complete || resp.ContentLength == 0 || resp.Body == http.NoBody
}

// PeekText returns the decoded beginning of the body. The body can still be read completely.
func PeekText(resp *http.Response) []byte {
	start, _ := Peek(resp, MaxPeek) // an error follows the beginning again
	return contentcoding.Decode(resp.Header.Get("Content-Encoding"), start, MaxPeek)
}

// Rejoin returns a body that begins with start. After start the body continues with the rest of body, or returns err if
// err is not nil.
func Rejoin(start []byte, err error, body io.ReadCloser) io.ReadCloser {
	rest := io.Reader(body)
	if err != nil {
		rest = brokenReader{err}
	}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(start), rest), body}
}

// brokenReader returns an error that an earlier read returned.
type brokenReader struct{ err error }

func (b brokenReader) Read([]byte) (int, error) { return 0, b.err }

// ReadAhead reads a small body before the response to the client begins, so that the client gets an error instead of a part
// of the body. If identity is set, the request asked for the identity form, so a coded body is decoded to check it.
//
// The framing does not show whether a body without a length was cut (RFC 9112 section 8), or whether a coded body was cut before
// it was framed. The content shows it if it is coded or JSON. The end of an incomplete content is an error.
func ReadAhead(resp *http.Response, identity bool) error {
	coding, undelimited := resp.Header.Get("Content-Encoding"), !Delimited(resp)
	coded := coding != "" && (undelimited || identity)
	if coded {
		resp.Body = &codedBody{ReadCloser: resp.Body, coding: coding}
	}
	var err error
	switch _, complete := Whole(resp); {
	case undelimited && !coded && !isJSON(resp.Header): // nothing shows a cut, and the body may be an endless stream
	case undelimited:
		_, err = Peek(resp, Small)
	case complete, resp.ContentLength > Small, resp.ContentLength <= 0:
	default:
		body := make([]byte, resp.ContentLength)
		if _, err = io.ReadFull(resp.Body, body); err == nil && (coded || len(resp.Trailer) > 0) {
			_, err = io.Copy(io.Discard, resp.Body) // the end has the result of the check, and the trailers
		}
		_ = resp.Body.Close()
		resp.Body = newCompleteBody(body)
	}
	if err == nil && undelimited && !coded && isJSON(resp.Header) {
		if whole, complete := Whole(resp); !complete {
			resp.Body = &jsonBody{ReadCloser: resp.Body}
		} else if isCut(whole) {
			err = io.ErrUnexpectedEOF
		}
	}
	if err != nil {
		_ = resp.Body.Close()
	}
	return err
}

// unexpectedEnd returns the error of a body that ends within its content.
func unexpectedEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// codedBody is a coded body that is decoded while it is read. Weir does not check codings that it does not know.
type codedBody struct {
	io.ReadCloser
	coding  string
	ahead   bytes.Buffer // bytes that were decoded but not read
	decoded io.Reader
	err     error
}

func (b *codedBody) Read(p []byte) (int, error) {
	var discarded [4 << 10]byte
	for b.ahead.Len() == 0 && b.err == nil {
		if b.decoded != nil {
			_, b.err = b.decoded.Read(discarded[:])
			continue
		}
		raw := io.TeeReader(b.ReadCloser, &b.ahead)
		decoded, known, err := contentcoding.NewReader(b.coding, raw)
		if b.decoded, b.err = decoded, unexpectedEnd(err); !known {
			b.decoded = raw
		}
	}
	if b.ahead.Len() > 0 {
		return b.ahead.Read(p)
	}
	return 0, b.err
}

func isJSON(h http.Header) bool {
	mediaType, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.HasSuffix(strings.ToLower(strings.TrimSpace(mediaType)), "json")
}

// isCut reports whether a text is empty, or ends within a JSON value. Text that is no JSON counts as complete.
func isCut(text []byte) bool {
	var value json.RawMessage
	d := json.NewDecoder(bytes.NewReader(text))
	err := d.Decode(&value)
	if errors.Is(err, io.EOF) {
		return true
	}
	for err == nil { // a media type may allow several values
		err = d.Decode(&value)
	}
	return errors.Is(err, io.ErrUnexpectedEOF)
}

// jsonBody is a long body of JSON. Its end is an error if a string, an object or an array is open.
type jsonBody struct {
	io.ReadCloser
	open              int // objects and arrays
	inString, escaped bool
}

func (b *jsonBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	for _, c := range p[:n] {
		switch {
		case b.escaped:
			b.escaped = false
		case b.inString:
			b.escaped, b.inString = c == '\\', c != '"'
		case c == '"':
			b.inString = true
		case c == '{', c == '[':
			b.open++
		case c == '}', c == ']':
			b.open--
		}
	}
	if b.open > 0 || b.inString {
		err = unexpectedEnd(err)
	}
	return n, err
}

// Delimited reports whether the framing marks the end of the body, so that a broken connection is detected (RFC 9112
// section 8).
func Delimited(resp *http.Response) bool {
	return resp.ContentLength >= 0 || resp.ProtoMajor >= 2 || len(resp.TransferEncoding) > 0
}

// Discard reads the rest of an unused response, so that the connection can be reused.
func Discard(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, maxDiscard) // Close closes the connection after a longer or broken body
	_ = body.Close()
}

const maxDiscard = 256 << 10

// copyBuffer is the size of the buffers for copying bodies.
const copyBuffer = 32 << 10

// BufferPool is an [httputil.BufferPool] (BenchmarkPass).
type BufferPool struct{ pool sync.Pool }

// Get implements [httputil.BufferPool].
func (p *BufferPool) Get() []byte {
	if b, ok := p.pool.Get().(*[copyBuffer]byte); ok {
		return b[:]
	}
	return make([]byte, copyBuffer)
}

// Put implements [httputil.BufferPool].
func (p *BufferPool) Put(b []byte) { p.pool.Put((*[copyBuffer]byte)(b)) }
