package tlsauto

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/redisclient"
)

// Keys in Redis, all in one slot of a cluster, all with a lifetime:
//
//	weir:{tls}:value:KEY   what is stored under KEY
//	weir:{tls}:keys        sorted set of the KEYs by when they lapse, in milliseconds
//	weir:{tls}:lock:NAME   the token of who holds the lock
const (
	valuePrefix = "weir:{tls}:value:"
	keysKey     = "weir:{tls}:keys"
	lockPrefix  = "weir:{tls}:lock:"
)

const (
	// longLife is how long a value stays that nobody reads: longer than replicas
	// are away, and than certificates last. Reading makes it last anew.
	longLife = 180 * 24 * time.Hour
	// shortLife is that of challenges and probes, which their writer deletes.
	shortLife = time.Hour

	// callTimeout bounds a command, callPatience how long one that failed is
	// repeated: an order that was filled is worth some waiting. All may be repeated.
	callTimeout  = time.Second
	callPatience = 5 * time.Second
	callPause    = 200 * time.Millisecond
)

// errLost is why the holder of a lock that it has lost can write nothing.
var errLost = errors.New("the lock was lost: its lease has ended")

// keep stores a value. Where a token is given the lock must be held by it.
var keep = redis.NewScript(`
if ARGV[4] ~= '' and redis.call('GET', KEYS[3]) ~= ARGV[4] then return 0 end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
return 1`)

// read returns a value, and makes it last anew where a lifetime is given.
var read = redis.NewScript(`
local value = redis.call('GET', KEYS[1])
if value and ARGV[2] ~= '0' then
  local t = redis.call('TIME')
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  redis.call('ZADD', KEYS[2], t[1] * 1000 + math.floor(t[2] / 1000) + ARGV[2], ARGV[1])
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
return value`)

// names returns the keys of what has not lapsed.
var names = redis.NewScript(`
local t = redis.call('TIME')
return redis.call('ZRANGEBYSCORE', KEYS[1], t[1] * 1000 + math.floor(t[2] / 1000), '+inf')`)

// drop deletes the values of KEYS[3] and on, whose keys are ARGV[2] and on. Where a
// token is given the lock must be held by it.
var drop = redis.NewScript(`
if ARGV[1] ~= '' and redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
for i = 3, #KEYS do
  redis.call('DEL', KEYS[i])
  redis.call('ZREM', KEYS[1], ARGV[i - 1])
end
return 1`)

// redisStorage is a storage that replicas share.
type redisStorage struct {
	client  redisclient.Client
	sealer  sealer
	log     *slog.Logger
	ctx     context.Context // until the storage is closed
	stop    context.CancelFunc
	mu      sync.Mutex
	held    map[string]*lease // by the name of the lock
	leasing sync.WaitGroup
}

// NewRedis returns a storage on a client of its own, which it closes. With a secret,
// the same for all replicas, what it keeps is sealed.
func NewRedis(client redisclient.Client, secret []byte, log *slog.Logger) (Storage, error) {
	s, err := newSealer(secret)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	return &redisStorage{client: client, sealer: s, log: log, ctx: ctx, stop: stop, held: map[string]*lease{}}, nil
}

// Close implements Storage.
func (s *redisStorage) Close() error {
	s.mu.Lock() // after this no lease begins
	s.stop()
	s.mu.Unlock()
	s.leasing.Wait()
	return s.client.Close()
}

// call runs what may be run twice, again where Redis does not answer.
func (s *redisStorage) call(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	for {
		err := once(ctx, do)
		if err == nil || errors.Is(err, redis.Nil) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(callPause):
		}
	}
}

// once runs a command in its time.
func once(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return do(ctx)
}

// life is how long a value under a key lasts.
func life(key string) time.Duration {
	if strings.Contains(key, "/challenge_tokens/") || strings.HasPrefix(key, "rw_test_") {
		return shortLife
	}
	return longLife
}

// Store implements certmagic.Storage. What a holder of a name's lock writes for
// that name is written only while it holds it.
func (s *redisStorage) Store(ctx context.Context, key string, data []byte) error {
	lock, token := s.fence(key)
	text, wrote := s.sealer.seal(key, data, time.Now()), 0
	err := s.call(ctx, func(ctx context.Context) (err error) {
		wrote, err = keep.Run(ctx, s.client, []string{valuePrefix + key, keysKey, lockPrefix + lock},
			key, text, life(key).Milliseconds(), token, longLife.Milliseconds()).Int()
		return err
	})
	if err == nil && wrote == 0 {
		return errLost
	}
	return err
}

// get reads a value. What cannot be opened is not there, and that is said.
func (s *redisStorage) get(ctx context.Context, key string) (data []byte, written time.Time, err error) {
	again := life(key)
	if again == shortLife {
		again = 0
	}
	var text string
	err = s.call(ctx, func(ctx context.Context) (err error) {
		text, err = read.Run(ctx, s.client, []string{valuePrefix + key, keysKey}, key, again.Milliseconds()).Text()
		return err
	})
	if errors.Is(err, redis.Nil) {
		return nil, written, missing(key)
	}
	if err != nil {
		return nil, written, err
	}
	if data, written, err = s.sealer.open(key, []byte(text)); err != nil {
		s.log.Warn("what the store holds for TLS is not used: it was not written with this cache.key, or was changed", "key", key)
		return nil, written, missing(key)
	}
	return data, written, nil
}

// Load implements certmagic.Storage.
func (s *redisStorage) Load(ctx context.Context, key string) ([]byte, error) {
	data, _, err := s.get(ctx, key)
	return data, err
}

// keys are all there are.
func (s *redisStorage) keys(ctx context.Context) (keys []string, err error) {
	err = s.call(ctx, func(ctx context.Context) (err error) {
		keys, err = names.Run(ctx, s.client, []string{keysKey}).StringSlice()
		return err
	})
	return keys, err
}

// Delete implements certmagic.Storage, and is fenced as Store is.
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
	deleted := 0
	err = s.call(ctx, func(ctx context.Context) (err error) {
		deleted, err = drop.Run(ctx, s.client, keys, args...).Int()
		return err
	})
	if err == nil && deleted == 0 {
		return errLost
	}
	return err
}

// Exists implements certmagic.Storage.
func (s *redisStorage) Exists(ctx context.Context, key string) bool {
	_, err := s.Stat(ctx, key)
	return err == nil
}

// List implements certmagic.Storage.
func (s *redisStorage) List(ctx context.Context, prefix string, recursive bool) ([]string, error) {
	keys, err := s.keys(ctx)
	if err != nil {
		return nil, err
	}
	return below(prefix, keys, recursive)
}

// Stat implements certmagic.Storage.
func (s *redisStorage) Stat(ctx context.Context, key string) (certmagic.KeyInfo, error) {
	keys, err := s.keys(ctx)
	if err != nil {
		return certmagic.KeyInfo{}, err
	}
	if slices.Contains(keys, key) {
		data, written, err := s.get(ctx, key)
		return certmagic.KeyInfo{Key: key, Modified: written, Size: int64(len(data)), IsTerminal: err == nil}, err
	}
	_, err = below(key, keys, false)
	return certmagic.KeyInfo{Key: key}, err
}
