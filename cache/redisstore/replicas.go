package redisstore

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/cache"
)

const (
	// replicas is the key of a hash with the position of each replica that follows the stream. A value
	// consists of the time of the report in milliseconds, a space and the generation of the position.
	replicas = "weir:cache:replicas"
	// replicaLife is the default of Store.replicaLife.
	replicaLife = 2 * time.Second
	// maxPoll is the longest pause between two polls of the positions.
	maxPoll = 16 * time.Millisecond
)

var (
	// reportScript writes the position of a replica, and removes the replicas without a recent report.
	reportScript = redis.NewScript(`
if redis.call('TYPE', KEYS[1])['ok'] ~= 'hash' then redis.call('DEL', KEYS[1]) end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local reported = string.match(all[i + 1], '^(%d+) ')
  if tonumber(reported or 0) < now - ARGV[3] then redis.call('HDEL', KEYS[1], all[i]) end
end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now) .. ' ' .. ARGV[2])
return redis.call('PEXPIRE', KEYS[1], ARGV[3])`)
	// behindScript returns 1 if a replica with a recent report has a position before the generation.
	behindScript = redis.NewScript(`
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local reported, position = string.match(all[i + 1], '^(%d+) (%d+)$')
  if position and position < ARGV[1] and tonumber(reported) >= now - ARGV[2] then return 1 end
end
return 0`)
)

// sortable formats a generation so that the order of the texts is the order of the generations.
func sortable(g cache.Generation) string { return fmt.Sprintf("%020d", g) }

// report publishes the position of this replica. Purges of other replicas wait for the position.
func (s *Store) report(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.runTimeout)
	defer cancel()
	return reportScript.Run(ctx, s.client, []string{replicas}, s.replica, sortable(generation(s.position)), s.replicaLife.Milliseconds()).Err()
}

// leave removes this replica from the replicas that follow the stream.
func (s *Store) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
	defer cancel()
	_ = s.client.HDel(ctx, replicas, s.replica).Err() // otherwise the report expires
}

// awaitReplicas waits until all replicas that follow the stream have applied its purges up to g, or until ctx ends.
func (s *Store) awaitReplicas(ctx context.Context, g cache.Generation) {
	for pause := time.Millisecond; ; pause = min(2*pause, maxPoll) {
		behind, err := behindScript.Run(ctx, s.client, []string{replicas}, sortable(g), s.replicaLife.Milliseconds()).Bool()
		switch {
		case err != nil: // also at the end of ctx
			s.log.Debug("purge not confirmed by all replicas", "error", err)
			return
		case !behind:
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}
