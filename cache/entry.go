package cache

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Entry is a complete answer that is kept. It is immutable: many requests
// read one at the same time. What a hit looks at comes first: it is together in memory.
//
// Its fields lie in it, so a text that is returned of them keeps all of the entry in memory, however
// long ago the cache let it go. Who keeps one for longer than an answer takes clones it: HTTP/2 keeps
// the fields that were sent, for as long as a connection lasts.
type Entry struct {
	Status int
	fields fields
	Body   []byte
	// Vary are the request fields that selected this answer, with the values
	// they had.
	Vary []Field
	tags tags
	// Since is the purge generation at which its fetch began.
	Since Generation
	// Lifetime is how long it is fresh (RFC 9111 section 4.2.1).
	Lifetime time.Duration
	// age is the apparent age on arrival.
	age time.Duration
	// took is how long its request took.
	took time.Duration
	// Answered is when its answer came; it is moved forward by each validation.
	Answered time.Time
	// BaseKey is the question, whoever asks it; zero where no other caller can prove that it
	// may see the answer ([Store.Candidates]).
	BaseKey Key
}

// Field is one field of a request, or that it was not there: it is only like another
// that was not either (RFC 9111 section 4.1).
type Field struct {
	Name, Value string
	Absent      bool `json:",omitempty"`
}

// Response is what a fetch brought, before it is known whether it is kept.
type Response struct {
	Status              int
	Header              http.Header
	Requested, Answered time.Time
}

// Rule is what decides, beside the answer itself, whether and how it is kept.
type Rule struct {
	// OneCaller is true when the key holds one caller's answers only: then
	// private answers may be kept, as a private cache would.
	OneCaller bool
	// TTL, when positive, is the least lifetime of an answer that may be kept
	// at all: the catalogue knows the operation as reference data that is the
	// same for everyone, whatever the upstream says of privacy.
	TTL time.Duration
	// Heuristic lets an answer that says nothing of its freshness be fresh for a
	// tenth of the time since it was modified (RFC 9111 section 4.2.2).
	Heuristic bool
	// DefaultLifetime, when positive, is the lifetime of an answer that says nothing of its
	// freshness: the catalogue knows that it was expensive to make. Then 422 is kept,
	// too.
	DefaultLifetime time.Duration
}

// storable are the statuses that are kept. Limit errors, other errors of the
// upstream and 202 never are.
var storable = map[int]bool{
	http.StatusOK: true, http.StatusNonAuthoritativeInfo: true, http.StatusNoContent: true,
	http.StatusMovedPermanently: true, http.StatusPermanentRedirect: true,
	http.StatusNotFound: true, http.StatusGone: true,
}

// Storable decides whether an answer to a GET may be kept (RFC 9111 section 3) and
// for how long it will be fresh. An answer that is never fresh is kept only if
// it can be validated. Every status that is kept is understood: must-understand takes
// the place of no-store (section 5.2.2.3).
func Storable(a Response, request Directives, rule Rule) (lifetime time.Duration, ok bool) {
	response, targeted := governing(a.Header)
	shared := rule.TTL > 0
	switch {
	case !storable[a.Status] && (a.Status != http.StatusUnprocessableEntity || rule.DefaultLifetime == 0),
		request.Has("no-store"), response.Has("no-store") && !response.Has("must-understand"),
		response.Has("private") && !rule.OneCaller && !shared,
		len(a.Header["Set-Cookie"]) > 0,
		a.Header.Get("Vary") == "*":
		return 0, false
	}
	lifetime, explicit := freshness(a, response, targeted, rule)
	if shared && a.Status == http.StatusOK && !response.Has("no-cache") {
		return max(lifetime, rule.TTL), true
	}
	if !explicit && rule.Heuristic {
		lifetime = heuristic(a)
		explicit = lifetime > 0
	}
	if !explicit && rule.DefaultLifetime > 0 {
		lifetime, explicit = rule.DefaultLifetime, true
	}
	if response.Has("no-cache") {
		lifetime = 0
	}
	if lifetime <= 0 && !validatable(a.Header) {
		return 0, false
	}
	return lifetime, explicit || a.Status == http.StatusOK
}

// maxHeuristic bounds what is guessed.
const maxHeuristic = time.Hour

// heuristic is a tenth of the time since the answer was modified.
func heuristic(a Response) time.Duration {
	modified, err := parseDate(a.Header.Get("Last-Modified"))
	if err != nil {
		return 0
	}
	return min(max(0, date(a).Sub(modified)/10), maxHeuristic)
}

// freshness is the explicit lifetime (RFC 9111 section 4.2.1). Beside directives for this kind of cache Expires says nothing (RFC
// 9213 section 2.2).
func freshness(a Response, response Directives, targeted bool, rule Rule) (lifetime time.Duration, explicit bool) {
	if !rule.OneCaller {
		if s, ok := response.Seconds("s-maxage"); ok {
			return s, true
		}
	}
	if s, ok := response.Seconds("max-age"); ok {
		return s, true
	}
	value := a.Header.Get("Expires")
	if value == "" || targeted {
		return 0, false
	}
	expires, err := parseDate(value)
	if err != nil {
		return 0, true
	}
	return between(date(a), expires), true
}

func validatable(h http.Header) bool {
	return isETag(h.Get("Etag")) || h.Get("Last-Modified") != ""
}

func date(a Response) time.Time {
	if d, err := parseDate(a.Header.Get("Date")); err == nil {
		return d
	}
	return a.Answered
}

// parseDate reads an HTTP-date (RFC 9110 section 5.6.7). One of another zone than GMT is none: which time it tells could
// hang on the zone that this machine is in (RFC 9111 section 4.2).
func parseDate(value string) (time.Time, error) {
	if word := value[strings.LastIndexByte(value, ' ')+1:]; word != "GMT" && strings.Trim(word, "0123456789") != "" {
		return time.Time{}, fmt.Errorf("%q is no date in GMT", value)
	}
	return http.ParseTime(value)
}

// between is how much later a time is, zero if it is not, and so bounded that nothing overflows that is calculated with
// it (RFC 9111 section 1.2.2).
func between(earlier, later time.Time) time.Duration {
	return min(max(0, later.Sub(earlier)), maxDelta*time.Second)
}

// NewEntry makes the entry of an answer that [Storable] lets through. Header is
// copied, body is not.
func NewEntry(a Response, body []byte, lifetime time.Duration) *Entry {
	e := &Entry{Status: a.Status, fields: newFields(StorableHeader(a.Header)), Body: body, Lifetime: lifetime, Answered: a.Answered}
	e.age, e.took = arrivalAge(a), a.Answered.Sub(a.Requested)
	return e
}

// Requested is when its request was sent.
func (e *Entry) Requested() time.Time { return e.Answered.Add(-e.took) }

// arrivalAge is the corrected initial age (RFC 9111 section 4.2.3). One that was
// told, but cannot be read, is taken for too high (section 5.1 lets a cache ignore
// it; then an answer of any age would pass for new).
func arrivalAge(a Response) time.Duration {
	apparent := between(date(a), a.Answered)
	var told time.Duration
	if values := a.Header["Age"]; len(values) > 0 {
		told = maxDelta * time.Second
		if s, err := strconv.ParseUint(values[0], 10, 31); err == nil && len(values) == 1 {
			told = time.Duration(s) * time.Second
		}
	}
	return max(apparent, told+a.Answered.Sub(a.Requested))
}

// Age is the current age (RFC 9111 section 4.2.3).
func (e *Entry) Age(now time.Time) time.Duration { return e.age + max(0, now.Sub(e.Answered)) }

// date is when the answer was made, as far as it says so: not after it came.
func (e *Entry) date() time.Time {
	if d := date(Response{Header: e.Header(), Answered: e.Answered}); d.Before(e.Answered) {
		return d
	}
	return e.Answered.Truncate(time.Second) // as precise as a Date
}

// Fresh reports whether the entry may be used at now without asking, as far as
// the answer itself says.
func (e *Entry) Fresh(now time.Time) bool { return e.Age(now) < e.Lifetime }

// Validated returns the entry as a 304 renews it (RFC 9111 section 3.2): the
// fields of the 304 replace the stored ones, but for those by which the stored body
// is known and read.
func (e *Entry) Validated(a Response, lifetime time.Duration, since Generation) *Entry {
	renewed := *e
	merged := e.Header()
	for name, values := range StorableHeader(a.Header) {
		switch name {
		case "Content-Length", "Content-Encoding", "Content-Range", "Content-Md5", "Etag":
		default:
			merged[name] = values
		}
	}
	renewed.fields = newFields(merged)
	renewed.Answered, renewed.took = a.Answered, a.Answered.Sub(a.Requested)
	renewed.Lifetime, renewed.Since, renewed.age = lifetime, since, arrivalAge(a)
	return &renewed
}

// Renewed is the answer that a 304 makes of the entry: what decides about
// keeping is the merged header.
func (e *Entry) Renewed(a Response) Response {
	merged := e.Validated(a, 0, 0).Header()
	return Response{Status: e.Status, Header: merged, Requested: a.Requested, Answered: a.Answered}
}

// notKept are fields that speak of one connection or one request.
var notKept = map[string]bool{
	"Connection": true, "Proxy-Connection": true, "Keep-Alive": true, "Te": true, "Trailer": true,
	"Transfer-Encoding": true, "Upgrade": true, "Proxy-Authenticate": true, "Proxy-Authentication-Info": true,
	"Proxy-Authorization": true, "Set-Cookie": true, "Alt-Svc": true, "Age": true, "Retry-After": true, "Cache-Status": true,
}

// mayBeKept reports whether fields of this name may be kept: one that speaks of more than this
// request, and is a canonical name at all.
func mayBeKept(name string) bool {
	return isToken(name) && http.CanonicalHeaderKey(name) == name && !notKept[name] && !strings.HasPrefix(name, "X-Ratelimit-") && !strings.HasPrefix(name, "Ratelimit")
}

// StorableHeader copies the fields that may be kept: without hop-by-hop fields, also
// those that Connection names (RFC 9111 section 3.1), and without the rate
// limit of the request that happened to fetch the answer.
func StorableHeader(h http.Header) http.Header {
	named := ConnectionFields(h)
	kept := make(http.Header, len(h))
	for name, values := range h {
		if len(values) == 0 || !mayBeKept(name) || named[name] {
			continue
		}
		kept[name] = append([]string(nil), values...)
	}
	return kept
}

// ConnectionFields are the fields that Connection names: they are of one connection (RFC 9110
// section 7.6.1).
func ConnectionFields(h http.Header) map[string]bool {
	values := h["Connection"]
	if len(values) == 0 {
		return nil
	}
	named := map[string]bool{}
	for _, value := range values {
		for name := range strings.SplitSeq(value, ",") {
			named[http.CanonicalHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	return named
}
