package tlsauto

import (
	"bytes"
	"context"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/redisclient"
)

// All keys in Redis expire and are in one slot of a cluster:
//
//	weir:{tls}:value:KEY   the value of KEY
//	weir:{tls}:keys        sorted set of the KEYs, scored by their expiry in milliseconds
//	weir:{tls}:lock:NAME   the token of the replica that holds the lock
const (
	valuePrefix = "weir:{tls}:value:"
	keysKey     = "weir:{tls}:keys"
	lockPrefix  = "weir:{tls}:lock:"
)

const (
	// longTTL is the lifetime of a value. Each read renews the value, and longTTL exceeds the lifetime of certificates.
	longTTL = 180 * 24 * time.Hour
	// shortTTL is the lifetime of challenges and probes, which their writer deletes.
	shortTTL = time.Hour

	// A call to Redis takes at most callTimeout. Failed calls are retried every callPause for retryTime, because a
	// completed order is worth the wait. All scripts may run twice.
	callTimeout = time.Second
	retryTime   = 5 * time.Second
	callPause   = 200 * time.Millisecond
)

// errLockLost is returned for a write by a replica whose lock has expired.
var errLockLost = errors.New("certificate lock lost: its lease has expired")

// storeScript stores a value. With a token, the value is stored only while the token holds the lock.
var storeScript = redis.NewScript(`
local value_key, index_key, lock_key = KEYS[1], KEYS[2], KEYS[3]
local name, value, ttl, token, index_ttl = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if token ~= '' and redis.call('GET', lock_key) ~= token then return 0 end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('SET', value_key, value, 'PX', ttl)
redis.call('ZREMRANGEBYSCORE', index_key, '-inf', now)
redis.call('ZADD', index_key, now + ttl, name)
redis.call('PEXPIRE', index_key, index_ttl)
return 1`)

// loadScript returns a value, and renews the value's lifetime unless the TTL is 0.
var loadScript = redis.NewScript(`
local value_key, index_key = KEYS[1], KEYS[2]
local name, ttl = ARGV[1], ARGV[2]
local value = redis.call('GET', value_key)
if value and ttl ~= '0' then
  local t = redis.call('TIME')
  redis.call('PEXPIRE', value_key, ttl)
  redis.call('ZADD', index_key, t[1] * 1000 + math.floor(t[2] / 1000) + ttl, name)
  redis.call('PEXPIRE', index_key, ttl)
end
return value`)

// listScript returns the keys that have not expired.
var listScript = redis.NewScript(`
local t = redis.call('TIME')
return redis.call('ZRANGEBYSCORE', KEYS[1], t[1] * 1000 + math.floor(t[2] / 1000), '+inf')`)

// deleteScript deletes the values KEYS[3...], which are listed as ARGV[2...]. With a token, the values are deleted only
// while the token holds the lock.
var deleteScript = redis.NewScript(`
local index_key, lock_key, token = KEYS[1], KEYS[2], ARGV[1]
if token ~= '' and redis.call('GET', lock_key) ~= token then return 0 end
for i = 3, #KEYS do
  redis.call('DEL', KEYS[i])
  redis.call('ZREM', index_key, ARGV[i - 1])
end
return 1`)

// redisStorage implements [Storage] for all replicas.
type redisStorage struct {
	reader
	client  redis.UniversalClient
	sealer  sealer
	log     *slog.Logger
	ctx     context.Context // ends when the storage is closed
	stop    context.CancelFunc
	mu      sync.Mutex
	held    map[string]lock // by the name of the lock
	leasing sync.WaitGroup
}

// NewRedis returns a storage in Redis. With a secret, values are sealed; all replicas must
// have the same secret. A secret that is too short is an error.
func NewRedis(client redis.UniversalClient, secret []byte, log *slog.Logger) (Storage, error) {
	aead, err := redisclient.NewSealer(secret, "weir tls storage")
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &redisStorage{client: client, sealer: sealer{aead}, log: log, ctx: ctx, stop: stop, held: map[string]lock{}}
	s.reader = reader{s.keys, s.get}
	return s, nil
}

func (s *redisStorage) Close() {
	s.mu.Lock() // no lease starts after stop
	s.stop()
	s.mu.Unlock()
	s.leasing.Wait()
}

// runScript is the signature of the methods run and runOnce.
type runScript func(ctx context.Context, script *redis.Script, keys []string, args ...any) *redis.Cmd

// run runs an idempotent script and repeats it while Redis does not respond.
func (s *redisStorage) run(ctx context.Context, script *redis.Script, keys []string, args ...any) *redis.Cmd {
	ctx, cancel := context.WithTimeout(ctx, retryTime)
	defer cancel()
	for {
		result := s.runOnce(ctx, script, keys, args...)
		if err := result.Err(); err == nil || errors.Is(err, redis.Nil) {
			return result
		}
		select {
		case <-ctx.Done():
			return result
		case <-time.After(callPause):
		}
	}
}

func (s *redisStorage) runOnce(ctx context.Context, script *redis.Script, keys []string, args ...any) *redis.Cmd {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return script.Run(ctx, s.client, keys, args...)
}

// ttl returns the lifetime of the value of a key.
func ttl(key string) time.Duration {
	if strings.Contains(key, "/challenge_tokens/") || strings.HasPrefix(key, "rw_test_") {
		return shortTTL
	}
	return longTTL
}

// Store implements certmagic.Storage. A write that belongs to an order succeeds only while this replica holds
// the lock of the order.
func (s *redisStorage) Store(ctx context.Context, key string, data []byte) error {
	lock, token := s.fence(key)
	stored, err := s.run(ctx, storeScript, []string{valuePrefix + key, keysKey, lockPrefix + lock},
		key, s.sealer.seal(key, data, time.Now()), ttl(key).Milliseconds(), token, longTTL.Milliseconds()).Int()
	if err == nil && stored == 0 {
		return errLockLost
	}
	return err
}

// get loads a value. A value that cannot be opened is logged and treated as missing.
func (s *redisStorage) get(ctx context.Context, key string) (value, error) {
	renewal := ttl(key)
	if renewal == shortTTL {
		renewal = 0
	}
	text, err := s.run(ctx, loadScript, []string{valuePrefix + key, keysKey}, key, renewal.Milliseconds()).Text()
	if errors.Is(err, redis.Nil) {
		return value{}, missing(key)
	}
	if err != nil {
		return value{}, err
	}
	v, err := s.sealer.open(key, []byte(text))
	if err != nil {
		s.log.Warn("stored TLS value ignored: it was changed or sealed with another cache.key", "key", key)
		return value{}, missing(key)
	}
	return v, nil
}

func (s *redisStorage) keys(ctx context.Context) ([]string, error) {
	return s.run(ctx, listScript, []string{keysKey}).StringSlice()
}

// Delete implements certmagic.Storage. Delete needs the same lock as Store.
func (s *redisStorage) Delete(ctx context.Context, key string) error {
	lock, token := s.fence(key)
	all, err := s.keys(ctx)
	if err != nil {
		return err
	}
	keys, args := []string{keysKey, lockPrefix + lock, valuePrefix + key}, []any{token, key}
	for _, other := range all {
		if strings.HasPrefix(other, key+"/") {
			keys, args = append(keys, valuePrefix+other), append(args, other)
		}
	}
	deleted, err := s.run(ctx, deleteScript, keys, args...).Int()
	if err == nil && deleted == 0 {
		return errLockLost
	}
	return err
}

// sealer encodes values: a magic text, the time of writing (8 bytes, Unix milliseconds) and the data. With a secret,
// the whole value is encrypted with AES-256-GCM and bound to the key. Plain values are then rejected, because a writer
// in Redis could otherwise replace a private key.
type sealer struct {
	aead cipher.AEAD // nil without a secret
}

const valueMagic = "weirtls2"

var errInvalidValue = errors.New("value was not written for this key")

func (s sealer) seal(key string, data []byte, modified time.Time) []byte {
	text := binary.BigEndian.AppendUint64([]byte(valueMagic), uint64(modified.UnixMilli()))
	text = append(text, data...)
	if s.aead == nil {
		return text
	}
	return s.aead.Seal(nil, nil, text, []byte(key))
}

func (s sealer) open(key string, text []byte) (value, error) {
	if s.aead != nil {
		var err error
		if text, err = s.aead.Open(nil, nil, text, []byte(key)); err != nil {
			return value{}, errInvalidValue
		}
	}
	text, ok := bytes.CutPrefix(text, []byte(valueMagic))
	if !ok || len(text) < 8 {
		return value{}, errInvalidValue
	}
	return value{data: text[8:], modified: time.UnixMilli(int64(binary.BigEndian.Uint64(text)))}, nil
}
