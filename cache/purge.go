package cache

import "sync"

// Generation orders purges: an entry that began to be fetched at generation g
// is stale once one of its tags is purged at a later one. So a fetch in flight
// cannot bring purged data back.
type Generation uint64

// maxPurged bounds how many purged tags are remembered one by one.
const maxPurged = 16384

// purges remembers when each tag was last purged. When it would remember too
// many, it forgets them all and treats everything older as purged, which is
// only ever more careful.
type purges struct {
	mu    sync.RWMutex
	now   Generation
	floor Generation
	last  map[string]Generation
}

func (p *purges) current() Generation {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.now
}

func (p *purges) purge(tags []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now++
	if len(p.last)+len(tags) > maxPurged {
		p.last, p.floor = nil, p.now
		return
	}
	if p.last == nil {
		p.last = map[string]Generation{}
	}
	for _, tag := range tags {
		p.last[tag] = p.now
	}
}

// purged reports whether one of the tags was purged after since.
func (p *purges) purged(tags []string, since Generation) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if since < p.floor {
		return true
	}
	for _, tag := range tags {
		if p.last[tag] > since {
			return true
		}
	}
	return false
}
