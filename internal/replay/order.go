package replay

import (
	"cmp"
	"container/heap"
	"iter"
	"time"
)

// Access logs are written at the end of requests, so a line may be later than the lines of requests that started later. A
// line moves by at most reorderTime and reorderLines.
const (
	reorderTime  = time.Minute
	reorderLines = 1 << 16
)

// Ordered returns the requests of all logs in the order of their start. The first error is the last element.
func Ordered(logs ...*Log) iter.Seq2[Request, error] {
	return func(yield func(Request, error) bool) {
		var sources sources
		for _, l := range logs {
			next, stop := iter.Pull2(reordered(l.Requests()))
			defer stop()
			if r, err, ok := next(); ok {
				sources = append(sources, source{r, err, len(sources), next})
			}
		}
		heap.Init(&sources)
		for len(sources) > 0 {
			s := &sources[0]
			if !yield(s.request, s.err) || s.err != nil {
				return
			}
			var ok bool
			if s.request, s.err, ok = s.next(); !ok {
				heap.Pop(&sources)
				continue
			}
			heap.Fix(&sources, 0)
		}
	}
}

// reordered returns requests in the order of their start.
func reordered(requests iter.Seq2[Request, error]) iter.Seq2[Request, error] {
	return func(yield func(Request, error) bool) {
		var ahead sources
		read := 0
		for r, err := range requests {
			if err != nil {
				yield(r, err)
				return
			}
			read++
			heap.Push(&ahead, source{request: r, number: read})
			for len(ahead) > reorderLines || r.Start.Sub(ahead[0].request.Start) > reorderTime {
				if !yield(heap.Pop(&ahead).(source).request, nil) {
					return
				}
			}
		}
		for len(ahead) > 0 {
			if !yield(heap.Pop(&ahead).(source).request, nil) {
				return
			}
		}
	}
}

// source is a request, and the rest of its log.
type source struct {
	request Request
	err     error
	number  int // orders requests with the same start
	next    func() (Request, error, bool)
}

// sources is a heap of sources. Errors come first.
type sources []source

func (s sources) Len() int { return len(s) }

func (s sources) Less(i, j int) bool {
	if failed := s[i].err != nil; failed != (s[j].err != nil) {
		return failed
	}
	return cmp.Or(s[i].request.Start.Compare(s[j].request.Start), cmp.Compare(s[i].number, s[j].number)) < 0
}

func (s sources) Swap(i, j int) { s[i], s[j] = s[j], s[i] }

// Push implements [heap.Interface].
func (s *sources) Push(x any) { *s = append(*s, x.(source)) }

// Pop implements [heap.Interface].
func (s *sources) Pop() any {
	old := *s
	last := old[len(old)-1]
	*s = old[:len(old)-1]
	return last
}
