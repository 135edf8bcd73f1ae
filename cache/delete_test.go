package cache

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// slowTier is a shared tier in which each write takes 10 ms of virtual time.
type slowTier struct {
	Shared
	mu      sync.Mutex
	entries map[Key][]*Entry
}

func (s *slowTier) Get(_ context.Context, key Key) []*Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.entries[key])
}

func (s *slowTier) Put(_ context.Context, key Key, e *Entry) bool {
	time.Sleep(10 * time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries[key] = []*Entry{e}
	return true
}

func (s *slowTier) Delete(_ context.Context, key Key) {
	time.Sleep(10 * time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.entries, key)
}

func TestDeletedEntryDoesNotReturn(t *testing.T) {
	for name, waiting := range map[string]int{"after a look-up during the deletion": 0, "with a full queue": 200} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				s := newStore(&slowTier{entries: map[Key][]*Entry{}})
				var running sync.WaitGroup
				running.Go(func() { s.Run(ctx) })
				now := time.Now()
				entry := func() *Entry {
					return &Entry{Status: 200, Body: []byte("secret"), Lifetime: time.Hour, Requested: now, Answered: now}
				}
				key := Key{}
				s.Put(ctx, key, entry(), func(bool) {})
				for i := range waiting { // other keys of the same writer
					s.Put(ctx, Key{0, byte(i + 1)}, entry(), func(bool) {})
				}
				if waiting == 0 {
					synctest.Wait()
					time.Sleep(time.Second) // the entry is in both tiers
				}
				running.Go(func() {
					for range 200 {
						time.Sleep(time.Millisecond)
						s.Lookup(ctx, key, nil)
					}
				})
				s.Delete(ctx, key)
				for range 3 {
					e, _ := s.Lookup(ctx, key, nil)
					failIf(t, e != nil, "the entry is stored after its deletion")
					time.Sleep(2 * time.Second)
				}
				stop()
				running.Wait()
			})
		})
	}
}
