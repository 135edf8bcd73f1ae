package cache

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"
)

// tags are what an entry can be purged by: hashes, for as texts they were a twentieth of
// what an answer of 2 KB takes. Two texts of one hash would be purged together, which costs
// requests only.
type tags []uint64

// newTags returns the tags of these texts.
func newTags(texts []string) tags {
	t := make(tags, len(texts))
	for i, text := range texts {
		sum := sha256.Sum256([]byte(text))
		t[i] = binary.BigEndian.Uint64(sum[:])
	}
	return t
}

// Tag says what the entry can be purged by, before it is kept.
func (e *Entry) Tag(texts ...string) { e.tags = newTags(texts) }

func (t tags) hasAny(of tags) bool {
	return slices.ContainsFunc(t, func(tag uint64) bool { return slices.Contains(of, tag) })
}

// Generation orders purges: an entry that began to be fetched at generation g
// is stale once one of its tags is purged at a later one. So a fetch in flight
// cannot bring purged data back.
//
// Where replicas share a store it is the store that counts, by its time: later
// purges have later generations, whoever made them.
type Generation uint64

// Purge makes entries with one of the tags stale or, hard, forgotten.
type Purge struct {
	Tags []string `json:"tags"`
	Hard bool     `json:"hard,omitempty"`
}

// maxPurged bounds how many purged tags are remembered one by one.
const maxPurged = 16384

// purges remembers when each tag was last purged. When it would remember too
// many, it forgets them all and treats everything older as purged, which is
// only ever more careful.
type purges struct {
	mu    sync.RWMutex
	now   Generation
	floor Generation
	last  map[uint64]Generation
	hard  map[uint64]Generation // of those that drop what they concern
}

func (p *purges) current() Generation {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.now
}

// purge notes a purge by this process; at one that another has told of, under a
// generation of the store that they share.
func (p *purges) purge(purge Purge) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.note(purge, p.now+1)
}

func (p *purges) at(purge Purge, g Generation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.note(purge, g)
}

func (p *purges) note(purge Purge, g Generation) {
	p.now = max(p.now, g)
	if len(p.last)+len(purge.Tags) > maxPurged {
		p.last, p.hard, p.floor = nil, nil, p.now
		return
	}
	if p.last == nil {
		p.last, p.hard = map[uint64]Generation{}, map[uint64]Generation{}
	}
	for _, tag := range newTags(purge.Tags) {
		p.last[tag] = max(p.last[tag], g)
		if purge.Hard {
			p.hard[tag] = max(p.hard[tag], g)
		}
	}
}

// forgotten makes everything stale that was fetched until g: which purges there were
// nobody can tell any more.
func (p *purges) forgotten(g Generation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.floor, p.now = max(p.floor, g), max(p.now, g)
}

// dropped reports whether one of the tags was purged hard after since.
func (p *purges) dropped(t tags, since Generation) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, tag := range t {
		if p.hard[tag] > since {
			return true
		}
	}
	return false
}

// purged reports whether one of the tags was purged after since.
func (p *purges) purged(t tags, since Generation) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if since < p.floor {
		return true
	}
	for _, tag := range t {
		if p.last[tag] > since {
			return true
		}
	}
	return false
}
