package inbound

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Connections bounds the open client connections, in total and per address, and closes connections whose client does
// not read. Connections of [TrustedProxies] count only towards the total.
//
// A connection above a bound is closed immediately after Accept, before the server reads a request. The zero value has
// no bounds.
type Connections struct {
	mu            sync.Mutex
	maxTotal      int // 0 for no bound
	maxPerAddress int // 0 for no bound
	trusted       TrustedProxies
	total         int
	perAddress    map[netip.Addr]int
}

// LimitTotal sets the number of connections that may be open in total; 0 removes the bound.
func (c *Connections) LimitTotal(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.maxTotal = n
}

// LimitPerAddress sets the number of connections that each address may have open; 0 removes the bound. Connections of
// the trusted proxies are exempt. Open connections stay open.
func (c *Connections) LimitPerAddress(n int, trusted TrustedProxies) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.maxPerAddress, c.trusted = n, trusted
}

// Listener returns a listener that accepts connections from l within the bounds. The client must read at least
// [minRate] bytes per second, measured over writeTimeout.
func (c *Connections) Listener(l net.Listener, writeTimeout time.Duration, log *slog.Logger) net.Listener {
	return &listener{l, c, writeTimeout, log}
}

type listener struct {
	net.Listener
	connections  *Connections
	writeTimeout time.Duration
	log          *slog.Logger
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		remote, _ := netip.ParseAddrPort(c.RemoteAddr().String()) // the zero address for a Unix socket
		address := remote.Addr().Unmap()
		if l.connections.add(address) {
			remove := sync.OnceFunc(func() { l.connections.remove(address) })
			return &conn{Conn: c, writeTimeout: l.writeTimeout, onClose: remove}, nil
		}
		l.log.Debug("connection refused: too many connections in total or from this address", "address", address.String())
		_ = c.Close() // no data has been written
	}
}

func (c *Connections) add(address netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	client := ClientOf(address)
	if c.maxTotal > 0 && c.total >= c.maxTotal {
		return false
	}
	if c.maxPerAddress > 0 && c.perAddress[client] >= c.maxPerAddress && !c.trusted.contain(address) {
		return false
	}
	c.total++
	if c.perAddress == nil {
		c.perAddress = map[netip.Addr]int{}
	}
	c.perAddress[client]++
	return true
}

func (c *Connections) remove(address netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	client := ClientOf(address)
	c.total--
	if c.perAddress[client]--; c.perAddress[client] == 0 {
		delete(c.perAddress, client)
	}
}

// conn sets a deadline for each write. After a read timeout, Read returns no further data, because the server would
// parse the rest of a late body as the next request.
type conn struct {
	net.Conn
	writeTimeout time.Duration
	onClose      func()
	// aborting is set while net/http aborts its own background read with a deadline in the past. The client does not
	// cause a timeout during that time.
	aborting atomic.Bool
	late     atomic.Bool // the client has exceeded a read deadline

	mu            sync.Mutex
	writeDeadline time.Time // set by crypto/tls or net/http; earlier deadlines take precedence
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.aborting.Store(!t.IsZero() && time.Since(t) > time.Hour)
	return c.Conn.SetReadDeadline(t)
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeDeadline = t
	return c.Conn.SetWriteDeadline(t)
}

func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *conn) Read(p []byte) (int, error) {
	if c.late.Load() {
		return 0, os.ErrDeadlineExceeded
	}
	n, err := c.Conn.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) && !c.aborting.Load() {
		c.late.Store(true)
	}
	return n, err
}

// Write writes p. After a timeout, Write continues if the client has read at least [writeSize] bytes since the deadline
// was set.
func (c *conn) Write(p []byte) (int, error) {
	written := 0
	for {
		c.extendWriteDeadline()
		n, err := c.Conn.Write(p[written:])
		written += n
		if n < writeSize || !errors.Is(err, os.ErrDeadlineExceeded) {
			return written, err
		}
	}
}

func (c *conn) extendWriteDeadline() {
	c.mu.Lock()
	defer c.mu.Unlock()
	deadline := time.Now().Add(c.writeTimeout)
	if !c.writeDeadline.IsZero() && c.writeDeadline.Before(deadline) {
		deadline = c.writeDeadline
	}
	_ = c.Conn.SetWriteDeadline(deadline) // the connection is closed after an error, which Write returns
}

func (c *conn) Close() error {
	err := c.Conn.Close()
	c.onClose()
	return err
}

// CloseWrite closes the writing side. net/http calls CloseWrite so that the client can read an error response before
// the connection is closed.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil // net/http closes the connection soon
}
