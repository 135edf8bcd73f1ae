package redisstore

import (
	"context"
	"encoding/hex"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/cache"
)

// maxHolders bounds the keys that are remembered for one question.
const maxHolders = 8

func holdersName(about cache.Key) string { return "weir:held:" + hex.EncodeToString(about[:]) }

// AddCandidate implements [cache.Shared]: a sorted set of keys by when they were noted.
func (s *Store) AddCandidate(ctx context.Context, about, key cache.Key) {
	s.call(ctx, "note", holdersName(about), func(ctx context.Context) error {
		_, err := s.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.ZAdd(ctx, holdersName(about), redis.Z{Score: float64(time.Now().UnixMilli()), Member: hex.EncodeToString(key[:])})
			p.ZRemRangeByRank(ctx, holdersName(about), 0, -maxHolders-1)
			p.PExpire(ctx, holdersName(about), longestLife)
			return nil
		})
		return err
	})
}

// CandidateKeys implements [cache.Shared].
func (s *Store) CandidateKeys(ctx context.Context, about cache.Key) (keys []cache.Key) {
	var names []string
	s.call(ctx, "holders", holdersName(about), func(ctx context.Context) (err error) {
		cmd := redis.NewStringSliceCmd(ctx, "zrevrange", holdersName(about), 0, maxHolders-1)
		err = s.together(ctx, cmd)
		names = cmd.Val()
		return err
	})
	for _, name := range names {
		if key, err := hex.DecodeString(name); err == nil && len(key) == len(cache.Key{}) {
			keys = append(keys, cache.Key(key))
		}
	}
	return keys
}
