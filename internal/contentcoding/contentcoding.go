// Package contentcoding encodes response bodies with gzip and zstd (RFC 9110 section 8.4).
package contentcoding

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Coding is a content coding. A Coding is safe for concurrent use.
type Coding struct {
	Name    string
	streams sync.Pool // of *stream
	decode  func(io.Reader) (io.Reader, error)
}

// Gzip is the coding that almost all clients accept.
var Gzip = newCoding("gzip", func() (encoder, error) {
	return gzip.NewWriterLevel(nil, gzip.BestSpeed)
}, func(r io.Reader) (io.Reader, error) {
	return gzip.NewReader(r)
})

// codings contains the supported codings. At equal weights the last coding is selected.
var codings = []*Coding{
	Gzip,
	newCoding("zstd", func() (encoder, error) {
		return zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
			zstd.WithWindowSize(128<<10), zstd.WithLowerEncoderMem(true))
	}, func(r io.Reader) (io.Reader, error) {
		// With a concurrency of 1 the reader has no goroutine, and need not be closed.
		return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
	}),
}

// encoder is the part of the libraries' writers that this package uses.
type encoder interface {
	io.WriteCloser
	Flush() error
	Reset(w io.Writer)
}

func newCoding(name string, newEncoder func() (encoder, error), decode func(io.Reader) (io.Reader, error)) *Coding {
	c := &Coding{Name: name, decode: decode}
	c.streams.New = func() any {
		e, err := newEncoder()
		if err != nil {
			panic(err) // the options are constants
		}
		return &stream{encoder: e}
	}
	return c
}

// Select returns the offered coding that an Accept-Encoding field prefers (RFC 9110 section
// 12.5.3), or nil for identity. A coding is preferred to identity at the same weight. By default all codings are offered.
func Select(accept []string, offered ...*Coding) *Coding {
	if len(accept) == 0 {
		return nil
	}
	weights := map[string]float64{}
	for _, value := range accept {
		for member := range strings.SplitSeq(value, ",") {
			name, parameter, _ := strings.Cut(member, ";")
			if name = strings.ToLower(strings.TrimSpace(name)); name == "x-gzip" { // RFC 9110 section 8.4.1.3
				name = "gzip"
			}
			weights[name] = weight(parameter)
		}
	}
	var selected *Coding
	most := weights["identity"]
	if offered == nil {
		offered = codings
	}
	for _, c := range offered {
		w, listed := weights[c.Name]
		if !listed {
			w = weights["*"]
		}
		if w > 0 && w >= most {
			selected, most = c, w
		}
	}
	return selected
}

// Supported returns an Accept-Encoding field with the members of accept that this package can decode. Without such a member,
// the field accepts only the identity form.
func Supported(accept []string) string {
	var members []string
	for _, value := range accept {
		for member := range strings.SplitSeq(value, ",") {
			name, _, _ := strings.Cut(member, ";")
			if codingNamed(name) != nil {
				members = append(members, strings.TrimSpace(member))
			}
		}
	}
	return cmp.Or(strings.Join(members, ", "), "identity")
}

// codingNamed returns the supported coding with a name, or nil.
func codingNamed(name string) *Coding {
	name = strings.ToLower(strings.TrimSpace(name))
	if name == "x-gzip" { // RFC 9110 section 8.4.1.3
		name = "gzip"
	}
	if i := slices.IndexFunc(codings, func(c *Coding) bool { return c.Name == name }); i >= 0 {
		return codings[i]
	}
	return nil
}

// weight parses the parameter of a member. An invalid weight is 0, so that the coding is not used.
func weight(parameter string) float64 {
	name, value, _ := strings.Cut(parameter, "=")
	if name = strings.TrimSpace(name); name == "" {
		return 1
	}
	w, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
	if err != nil || !strings.EqualFold(name, "q") || !(0 <= w && w <= 1) {
		return 0
	}
	return w
}

// compressible contains the subtypes, and suffixes of subtypes, whose bodies are text.
var compressible = []string{"json", "xml", "javascript", "x-ndjson", "yaml", "x-yaml", "graphql"}

// Compressible reports whether bodies with this Content-Type usually become much smaller.
func Compressible(contentType string) bool {
	mediaType, _, _ := strings.Cut(contentType, ";")
	kind, subtype, _ := strings.Cut(strings.ToLower(strings.TrimSpace(mediaType)), "/")
	return kind == "text" || slices.Contains(compressible, subtype[strings.LastIndexByte(subtype, '+')+1:])
}

// stream is an encoder with buffers for its input and output.
type stream struct {
	encoder
	in  [32 << 10]byte
	out bytes.Buffer
}

func (c *Coding) newStream() *stream {
	s, _ := c.streams.Get().(*stream)
	s.out.Reset()
	s.Reset(&s.out)
	return s
}

// Writer returns a writer that encodes a body into w. Close writes the end of the coding.
func (c *Coding) Writer(w io.Writer) io.WriteCloser {
	s := c.newStream()
	s.Reset(w)
	return s
}

// Encode returns the encoded body.
func (c *Coding) Encode(body []byte) []byte {
	s := c.newStream()
	defer c.streams.Put(s)
	_, _ = s.Write(body) // writes to a bytes.Buffer do not fail
	_ = s.Close()
	return bytes.Clone(s.out.Bytes())
}

// Reader returns a body that encodes another body while it is read. The data of each read from body
// can be decoded at once.
func (c *Coding) Reader(body io.ReadCloser) io.ReadCloser {
	return &reader{ReadCloser: body, coding: c, stream: c.newStream()}
}

type reader struct {
	io.ReadCloser
	coding *Coding
	stream *stream // nil after Close
	err    error   // returned after the output
}

func (r *reader) Read(p []byte) (int, error) {
	s := r.stream
	if s == nil {
		return 0, io.ErrClosedPipe
	}
	for s.out.Len() == 0 {
		if r.err != nil {
			return 0, r.err
		}
		var n int
		n, r.err = r.ReadCloser.Read(s.in[:])
		_, _ = s.Write(s.in[:n]) // writes to a bytes.Buffer do not fail
		if errors.Is(r.err, io.EOF) {
			_ = s.Close()
		} else if n > 0 {
			_ = s.Flush()
		}
	}
	return s.out.Read(p)
}

func (r *reader) Close() error {
	if r.stream != nil {
		r.coding.streams.Put(r.stream)
		r.stream = nil
	}
	return r.ReadCloser.Close()
}

// NewReader returns a reader of the decoded body. ok is false for an unsupported coding. A truncated body is an error at its
// end, or of NewReader.
func NewReader(contentEncoding string, body io.Reader) (decoded io.Reader, ok bool, err error) {
	c := codingNamed(contentEncoding)
	if c == nil {
		return nil, false, nil
	}
	decoded, err = c.decode(body)
	return decoded, true, err
}

// Decode returns at most limit bytes of the body that starts with these bytes of a Content-Encoding.
// With an unsupported coding, Decode returns start.
func Decode(contentEncoding string, start []byte, limit int64) []byte {
	r, ok, err := NewReader(contentEncoding, bytes.NewReader(start))
	switch {
	case !ok:
		return start
	case err != nil:
		return nil
	}
	decoded, _ := io.ReadAll(io.LimitReader(r, limit)) // a truncated body is an error at its end
	return decoded
}
