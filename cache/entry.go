package cache

import (
	"bytes"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/weirgate/weir/policy"
)

// Entry is a stored response or part of one (206). A stored entry is immutable, because concurrent requests read it.
type Entry struct {
	Status int
	// Header has the end-to-end fields that [StorableHeader] keeps. Do not modify Header.
	Header http.Header
	Body   []byte
	// Coded contains Body by content coding. [Memory.Coded] stores a copy with the codings that clients accept.
	Coded map[string][]byte `json:"-"`
	// Packed is the body in gzip if its identity form is too large for Body, which is then nil. Unpacked is the length of the
	// identity form. A packed entry is not shared.
	Packed   []byte `json:"-"`
	Unpacked int64  `json:"-"`
	// Vary contains the request fields that select this entry, with their values.
	Vary []Field
	// Tags lists the names under which the entry can be purged.
	Tags []string
	// Since is the purge generation at which the fetch began.
	Since Generation
	// Suspect is set if the fetch began shortly after a change ([Purge.Unsettled]), so that the response may be older than
	// the change. A suspect entry counts as purged.
	Suspect Cause `json:",omitempty"`
	// Former contains the states that the upstream showed before this one, for a short time.
	Former []Former `json:",omitempty"`
	// Lifetime is the age at which the entry becomes stale (RFC 9111 section 4.2.1).
	Lifetime time.Duration
	// InitialAge is the corrected age on arrival (RFC 9111 section 4.2.3).
	InitialAge time.Duration
	// Requested is the time of the last request that fetched or revalidated the entry. Answered is
	// the time of the response to that request.
	Requested, Answered time.Time
	// BaseKey is the key of the question without its caller. BaseKey is zero if other callers
	// cannot prove access to the entry ([Store.Candidates]).
	BaseKey Key
	// interned contains the tags of an entry in memory, with their last purges.
	interned []*tag
}

// Field is one field of a request. An absent field differs from an empty field (RFC 9111 section
// 4.1).
type Field struct {
	Name, Value string
	Absent      bool `json:",omitempty"`
}

// Length returns the length of the body in the identity form.
func (e *Entry) Length() int64 { return e.Unpacked + int64(len(e.Body)) }

// SameBody reports whether two entries have the same body.
func (e *Entry) SameBody(other *Entry) bool {
	return bytes.Equal(e.Body, other.Body) && bytes.Equal(e.Packed, other.Packed)
}

// Began records the start of the fetch of an entry.
func (e *Entry) Began(f Fetch) { e.Since, e.Suspect = f.Since, f.Suspect }

// Response is a response of the upstream before the decision to store it.
type Response struct {
	Status              int
	Header              http.Header
	Requested, Answered time.Time
}

// NewEntry returns the entry for a response that is [Storable]. NewEntry copies the header, but not
// the body.
func NewEntry(r Response, body []byte, lifetime time.Duration) *Entry {
	return &Entry{
		Status: r.Status, Header: StorableHeader(r.Header), Body: body, Lifetime: lifetime,
		InitialAge: initialAge(r), Requested: r.Requested, Answered: r.Answered,
	}
}

// Validated returns a copy of the entry with the fields of a 304 (RFC 9111 section 3.2). The fields
// that identify and describe the stored body are kept. The lifetime is also kept.
func (e *Entry) Validated(r Response) *Entry {
	renewed := *e
	renewed.Header = maps.Clone(e.Header)
	for name, values := range StorableHeader(r.Header) {
		switch name {
		case "Content-Length", "Content-Encoding", "Content-Range", "Etag":
		default:
			if !IsContentDigest(name) {
				renewed.Header[name] = values
			}
		}
	}
	renewed.Requested, renewed.Answered, renewed.InitialAge = r.Requested, r.Answered, initialAge(r)
	return &renewed
}

// IsContentDigest reports whether a field with a canonical name has a digest of the content of one response (RFC 9530 section 2).
// A response with a part of the content, or without content, must not have it.
func IsContentDigest(name string) bool { return name == "Content-Digest" || name == "Content-Md5" }

// unstorable contains the fields that belong to one connection or one request.
var unstorable = map[string]bool{
	"Connection": true, "Proxy-Connection": true, "Keep-Alive": true, "Te": true, "Trailer": true,
	"Transfer-Encoding": true, "Upgrade": true, "Proxy-Authenticate": true, "Proxy-Authentication-Info": true,
	"Proxy-Authorization": true, "Set-Cookie": true, "Alt-Svc": true, "Age": true, "Retry-After": true, "Cache-Status": true,
}

// storableField reports whether a field may be stored. The name must be canonical, and the field must
// not belong to one request.
func storableField(name string) bool {
	return httpguts.ValidHeaderFieldName(name) && http.CanonicalHeaderKey(name) == name && !unstorable[name] &&
		!strings.HasPrefix(name, "X-Ratelimit-") && !strings.HasPrefix(name, "Ratelimit")
}

// StorableHeader copies the fields that may be stored. Rate limits, hop-by-hop fields and the fields
// that Connection names are omitted (RFC 9111 section 3.1).
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

// ConnectionFields returns the field names in Connection. The named fields belong to one connection
// (RFC 9110 section 7.6.1).
func ConnectionFields(h http.Header) map[string]bool {
	var named map[string]bool // most requests have no such field
	for name := range policy.Members(h["Connection"]) {
		if named == nil {
			named = map[string]bool{}
		}
		named[http.CanonicalHeaderKey(name)] = true
	}
	return named
}
