// Package secrets recognizes credentials in the texts of clients, so that records, traces and tags do not contain them.
package secrets

import (
	"iter"
	"net/http"
	"strings"
)

const (
	// MaxText bounds the texts of clients in traces.
	MaxText = 256
	// MinPart is the minimum length of a part of a credential that counts as a secret.
	MinPart = 8
	// Masked replaces path segments that may contain a secret.
	Masked = "REDACTED"
)

// MaskPath returns a path without segments that may contain a secret. The header is that of the request.
func MaskPath(path string, request http.Header) string {
	own := appendCredentials(make([]string, 0, 2), request)
	isMasked := func(segment string) bool { return len(segment) > MaxText || contains(segment, own) }
	for segment := range strings.SplitSeq(path, "/") {
		if isMasked(segment) {
			return maskSegments(path, isMasked)
		}
	}
	return path
}

func maskSegments(path string, isMasked func(segment string) bool) string {
	segments := strings.Split(path, "/")
	for i, s := range segments {
		if isMasked(s) {
			segments[i] = Masked
		}
	}
	return strings.Join(segments, "/")
}

// appendCredentials appends the credentials of a request, without their scheme.
func appendCredentials(list []string, request http.Header) []string {
	for _, name := range [...]string{"Authorization", "Cookie"} {
		for _, value := range request[name] {
			if _, credential, ok := strings.Cut(value, " "); ok {
				value = credential
			}
			list = append(list, value)
		}
	}
	return list
}

// In reports whether a text has the shape of a credential, contains a credential of the request, or is part of that credential.
// The header of the request may be nil.
func In(text string, request http.Header) bool {
	return contains(text, appendCredentials(make([]string, 0, 2), request))
}

func contains(text string, own []string) bool {
	for range After(text) {
		return true
	}
	for _, value := range own {
		if len(value) >= MinPart && strings.Contains(text, value) || len(text) >= MinPart && strings.Contains(value, text) {
			return true
		}
	}
	return false
}

// prefixes begin the tokens of the API and the keys of the gateway. A question mark is any lower-case letter. Each
// prefix ends with an underscore.
var prefixes = [...]string{"gh?_", "github_pat_", "weir_"}

// After returns the rest of a text after each of its credential prefixes.
func After(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for end, c := range []byte(text) {
			if c == '_' && endsWithPrefix(text[:end+1]) && !yield(text[end+1:]) {
				return
			}
		}
	}
}

func endsWithPrefix(text string) bool {
	for _, prefix := range prefixes {
		before, after, hasLetter := strings.Cut(prefix, "?")
		switch n := len(text) - len(prefix); {
		case n < 0:
		case !hasLetter && text[n:] == prefix:
			return true
		case hasLetter && strings.HasPrefix(text[n:], before) && strings.HasSuffix(text, after) && 'a' <= text[n+len(before)] && text[n+len(before)] <= 'z':
			return true
		}
	}
	return false
}
