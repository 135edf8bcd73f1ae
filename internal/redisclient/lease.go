package redisclient

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Lease is a lease that at most one owner holds at a time, under a key in Redis. The value of the key is the owner, and a line
// break and a text for the others if there is a text. A lease that its owner does not renew expires.
type Lease struct {
	Key, Owner string
	// Eval runs a script with one key, which may run twice.
	Eval func(ctx context.Context, script, key string, args ...any) *redis.Cmd
}

const (
	holds = `
local value = redis.call('GET', KEYS[1])
local mine = value and (value == ARGV[1] or string.sub(value, 1, #ARGV[1] + 1) == ARGV[1] .. '\n')
`
	acquireScript = holds + `if value and not mine then return value end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return false`
	renewScript   = holds + `return mine and redis.call('PEXPIRE', KEYS[1], ARGV[2]) or 0`
	releaseScript = holds + `if not mine then return 0 end
if ARGV[2] == '' then return redis.call('DEL', KEYS[1]) end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1`
)

// Acquire acquires the lease, or renews it with another text. If another owner has the lease, Acquire returns the text of
// that owner.
func (l Lease) Acquire(ctx context.Context, text string, life time.Duration) (acquired bool, other string, err error) {
	other, err = l.Eval(ctx, acquireScript, l.Key, l.Owner, valueOf(l.Owner, text), life.Milliseconds()).Text()
	if errors.Is(err, redis.Nil) {
		return true, "", nil
	}
	_, other, _ = strings.Cut(other, "\n")
	return false, other, err
}

// Renew prolongs the lease, and reports whether the owner still holds it.
func (l Lease) Renew(ctx context.Context, life time.Duration) (bool, error) {
	return l.Eval(ctx, renewScript, l.Key, l.Owner, life.Milliseconds()).Bool()
}

// Release ends the lease if the owner holds it.
func (l Lease) Release(ctx context.Context) error {
	return l.Eval(ctx, releaseScript, l.Key, l.Owner, "").Err()
}

// ReleaseTo ends the lease like Release. For a time, no owner can acquire it, and Acquire returns the text.
func (l Lease) ReleaseTo(ctx context.Context, text string, life time.Duration) error {
	return l.Eval(ctx, releaseScript, l.Key, l.Owner, valueOf("-", text), life.Milliseconds()).Err()
}

func valueOf(owner, text string) string {
	if text == "" {
		return owner
	}
	return owner + "\n" + text
}
