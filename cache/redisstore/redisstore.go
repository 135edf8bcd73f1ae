// Package redisstore implements the shared tier of the cache in Redis. The tier consists of entries,
// lists of candidates, fetch leases, a stream of purges and the positions of the replicas in the stream.
// [Store] is the entry point, and purges.go follows the stream.
//
// Invariants:
//   - A value is decoded only under the key that it was encoded for (cache.Codec). An unreadable
//     value is a miss.
//   - Every key expires, every value is bounded, and every call has a deadline. After a failed call
//     the store is skipped for a second. The memory tier remains in use.
//   - Every replica applies purges in the order of the stream. The position of a purge determines its
//     generation. A replica that may have missed purges treats all older entries as stale.
//   - A purge returns after the replicas that follow the stream have applied it, or after purgeWait. Each
//     replica publishes its position (replicas.go).
//   - During an outage, a purge takes effect immediately on the replica that received it, and on other
//     replicas after reconnection. Purges that wait for Redis are lost when the process ends.
//
// Redis may lose the data at any time, which costs requests only. Quota is not stored here.
package redisstore

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/time/rate"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/redisclient"
)

const (
	// callTimeout bounds a call during which a request waits.
	callTimeout = 100 * time.Millisecond
	// runTimeout is the default of Store.runTimeout.
	runTimeout = time.Second
	// skipAfterError is the time for which the store is skipped after a failed call.
	skipAfterError = time.Second
	// maxValue bounds a value in bytes. Only the memory of the fetching replica stores larger entries.
	maxValue = 1 << 20
	// staleFor is the time for which a stale value is kept for revalidation. maxLife bounds the life
	// of every key except the stream.
	staleFor, maxLife = time.Hour, 24 * time.Hour
	// maxBatch bounds the commands of one round trip.
	maxBatch = 32
	// maxCandidates bounds the keys that are recorded for one base key.
	maxCandidates = 8
	// warnEvery is the shortest pause between two warnings about values.
	warnEvery = time.Minute
)

// putScript stores a value in the hash of its key, and the start of the fetch beside the value. Before
// a ninth value, putScript deletes the hash. A value with a later fetch is not replaced: the generation
// decides first, then the request time. A request time after the time of Redis is replaced by the time
// of Redis.
const putScript = `
local time = redis.call('TIME')
local now = string.format('%010d%06d', tonumber(time[1]), tonumber(time[2]))
local requested = ARGV[5] > now and now or ARGV[5]
local since = redis.call('HGET', KEYS[1], 'since:' .. ARGV[1])
if since and since > ARGV[4] .. requested then return 0 end
if not since and redis.call('HLEN', KEYS[1]) >= 16 then redis.call('DEL', KEYS[1]) end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2], 'since:' .. ARGV[1], ARGV[4] .. requested)
return redis.call('PEXPIRE', KEYS[1], ARGV[3])`

// candidateScript adds a key to a sorted set, which orders the keys by the time of their addition.
const candidateScript = `
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -ARGV[3] - 1)
return redis.call('PEXPIRE', KEYS[1], ARGV[4])`

// sinceField is the prefix of the fields that putScript writes beside the values.
const sinceField = "since:"

// Store implements [cache.Shared]. A Store is safe for concurrent use.
type Store struct {
	// Upstream names the API of this gateway, so that its purges do not concern gateways of other APIs. Set it before Run.
	Upstream string

	client    redis.UniversalClient
	codec     *cache.Codec
	log       *slog.Logger
	timeout   time.Duration
	skipUntil atomic.Int64 // end of the pause after an error, in nanoseconds since 1970
	ready     atomic.Bool  // set after all earlier purges of the stream are applied
	lost      atomic.Bool  // set after a failed call of Run
	replica   string       // name of this replica in the hash of replicas
	purgeWait time.Duration
	// runTimeout bounds each call of Run. A replica without a report for replicaLife counts as stopped.
	runTimeout, replicaLife time.Duration

	warnings rate.Sometimes // about values
	joined   chan struct{}  // closed by Run
	position string         // ID of the last applied purge; used by Run only
	// unreadable permits one warning about purges that cannot be decoded.
	unreadable sync.Once
	waited     commands // commands that a request waits for
	writes     commands // other commands, which may be large

	mu      sync.Mutex    // guards pending
	pending []cache.Purge // purges that are not in the stream yet
}

// New returns a store that uses a client until Run has returned.
func New(client redis.UniversalClient, codec *cache.Codec, log *slog.Logger) *Store {
	return &Store{
		client: client, codec: codec, log: log, timeout: callTimeout, purgeWait: purgeWait,
		runTimeout: runTimeout, replicaLife: replicaLife, joined: make(chan struct{}),
		warnings: rate.Sometimes{Interval: warnEvery}, position: "0-0", replica: rand.Text(),
	}
}

func entriesName(key cache.Key) string     { return "weir:cache:" + hex.EncodeToString(key[:]) }
func candidatesName(base cache.Key) string { return "weir:candidates:" + hex.EncodeToString(base[:]) }

// variant returns the name of an entry within the hash of its key.
func variant(e *cache.Entry) string {
	text, _ := json.Marshal(e.Vary) // structs of strings and booleans cannot fail
	sum := cache.NewKey(string(text))
	return hex.EncodeToString(sum[:8])
}

// call runs an operation on a key during which a request waits, and reports whether the operation
// succeeded. While the store is skipped, call returns false.
func (s *Store) call(ctx context.Context, operation, key string, do func(context.Context) error) bool {
	if !s.ready.Load() || time.Now().UnixNano() < s.skipUntil.Load() {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
	defer cancel()
	return s.try(ctx, operation, key, do)
}

// try runs an operation on a key, and reports whether the operation succeeded. After an error the store is
// skipped for skipAfterError. A key of another Redis type is removed.
func (s *Store) try(ctx context.Context, operation, key string, do func(context.Context) error) bool {
	err := do(ctx)
	if err != nil && strings.Contains(err.Error(), "WRONGTYPE") {
		if err = s.client.Unlink(ctx, key).Err(); err == nil {
			return false
		}
	}
	if err != nil {
		s.skipUntil.Store(time.Now().Add(skipAfterError).UnixNano())
		s.log.Debug("shared cache unavailable", "operation", operation, "error", err)
	}
	return err == nil
}

// commands sends concurrent commands in one round trip. Otherwise, many clients that miss at once would wait for
// connections longer than the timeout, and each replica would forward.
type commands = redisclient.Batcher[redis.Cmder]

// send sends a command with the concurrent commands of a kind.
func (s *Store) send(ctx context.Context, kind *commands, cmd redis.Cmder) error {
	err := kind.Do(cmd, maxBatch, func(batch []redis.Cmder) error {
		// The deadline of one request must not end the commands of other requests.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
		defer cancel()
		p := s.client.Pipeline()
		for _, c := range batch {
			_ = p.Process(ctx, c)
		}
		_, _ = p.Exec(ctx) // each command has its own error
		return nil
	})
	if err != nil {
		return err
	}
	return cmd.Err()
}

// eval runs a script with one key, like send.
func (s *Store) eval(ctx context.Context, kind *commands, script, key string, args ...any) *redis.Cmd {
	cmd := redis.NewCmd(ctx, append([]any{"eval", script, 1, key}, args...)...)
	if err := s.send(ctx, kind, cmd); err != nil {
		cmd.SetErr(err)
	}
	return cmd
}

// Get implements [cache.Shared].
func (s *Store) Get(ctx context.Context, key cache.Key) (list []*cache.Entry) {
	name := entriesName(key)
	var values map[string]string
	s.call(ctx, "get", name, func(ctx context.Context) (err error) {
		cmd := redis.NewMapStringStringCmd(ctx, "hgetall", name)
		err = s.send(ctx, &s.waited, cmd)
		values = cmd.Val()
		return err
	})
	for field, value := range values {
		if strings.HasPrefix(field, sinceField) {
			continue
		}
		e, err := s.codec.Decode(key, []byte(value))
		if err != nil {
			s.warnings.Do(func() { s.log.Warn("stored response unreadable", "key", name, "error", err) })
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
	life := min(max(0, -e.Staleness(time.Now()))+staleFor, maxLife)
	ok := s.call(ctx, "put", entriesName(key), func(ctx context.Context) (err error) {
		stored, err = s.eval(ctx, &s.writes, putScript, entriesName(key), variant(e), value, life.Milliseconds(),
			fmt.Sprintf("%020d", e.Since), fmt.Sprintf("%016d", e.Requested.UnixMicro())).Bool()
		return err
	})
	return ok && stored
}

// Delete implements [cache.Shared].
func (s *Store) Delete(ctx context.Context, key cache.Key) {
	name := entriesName(key)
	s.call(ctx, "delete", name, func(ctx context.Context) error { return s.client.Del(ctx, name).Err() })
}

// AddCandidate implements [cache.Shared].
func (s *Store) AddCandidate(ctx context.Context, base, key cache.Key) {
	name := candidatesName(base)
	s.call(ctx, "add candidate", name, func(ctx context.Context) error {
		return s.eval(ctx, &s.writes, candidateScript, name, time.Now().UnixMilli(), hex.EncodeToString(key[:]), maxCandidates, maxLife.Milliseconds()).Err()
	})
}

// CandidateKeys implements [cache.Shared].
func (s *Store) CandidateKeys(ctx context.Context, base cache.Key) (keys []cache.Key) {
	name := candidatesName(base)
	var members []string
	s.call(ctx, "candidates", name, func(ctx context.Context) (err error) {
		cmd := redis.NewStringSliceCmd(ctx, "zrevrange", name, 0, maxCandidates-1)
		err = s.send(ctx, &s.waited, cmd)
		members = cmd.Val()
		return err
	})
	for _, member := range members {
		if key, err := hex.DecodeString(member); err == nil && len(key) == len(cache.Key{}) {
			keys = append(keys, cache.Key(key))
		}
	}
	return keys
}
