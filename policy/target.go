package policy

import (
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

// TargetError is the reason for refusing a request target with 400.
type TargetError struct {
	// Reason is for the client. It quotes nothing from the request.
	Reason string
}

func (e *TargetError) Error() string { return "bad request target: " + e.Reason }

// maxParameters bounds a query. No documented operation has more than a dozen parameters; arrays repeat theirs.
const maxParameters = 1000

const upperhex = "0123456789ABCDEF"

// canonicalPath splits an escaped path into canonical segments: unreserved characters are decoded, all others are percent-encoded
// in upper case (RFC 3986 section 6.2.2). An encoded slash stays "%2F". A trailing slash yields an empty last segment.
func canonicalPath(escaped string) ([]string, error) {
	rest, ok := strings.CutPrefix(escaped, "/")
	if !ok {
		return nil, &TargetError{"the path does not begin with a slash"}
	}
	segments := strings.Split(rest, "/")
	for i, segment := range segments {
		canonical, err := canonicalSegment(segment)
		if err != nil {
			return nil, err
		}
		segments[i] = canonical
		if canonical == "" && i < len(segments)-1 {
			return nil, &TargetError{"the path holds an empty segment (//)"}
		}
		for part := range strings.SplitSeq(canonical, "%2F") {
			if part == "." || part == ".." || part == "" && canonical != "" {
				return nil, &TargetError{"the path holds a dot segment or an empty one"}
			}
		}
	}
	return segments, nil
}

func canonicalSegment(s string) (string, error) {
	decoded, err := url.PathUnescape(s)
	if err != nil {
		return "", &TargetError{"the path holds a broken percent-escape"}
	}
	if !utf8.ValidString(decoded) {
		return "", &TargetError{"the path is not UTF-8"}
	}
	var b strings.Builder
	for i := range len(decoded) {
		switch c := decoded[i]; {
		case c < ' ' || c == 0x7f:
			return "", &TargetError{"the path holds a control character"}
		case c == '\\':
			return "", &TargetError{"the path holds a backslash"}
		case isUnreserved(c):
			b.WriteByte(c)
		default:
			b.Write([]byte{'%', upperhex[c>>4], upperhex[c&15]})
		}
	}
	return b.String(), nil
}

// canonicalQuery sorts the parameters by name, keeps the order of equal names, and escapes them in one way.
func canonicalQuery(raw string) (string, error) {
	if strings.Contains(raw, ";") {
		return "", &TargetError{"the query holds a semicolon: write %3B"}
	}
	if strings.Count(raw, "&") >= maxParameters {
		return "", &TargetError{"the query holds more than 1,000 parameters"}
	}
	type pair struct{ name, value string }
	var pairs []pair
	for part := range strings.SplitSeq(raw, "&") {
		if part == "" {
			continue
		}
		name, value, _ := strings.Cut(part, "=")
		name, err := url.QueryUnescape(name)
		if err != nil {
			return "", &TargetError{"the query holds a broken percent-escape"}
		}
		if value, err = url.QueryUnescape(value); err != nil {
			return "", &TargetError{"the query holds a broken percent-escape"}
		}
		pairs = append(pairs, pair{name, value})
	}
	slices.SortStableFunc(pairs, func(a, b pair) int { return strings.Compare(a.name, b.name) })
	var b strings.Builder
	for i, p := range pairs {
		if i > 0 {
			b.WriteByte('&')
		}
		b.WriteString(url.QueryEscape(p.name) + "=" + url.QueryEscape(p.value))
	}
	return b.String(), nil
}

// isUnreserved implements RFC 3986 section 2.3.
func isUnreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
		c == '-' || c == '.' || c == '_' || c == '~'
}

// unescape decodes a canonical segment, which cannot fail.
func unescape(canonical string) string {
	s, err := url.PathUnescape(canonical)
	if err != nil {
		panic("policy: segment is not canonical: " + canonical)
	}
	return s
}

// fold returns a canonical segment with ASCII letters in lower case and unchanged escapes.
func fold(canonical string) string {
	b := []byte(canonical)
	for i := 0; i < len(b); i++ {
		if b[i] == '%' {
			i += 2
		} else if b[i] >= 'A' && b[i] <= 'Z' {
			b[i] += 'a' - 'A'
		}
	}
	return string(b)
}
