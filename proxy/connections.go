package proxy

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

// Connections bounds how many connections clients have open, in all and from one address,
// and ends those whose client does not take in what is written to it. Addresses count as for
// [Inbound]; those of [Trusted] proxies are bounded in all only.
//
// One more than the bound is closed as soon as it is accepted: nothing has been read
// of it, and with TLS nothing could be said. It outlives a [Gateway]; the zero value
// lets everybody in. It is safe for concurrent use.
type Connections struct {
	mu      sync.Mutex
	most    int // of one address; 0 lets everybody in
	trusted Trusted
	open    map[netip.Addr]int // counted
	all     int                // of all addresses; 0 lets everybody in
	count   int                // of them
}

// Bound sets how many connections may be open in all, 0 for no bound.
func (c *Connections) Bound(all int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = all
}

// Configure sets how many connections one address may have open, 0 for no bound, and
// whose are not bounded. Those that are open stay.
func (c *Connections) Configure(perAddress int, trusted Trusted) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.most, c.trusted = perAddress, trusted
}

// Listener returns a listener of the connections of l that are let in. Each piece of
// what is written to one of them must be taken in within patience. The log tells of
// those that are not let in.
func (c *Connections) Listener(l net.Listener, patience time.Duration, log *slog.Logger) net.Listener {
	return &bounded{l, c, patience, log}
}

type bounded struct {
	net.Listener
	bound    *Connections
	patience time.Duration
	log      *slog.Logger
}

func (l *bounded) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		remote, _ := netip.ParseAddrPort(conn.RemoteAddr().String()) // a Unix socket has none
		address := remote.Addr().Unmap()
		if l.bound.enter(address) {
			return &patientConn{Conn: conn, patience: l.patience, left: sync.OnceFunc(func() { l.bound.leave(address) })}, nil
		}
		l.log.Debug("a connection was not let in: its address has too many, or there are too many in all", "address", address.String())
		_ = conn.Close() // nothing is lost
	}
}

func (c *Connections) enter(address netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	client := counted(address)
	if c.all > 0 && c.count >= c.all || c.most > 0 && c.open[client] >= c.most && !c.trusted.has(address) {
		return false
	}
	c.count++
	if c.open == nil {
		c.open = map[netip.Addr]int{}
	}
	c.open[client]++
	return true
}

func (c *Connections) leave(address netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	client := counted(address)
	c.count--
	if c.open[client]--; c.open[client] == 0 {
		delete(c.open, client)
	}
}

// patientConn writes under deadlines: its client must take in a piece within patience,
// again and again. After a read whose deadline has passed nothing more is read: the
// server would take what is late of a body for the next request.
type patientConn struct {
	net.Conn
	patience time.Duration
	left     func()
	// interrupts is set while the read deadline is not the client's: by one long past
	// the server ends a read of its own.
	interrupts atomic.Bool
	late       atomic.Bool

	mu sync.Mutex
	// before is the deadline of writes that somebody has set: crypto/tls does not wait
	// long for who does not take in that a connection ends.
	before time.Time
	until  time.Time // the deadline in force
}

// SetWriteDeadline is for crypto/tls.
func (c *patientConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before, c.until = t, t
	return c.Conn.SetWriteDeadline(t)
}

// SetDeadline is for both directions.
func (c *patientConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// patiently sets the deadline of what is written next. One that leaves most of the
// patience stays: it need not move for each answer.
func (c *patientConn) patiently() {
	c.mu.Lock()
	defer c.mu.Unlock()
	until := time.Now().Add(c.patience)
	if !c.before.IsZero() && c.before.Before(until) {
		until = c.before
	}
	if ahead := until.Sub(c.until); 0 <= ahead && ahead < c.patience/8 {
		return
	}
	c.until = until
	_ = c.Conn.SetWriteDeadline(until) // a connection that has none has no slow reader
}

// SetReadDeadline is for the server and for [clientBody].
func (c *patientConn) SetReadDeadline(t time.Time) error {
	c.interrupts.Store(!t.IsZero() && time.Since(t) > time.Hour)
	return c.Conn.SetReadDeadline(t)
}

func (c *patientConn) Read(p []byte) (int, error) {
	if c.late.Load() {
		return 0, os.ErrDeadlineExceeded
	}
	n, err := c.Conn.Read(p)
	if err != nil && !c.interrupts.Load() && isTimeout(err) {
		c.late.Store(true)
	}
	return n, err
}

// Write goes on after a deadline in which a piece has been taken in.
func (c *patientConn) Write(p []byte) (int, error) {
	written := 0
	for {
		c.patiently()
		n, err := c.Conn.Write(p[written:])
		written += n
		if err == nil || n < piece || !isTimeout(err) {
			return written, err
		}
	}
}

// WriteBuffers is like Write for what stands in several places, in one call of the system.
func (c *patientConn) WriteBuffers(list *net.Buffers) (int64, error) {
	written := int64(0)
	for {
		c.patiently()
		n, err := list.WriteTo(c.Conn)
		written += n
		if err == nil || n < piece || !isTimeout(err) {
			return written, err
		}
	}
}

func (c *patientConn) Close() error {
	err := c.Conn.Close()
	c.left()
	return err
}

// CloseWrite is for the server, which lets a client read a refusal to its end.
func (c *patientConn) CloseWrite() error {
	if tcp, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return tcp.CloseWrite()
	}
	return nil // it is closed soon
}
