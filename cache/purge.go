package cache

import (
	"cmp"
	"maps"
	"slices"
	"sync"
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
	// Coverage is set for the purge of a webhook event.
	Coverage *Coverage `json:"coverage,omitempty"`
}

// maxPurged bounds the recorded tags.
const maxPurged = 1 << 17

// purges records the generation of the last purge of each tag. Above maxPurged tags, record deletes
// the older half, and every entry from before these purges counts as purged. This costs revalidations
// only.
type purges struct {
	mu     sync.RWMutex // guards the fields below
	latest Generation   // of all purges
	floor  Generation   // entries of earlier generations count as purged
	last   map[string]Generation
	hard   map[string]Generation // hard purges only
}

// Generation returns the current purge generation. Read it before a fetch begins, and store it in
// [Entry.Since].
func (p *purges) Generation() Generation {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.latest
}

// record records a purge at a generation of the shared store, or at the next generation if g is 0.
func (p *purges) record(purge Purge, g Generation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g = cmp.Or(g, p.latest+1)
	if p.last == nil {
		p.last, p.hard = map[string]Generation{}, map[string]Generation{}
	}
	p.latest = max(p.latest, g)
	for _, t := range purge.Tags {
		p.last[t] = max(p.last[t], g)
		if purge.Hard {
			p.hard[t] = max(p.hard[t], g)
		}
	}
	if len(p.last) > maxPurged {
		all := slices.Sorted(maps.Values(p.last))
		p.floor = max(p.floor, all[len(all)/2])
		old := func(_ string, g Generation) bool { return g <= p.floor }
		maps.DeleteFunc(p.last, old)
		maps.DeleteFunc(p.hard, old)
	}
}

// PurgeUntil makes every entry stale whose fetch began before g. A shared tier calls PurgeUntil after
// purges were lost.
func (p *purges) PurgeUntil(g Generation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.floor, p.latest = max(p.floor, g), max(p.latest, g)
}

// purgedHard reports whether the record has a hard purge of one of the tags after since.
func (p *purges) purgedHard(tags []string, since Generation) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return anyAfter(p.hard, tags, since)
}

// Purged reports whether one of the tags was purged after since.
func (p *purges) Purged(tags []string, since Generation) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return since < p.latest && (since < p.floor || anyAfter(p.last, tags, since))
}

func anyAfter(purged map[string]Generation, tags []string, since Generation) bool {
	return slices.ContainsFunc(tags, func(t string) bool { return purged[t] > since })
}
