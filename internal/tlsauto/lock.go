package tlsauto

import (
	"context"
	"crypto/rand"
	"strings"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/redis/go-redis/v9"
)

const (
	// leaseTTL is the time after which the lock of a dead replica expires.
	leaseTTL = 10 * time.Second
	// renewInterval is the interval at which the holder renews its lock.
	renewInterval = 3 * time.Second
	// lockPause is the pause between two attempts to acquire a lock.
	lockPause = 500 * time.Millisecond
)

// lockScript gives the lock to a token if the lock is free or already held by that token.
var lockScript = redis.NewScript(`
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1`)

// renewScript renews the lease of a token unless the token has lost the lock.
var renewScript = redis.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])`)

// unlockScript releases the lock if the token holds it.
var unlockScript = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1`)

// lease is a lock of this replica. The lock may have expired without notice.
type lease struct {
	token string
	stop  func() // releases the lock
}

// Lock implements certmagic.Locker. Lock retries until the context ends, also while Redis does not respond.
func (s *redisStorage) Lock(ctx context.Context, name string) error {
	for logged := false; ; {
		ok, err := s.TryLock(ctx, name)
		if ok {
			return nil
		}
		if err != nil && !logged && ctx.Err() == nil {
			logged = true
			s.log.Warn("certificate lock waits for redis", "lock", name, "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lockPause):
		}
	}
}

// TryLock implements certmagic.TryLocker.
func (s *redisStorage) TryLock(ctx context.Context, name string) (bool, error) {
	token := rand.Text()
	locked, err := s.run(ctx, lockScript, []string{lockPrefix + name}, token, leaseTTL.Milliseconds()).Int()
	if err != nil || locked == 0 {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false, s.ctx.Err() // the storage is closed; the lease expires
	}
	held, cancel := context.WithCancel(s.ctx)
	released := make(chan struct{})
	s.held[name] = lease{token, func() { cancel(); <-released }}
	s.leasing.Go(func() {
		defer close(released)
		s.renew(held, name, token)
	})
	return true, nil
}

// renew renews a lock until ctx ends, and then releases the lock. If the lock is lost, renew returns earlier.
func (s *redisStorage) renew(ctx context.Context, name, token string) {
	tick := time.NewTicker(renewInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			_ = s.runOnce(context.Background(), unlockScript, []string{lockPrefix + name}, token) // after an error the lease expires
			return
		case <-tick.C:
		}
		renewed, err := s.runOnce(ctx, renewScript, []string{lockPrefix + name}, token, leaseTTL.Milliseconds()).Int()
		if err == nil && renewed == 0 {
			s.log.Warn("certificate lock lost: its lease has expired", "lock", name)
			return
		}
	}
}

// Unlock implements certmagic.Locker.
func (s *redisStorage) Unlock(_ context.Context, name string) error {
	s.mu.Lock()
	l, ok := s.held[name]
	delete(s.held, name)
	s.mu.Unlock()
	if ok {
		l.stop()
	}
	return nil
}

// fence returns the lock that guards a key, and this replica's token for the lock. Both are empty if the key belongs to
// no order of this replica.
func (s *redisStorage) fence(key string) (lock, token string) {
	parts := strings.Split(key, "/") // certificates/ISSUER/NAME/FILE
	if len(parts) < 3 || parts[0] != "certificates" {
		return "", ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, l := range s.held {
		if domain, ok := strings.CutPrefix(name, "issue_cert_"); ok && certmagic.StorageKeys.Safe(domain) == parts[2] {
			return name, l.token
		}
	}
	return "", ""
}
