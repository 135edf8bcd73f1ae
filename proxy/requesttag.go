package proxy

import (
	"net/http"
	"regexp"
)

// tagHeader is the request field by which a client names its run, repository or agent. The field is not forwarded.
const tagHeader = "Weir-Tag"

var (
	// requestTag matches a valid tag. Its characters have no meaning in logs, terminals and HTML.
	requestTag = regexp.MustCompile(`^[A-Za-z0-9._/:@-]{1,64}$`)
	// credentialInTag matches upstream tokens and keys of the gateway, but not names such as light_mode.
	credentialInTag = regexp.MustCompile(`(gh[a-z]_|github_pat_|weir_)[A-Za-z0-9]{16}`)
)

func isRequestTag(text string) bool {
	return requestTag.MatchString(text) && !credentialInTag.MatchString(text)
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
