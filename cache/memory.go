package cache

import (
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/sync/singleflight"
)

const (
	// maxVariants bounds the entries under one key, which differ in the fields that Vary names.
	maxVariants = 8
	// retention is the time for which a stale entry is kept for revalidation.
	retention = 24 * time.Hour
	// entryOverhead is the approximate size of an entry without its bodies and header.
	entryOverhead = 512
	// tagOverhead is the approximate size of a tag of an entry, without its name.
	tagOverhead = 32
)

// Memory is the tier in this process's memory: a least-recently-used cache with a bound in bytes.
// The loss of an entry costs a request only. A Memory is safe for concurrent use.
type Memory struct {
	coverage    coverage
	uncacheable uncacheable
	maxBytes    uint64
	encoding    singleflight.Group // see Coded

	mu         sync.Mutex // guards the fields below
	latest     Generation // of all purges
	lost       Generation // entries of earlier generations count as purged, see PurgeUntil
	record     record
	unsettled  unsettled
	tags       map[string]*tag // of the entries in variants
	bytes      uint64
	variants   *simplelru.LRU[Key, []*Entry] // newest first; the slices are immutable
	candidates *simplelru.LRU[Key, []Key]    // by Entry.BaseKey, newest first; the slices are immutable
}

// NewMemory returns an empty tier of at most size bytes.
func NewMemory(size int64) *Memory {
	m := &Memory{
		maxBytes: uint64(size - size/candidatesPart), record: record{maxTags: maxPurged}, tags: map[string]*tag{},
		latest: 1, lost: 1, // an entry of generation zero is stale
	}
	m.variants, _ = simplelru.NewLRU(math.MaxInt, func(_ Key, list []*Entry) {
		m.bytes -= weight(list)
		m.releaseLocked(list)
	})
	m.candidates, _ = simplelru.NewLRU[Key, []Key](max(1, int(size/candidatesPart/candidatesSize)), nil)
	m.uncacheable.keys, _ = simplelru.NewLRU[Key, time.Time](maxUncacheable, nil)
	m.uncacheable.operations = map[string]operationRun{}
	return m
}

// weight returns the approximate size in bytes of the entries under one key.
func weight(list []*Entry) (bytes uint64) {
	for _, e := range list {
		bytes += entryOverhead + uint64(len(e.Body)+cap(e.Packed))
		for _, body := range e.Coded {
			bytes += uint64(len(body))
		}
		for name, values := range e.Header {
			for _, value := range values {
				bytes += uint64(len(name) + len(value))
			}
		}
		for _, tag := range e.Tags {
			bytes += tagOverhead + uint64(len(tag))
		}
		for _, f := range e.Vary {
			bytes += uint64(len(f.Name) + len(f.Value))
		}
	}
	return bytes
}

// expired reports whether the retention of all entries in the list has ended.
func expired(list []*Entry, now time.Time) bool {
	return !slices.ContainsFunc(list, func(e *Entry) bool { return now.Sub(e.Answered) <= e.Lifetime+retention })
}

// get returns the entries under a key, and marks the key as used.
func (m *Memory) get(key Key) []*Entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	list, _ := m.variants.Get(key)
	return list
}

// setLocked replaces the entries under a key, and evicts the least recently used keys beyond
// maxBytes. A list larger than maxBytes is not stored. mu must be held.
func (m *Memory) setLocked(key Key, list []*Entry) {
	m.retainLocked(list) // before the removal, so that the tags of present entries are not forgotten
	m.variants.Remove(key)
	size := weight(list)
	if len(list) == 0 || size > m.maxBytes {
		m.releaseLocked(list)
		return
	}
	for m.bytes+size > m.maxBytes {
		m.variants.RemoveOldest()
	}
	m.variants.Add(key, list)
	m.bytes += size
}

// Lookup returns the entry that a request with these fields selects, or nil. purged reports
// whether one of the entry's tags was purged after its fetch began, or the entry is suspect. A purged
// entry is stale at any age. If the request selects several entries, Lookup returns the most recent by Date (RFC 9111
// section 4).
func (m *Memory) Lookup(key Key, request http.Header) (e *Entry, purged bool) {
	m.mu.Lock()
	list, _ := m.variants.Get(key)
	lost := m.lost
	m.mu.Unlock()
	for _, other := range list {
		if other.Selects(request) && !other.overruled(list) && (e == nil || other.date().After(e.date())) {
			e = other
		}
	}
	return e, e != nil && (e.Since < lost || e.tagPurged() || e.Suspect != "")
}

// Put stores an entry under a key and replaces the entry that the same requests select. If the
// present entry has a later purge generation, or was requested later at the same generation, Put keeps the present entry.
// Put also removes the least recently used
// keys whose retention had ended when e was answered.
func (m *Memory) Put(key Key, e *Entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := []*Entry{e}
	present, _ := m.variants.Peek(key)
	for _, other := range present {
		switch same := slices.Equal(other.Vary, e.Vary); {
		case same && (other.Since > e.Since || other.Since == e.Since && other.Requested.After(e.Requested)):
			return
		case !same && len(list) < maxVariants:
			list = append(list, other)
		}
	}
	list[0] = m.internLocked(e)
	m.setLocked(key, list)
	for {
		_, oldest, ok := m.variants.GetOldest()
		if !ok || !expired(oldest, e.Answered) {
			return
		}
		m.variants.RemoveOldest()
	}
}

// Delete removes all entries under a key.
func (m *Memory) Delete(key Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.variants.Remove(key)
}

// Size returns the number of keys and their weight in bytes.
func (m *Memory) Size() (keys int, bytes uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.variants.Len(), m.bytes
}
