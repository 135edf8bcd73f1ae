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
	// Unsettled is the time for which the upstream may still return the state before the change. If the result of a write
	// is unknown, the change may still happen within that time. A response whose fetch begins within that time is suspect
	// ([Entry.Suspect]).
	Unsettled time.Duration `json:"unsettled,omitempty"`
	// Cause is the cause of suspect responses.
	Cause Cause `json:"cause,omitempty"`
	// Coverage is set for the purge of a webhook event.
	Coverage *Coverage `json:"coverage,omitempty"`
	// Upstream names the API whose responses the tags name, for gateways of several APIs on one shared tier. Empty means any.
	Upstream string `json:"upstream,omitempty"`
}

// Cause is the kind of change that makes a response suspect.
type Cause string

// Causes of suspect responses.
const (
	CauseWrite       Cause = "write"
	CauseEvent       Cause = "event"
	CauseFailedWrite Cause = "failed-write" // showed that a stored response is outdated
	// CauseLag is a response that the upstream returned after a newer one.
	CauseLag Cause = "lag"
)

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

// unsettled contains the recent changes that the upstream may not show yet, by tag. At maxUnsettled tags, a further change
// concerns all tags.
type unsettled struct {
	changes map[string]change
	all     change    // of all tags
	last    time.Time // latest end
}

// change is a change that the upstream may not show until a time.
type change struct {
	until time.Time
	cause Cause
}

// or returns the change that is shown later.
func (c change) or(other change) change {
	if other.until.After(c.until) {
		return other
	}
	return c
}

// maxUnsettled bounds the tags of recent changes.
const maxUnsettled = 1 << 16

// add records a purge. Without tags, the change may concern all tags.
func (u *unsettled) add(p Purge, now time.Time) {
	if p.Unsettled <= 0 {
		return
	}
	c := change{now.Add(p.Unsettled), p.Cause}
	if now.After(u.last) || u.changes == nil {
		u.changes = map[string]change{}
	}
	if c.until.After(u.last) {
		u.last = c.until
	}
	if len(u.changes)+len(p.Tags) > maxUnsettled && !now.Before(u.all.until) { // the condition about all bounds the scans of a full map
		maps.DeleteFunc(u.changes, func(_ string, c change) bool { return !now.Before(c.until) })
	}
	if len(p.Tags) == 0 || len(u.changes)+len(p.Tags) > maxUnsettled {
		u.all = u.all.or(c)
		return
	}
	for _, t := range p.Tags {
		u.changes[t] = u.changes[t].or(c)
	}
}

// of returns the change of one of the tags that is shown last.
func (u *unsettled) of(tags []string) change {
	c := u.all
	for _, t := range tags {
		c = c.or(u.changes[t])
	}
	return c
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

// Fetch describes the start of a fetch. [Entry.Began] records it in the entry.
type Fetch struct {
	// Since is the purge generation.
	Since Generation
	// Suspect is the cause of a change of one of the tags that the upstream may not show yet ([Purge.Unsettled]), or empty.
	Suspect Cause
}

// BeginFetch returns the start of a fetch that begins now.
func (m *Memory) BeginFetch(tags func() []string) Fetch {
	m.mu.Lock()
	f, now := Fetch{Since: m.latest}, time.Now()
	settled := !now.Before(m.unsettled.last)
	m.mu.Unlock()
	if settled {
		return f
	}
	names := tags()
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.unsettled.of(names); now.Before(c.until) {
		f.Suspect = c.cause
	}
	return f
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

// Outdated reports whether an entry must be revalidated: it is suspect, or one of its tags was purged since its fetch began.
func (m *Memory) Outdated(e *Entry) bool { return e.Suspect != "" || m.Purged(e.Tags, e.Since) }

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
	m.unsettled.add(p, time.Now())
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
