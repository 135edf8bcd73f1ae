// Package front answers plain GETs on connections of HTTP/1.1 without TLS before net/http has a
// part in it, first from memory, if that can be done at once; everything else it leaves to
// net/http, byte for byte. By it a hit takes about half of the processor's time, and what passes
// through a tenth less: of what net/http does for each request (a goroutine that listens whether
// the client leaves, three deadlines, fields that are copied from one map into another) an answer
// that waits for nothing needs none, and one that comes soon little.
//
// Invariants. It reads a narrow part of what net/http would read in the same way (see head),
// and looks at bytes only where a request must begin: behind the last byte of one that it
// answered itself, or that it handed over whole and that has been answered. Where it loses
// sight of where requests end the connection is net/http's for good. The first request of a
// connection is net/http's in any case, which learns by it whether the connection is in use.
// Answers go out in the order of their requests, and none is cut off when the server ends.
//
// It decides nothing about what a client gets, and it is no server: listening and ending,
// requests with a body, HTTP/2, TLS and every kind of error are net/http's.
package front

import (
	"context"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Handler answers a GET if it can at once, and else reports false: then nothing has been
// written, and nothing of what it has looked at has been changed, for the same request comes
// to the server's handler. The context of the request has ended: what would have to wait does not. Request,
// header and writer are not the handler's any more when it returns.
type Handler interface {
	AnswerAtOnce(w http.ResponseWriter, r *http.Request) bool
}

// Serve is like s.Serve for a listener of plain HTTP, with h in front of it: what h does not
// answer s.Handler does. It sets s.ConnState. Answers that go on when s has been shut down or
// closed are those of answering. Of the deadlines of s those of heads and idle clients hold.
func Serve(s *http.Server, l net.Listener, h Handler, answering *sync.WaitGroup) error {
	s.ConnState = func(c net.Conn, state http.ConnState) {
		if c, ok := c.(*conn); ok {
			c.is(state)
		}
	}
	base := context.Background()
	if s.BaseContext != nil {
		base = s.BaseContext(l)
	}
	return s.Serve(&listener{Listener: l, server: s, base: base, handler: h, answering: answering})
}

type listener struct {
	net.Listener
	server    *http.Server
	base      context.Context // of all requests
	handler   Handler
	answering *sync.WaitGroup
	requests  requests
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	own := &conn{Conn: c, listener: l, remote: c.RemoteAddr().String()}
	own.begins.Store(true)
	own.changed.L = &own.mu
	return own, nil
}

// conn is a connection as net/http sees it. Read is called by one goroutine at a time, as
// net/http has it; Close by any.
type conn struct {
	net.Conn
	listener *listener
	remote   string

	// theirs is set once it is not known any more where requests end: what comes is
	// net/http's. Where it is not, begins says that the next byte is the first of a request,
	// and owed is how many are still to come of the body of one that net/http reads.
	theirs bool
	begins atomic.Bool
	owed   int64
	// rest is what has been read and is not net/http's yet.
	rest []byte
	// idle is set between a request that net/http has answered and the next.
	idle atomic.Bool
	// said is what its last request said.
	said said
	// missed is how many requests in a row could not be answered at once.
	missed   int
	watching watch

	mu sync.Mutex
	// until is the deadline in force of what is read; interrupted is set where it is one long
	// past, by which net/http ends what it reads, and changed tells of that.
	until       time.Time
	interrupted bool
	changed     sync.Cond
	// busy is set while an answer is being made and written, closed once somebody has closed
	// the connection: then it ends when it is not busy.
	busy, closed bool
	// ctx is that of its requests, nil before the first that is served here; ended ends it.
	ctx   context.Context
	ended context.CancelFunc
}

// is takes up what net/http says of the connection.
func (c *conn) is(state http.ConnState) {
	switch state {
	case http.StateIdle:
		c.begins.Store(c.owed == 0) // all that was handed over was one request, and is answered
	case http.StateHijacked:
		c.theirs = true
	}
	c.idle.Store(state == http.StateIdle)
}

// Read gives net/http what it has to answer.
func (c *conn) Read(p []byte) (int, error) {
	switch {
	case c.theirs || len(p) >= leastRoom && !c.begins.Load() && c.owed == 0:
		c.theirs = true
		return c.receive(p)
	case c.owed > 0:
		n, err := c.receive(p[:min(int64(len(p)), c.owed)])
		c.owed -= int64(n)
		return n, err
	case c.begins.Load():
		return c.next(p)
	}
	return 0, c.listen()
}

// leastRoom is how much net/http has room for at least when it wants a request; for less it asks
// when it listens whether a client leaves.
const leastRoom = 512

// receive reads what is to come next.
func (c *conn) receive(p []byte) (int, error) {
	if len(c.rest) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// next answers requests until there is one that is not answered at once, and hands that over.
func (c *conn) next(p []byte) (n int, err error) {
	for {
		if n == 0 {
			kept := len(c.rest) > 0
			if !kept && c.missed > 0 {
				runtime.Gosched() // its client has sent no more yet, mostly; see stream.begin
			}
			if n, err = c.receive(p); n == 0 {
				return 0, err
			}
			if kept && !ends(p[:n]) {
				if within := c.listener.server.ReadHeaderTimeout; within > 0 {
					_ = c.SetReadDeadline(time.Now().Add(within)) // it has begun
				}
				more, _ := c.Conn.Read(p[n:]) // an error comes again
				n += more
			}
		}
		size, answered, err := c.take(p[:n])
		switch {
		case err != nil:
			return 0, err
		case answered:
			n = copy(p, p[size:n])
			continue
		case c.theirs:
			return n, nil
		}
		c.begins.Store(false)
		whole := int64(size) + c.owed
		if int64(n) > whole {
			c.rest = append(slices.Clone(p[whole:n]), c.rest...)
			n = int(whole)
		}
		c.owed = whole - int64(n)
		return n, nil
	}
}

// ahead is how much is read of a request at most while another is answered.
const ahead = 4 << 10

// listen is for net/http, which listens whether a client leaves while it is answered. A client
// that has sent the start of its next request has not: that is kept back, until net/http ends
// listening by a deadline long past, or the connection has been closed.
func (c *conn) listen() error {
	surplus := len(c.rest) > 0 // of what came with the request that is answered
	if !surplus {
		var first [1]byte
		n, err := c.Conn.Read(first[:])
		if n == 0 {
			return err
		}
		c.rest = append(c.rest, first[0])
	}
	if room := ahead - len(c.rest); room > 0 {
		c.rest = slices.Grow(c.rest, room)
		n, err := c.Conn.Read(c.rest[len(c.rest):ahead])
		if n == 0 && surplus {
			return err
		}
		c.rest = c.rest[:len(c.rest)+n] // another error comes again
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.interrupted && (c.busy || !c.closed) {
		c.changed.Wait()
	}
	if c.closed {
		return net.ErrClosed
	}
	return os.ErrDeadlineExceeded
}

// SetReadDeadline is for net/http, too.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = t
	if c.interrupted = !t.IsZero() && time.Since(t) > time.Hour; c.interrupted {
		c.changed.Broadcast()
	}
	return c.Conn.SetReadDeadline(t)
}

// take looks at the request with which b begins, and reports how many bytes its head has and
// whether it has been answered. Where neither is known the connection is net/http's; an error
// says that it has ended.
func (c *conn) take(b []byte) (size int, answered bool, err error) {
	r := c.listener.requests.get()
	defer c.listener.requests.put(r)
	if !r.head.parse(b, &c.said) {
		c.theirs = true
		return 0, false, nil
	}
	c.owed = r.head.body
	if !r.head.plain || !c.idle.Load() {
		return r.head.size, false, nil
	}
	if c.tries() {
		switch answered, ended := c.answer(r); {
		case ended:
			return 0, false, net.ErrClosed
		case answered:
			c.missed = 0
			c.waits()
			return r.head.size, true, nil
		}
	}
	if !c.serve(r) {
		return 0, false, net.ErrClosed
	}
	c.waits()
	return r.head.size, true, nil
}

// answer has a request answered, and reports whether it was, and whether the connection has
// ended with it.
func (c *conn) answer(r *request) (answered, ended bool) {
	if !c.begin() {
		return false, true
	}
	broken := true // by a panic
	defer func() { ended = c.end(broken) }()
	answered, broken = r.answer(c)
	return answered, false
}

// Of a connection of whose last requests so many could not be answered at once, one in so many
// is tried: to look for what is not there takes 3 to 7 % of what passes through.
const (
	enough = 8
	oneIn  = 32
)

func (c *conn) tries() bool {
	c.missed++
	return c.missed <= enough || c.missed%oneIn == 0
}

// waits moves the deadline by which the next request must come. One that leaves most of the
// time stays: it need not move for each answer.
func (c *conn) waits() {
	idle := c.listener.server.IdleTimeout
	c.mu.Lock()
	until := c.until
	c.mu.Unlock()
	if next := time.Now().Add(idle); idle > 0 && next.Sub(until) > idle/8 {
		_ = c.SetReadDeadline(next) // a connection that has none has no idle client
	}
}

// begin and end are around an answer. It does not begin on a closed connection, and one that
// is broken ends it: what came behind would be taken for the rest.
func (c *conn) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy = !c.closed; c.busy {
		c.listener.answering.Add(1)
	}
	return c.busy
}

// end reports whether the connection has ended with the answer.
func (c *conn) end(broken bool) bool {
	defer c.listener.answering.Done()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = false
	if broken || c.closed {
		_ = c.closeLocked() // whoever closed it has been told that it is
	}
	return c.closed
}

// Close closes the connection, behind an answer that has begun.
func (c *conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy {
		c.closed = true
		return nil
	}
	return c.closeLocked()
}

func (c *conn) closeLocked() error {
	c.closed = true
	c.changed.Broadcast()
	if c.ended != nil {
		c.ended()
	}
	return c.Conn.Close()
}

// CloseWrite is for net/http, which lets a client read a refusal to its end.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil // it is closed soon
}
