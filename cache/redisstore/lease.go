package redisstore

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/redisclient"
)

const (
	// leaseLife is the lifetime of a lease without renewal.
	leaseLife = 3 * time.Second
	// failureLife is the time for which Redis keeps the record of a failed fetch.
	failureLife = time.Second
)

// storedLease is the JSON form of a lease. Pending is encoded like a stored entry.
type storedLease struct {
	cache.FetchLease
	Pending []byte `json:"pending,omitempty"`
}

func leaseName(key cache.Key) string { return "weir:fetch:" + hex.EncodeToString(key[:]) }

func (s *Store) lease(key cache.Key, owner string) redisclient.Lease {
	return redisclient.Lease{Key: leaseName(key), Owner: owner, Eval: func(ctx context.Context, script, key string, args ...any) *redis.Cmd {
		return s.eval(ctx, &s.waited, script, key, args...)
	}}
}

// AcquireFetch implements [cache.Shared].
func (s *Store) AcquireFetch(ctx context.Context, key cache.Key, lease cache.FetchLease) (acquired bool, other *cache.FetchLease) {
	stored := storedLease{FetchLease: lease}
	var err error
	if lease.Pending != nil {
		if stored.Pending, err = s.codec.Encode(key, lease.Pending); err != nil {
			return false, nil
		}
	}
	text, err := json.Marshal(stored)
	if err != nil {
		return false, nil
	}
	l, current := s.lease(key, lease.Owner), ""
	ok := s.call(ctx, "acquire fetch", l.Key, func(ctx context.Context) error {
		acquired, current, err = l.Acquire(ctx, string(text), leaseLife)
		return err
	})
	if !ok || acquired {
		return acquired, nil
	}
	if other, err = s.decodeLease(key, current); err != nil {
		s.warnings.Do(func() { s.log.Warn("fetch lease unreadable", "key", l.Key, "error", err) })
	}
	return false, other // nil if the lease is unreadable
}

func (s *Store) decodeLease(key cache.Key, text string) (*cache.FetchLease, error) {
	var stored storedLease
	if err := json.Unmarshal([]byte(text), &stored); err != nil {
		return nil, err
	}
	if stored.Pending != nil {
		e, err := s.codec.Decode(key, stored.Pending)
		if err != nil {
			return nil, err
		}
		stored.FetchLease.Pending = e
	}
	return &stored.FetchLease, nil
}

// ReleaseFetch implements [cache.Shared].
func (s *Store) ReleaseFetch(ctx context.Context, key cache.Key, owner string, failed bool) {
	l := s.lease(key, owner)
	s.call(ctx, "release fetch", l.Key, func(ctx context.Context) error {
		if failed {
			return l.ReleaseTo(ctx, `{"failed":true}`, failureLife)
		}
		return l.Release(ctx)
	})
}
