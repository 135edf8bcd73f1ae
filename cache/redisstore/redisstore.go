// Package redisstore is the tier of the cache that replicas share, in Redis: the
// entries, and a stream of purges.
//
// Invariants:
//   - A value is read only under the key that it was written for (cache.Codec); what
//     cannot be read is a miss.
//   - Every key has a lifetime, every value a bound, every call a deadline. After a
//     call that failed nothing is asked for a second.
//   - A purge is applied by every replica in the order of the stream, and its place
//     there is its generation: what was fetched before is stale, wherever it is kept.
//     A replica that cannot know all purges takes everything older for stale.
//
// It is not where budgets are kept: what is lost here costs requests only.
package redisstore

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/redisclient"
)

const (
	// timeout bounds a call that a request waits for, rest is how long nothing is
	// asked after one that failed.
	timeout = 100 * time.Millisecond
	rest    = time.Second
	// maxValue bounds a value; what is larger stays with the replica that fetched it.
	maxValue = 1 << 20
	// Values live an hour longer than they are fresh: stale they can be validated.
	staleLives, longestLife = time.Hour, 24 * time.Hour

	stream = "weir:cache:purges"
	// streamLength is how many purges are remembered, streamLives for how long:
	// longer than any value lives.
	streamLength = 10_000
	streamLives  = 2 * longestLife
	// maxTogether bounds what one round trip asks for.
	maxTogether = 32
	// maxPending bounds the purges that wait for Redis.
	maxPending = 1000
)

// keep is the script that stores a value, and when its fetch began, among at most eight
// others under its key; not in the place of one whose fetch began later. That is first
// by generation, for such a one knows of more purges, and then by the time of its
// request, where no replica's clock is believed to be ahead of Redis's.
var keep = redis.NewScript(`
local time = redis.call('TIME')
local now = string.format('%010d%06d', tonumber(time[1]), tonumber(time[2]))
local requested = ARGV[5] > now and now or ARGV[5]
local since = redis.call('HGET', KEYS[1], 'since:' .. ARGV[1])
if since and since > ARGV[4] .. requested then return 0 end
if not since and redis.call('HLEN', KEYS[1]) >= 16 then redis.call('DEL', KEYS[1]) end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2], 'since:' .. ARGV[1], ARGV[4] .. requested)
return redis.call('PEXPIRE', KEYS[1], ARGV[3])`)

// sinceField begins the names of the fields that keep writes beside the values.
const sinceField = "since:"

// PurgeReceiver is told of purges, in their order: the memory tier.
type PurgeReceiver interface {
	ApplyPurge(p cache.Purge, g cache.Generation)
	PurgeUntil(g cache.Generation)
}

// Store implements [cache.Shared]. It is safe for concurrent use.
type Store struct {
	client  redis.UniversalClient
	codec   *cache.Codec
	learner PurgeReceiver
	log     *slog.Logger
	// patience bounds a call that a request waits for.
	patience time.Duration
	resting  atomic.Int64 // until when nothing is asked, in nanoseconds
	warned   atomic.Int64 // when something was said of a value, in nanoseconds
	ready    atomic.Bool  // the purges before are known

	batches redisclient.Batcher[redis.Cmder]

	mu      sync.Mutex
	pending []cache.Purge
	at      string // how far the stream was read; only Run uses it
}

// New returns a store on a client of its own, which it closes.
func New(client redis.UniversalClient, codec *cache.Codec, learner PurgeReceiver, log *slog.Logger) *Store {
	return &Store{client: client, codec: codec, learner: learner, log: log, patience: timeout, at: "0-0"}
}

// Close ends the store; nothing uses it any more, and Run has ended.
func (s *Store) Close() error { return s.client.Close() }

func name(key cache.Key) string { return "weir:cache:" + hex.EncodeToString(key[:]) }

// variant names an entry among those under one key.
func variant(e *cache.Entry) string {
	var parts []string
	for _, f := range e.Vary {
		parts = append(parts, f.Name, f.Value, strconv.FormatBool(f.Absent))
	}
	sum := cache.NewKey(parts...)
	return hex.EncodeToString(sum[:8])
}

// call does something with a key that a request waits for, unless Redis rests, and
// reports whether that went well. A key that holds what nobody here has written is
// dropped.
func (s *Store) call(ctx context.Context, what, key string, do func(context.Context) error) bool {
	if !s.ready.Load() || time.Now().UnixNano() < s.resting.Load() {
		return false
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.patience)
	defer cancel()
	err := do(limited)
	if err != nil && strings.Contains(err.Error(), "WRONGTYPE") {
		if err = s.client.Unlink(limited, key).Err(); err == nil {
			return false
		}
	}
	if err != nil {
		s.resting.Store(time.Now().Add(rest).UnixNano())
		s.log.Debug("the shared tier of the cache does not answer", "call", what, "error", err)
	}
	return err == nil
}

// together has Redis do a command along with those of others who wait for theirs, in one
// round trip.
func (s *Store) together(ctx context.Context, cmd redis.Cmder) error {
	err := s.batches.Do(cmd, maxTogether, func(all []redis.Cmder) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.patience) // not for this one alone
		defer cancel()
		if len(all) == 1 {
			_ = s.client.Process(ctx, all[0]) // what went wrong is in the commands
			return nil
		}
		p := s.client.Pipeline()
		for _, c := range all {
			_ = p.Process(ctx, c)
		}
		_, _ = p.Exec(ctx)
		return nil
	})
	if err != nil {
		return err
	}
	return cmd.Err()
}

// warnEvery is how often something is said that may be so for every value.
const warnEvery = time.Minute

// warn says what is wrong with a value, unless something has been said lately.
func (s *Store) warn(what string, attrs ...any) {
	last, now := s.warned.Load(), time.Now().UnixNano()
	if now-last >= int64(warnEvery) && s.warned.CompareAndSwap(last, now) {
		s.log.Warn(what, attrs...)
	}
}

// Get implements [cache.Shared].
func (s *Store) Get(ctx context.Context, key cache.Key) (list []*cache.Entry) {
	var values map[string]string
	s.call(ctx, "get", name(key), func(ctx context.Context) (err error) {
		cmd := redis.NewMapStringStringCmd(ctx, "hgetall", name(key))
		err = s.together(ctx, cmd)
		values = cmd.Val()
		return err
	})
	for field, value := range values {
		if strings.HasPrefix(field, sinceField) {
			continue
		}
		e, err := s.codec.Decode(key, []byte(value))
		if err != nil {
			s.warn("a stored answer cannot be read", "key", name(key), "error", err)
			continue
		}
		list = append(list, e)
	}
	return list
}

// Put implements [cache.Shared].
func (s *Store) Put(ctx context.Context, key cache.Key, e *cache.Entry) (stored bool) {
	value, err := s.codec.Encode(key, e)
	if err != nil || len(value) > maxValue {
		return false
	}
	lives := min(max(0, -e.Staleness(time.Now()))+staleLives, longestLife)
	var kept int
	asked := s.call(ctx, "put", name(key), func(ctx context.Context) (err error) {
		kept, err = keep.Run(ctx, s.client, []string{name(key)}, variant(e), value, lives.Milliseconds(),
			fmt.Sprintf("%020d", e.Since), fmt.Sprintf("%016d", e.Requested.UnixMicro())).Int()
		return err
	})
	return asked && kept == 1
}

// Delete implements [cache.Shared].
func (s *Store) Delete(ctx context.Context, key cache.Key) {
	s.call(ctx, "forget", name(key), func(ctx context.Context) error { return s.client.Del(ctx, name(key)).Err() })
}

// Purge implements [cache.Shared]. What Redis cannot be told now it is told when it
// answers.
func (s *Store) Purge(ctx context.Context, p cache.Purge) {
	var g cache.Generation
	if s.call(ctx, "purge", stream, func(ctx context.Context) (err error) { g, err = s.add(ctx, p, "*"); return err }) {
		s.learner.ApplyPurge(p, g)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pending) < maxPending {
		s.pending = append(s.pending, p)
	} else {
		s.pending[maxPending-1] = everything
	}
}

// everything is a purge that does not say of what.
var everything = cache.Purge{}

// add enters a purge into the stream.
func (s *Store) add(ctx context.Context, p cache.Purge, id string) (cache.Generation, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return 0, err
	}
	id, err = s.client.XAdd(ctx, &redis.XAddArgs{Stream: stream, ID: id, MaxLen: streamLength, Approx: true, Values: []any{"purge", text}}).Result()
	if err != nil {
		return 0, err
	}
	_ = s.client.PExpire(ctx, stream, streamLives).Err() // Run does it, too
	return generation(id), nil
}

// generation is the place of an entry in the stream, by its ID: milliseconds and a
// number within them.
func generation(id string) cache.Generation {
	ms, n, _ := strings.Cut(id, "-")
	a, _ := strconv.ParseUint(ms, 10, 44)
	b, _ := strconv.ParseUint(n, 10, 64)
	return cache.Generation(a<<20 | min(b, 1<<20-1))
}
