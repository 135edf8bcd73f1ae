package credential

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
)

// keyPrefix starts every key that [NewKey] makes, so that people and secret scanners
// recognize it.
const keyPrefix = "weir_"

// NewKey makes a client key and the hash that represents the key in the configuration: "sha256:" and 64 hexadecimal
// digits. A key has 130 random bits, so the hash needs no salt and no slow hash function.
func NewKey() (key Secret, hash string) {
	key = Secret(keyPrefix + rand.Text())
	sum := sha256.Sum256([]byte(key.Reveal()))
	return key, "sha256:" + hex.EncodeToString(sum[:])
}

// ownKey matches a key that [NewKey] made. The key prefix is at the start, or after a character that cannot be part of
// another credential (token68, RFC 9110 section 11.2).
var ownKey = regexp.MustCompile(`(^|[^A-Za-z0-9._~+/-])` + keyPrefix)

// holdsKey reports whether a credential, or one half of a Basic pair, looks like a key that [NewKey] made. Keys in
// quotes or after an unreadable scheme are also found. An unknown key was mistyped or revoked, and must not reach the
// upstream.
func holdsKey(credential string) bool { return ownKey.MatchString(credential) }
