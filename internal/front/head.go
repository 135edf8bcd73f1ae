package front

import (
	"bytes"
	"net/http"
	"net/url"
	"strings"
)

// head is the head of a request, as far as it is written in the plainest way that RFC 9112
// knows: one space between method, target and version, every field a name of token characters
// with a colon behind it and a value of printable ASCII, every line ended by CRLF. All clients
// in use write so. Of what is written in another way parse says nothing, and net/http decides.
type head struct {
	size  int   // bytes, with the empty line
	body  int64 // bytes that follow and belong to the request
	plain bool  // a GET with a plain target and no field that speaks of connections or bodies

	measured bool // by a Content-Length
	method   string
	target   string
	host     string
	fields   []field // all but Host
}

type field struct{ name, value string }

// maxFields bounds how many fields are looked at.
const maxFields = 64

// parse reads the head with which b begins, on a connection on which something was said
// before. It reports false where that is not all of one, or not written as above.
func (h *head) parse(b []byte, before *said) bool {
	end := bytes.Index(b, emptyLine)
	if end < 0 {
		return false
	}
	*h = head{size: end + len(emptyLine), fields: h.fields[:0]}
	line, rest, _ := bytes.Cut(b[:end], lineEnd)
	method, line, ok1 := bytes.Cut(line, space)
	target, version, ok2 := bytes.Cut(line, space)
	if !ok1 || !ok2 || string(version) != "HTTP/1.1" {
		return false
	}
	h.method, h.target = http.MethodGet, string(target)
	if string(method) != h.method {
		h.method = string(method)
	}
	if !all(h.method, upper) || !strings.HasPrefix(h.target, "/") || !all(h.target, visible) {
		return false
	}
	h.plain = h.method == http.MethodGet && isPlain(h.target)
	for i := 0; len(rest) > 0; i++ {
		line, rest, _ = bytes.Cut(rest, lineEnd)
		if f, ok := before.read(i, line); !ok || !h.take(f) {
			return false
		}
	}
	return h.host != ""
}

var emptyLine, lineEnd, space = []byte("\r\n\r\n"), []byte("\r\n"), []byte(" ")

// said are the lines of fields in the last head on a connection. A client writes nearly all of
// them again with its next request: what it writes alike is neither read nor made anew.
type said struct {
	lines []line
	size  int // bytes of their texts
}

// line is the line of a field, as it was written and as it was read.
type line struct {
	text  string
	field field
}

// maxSaid is how many bytes are kept of the last head, for as long as the connection is there.
const maxSaid = 1 << 10

// read reads a line in its place.
func (s *said) read(place int, text []byte) (field, bool) {
	if place < len(s.lines) && s.lines[place].text == string(text) {
		return s.lines[place].field, true
	}
	l := line{text: string(text)}
	var ok bool
	if l.field, ok = readField(l.text); ok {
		s.keep(place, l)
	}
	return l.field, ok
}

func (s *said) keep(place int, l line) {
	switch {
	case place > len(s.lines):
		return // there was no room for the one before
	case place < len(s.lines):
		s.size -= len(s.lines[place].text)
		s.lines[place] = line{}
	}
	if s.size+len(l.text) > maxSaid {
		return
	}
	s.size += len(l.text)
	switch {
	case place < len(s.lines):
		s.lines[place] = l
	case s.lines == nil:
		s.lines = append(make([]line, 0, usualFields), l)
	default:
		s.lines = append(s.lines, l)
	}
}

// usualFields is room for those of most requests.
const usualFields = 8

// ends reports whether b has the end of a head.
func ends(b []byte) bool { return bytes.Contains(b, emptyLine) }

// readField reads the line of a field.
func readField(line string) (field, bool) {
	name, value, ok := strings.Cut(line, ":")
	value = strings.Trim(value, " \t")
	if !ok || !all(name, token) || !all(value, printable) {
		return field{}, false
	}
	return field{http.CanonicalHeaderKey(name), value}, true
}

// take takes up a field.
func (h *head) take(f field) bool {
	if len(h.fields) == maxFields {
		return false
	}
	switch f.name {
	case "Host":
		if h.host != "" || !all(f.value, authority) {
			return false
		}
		h.host = f.value
		return true
	case "Content-Length":
		n, ok := length(f.value)
		if h.measured || !ok {
			return false
		}
		h.body, h.measured, h.plain = n, true, false
	case "Transfer-Encoding":
		return false
	case "Connection":
		h.plain = h.plain && strings.EqualFold(f.value, "keep-alive")
	case "Upgrade", "Expect", "Trailer", "Te", "Proxy-Connection", "Keep-Alive", "Http2-Settings",
		"Pragma": // net/http makes Cache-Control of it
		h.plain = false
	}
	h.fields = append(h.fields, f)
	return true
}

// length reads a Content-Length: digits only, and few enough.
func length(value string) (n int64, ok bool) {
	if value == "" || len(value) > 15 {
		return 0, false
	}
	for i := range len(value) {
		if value[i] < '0' || value[i] > '9' {
			return 0, false
		}
		n = n*10 + int64(value[i]-'0')
	}
	return n, true
}

// isPlain reports whether a target is one that means what it says: no escapes, nothing that
// could be an authority.
func isPlain(target string) bool {
	path, _, asks := strings.Cut(target, "?")
	return all(path, plainPath) && !strings.HasPrefix(path, "//") &&
		(!asks || len(path)+1 < len(target) && strings.IndexByte(target, '#') < 0)
}

// into makes a request of a plain head, as net/http would.
func (h *head) into(r *http.Request, u *url.URL, remote string, values []string) {
	clear(r.Header)
	path, query, _ := strings.Cut(h.target, "?")
	*u = url.URL{Path: path, RawQuery: query}
	r.Method, r.URL, r.RequestURI, r.Host, r.RemoteAddr = h.method, u, h.target, h.host, remote
	r.Proto, r.ProtoMajor, r.ProtoMinor, r.Body = "HTTP/1.1", 1, 1, http.NoBody
	for i, f := range h.fields {
		if before := r.Header[f.name]; before != nil {
			r.Header[f.name] = append(before, f.value)
			continue
		}
		values[i] = f.value
		r.Header[f.name] = values[i : i+1 : i+1]
	}
}

// kinds are what a character may be part of.
type kinds uint8

const (
	upper kinds = 1 << iota
	visible
	printable
	token
	authority
	plainPath
)

var kindsOf = func() (table [256]kinds) {
	for c := range table {
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		alphanumeric := letter || '0' <= c && c <= '9'
		is := func(kind kinds, yes bool) {
			if yes {
				table[c] |= kind
			}
		}
		is(upper, 'A' <= c && c <= 'Z')
		is(visible, '!' <= c && c <= '~')
		is(printable, ' ' <= c && c <= '~' || c == '\t')
		is(token, alphanumeric || strings.IndexByte("!#$%&'*+-.^_`|~", byte(c)) >= 0)
		is(authority, alphanumeric || strings.IndexByte("-._:[]", byte(c)) >= 0)
		is(plainPath, alphanumeric || strings.IndexByte("/-._~:@&=+$", byte(c)) >= 0)
	}
	return table
}()

// all reports whether a text has one character at least, and all are of a kind; a value may
// be empty.
func all(text string, kind kinds) bool {
	for i := range len(text) {
		if kindsOf[text[i]]&kind == 0 {
			return false
		}
	}
	return text != "" || kind == printable
}
