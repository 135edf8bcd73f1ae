package proxy

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
)

// maxEntry is the largest body that is kept; a larger one is passed on.
const maxEntry = 8 << 20

// errPanic is what a reader gets of a body whose reading ahead panicked.
var errPanic = errors.New("the answer could not be read to its end")

// smallBody is read whole before its answer begins.
const smallBody = 16 << 10

// spool is a body that is read ahead of its reader, into memory, so that a slow
// client holds up nobody else who waits for the same answer. One that turns out too
// large to be kept, or for which there is no room, is read no further ahead.
type spool struct {
	body io.ReadCloser
	want int64 // Content-Length, -1 when there is none
	room *room // nil where it needs none
	// end is told once what was read, and whether that is all. The reader does not see
	// the end before.
	end func(body []byte, all bool)

	mu     sync.Mutex
	moved  sync.Cond
	data   []byte
	seen   int   // as far as the reader may read
	off    int   // as far as it has
	err    error // what came behind seen
	beyond bool  // too large: what comes behind seen is in body still
	closed bool  // by the reader
	ended  bool  // by what reads ahead
}

// room bounds the bytes that are held for readers beside the cache.
type room struct {
	most int64
	held atomic.Int64
}

// maxHeld is how many bytes are held for readers, in all, and heldShare of which part of
// GOMEMLIMIT.
const maxHeld, heldShare = 256 << 20, 8

// take takes room for so many bytes, and reports whether there is.
func (r *room) take(n int) bool {
	if r == nil || r.held.Add(int64(n)) <= r.most {
		return true
	}
	r.give(n)
	return false
}

func (r *room) give(n int) {
	if r != nil {
		r.held.Add(-int64(n))
	}
}

// spooled puts a spool in the place of an answer's body. ahead runs what reads a body
// that is not small, into the room that there is for such. An error is that of a small
// body that breaks off, of which nothing has been passed on.
func spooled(resp *http.Response, r *room, ahead func(*spool), end func(body []byte, all bool)) error {
	s := &spool{body: resp.Body, want: resp.ContentLength, end: end}
	s.moved.L = &s.mu
	resp.Body = s
	if 0 <= s.want && s.want <= smallBody {
		s.fill()
		if errors.Is(s.err, io.EOF) {
			return nil
		}
		return s.err
	}
	s.room = r
	ahead(s)
	return nil
}

// fill reads the body to its end, or to where it is too large, or there is no room.
func (s *spool) fill() {
	size := int64(copyBuffer)
	if 0 <= s.want && s.want < size {
		size = s.want + 1
	}
	room := make([]byte, size)
	var err error
	for beyond := false; err == nil && !beyond; {
		var n int
		n, err = s.body.Read(room)
		beyond = s.took(room[:n], err)
	}
	if err != nil {
		_ = s.body.Close() // there is no more in it
	}
	s.end(s.data, err == io.EOF && (s.want < 0 || int64(len(s.data)) == s.want))
	s.stop(err)
}

// took takes in what was read, and reports whether it is too much. The last byte of
// a body whose length is known is held back: with it the reader sees the end.
func (s *spool) took(p []byte, err error) (beyond bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.data = append(s.data, p...)
	enough := s.room.take(len(p))
	if !enough {
		s.room.give(len(s.data) - len(p))
		s.room = nil
	}
	if err == nil && int64(len(s.data)) != s.want {
		s.seen = len(s.data)
		s.moved.Signal()
	}
	return len(s.data) > maxEntry || !enough
}

// stop lets the reader see the end, or go on with the body itself.
func (s *spool) stop(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen, s.err, s.beyond, s.ended = len(s.data), err, err == nil, true
	s.moved.Signal()
	if s.beyond && s.closed {
		_ = s.body.Close() // nobody reads the rest
	}
	s.leave()
}

// leave gives back the room once nobody reads any more; the caller holds mu.
func (s *spool) leave() {
	if s.ended && s.closed {
		s.room.give(len(s.data))
		s.room, s.data, s.seen, s.off = nil, nil, 0, 0
	}
}

// Read waits for what is not there yet.
func (s *spool) Read(p []byte) (int, error) {
	s.mu.Lock()
	for s.off == s.seen && s.err == nil && !s.beyond {
		s.moved.Wait()
	}
	ahead, err := s.data[s.off:s.seen], s.err
	if len(ahead) == 0 && s.beyond {
		s.room.give(len(s.data))
		s.room, s.data, s.seen, s.off = nil, nil, 0, 0
		s.mu.Unlock()
		return s.body.Read(p)
	}
	n := copy(p, ahead)
	s.off += n
	s.mu.Unlock()
	if n > 0 || len(p) == 0 {
		return n, nil
	}
	return 0, err
}

// Close ends the reading of what is too large. What is not is read to its end as
// long as somebody waits for it.
func (s *spool) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	beyond := s.beyond && !s.closed
	s.closed = true
	s.leave()
	if beyond {
		return s.body.Close()
	}
	return nil
}
