package credential

import (
	"context"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/redisclient"
)

// redisTimeout bounds a call to Redis.
const redisTimeout = 250 * time.Millisecond

// RedisTokens is a [TokenStore] in Redis. It is safe for concurrent use.
//
// The two keys of a token share a slot. HASH is the hash of the token's name:
//
//	weir:token:{HASH}        sealed token, until the token expires
//	weir:token:{HASH}:lease  owner of the lease to request a token, for 15 s
//
// Tokens are sealed with AES-256-GCM and bound to their name. Redis does not have the key. The store is not a backup:
// each replica keeps its token in memory and can request another token.
type RedisTokens struct {
	client redis.UniversalClient
	sealer cipher.AEAD
}

// NewRedisTokens returns a store. All replicas need the same secret, of 32 characters or more.
func NewRedisTokens(client redis.UniversalClient, secret []byte) (*RedisTokens, error) {
	sealer, err := redisclient.NewSealer(secret, "weir installation tokens")
	if err != nil {
		return nil, err
	}
	return &RedisTokens{client, sealer}, nil
}

func tokenKey(name string) string {
	sum := sha256.Sum256([]byte(name))
	return "weir:token:{" + hex.EncodeToString(sum[:16]) + "}"
}

func (s *RedisTokens) lease(name, owner string) redisclient.Lease {
	return redisclient.Lease{Key: tokenKey(name) + ":lease", Owner: owner, Eval: func(ctx context.Context, script, key string, args ...any) *redis.Cmd {
		return s.client.Eval(ctx, script, []string{key}, args...)
	}}
}

// sealedToken is the plain text of a stored token.
type sealedToken struct {
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
	Minted  time.Time `json:"minted,omitzero"`
}

// ErrSealed reports that a stored token was sealed with another key or for another name, or was modified.
var ErrSealed = errors.New("load installation token: cannot decrypt it; check that cache.key is the same on all replicas")

// Load implements [TokenStore].
func (s *RedisTokens) Load(ctx context.Context, name string) (AppToken, error) {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	value, err := s.client.Get(ctx, tokenKey(name)).Bytes()
	switch {
	case errors.Is(err, redis.Nil):
		return AppToken{}, nil
	case err != nil:
		return AppToken{}, fmt.Errorf("load installation token: %w", err)
	}
	text, err := s.sealer.Open(nil, nil, value, []byte(name))
	var t sealedToken
	if err != nil || json.Unmarshal(text, &t) != nil {
		return AppToken{}, ErrSealed
	}
	return AppToken{Value: Secret(t.Token), Expires: t.Expires, Minted: t.Minted}, nil
}

// Lease implements [TokenStore].
func (s *RedisTokens) Lease(ctx context.Context, name, owner string, lifetime time.Duration) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	leased, _, err := s.lease(name, owner).Acquire(ctx, "", lifetime)
	return leased, err
}

// Return implements [TokenStore].
func (s *RedisTokens) Return(ctx context.Context, name, owner string, t AppToken) error {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	lease := s.lease(name, owner)
	lifetime := time.Until(t.Expires)
	if t.Value == "" || lifetime <= time.Millisecond {
		return lease.Release(ctx)
	}
	text, err := json.Marshal(sealedToken{t.Value.Reveal(), t.Expires, t.Minted})
	if err != nil {
		return err
	}
	err = s.client.Set(ctx, tokenKey(name), s.sealer.Seal(nil, nil, text, []byte(name)), lifetime).Err()
	return errors.Join(err, lease.Release(ctx))
}
