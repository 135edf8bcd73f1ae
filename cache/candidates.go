package cache

import (
	"context"
	"net/http"
	"slices"
)

const (
	// maxCandidates bounds the keys that are recorded for one base key.
	maxCandidates = 8
	// maxSharedCandidates bounds the keys that one request reads from the shared tier.
	maxSharedCandidates = 2
	// Lists of candidates may use 1/candidatesPart of the memory budget.
	candidatesPart = 16
	// candidatesSize is the approximate size of one list in bytes.
	candidatesSize = 256
)

// addCandidate records that a response to the question with this base key is stored under key. The
// response may be evicted before its record.
func (m *Memory) addCandidate(base, key Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	present, _ := m.candidates.Get(base)
	list := append([]Key{key}, slices.DeleteFunc(slices.Clone(present), func(k Key) bool { return k == key })...)
	m.candidates.Add(base, list[:min(len(list), maxCandidates)])
}

// candidateKeys returns the recorded keys, newest first.
func (m *Memory) candidateKeys(base Key) []Key {
	m.mu.Lock()
	defer m.mu.Unlock()
	list, _ := m.candidates.Get(base)
	return list
}

// Candidates returns stored entries that the upstream may select by a 304 with their ETag. The
// entries in own are variants under the key itself (RFC 9111 section 4.3.1). The entries in
// otherCallers were fetched by other callers for the same question. This caller may get such an entry
// only if a 304 proves its access. Purged entries are included, because the 304 revalidates them. The
// newest entries come first.
func (s *Store) Candidates(ctx context.Context, key, base Key) (own, otherCallers []*Entry) {
	own = s.get(key)
	if base == (Key{}) {
		return own, nil
	}
	add := func(list []*Entry) {
		for _, e := range list {
			if e.BaseKey == base && !s.purgedHard(e.Tags, e.Since) {
				otherCallers = append(otherCallers, e)
			}
		}
	}
	for _, k := range s.candidateKeys(base) {
		if k != key {
			add(s.get(k))
		}
	}
	if len(otherCallers) == 0 && s.shared != nil {
		n := 0
		for _, k := range s.shared.CandidateKeys(ctx, base) {
			if k != key && n < maxSharedCandidates {
				n++
				add(s.shared.Get(ctx, k))
			}
		}
	}
	slices.SortStableFunc(otherCallers, func(a, b *Entry) int { return b.Answered.Compare(a.Answered) })
	return own, otherCallers
}

// descriptive lists the fields that describe a response and its storage, but not its caller.
var descriptive = []string{
	"Cache-Control", "Cdn-Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language",
	"Content-Location", "Content-Range", "Content-Type", "Date", "Etag", "Expires", "Last-Modified", "Surrogate-Control", "Vary",
	"Access-Control-Expose-Headers", "Content-Security-Policy", "Deprecation", "Referrer-Policy", "Sunset",
	"X-Content-Type-Options", "X-Frame-Options",
}

// ForCaller returns a copy of the entry for another caller that proved its access by a 304 with
// this ETag. The copy has only descriptive fields and the fields in also. [Entry.Validated] adds the
// fields of the 304.
func (e *Entry) ForCaller(etag string, also []string) *Entry {
	theirs := *e
	theirs.Header = withoutCaller(e.Header, also)
	theirs.Header.Set("Etag", etag)
	return &theirs
}

// WithoutCaller returns the part of the response that all callers may share: the descriptive fields,
// Age, Link, Location, and the fields in also.
func (r Response) WithoutCaller(also []string) Response {
	r.Header = withoutCaller(r.Header, append([]string{"Age", "Link", "Location"}, also...))
	return r
}

func withoutCaller(h http.Header, also []string) http.Header {
	kept, connection := http.Header{}, ConnectionFields(h)
	for _, name := range slices.Concat(descriptive, also) {
		name = http.CanonicalHeaderKey(name)
		if values := h[name]; len(values) > 0 && !connection[name] {
			kept[name] = values
		}
	}
	if h.Get("Access-Control-Allow-Origin") == "*" { // another value may name the caller's site
		kept.Set("Access-Control-Allow-Origin", "*")
	}
	return kept
}
