package cache

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// maxHolders bounds the callers whose answers to one question are remembered.
	maxHolders = 8
	// maxAsked bounds those whose answers the shared tier is asked for.
	maxAsked = 2
	// holdersPart is which part of the memory tier says who holds what.
	holdersPart = 64
	// holderSize is about what one answer costs there, in bytes.
	holderSize = 32
)

// holders says of a question, whoever asks it, under which keys answers to it are
// kept, the newest first. It is a hint: what it names may be gone, and where it would grow
// too large, or has not been asked to remember something for a day, it forgets the older half.
//
// There is no pointer in it, for the collector would follow it at each turn: with a list for
// each question it took a twentieth of what answers of 2 KB take.
type holders struct {
	mu             sync.Mutex
	recent, former map[holder]short // of keys
	most           int              // in each of the two
	since          time.Time        // when recent began
}

// holder is a place in the list of a question, of which the rest says which it is.
type holder uint64

func holderOf(about Key, place int) holder { return holder(about.short())*maxHolders + holder(place) }

func newHolders(size int64) holders {
	return holders{recent: map[holder]short{}, most: max(maxHolders, int(size/holdersPart/holderSize/2))}
}

// note puts a key at the front of a question's list.
func (h *holders) note(about, key Key, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := h.listLocked(about)
	if len(h.recent)+len(list) >= h.most || now.Sub(h.since) > retention {
		h.former, h.recent, h.since = h.recent, map[holder]short{}, now
	}
	newest := key.short()
	h.recent[holderOf(about, 0)] = newest
	place := 1
	for _, s := range list {
		if s != newest && place < maxHolders {
			h.recent[holderOf(about, place)] = s
			place++
		}
	}
}

// of returns a question's list.
func (h *holders) of(about Key) []short {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.listLocked(about)
}

func (h *holders) listLocked(about Key) (list []short) {
	for _, half := range []map[holder]short{h.recent, h.former} {
		for place := range maxHolders {
			s, ok := half[holderOf(about, place)]
			if !ok {
				break
			}
			list = append(list, s)
		}
		if len(list) > 0 {
			break
		}
	}
	return list
}

// Candidates returns entries that no cache may choose for a request, but the upstream
// may, by a 304 that tells their ETag: own are kept under the key itself, apart by
// Vary (RFC 9111 section 4.3.1); others were fetched for other callers who asked the
// same, and reach this one only with proof that it may see them. What is purged may
// be among them: the upstream says that it is right. The newest come first.
func (s *Store) Candidates(ctx context.Context, key, about Key) (own, others []*Entry) {
	own = s.at(key).list()
	if about == (Key{}) {
		return own, nil
	}
	take := func(all []*Entry) {
		for _, e := range all {
			if e.BaseKey == about && !s.purges.dropped(e.tags[:], e.Since) {
				others = append(others, e)
			}
		}
	}
	for _, k := range s.holders.of(about) {
		if h := s.find(k); h != nil && h.key != key {
			h.use()
			take(h.list())
		}
	}
	if len(others) == 0 && s.shared != nil {
		asked := 0
		for _, k := range s.shared.CandidateKeys(ctx, about) {
			if k != key && asked < maxAsked {
				asked++
				take(s.shared.Get(ctx, k))
			}
		}
	}
	slices.SortStableFunc(others, func(a, b *Entry) int { return b.Answered.Compare(a.Answered) })
	return own, others
}

// describing are the fields that describe an answer, and how it may be kept, not the
// caller who got it.
var describing = []string{
	"Cache-Control", "Cdn-Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Location", "Content-Type",
	"Date", "Etag", "Expires", "Last-Modified", "Surrogate-Control", "Vary",
	"Access-Control-Expose-Headers", "Content-Security-Policy", "Deprecation", "Referrer-Policy", "Sunset", "X-Content-Type-Options", "X-Frame-Options",
}

// ForCaller returns the entry as another caller gets it that has proved by a 304 to a
// request with this ETag that it may: without the fields that may speak of the first,
// but with these. Those that the 304 brings are added by [Entry.Validated].
func (e *Entry) ForCaller(etag string, describe []string) *Entry {
	theirs := *e
	header := described(e.Header(), describe)
	header.Set("Etag", etag)
	theirs.fields = newFields(header)
	return &theirs
}

// WithoutCaller returns the answer as it is kept where all callers share it: without the
// fields that may speak of the one who fetched it, but with these.
func (a Response) WithoutCaller(describe []string) Response {
	a.Header = described(a.Header, append([]string{"Age", "Link", "Location"}, describe...))
	return a
}

func described(h http.Header, also []string) http.Header {
	kept, named := http.Header{}, ConnectionFields(h)
	for _, name := range slices.Concat(describing, also) {
		name = http.CanonicalHeaderKey(name)
		if values := h[name]; len(values) > 0 && !named[name] {
			kept[name] = values
		}
	}
	if origin := h.Get("Access-Control-Allow-Origin"); origin == "*" { // else it is that of one caller
		kept.Set("Access-Control-Allow-Origin", origin)
	}
	return kept
}
