// Package tokenstore is where replicas share installation tokens, in Redis: sealed, with
// the right to ask for a new one.
//
// The keys, both of one slot, of the hash of a token's name:
//
//	weir:token:{HASH}        a sealed token; until the token ends; written by who has got it, read by all
//	weir:token:{HASH}:lease  who asks for a new one; 15 s; written and deleted by that one
//
// Invariants: no token is in Redis but sealed (AES-256-GCM) by a key that is not there,
// and bound to its name; every key has a lifetime, every call a deadline. It is not the
// place where tokens are kept: each replica has its own in memory, and can get another.
package tokenstore

import (
	"context"
	"crypto/cipher"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/installation"
	"github.com/weirgate/weir/internal/redisclient"
)

// timeout bounds a call.
const timeout = 250 * time.Millisecond

//go:embed return.lua
var returnText string

// Store implements [installation.Vault]. It is safe for concurrent use.
type Store struct {
	client redisclient.Client
	sealer cipher.AEAD
	giveUp *redis.Script
}

// New returns a store on a client of its own, which it closes. All who share a Redis
// have the same secret, of 32 characters or more.
func New(client redisclient.Client, secret []byte) (*Store, error) {
	sealer, err := redisclient.NewSealer(secret, "weir installation tokens")
	if err != nil {
		return nil, err
	}
	return &Store{client, sealer, redis.NewScript(returnText)}, nil
}

// Close ends the store; nothing uses it any more.
func (s *Store) Close() error { return s.client.Close() }

func keyOf(name string) string {
	sum := sha256.Sum256([]byte(name))
	return "weir:token:{" + hex.EncodeToString(sum[:16]) + "}"
}

func leaseOf(name string) string { return keyOf(name) + ":lease" }

// plain is a token before it is sealed.
type plain struct {
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
}

// ErrSealed is why a token cannot be read: it is of another key, or of another name, or
// was changed.
var ErrSealed = errors.New("a shared installation token cannot be read: have all replicas the same cache.key?")

// Load implements [installation.Vault].
func (s *Store) Load(ctx context.Context, name string) (t installation.Token, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	value, err := s.client.Get(ctx, keyOf(name)).Bytes()
	switch {
	case errors.Is(err, redis.Nil):
		return t, nil
	case err != nil:
		return t, fmt.Errorf("load a token: %w", err)
	}
	text, err := s.sealer.Open(nil, nil, value, []byte(name))
	var p plain
	if err != nil || json.Unmarshal(text, &p) != nil {
		return t, ErrSealed
	}
	return installation.Token{Value: credential.Secret(p.Token), Expires: p.Expires}, nil
}

// Lease implements [installation.Vault].
func (s *Store) Lease(ctx context.Context, name, owner string, lives time.Duration) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := s.client.SetArgs(ctx, leaseOf(name), owner, redis.SetArgs{Mode: "NX", TTL: lives}).Err()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	return err == nil, err
}

// Return implements [installation.Vault].
func (s *Store) Return(ctx context.Context, name, owner string, t installation.Token) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var sealed []byte
	lives := time.Until(t.Expires)
	if t.Value != "" && lives > time.Millisecond {
		text, err := json.Marshal(plain{t.Value.Reveal(), t.Expires})
		if err != nil {
			return err
		}
		sealed = s.sealer.Seal(nil, nil, text, []byte(name))
	}
	return s.giveUp.Run(ctx, s.client, []string{keyOf(name), leaseOf(name)}, owner, sealed, max(1, lives.Milliseconds())).Err()
}
