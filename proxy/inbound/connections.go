package inbound

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Connections bounds the open client connections, in total and per address, and closes connections whose client does
// not read. Connections of [TrustedProxies] have no bounds per address.
//
// A connection waits for a request if it is idle, or if its client has not completed the header of a request. At the
// bound per address, a new connection replaces the connection of its address that has waited longest. In total, or above
// [maxWaiting] waiting connections, the address with most waiting connections loses the one that has waited longest. So
// idle connections of one address do not lock out other addresses. If no such connection waits, or if an address opens
// connections above its rate, the new connection is closed after Accept, before the server reads a request.
//
// The zero value has no bounds except maxWaiting. Each server of the listener needs the hooks of Observe.
type Connections struct {
	mu            sync.Mutex
	maxTotal      int // 0 for no bound
	maxPerAddress int // 0 for no bound
	trusted       TrustedProxies
	total         int
	waiting       int
	addresses     map[netip.Addr]*connectionsOfAddress
	opened        RateLimiter // new connections of each address
	overhead      RateLimiter // bytes outside of request bodies
}

// overheadPerRequest is the average number of bytes per request that a client at its request rate may send outside of
// request bodies: header fields, HTTP/2 frames, framing of chunks, and handshakes of TLS. maxReadDelay is the longest
// pause of a read above this rate.
const (
	overheadPerRequest = 2 << 10
	overheadPerBurst   = 512 // of each request in a burst
	maxReadDelay       = time.Second
)

// maxWaiting bounds the memory for waiting connections: each takes 8 to 20 KB, and more with TLS.
const maxWaiting = 1600

type connectionsOfAddress struct {
	trusted bool // of a trusted proxy
	open    int
	waiting list.List // of *conn; the front has waited longest
}

// LimitTotal sets the number of connections that may be open in total; 0 removes the bound.
func (c *Connections) LimitTotal(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.maxTotal = n
}

// LimitPerAddress bounds the connections of each address, given its rate and burst of requests: burst open connections,
// but at most half of the total, and new connections at twice the rate and burst, so that a client above its rate gets
// status 429 instead of a closed connection. An address that sends more bytes outside of request bodies than its rate of
// requests needs is read slowly: a flood of HTTP/2 frames would otherwise use all processors. A rate of 0 removes the
// bounds. Connections of the trusted proxies are exempt. Open connections stay open.
func (c *Connections) LimitPerAddress(perSecond, burst int, trusted TrustedProxies) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trusted = trusted
	c.maxPerAddress = burst
	if perSecond == 0 {
		c.maxPerAddress = 0
	}
	c.opened.Configure(2*perSecond, 2*burst)
	c.overhead.Configure(perSecond*overheadPerRequest, burst*overheadPerBurst)
}

// maxUnsent bounds the bytes that the kernel keeps unsent for a client that reads slowly. They could otherwise grow to 4 MiB per
// connection, and filling the buffers of 1,000 slow readers kept a processor busy for seconds. Bytes in flight do not count,
// so a distant client that reads fast gets its full rate.
const maxUnsent = 512 << 10

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
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		remote, _ := netip.ParseAddrPort(accepted.RemoteAddr().String()) // the zero address for a Unix socket
		c := &conn{Conn: accepted, writeTimeout: l.writeTimeout, address: remote.Addr().Unmap(), connections: l.connections}
		replaced, ok := l.connections.add(c)
		if replaced != nil {
			_ = replaced.Close() // the client sees the end of an idle connection
		}
		if ok {
			if tcp, ok := accepted.(*net.TCPConn); ok && !l.connections.exempt(c.address) {
				_ = limitUnsent(tcp) // an error means that the client has disconnected
			}
			return c, nil
		}
		l.log.Debug("connection refused: too many connections in total or from this address", "address", c.address.String())
		_ = accepted.Close() // no data has been written
	}
}

// add counts a new connection and reports whether the bounds allow it. The caller closes the replaced connection, if
// any.
func (c *Connections) add(added *conn) (replaced *conn, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	trusted := c.trusted.contain(added.address)
	if !trusted && !c.opened.Allow(added.address, time.Now()) {
		return nil, false
	}
	address := ClientOf(added.address)
	group := c.addresses[address]
	full := c.maxTotal > 0 && c.total >= c.maxTotal
	above := !trusted && group != nil && c.maxPerAddress > 0 && group.open >= c.addressBoundLocked()
	switch {
	case above:
		replaced = c.removeLongestLocked(group)
	case full, c.waiting >= maxWaiting:
		replaced = c.removeLongestLocked(c.mostWaitingLocked())
	}
	if (above || full) && replaced == nil {
		return nil, false
	}
	group = c.addresses[address] // may have had only the replaced connection
	if c.addresses == nil {
		c.addresses = map[netip.Addr]*connectionsOfAddress{}
	}
	if group == nil {
		group = &connectionsOfAddress{trusted: trusted}
		c.addresses[address] = group
	}
	added.group = group
	group.open++
	c.total++
	c.setWaitingLocked(added, true)
	return replaced, true
}

// addressBoundLocked returns the bound for open connections of one address.
func (c *Connections) addressBoundLocked() int {
	if c.maxTotal > 0 {
		return min(c.maxPerAddress, c.maxTotal/2)
	}
	return c.maxPerAddress
}

// mostWaitingLocked returns the address with most waiting connections, or nil. It returns a trusted proxy only if no other
// address has waiting connections.
func (c *Connections) mostWaitingLocked() (most *connectionsOfAddress) {
	for _, group := range c.addresses {
		switch {
		case group.waiting.Len() == 0:
		case most == nil, most.trusted && !group.trusted:
			most = group
		case most.trusted == group.trusted && group.waiting.Len() > most.waiting.Len():
			most = group
		}
	}
	return most
}

// removeLongestLocked removes the connection of an address that has waited longest from the counts, and returns it. It
// returns nil if no connection waits. The caller closes the connection.
func (c *Connections) removeLongestLocked(group *connectionsOfAddress) *conn {
	if group == nil || group.waiting.Len() == 0 {
		return nil
	}
	removed := group.waiting.Front().Value.(*conn)
	c.removeLocked(removed)
	return removed
}

// Observe sets the hooks of a server through which Connections learns which connections wait, and which bytes belong to
// request bodies.
func (c *Connections) Observe(server *http.Server) {
	server.ConnState = func(served net.Conn, state http.ConnState) {
		if replaced := c.setState(connOf(served), state); replaced != nil {
			_ = replaced.Close()
		}
	}
	server.ConnContext = func(ctx context.Context, served net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, connOf(served))
	}
}

// Disconnect closes the connection of a request without a response, and takes the connection tokens of [blockTime] from
// its peer. All streams of an HTTP/2 connection end. Disconnect panics with [http.ErrAbortHandler].
func Disconnect(r *http.Request) {
	if c, ok := r.Context().Value(connKey{}).(*conn); ok {
		c.connections.opened.Block(c.address, time.Now())
		_ = c.Close() // HTTP/2 would otherwise close only the stream
	}
	panic(http.ErrAbortHandler)
}

// ResetAtEnd lets the connection of a request end with a reset, which a client recognizes as a fault.
func ResetAtEnd(r *http.Request) {
	c, ok := r.Context().Value(connKey{}).(*conn)
	if !ok {
		return
	}
	if tcp, ok := c.Conn.(interface{ SetLinger(int) error }); ok {
		_ = tcp.SetLinger(0) // an error means that the connection has ended
	}
}

// connKey is the key of the *conn in the context of a request.
type connKey struct{}

// connOf returns the connection that Accept returned and that a server may have wrapped with TLS.
func connOf(served net.Conn) *conn {
	if secure, ok := served.(*tls.Conn); ok {
		served = secure.NetConn()
	}
	return served.(*conn)
}

// exempt reports whether an address belongs to a trusted proxy.
func (c *Connections) exempt(address netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trusted.contain(address)
}

// setState updates the counts. If too many connections wait, setState returns one that the caller closes.
func (c *Connections) setState(changed *conn, state http.ConnState) (replaced *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setWaitingLocked(changed, state == http.StateNew || state == http.StateIdle)
	if c.waiting > maxWaiting {
		return c.removeLongestLocked(c.mostWaitingLocked())
	}
	return nil
}

func (c *Connections) setWaitingLocked(changed *conn, waits bool) {
	switch {
	case changed.group == nil: // removed
	case waits && changed.waiting == nil:
		changed.waiting = changed.group.waiting.PushBack(changed)
		c.countWaitingLocked(changed, 1)
	case !waits && changed.waiting != nil:
		changed.group.waiting.Remove(changed.waiting)
		changed.waiting = nil
		c.countWaitingLocked(changed, -1)
	}
}

// countWaitingLocked changes the number of waiting connections, which leaves out those of trusted proxies.
func (c *Connections) countWaitingLocked(changed *conn, by int) {
	if !changed.group.trusted {
		c.waiting += by
	}
}

func (c *Connections) remove(removed *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(removed)
}

// removeLocked removes a connection from the counts. Later calls have no effect.
func (c *Connections) removeLocked(removed *conn) {
	group := removed.group
	if group == nil {
		return
	}
	c.setWaitingLocked(removed, false)
	removed.group = nil
	c.total--
	if group.open--; group.open == 0 {
		delete(c.addresses, ClientOf(removed.address))
	}
}

// conn sets a deadline for each write. After a read timeout, Read returns no further data, because the server would
// parse the rest of a late body as the next request.
type conn struct {
	net.Conn
	writeTimeout time.Duration
	address      netip.Addr
	connections  *Connections
	received     atomic.Int64           // bytes
	bodies       atomic.Int64           // bytes of received that handlers have read as request bodies
	charged      atomic.Int64           // bytes of received that count as overhead
	tunnel       atomic.Pointer[Tunnel] // nil before a CONNECT

	// connections.mu guards these fields.
	group   *connectionsOfAddress // nil after the removal
	waiting *list.Element         // in group.waiting; nil while the client has a request in progress

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
	c.charge(n)
	return n, err
}

// charge counts received bytes, and waits if the address sends too many bytes outside of request bodies. Bytes of a body
// that the handler has not read yet are charged, too. Later overhead of the connection is then free up to their number.
func (c *conn) charge(n int) {
	overhead := c.received.Add(int64(n)) - c.bodies.Load() - c.charged.Load()
	if t, _ := tunnelOf(c); overhead <= 0 || t.Opaque || c.connections.exempt(c.address) {
		return
	}
	c.charged.Add(overhead)
	if delay := c.connections.overhead.Reserve(c.address, int(overhead), time.Now(), maxReadDelay); delay > 0 {
		<-time.After(delay)
	}
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
	c.connections.remove(c)
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
