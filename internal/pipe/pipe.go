// Package pipe is a network of one address in memory, for tests: over it real
// servers and real clients run inside testing/synctest, where time is virtual.
//
// Invariants: every connection is a net.Pipe, so nothing leaves the process;
// after Close nobody can dial. It is not for production code.
package pipe

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
)

// Listener accepts what Dial makes. The zero value is not usable; see [Listen].
type Listener struct {
	address Address
	conns   chan net.Conn
	done    chan struct{}
	once    sync.Once
}

// Address is a name in place of host and port.
type Address string

// Network implements net.Addr.
func (Address) Network() string { return "pipe" }

func (a Address) String() string { return string(a) }

// Listen returns a listener of that address.
func Listen(address Address) *Listener {
	return &Listener{address: address, conns: make(chan net.Conn), done: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return l.address }

// Dial connects to the listener, whatever the address; it fits
// http.Transport.DialContext.
func (l *Listener) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case l.conns <- far:
		return near, nil
	case <-l.done:
		return nil, &net.OpError{Op: "dial", Net: "pipe", Err: net.ErrClosed}
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Serve answers on a new listener until the test ends.
func Serve(t testing.TB, address Address, server *http.Server) *Listener {
	t.Helper()
	l := Listen(address)
	server.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serve %s: %v", address, err)
		}
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
		_ = server.Close() // a connection that came in between, too: else it stays for ever
	})
	return l
}
