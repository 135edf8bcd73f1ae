package policy

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// TargetError is the reason for refusing a request target.
type TargetError struct {
	// Reason is the message for the client. Reason quotes no part of the request.
	Reason string
	// Status is the status of the refusal; 0 means 400.
	Status int
}

func (e *TargetError) Error() string { return "bad request target: " + e.Reason }

// maxParameters bounds a query. No documented operation has more than a dozen parameters, but arrays repeat a
// parameter.
const maxParameters = 1000

// SingleSlashes replaces each run of slashes in a path by one slash, as the API reads paths. A base URL with a slash at its end
// often leads to such a path.
func SingleSlashes(path string) string {
	for strings.Contains(path, "//") {
		path = strings.ReplaceAll(path, "//", "/")
	}
	return path
}

// canonicalPath splits an escaped path into canonical segments: unreserved characters are decoded, and all other
// characters are percent-encoded in upper case (RFC 3986 section 6.2.2). An encoded slash stays "%2F". A run of slashes counts
// as one slash. The first segment is the empty one before the first slash. A trailing slash yields an empty last segment.
func canonicalPath(escaped string) ([]string, error) {
	segments := strings.Split(SingleSlashes(escaped), "/")
	if segments[0] != "" || len(segments) == 1 {
		return nil, &TargetError{Reason: "the path does not begin with a slash"}
	}
	for i, segment := range segments {
		canonical, err := canonicalSegment(segment)
		if err != nil {
			return nil, err
		}
		segments[i] = canonical
		for part := range strings.SplitSeq(canonical, "%2F") {
			if part == "." || part == ".." || part == "" && canonical != "" {
				return nil, &TargetError{Reason: "the path holds a dot segment or an empty one"}
			}
		}
	}
	return segments, nil
}

func canonicalSegment(s string) (string, error) {
	if isUnreserved(s) {
		return s, nil
	}
	decoded, err := url.PathUnescape(s)
	if err != nil {
		return "", &TargetError{Reason: "the path holds a broken percent-escape"}
	}
	if !utf8.ValidString(decoded) {
		return "", &TargetError{Reason: "the path is not UTF-8"}
	}
	if strings.ContainsFunc(decoded, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", &TargetError{Reason: "the path holds a control character"}
	}
	if strings.Contains(decoded, `\`) {
		return "", &TargetError{Reason: "the path holds a backslash"}
	}
	return escape(decoded), nil
}

// escape percent-encodes all characters except unreserved characters (RFC 3986 section 2.3).
func escape(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }

// climbs reports whether an upstream may read a path as one above its root, and so above the base URL of a host. Upstreams differ in
// how often they decode a path before they split it, and in whether a backslash separates segments.
func climbs(escaped string) bool {
	if !strings.Contains(escaped, "..") && !strings.Contains(escaped, "%") {
		return false
	}
	for range maxDecodings + 1 {
		if leavesRoot(escaped) || leavesRoot(strings.ReplaceAll(escaped, `\`, "/")) {
			return true
		}
		escaped = decodeOnce(escaped)
	}
	return false
}

// leavesRoot reports whether the segments between the slashes of a path lead above its root.
func leavesRoot(path string) bool {
	depth := 0
	for part := range strings.SplitSeq(path, "/") {
		switch part, _, _ = strings.Cut(decodeFully(part), ";"); part { // some servers ignore what follows a semicolon
		case "..":
			if depth--; depth < 0 {
				return true
			}
		case "", ".":
		default:
			depth++
		}
	}
	return false
}

// canonicalQuery sorts the parameters by name, keeps the order of equal names, and escapes all parameters in the same
// way. Semicolons, and percent signs without two hexadecimal digits, are text. They are sent escaped, so the upstream cannot read
// them in another way.
func canonicalQuery(raw string) (string, error) {
	if strings.Count(raw, "&") >= maxParameters {
		return "", &TargetError{Reason: "the query holds more than 1,000 parameters"}
	}
	if isCanonicalQuery(raw) {
		return raw, nil
	}
	values, err := url.ParseQuery(escapeStray(raw))
	if err != nil {
		return "", &TargetError{Reason: "the query cannot be parsed"}
	}
	return values.Encode(), nil
}

// isCanonicalQuery reports whether a query is certainly canonical: its characters need no escape, and its parameters have
// values and are in order. Client libraries send most queries in this form.
func isCanonicalQuery(raw string) bool {
	for previous := ""; raw != ""; {
		parameter, rest, more := strings.Cut(raw, "&")
		name, value, ok := strings.Cut(parameter, "=")
		if !ok || more && rest == "" || name < previous || !isUnreserved(name) || !isUnreserved(value) {
			return false
		}
		raw, previous = rest, name
	}
	return true
}

// isUnreserved reports whether all characters of s are unreserved (RFC 3986 section 2.3).
func isUnreserved(s string) bool {
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && strings.IndexByte("-._~", c) < 0 {
			return false
		}
	}
	return true
}

// escapeStray escapes the semicolons of a query, and the percent signs that begin no escape.
func escapeStray(raw string) string {
	if !strings.ContainsAny(raw, ";%") {
		return raw
	}
	var b strings.Builder
	for i := range len(raw) {
		switch {
		case raw[i] == ';':
			b.WriteString("%3B")
		case raw[i] == '%' && (i+2 >= len(raw) || !isHex(raw[i+1]) || !isHex(raw[i+2])):
			b.WriteString("%25")
		default:
			b.WriteByte(raw[i])
		}
	}
	return b.String()
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f'
}

// errNoGraphQLPath and errNoGraphQLMethod refuse requests that an upstream may treat as GraphQL calls.
var (
	errNoGraphQLPath   = &TargetError{Reason: "send GraphQL calls as POST to /graphql or /api/graphql", Status: http.StatusNotFound}
	errNoGraphQLMethod = &TargetError{Reason: "a GraphQL call is a POST with the query in its body", Status: http.StatusMethodNotAllowed}
)

// isGraphQL reports whether canonical segments are a path of the GraphQL API. The error refuses a path that an upstream may
// read as such a path, and methods other than POST. Otherwise such a request would escape the cost and the rules of a call.
func isGraphQL(method string, segments []string) (bool, error) {
	named := func(segment string) bool { return strings.Contains(strings.ToLower(decodeFully(segment)), GraphQL) }
	if !slices.ContainsFunc(segments, named) {
		return false, nil
	}
	path := strings.TrimSuffix(strings.Join(segments, "/"), "/")
	if path == GraphQL || path == "api/"+GraphQL {
		if method != http.MethodPost {
			return false, errNoGraphQLMethod
		}
		return true, nil
	}
	for part := range strings.SplitSeq(strings.ToLower(decodeFully(path)), "/") {
		part = strings.TrimLeftFunc(part, isNoLetter)
		word := part
		if end := strings.IndexFunc(part, isNoLetter); end >= 0 {
			word = part[:end]
		}
		switch word {
		case GraphQL:
			return false, errNoGraphQLPath
		case "", "api", "rest", "v": // parts that may precede the path, such as v3
		default:
			return false, nil
		}
	}
	return false, nil
}

func isNoLetter(r rune) bool { return !unicode.IsLetter(r) }

// maxDecodings is how often an upstream may decode a path.
const maxDecodings = 3

// decodeFully decodes percent-escapes until no escape is left, at most maxDecodings times.
func decodeFully(s string) string {
	for range maxDecodings {
		s = decodeOnce(s)
	}
	return s
}

// decodeOnce decodes percent-escapes once. Percent signs that begin no escape are text.
func decodeOnce(s string) string {
	if strings.Contains(s, "%") {
		s, _ = url.PathUnescape(escapeStray(s)) // without stray percent signs, there is no error
	}
	return s
}

// unescape decodes a canonical segment, and panics if the segment is not canonical.
func unescape(canonical string) string {
	s, err := url.PathUnescape(canonical)
	if err != nil {
		panic("policy: segment is not canonical: " + canonical)
	}
	return s
}

// lower returns s with ASCII letters in lower case.
func lower(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}, s)
}
