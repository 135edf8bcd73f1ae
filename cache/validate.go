package cache

import (
	"net/http"
	"slices"
	"strings"
)

// NotModified reports whether a GET or HEAD with these request fields is
// answered 304 from the entry (RFC 9110 section 13.2.2). If-None-Match is
// compared weakly, and If-Modified-Since counts only without it.
func (e *Entry) NotModified(request http.Header) bool {
	if e.Status != http.StatusOK {
		return false
	}
	if tags := request["If-None-Match"]; len(tags) > 0 {
		return MatchesETag(tags, e.Field("Etag"))
	}
	if len(request["If-Modified-Since"]) == 0 {
		return false
	}
	since, err := parseDate(request.Get("If-Modified-Since"))
	if err != nil {
		return false
	}
	modified, err := parseDate(e.Field("Last-Modified"))
	return err == nil && !modified.After(since)
}

// MatchesETag reports whether an If-None-Match field (its values as they came)
// lists an entity tag equal to etag by weak comparison, or is "*" (RFC 9110
// sections 8.8.3.2 and 13.1.2). An unquoted member matches nothing.
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

// nextETag returns the next opaque-tag of a list with its quotes, empty where
// there is none before the next comma.
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

// ETag is the entity tag of the entry; empty where it has none, or something else in
// its place.
func (e *Entry) ETag() string {
	if etag := e.Field("Etag"); isETag(etag) {
		return etag
	}
	return ""
}

// isETag reports whether a field's value is one entity tag (RFC 9110 section 8.8.3).
func isETag(value string) bool {
	tag := strings.TrimPrefix(value, "W/")
	if len(tag) < 2 || tag[0] != '"' || tag[len(tag)-1] != '"' {
		return false
	}
	return !strings.ContainsFunc(tag[1:len(tag)-1], func(r rune) bool { return r <= ' ' || r == '"' || r == 0x7f })
}

// Differs reports whether the answer to a HEAD speaks of another body than the
// entry's (RFC 9111 section 4.3.5).
func (e *Entry) Differs(head *http.Response) bool {
	for _, name := range []string{"Etag", "Last-Modified"} {
		if value := head.Header.Get(name); value != "" && strings.TrimPrefix(value, "W/") != strings.TrimPrefix(e.Field(name), "W/") {
			return true
		}
	}
	return head.ContentLength >= 0 && head.ContentLength != int64(len(e.Body))
}

// Selects reports whether a request with these fields gets the entry (RFC 9111
// section 4.1).
func (e *Entry) Selects(request http.Header) bool {
	for _, f := range e.Vary {
		if fieldOf(request, f.Name) != f {
			return false
		}
	}
	return true
}

// overruled reports whether the entry does not say that its answer varies, and one of
// those beside it that is not older does: then it is for nobody (RFC 9111 section 4.1).
func (e *Entry) overruled(beside []*Entry) bool {
	return len(e.Vary) == 0 && slices.ContainsFunc(beside, func(other *Entry) bool {
		return len(other.Vary) > 0 && !other.date().Before(e.date()) && !other.Answered.Before(e.Answered)
	})
}

// VaryFields reads the Vary field of an answer and returns the request fields
// it names with their values, without those in covered (names that the key
// covers already). It reports false for "*".
func VaryFields(answer, request http.Header, covered []string) ([]Field, bool) {
	var fields []Field
	for _, value := range answer["Vary"] {
		for name := range strings.SplitSeq(value, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			if name == "*" {
				return nil, false
			}
			if name == "" || contains(covered, name) {
				continue
			}
			fields = append(fields, fieldOf(request, name))
		}
	}
	return fields, true
}

func fieldOf(request http.Header, name string) Field {
	values := request[name]
	return Field{name, strings.Join(values, ", "), len(values) == 0}
}

func contains(names []string, name string) bool {
	for _, n := range names {
		if strings.EqualFold(n, name) {
			return true
		}
	}
	return false
}
