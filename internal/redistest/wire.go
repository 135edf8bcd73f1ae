package redistest

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Wire is a way to a server on which things go wrong as they do on a network.
type Wire struct {
	// Socket is where it begins: a path, or an address.
	Socket      string
	network, to string
	delay       atomic.Int64
	done        chan struct{}

	mu     sync.Mutex
	open   chan struct{} // closed while something gets through
	broken chan struct{} // closed when the connections break
	cut    bool
}

// NewWire lays one to the server at a socket.
func NewWire(t testing.TB, socket string) *Wire {
	t.Helper()
	return newWire(t, "unix", filepath.Join(filepath.Dir(socket), "wire.sock"), socket)
}

// NewWireTo lays one to the server at an address.
func NewWireTo(t testing.TB, address string) *Wire {
	t.Helper()
	return newWire(t, "tcp", "127.0.0.1:0", address)
}

func newWire(t testing.TB, network, from, to string) *Wire {
	t.Helper()
	w := &Wire{network: network, to: to, done: make(chan struct{}), open: make(chan struct{}), broken: make(chan struct{})}
	close(w.open)
	l, err := net.Listen(network, from)
	if err != nil {
		t.Fatal(err)
	}
	w.Socket = l.Addr().String()
	var passing sync.WaitGroup
	passing.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			passing.Go(func() { w.pass(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		close(w.done)
		passing.Wait()
	})
	return w
}

// Slow has what Redis says arrive so much later from now on.
func (w *Wire) Slow(by time.Duration) { w.delay.Store(int64(by)) }

// Cut lets nothing through from now on, and tells nobody: connections stay, and what is on
// its way arrives when the wire is mended.
func (w *Wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.cut {
		w.cut, w.open = true, make(chan struct{})
	}
}

// Mend ends what Cut and Slow have done.
func (w *Wire) Mend() {
	w.delay.Store(0)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		w.cut = false
		close(w.open)
	}
}

// Break closes the connections that there are.
func (w *Wire) Break() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.broken)
	w.broken = make(chan struct{})
}

// pass passes a connection on, until either side, Break or the test ends it.
func (w *Wire) pass(c net.Conn) {
	defer func() { _ = c.Close() }()
	w.mu.Lock()
	broken := w.broken
	w.mu.Unlock()
	r, err := (&net.Dialer{}).DialContext(context.Background(), w.network, w.to)
	if err != nil {
		return
	}
	defer func() { _ = r.Close() }()
	ended := make(chan struct{}, 2)
	var ways sync.WaitGroup
	for _, way := range []struct {
		to, from net.Conn
		slow     bool
	}{{r, c, false}, {c, r, true}} {
		ways.Go(func() {
			w.carry(way.to, way.from, way.slow)
			ended <- struct{}{}
		})
	}
	select {
	case <-ended:
	case <-broken:
	case <-w.done:
	}
	_, _ = c.Close(), r.Close()
	ways.Wait()
}

// carry carries one way.
func (w *Wire) carry(to io.Writer, from io.Reader, slow bool) {
	piece := make([]byte, 32<<10)
	for {
		n, err := from.Read(piece)
		if err != nil || !w.lets(slow) {
			return
		}
		if _, err := to.Write(piece[:n]); err != nil {
			return
		}
	}
}

// lets waits until something gets through; it reports false when the test has ended.
func (w *Wire) lets(slow bool) bool {
	if by := time.Duration(w.delay.Load()); slow && by > 0 {
		select {
		case <-time.After(by):
		case <-w.done:
			return false
		}
	}
	w.mu.Lock()
	open := w.open
	w.mu.Unlock()
	select {
	case <-open:
		return true
	case <-w.done:
		return false
	}
}
