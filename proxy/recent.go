package proxy

import (
	"sync"

	"github.com/weirgate/weir/policy"
)

// recentSize is how many requests are remembered for people to look at.
const recentSize = 256

// LastRequests is a ring of the last requests. Its zero value has none.
type LastRequests struct {
	mu   sync.Mutex
	ring [recentSize]Record
	next int
	full bool
}

func (r *LastRequests) add(record Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ring[r.next] = record
	r.next = (r.next + 1) % recentSize
	r.full = r.full || r.next == 0
}

// Recent returns the last requests, the newest first.
func (g *Gateway) Recent() []Record {
	r := g.last
	r.mu.Lock()
	defer r.mu.Unlock()
	size := r.next
	if r.full {
		size = recentSize
	}
	list := make([]Record, size)
	for i := range list {
		list[i] = r.ring[(r.next-1-i+recentSize)%recentSize]
	}
	return list
}

// maxShapes bounds how many shapes of unknown routes become labels.
const maxShapes = 200

// otherShape is the label of all the rest.
const otherShape = "_OTHER"

// shapes bounds the labels that unknown routes can make.
type shapes struct {
	mu   sync.RWMutex
	seen map[string]bool
}

// label is the operation's route as it may stand in logs and metrics.
func (s *shapes) label(op *policy.Operation) string {
	if op.Known() {
		return op.Path
	}
	s.mu.RLock()
	seen, n := s.seen[op.Path], len(s.seen)
	s.mu.RUnlock()
	if seen {
		return op.Path
	}
	if n >= maxShapes {
		return otherShape
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = map[string]bool{}
	}
	if len(s.seen) < maxShapes {
		s.seen[op.Path] = true
	}
	if !s.seen[op.Path] {
		return otherShape
	}
	return op.Path
}
