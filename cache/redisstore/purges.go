package redisstore

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/redisclient"
)

const (
	// stream is the key of the stream of purges.
	stream = "weir:cache:purges"
	// streamLength is the approximate number of purges that the stream keeps.
	streamLength = 10_000
	// streamLife is the life of an idle stream, longer than the life of any value.
	streamLife = 2 * maxLife
	// sequenceBits is the number of bits of a generation for the sequence number of a stream ID.
	sequenceBits = 20
	// readWait is the maximum wait of one read for a purge.
	readWait = 500 * time.Millisecond
	// maxRead is the maximum number of purges of one read.
	maxRead = 1000
	// checkEvery is the interval between checks for a lost stream.
	checkEvery = 5 * time.Second
	// retryAfter is the pause after a failed call of Run.
	retryAfter = 100 * time.Millisecond
	// maxPending bounds the purges that wait for Redis.
	maxPending = 1000
	// purgeWait bounds the wait for Redis and for the other replicas.
	purgeWait = 2 * time.Second
)

// purgeAll is a purge of unknown tags, which makes all entries stale.
var purgeAll = cache.Purge{}

// Purge implements [cache.Shared]. It returns after the replicas, this one included, have applied the purge, or after
// purgeWait. While Redis is unavailable, the purge waits for Run.
func (s *Store) Purge(ctx context.Context, p cache.Purge) (g cache.Generation) {
	if !s.lost.Load() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.purgeWait)
		defer cancel()
		if s.try(ctx, "purge", stream, func(ctx context.Context) (err error) { g, err = s.add(ctx, "*", p); return err }) {
			s.awaitReplicas(ctx, g)
			return g
		}
	}
	s.keep(p)
	return 0
}

// keep keeps purges until sendPending. Above maxPending, one purge of all entries replaces the waiting purges.
func (s *Store) keep(purges ...cache.Purge) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = append(s.pending, purges...)
	if len(s.pending) > maxPending {
		all := purgeAll
		for _, p := range s.pending {
			all.Unsettled, all.Cause = max(all.Unsettled, p.Unsettled), p.Cause
		}
		s.pending = []cache.Purge{all}
	}
}

// Following implements [cache.Shared].
func (s *Store) Following() bool { return s.ready.Load() }

// Joined returns a channel that is closed when the purges of other replicas wait for this replica, or when Redis has not
// responded. A replica that serves requests earlier may use a response from before a purge.
func (s *Store) Joined() <-chan struct{} { return s.joined }

// add appends purges to the stream in one round trip, and returns the generation of the last purge.
func (s *Store) add(ctx context.Context, id string, purges ...cache.Purge) (cache.Generation, error) {
	var last *redis.StringCmd
	_, err := s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, p := range purges {
			if len(p.Tags) > 0 {
				p.Upstream = s.Upstream
			}
			text, err := json.Marshal(p)
			if err != nil {
				return err
			}
			last = pipe.XAdd(ctx, &redis.XAddArgs{Stream: stream, ID: id, MaxLen: streamLength, Approx: true, Values: []any{"purge", text}})
		}
		pipe.PExpire(ctx, stream, streamLife)
		return nil
	})
	if err != nil {
		return 0, err
	}
	return generation(last.Val()), nil
}

// generation converts a stream ID to a generation: the milliseconds of the ID, followed by
// sequenceBits bits for the sequence number.
func generation(id string) cache.Generation {
	ms, n, _ := strings.Cut(id, "-")
	a, _ := strconv.ParseUint(ms, 10, 64-sequenceBits)
	b, _ := strconv.ParseUint(n, 10, 64)
	return cache.Generation(a<<sequenceBits | min(b, 1<<sequenceBits-1))
}

// errGarbage means that the stream has an ID that no replica writes.
var errGarbage = errors.New("the stream of purges has an ID out of range")

// inRange reports whether generation is exact for a stream ID, and later IDs are possible.
func inRange(id string) bool { return generation(id)>>sequenceBits < 1<<(64-sequenceBits)-1 }

// repair removes the stream if an error shows that it contains garbage. check then starts a new stream, and all older entries
// count as purged.
func (s *Store) repair(ctx context.Context, err error) {
	text := err.Error()
	if !errors.Is(err, errGarbage) && !strings.Contains(text, "WRONGTYPE") && !strings.Contains(text, "exhausted the last possible ID") {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.runTimeout)
	defer cancel()
	s.log.Warn("garbage in the stream of purges removed", "error", errors.Join(err, s.client.Unlink(ctx, stream).Err()))
}

// Run applies the purges of all replicas to memory and sends pending purges, until ctx ends.
func (s *Store) Run(ctx context.Context, memory *cache.Memory) {
	defer s.leave(ctx)
	join := sync.OnceFunc(func() { close(s.joined) })
	defer join()
	checked := time.Time{}
	for ctx.Err() == nil {
		err := s.sendPending(ctx)
		if err == nil {
			err = s.report(ctx)
		}
		if err == nil && time.Since(checked) >= checkEvery {
			if err = s.check(ctx, memory); err == nil {
				checked = time.Now()
			}
		}
		join()
		if err == nil {
			err = s.follow(ctx, memory)
		}
		switch {
		case ctx.Err() != nil:
		case err != nil:
			s.repair(ctx, err)
			checked = time.Time{}
			s.ready.Store(false) // until Run has applied the missed purges
			if !s.lost.Swap(true) {
				s.log.Error("purges of other replicas unavailable", "error", err, "key", "store.url", "remedy", redisclient.Remedy(err))
			}
			select {
			case <-ctx.Done():
			case <-time.After(retryAfter):
			}
		case s.lost.Swap(false):
			s.log.Info("purges of other replicas available")
		}
	}
}

// check verifies that the stream continues after the position of the last applied purge. If the stream
// was lost, check starts it again. If purges are missing, all older entries count as purged.
func (s *Store) check(ctx context.Context, memory *cache.Memory) error {
	ctx, cancel := context.WithTimeout(ctx, s.runTimeout)
	defer cancel()
	oldest, err := s.client.XRangeN(ctx, stream, "-", "+", 1).Result()
	if err != nil {
		return err
	}
	newest, err := s.client.XRevRangeN(ctx, stream, "+", "-", 1).Result()
	if err != nil {
		return err
	}
	if len(oldest) == 0 {
		oldest = newest // another replica started the stream between the two reads
	}
	at := generation(s.position)
	switch {
	case len(newest) > 0 && !inRange(newest[0].ID):
		return errGarbage
	case len(newest) == 0 || generation(newest[0].ID) < at:
		// No stream exists, or Redis lost the last purges. The new purge must be later than the position.
		id := "*"
		if now := uint64(time.Now().UnixMilli()); now <= uint64(at>>sequenceBits) { // the clock is behind the stream
			id = strconv.FormatUint(uint64(at>>sequenceBits)+1, 10) + "-0"
		}
		g, err := s.add(ctx, id, purgeAll)
		if err != nil {
			return err
		}
		memory.PurgeUntil(g)
	case generation(oldest[0].ID) > at:
		// The stream may have dropped purges after the position, or this replica is new.
		memory.PurgeUntil(generation(oldest[0].ID))
	}
	return s.client.PExpire(ctx, stream, streamLife).Err()
}

// follow reads and applies the next purges of the stream.
func (s *Store) follow(ctx context.Context, memory *cache.Memory) error {
	ctx, cancel := context.WithTimeout(ctx, readWait+s.runTimeout)
	defer cancel()
	read := &redis.XReadArgs{Streams: []string{stream, s.position}, Count: maxRead, Block: readWait}
	streams, err := s.client.XRead(ctx, read).Result()
	if errors.Is(err, redis.Nil) { // no purge
		s.ready.Store(true)
		return nil
	}
	if err != nil {
		return err
	}
	messages := streams[0].Messages
	if len(messages) == maxRead { // the stream may have dropped purges between the position and the first message
		oldest, err := s.client.XRangeN(ctx, stream, "-", "+", 1).Result()
		if err != nil {
			return err
		}
		if len(oldest) > 0 && generation(oldest[0].ID) > generation(s.position) {
			memory.PurgeUntil(generation(oldest[0].ID))
		}
	}
	for _, m := range messages {
		if !inRange(m.ID) {
			return errGarbage
		}
		s.position = m.ID
		var p cache.Purge
		text, _ := m.Values["purge"].(string)
		err := json.Unmarshal([]byte(text), &p)
		if err != nil {
			s.unreadable.Do(func() { s.log.Warn("unreadable purge counted as a purge of all entries", "id", m.ID, "error", err) })
		}
		if p.Upstream != "" && s.Upstream != "" && p.Upstream != s.Upstream {
			continue // a gateway for another API
		}
		if err != nil || len(p.Tags) == 0 {
			memory.PurgeUntil(generation(m.ID))
		}
		memory.ApplyPurge(p, generation(m.ID))
	}
	if len(messages) < maxRead {
		s.ready.Store(true)
	}
	return nil
}

// sendPending appends the pending purges to the stream.
func (s *Store) sendPending(ctx context.Context) error {
	s.mu.Lock()
	pending := s.pending
	s.pending = nil
	s.mu.Unlock()
	if len(pending) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.runTimeout)
	defer cancel()
	_, err := s.add(ctx, "*", pending...)
	if err != nil {
		s.keep(pending...) // a purge may be sent twice
	}
	return err
}
