package proxy

import (
	"iter"
	"strings"
)

const (
	// maxText bounds text from the client in spans.
	maxText = 256
	// minSecret is the minimum length of a part of a credential that counts as a secret.
	minSecret = 8
	// masked replaces path segments that may contain a secret.
	masked = "REDACTED"
)

// maskedPath returns the path for traces, without segments that may contain a secret. For an unknown operation,
// maskedPath returns the route.
func (ex *exchange) maskedPath() string {
	if ex.question == nil || !ex.question.match.Operation.Known() {
		return ex.record.Route
	}
	own := ex.appendCredentials(make([]string, 0, 2))
	isMasked := func(segment string) bool { return len(segment) > maxText || isSecret(segment, own) }
	for segment := range strings.SplitSeq(ex.question.match.Path, "/") {
		if isMasked(segment) {
			return maskSegments(ex.question.match.Path, isMasked)
		}
	}
	return ex.question.match.Path
}

func maskSegments(path string, isMasked func(segment string) bool) string {
	segments := strings.Split(path, "/")
	for i, s := range segments {
		if isMasked(s) {
			segments[i] = masked
		}
	}
	return strings.Join(segments, "/")
}

// appendCredentials appends the credentials of the request, without their scheme.
func (ex *exchange) appendCredentials(list []string) []string {
	for _, name := range [...]string{"Authorization", "Cookie"} {
		for _, value := range ex.in.Header[name] {
			if _, credential, ok := strings.Cut(value, " "); ok {
				value = credential
			}
			list = append(list, value)
		}
	}
	return list
}

// isSecret reports whether a text has the shape of a credential, contains the request's own credential, or is part of
// that credential.
func (ex *exchange) isSecret(text string) bool {
	return isSecret(text, ex.appendCredentials(nil))
}

func isSecret(text string, own []string) bool {
	for range afterCredentialPrefixes(text) {
		return true
	}
	for _, value := range own {
		if len(value) >= minSecret && strings.Contains(text, value) || len(text) >= minSecret && strings.Contains(value, text) {
			return true
		}
	}
	return false
}

// credentialPrefixes begin the tokens of the API and the keys of the gateway. A question mark is any lower-case letter. Each
// prefix ends with an underscore.
var credentialPrefixes = [...]string{"gh?_", "github_pat_", "weir_"}

// afterCredentialPrefixes returns the rest of a text after each of its credential prefixes.
func afterCredentialPrefixes(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for end, c := range []byte(text) {
			if c == '_' && endsWithCredentialPrefix(text[:end+1]) && !yield(text[end+1:]) {
				return
			}
		}
	}
}

func endsWithCredentialPrefix(text string) bool {
	for _, prefix := range credentialPrefixes {
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
