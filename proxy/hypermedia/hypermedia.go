// Package hypermedia replaces the upstream's URLs in JSON responses by URLs of the gateway, so that a program that follows
// them calls the gateway.
//
// [Handler] wraps the handler of the gateway. It changes only string values of members named "url" or ending with
// "_url", in responses with a JSON media type, while they pass: a response is never held in memory. The cache stores the
// upstream's form.
package hypermedia

import (
	"bytes"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/weirgate/weir/cache"
)

// Base is a URL of the upstream and the URL of the gateway that replaces it. A slash at the end is ignored.
type Base struct{ Upstream, Local string }

// Handler returns a handler that rewrites the responses of next. The client gets the identity form of the content and no
// ranges, because a coding or a range of the upstream's form would not fit the rewritten form.
func Handler(next http.Handler, bases []Base) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := r.Header.Clone()
		for _, name := range []string{"Accept-Encoding", "Range", "If-Range"} {
			header.Del(name)
		}
		in := *r
		in.Header = header
		out := &response{ResponseWriter: w, bases: bases}
		next.ServeHTTP(out, &in)
		out.finish() // not after a panic, so that the client sees an incomplete response
	})
}

// response rewrites a response. A nil rewriter passes it unchanged.
type response struct {
	http.ResponseWriter
	bases    []Base
	begun    bool
	rewriter *rewriter
}

func (r *response) WriteHeader(status int) {
	if status >= http.StatusOK && !r.begun {
		r.begun = true
		if h := r.Header(); rewritable(h) {
			// The same ETag must not name two forms of the content (RFC 9110 section 8.8.1).
			if etag := h.Get("Etag"); strings.HasPrefix(etag, `"`) {
				h.Set("Etag", "W/"+etag)
			}
			h.Del("Content-Length")
			h.Del("Accept-Ranges")
			r.rewriter = &rewriter{w: r.ResponseWriter, bases: r.bases}
		}
	}
	r.ResponseWriter.WriteHeader(status)
}

// rewritable reports whether a response has JSON whose form may change. The media type VENDOR.raw+json is a file, which
// must stay unchanged.
func rewritable(h http.Header) bool {
	media, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	fixed := func(name string) bool { return len(h[name]) > 0 }
	return err == nil && (media == "application/json" || strings.HasSuffix(media, "+json")) && !strings.HasSuffix(media, ".raw+json") &&
		!slices.ContainsFunc([]string{"Content-Encoding", "Content-Md5", "Digest", "Content-Digest", "Repr-Digest"}, fixed) &&
		!cache.ParseDirectives(h["Cache-Control"]).Has("no-transform")
}

func (r *response) Write(p []byte) (int, error) {
	if !r.begun {
		r.WriteHeader(http.StatusOK)
	}
	if r.rewriter == nil {
		return r.ResponseWriter.Write(p)
	}
	return r.rewriter.Write(p)
}

// finish writes the rest of an incomplete string. Valid JSON has none.
func (r *response) finish() {
	if r.rewriter != nil {
		_ = r.rewriter.flush() // an error means that the client has disconnected
	}
}

// Unwrap supports [http.ResponseController].
func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// maxHeld bounds the bytes of a string that are held until its end. A longer string is not a URL that needs rewriting.
const maxHeld = 4 << 10

// rewriter rewrites a stream of JSON. It needs no knowledge of nesting: a string is the name of a member if a colon
// follows it, and the value of a member if it follows a colon.
type rewriter struct {
	w     io.Writer
	bases []Base

	out       []byte // rewritten bytes of the current Write
	held      []byte // beginning of the current string, with its quotation mark; nil if the string is not held
	inString  bool
	escaped   bool   // the previous byte of the string is a backslash
	isValue   bool   // the current string is the value of a member
	name      []byte // the last string that was held, which may be a name
	member    []byte // name of the current member
	lastToken byte   // the last byte outside of strings that is not white space; '"' after a string
}

func (r *rewriter) Write(p []byte) (int, error) {
	r.out = r.out[:0]
	for _, c := range p {
		if r.inString {
			r.inside(c)
			continue
		}
		switch c {
		case ' ', '\t', '\r', '\n':
		case '"':
			r.inString, r.isValue = true, r.lastToken == ':'
			if !r.isValue || isURL(r.member) {
				r.held = append(make([]byte, 0, 128), '"')
				continue
			}
		case ':':
			r.member, r.lastToken = r.name, c
		default:
			r.lastToken = c
		}
		r.out = append(r.out, c)
	}
	if _, err := r.w.Write(r.out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// inside handles a byte of a string after its first quotation mark.
func (r *rewriter) inside(c byte) {
	end := c == '"' && !r.escaped
	r.escaped = c == '\\' && !r.escaped
	if r.held == nil {
		r.out = append(r.out, c)
	} else if r.held = append(r.held, c); len(r.held) > maxHeld {
		r.out, r.held, r.name = append(r.out, r.held...), nil, nil
	}
	if !end {
		return
	}
	r.inString, r.lastToken = false, '"'
	if r.held == nil {
		return
	}
	if r.isValue {
		r.out = append(r.out, r.rewrite(r.held)...)
	} else {
		r.out, r.name = append(r.out, r.held...), r.held[1:len(r.held)-1]
	}
	r.held = nil
}

// flush writes the held bytes.
func (r *rewriter) flush() error {
	_, err := r.w.Write(r.held)
	r.held = nil
	return err
}

// isURL reports whether a member has a URL: hypermedia of the API names it "url" or "…_url".
func isURL(member []byte) bool {
	return string(member) == "url" || bytes.HasSuffix(member, []byte("_url"))
}

// rewrite replaces the base of a URL in a JSON string. The base ends at a character that cannot continue the host or the
// path of the base, so that similar hosts and paths stay unchanged.
func (r *rewriter) rewrite(text []byte) []byte {
	for _, base := range r.bases {
		if rest, ok := bytes.CutPrefix(text[1:], []byte(strings.TrimSuffix(base.Upstream, "/"))); ok && bytes.IndexByte([]byte(`/?#{"`), rest[0]) >= 0 {
			return append([]byte(`"`+strings.TrimSuffix(base.Local, "/")), rest...)
		}
	}
	return text
}
