package cache

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"
)

// tag is what an entry can be purged by: a hash, for as texts they were a twentieth of what an
// answer of 2 KB takes. Two texts of one hash are purged together, which costs requests only.
type tag uint32

func newTag(text string) tag {
	sum := sha256.Sum256([]byte(text))
	return max(1, tag(binary.BigEndian.Uint32(sum[:])))
}

// tags are those of an entry, and zeros behind them; a list of its own would be an allocation
// more of each, and one more look into cold memory for each hit.
type tags [maxTags]tag

// maxTags is how many tags an entry can have.
const maxTags = 10

// newTags returns the tags of these texts. It panics at more than maxTags.
func newTags(texts []string) (t tags) {
	for i, text := range texts {
		t[i] = newTag(text)
	}
	return t
}

// Tag says what the entry can be purged by, before it is kept: by ten tags at most.
func (e *Entry) Tag(texts ...string) { e.tags = newTags(texts) }

// hasAny reports whether one of them is among others.
func (t tags) hasAny(of []tag) bool {
	return slices.ContainsFunc(t[:], func(one tag) bool { return one != 0 && slices.Contains(of, one) })
}

// tagsOf are those of a purge, however many.
func tagsOf(texts []string) []tag {
	list := make([]tag, len(texts))
	for i, text := range texts {
		list[i] = newTag(text)
	}
	return list
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
	last  map[tag]Generation
	hard  map[tag]Generation // of those that drop what they concern
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
		p.last, p.hard = map[tag]Generation{}, map[tag]Generation{}
	}
	for _, t := range tagsOf(purge.Tags) {
		p.last[t] = max(p.last[t], g)
		if purge.Hard {
			p.hard[t] = max(p.hard[t], g)
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
func (p *purges) dropped(t []tag, since Generation) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return after(p.hard, t, since)
}

// purged reports whether one of the tags was purged after since.
func (p *purges) purged(t []tag, since Generation) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return since < p.now && (since < p.floor || after(p.last, t, since))
}

func after(purged map[tag]Generation, tags []tag, since Generation) bool {
	return slices.ContainsFunc(tags, func(t tag) bool { return purged[t] > since })
}
