package credential

import (
	"bytes"
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

const (
	// maxCredential bounds the size of an Authorization value that is forwarded, in bytes.
	maxCredential = 4 << 10
	// maxDecoded bounds the text that [Registry.holdsOwn] inspects for one credential, in bytes. A credential with more
	// nested encodings is refused.
	maxDecoded = 16 << 10
	// minText is the minimum length of a client key, and thus of an encoded own credential.
	minText = 20
)

var (
	// plainToken matches an opaque token, and a JWT in the compact form.
	plainToken = regexp.MustCompile(`^(?:[A-Za-z0-9_-]+|eyJ[A-Za-z0-9_-]*\.eyJ[A-Za-z0-9_-]*\.[A-Za-z0-9_-]+)$`)
	// prefixedToken matches a token that begins with a known prefix of the upstream. Such a token may contain a JWT.
	prefixedToken = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)
	// pairName matches the name in a Basic pair: a user, a client ID or a token.
	pairName = regexp.MustCompile(`^[A-Za-z0-9_.@+-]*$`)
)

// hasUpstreamForm reports whether an Authorization value is exactly "Bearer TOKEN", "token TOKEN", the same with a scheme of the
// dialect, or "Basic PAIR", where PAIR is a name with a token or secret, or a token with an empty password.
func (r *Registry) hasUpstreamForm(value string) bool {
	scheme, text, _ := strings.Cut(value, " ")
	switch {
	case len(value) > maxCredential:
		return false
	case strings.EqualFold(scheme, "bearer"), strings.EqualFold(scheme, "token"), r.config.Dialect.HasScheme(scheme):
		return r.isToken(text)
	case strings.EqualFold(scheme, "basic"):
		pair, err := base64.StdEncoding.Strict().DecodeString(text)
		name, password, ok := strings.Cut(string(pair), ":")
		return err == nil && ok && pairName.MatchString(name) && (r.isToken(password) || password == "" && name != "")
	}
	return false
}

func (r *Registry) isToken(text string) bool {
	return plainToken.MatchString(text) || r.config.Dialect.HasTokenPrefix(text) && prefixedToken.MatchString(text)
}

// ownKey matches a key that [NewKey] made, and the beginning of such a key, in folded text. The beginning is at the start of the
// text, or after a character that cannot be part of another credential (token68, RFC 9110 section 11.2).
var ownKey = regexp.MustCompile(`(?:^|[^a-z0-9._~+/-])` + keyPrefix + `|` + keyPrefix + `[a-z2-7]{26}`)

// sentKey matches the same in a text that is no credential, such as a path or a query. There a name may begin like a key, so
// the beginning of a key has at least 16 characters of its random part.
var sentKey = regexp.MustCompile(`(?:^|[^a-z0-9._~+/-])` + keyPrefix + `[a-z2-7]{16}|` + keyPrefix + `[a-z2-7]{26}`)

// maxUnescaped bounds the percent-encodings that [Registry.HoldsOwn] decodes one after another.
const maxUnescaped = 3

// HoldsOwn reports whether a text that a client sends with a request contains a credential for this gateway. Such a credential
// is the key or the token in the request's Authorization field, or any other key or token that holdsOwn finds. The text may be
// percent-encoded.
func (r *Registry) HoldsOwn(req *http.Request, text string) bool {
	_, credential := parseAuthorization(req.Header.Get("Authorization"))
	for range maxUnescaped {
		if r.holdsOwn(text, sentKey) || len(credential) >= minText && strings.Contains(text, credential) && r.holdsOwn(credential, ownKey) {
			return true
		}
		decoded, err := url.QueryUnescape(text)
		if err != nil || decoded == text {
			return false
		}
		text = decoded
	}
	return r.holdsOwn(text, sentKey)
}

// holdsOwn reports whether a text contains a gateway key or a token of a configured issuer, or decodes to a text that
// contains one. Such a credential is for this gateway, or was wrapped by mistake, and must not reach the upstream. form is
// the form of unknown keys.
func (r *Registry) holdsOwn(text string, form *regexp.Regexp) bool {
	budget := maxDecoded
	return r.holdsOwnWithin(text, form, &budget)
}

func (r *Registry) holdsOwnWithin(text string, form *regexp.Regexp, budget *int) bool {
	if *budget -= len(text); *budget < 0 || r.holdsKey(text, form) || r.isTokenPayload(text) {
		return true
	}
	for _, e := range encodings {
		for run := range runs(text, e.alphabet, minText) {
			decoded := make([]byte, len(run))
			for start := range e.block { // characters of the alphabet may precede the encoded text
				n, _ := e.decode(decoded, []byte(run[start:])) // decodes the bytes before an error
				for inner := range runs(string(decoded[:n]), printable, minText) {
					if r.holdsOwnWithin(inner, form, budget) {
						return true
					}
				}
			}
		}
	}
	return false
}

// holdsKey reports whether a text contains the key of a client, the random part of such a key, or an unknown key of a form.
func (r *Registry) holdsKey(text string, form *regexp.Regexp) bool {
	isKey := func(s string) bool {
		_, ok := r.keys[sha256.Sum256([]byte(s))]
		return ok
	}
	if folded := strings.ToLower(text); strings.Contains(folded, keyPrefix) && form.MatchString(folded) {
		return true
	}
	for _, a := range []*alphabet{unseparated, undotted, word} {
		for part := range runs(text, a, minText) {
			if isKey(part) {
				return true
			}
		}
	}
	const random = 26 // the length of rand.Text
	for run := range runs(text, base32Alphabet, random) {
		for end := random; end <= len(run); end++ {
			if isKey(keyPrefix + strings.ToUpper(run[end-random:end])) {
				return true
			}
		}
	}
	return false
}

// isTokenPayload reports whether a text is the payload of a token of a configured issuer.
func (r *Registry) isTokenPayload(text string) bool {
	if !strings.HasPrefix(strings.TrimSpace(text), "{") {
		return false
	}
	issuer := issuerOfPayload([]byte(text))
	return issuer != "" && slices.ContainsFunc(r.config.Issuers, func(i Issuer) bool { return i.URL == issuer })
}

// issuerOfPayload returns the issuer in the payload of a token, or an empty string. The names of claims have letter case (RFC 7519
// section 4), so the payload is no struct.
func issuerOfPayload(payload []byte) (issuer string) {
	var claims map[string]json.RawMessage
	if json.Unmarshal(payload, &claims) != nil || json.Unmarshal(claims["iss"], &issuer) != nil {
		return ""
	}
	return issuer
}

// alphabet is a set of bytes.
type alphabet [256]bool

func newAlphabet(contains func(c byte) bool) *alphabet {
	var a alphabet
	for c := range a {
		a[c] = contains(byte(c))
	}
	return &a
}

var (
	printable      = newAlphabet(func(c byte) bool { return c >= ' ' && c <= '~' })
	unseparated    = newAlphabet(func(c byte) bool { return !strings.ContainsRune(" \t,;:\"'", rune(c)) })
	undotted       = newAlphabet(func(c byte) bool { return unseparated[c] && c != '.' })
	word           = newAlphabet(func(c byte) bool { return undotted[c] && !strings.ContainsRune("=&@/?#()[]{}<>|", rune(c)) })
	base32Alphabet = newAlphabet(func(c byte) bool { return c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '2' && c <= '7' })
)

// encodings are the encodings in which own credentials are searched. block is the number of characters that are decoded
// together.
var encodings = []struct {
	alphabet *alphabet
	block    int
	decode   func(to, from []byte) (int, error)
}{
	{newAlphabet(func(c byte) bool { return base32Alphabet[c] || strings.ContainsRune("0189+/-_", rune(c)) }), 4, func(to, from []byte) (int, error) {
		for i, c := range from { // the standard alphabet becomes the alphabet for URLs
			switch c {
			case '+':
				from[i] = '-'
			case '/':
				from[i] = '_'
			}
		}
		return base64.RawURLEncoding.Decode(to, from)
	}},
	{base32Alphabet, 8, func(to, from []byte) (int, error) {
		return base32.StdEncoding.WithPadding(base32.NoPadding).Decode(to, bytes.ToUpper(from))
	}},
	{newAlphabet(func(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' }), 2, hex.Decode},
}

// runs returns the longest parts of a text that have only characters of the alphabet, without parts that are shorter
// than the given length.
func runs(text string, a *alphabet, shortest int) iter.Seq[string] {
	return func(yield func(string) bool) {
		start := 0
		for i := range len(text) + 1 {
			if i < len(text) && a[text[i]] {
				continue
			}
			if i-start >= shortest && !yield(text[start:i]) {
				return
			}
			start = i + 1
		}
	}
}
