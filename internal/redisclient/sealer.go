package redisclient

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
)

// NewSealer returns the cipher that encrypts values in Redis: AES-256-GCM with random nonces that precede the
// ciphertext. The key is derived from the secret that replicas share and from a purpose. A value that was sealed for
// one purpose cannot be opened for another purpose. Without a secret NewSealer returns nil.
func NewSealer(secret []byte, purpose string) (cipher.AEAD, error) {
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
