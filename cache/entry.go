package cache

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

// Entry is a complete stored response. It is immutable: concurrent requests read it.
type Entry struct {
	Status int
	// Header has the end-to-end fields that [StorableHeader] lets through. Do not modify it.
	Header http.Header
	Body   []byte
	// Vary are the request fields that select this entry, with their values.
	Vary []Field
	// Tags are the names by which the entry can be purged.
	Tags []string
	// Since is the purge generation at which the fetch began.
	Since Generation
	// Lifetime is how long the entry is fresh (RFC 9111 section 4.2.1).
	Lifetime time.Duration
	// InitialAge is the corrected age on arrival (RFC 9111 section 4.2.3).
	InitialAge time.Duration
	// Requested and Answered are the times of the last request that fetched or revalidated the
	// entry, and of its response.
	Requested, Answered time.Time
	// BaseKey is the key of the question without its caller. It is zero if other callers cannot
	// prove access to the entry ([Store.Candidates]).
	BaseKey Key
}

// Field is one field of a request. An absent field differs from an empty one (RFC 9111 section 4.1).
type Field struct {
	Name, Value string
	Absent      bool `json:",omitempty"`
}

// Response is a response of the upstream before the decision to store it.
type Response struct {
	Status              int
	Header              http.Header
	Requested, Answered time.Time
}

// NewEntry returns the entry of a response that [Storable] lets through. It copies the header, but
// not the body.
func NewEntry(r Response, body []byte, lifetime time.Duration) *Entry {
	return &Entry{
		Status: r.Status, Header: StorableHeader(r.Header), Body: body, Lifetime: lifetime,
		InitialAge: initialAge(r), Requested: r.Requested, Answered: r.Answered,
	}
}

// Validated returns the entry with the fields of a 304 (RFC 9111 section 3.2). It keeps the fields
// that identify and describe the stored body. The caller decides about the lifetime.
func (e *Entry) Validated(r Response) *Entry {
	renewed := *e
	renewed.Header = maps.Clone(e.Header)
	for name, values := range StorableHeader(r.Header) {
		switch name {
		case "Content-Length", "Content-Encoding", "Content-Range", "Content-Md5", "Etag":
		default:
			renewed.Header[name] = values
		}
	}
	renewed.Requested, renewed.Answered, renewed.InitialAge = r.Requested, r.Answered, initialAge(r)
	return &renewed
}

// unstorable are the fields that belong to one connection or one request.
var unstorable = map[string]bool{
	"Connection": true, "Proxy-Connection": true, "Keep-Alive": true, "Te": true, "Trailer": true,
	"Transfer-Encoding": true, "Upgrade": true, "Proxy-Authenticate": true, "Proxy-Authentication-Info": true,
	"Proxy-Authorization": true, "Set-Cookie": true, "Alt-Svc": true, "Age": true, "Retry-After": true, "Cache-Status": true,
}

// storableField reports whether a field may be stored: its name is canonical, and it does not
// belong to one request.
func storableField(name string) bool {
	return httpguts.ValidHeaderFieldName(name) && http.CanonicalHeaderKey(name) == name && !unstorable[name] &&
		!strings.HasPrefix(name, "X-Ratelimit-") && !strings.HasPrefix(name, "Ratelimit")
}

// StorableHeader copies the fields that may be stored: without hop-by-hop fields, including those
// that Connection lists (RFC 9111 section 3.1), and without rate limits.
func StorableHeader(h http.Header) http.Header {
	connection := ConnectionFields(h)
	kept := make(http.Header, len(h))
	for name, values := range h {
		if len(values) > 0 && storableField(name) && !connection[name] {
			kept[name] = slices.Clone(values)
		}
	}
	return kept
}

// ConnectionFields returns the names that Connection lists: these fields belong to one connection
// (RFC 9110 section 7.6.1).
func ConnectionFields(h http.Header) map[string]bool {
	named := map[string]bool{}
	for _, value := range h["Connection"] {
		for name := range strings.SplitSeq(value, ",") {
			named[http.CanonicalHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	return named
}
