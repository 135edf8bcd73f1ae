package history

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirgate/weir/proxy/record"
)

const (
	recentSize = 256 // latest requests
	kindSize   = 128 // latest refusals, and latest errors
	slowSize   = 32  // slowest requests of the last hour
	// minSlow is the shortest duration of a request that is kept because it was slow.
	minSlow = 500 * time.Millisecond
)

// recent holds the requests that operators look for: the latest of all, of those that were refused and of those that failed,
// and the slowest. A rare kind is not displaced by many requests of another kind.
type recent struct {
	number  uint64               // requests since the start of the process
	latest  [recentSize]numbered // a request is at its number modulo recentSize
	refused []numbered
	failed  []numbered
	slow    []numbered // by duration, the longest first
}

// numbered is a record with its place in the order of the requests.
type numbered struct {
	number uint64
	record *record.Record
}

// add adds a finished request.
func (l *recent) add(r *record.Record, result Result, now time.Time) {
	n := numbered{l.number, r}
	l.number++
	l.latest[n.number%recentSize] = n
	switch result {
	case Refused, Limited:
		keep(&l.refused, n, kindSize)
	case Failed:
		keep(&l.failed, n, kindSize)
	}
	if r.Elapsed < minSlow || r.Background {
		return
	}
	l.slow = slices.DeleteFunc(l.slow, func(s numbered) bool { return now.Sub(s.record.Start) > time.Hour })
	i, _ := slices.BinarySearchFunc(l.slow, r.Elapsed, func(s numbered, d time.Duration) int { return cmp.Compare(d, s.record.Elapsed) })
	l.slow = slices.Insert(l.slow, i, n)
	l.slow = l.slow[:min(len(l.slow), slowSize)]
}

// keep adds a request to a list of bounded length, and drops the oldest.
func keep(list *[]numbered, n numbered, most int) {
	if len(*list) == most {
		*list = slices.Delete(*list, 0, 1)
	}
	*list = append(*list, n)
}

// records returns the requests, newest first.
func (l *recent) records() []*record.Record {
	latest := l.latest[:min(l.number, recentSize)]
	all := slices.Concat(latest, l.refused, l.failed, l.slow)
	slices.SortFunc(all, func(a, b numbered) int { return cmp.Compare(b.number, a.number) })
	all = slices.CompactFunc(all, func(a, b numbered) bool { return a.number == b.number })
	records := make([]*record.Record, len(all))
	for i, n := range all {
		records[i] = n.record
	}
	return records
}
