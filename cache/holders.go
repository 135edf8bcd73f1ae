package cache

import (
	"context"
	"net/http"
	"slices"

	"github.com/maypok86/otter/v2"
)

const (
	// maxHolders bounds the callers whose answers to one question are remembered.
	maxHolders = 8
	// maxAsked bounds those whose answers the shared tier is asked for.
	maxAsked = 2
	// holdersPart is which part of the memory tier says who holds what.
	holdersPart = 32
	// holderOverhead is about what one question costs beside its keys.
	holderOverhead = 96
)

// holders says of a question, whoever asks it, under which keys answers to it are
// kept, the newest first. It is a hint: what it names may be gone.
type holders struct{ keys *otter.Cache[Key, []Key] }

func newHolders(size int64) holders {
	return holders{otter.Must(&otter.Options[Key, []Key]{
		MaximumWeight:    uint64(max(size/holdersPart, holderOverhead+maxHolders*int64(len(Key{})))),
		Weigher:          func(_ Key, list []Key) uint32 { return uint32(holderOverhead + len(list)*len(Key{})) },
		ExpiryCalculator: otter.ExpiryWriting[Key, []Key](2 * retention),
	})}
}

func (h holders) note(about, key Key) {
	h.keys.Compute(about, func(old []Key, _ bool) ([]Key, otter.ComputeOp) {
		list := append(make([]Key, 0, len(old)+1), key)
		for _, k := range old {
			if k != key && len(list) < maxHolders {
				list = append(list, k)
			}
		}
		return list, otter.WriteOp
	})
}

func (h holders) of(about Key) []Key {
	list, _ := h.keys.GetIfPresent(about)
	return list
}

// Nominees returns entries that no cache may choose for a request, but the upstream
// may, by a 304 that tells their ETag: own are kept under the key itself, apart by
// Vary (RFC 9111 section 4.3.1); others were fetched for other callers who asked the
// same, and reach this one only with proof that it may see them. What is purged may
// be among them: the upstream says that it is right. The newest come first.
func (s *Store) Nominees(ctx context.Context, key, about Key) (own, others []*Entry) {
	own, _ = s.entries.GetIfPresent(key)
	if about == (Key{}) {
		return own, nil
	}
	take := func(all []*Entry) {
		for _, e := range all {
			if e.About == about && !s.purges.dropped(e.tags, e.Since) {
				others = append(others, e)
			}
		}
	}
	for _, k := range s.holders.of(about) {
		if k != key {
			all, _ := s.entries.GetIfPresent(k)
			take(all)
		}
	}
	if len(others) == 0 && s.shared != nil {
		held := slices.DeleteFunc(s.shared.Holders(ctx, about), func(k Key) bool { return k == key })
		for _, k := range held[:min(maxAsked, len(held))] {
			take(s.shared.Get(ctx, k))
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

// Foreign returns the entry as another caller gets it that has proved by a 304 to a
// request with this ETag that it may: without the fields that may speak of the first,
// but with these. Those that the 304 brings are added by [Entry.Validated].
func (e *Entry) Foreign(etag string, describe []string) *Entry {
	theirs := *e
	header := described(e.Header(), describe)
	header.Set("Etag", etag)
	theirs.fields = newFields(header)
	return &theirs
}

// ForAll returns the answer as it is kept where all callers share it: without the
// fields that may speak of the one who fetched it, but with these.
func (a Answer) ForAll(describe []string) Answer {
	a.Header = described(a.Header, append([]string{"Age", "Link", "Location"}, describe...))
	return a
}

func described(h http.Header, also []string) http.Header {
	kept, named := http.Header{}, Named(h)
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
