package credential

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
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

// ownKey matches a key that [NewKey] made: the prefix at the start, or after a character
// that cannot be part of another credential (token68, RFC 9110 section 11.2).
var ownKey = regexp.MustCompile(`(^|[^A-Za-z0-9._~+/-])` + keyPrefix)

// holdsKey reports whether a credential, or one half of a Basic pair, looks like a key
// that [NewKey] made. It also finds keys in quotes or after an unreadable scheme. Such a
// key was mistyped or revoked, and must not reach the upstream.
func holdsKey(credential string) bool { return ownKey.MatchString(credential) }
