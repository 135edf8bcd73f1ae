// Package fastpath serves cache hits on plain HTTP/1.1 connections without the per-request
// work of net/http. All other requests reach net/http byte for byte.
//
// [Serve] wraps the connections of an [http.Server]. The server calls Read to wait for the
// next request. If that Read receives exactly one plain GET, the [Handler] may serve it, and
// Read waits for the next request. Otherwise Read returns the bytes to the server.
//
// Invariants: bytes are parsed only where a request must start. This is the start of the
// connection, or the first Read after the server reported [http.StateIdle] or after a hit, if
// all bytes so far form complete requests. In all doubtful cases the wrapper passes the rest
// of the connection through. The fast path is active only while the last request that net/http
// served was a plain GET. A hit is written completely before the connection is closed.
//
// # Go upgrades
//
// The package depends on behaviour of net/http that is not documented. Check at each Go
// upgrade, in server.go, and run the differential test:
//
//   - conn.serve reports StateIdle, sets the idle deadline and reads the next request in one
//     goroutine, in this order. A panic in that Read closes the connection.
//   - While a handler runs without a body to read, connReader.backgroundRead reads one byte,
//     and keeps it as the first byte of the next request.
//   - conn.readRequest skips CR and LF before a request only after a POST (lastMethod).
//   - conn.readRequest refuses no request that [http.ReadRequest] and parseHead accept.
//   - Server.Shutdown calls Close for connections in StateIdle.
//   - response.finishRequest writes the header in sorted order, followed by the Date field.
//
// Start reading with conn.Read.
package fastpath

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// Handler serves cache hits.
type Handler interface {
	// ServeHit serves a GET without a body if it can do so immediately, and reports whether it
	// did. If not, it must not have written anything, because net/http receives the request
	// next. It must set Content-Type and Content-Length if the response has a body. The context
	// of the request is already cancelled, so that no callee waits.
	ServeHit(w http.ResponseWriter, r *http.Request) bool
}

// Serve is like s.Serve for a plain HTTP listener, with h in front of s.Handler. It sets
// s.ConnState. The WaitGroup counts the hits in progress; s.Shutdown does not wait for them.
func Serve(s *http.Server, l net.Listener, h Handler, hits *sync.WaitGroup) error {
	s.ConnState = func(c net.Conn, state http.ConnState) {
		if c, ok := c.(*conn); ok {
			c.stateChanged(state)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return s.Serve(&listener{Listener: l, server: s, handler: h, cancelled: ctx, hits: hits})
}

type listener struct {
	net.Listener
	server    *http.Server
	handler   Handler
	cancelled context.Context // of all requests
	hits      *sync.WaitGroup
	buffers   sync.Pool // of *buffers
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, listener: l, atBoundary: true}, nil
}

// conn is the connection that the server uses. The goroutine of the server and its background
// read call Read, never at the same time.
type conn struct {
	net.Conn
	listener *listener

	// passThrough is set when the start of the next request is unknown.
	passThrough bool
	// atBoundary is set if the next byte after early is the first byte of a request.
	atBoundary bool
	// early is the first byte of the next request, if the background read has received it.
	early string
	// bodyLeft is the number of body bytes that the server has not read yet.
	bodyLeft int64
	// lastPlain reports whether the last request that the server received was a plain GET.
	lastPlain bool

	mu              sync.Mutex
	serving, closed bool // a hit is in progress; Close was called
}

func (c *conn) stateChanged(state http.ConnState) {
	switch {
	case state == http.StateHijacked, state == http.StateIdle && c.bodyLeft > 0:
		c.passThrough = true
	case state == http.StateIdle:
		c.atBoundary = true
	}
}

// Read returns the next bytes for the server.
func (c *conn) Read(p []byte) (int, error) {
	switch {
	case c.passThrough:
		return c.Conn.Read(p)
	case c.bodyLeft > 0:
		n, err := c.Conn.Read(p[:min(int64(len(p)), c.bodyLeft)])
		c.bodyLeft -= int64(n)
		return n, err
	case c.atBoundary:
		return c.readRequest(p)
	case len(p) == 1 && c.early == "": // the background read
		n, err := c.Conn.Read(p)
		c.early = string(p[:n])
		return n, err
	}
	c.passThrough = true // the server does not agree on the end of the request
	return c.Conn.Read(p)
}

// readRequest serves hits until it receives another request. It returns the bytes of that
// request for the server.
func (c *conn) readRequest(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if n == 0 {
			return 0, err
		}
		h, ok := parseHead(c.early + string(p[:n]))
		rest := int64(h.size) + h.body - int64(len(c.early)+n) // bytes of the request still to come
		if !ok || rest < 0 {
			c.passThrough = true
			return n, err
		}
		if h.plain && c.lastPlain && c.early == "" {
			switch served, err := c.serveHit(p[:n]); {
			case err != nil:
				return 0, err
			case served:
				continue
			}
		}
		c.atBoundary, c.early, c.bodyLeft, c.lastPlain = false, "", rest, h.plain
		return n, err
	}
}

// serveHit lets the handler serve a plain GET, and reports whether it did. It returns an error
// if the connection is closed.
func (c *conn) serveHit(head []byte) (served bool, err error) {
	c.mu.Lock()
	if c.serving = !c.closed; !c.serving {
		c.mu.Unlock()
		return false, net.ErrClosed
	}
	c.listener.hits.Add(1)
	c.mu.Unlock()
	intact := false // stays false if the handler panics
	defer func() {
		defer c.listener.hits.Done()
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.serving = false; c.closed || !intact {
			c.closed, err = true, net.ErrClosed
			_ = c.Conn.Close() // the response is complete, or the client is gone
		}
	}()
	served, intact = c.listener.serve(c.Conn, head)
	idle := c.listener.server.IdleTimeout
	if idle == 0 {
		idle = c.listener.server.ReadTimeout
	}
	if served && idle > 0 {
		_ = c.SetReadDeadline(time.Now().Add(idle)) // an error means that the connection is closed
	}
	return served, nil
}

// Close closes the connection. If a hit is in progress, the connection closes after it.
func (c *conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.serving {
		return nil
	}
	return c.Conn.Close()
}

// CloseWrite lets net/http close one direction, so that the client can read an error response
// before the connection is closed.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil // net/http closes the connection soon
}
