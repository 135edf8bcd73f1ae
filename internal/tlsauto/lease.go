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
	// leaseLife is how long a lock outlives a holder that has died; leaseEvery is
	// how often one that lives renews it.
	leaseLife  = 10 * time.Second
	leaseEvery = 3 * time.Second
	// lockPause is between two looks at a lock that another holds.
	lockPause = 500 * time.Millisecond
)

// take gives the lock to a token, unless another has it. It may be run twice.
var take = redis.NewScript(`
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1`)

// renew makes the lock of a token last anew, unless it was lost.
var renew = redis.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])`)

// release ends the lock of a token.
var release = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1`)

// lease is a lock that this process has, or has lost without knowing.
type lease struct {
	token string
	end   func() // ends its renewal, and waits for that
}

// Lock implements certmagic.Locker. It outwaits another holder, and a Redis that is
// away, until the context ends.
func (s *redisStorage) Lock(ctx context.Context, name string) error {
	for said := false; ; {
		ok, err := s.TryLock(ctx, name)
		if ok {
			return nil
		}
		if err != nil && !said && ctx.Err() == nil {
			said = true
			s.log.Warn("a lock of certificates waits for the store", "lock", name, "error", err)
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
	token, taken := rand.Text(), 0
	err := s.call(ctx, func(ctx context.Context) (err error) {
		taken, err = take.Run(ctx, s.client, []string{lockPrefix + name}, token, leaseLife.Milliseconds()).Int()
		return err
	})
	if err != nil || taken == 0 {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false, s.ctx.Err() // closed; the lock ends with its lease
	}
	ended, done := make(chan struct{}), make(chan struct{})
	s.held[name] = &lease{token, func() { close(ended); <-done }}
	s.leasing.Go(func() {
		defer close(done)
		s.renew(name, token, ended)
	})
	return true, nil
}

// renew keeps a lock until it is ended or lost, and gives it back where the storage
// is closed first.
func (s *redisStorage) renew(name, token string, ended <-chan struct{}) {
	tick := time.NewTicker(leaseEvery)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return
		case <-s.ctx.Done():
			s.giveBack(context.Background(), name, token)
			return
		case <-tick.C:
		}
		kept := 0
		err := once(context.Background(), func(ctx context.Context) (err error) {
			kept, err = renew.Run(ctx, s.client, []string{lockPrefix + name}, token, leaseLife.Milliseconds()).Int()
			return err
		})
		if err == nil && kept == 0 {
			s.log.Warn("a lock of certificates was lost: its lease has ended", "lock", name)
			return
		}
	}
}

// giveBack releases a lock; where that fails it ends with its lease.
func (s *redisStorage) giveBack(ctx context.Context, name, token string) {
	_ = once(ctx, func(ctx context.Context) error {
		return release.Run(ctx, s.client, []string{lockPrefix + name}, token).Err()
	})
}

// Unlock implements certmagic.Locker.
func (s *redisStorage) Unlock(ctx context.Context, name string) error {
	s.mu.Lock()
	l := s.held[name]
	delete(s.held, name)
	s.mu.Unlock()
	if l != nil {
		l.end()
		s.giveBack(ctx, name, l.token)
	}
	return nil
}

// fence returns the lock that guards a key, and the token by which this process has
// it, empty where it has not: then the write is not part of an order.
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
