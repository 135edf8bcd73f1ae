package cache

import (
	"net/http"
	"slices"
	"time"

	"github.com/maypok86/otter/v2"
)

const (
	// maxVariants bounds the answers that Vary keeps apart under one key.
	maxVariants = 8
	// retention is how long an entry is kept beyond its last validation: stale
	// it can still be validated.
	retention = 24 * time.Hour
	// entryOverhead is about what an entry costs beside its body and header.
	entryOverhead = 512
	// burst is the size from which a new entry makes the tier evict at once:
	// otherwise a burst of large ones overshoots its bound by far.
	burst = 64 << 10
)

// Memory is the tier in this process's memory, bounded by bytes. It keeps
// nothing that cannot be asked for again: its loss costs requests only.
type Memory struct {
	entries *otter.Cache[Key, variants]
	holders holders
	purges  purges
}

// variants are the entries under one key, the newest first. Nearly always there is one, and
// a list of one would be an allocation more of each, and one more look into cold memory.
type variants struct {
	first *Entry
	rest  *[]*Entry // nil where there are none
}

func newVariants(list []*Entry) variants {
	v := variants{first: list[0]}
	if rest := list[1:]; len(rest) > 0 {
		v.rest = &rest
	}
	return v
}

// list are all of them; of none, nil.
func (v variants) list() []*Entry {
	switch {
	case v.first == nil:
		return nil
	case v.rest == nil:
		return []*Entry{v.first}
	}
	return append([]*Entry{v.first}, *v.rest...)
}

// NewMemory returns an empty tier of at most size bytes.
func NewMemory(size int64) *Memory {
	return &Memory{entries: otter.Must(&otter.Options[Key, variants]{
		MaximumWeight:    uint64(size - size/holdersPart),
		Weigher:          func(_ Key, v variants) uint32 { return v.weight() },
		ExpiryCalculator: otter.ExpiryWritingFunc(func(e otter.Entry[Key, variants]) time.Duration { return e.Value.retained() }),
	}), holders: newHolders(size)}
}

// Close ends the tier's own goroutines. The tier must not be used after it.
func (m *Memory) Close() { m.entries.StopAllGoroutines() }

// Generation is to be read before a fetch begins and kept in its entry.
func (m *Memory) Generation() Generation { return m.purges.current() }

// Lookup returns the entry that a request with these fields gets, or nil, and
// whether it has been purged since it was fetched: then it is stale, whatever
// its age. Of several it is the most recent, by its Date (RFC 9111 section 4).
func (m *Memory) Lookup(key Key, request http.Header) (e *Entry, purged bool) {
	v, _ := m.entries.GetIfPresent(key)
	if v.rest != nil {
		e = newest(v.list(), request)
	} else if v.first != nil && v.first.Selects(request) {
		e = v.first
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
	m.entries.Compute(key, func(old variants, _ bool) (variants, otter.ComputeOp) {
		kept := []*Entry{e}
		for _, o := range old.list() {
			switch same := slices.Equal(o.Vary, e.Vary); {
			case same && o.Since > e.Since:
				return old, otter.CancelOp
			case !same && len(kept) < maxVariants:
				kept = append(kept, o)
			}
		}
		return newVariants(kept), otter.WriteOp
	})
	if len(e.Body) >= burst {
		m.entries.CleanUp()
	}
}

// Forget drops all entries under a key.
func (m *Memory) Forget(key Key) { m.entries.Invalidate(key) }

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
	return m.drop(tagsOf(tags))
}

func (m *Memory) drop(t []tag) (dropped int) {
	tagged := func(e *Entry) bool { return e.tags.hasAny(t) }
	for key := range m.entries.Keys() {
		m.entries.ComputeIfPresent(key, func(old variants) (variants, otter.ComputeOp) {
			all := old.list()
			kept := slices.DeleteFunc(slices.Clone(all), tagged)
			dropped += len(all) - len(kept)
			switch len(kept) {
			case len(all):
				return old, otter.CancelOp
			case 0:
				return variants{}, otter.InvalidateOp
			}
			return newVariants(kept), otter.WriteOp
		})
	}
	return dropped
}

// Learn takes in a purge that the shared tier tells of.
func (m *Memory) Learn(p Purge, g Generation) {
	m.purges.at(p, g)
	if p.Hard {
		m.drop(tagsOf(p.Tags))
	}
}

// Forgotten makes everything stale that was fetched until g, because the shared
// tier cannot tell any more which purges there were.
func (m *Memory) Forgotten(g Generation) { m.purges.forgotten(g) }

// Count is how many entries have the tag.
func (m *Memory) Count(tag string) (n int) {
	wanted := tagsOf([]string{tag})
	for v := range m.entries.Values() {
		for _, e := range v.list() {
			if e.tags.hasAny(wanted) {
				n++
			}
		}
	}
	return n
}

// Size reports how many keys are held and how many bytes they weigh.
func (m *Memory) Size() (keys int, bytes uint64) {
	return m.entries.EstimatedSize(), m.entries.WeightedSize()
}

func (v variants) weight() uint32 {
	total := uint64(0)
	for _, e := range v.list() {
		total += entryOverhead + uint64(len(e.Body)+len(e.fields.common)+len(e.fields.own))
	}
	return uint32(min(total, 1<<32-1))
}

func (v variants) retained() time.Duration {
	longest := time.Duration(0)
	for _, e := range v.list() {
		longest = max(longest, e.Lifetime)
	}
	return longest + retention
}
