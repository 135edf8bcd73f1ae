package policy

import (
	"net/url"
	"slices"
	"strings"
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
// A trailing slash leaves an empty last segment.
func canonicalPath(escaped string) ([]string, error) {
	if !strings.HasPrefix(escaped, "/") {
		return nil, &TargetError{"the path does not begin with a slash"}
	}
	segments := strings.Split(escaped[1:], "/")
	for i, s := range segments {
		canonical, err := canonicalSegment(s)
		if err != nil {
			return nil, err
		}
		segments[i] = canonical
		if canonical == "" && i != len(segments)-1 {
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
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c, escaped := s[i], false
		if c == '%' {
			if i+2 >= len(s) || unhex(s[i+1]) < 0 || unhex(s[i+2]) < 0 {
				return "", &TargetError{"the path holds a broken percent-escape"}
			}
			c, escaped = byte(unhex(s[i+1])<<4|unhex(s[i+2])), true
			i += 2
		}
		switch {
		case c < ' ' || c == 0x7f:
			return "", &TargetError{"the path holds a control character"}
		case c == '\\':
			return "", &TargetError{"the path holds a backslash"}
		case isUnreserved(c) || !escaped && strings.IndexByte("!$&'()*+,;=:@", c) >= 0:
			b.WriteByte(c)
		default:
			b.WriteByte('%')
			b.WriteByte(upperhex[c>>4])
			b.WriteByte(upperhex[c&15])
		}
	}
	return b.String(), nil
}

// canonicalQuery sorts the parameters by name (those of one name keep their
// order) and escapes them in one way.
func canonicalQuery(raw string) (string, error) {
	if raw == "" {
		return "", nil
	}
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
		b.WriteString(url.QueryEscape(p.name))
		b.WriteByte('=')
		b.WriteString(url.QueryEscape(p.value))
	}
	return b.String(), nil
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

func unhex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
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
