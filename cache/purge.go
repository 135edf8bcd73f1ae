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
// If replicas share a store, the store assigns generations by its time: later purges have later
// generations on every replica.
type Generation uint64

// Purge makes entries with one of the tags stale. A hard purge also removes them.
type Purge struct {
	Tags []string `json:"tags"`
	Hard bool     `json:"hard,omitempty"`
}

// maxPurged bounds the purged tags that are remembered.
const maxPurged = 16384

// purges remembers when each tag was last purged. At the bound it forgets the older half, and treats
// every entry of that time as purged. That costs revalidations only.
type purges struct {
	mu    sync.RWMutex
	now   Generation
	floor Generation // entries of earlier generations count as purged
	last  map[string]Generation
	hard  map[string]Generation // hard purges only
}

// Generation returns the current purge generation. Read it before a fetch begins, and store it in
// [Entry.Since].
func (p *purges) Generation() Generation {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.now
}

// record records a purge at a generation of the shared store, or at the next generation if g is 0.
func (p *purges) record(purge Purge, g Generation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g = cmp.Or(g, p.now+1)
	if p.last == nil {
		p.last, p.hard = map[string]Generation{}, map[string]Generation{}
	}
	p.now = max(p.now, g)
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

// PurgeUntil makes everything stale whose fetch began before g. It is for a shared tier that has lost
// its record of purges.
func (p *purges) PurgeUntil(g Generation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.floor, p.now = max(p.floor, g), max(p.now, g)
}

// removed reports whether one of the tags was purged hard after since.
func (p *purges) removed(tags []string, since Generation) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return anyAfter(p.hard, tags, since)
}

// Purged reports whether one of the tags was purged after since.
func (p *purges) Purged(tags []string, since Generation) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return since < p.now && (since < p.floor || anyAfter(p.last, tags, since))
}

func anyAfter(purged map[string]Generation, tags []string, since Generation) bool {
	return slices.ContainsFunc(tags, func(t string) bool { return purged[t] > since })
}
