package proxy

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/contentcoding"
	"github.com/weirgate/weir/proxy/coalesce"
)

const (
	// maxSpooled bounds the bytes in temporary files.
	maxSpooled = 1 << 30
	// largestShare is the part of the budget that one body may reserve, so that one slow client does not use all of it.
	// unknownShare is the part that a body of an unknown length reserves.
	largestShare, unknownShare = 2, 16
)

// errNotShared is the end of a body for a follower after the temporary file could not hold the rest.
var errNotShared = errors.New("the response is too large to be shared")

// bufferBudget bounds bytes that are held outside the cache.
type bufferBudget struct {
	limit int64
	used  atomic.Int64
}

// add counts n more bytes, and reports whether they are within the budget.
func (b *bufferBudget) add(n int64) bool { return b.used.Add(n) <= b.limit }

// reserve counts n more bytes if they are within the budget, and reports whether they are.
func (b *bufferBudget) reserve(n int64) bool {
	for {
		used := b.used.Load()
		if used+n > b.limit {
			return false
		}
		if b.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// buffer holds bytes within a budget.
type buffer struct {
	data   []byte
	budget *bufferBudget // nil without a bound, and after release
	held   int64         // bytes that the budget counts
}

// reserve counts the bytes of a body in advance, and reports whether the budget allows them. If not, nothing is reserved. A
// negative size has no effect.
func (b *buffer) reserve(size int64) bool {
	if size <= 0 {
		return true
	}
	if !b.budget.reserve(size) {
		return false
	}
	b.held, b.data = size, make([]byte, 0, size)
	return true
}

// append adds bytes and reports whether the budget allows more bytes. If the budget is exhausted, append releases the
// buffer from the budget.
func (b *buffer) append(p []byte) (more bool) {
	if need := len(b.data) + len(p); need > cap(b.data) { // append would leave five times as many bytes to the garbage collector
		b.data = append(make([]byte, 0, max(need, 2*cap(b.data))), b.data...)
	}
	b.data = append(b.data, p...)
	further := int64(len(b.data)) - b.held
	if b.budget == nil || further <= 0 {
		return true
	}
	if b.held += further; b.budget.add(further) {
		return true
	}
	b.release()
	return false
}

// release returns the memory to the budget.
func (b *buffer) release() {
	if b != nil && b.budget != nil {
		b.budget.used.Add(-b.held)
		b.budget, b.held = nil, 0
	}
}

// spool is a response body that is read ahead of its readers, so a slow reader does not delay the others. The bytes are in
// memory, up to maxEntry and the memory budget. Further bytes are written to a temporary file if other clients may read the
// body, too. Without a file, and after a failed write, the leader reads the rest directly from the upstream.
type spool struct {
	body   io.ReadCloser
	length int64 // Content-Length, or -1
	// complete is called once with the body, before a reader can read the end of the body. ok is false if the body is incomplete
	// or is not in memory.
	complete func(body []byte, ok bool)
	// share is called once after the bytes have moved to a file. If nil, other clients cannot read the body.
	share func()
	disk  *bufferBudget // of the file
	// outgrown is called before the readers of a file learn that the file cannot hold the rest.
	outgrown func()
	leader   *spoolReader

	mu       sync.Mutex
	changed  sync.Cond
	buffer   // the bytes after those in the file
	file     *os.File
	reserved int64 // bytes of the file that disk counts
	written  int64 // bytes in the file
	visible  int64 // bytes that readers may read
	err      error // returned after the visible bytes
	passing  bool  // after the visible bytes, the leader reads from body
	users    int   // open readers, and the call while it may open readers
	filled   bool  // fill has ended
}

// spoolReader reads a spool from its start.
type spoolReader struct {
	*spool
	off    int64
	closed bool
	leads  bool
	left   func() // called by Close
}

// newSpool returns a spool with its leader. The kept buffer may have a reservation.
func newSpool(resp *http.Response, kept *buffer, complete func(body []byte, ok bool)) *spool {
	s := &spool{body: resp.Body, length: resp.ContentLength, complete: complete, buffer: *kept, users: 1}
	s.changed.L = &s.mu
	s.leader = &spoolReader{spool: s, leads: true, left: func() {}}
	return s
}

// fill reads the body until it ends, or cannot be held any more.
func (s *spool) fill() {
	chunk := make([]byte, copyBuffer)
	var err error
	full := false
	for err == nil && !full {
		var n int
		n, err = s.body.Read(chunk)
		full = s.append(chunk[:n], err)
	}
	if err != nil {
		_ = s.body.Close() // the body has ended
	}
	whole := s.file == nil && !full && err == io.EOF && (s.length < 0 || int64(len(s.data)) == s.length)
	if full && s.file != nil {
		s.outgrown()
	}
	s.complete(s.data, whole)
	s.stop(err)
}

// append adds the bytes of one read, and reports whether the spool cannot hold more. The bytes of the last read stay invisible
// until stop, so that complete is called before a reader sees the end.
func (s *spool) append(p []byte, err error) (full bool) {
	s.mu.Lock()
	shared := false
	switch {
	case s.file != nil:
		full = !s.write(p)
	case !s.buffer.append(p) || len(s.data) > maxEntry:
		shared = s.share != nil && s.spill(s.length)
		full = !shared
	}
	if total := s.written + int64(len(s.data)); err == nil && total != s.length {
		s.visible = total
		s.changed.Broadcast()
	}
	s.mu.Unlock()
	if shared {
		s.share()
	}
	return full
}

// spill moves the bytes to a new temporary file, and reports whether the file holds them. The budget counts the size of the
// body from now on, so that only a body of an unknown length, which is negative, can exceed it. mu must be held.
func (s *spool) spill(size int64) bool {
	if size < 0 {
		size = s.disk.limit / unknownShare
	}
	if size > s.disk.limit/largestShare || !s.disk.reserve(size) {
		return false
	}
	file, err := os.CreateTemp("", "weir-body-")
	if err != nil {
		s.disk.used.Add(-size)
		return false
	}
	_ = os.Remove(file.Name()) // the file has no name from now on, unless the operating system keeps open files
	kept := s.buffer
	s.file, s.reserved, s.buffer = file, size, buffer{}
	if s.write(kept.data) {
		kept.release()
		return true
	}
	s.closeFile()
	s.buffer = kept
	return false
}

// write appends bytes to the file, and reports whether the file holds them. Otherwise they stay in memory. mu must be held.
func (s *spool) write(p []byte) bool {
	end := s.written + int64(len(p))
	further := max(0, end-s.reserved)
	ok := s.disk.reserve(further)
	if ok {
		s.reserved += further
		_, err := s.file.WriteAt(p, s.written)
		ok = err == nil
	}
	if !ok {
		s.data = append(s.data, p...)
		return false
	}
	s.written = end
	return true
}

// closeFile removes the file. mu must be held.
func (s *spool) closeFile() {
	if s.file != nil {
		_ = s.file.Close()
		_ = os.Remove(s.file.Name())
		s.disk.used.Add(-s.reserved)
		s.file, s.reserved, s.written = nil, 0, 0
	}
}

// stop makes all bytes visible, followed by the error or by the rest of the body.
func (s *spool) stop(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.visible, s.err, s.passing, s.filled = s.written+int64(len(s.data)), err, err == nil, true
	s.changed.Broadcast()
	if s.file != nil { // the rest of the reservation is not needed
		s.disk.used.Add(s.written - s.reserved)
		s.reserved = s.written
	}
	if s.passing && s.leader.closed {
		_ = s.body.Close() // the leader does not read the rest
	}
	s.freeUnused()
}

// freeUnused releases the bytes if no reader is left. mu must be held.
func (s *spool) freeUnused() {
	if s.users == 0 && s.filled {
		s.closeFile()
		s.release()
		s.data = nil
	}
}

// follow returns a reader for a follower of the call. left is called when the reader is closed.
func (s *spool) follow(left func()) io.ReadCloser {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users++
	return &spoolReader{spool: s, left: left}
}

// leave ends the use of the spool by a reader, or by the call.
func (s *spool) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users--
	s.freeUnused()
}

// Read blocks until bytes are visible.
func (r *spoolReader) Read(p []byte) (int, error) {
	s := r.spool
	s.mu.Lock()
	for r.off == s.visible && s.err == nil && !s.passing && !r.closed {
		s.changed.Wait()
	}
	switch {
	case r.closed:
		s.mu.Unlock()
		return 0, io.ErrClosedPipe
	case r.off < s.written:
		file, n := s.file, min(int64(len(p)), s.written-r.off, s.visible-r.off)
		s.mu.Unlock()
		read, err := file.ReadAt(p[:n], r.off)
		r.off += int64(read)
		return read, err
	case r.off < s.visible:
		n := copy(p, s.data[r.off-s.written:s.visible-s.written])
		r.off += int64(n)
		s.mu.Unlock()
		return n, nil
	case s.err != nil:
		s.mu.Unlock()
		return 0, s.err
	case !r.leads:
		s.mu.Unlock()
		return 0, errNotShared
	}
	if s.file == nil { // the leader is the only reader of the bytes in memory
		s.release()
		s.data, r.off, s.visible = nil, 0, 0
	}
	s.mu.Unlock()
	return s.body.Read(p)
}

// Close ends the reads of one reader. fill still reads the body to its end, for the cache and the other readers.
func (r *spoolReader) Close() error {
	s := r.spool
	s.mu.Lock()
	if r.closed {
		s.mu.Unlock()
		return nil
	}
	r.closed = true
	s.users--
	s.freeUnused()
	s.changed.Broadcast()
	passing := s.passing && r.leads
	s.mu.Unlock()
	r.left()
	if passing {
		return s.body.Close()
	}
	return nil
}

// shareLarge returns a response whose body is read into a temporary file for all clients of the call, or nil if it cannot be
// shared. The entry describes the response.
func (g *Gateway) shareLarge(a *attempt, resp *http.Response, e *cache.Entry) *http.Response {
	if !a.mayShareBody(e) {
		return nil
	}
	s := newSpool(resp, &buffer{}, func([]byte, bool) { a.call.Finish(coalesce.Ending{Result: coalesce.Private}) })
	g.shareThrough(a, s, e)
	s.mu.Lock()
	shared := s.spill(s.length)
	s.mu.Unlock()
	if !shared {
		return nil
	}
	s.share()
	own := *resp
	own.Trailer, own.Body = nil, s.leader
	g.fillInBackground(a.record.ID, a.call, s)
	return &own
}

// mayShareBody reports whether the followers of the call may get a body before its end.
func (a *attempt) mayShareBody(e *cache.Entry) bool {
	return a.call != nil && a.graphQL == nil && e.Status == http.StatusOK && a.resultFor(e) == coalesce.Stored
}

// shareThrough lets the followers of the call read a spool after its bytes have moved to a file. The entry has no body.
func (g *Gateway) shareThrough(a *attempt, s *spool, e *cache.Entry) {
	s.disk = &g.Background.files
	s.outgrown = func() { g.Cache.MarkUncacheable(a.match.Operation.ID, a.key) } // the next clients do not share the body
	id := a.record.ID
	s.share = func() {
		s.mu.Lock()
		s.users++ // the call
		s.mu.Unlock()
		if a.last != nil && a.replacesStored(e.Status) {
			g.deleteStored(a)
		}
		forms := &sharedForms{identity: s, fill: func(coded *spool) { g.fillInBackground(id, nil, coded) }}
		a.call.SetStream(coalesce.Stream{Response: e, Length: s.length, Open: forms.open, Release: forms.release})
	}
}

// sharedForms are the content codings of a body that clients read while it arrives. Each form is encoded once.
type sharedForms struct {
	identity *spool
	fill     func(coded *spool)

	mu    sync.Mutex
	coded map[*contentcoding.Coding]*spool
}

// open returns a reader of the form; a nil coding is the identity form. left is called when the reader is closed.
func (f *sharedForms) open(c *contentcoding.Coding, left func()) io.ReadCloser {
	if c == nil {
		return f.identity.follow(left)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.coded[c]
	if s == nil {
		s = newSpool(&http.Response{Body: c.Reader(f.identity.follow(func() {})), ContentLength: -1}, &buffer{}, func([]byte, bool) {})
		s.disk, s.outgrown = f.identity.disk, f.identity.outgrown
		size := f.identity.length
		if size >= 0 {
			size += size/256 + 1<<10 // a body that cannot be compressed grows by less
		}
		if !s.spill(size) {
			_ = s.body.Close()
			return c.Reader(f.identity.follow(left)) // each client has an encoder
		}
		if f.coded == nil {
			f.coded = map[*contentcoding.Coding]*spool{}
		}
		f.coded[c] = s
		f.fill(s)
	}
	return s.follow(left)
}

// release is called when no further client can open a form.
func (f *sharedForms) release() {
	f.identity.leave()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.coded {
		_ = s.leader.Close()
	}
}

// streamedResponse returns the response of a call in progress whose body the followers read while it arrives, or nil if the
// client may not use it.
func (g *Gateway) streamedResponse(a *attempt, c *coalesce.Call) *http.Response {
	stream := c.Stream()
	if !g.mayUseShared(a, stream.Response) {
		c.Leave()
		return nil
	}
	resp := g.entryResponse(a, stream.Response, time.Now())
	if resp.StatusCode == http.StatusNotModified {
		c.Leave()
		return resp
	}
	resp.Header.Del("Content-Length")
	var coding *contentcoding.Coding
	if resp.ContentLength = stream.Length; a.identityAsked {
		coding = a.selectCoding(resp.StatusCode, resp.Header, stream.Length)
	}
	if coding != nil {
		resp.ContentLength = -1
	} else if stream.Length >= 0 {
		resp.Header.Set("Content-Length", strconv.FormatInt(stream.Length, 10))
	}
	resp.Body = stream.Open(coding, c.Leave)
	return resp
}
