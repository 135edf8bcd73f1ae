package proxy

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/weirgate/weir/internal/contentcoding"
)

// readAhead reads a small body before the response to the client begins, so that the client gets an error instead of a part
// of the body. The error is also that of a request body whose end the upstream did not wait for.
func (g *Gateway) readAhead(ex *exchange, resp *http.Response) error {
	if invalid := ex.body.Err(); invalid != nil && resp.StatusCode < http.StatusBadRequest {
		_ = resp.Body.Close()
		return invalid
	}
	if ex.method == http.MethodHead || resp.Body == http.NoBody {
		return nil
	}
	checked := !delimited(resp) || ex.identityAsked && resp.Header.Get("Content-Encoding") != ""
	if checked {
		resp.Body = checkContent(resp)
	}
	var err error
	switch _, complete := resp.Body.(completeBody); {
	case complete, resp.ContentLength > smallBody, resp.ContentLength == 0:
	case resp.ContentLength > 0:
		body := make([]byte, resp.ContentLength)
		if _, err = io.ReadFull(resp.Body, body); err == nil && (checked || len(resp.Trailer) > 0) {
			_, err = io.Copy(io.Discard, resp.Body) // the end has the result of the check, and the trailers
		}
		_ = resp.Body.Close()
		resp.Body = completeBody{bytes.NewReader(body), body}
	case !delimited(resp):
		_, err = peek(resp, smallBody)
	}
	if err != nil {
		_ = resp.Body.Close()
	}
	return err
}

// contentCheck is a body whose content must be complete, because the framing does not show it: a body without a length may
// have been cut (RFC 9112 section 8), and a coded body may have been cut before it was framed. The end of an incomplete
// content is an error.
type contentCheck struct {
	io.ReadCloser
	ahead bytes.Buffer // bytes that were checked but not read
	check func(p []byte) (int, error)
	err   error
}

// checkContent returns the body of a response, with a check of its content if Weir knows the form of the content.
func checkContent(resp *http.Response) io.ReadCloser {
	c := &contentCheck{ReadCloser: resp.Body}
	raw := io.TeeReader(resp.Body, &c.ahead)
	mediaType, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	isJSON := strings.HasSuffix(strings.ToLower(strings.TrimSpace(mediaType)), "json")
	coding := resp.Header.Get("Content-Encoding")
	switch {
	case coding != "":
		var decoded io.Reader
		c.check = func(p []byte) (n int, err error) {
			if decoded == nil {
				var ok bool
				if decoded, ok, err = contentcoding.NewReader(coding, raw); !ok {
					decoded = raw
				} else if err != nil {
					return 0, unexpectedEnd(err)
				}
			}
			return decoded.Read(p)
		}
	case isJSON:
		c.check = (&jsonReader{Reader: raw}).Read
	default:
		return resp.Body
	}
	return c
}

// unexpectedEnd returns the error of a body that ends within its content.
func unexpectedEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (c *contentCheck) Read(p []byte) (int, error) {
	var discarded [4 << 10]byte
	for c.ahead.Len() == 0 && c.err == nil {
		_, c.err = c.check(discarded[:])
	}
	if c.ahead.Len() > 0 {
		return c.ahead.Read(p)
	}
	return 0, c.err
}

// jsonReader reads JSON. The end is an error if a string, an object or an array is open.
type jsonReader struct {
	io.Reader
	open              int // objects and arrays
	inString, escaped bool
}

func (r *jsonReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	for _, c := range p[:n] {
		switch {
		case r.escaped:
			r.escaped = false
		case r.inString:
			r.escaped, r.inString = c == '\\', c != '"'
		case c == '"':
			r.inString = true
		case c == '{', c == '[':
			r.open++
		case c == '}', c == ']':
			r.open--
		}
	}
	if r.open > 0 || r.inString {
		err = unexpectedEnd(err)
	}
	return n, err
}
