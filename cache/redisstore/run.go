package redisstore

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/cache"
)

const (
	// waits is how long a read of the stream waits for a purge.
	waits = 500 * time.Millisecond
	// most is how many purges are read at once.
	most = 1000
	// looks is how often the stream is looked after.
	looks = 5 * time.Second
)

// Run follows the purges of all replicas, and tells those that could not be told,
// until ctx ends.
func (s *Store) Run(ctx context.Context) {
	looked, lost := time.Time{}, false
	for ctx.Err() == nil {
		err := s.tell(ctx)
		if err == nil && time.Since(looked) >= looks {
			if err = s.look(ctx); err == nil {
				looked = time.Now()
			}
		}
		if err == nil {
			err = s.follow(ctx)
		}
		switch {
		case ctx.Err() != nil:
		case err != nil:
			looked = time.Time{}
			s.ready.Store(false) // until it is known what was purged meanwhile
			if !lost {
				s.log.Error("Redis does not tell what other replicas have purged", "error", err)
			}
			pause(ctx, rest)
		case lost:
			s.log.Info("Redis tells again what other replicas have purged")
		}
		lost = err != nil
	}
}

func pause(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}

// look finds out whether the stream goes on from where it was read: one that was
// lost, or cut off before, is begun anew, and everything older counts as purged.
func (s *Store) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, rest)
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
		oldest = newest // another replica has begun it anew, just now
	}
	at := generation(s.at)
	switch {
	case len(newest) == 0 || generation(newest[0].ID) < at:
		id := "*"
		if now := uint64(time.Now().UnixMilli()); now <= uint64(at>>20) {
			id = strconv.FormatUint(uint64(at>>20)+1, 10) + "-0" // its clock is behind
		}
		g, err := s.add(ctx, everything, id)
		if err != nil {
			return err
		}
		s.learner.PurgeUntil(g)
	case generation(oldest[0].ID) > at:
		s.learner.PurgeUntil(generation(oldest[0].ID))
	}
	return s.client.PExpire(ctx, stream, streamLives).Err()
}

// follow learns what comes next in the stream.
func (s *Store) follow(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, waits+rest)
	defer cancel()
	got, err := s.client.XRead(ctx, &redis.XReadArgs{Streams: []string{stream, s.at}, Count: most, Block: waits}).Result()
	if errors.Is(err, redis.Nil) {
		s.ready.Store(true) // nothing was purged meanwhile
		return nil
	}
	if err != nil {
		return err
	}
	for _, m := range got[0].Messages {
		s.at = m.ID
		var p cache.Purge
		text, _ := m.Values["purge"].(string)
		if err := json.Unmarshal([]byte(text), &p); err != nil || p.Tags == nil {
			s.learner.PurgeUntil(generation(m.ID))
		} else {
			s.learner.ApplyPurge(p, generation(m.ID))
		}
	}
	if len(got[0].Messages) < most {
		s.ready.Store(true)
	}
	return nil
}

// tell adds the purges that could not be told.
func (s *Store) tell(ctx context.Context) error {
	for {
		s.mu.Lock()
		if len(s.pending) == 0 {
			s.mu.Unlock()
			return nil
		}
		p := s.pending[0]
		s.mu.Unlock()
		limited, cancel := context.WithTimeout(ctx, rest)
		_, err := s.add(limited, p, "*")
		cancel()
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.pending = s.pending[1:]
		s.mu.Unlock()
	}
}
