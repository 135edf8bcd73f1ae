// Package aead derives from the secret that replicas share what they seal their
// values in a store with: one key for each purpose, so that what is sealed for one
// cannot be opened for another.
//
// Invariants: AES-256-GCM with random nonces, which stand before the sealed text; the
// same secret and purpose give the same key. It is not where values have their formats:
// those are their packages' own.
package aead

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
)

// New returns what seals for a purpose; nil, and no error, without a secret.
func New(secret []byte, purpose string) (cipher.AEAD, error) {
	if len(secret) == 0 {
		return nil, nil
	}
	key, err := hkdf.Key(sha256.New, secret, nil, purpose, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}
