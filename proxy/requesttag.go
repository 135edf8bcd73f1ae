package proxy

import (
	"net/http"
	"strings"
)

// tagHeader is the request field by which a client names its run, repository or agent. The field is not forwarded.
const tagHeader = "Weir-Tag"

const (
	// maxTag bounds the tag of a request.
	maxTag = 64
	// minCredentialInTag is the number of letters and digits by which a credential differs from a name such as light_mode.
	minCredentialInTag = 16
)

// isRequestTag reports whether a text is a valid tag. The characters of a tag have no meaning in logs, terminals and HTML.
func isRequestTag(text string) bool {
	if text == "" || len(text) > maxTag {
		return false
	}
	for _, c := range []byte(text) {
		if !isLetterOrDigit(c) && strings.IndexByte("._/:@-", c) < 0 {
			return false
		}
	}
	for rest := range afterCredentialPrefixes(text) {
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

// requestTagOf returns the tag of a request, or an empty string. An invalid JWT claim is ignored, because a client cannot change
// its token. An invalid field is an error.
func requestTagOf(identity Identity, h http.Header) (string, error) {
	if identity.TagFromClaim {
		if !isRequestTag(identity.Tag) {
			return "", nil
		}
		return identity.Tag, nil
	}
	values := h[tagHeader]
	switch {
	case len(values) == 0, len(values) == 1 && values[0] == "":
		return "", nil
	case len(values) > 1 || !isRequestTag(values[0]):
		return "", &failure{
			status: http.StatusBadRequest, detail: "tag",
			message: "Bad Request: Weir-Tag must be one field with 1 to 64 letters, digits and ._-/:@ and without a credential",
		}
	}
	return values[0], nil
}
