package cache

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"
	"time"
)

// Generation orders purges. An entry whose fetch began at generation g is stale once one of its
// tags is purged at a later generation. So a fetch in progress cannot restore purged data.
//
// A shared tier assigns generations by its clock. Later purges have later generations on every
// replica.
type Generation uint64

// Purge makes entries with one of the tags stale. A hard purge also removes these entries from
// memory, and look-ups ignore these entries in the shared tier. The record of a hard purge can be lost
// after many later purges or after a loss in the shared tier. The entries in the shared tier are then
// stale.
type Purge struct {
	Tags []string `json:"tags"`
	Hard bool     `json:"hard,omitempty"`
	// Unsettled is the time for which the change may still happen, if the result of the write is unknown. A response
	// whose fetch begins within that time is stale, too.
	Unsettled time.Duration `json:"unsettled,omitempty"`
	// Coverage is set for the purge of a webhook event.
	Coverage *Coverage `json:"coverage,omitempty"`
	// Upstream names the API whose responses the tags name, for gateways of several APIs on one shared tier. Empty means any.
	Upstream string `json:"upstream,omitempty"`
}

// tag is a tag of at least one entry in memory. The entries with the tag share it, so a purge costs
// the same for any number of entries.
type tag struct {
	name    string
	entries int           // number of entries in memory with the tag; guarded by Memory.mu
	purged  atomic.Uint64 // generation of the last purge
}

// purgeAt records a purge. Memory.mu must be held.
func (t *tag) purgeAt(g Generation) { t.purged.Store(max(t.purged.Load(), uint64(g))) }

const (
	// maxPurged bounds the tags in each half of the record.
	maxPurged = 1 << 16
	// purgedFor is the time for which a purge stays in the record. It is longer than the life of a
	// value in the shared tier (a day) and a fetch together.
	purgedFor = 25 * time.Hour
)

// record contains the recent purges. It decides about tags that no entry in memory has: tags of
// fetches in progress, and of entries in the shared tier. When the recent half is full or old, it
// replaces the older half. Tags whose purge was dropped count as purged at the floor.
type record struct {
	maxTags       int // of each half
	recent, older half
	floor         Generation
}

// half is a part of the record. The maps contain the generation of the last purge of each tag.
type half struct {
	began  time.Time
	latest Generation // of all purges
	last   map[string]Generation
	hard   map[string]Generation // hard purges only
}

// add records a purge.
func (r *record) add(p Purge, g Generation) {
	if now := time.Now(); len(r.recent.last) >= r.maxTags || now.Sub(r.recent.began) > purgedFor {
		r.floor = max(r.floor, r.older.latest)
		r.older, r.recent = r.recent, half{began: now, last: map[string]Generation{}, hard: map[string]Generation{}}
	}
	r.recent.latest = max(r.recent.latest, g)
	for _, t := range p.Tags {
		r.recent.last[t] = max(r.recent.last[t], g)
		if p.Hard {
			r.recent.hard[t] = max(r.recent.hard[t], g)
		}
	}
}

// last returns the generation of the last purge of a tag, or the floor without a recorded purge.
func (r *record) last(tag string) Generation {
	return max(r.floor, r.older.last[tag], r.recent.last[tag])
}

// unsettled contains the changes that may still happen, by tag. At maxUnsettled tags, a further change concerns all tags.
type unsettled struct {
	until map[string]time.Time
	all   time.Time // end for all tags
	last  time.Time // latest end
}

// maxUnsettled bounds the tags of changes that may still happen.
const maxUnsettled = 1 << 16

// add records a change. Without tags, the change may concern all tags.
func (u *unsettled) add(tags []string, now, until time.Time) {
	if now.After(u.last) || u.until == nil {
		u.until = map[string]time.Time{}
	}
	u.last = latest(u.last, until)
	if len(u.until)+len(tags) > maxUnsettled && !now.Before(u.all) { // the condition about all bounds the scans of a full map
		maps.DeleteFunc(u.until, func(_ string, end time.Time) bool { return !now.Before(end) })
	}
	if len(tags) == 0 || len(u.until)+len(tags) > maxUnsettled {
		u.all = latest(u.all, until)
		return
	}
	for _, t := range tags {
		u.until[t] = latest(u.until[t], until)
	}
}

// has reports whether a change of a tag may still happen.
func (u *unsettled) has(tag string, now time.Time) bool {
	return now.Before(u.all) || now.Before(u.until[tag])
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// purgedHard reports whether the record has a hard purge of one of the tags after since.
func (m *Memory) purgedHard(tags []string, since Generation) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(tags, func(t string) bool { return max(m.record.older.hard[t], m.record.recent.hard[t]) > since })
}

// Generation returns the current purge generation.
func (m *Memory) Generation() Generation {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.latest
}

// FetchGeneration returns the purge generation for a fetch that begins now, to be stored in [Entry.Since]. While a
// change of one of the tags may still happen ([Purge.Unsettled]), the generation is zero, at which every entry is stale.
func (m *Memory) FetchGeneration(tags func() []string) Generation {
	m.mu.Lock()
	g, now := m.latest, time.Now()
	settled := !now.Before(m.unsettled.last)
	m.mu.Unlock()
	if settled {
		return g
	}
	names := tags()
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.ContainsFunc(names, func(t string) bool { return m.unsettled.has(t, now) }) {
		return 0
	}
	return g
}

// PurgeUntil makes every entry stale whose fetch began before g. A shared tier calls PurgeUntil after
// purges were lost.
func (m *Memory) PurgeUntil(g Generation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lost, m.latest = max(m.lost, g), max(m.latest, g)
}

// Purged reports whether one of the tags was purged after since.
func (m *Memory) Purged(tags []string, since Generation) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return since < m.latest && (since < m.lost || slices.ContainsFunc(tags, func(t string) bool { return m.lastPurgeLocked(t) > since }))
}

// lastPurgeLocked returns the generation of the last purge of a tag. The generation is exact if an
// entry in memory has the tag, or if the record contains the purge. mu must be held.
func (m *Memory) lastPurgeLocked(name string) Generation {
	if t := m.tags[name]; t != nil {
		return Generation(t.purged.Load())
	}
	return m.record.last(name)
}

// ApplyPurge makes every entry with one of the tags stale, including entries whose fetch is in
// progress. A hard purge also scans all entries, removes the tagged entries and returns their
// number. Generation 0 selects the next generation; the shared tier assigns other generations.
func (m *Memory) ApplyPurge(p Purge, g Generation) (removed int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g = cmp.Or(g, m.latest+1)
	m.latest = max(m.latest, g)
	m.record.add(p, g)
	if now := time.Now(); p.Unsettled > 0 {
		m.unsettled.add(p.Tags, now, now.Add(p.Unsettled))
	}
	m.coverage.apply(p.Coverage, g)
	tagged := m.taggedLocked(p.Tags)
	for _, t := range tagged {
		t.purgeAt(g)
	}
	if !p.Hard || len(tagged) == 0 {
		return 0
	}
	for _, key := range m.variants.Keys() {
		list, _ := m.variants.Peek(key)
		left := slices.DeleteFunc(slices.Clone(list), func(e *Entry) bool { return e.hasAny(tagged) })
		if len(left) < len(list) {
			removed += len(list) - len(left)
			m.setLocked(key, left)
		}
	}
	return removed
}

// Count returns the number of entries with one of the tags.
func (m *Memory) Count(tags ...string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	tagged := m.taggedLocked(tags)
	switch len(tagged) {
	case 0:
		return 0
	case 1:
		return tagged[0].entries
	}
	for _, list := range m.variants.Values() {
		for _, e := range list {
			if e.hasAny(tagged) {
				n++
			}
		}
	}
	return n
}

// taggedLocked returns the tags of entries in memory among the names. mu must be held.
func (m *Memory) taggedLocked(names []string) (list []*tag) {
	for _, name := range names {
		if t := m.tags[name]; t != nil && !slices.Contains(list, t) {
			list = append(list, t)
		}
	}
	return list
}

// tagPurged reports whether a tag of an entry in memory was purged after the entry's fetch began.
func (e *Entry) tagPurged() bool {
	return slices.ContainsFunc(e.interned, func(t *tag) bool { return Generation(t.purged.Load()) > e.Since })
}

// hasAny reports whether an entry in memory has one of the tags.
func (e *Entry) hasAny(tags []*tag) bool {
	return slices.ContainsFunc(e.interned, func(t *tag) bool { return slices.Contains(tags, t) })
}

// internLocked returns a copy of the entry with the tags of memory. A tag that no other entry
// has takes its last purge from the record. mu must be held until the entry is stored.
func (m *Memory) internLocked(e *Entry) *Entry {
	stored := *e
	stored.interned = make([]*tag, 0, len(e.Tags))
	for _, name := range e.Tags {
		t := m.tags[name]
		if t == nil {
			t = &tag{name: name}
			t.purgeAt(m.record.last(name))
			m.tags[name] = t
		}
		if !slices.Contains(stored.interned, t) {
			stored.interned = append(stored.interned, t)
		}
	}
	return &stored
}

// retainLocked counts the entries of a list in their tags. mu must be held.
func (m *Memory) retainLocked(list []*Entry) {
	for _, e := range list {
		for _, t := range e.interned {
			t.entries++
		}
	}
}

// releaseLocked reverses retainLocked, and forgets tags without entries. mu must be held.
func (m *Memory) releaseLocked(list []*Entry) {
	for _, e := range list {
		for _, t := range e.interned {
			if t.entries--; t.entries == 0 {
				delete(m.tags, t.name)
			}
		}
	}
}
