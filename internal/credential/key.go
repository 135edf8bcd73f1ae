package credential

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
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
