package cache

import (
	"context"
	"net/http"
	"time"
)

// Shared is the tier that replicas share. What it does takes a moment at most, and
// where it cannot it does nothing: it is a cache.
type Shared interface {
	// Get returns the entries under a key.
	Get(ctx context.Context, key Key) []*Entry
	// Put stores an entry under a key, and reports whether it has.
	Put(ctx context.Context, key Key, e *Entry) (stored bool)
	// Delete drops the entries under a key.
	Delete(ctx context.Context, key Key)
	// AddCandidate remembers that an answer to a question, whoever asks it, is under a key;
	// Holders returns such keys, the newest first.
	AddCandidate(ctx context.Context, about, key Key)
	CandidateKeys(ctx context.Context, about Key) []Key
	// Purge tells every replica of a purge, now or as soon as it can.
	Purge(ctx context.Context, p Purge)
	// AcquireFetch says that its owner fetches the answer for a key, for a few seconds unless
	// it is claimed again by the same. Where another owner has claimed it nothing
	// changes, and its claim is returned. Neither mine nor another's it is where nobody
	// can tell.
	AcquireFetch(ctx context.Context, key Key, c FetchLease) (mine bool, other *FetchLease)
	// ReleaseFetch ends a claim; failed lets others know for a moment that its answer is for
	// nobody else.
	ReleaseFetch(ctx context.Context, key Key, owner string, failed bool)
}

// FetchLease is what one who fetches an answer tells others who want it.
type FetchLease struct {
	Owner string `json:"owner"`
	// Since is the generation at which the fetch began.
	Since Generation `json:"since"`
	// Sent is whether the question has been let go to the upstream.
	Sent bool `json:"sent"`
	// Failed is whether the answer was for nobody else.
	Failed bool `json:"failed,omitempty"`
	// Pending is the answer while the upstream computes another, asked for at Next.
	Pending *Entry    `json:"-"`
	Next    time.Time `json:"next,omitzero"`
	// Trace names the span of who fetches it, as a traceparent field does (W3C Trace
	// Context); empty where none is kept.
	Trace string `json:"trace,omitempty"`
}

// Store is the memory tier, over one that replicas share if there is one. Nothing
// in it is lost that could not be asked for again.
type Store struct {
	*Memory
	shared Shared // nil without
}

// NewStore returns a store of the two tiers; shared may be nil.
func NewStore(memory *Memory, shared Shared) *Store { return &Store{memory, shared} }

// IsShared reports whether there is a tier that replicas share.
func (s *Store) IsShared() bool { return s.shared != nil }

// Lookup returns the entry that a request with these fields gets, or nil, and
// whether it has been purged since it was fetched: then it is stale, whatever its
// age. What memory holds fresh no other tier is asked for.
func (s *Store) Lookup(ctx context.Context, key Key, request http.Header) (e *Entry, purged bool) {
	e, purged = s.Memory.Lookup(key, request)
	if s.shared == nil || e != nil && !purged && e.Fresh(time.Now()) {
		return e, purged
	}
	list := s.shared.Get(ctx, key)
	for _, other := range list {
		if !other.Selects(request) || other.overruled(list) || s.purges.dropped(other.tags[:], other.Since) {
			continue
		}
		if gone := s.purges.purged(other.tags[:], other.Since); e == nil || purged && !gone || purged == gone && other.newer(e) {
			s.Memory.Put(key, other)
			e, purged = other, gone
		}
	}
	return e, purged
}

// newer reports whether the entry tells of a later time than another: its fetch began
// after more purges, or else it was answered later, as far as clocks agree.
func (e *Entry) newer(other *Entry) bool {
	if e.Since != other.Since {
		return e.Since > other.Since
	}
	return e.Answered.After(other.Answered)
}

// AcquireFetch claims a key in the tier that replicas share (Shared.AcquireFetch); without one
// nobody can tell.
func (s *Store) AcquireFetch(ctx context.Context, key Key, c FetchLease) (mine bool, other *FetchLease) {
	if s.shared == nil {
		return false, nil
	}
	return s.shared.AcquireFetch(ctx, key, c)
}

// ReleaseFetch ends a claim.
func (s *Store) ReleaseFetch(ctx context.Context, key Key, owner string, failed bool) {
	if s.shared != nil {
		s.shared.ReleaseFetch(ctx, key, owner, failed)
	}
}

// Put stores an entry under a key, in place of one that the same requests select. It
// reports whether other replicas have it, too.
func (s *Store) Put(ctx context.Context, key Key, e *Entry) (shared bool) {
	s.Memory.Put(key, e)
	shared = s.shared != nil && s.shared.Put(ctx, key, e)
	if e.BaseKey != (Key{}) && e.Status == http.StatusOK {
		s.addCandidate(e.BaseKey, key)
		if shared {
			s.shared.AddCandidate(ctx, e.BaseKey, key)
		}
	}
	return shared
}

// Delete drops all entries under a key.
func (s *Store) Delete(ctx context.Context, key Key) {
	s.Memory.Delete(key)
	if s.shared != nil {
		s.shared.Delete(ctx, key)
	}
}

// Purge makes every entry with one of the tags stale, and every one whose fetch has
// begun but not ended, here and at every replica.
func (s *Store) Purge(ctx context.Context, tags ...string) {
	if len(tags) == 0 {
		return
	}
	s.Memory.Purge(tags...)
	if s.shared != nil {
		s.shared.Purge(ctx, Purge{Tags: tags})
	}
}

// PurgeHard purges, and forgets every entry with one of the tags, here and at every
// replica. It returns how many these were here.
func (s *Store) PurgeHard(ctx context.Context, tags ...string) (dropped int) {
	dropped = s.Memory.PurgeHard(tags...)
	if s.shared != nil {
		s.shared.Purge(ctx, Purge{tags, true})
	}
	return dropped
}
