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
// not read. Connections of [TrustedProxies] count only towards the total.
//
// At most [maxWaiting] connections wait for a request: they are idle, or their client has not completed the header of a
// request. A new connection above a bound replaces the connection that has waited longest: of its own address at the
// bound per address, otherwise of the address with most waiting connections. So idle connections never lock out other
// clients. If no connection waits, the new connection is closed immediately after Accept, before the server reads a
// request.
//
// The zero value has no bounds except maxWaiting. Each server of the listener needs the hooks of Observe.
type Connections struct {
	mu            sync.Mutex
	maxTotal      int // 0 for no bound
	maxPerAddress int // 0 for no bound
	trusted       TrustedProxies
	total         int
	waiting       int
	clients       map[netip.Addr]*connectionsOfClient
	opened        RateLimiter // new connections of each address
	overhead      RateLimiter // bytes outside of request bodies
}

// overheadPerRequest is the average number of bytes per request that a client at its request rate may send outside of
// request bodies: header fields, HTTP/2 frames, framing of chunks, and handshakes of TLS. maxReadDelay is the pause of
// each read above this rate.
const (
	overheadPerRequest = 2 << 10
	overheadPerBurst   = 512 // of each request in a burst
	maxReadDelay       = time.Second
)

// maxWaiting bounds the memory for waiting connections: each takes 8 to 20 KB, and more with TLS.
const maxWaiting = 2048

type connectionsOfClient struct {
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

// writeBuffer bounds the bytes that the kernel keeps for a client that reads slowly. It could otherwise grow to 4 MiB per
// connection, and filling the buffers of 1,000 slow readers kept a processor busy for seconds.
const writeBuffer = 256 << 10

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
			if tcp, ok := accepted.(*net.TCPConn); ok {
				_ = tcp.SetWriteBuffer(writeBuffer) // an error means that the client has disconnected
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
	client := c.clients[address]
	full := c.maxTotal > 0 && c.total >= c.maxTotal
	var crowd *connectionsOfClient // has too many connections
	switch {
	case !trusted && client != nil && c.maxPerAddress > 0 && client.open >= c.addressBoundLocked():
		crowd = client
	case full || c.waiting >= maxWaiting:
		crowd = c.mostWaitingLocked()
	}
	if crowd != nil {
		longest := crowd.waiting.Front()
		if longest == nil {
			return nil, false
		}
		replaced = longest.Value.(*conn)
		c.removeLocked(replaced)
		client = c.clients[address] // may have had only the replaced connection
	}
	if c.clients == nil {
		c.clients = map[netip.Addr]*connectionsOfClient{}
	}
	if client == nil {
		client = &connectionsOfClient{}
		c.clients[address] = client
	}
	added.client = client
	client.open++
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

// mostWaitingLocked returns the client with most waiting connections.
func (c *Connections) mostWaitingLocked() (most *connectionsOfClient) {
	for _, client := range c.clients {
		if most == nil || client.waiting.Len() > most.waiting.Len() {
			most = client
		}
	}
	return most
}

// Observe sets the hooks of a server through which Connections learns which connections wait, and which bytes belong to
// request bodies.
func (c *Connections) Observe(server *http.Server) {
	server.ConnState = func(served net.Conn, state http.ConnState) {
		changed := connOf(served)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.setWaitingLocked(changed, state == http.StateNew || state == http.StateIdle)
	}
	server.ConnContext = func(ctx context.Context, served net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, connOf(served))
	}
}

// Disconnect closes the connection of a request without a response, and refuses new connections of its address for a
// short time. It panics with [http.ErrAbortHandler].
func Disconnect(r *http.Request) {
	if c, ok := r.Context().Value(connKey{}).(*conn); ok {
		c.connections.opened.Block(c.address, time.Now())
		_ = c.Close() // HTTP/2 would otherwise close only the stream
	}
	panic(http.ErrAbortHandler)
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

func (c *Connections) setWaitingLocked(changed *conn, waits bool) {
	switch {
	case changed.client == nil: // removed
	case waits && changed.waiting == nil:
		changed.waiting = changed.client.waiting.PushBack(changed)
		c.waiting++
	case !waits && changed.waiting != nil:
		changed.client.waiting.Remove(changed.waiting)
		changed.waiting = nil
		c.waiting--
	}
}

func (c *Connections) remove(removed *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(removed)
}

// removeLocked removes a connection from the counts. Later calls have no effect.
func (c *Connections) removeLocked(removed *conn) {
	client := removed.client
	if client == nil {
		return
	}
	c.setWaitingLocked(removed, false)
	removed.client = nil
	c.total--
	if client.open--; client.open == 0 {
		delete(c.clients, ClientOf(removed.address))
	}
}

// conn sets a deadline for each write. After a read timeout, Read returns no further data, because the server would
// parse the rest of a late body as the next request.
type conn struct {
	net.Conn
	writeTimeout time.Duration
	address      netip.Addr
	connections  *Connections
	received     atomic.Int64 // bytes
	bodies       atomic.Int64 // bytes of received that handlers have read as request bodies
	charged      atomic.Int64 // bytes of received that count as overhead

	// connections.mu guards these fields.
	client  *connectionsOfClient // nil after the removal
	waiting *list.Element        // in client.waiting; nil while the client has a request in progress

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
// count until the handler has read them, and are not counted twice.
func (c *conn) charge(n int) {
	overhead := c.received.Add(int64(n)) - c.bodies.Load() - c.charged.Load()
	if overhead <= 0 || c.connections.exempt(c.address) {
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
