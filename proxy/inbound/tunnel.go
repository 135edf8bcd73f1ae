package inbound

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// Tunnel describes a connection that a client opened with CONNECT.
type Tunnel struct {
	// Host is the name of the target in lower case, without the port.
	Host string
	// Authorize sets the credential of the client on a request in the tunnel. It is nil if the client needed none.
	Authorize func(http.Header)
	// Opaque is set if the gateway only copies the bytes of the tunnel.
	Opaque bool
}

// Hijack takes over the connection of a CONNECT request, which must come from a listener of [Connections]. The
// connection counts for the bounds of the listener until it is closed. The bytes of an opaque tunnel do not count.
func Hijack(w http.ResponseWriter, t Tunnel) (net.Conn, error) {
	served, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, err
	}
	if buffered.Reader.Buffered() > 0 {
		return nil, errors.Join(errors.New("the client sent data before the response to CONNECT"), served.Close())
	}
	c := connOf(served)
	c.tunnel.Store(&t)
	return c, c.SetDeadline(time.Time{})
}

// TunnelOf returns the tunnel in which a server received a request.
func TunnelOf(ctx context.Context) (Tunnel, bool) {
	c, _ := ctx.Value(connKey{}).(*conn)
	return tunnelOf(c)
}

// TunnelOfConn returns the tunnel of a connection that Hijack returned.
func TunnelOfConn(hijacked net.Conn) (Tunnel, bool) {
	c, _ := hijacked.(*conn)
	return tunnelOf(c)
}

func tunnelOf(c *conn) (Tunnel, bool) {
	if c == nil {
		return Tunnel{}, false
	}
	t := c.tunnel.Load()
	if t == nil {
		return Tunnel{}, false
	}
	return *t, true
}
