package cache

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
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

// shelf is what is held under some of the keys, by their shorts: where two keys have these alike,
// the later takes the place of the other.
type shelf struct {
	mu   sync.RWMutex
	held map[short]*held
}

// held is what is held under one key: nearly always one entry, which is a part of it, for a
// pointer is an allocation more of each, and one more look into cold memory for each hit.
type held struct {
	key    Key
	used   atomic.Bool // since the hand of the order passed it
	weight uint32      // bytes
	place  uint32      // in the order; guarded by Memory.mu
	until  uint32      // seconds since 1970
	rest   *[]Entry    // those older than the first; nil of none
	first  Entry
}

// newHeld takes copies: what points into something that is held keeps all of that.
func newHeld(key Key, list []*Entry) *held {
	own := list[0].fields.own
	h, room := heldWithRoom(len(own))
	h.key, h.first = key, *list[0]
	if room != nil {
		h.first.fields.own = unsafe.String(&room[0], copy(room, own)) // nobody writes there again
	} else {
		h.first.fields.own = strings.Clone(own)
	}
	if len(list) > 1 {
		h.rest = new([]Entry)
	}
	for _, e := range list[1:] {
		other := *e
		other.fields.own = strings.Clone(e.fields.own)
		*h.rest = append(*h.rest, other)
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
	h.until = uint32(min(time.Now().Add(longest+retention).Unix(), 1<<32-1))
	return h
}

// heldWithRoom returns a held, and room for so many bytes in the same piece; none where they are
// more than the largest. The pieces are of sizes that the allocator has. A hit then looks into one
// cold place less, which is 0.25 of the 1.45 µs that it costs more with 100,000 entries than with
// 1,000 (the median of four runs, beside the wire and the collector).
func heldWithRoom(bytes int) (h *held, room []byte) {
	const size = int(unsafe.Sizeof(held{}))
	switch {
	case bytes == 0:
	case bytes <= 352-size:
		h := new(struct {
			held
			room [352 - size]byte
		})
		return &h.held, h.room[:]
	case bytes <= 416-size:
		h := new(struct {
			held
			room [416 - size]byte
		})
		return &h.held, h.room[:]
	case bytes <= 512-size:
		h := new(struct {
			held
			room [512 - size]byte
		})
		return &h.held, h.room[:]
	}
	return new(held), nil
}

// list are all its entries, the newest first; of nothing, nil.
func (h *held) list() []*Entry {
	if h == nil {
		return nil
	}
	all := []*Entry{&h.first}
	if h.rest != nil {
		for i := range *h.rest {
			all = append(all, &(*h.rest)[i])
		}
	}
	return all
}

// NewMemory returns an empty tier of at most size bytes.
func NewMemory(size int64) *Memory {
	m := &Memory{holders: newHolders(size), order: newOrder(), most: uint64(size - size/holdersPart)}
	for i := range m.shelves {
		m.shelves[i].held = map[short]*held{}
	}
	return m
}

func (m *Memory) shelf(s short) *shelf { return &m.shelves[s%shelves] }

// find returns what is held under a key with this short, or nil.
func (m *Memory) find(s short) *held {
	shelf := m.shelf(s)
	shelf.mu.RLock()
	h := shelf.held[s]
	shelf.mu.RUnlock()
	return h
}

// at returns what is held under a key, or nil, and notes that it is used.
func (m *Memory) at(key Key) *held {
	h := m.find(key.short())
	if h == nil || h.key != key {
		return nil
	}
	h.use()
	return h
}

func (h *held) use() {
	if !h.used.Load() { // to write would take it from others who read
		h.used.Store(true)
	}
}

// hold puts something in the place of what is held under its key, or one like it: who looks
// meanwhile finds the one or the other. What is larger than all there is room for is not held.
// mu is held.
func (m *Memory) hold(h *held) {
	s := h.key.short()
	old := m.find(s)
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
		m.drop(m.givesWay())
	}
	m.order.add(h)
	shelf := m.shelf(s)
	shelf.mu.Lock()
	shelf.held[s] = h
	shelf.mu.Unlock()
}

// givesWay returns what is to go; there must be something, and mu is held.
func (m *Memory) givesWay() *held {
	for o := &m.order; ; o.pass(&o.hand) {
		if h := o.at(&o.hand); !h.used.Swap(false) {
			return h
		}
	}
}

// sweep drops what has had its time, of the next few; mu is held.
func (m *Memory) sweep() {
	o, now := &m.order, uint32(time.Now().Unix())
	for range min(sweepEach, o.count) {
		if h := o.at(&o.broom); h.until < now {
			m.drop(h)
		} else {
			o.pass(&o.broom)
		}
	}
}

// drop lets something go that is held; mu is held.
func (m *Memory) drop(h *held) {
	s := h.key.short()
	shelf := m.shelf(s)
	shelf.mu.Lock()
	delete(shelf.held, s)
	shelf.mu.Unlock()
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

// Put stores an entry under a key, in place of one that the same requests
// select, unless the fetch of that one began after a purge that this one's did not
// see.
func (m *Memory) Put(key Key, e *Entry) {
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
	m.sweep()
}

// Delete drops all entries under a key.
func (m *Memory) Delete(key Key) {
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

// PurgeHard purges, and forgets every entry with one of the tags. It returns how many
// these were. It looks at all entries: it is for an operator's hand.
func (m *Memory) PurgeHard(tags ...string) (dropped int) {
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
func (m *Memory) ApplyPurge(p Purge, g Generation) {
	m.purges.at(p, g)
	if p.Hard {
		m.dropTagged(tagsOf(p.Tags))
	}
}

// Forgotten makes everything stale that was fetched until g, because the shared
// tier cannot tell any more which purges there were.
func (m *Memory) PurgeUntil(g Generation) { m.purges.forgotten(g) }

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
