package redisledger

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

const oncePrefix = sharedPrefix + "once:"

// Once reports whether a call is the first one with this name at any replica. Redis keeps the name until end.
func (l *Ledger) Once(ctx context.Context, name string, end time.Time) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	kept := max(time.Until(end), time.Second)
	err := l.Client.SetArgs(ctx, l.shared(oncePrefix+name), "", redis.SetArgs{Mode: "NX", TTL: kept}).Err()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	return err == nil, err
}
