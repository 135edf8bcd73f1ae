package credential

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// keyPrefix begins every key that [NewKey] makes, so that people and scanners
// know one when they see it.
const keyPrefix = "weir_"

// NewKey makes the key of a client, and what the configuration says in its
// place: "sha256:" and 64 hexadecimal digits. A key has 130 random bits, so
// its hash needs neither salt nor slowness.
func NewKey() (key Secret, hash string) {
	key = Secret(keyPrefix + rand.Text())
	sum := sha256.Sum256([]byte(key.Reveal()))
	return key, "sha256:" + hex.EncodeToString(sum[:])
}

// keys are clients by the SHA-256 of their keys.
//
// A look-up takes a time that depends on the hash of what was sent, which is not
// the sender's to choose: from it nobody learns to make a key, as they would from
// comparing the keys themselves.
type keys map[[sha256.Size]byte]Caller

// add takes a client's key; the zero value is none.
func (k keys) add(sum [sha256.Size]byte, c Caller) {
	if _, taken := k[sum]; !taken && sum != [sha256.Size]byte{} {
		k[sum] = c
	}
}

func (k keys) caller(key string) (Caller, bool) {
	if len(k) == 0 {
		return Caller{}, false
	}
	c, ok := k[sha256.Sum256([]byte(key))]
	return c, ok
}

// keyBegins matches the beginning of a key: what is before it is nothing, or nothing that
// could be a part of another credential (token68 of RFC 9110, section 11.2).
var keyBegins = regexp.MustCompile(`(^|[^A-Za-z0-9._~+/-])` + keyPrefix)

// holdsKey reports whether a credential, or a part of the pair that a Basic one is,
// looks like a key that NewKey has made, be it in quotes or behind a scheme that could
// not be read. One that nobody knows was taken back or mistyped, and is none of the
// upstream's business.
func holdsKey(credential string) bool {
	return strings.Contains(credential, keyPrefix) && keyBegins.MatchString(credential) // alone the latter is an eighth of a hit
}
