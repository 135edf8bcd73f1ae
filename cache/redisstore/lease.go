package redisstore

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"

	"github.com/weirgate/weir/cache"
)

const (
	// leaseLife is the lifetime of a lease without renewal.
	leaseLife = 3 * time.Second
	// failureLife is the time for which Redis keeps the record of a failed fetch.
	failureLife = time.Second
)

// The value of a lease consists of the owner, a line break and JSON.
const (
	// acquireScript returns an empty string if the owner gets the lease, and otherwise the current lease.
	acquireScript = `
local other = redis.call('GET', KEYS[1])
if other and string.sub(other, 1, #ARGV[1] + 1) ~= ARGV[1] .. '\n' then return other end
redis.call('SET', KEYS[1], ARGV[1] .. '\n' .. ARGV[2], 'PX', ARGV[3])
return ''`
	// releaseScript replaces the owner's lease by the record of a failure, or deletes the lease.
	releaseScript = `
local other = redis.call('GET', KEYS[1])
if not other or string.sub(other, 1, #ARGV[1] + 1) ~= ARGV[1] .. '\n' then return 0 end
if ARGV[2] == '' then return redis.call('DEL', KEYS[1]) end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1`
)

// storedLease is the JSON form of a lease. Pending is encoded like a stored entry.
type storedLease struct {
	cache.FetchLease
	Pending []byte `json:"pending,omitempty"`
}

func leaseName(key cache.Key) string { return "weir:fetch:" + hex.EncodeToString(key[:]) }

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
	name, current := leaseName(key), ""
	ok := s.call(ctx, "acquire fetch", name, func(ctx context.Context) error {
		current, err = s.eval(ctx, &s.waited, acquireScript, name, lease.Owner, text, leaseLife.Milliseconds()).Text()
		return err
	})
	if !ok || current == "" {
		return ok, nil // acquired, or Redis is unavailable
	}
	if other, err = s.decodeLease(key, current); err != nil {
		s.warnings.Do(func() { s.log.Warn("fetch lease unreadable", "key", name, "error", err) })
	}
	return false, other // nil if the lease is unreadable
}

func (s *Store) decodeLease(key cache.Key, text string) (*cache.FetchLease, error) {
	_, text, _ = strings.Cut(text, "\n")
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
	text := ""
	if failed {
		text = "-\n" + `{"failed":true}` // no replica has the owner "-"
	}
	name := leaseName(key)
	s.call(ctx, "release fetch", name, func(ctx context.Context) error {
		return s.eval(ctx, &s.waited, releaseScript, name, owner, text, failureLife.Milliseconds()).Err()
	})
}
