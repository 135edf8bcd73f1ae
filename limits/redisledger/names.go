package redisledger

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	namesKey = sharedPrefix + "names"
	// namesKept is the time after its last renewal for which Redis keeps a text of ShareNames: that of an account.
	// namesInterval is the interval between renewals.
	namesKept     = keptBeyond + time.Hour
	namesInterval = time.Hour
)

// ShareNames stores what this replica calls the accounts of its configuration, and returns what all replicas have stored. Redis keeps a
// text for namesKept after its last replica has ended, so that a replica can continue an account that had another name. The texts
// contain no secret.
func (l *Ledger) ShareNames(ctx context.Context, names []string) (all []string, err error) {
	l.mu.Lock()
	l.names = names
	l.mu.Unlock()
	return l.renewNames(ctx)
}

// renewNames stores the texts of the last ShareNames again, and returns those of all replicas.
func (l *Ledger) renewNames(ctx context.Context) (all []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	key := l.shared(namesKey)
	_, err = l.onServer(ctx, key, func(to server) error {
		l.mu.Lock()
		second := (l.now() + to.shard.most) / 1e6 // of Redis, because the clocks of the replicas may differ
		var entries []redis.Z
		for _, name := range l.names {
			entries = append(entries, redis.Z{Score: float64(second), Member: name})
		}
		l.mu.Unlock()
		var stored *redis.StringSliceCmd
		_, err := to.node.Pipelined(ctx, func(p redis.Pipeliner) error {
			p.ZRemRangeByScore(ctx, key, "-inf", strconv.FormatInt(second-int64(namesKept/time.Second), 10))
			if len(entries) > 0 {
				p.ZAdd(ctx, key, entries...)
				p.PExpire(ctx, key, namesKept)
			}
			stored = p.ZRange(ctx, key, 0, -1)
			return nil
		})
		all = stored.Val()
		return err
	})
	if err != nil {
		return nil, unavailable(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewedNames = time.Now()
	return all, nil
}
