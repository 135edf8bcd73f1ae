package testservers

import (
	"net"
	"sync"
	"time"
)

// Buffered makes later connections of a listener buffer what is written, as a network does. net/http writes HTTP/2 under a
// mutex, and a goroutine that waits for a mutex stops virtual time.
func (l *PipeListener) Buffered() *PipeListener {
	l.buffered = true
	return l
}

// closingTime is the time after Close in which the other side must read what was written.
const closingTime = 5 * time.Second

// bufferedConn is one end of a pipe. Write never blocks.
type bufferedConn struct {
	net.Conn
	mu      sync.Mutex
	written []byte // and not passed on
	err     error  // of the pipe
	closed  bool
	wake    chan struct{} // has an element if written or closed have changed
}

func newBufferedConn(c net.Conn) net.Conn {
	b := &bufferedConn{Conn: c, wake: make(chan struct{}, 1)}
	go b.run()
	return b
}

// run passes on what is written, until the end of the connection.
func (b *bufferedConn) run() {
	defer func() { _ = b.Conn.Close() }()
	for range b.wake {
		b.mu.Lock()
		text, closed := b.written, b.closed
		b.written = nil
		b.mu.Unlock()
		if closed {
			_ = b.Conn.SetWriteDeadline(time.Now().Add(closingTime))
		}
		_, err := b.Conn.Write(text)
		if closed || err != nil {
			b.mu.Lock()
			b.err = net.ErrClosed
			b.mu.Unlock()
			return
		}
	}
}

// Write implements net.Conn.
func (b *bufferedConn) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.err != nil {
		return 0, net.ErrClosed
	}
	b.written = append(b.written, p...)
	b.signal()
	return len(p), nil
}

// SetWriteDeadline implements net.Conn. Write never blocks, and what is written is passed on: crypto/tls sets a deadline in the
// past when it closes a connection.
func (b *bufferedConn) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline implements net.Conn.
func (b *bufferedConn) SetDeadline(t time.Time) error { return b.SetReadDeadline(t) }

// Close implements net.Conn. The other side can still read what was written.
func (b *bufferedConn) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.signal()
	return b.SetReadDeadline(time.Unix(1, 0)) // ends reading
}

func (b *bufferedConn) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}
