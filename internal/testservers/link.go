package testservers

import (
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Link forwards connections to a server and injects network faults: delays, a cut, and
// broken connections.
type Link struct {
	// Address is the socket path or the TCP address that clients dial.
	Address         string
	network, server string
	delay           atomic.Int64
	done            chan struct{}

	mu     sync.Mutex
	open   chan struct{} // closed while data passes
	broken chan struct{} // closed by Break
	cut    bool
}

// socketLinks counts the links to Unix sockets, for the names of their sockets.
var socketLinks atomic.Int64

// NewSocketLink returns a link to a server on a Unix socket.
func NewSocketLink(t testing.TB, socket string) *Link {
	t.Helper()
	return newLink(t, "unix", filepath.Join(filepath.Dir(socket), fmt.Sprintf("link%d.sock", socketLinks.Add(1))), socket)
}

// NewLink returns a link to a server on a TCP address.
func NewLink(t testing.TB, address string) *Link {
	t.Helper()
	return newLink(t, "tcp", "127.0.0.1:0", address)
}

func newLink(t testing.TB, network, listen, server string) *Link {
	t.Helper()
	l := &Link{network: network, server: server, done: make(chan struct{}), open: make(chan struct{}), broken: make(chan struct{})}
	close(l.open)
	listener, err := net.Listen(network, listen)
	if err != nil {
		t.Fatal(err)
	}
	l.Address = listener.Addr().String()
	var connections sync.WaitGroup
	connections.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return // the link is closed
			}
			connections.Go(func() { l.forward(c) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		close(l.done)
		connections.Wait()
	})
	return l
}

// Delay delays all bytes that the server sends from now on.
func (l *Link) Delay(by time.Duration) { l.delay.Store(int64(by)) }

// Cut stops all data without closing connections. Data in transit arrives after Restore.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.cut {
		l.cut, l.open = true, make(chan struct{})
	}
}

// Restore ends the faults of Cut and Delay.
func (l *Link) Restore() {
	l.delay.Store(0)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		l.cut = false
		close(l.open)
	}
}

// Break closes all open connections.
func (l *Link) Break() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.broken)
	l.broken = make(chan struct{})
}

// forward forwards one connection until a side closes the connection, Break is called, or the test ends.
func (l *Link) forward(c net.Conn) {
	defer func() { _ = c.Close() }()
	l.mu.Lock()
	broken := l.broken
	l.mu.Unlock()
	server, err := (&net.Dialer{}).DialContext(context.Background(), l.network, l.server)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	ended := make(chan struct{}, 2)
	var directions sync.WaitGroup
	directions.Go(func() {
		l.copy(server, c, false)
		ended <- struct{}{}
	})
	directions.Go(func() {
		l.copy(c, server, true)
		ended <- struct{}{}
	})
	select {
	case <-ended:
	case <-broken:
	case <-l.done:
	}
	_, _ = c.Close(), server.Close()
	directions.Wait()
}

// copy copies one direction of a connection.
func (l *Link) copy(to io.Writer, from io.Reader, delayed bool) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil || !l.wait(delayed) {
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// wait blocks during a delay and a cut. It reports false after the test has ended.
func (l *Link) wait(delayed bool) bool {
	if by := time.Duration(l.delay.Load()); delayed && by > 0 {
		select {
		case <-time.After(by):
		case <-l.done:
			return false
		}
	}
	l.mu.Lock()
	open := l.open
	l.mu.Unlock()
	select {
	case <-open:
		return true
	case <-l.done:
		return false
	}
}
