package redisstore

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/cache"
)

const (
	// claimLives is how long a claim lives that nobody renews, failedLives how long it
	// is known that one has failed.
	claimLives  = 3 * time.Second
	failedLives = time.Second
)

// A claim is kept as its owner, a line break, and what it tells.
var (
	claim = redis.NewScript(`
local other = redis.call('GET', KEYS[1])
if other and string.sub(other, 1, #ARGV[1] + 1) ~= ARGV[1] .. '\n' then return other end
redis.call('SET', KEYS[1], ARGV[1] .. '\n' .. ARGV[2], 'PX', ARGV[3])
return ''`)
	unclaim = redis.NewScript(`
local other = redis.call('GET', KEYS[1])
if not other or string.sub(other, 1, #ARGV[1] + 1) ~= ARGV[1] .. '\n' then return 0 end
if ARGV[2] == '' then return redis.call('DEL', KEYS[1]) end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1`)
)

// told is a claim as it is kept; the pending answer is a value as entries are.
type told struct {
	cache.FetchLease
	Pending []byte `json:"pending,omitempty"`
}

func claimName(key cache.Key) string { return "weir:claim:" + hex.EncodeToString(key[:]) }

// AcquireFetch implements [cache.Shared].
func (s *Store) AcquireFetch(ctx context.Context, key cache.Key, c cache.FetchLease) (mine bool, other *cache.FetchLease) {
	var answer string
	asked := s.call(ctx, "claim", claimName(key), func(ctx context.Context) error {
		text, err := s.writeClaim(key, c)
		if err == nil {
			answer, err = claim.Run(ctx, s.client, []string{claimName(key)}, c.Owner, text, claimLives.Milliseconds()).Text()
		}
		return err
	})
	if !asked || answer == "" {
		return asked, nil
	}
	other, err := s.readClaim(key, answer)
	if err != nil {
		s.warn("a claim cannot be read", "key", claimName(key), "error", err)
	}
	return false, other
}

func (s *Store) writeClaim(key cache.Key, c cache.FetchLease) (text []byte, err error) {
	mine := told{FetchLease: c}
	if c.Pending != nil {
		if mine.Pending, err = s.codec.Encode(key, c.Pending); err != nil {
			return nil, err
		}
	}
	return json.Marshal(mine)
}

// readClaim reads another's claim, which begins with its owner.
func (s *Store) readClaim(key cache.Key, text string) (*cache.FetchLease, error) {
	_, text, _ = strings.Cut(text, "\n")
	var theirs told
	if err := json.Unmarshal([]byte(text), &theirs); err != nil {
		return nil, err
	}
	if theirs.Pending != nil {
		e, err := s.codec.Decode(key, theirs.Pending)
		if err != nil {
			return nil, err
		}
		theirs.FetchLease.Pending = e
	}
	return &theirs.FetchLease, nil
}

// ReleaseFetch implements [cache.Shared].
func (s *Store) ReleaseFetch(ctx context.Context, key cache.Key, owner string, failed bool) {
	text := ""
	if failed {
		text = "-\n" + `{"failed":true}` // of nobody, who cannot claim it again
	}
	s.call(ctx, "unclaim", claimName(key), func(ctx context.Context) error {
		return unclaim.Run(ctx, s.client, []string{claimName(key)}, owner, text, failedLives.Milliseconds()).Err()
	})
}
