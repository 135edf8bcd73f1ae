// Package spool reads a response body ahead of its clients, and holds its bytes in memory or in a temporary file.
package spool

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"github.com/weirgate/weir/internal/contentcoding"
)

const (
	// MaxBuffered is the size of the largest body that is held in memory.
	MaxBuffered = 8 << 20
	// chunk is the size of one read from the upstream.
	chunk = 32 << 10
	// largestShare is the part of the budget that one body may reserve, so that one slow client does not use all of it.
	// unknownShare is the part that a body of an unknown length reserves.
	largestShare, unknownShare = 2, 16
)

// ErrNotShared is the end of a body for a follower after the temporary file could not hold the rest.
var ErrNotShared = errors.New("the response is too large to be shared")

// Budget bounds bytes that are held outside the cache.
type Budget struct {
	Limit int64
	used  atomic.Int64
}

// Used returns the bytes that the budget counts.
func (b *Budget) Used() int64 { return b.used.Load() }

// add counts n more bytes, and reports whether they are within the budget.
func (b *Budget) add(n int64) bool { return b.used.Add(n) <= b.Limit }

// Reserve counts n more bytes if they are within the budget, and reports whether they are.
func (b *Budget) Reserve(n int64) bool {
	for {
		used := b.used.Load()
		if used+n > b.Limit {
			return false
		}
		if b.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// Buffer holds bytes within a budget.
type Buffer struct {
	Data   []byte
	budget *Budget // nil without a bound, and after release
	held   int64   // bytes that the budget counts
}

// NewBuffer returns an empty buffer.
func NewBuffer(budget *Budget) *Buffer { return &Buffer{budget: budget} }

// Reserve counts the bytes of a body in advance, and reports whether the budget allows them. If not, nothing is reserved. A
// negative size has no effect.
func (b *Buffer) Reserve(size int64) bool {
	if size <= 0 {
		return true
	}
	if !b.budget.Reserve(size) {
		return false
	}
	b.held, b.Data = size, make([]byte, 0, size)
	return true
}

// Append adds bytes and reports whether the budget allows more bytes. If the budget is exhausted, Append releases the
// buffer from the budget.
func (b *Buffer) Append(p []byte) (more bool) {
	if need := len(b.Data) + len(p); need > cap(b.Data) { // append would leave five times as many bytes to the garbage collector
		b.Data = append(make([]byte, 0, max(need, 2*cap(b.Data))), b.Data...)
	}
	b.Data = append(b.Data, p...)
	further := int64(len(b.Data)) - b.held
	if b.budget == nil || further <= 0 {
		return true
	}
	if b.held += further; b.budget.add(further) {
		return true
	}
	b.Release()
	return false
}

// Release returns the memory to the budget.
func (b *Buffer) Release() {
	if b != nil && b.budget != nil {
		b.budget.used.Add(-b.held)
		b.budget, b.held = nil, 0
	}
}

// Spool is a response body that is read ahead of its readers, so a slow reader does not delay the others. The bytes are in
// memory, up to MaxBuffered and the memory budget. Further bytes are written to a temporary file if other clients may read the
// body, too. Without a file, and after a failed write, the leader reads the rest directly from the upstream.
type Spool struct {
	body     io.ReadCloser
	length   int64                      // Content-Length, or -1
	complete func(body []byte, ok bool) // see New
	sharing
	packer *packer // nil before the first bytes in the file, and after a bound was exceeded
	spare  []byte  // the memory of the bytes that have moved to the file, for the packer
	memory *Budget
	leader *reader

	mu       sync.Mutex
	changed  sync.Cond
	held     Buffer // the bytes after those in the file
	file     *os.File
	reserved int64 // bytes of the file that disk counts
	written  int64 // bytes in the file
	visible  int64 // bytes that readers may read
	err      error // returned after the visible bytes
	passing  bool  // after the visible bytes, the leader reads from body
	users    int   // open readers, and the Forms until Release
	filled   bool  // Fill has ended
}

// sharing has the arguments of [Spool.Share]. It is zero if other clients cannot read the body.
type sharing struct {
	disk            *Budget // of the file
	share, outgrown func()
	pack            func(packed []byte, length int64)
}

// reader reads a spool from its start.
type reader struct {
	*Spool
	off    int64
	closed bool
	leads  bool
	left   func() // called by Close
}

// New returns the spool of a body with a length, or -1. The kept buffer may have a reservation. complete is called once with the
// body, before a reader can read the end of the body. ok is false if the body is incomplete or is not in memory.
func New(body io.ReadCloser, length int64, kept *Buffer, complete func(body []byte, ok bool)) *Spool {
	s := &Spool{body: body, length: length, complete: complete, held: *kept, memory: kept.budget, users: 1}
	s.changed.L = &s.mu
	s.leader = &reader{Spool: s, leads: true, left: func() {}}
	return s
}

// Leader returns the reader of the client whose request fetches the body.
func (s *Spool) Leader() io.ReadCloser { return s.leader }

// Length returns the length of the body, or -1.
func (s *Spool) Length() int64 { return s.length }

// Share lets other clients read the body from a temporary file. share is called once after the bytes have moved to the file, and
// outgrown before the readers learn that the file cannot hold the rest. If pack is not nil, pack is called once with the gzip form
// of a complete body in the file and the length of the body, before complete, if the form has at most MaxBuffered bytes and the
// memory budget allows them. Share must be called before Fill.
func (s *Spool) Share(disk *Budget, share, outgrown func(), pack func(packed []byte, length int64)) {
	s.sharing = sharing{disk, share, outgrown, pack}
}

// ShareNow moves the bytes to the file, and reports whether the file holds them.
func (s *Spool) ShareNow() bool {
	s.mu.Lock()
	ok := s.spill(s.length)
	s.mu.Unlock()
	if ok {
		s.share()
	}
	return ok
}

// Fail ends the body with an error after Fill has panicked.
func (s *Spool) Fail(err error) {
	_ = s.body.Close()
	s.stop(err)
}

// Fill reads the body until it ends, or cannot be held any more.
func (s *Spool) Fill() {
	defer func() {
		if s.packer != nil {
			s.packer.Release()
		}
	}()
	read := make([]byte, chunk)
	var err error
	full := false
	for err == nil && !full {
		var n int
		n, err = s.body.Read(read)
		full = s.append(read[:n], err)
		s.encode(read)
	}
	if err != nil {
		_ = s.body.Close() // the body has ended
	}
	whole := !full && err == io.EOF && (s.length < 0 || s.written+int64(len(s.held.Data)) == s.length)
	if full && s.file != nil {
		s.outgrown()
	}
	if p := s.packer; p != nil && whole && p.gzip.Close() == nil {
		s.pack(p.Data, s.written)
	}
	s.complete(s.held.Data, whole && s.file == nil)
	s.stop(err)
}

// packer encodes the bytes in the file.
type packer struct {
	*Buffer
	gzip io.WriteCloser
	read int64 // bytes of the file
}

// errOutgrown is the error of a packer whose bytes exceed a bound.
var errOutgrown = errors.New("the encoded body is too large")

// Write implements io.Writer.
func (p *packer) Write(b []byte) (int, error) {
	if len(p.Data)+len(b) > MaxBuffered || !p.Append(b) {
		return 0, errOutgrown
	}
	return len(b), nil
}

// encode gives the new bytes in the file to the packer.
func (s *Spool) encode(buffer []byte) {
	if s.pack == nil || s.file == nil {
		return
	}
	if s.packer == nil {
		s.packer = &packer{Buffer: NewBuffer(s.memory)}
		if s.packer.Data, s.spare = s.spare, nil; s.packer.Data == nil {
			s.packer.Reserve(chunk) // the capacity doubles until MaxBuffered
		}
		s.packer.gzip = contentcoding.Gzip.Writer(s.packer)
	}
	p := s.packer
	n, err := io.CopyBuffer(p.gzip, io.NewSectionReader(s.file, p.read, s.written-p.read), buffer)
	if p.read += n; err != nil {
		p.Release()
		s.packer, s.pack = nil, nil
	}
}

// append adds the bytes of one read, and reports whether the spool cannot hold more. The bytes of the last read stay invisible
// until stop, so that complete is called before a reader sees the end.
func (s *Spool) append(p []byte, err error) (full bool) {
	s.mu.Lock()
	shared := false
	switch {
	case s.file != nil:
		full = !s.write(p)
	case len(s.held.Data)+len(p) > MaxBuffered && s.disk != nil && s.spill(s.length): // a larger buffer would have twice the capacity
		shared, full = true, !s.write(p)
	case !s.held.Append(p) || len(s.held.Data) > MaxBuffered:
		shared = s.disk != nil && s.spill(s.length)
		full = !shared
	}
	if total := s.written + int64(len(s.held.Data)); err == nil && total != s.length {
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
func (s *Spool) spill(size int64) bool {
	if size < 0 {
		size = s.disk.Limit / unknownShare
	}
	if size > s.disk.Limit/largestShare || !s.disk.Reserve(size) {
		return false
	}
	file, err := os.CreateTemp("", "weir-body-")
	if err != nil {
		s.disk.used.Add(-size)
		return false
	}
	_ = os.Remove(file.Name()) // the file has no name from now on, unless the operating system keeps open files
	kept := s.held
	s.file, s.reserved, s.held = file, size, Buffer{}
	if s.write(kept.Data) {
		kept.Release()
		if s.pack != nil {
			s.spare = kept.Data[:0]
		}
		return true
	}
	s.closeFile()
	s.held = kept
	return false
}

// write appends bytes to the file, and reports whether the file holds them. Otherwise they stay in memory. mu must be held.
func (s *Spool) write(p []byte) bool {
	end := s.written + int64(len(p))
	further := max(0, end-s.reserved)
	ok := s.disk.Reserve(further)
	if ok {
		s.reserved += further
		_, err := s.file.WriteAt(p, s.written)
		ok = err == nil
	}
	if !ok {
		s.held.Data = append(s.held.Data, p...)
		return false
	}
	s.written = end
	return true
}

// closeFile removes the file. mu must be held.
func (s *Spool) closeFile() {
	if s.file != nil {
		_ = s.file.Close()
		_ = os.Remove(s.file.Name())
		s.disk.used.Add(-s.reserved)
		s.file, s.reserved, s.written = nil, 0, 0
	}
}

// stop makes all bytes visible, followed by the error or by the rest of the body.
func (s *Spool) stop(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.visible, s.err, s.passing, s.filled = s.written+int64(len(s.held.Data)), err, err == nil, true
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
func (s *Spool) freeUnused() {
	if s.users == 0 && s.filled {
		s.closeFile()
		s.held.Release()
		s.held.Data = nil
	}
}

// follow returns a reader for a follower of the call. left is called when the reader is closed.
func (s *Spool) follow(left func()) io.ReadCloser {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users++
	return &reader{Spool: s, left: left}
}

// leave ends the use of the spool by a reader, or by the call.
func (s *Spool) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users--
	s.freeUnused()
}

// Read blocks until bytes are visible.
func (r *reader) Read(p []byte) (int, error) {
	s := r.Spool
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
		n := copy(p, s.held.Data[r.off-s.written:s.visible-s.written])
		r.off += int64(n)
		s.mu.Unlock()
		return n, nil
	case s.err != nil:
		s.mu.Unlock()
		return 0, s.err
	case !r.leads:
		s.mu.Unlock()
		return 0, ErrNotShared
	}
	if s.file == nil { // the leader is the only reader of the bytes in memory
		s.held.Release()
		s.held.Data, r.off, s.visible = nil, 0, 0
	}
	s.mu.Unlock()
	return s.body.Read(p)
}

// Close ends the reads of one reader. Fill still reads the body to its end, for the cache and the other readers.
func (r *reader) Close() error {
	s := r.Spool
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

// Forms are the content codings of a body that clients read while it arrives. Each form is encoded once.
type Forms struct {
	identity *Spool
	fill     func(coded *Spool)

	mu    sync.Mutex
	coded map[*contentcoding.Coding]*Spool
}

// NewForms returns the forms of a body until Release. fill calls [Spool.Fill] in another goroutine.
func NewForms(identity *Spool, fill func(coded *Spool)) *Forms {
	identity.mu.Lock()
	defer identity.mu.Unlock()
	identity.users++
	return &Forms{identity: identity, fill: fill}
}

// Open returns a reader of the form; a nil coding is the identity form. left is called when the reader is closed.
func (f *Forms) Open(c *contentcoding.Coding, left func()) io.ReadCloser {
	if c == nil {
		return f.identity.follow(left)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.coded[c]
	if s == nil {
		s = New(c.Reader(f.identity.follow(func() {})), -1, &Buffer{}, func([]byte, bool) {})
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
			f.coded = map[*contentcoding.Coding]*Spool{}
		}
		f.coded[c] = s
		f.fill(s)
	}
	return s.follow(left)
}

// Release is called when no further client can open a form.
func (f *Forms) Release() {
	f.identity.leave()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.coded {
		_ = s.leader.Close()
	}
}
