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
		var sources queue[source]
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
		var ahead queue[source]
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

// Before orders errors first.
func (s source) Before(other source) bool {
	if failed := s.err != nil; failed != (other.err != nil) {
		return failed
	}
	return cmp.Or(s.request.Start.Compare(other.request.Start), cmp.Compare(s.number, other.number)) < 0
}

// queue implements [heap.Interface].
type queue[T interface{ Before(T) bool }] []T

func (q queue[T]) Len() int { return len(q) }

func (q queue[T]) Less(i, j int) bool { return q[i].Before(q[j]) }

func (q queue[T]) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

func (q *queue[T]) Push(x any) { *q = append(*q, x.(T)) }

func (q *queue[T]) Pop() any {
	old := *q
	last := old[len(old)-1]
	*q = old[:len(old)-1]
	return last
}
