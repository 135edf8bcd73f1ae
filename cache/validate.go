package cache

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/weirgate/weir/policy"
)

// NotModified reports whether the response to a GET or HEAD with these request fields is a 304 (RFC
// 9110 section 13.2.2). If-None-Match is compared weakly, and takes precedence over
// If-Modified-Since. Without a strong Last-Modified, a later second than that of Date counts (RFC
// 9111 section 4.3.2), because the resource may have changed within the second of Date.
func (e *Entry) NotModified(request http.Header) bool {
	if e.Status != http.StatusOK {
		return false
	}
	if tags := request["If-None-Match"]; len(tags) > 0 {
		return MatchesETag(tags, e.Header.Get("Etag"))
	}
	if len(request["If-Modified-Since"]) == 0 {
		return false
	}
	since, err := parseDate(request.Get("If-Modified-Since"))
	if err != nil {
		return false
	}
	if modified := e.LastModified(); !modified.IsZero() {
		return !modified.After(since)
	}
	modified, _ := parseDate(e.Header.Get("Last-Modified")) // the zero time if there is no date
	return modified.Before(since) && dateOf(e.Header, e.Answered).Before(since)
}

// LastModified returns the date of the last modification if the date is a strong validator, and
// otherwise the zero time. The date is strong if it is at least a second before Date (RFC 9110 section
// 8.8.2.2).
func (e *Entry) LastModified() time.Time {
	modified, err := parseDate(e.Header.Get("Last-Modified"))
	if err != nil || dateOf(e.Header, e.Answered).Sub(modified) < time.Second {
		return time.Time{}
	}
	return modified
}

// MatchesETag reports whether the values of If-None-Match contain an entity tag equal to etag by
// weak comparison, or "*" (RFC 9110 sections 8.8.3.2 and 13.1.2). Unquoted members are ignored.
func MatchesETag(values []string, etag string) bool {
	etag = strings.TrimPrefix(etag, "W/")
	for _, list := range values {
		if strings.TrimSpace(list) == "*" {
			return true
		}
		for list != "" {
			var tag string
			if tag, list = nextETag(list); tag != "" && tag == etag {
				return true
			}
		}
	}
	return false
}

// nextETag returns the next opaque-tag of a list, with quotes. If the member before the next comma is
// not an entity tag, nextETag returns an empty tag.
func nextETag(list string) (tag, rest string) {
	list = strings.TrimLeft(list, " \t,")
	list = strings.TrimPrefix(list, "W/")
	if !strings.HasPrefix(list, `"`) {
		_, rest, _ = strings.Cut(list, ",")
		return "", rest
	}
	end := strings.IndexByte(list[1:], '"')
	if end < 0 {
		return "", ""
	}
	return list[:end+2], list[end+2:]
}

// ETag returns the entity tag of the entry, or an empty string if its ETag field is missing or invalid.
func (e *Entry) ETag() string {
	if etag := e.Header.Get("Etag"); isETag(etag) {
		return etag
	}
	return ""
}

// isETag reports whether the value of a field is one entity tag (RFC 9110 section 8.8.3).
func isETag(value string) bool {
	tag := strings.TrimPrefix(value, "W/")
	if len(tag) < 2 || tag[0] != '"' || tag[len(tag)-1] != '"' {
		return false
	}
	return !strings.ContainsFunc(tag[1:len(tag)-1], func(r rune) bool { return r <= ' ' || r == '"' || r == 0x7f })
}

// Differs reports whether the response to a HEAD describes another body than the body of the entry
// (RFC 9111 section 4.3.5).
func (e *Entry) Differs(head *http.Response) bool {
	for _, name := range []string{"Etag", "Last-Modified"} {
		value := head.Header.Get(name)
		if value != "" && strings.TrimPrefix(value, "W/") != strings.TrimPrefix(e.Header.Get(name), "W/") {
			return true
		}
	}
	return head.ContentLength >= 0 && head.ContentLength != e.Length()
}

// Selects reports whether a request with these fields selects the entry (RFC 9111 section 4.1).
func (e *Entry) Selects(request http.Header) bool {
	return !slices.ContainsFunc(e.Vary, func(f Field) bool { return fieldOf(request, f.Name) != f })
}

// overruled reports whether the entry has no Vary, although an entry of the same age or newer has a
// Vary. No request may select an overruled entry (RFC 9111 section 4.1).
func (e *Entry) overruled(list []*Entry) bool {
	return len(e.Vary) == 0 && slices.ContainsFunc(list, func(other *Entry) bool {
		return len(other.Vary) > 0 && !other.date().Before(e.date()) && !other.Answered.Before(e.Answered)
	})
}

// VaryFields parses the Vary field of a response, and returns the named request fields with their
// values. Names in covered are omitted, because the key contains their values. For "*", VaryFields
// returns false.
func VaryFields(response, request http.Header, covered []string) ([]Field, bool) {
	var fields []Field
	for name := range policy.Members(response["Vary"]) {
		if name == "*" {
			return nil, false
		}
		if name != "" && !slices.ContainsFunc(covered, func(c string) bool { return strings.EqualFold(c, name) }) {
			fields = append(fields, fieldOf(request, http.CanonicalHeaderKey(name)))
		}
	}
	return fields, true
}

// FieldValue returns the value of a request field in the normal form by which entries are selected. The value of a missing
// field is empty.
func FieldValue(request http.Header, name string) string {
	if len(request[name]) == 0 {
		return ""
	}
	return fieldOf(request, name).Value
}

// fieldOf returns a request field in normal form (RFC 9111 section 4.1): one line, and one space after
// each comma. Accept-Language is sorted and in lower case, because neither the order nor the case of
// its members has a meaning (RFC 9110 section 12.5.4).
func fieldOf(request http.Header, name string) Field {
	values := request[name]
	value := strings.Join(values, ", ")
	if strings.Contains(value, `"`) { // the quoted text may contain commas
		return Field{name, value, false}
	}
	if name == "Accept-Language" {
		value = strings.ToLower(value)
	}
	members := strings.Split(value, ",")
	for i, m := range members {
		members[i] = strings.Trim(m, " \t")
	}
	if name == "Accept-Language" {
		slices.Sort(members)
	}
	return Field{name, strings.Join(members, ", "), len(values) == 0}
}
