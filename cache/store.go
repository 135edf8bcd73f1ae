package cache

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Key identifies a question together with the security class of its caller. Key is a hash, which
// does not reveal its parts.
type Key [sha256.Size]byte

// NewKey hashes the parts. Each part is preceded by its length, so different lists of parts have
// different keys.
func NewKey(parts ...string) Key {
	buf := make([]byte, 0, 512) // on the stack, and enough for most keys
	for _, p := range parts {
		buf = binary.BigEndian.AppendUint32(buf, uint32(len(p)))
		buf = append(buf, p...)
	}
	return sha256.Sum256(buf)
}

// Shared is the tier that replicas share. All methods return after a bounded time. Failures are
// silent, because the loss of an entry costs a request only.
type Shared interface {
	// Get returns the entries under a key.
	Get(ctx context.Context, key Key) []*Entry
	// Put stores an entry under a key, and reports whether it is stored.
	Put(ctx context.Context, key Key, e *Entry) (stored bool)
	// Delete removes the entries under a key.
	Delete(ctx context.Context, key Key)
	// AddCandidate records that a response to the question with this base key is stored under key.
	AddCandidate(ctx context.Context, base, key Key)
	// CandidateKeys returns the recorded keys, newest first.
	CandidateKeys(ctx context.Context, base Key) []Key
	// Purge sends a purge to every replica, and waits for a short time until every replica has applied it.
	// While the tier is unavailable, Purge keeps the purge and sends it later. A purge that is not sent is
	// lost when the process ends. Purge returns the generation of a purge that was sent, or zero. The caller applies
	// the purge at this generation, because this replica may not follow the other replicas.
	Purge(ctx context.Context, p Purge) Generation
	// Following reports whether the purges of the other replicas reach this replica at present.
	Following() bool
	// AcquireFetch acquires or renews the lease to fetch the response for a key, for a few
	// seconds. If another owner has the lease, AcquireFetch returns false and that lease. If the
	// tier is unavailable or the lease unreadable, AcquireFetch returns false and nil: the replica
	// may fetch the response without a lease.
	AcquireFetch(ctx context.Context, key Key, lease FetchLease) (acquired bool, other *FetchLease)
	// ReleaseFetch ends a lease. If failed is set, AcquireFetch returns a lease with Failed to other
	// replicas for a short time.
	ReleaseFetch(ctx context.Context, key Key, owner string, failed bool)
}

// FetchLease is the right of one replica to fetch the response for a key. The fields inform other
// replicas about the fetch.
type FetchLease struct {
	Owner string `json:"owner"`
	// Since is the purge generation at which the fetch began.
	Since Generation `json:"since"`
	// Sent reports whether the request was sent to the upstream.
	Sent bool `json:"sent"`
	// Failed reports that the response cannot answer other requests.
	Failed bool `json:"failed,omitempty"`
	// Pending is the 202 of an upstream that computes the response.
	Pending *Entry `json:"-"`
	// Next is the time of the next poll.
	Next time.Time `json:"next,omitzero"`
	// Trace is the traceparent of the span of the fetch (W3C Trace Context), or empty.
	Trace string `json:"trace,omitempty"`
}

// Store is a cache with these layers:
//   - Store combines the memory tier with an optional tier that replicas share.
//   - [Memory] contains entries of this process.
//   - The purges inside Memory decide which entries of both tiers are stale or removed.
//
// No request waits until an entry is in the shared tier: [Store.Run] writes later, in the order of the calls for each key.
type Store struct {
	*Memory
	shared Shared // nil without a shared tier
	writes [sharedWriters]chan func()
	queued atomic.Int64 // bytes of the bodies in writes

	restoring sync.RWMutex // guards deletions, and is held while a look-up restores an entry in memory
	deletions int64        // number of deletions from memory
}

const (
	// sharedWriters is the number of goroutines that write to the shared tier. maxWrites bounds the waiting writes of
	// each, and maxQueued bounds the bytes of their bodies together. Entries beyond the bounds are not shared.
	sharedWriters = 16
	maxWrites     = 64
	maxQueued     = 64 << 20
	// deleteWait bounds the wait for the deletion from the shared tier.
	deleteWait = time.Second
)

// NewStore returns a store of the two tiers. shared may be nil.
func NewStore(memory *Memory, shared Shared) *Store {
	s := &Store{Memory: memory, shared: shared}
	for i := range s.writes {
		s.writes[i] = make(chan func(), maxWrites)
	}
	return s
}

// IsShared reports whether replicas share a tier, so that entries may exist of which this process does not know.
func (s *Store) IsShared() bool { return s.shared != nil }

// Run writes to the shared tier until ctx ends. Writes that wait at that time are lost, which costs requests only.
func (s *Store) Run(ctx context.Context) {
	var writers sync.WaitGroup
	for _, writes := range s.writes {
		writers.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case write := <-writes:
					write()
				}
			}
		})
	}
	writers.Wait()
}

// write adds a write to the queue of its key. The result is false if the queue is full.
func (s *Store) write(key Key, write func()) bool {
	select {
	case s.writes[key[0]%sharedWriters] <- write:
		return true
	default:
		return false
	}
}

// Lookup returns the entry that a request with these fields selects, or nil. purged is that of [Memory.Lookup]. Lookup reads
// the shared tier only if memory has no fresh entry.
func (s *Store) Lookup(ctx context.Context, key Key, request http.Header) (e *Entry, purged bool) {
	e, purged = s.Memory.Lookup(key, request)
	if s.shared == nil || e != nil && !purged && e.Fresh(time.Now()) {
		return e, purged
	}
	return s.LookupShared(ctx, key, request, e, purged)
}

// LookupShared is the part of Lookup that reads the shared tier. e and purged are the result for memory.
func (s *Store) LookupShared(ctx context.Context, key Key, request http.Header, e *Entry, purged bool) (*Entry, bool) {
	s.restoring.RLock()
	deletions := s.deletions
	s.restoring.RUnlock()
	list := s.shared.Get(ctx, key)
	all := slices.Concat(list, s.get(key)) // the shared tier may not have the latest entry yet
	for _, other := range list {
		if !other.Selects(request) || other.overruled(all) || s.purgedHard(other.Tags, other.Since) {
			continue
		}
		gone := s.Outdated(other)
		if e == nil || purged && !gone || purged == gone && other.newer(e) {
			s.restore(key, other, deletions)
			e, purged = other, gone
		}
	}
	return e, purged
}

// newer reports whether the fetch of e began at a later purge generation. At the same generation,
// the later response is newer, as far as the replicas' clocks agree.
func (e *Entry) newer(other *Entry) bool {
	if e.Since != other.Since {
		return e.Since > other.Since
	}
	return e.Answered.After(other.Answered)
}

// AcquireFetch acquires a lease in the shared tier ([Shared.AcquireFetch]). Without a shared tier,
// AcquireFetch returns false and nil.
func (s *Store) AcquireFetch(ctx context.Context, key Key, lease FetchLease) (acquired bool, other *FetchLease) {
	if s.shared == nil {
		return false, nil
	}
	return s.shared.AcquireFetch(ctx, key, lease)
}

// ReleaseFetch ends a lease ([Shared.ReleaseFetch]).
func (s *Store) ReleaseFetch(ctx context.Context, key Key, owner string, failed bool) {
	if s.shared != nil {
		s.shared.ReleaseFetch(ctx, key, owner, failed)
	}
}

// Put stores an entry under a key. The entry replaces the entry that the same requests select. Put calls done once, with
// the information whether the shared tier also stores the entry.
func (s *Store) Put(ctx context.Context, key Key, e *Entry, done func(shared bool)) {
	s.Memory.Put(key, e)
	candidate := e.BaseKey != (Key{}) && e.Status == http.StatusOK
	if candidate {
		s.addCandidate(e.BaseKey, key)
	}
	size := int64(len(e.Body))
	if s.shared == nil || e.Packed != nil || s.queued.Add(size) > maxQueued {
		s.queued.Add(-size)
		done(false)
		return
	}
	ctx = context.WithoutCancel(ctx)
	queued := s.write(key, func() {
		defer s.queued.Add(-size)
		shared := s.shared.Put(ctx, key, e)
		if shared && candidate {
			s.shared.AddCandidate(ctx, e.BaseKey, key)
		}
		done(shared)
	})
	if !queued {
		s.queued.Add(-size)
		done(false)
	}
}

// Delete removes all entries under a key from both tiers, after the writes that wait. A look-up that began before the end
// of Delete does not restore an entry.
func (s *Store) Delete(ctx context.Context, key Key) {
	s.deleteFromMemory(key)
	if s.shared == nil {
		return
	}
	ctx, done := context.WithoutCancel(ctx), make(chan struct{})
	timeout := time.After(deleteWait)
	select {
	case s.writes[key[0]%sharedWriters] <- func() { s.shared.Delete(ctx, key); close(done) }:
		select {
		case <-done:
		case <-timeout:
		}
	case <-timeout:
		s.shared.Delete(ctx, key)
	}
	s.deleteFromMemory(key) // a look-up may have restored an entry from the shared tier
}

func (s *Store) deleteFromMemory(key Key) {
	s.restoring.Lock()
	s.deletions++
	s.restoring.Unlock()
	s.Memory.Delete(key)
}

// restore stores an entry of the shared tier in memory, unless a deletion began after the given number of deletions.
func (s *Store) restore(key Key, e *Entry, deletions int64) {
	s.restoring.RLock()
	defer s.restoring.RUnlock()
	if s.deletions == deletions {
		s.Memory.Put(key, e)
	}
}

// Purge makes every entry with one of the tags stale on every replica, including entries whose
// fetch is in progress.
// Call Purge before the response to a write is sent, so that the client's next read does not get an older
// response from any replica.
func (s *Store) Purge(ctx context.Context, tags ...string) {
	if len(tags) > 0 {
		s.purge(ctx, Purge{Tags: tags})
	}
}

// PurgeUnsettled purges the entries with one of the tags after a change. For a time, the upstream may still return the state
// before the change, so a response that is fetched within that time is suspect ([Entry.Suspect]).
func (s *Store) PurgeUnsettled(ctx context.Context, within time.Duration, cause Cause, tags ...string) {
	if len(tags) > 0 {
		s.purge(ctx, Purge{Tags: tags, Unsettled: within, Cause: cause})
	}
}

// PurgeHard purges, and removes the entries with one of the tags from the memory of every replica.
// PurgeHard returns the number of entries removed from the memory of this replica. Entries in the
// shared tier are not deleted, but Lookup ignores them (see [Purge]).
func (s *Store) PurgeHard(ctx context.Context, tags ...string) (removed int) {
	return s.purge(ctx, Purge{Tags: tags, Hard: true})
}

func (s *Store) purge(ctx context.Context, p Purge) (removed int) {
	removed = s.ApplyPurge(p, 0)
	if s.shared != nil {
		if g := s.shared.Purge(ctx, p); g != 0 {
			s.ApplyPurge(p, g)
		}
	}
	return removed
}
