package policy

import (
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

// TargetError says why a request target is refused; the answer to it is 400.
type TargetError struct {
	// Reason is fit for the client: it quotes nothing of the request.
	Reason string
}

func (e *TargetError) Error() string { return "bad request target: " + e.Reason }

// maxParameters bounds a query. No operation of the documents has more than a
// dozen parameters; arrays repeat theirs.
const maxParameters = 1000

const upperhex = "0123456789ABCDEF"

// canonicalPath splits an escaped path into canonical segments: unreserved
// characters decoded, everything else percent-encoded in upper case (RFC 3986
// section 6.2.2). An encoded slash stays "%2F": only a {branch} may hold one.
// A trailing slash leaves an empty last segment. They are appended to room.
func canonicalPath(escaped string, room []string) ([]string, error) {
	rest, more := strings.CutPrefix(escaped, "/")
	if !more {
		return nil, &TargetError{"the path does not begin with a slash"}
	}
	segments := room
	for more {
		var segment string
		segment, rest, more = strings.Cut(rest, "/")
		canonical, err := canonicalSegment(segment)
		if err != nil {
			return nil, err
		}
		segments = append(segments, canonical)
		if canonical == "" && more {
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
	if isPlain(s) {
		return s, nil
	}
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

// canonicalQuery sorts the parameters by name (those of one name keep their
// order) and escapes them in one way.
func canonicalQuery(raw string) (string, error) {
	if strings.Contains(raw, ";") {
		return "", &TargetError{"the query holds a semicolon: write %3B"}
	}
	if strings.Count(raw, "&") >= maxParameters {
		return "", &TargetError{"the query holds more than 1,000 parameters"}
	}
	if isCanonicalQuery(raw) {
		return raw, nil
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
		b.WriteString(url.QueryEscape(p.name))
		b.WriteByte('=')
		b.WriteString(url.QueryEscape(p.value))
	}
	return b.String(), nil
}

// isCanonicalQuery recognizes most queries that canonicalQuery would leave as
// they are; it gives up on names that need escapes.
func isCanonicalQuery(raw string) bool {
	previous := ""
	for raw != "" {
		part, rest, more := strings.Cut(raw, "&")
		name, value, ok := strings.Cut(part, "=")
		if !ok || name < previous || !isPlain(name) || !isCanonicalValue(value) || more && rest == "" {
			return false
		}
		previous, raw = name, rest
	}
	return true
}

func isCanonicalValue(s string) bool {
	for i := 0; i < len(s); i++ {
		switch {
		case isUnreserved(s[i]) || s[i] == '+':
		case s[i] == '%' && i+2 < len(s) && isCanonicalEscape(s[i+1], s[i+2]):
			i += 2
		default:
			return false
		}
	}
	return true
}

// isCanonicalEscape reports whether two digits after a percent sign are in
// upper case and stand for a character that must be escaped in a query.
func isCanonicalEscape(high, low byte) bool {
	h, l := strings.IndexByte(upperhex, high), strings.IndexByte(upperhex, low)
	if h < 0 || l < 0 {
		return false
	}
	c := byte(h<<4 | l)
	return c != ' ' && !isUnreserved(c)
}

func isPlain(s string) bool {
	for i := range len(s) {
		if !isUnreserved(s[i]) {
			return false
		}
	}
	return true
}

// isUnreserved is RFC 3986 section 2.3.
func isUnreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
		c == '-' || c == '.' || c == '_' || c == '~'
}

// unescape decodes a canonical segment, which cannot fail.
func unescape(canonical string) string {
	s, err := url.PathUnescape(canonical)
	if err != nil {
		panic("policy: not canonical: " + canonical)
	}
	return s
}

// fold writes the ASCII letters of a canonical segment in lower case, escapes
// left as they are.
func fold(canonical string) string {
	if !strings.Contains(canonical, "%") {
		return strings.ToLower(canonical)
	}
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
