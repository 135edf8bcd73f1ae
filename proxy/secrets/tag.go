package secrets

import "strings"

const (
	// maxTag bounds the tag of a request.
	maxTag = 64
	// minCredentialInTag is the number of letters and digits by which a credential differs from a name such as light_mode.
	minCredentialInTag = 16
)

// IsTag reports whether a text is a valid tag. The characters of a tag have no meaning in logs, terminals and HTML.
func IsTag(text string) bool {
	if text == "" || len(text) > maxTag {
		return false
	}
	for _, c := range []byte(text) {
		if !isLetterOrDigit(c) && strings.IndexByte("._/:@-", c) < 0 {
			return false
		}
	}
	for rest := range After(text) {
		if app, token, _ := strings.Cut(rest, "_"); strings.Trim(app, "0123456789") == "" && strings.HasPrefix(token, "eyJ") {
			return false // ghs_APP_JWT
		}
		n := 0
		for n < len(rest) && isLetterOrDigit(rest[n]) {
			n++
		}
		if n >= minCredentialInTag {
			return false
		}
	}
	return true
}

func isLetterOrDigit(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}
