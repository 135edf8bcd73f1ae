package cache

import (
	"encoding/binary"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxVariants bounds the answers that Vary keeps apart under one key.
	maxVariants = 8
	// retention is how long an entry is kept beyond its last validation: stale
	// it can still be validated.
	retention = 24 * time.Hour
	// entryOverhead is about what an entry costs beside its body and header.
	entryOverhead = 512
	// sweepEach is how many keys are looked at with each that is kept, whether they have
	// had their time: in the time in which all are kept anew, all are looked at twice.
	sweepEach = 2
)

// Memory is the tier in this process's memory, bounded by bytes. It keeps
// nothing that cannot be asked for again: its loss costs requests only. It is safe for
// concurrent use.
type Memory struct {
	shelves [shelves]shelf
	holders holders
	purges  purges

	mu    sync.Mutex // of who changes what is held; a shelf's is locked within it
	order order
	most  uint64 // bytes
}

// shelves is how many parts the keys are in, so that those who look seldom wait for each other.
const shelves = 16

// shelf is what is held under some of the keys, by eight bytes of each: where two keys have
// these alike, the later takes the place of the other.
type shelf struct {
	mu   sync.RWMutex
	held map[uint64]*held
}

// held is what is held under one key: nearly always one entry, which is a part of it, for a
// pointer is an allocation more of each, and one more look into cold memory for each hit.
type held struct {
	key    Key
	used   atomic.Bool // since the hand of the order passed it
	weight uint32      // bytes
	rest   []Entry     // those older than the first
	first  Entry
	until  int64 // seconds since 1970

	older, newer *held // in the order; guarded by Memory.mu
}

// newHeld takes copies: what points into something that is held keeps all of that.
func newHeld(key Key, list []*Entry) *held {
	h := &held{key: key, first: *list[0]}
	for _, e := range list[1:] {
		h.rest = append(h.rest, *e)
	}
	total, longest := uint64(0), time.Duration(0)
	for _, e := range list {
		total += entryOverhead + uint64(len(e.Body)+len(e.fields.common)+len(e.fields.own))
		for _, f := range e.Vary {
			total += uint64(len(f.Name) + len(f.Value))
		}
		longest = max(longest, e.Lifetime)
	}
	h.weight = uint32(min(total, 1<<32-1))
	h.until = time.Now().Add(longest + retention).Unix()
	return h
}

// list are all its entries, the newest first; of nothing, nil.
func (h *held) list() []*Entry {
	if h == nil {
		return nil
	}
	all := []*Entry{&h.first}
	for i := range h.rest {
		all = append(all, &h.rest[i])
	}
	return all
}

// NewMemory returns an empty tier of at most size bytes.
func NewMemory(size int64) *Memory {
	m := &Memory{holders: newHolders(size), most: uint64(size - size/holdersPart)}
	for i := range m.shelves {
		m.shelves[i].held = map[uint64]*held{}
	}
	return m
}

// place is where a key is held.
func (m *Memory) place(key Key) (s *shelf, short uint64) {
	return &m.shelves[key[0]%shelves], binary.BigEndian.Uint64(key[8:])
}

// at returns what is held under a key, or nil.
func (m *Memory) at(key Key) *held {
	s, short := m.place(key)
	s.mu.RLock()
	h := s.held[short]
	s.mu.RUnlock()
	if h == nil || h.key != key {
		return nil
	}
	if !h.used.Load() { // to write would take it from others who read
		h.used.Store(true)
	}
	return h
}

// hold puts something in the place of what is held under its key, or one like it: who looks
// meanwhile finds the one or the other. What is larger than all there is room for is not held.
// mu is held.
func (m *Memory) hold(h *held) {
	s, short := m.place(h.key)
	old := s.held[short]
	if uint64(h.weight) > m.most {
		if old != nil {
			m.drop(old)
		}
		return
	}
	if old != nil {
		m.order.remove(old)
		h.used.Store(true) // or it would not have been asked for again
	}
	for m.order.weight+uint64(h.weight) > m.most {
		m.drop(m.order.givesWay())
	}
	m.order.add(h)
	s.mu.Lock()
	s.held[short] = h
	s.mu.Unlock()
}

// drop lets something go that is held; mu is held.
func (m *Memory) drop(h *held) {
	s, short := m.place(h.key)
	s.mu.Lock()
	delete(s.held, short)
	s.mu.Unlock()
	m.order.remove(h)
}

// Generation is to be read before a fetch begins and kept in its entry.
func (m *Memory) Generation() Generation { return m.purges.current() }

// Lookup returns the entry that a request with these fields gets, or nil, and
// whether it has been purged since it was fetched: then it is stale, whatever
// its age. Of several it is the most recent, by its Date (RFC 9111 section 4).
func (m *Memory) Lookup(key Key, request http.Header) (e *Entry, purged bool) {
	switch h := m.at(key); {
	case h == nil:
	case h.rest != nil:
		e = newest(h.list(), request)
	case h.first.Selects(request):
		e = &h.first
	}
	return e, e != nil && m.purges.purged(e.tags[:], e.Since)
}

func newest(all []*Entry, request http.Header) (e *Entry) {
	for _, other := range all {
		if other.Selects(request) && !other.overruled(all) && (e == nil || other.date().After(e.date())) {
			e = other
		}
	}
	return e
}

// Keep stores an entry under a key, in place of one that the same requests
// select, unless the fetch of that one began after a purge that this one's did not
// see.
func (m *Memory) Keep(key Key, e *Entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := []*Entry{e}
	for _, o := range m.at(key).list() {
		switch same := slices.Equal(o.Vary, e.Vary); {
		case same && o.Since > e.Since:
			return
		case !same && len(all) < maxVariants:
			all = append(all, o)
		}
	}
	m.hold(newHeld(key, all))
	now := time.Now().Unix()
	for range sweepEach {
		if h := m.order.swept(); h != nil && h.until < now {
			m.drop(h)
		}
	}
}

// Forget drops all entries under a key.
func (m *Memory) Forget(key Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := m.at(key); h != nil {
		m.drop(h)
	}
}

// Purge makes every entry with one of the tags stale, and every one whose
// fetch has begun but not ended.
func (m *Memory) Purge(tags ...string) { m.purges.purge(Purge{Tags: tags}) }

// Purged reports whether one of the tags was purged after since.
func (m *Memory) Purged(tags []string, since Generation) bool {
	return m.purges.purged(tagsOf(tags), since)
}

// Drop purges, and forgets every entry with one of the tags. It returns how many
// these were. It looks at all entries: it is for an operator's hand.
func (m *Memory) Drop(tags ...string) (dropped int) {
	m.purges.purge(Purge{tags, true}) // what is being fetched is stale when it comes
	return m.dropTagged(tagsOf(tags))
}

func (m *Memory) dropTagged(t []tag) (dropped int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for h := range m.order.all {
		all := h.list()
		left := slices.DeleteFunc(slices.Clone(all), func(e *Entry) bool { return e.tags.hasAny(t) })
		if len(left) == len(all) {
			continue
		}
		dropped += len(all) - len(left)
		if len(left) == 0 {
			m.drop(h)
		} else {
			m.hold(newHeld(h.key, left))
		}
	}
	return dropped
}

// Learn takes in a purge that the shared tier tells of.
func (m *Memory) Learn(p Purge, g Generation) {
	m.purges.at(p, g)
	if p.Hard {
		m.dropTagged(tagsOf(p.Tags))
	}
}

// Forgotten makes everything stale that was fetched until g, because the shared
// tier cannot tell any more which purges there were.
func (m *Memory) Forgotten(g Generation) { m.purges.forgotten(g) }

// Count is how many entries have the tag.
func (m *Memory) Count(tag string) (n int) {
	wanted := tagsOf([]string{tag})
	m.mu.Lock()
	defer m.mu.Unlock()
	for h := range m.order.all {
		for _, e := range h.list() {
			if e.tags.hasAny(wanted) {
				n++
			}
		}
	}
	return n
}

// Size reports how many keys are held and how many bytes they weigh.
func (m *Memory) Size() (keys int, bytes uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.order.count, m.order.weight
}
