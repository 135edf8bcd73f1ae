package tlsauto

import (
	"context"
	"crypto/rand"
	"strings"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/redisclient"
)

const (
	// leaseTTL is the time after which the lock of a dead replica expires.
	leaseTTL = 10 * time.Second
	// renewInterval is the interval at which the holder renews its lock.
	renewInterval = 3 * time.Second
	// lockPause is the pause between two attempts to acquire a lock.
	lockPause = 500 * time.Millisecond
)

// lock is a lock of this replica. Its lease may have expired without notice.
type lock struct {
	token string
	stop  func() // releases the lock
}

// lease returns the lease of a lock. Its calls use the method run or runOnce.
func (s *redisStorage) lease(name, token string, run runScript) redisclient.Lease {
	return redisclient.Lease{Key: lockPrefix + name, Owner: token, Eval: func(ctx context.Context, script, key string, args ...any) *redis.Cmd {
		return run(ctx, redis.NewScript(script), []string{key}, args...)
	}}
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

func (s *redisStorage) TryLock(ctx context.Context, name string) (bool, error) {
	token := rand.Text()
	locked, _, err := s.lease(name, token, s.run).Acquire(ctx, "", leaseTTL)
	if err != nil || !locked {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false, s.ctx.Err() // the storage is closed; the lease expires
	}
	held, cancel := context.WithCancel(s.ctx)
	released := make(chan struct{})
	s.held[name] = lock{token, func() { cancel(); <-released }}
	s.leasing.Go(func() {
		defer close(released)
		s.renew(held, name, token)
	})
	return true, nil
}

// renew renews a lock until ctx ends, and then releases the lock. If the lock is lost, renew returns earlier.
func (s *redisStorage) renew(ctx context.Context, name, token string) {
	lease := s.lease(name, token, s.runOnce)
	tick := time.NewTicker(renewInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			_ = lease.Release(context.Background()) // after an error the lease expires
			return
		case <-tick.C:
		}
		if renewed, err := lease.Renew(ctx, leaseTTL); err == nil && !renewed {
			s.log.Warn("certificate lock lost: its lease has expired", "lock", name)
			return
		}
	}
}

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
func (s *redisStorage) fence(key string) (name, token string) {
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
