package testservers

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// PipeListener is an in-memory listener for tests that run inside testing/synctest, where time is virtual. Each
// connection is a net.Pipe. Dial fails after Close. The zero value is not usable; see [ListenPipe].
type PipeListener struct {
	address PipeAddress
	conns   chan net.Conn
	done    chan struct{}
	once    sync.Once

	buffered bool
}

// PipeAddress is the host and port that a PipeListener reports.
type PipeAddress string

// Network implements net.Addr.
func (PipeAddress) Network() string { return "pipe" }

func (a PipeAddress) String() string { return string(a) }

// ListenPipe returns a listener that reports the given address.
func ListenPipe(address PipeAddress) *PipeListener {
	return &PipeListener{address: address, conns: make(chan net.Conn), done: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *PipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *PipeListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr implements net.Listener.
func (l *PipeListener) Addr() net.Addr { return l.address }

// Dial connects to the listener and ignores the address. The signature fits http.Transport.DialContext.
func (l *PipeListener) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	if l.buffered {
		near, far = newBufferedConn(near), newBufferedConn(far)
	}
	select {
	case l.conns <- far:
		return near, nil
	case <-l.done:
		return nil, &net.OpError{Op: "dial", Net: "pipe", Err: net.ErrClosed}
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// DialHalves connects to the listener like Dial. Each direction of the connection can be closed alone, as with TCP.
func (l *PipeListener) DialHalves(ctx context.Context) (*HalfPipe, error) {
	toServer, fromClient := net.Pipe()
	toClient, fromServer := net.Pipe()
	select {
	case l.conns <- &HalfPipe{fromClient, toClient}:
		return &HalfPipe{fromServer, toServer}, nil
	case <-l.done:
		return nil, &net.OpError{Op: "dial", Net: "pipe", Err: net.ErrClosed}
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// HalfPipe is a connection in memory with a pipe for each direction. The embedded connection is read.
type HalfPipe struct {
	net.Conn
	out net.Conn
}

// Write implements net.Conn.
func (c *HalfPipe) Write(p []byte) (int, error) { return c.out.Write(p) }

// CloseWrite ends the sent data. The peer can still send.
func (c *HalfPipe) CloseWrite() error { return c.out.Close() }

// Close implements net.Conn. The peer never sees an end of the data while it could still send.
func (c *HalfPipe) Close() error { return errors.Join(c.Conn.Close(), c.out.Close()) }

// SetWriteDeadline implements net.Conn.
func (c *HalfPipe) SetWriteDeadline(t time.Time) error { return c.out.SetWriteDeadline(t) }

// SetDeadline implements net.Conn.
func (c *HalfPipe) SetDeadline(t time.Time) error {
	return errors.Join(c.Conn.SetDeadline(t), c.out.SetWriteDeadline(t))
}

// TLS returns a listener for the same connections with TLS. The server offers the given protocols by ALPN.
func (l *PipeListener) TLS(protocols ...string) net.Listener {
	config := pipeTLS.server()
	config.NextProtos = protocols
	return tls.NewListener(l, config)
}

// PipeClientTLS returns a client configuration that trusts the certificates of pipes with TLS.
func PipeClientTLS() *tls.Config { return pipeTLS.client() }

// ServePipe serves HTTP on a new PipeListener until the test ends.
func ServePipe(t testing.TB, address PipeAddress, server *http.Server) *PipeListener {
	t.Helper()
	l := ListenPipe(address)
	serve(t, address, server, func() error { return server.Serve(l) })
	return l
}

// ServePipeTLS serves HTTP over TLS on a new PipeListener until the test ends. ALPN chooses one of the server's protocols:
// HTTP/1.1 or HTTP/2, unless server.Protocols selects other protocols.
func ServePipeTLS(t testing.TB, address PipeAddress, server *http.Server) *PipeListener {
	t.Helper()
	l := ListenPipe(address)
	server.TLSConfig = pipeTLS.server()
	serve(t, address, server, func() error { return server.ServeTLS(l, "", "") })
	return l
}

func serve(t testing.TB, address PipeAddress, server *http.Server, run func() error) {
	server.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := run(); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serve %s: %v", address, err)
		}
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
		_ = server.Close() // closes a connection that was accepted during the first Close
	})
}
