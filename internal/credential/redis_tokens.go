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
package credential

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

	"github.com/weirgate/weir/internal/redisclient"
)

// redisTimeout bounds a call.
const redisTimeout = 250 * time.Millisecond

//go:embed return.lua
var returnScript string

// RedisTokens implements [TokenStore]. It is safe for concurrent use.
type RedisTokens struct {
	client redisclient.Client
	sealer cipher.AEAD
	giveUp *redis.Script
}

// NewRedisTokens returns a store on a client of its own, which it closes. All who share a Redis
// have the same secret, of 32 characters or more.
func NewRedisTokens(client redisclient.Client, secret []byte) (*RedisTokens, error) {
	sealer, err := redisclient.NewSealer(secret, "weir installation tokens")
	if err != nil {
		return nil, err
	}
	return &RedisTokens{client, sealer, redis.NewScript(returnScript)}, nil
}

// Close ends the store; nothing uses it any more.
func (s *RedisTokens) Close() error { return s.client.Close() }

func tokenKey(name string) string {
	sum := sha256.Sum256([]byte(name))
	return "weir:token:{" + hex.EncodeToString(sum[:16]) + "}"
}

func leaseKey(name string) string { return tokenKey(name) + ":lease" }

// sealedToken is a token before it is sealed.
type sealedToken struct {
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
}

// ErrSealed is why a token cannot be read: it is of another key, or of another name, or
// was changed.
var ErrSealed = errors.New("a shared installation token cannot be read: have all replicas the same cache.key?")

// Load implements [TokenStore].
func (s *RedisTokens) Load(ctx context.Context, name string) (t AppToken, err error) {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	value, err := s.client.Get(ctx, tokenKey(name)).Bytes()
	switch {
	case errors.Is(err, redis.Nil):
		return t, nil
	case err != nil:
		return t, fmt.Errorf("load a token: %w", err)
	}
	text, err := s.sealer.Open(nil, nil, value, []byte(name))
	var p sealedToken
	if err != nil || json.Unmarshal(text, &p) != nil {
		return t, ErrSealed
	}
	return AppToken{Value: Secret(p.Token), Expires: p.Expires}, nil
}

// Lease implements [TokenStore].
func (s *RedisTokens) Lease(ctx context.Context, name, owner string, lives time.Duration) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	err := s.client.SetArgs(ctx, leaseKey(name), owner, redis.SetArgs{Mode: "NX", TTL: lives}).Err()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	return err == nil, err
}

// Return implements [TokenStore].
func (s *RedisTokens) Return(ctx context.Context, name, owner string, t AppToken) error {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	var sealed []byte
	lives := time.Until(t.Expires)
	if t.Value != "" && lives > time.Millisecond {
		text, err := json.Marshal(sealedToken{t.Value.Reveal(), t.Expires})
		if err != nil {
			return err
		}
		sealed = s.sealer.Seal(nil, nil, text, []byte(name))
	}
	return s.giveUp.Run(ctx, s.client, []string{tokenKey(name), leaseKey(name)}, owner, sealed, max(1, lives.Milliseconds())).Err()
}
