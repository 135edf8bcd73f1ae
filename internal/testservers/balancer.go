package testservers

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// Balancer is a TCP load balancer. It distributes connections round-robin over replicas and
// skips replicas that are taken out or refuse the connection.
type Balancer struct {
	listener net.Listener
	replicas []string
	out      []atomic.Bool // replicas that get no connections
}

// NewBalancer starts a balancer for replicas at the given addresses.
func NewBalancer(t testing.TB, replicas ...string) *Balancer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &Balancer{l, replicas, make([]atomic.Bool, len(replicas))}
	var connections sync.WaitGroup
	connections.Go(func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return // the listener is closed
			}
			connections.Go(func() { b.forward(c, n) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		connections.Wait()
	})
	return b
}

// Port returns the port of the balancer on 127.0.0.1.
func (b *Balancer) Port() int { return b.listener.Addr().(*net.TCPAddr).Port }

// SetOut sets whether a replica, given by its index, is taken out of the rotation.
func (b *Balancer) SetOut(replica int, out bool) { b.out[replica].Store(out) }

// forward forwards one connection until a side closes the connection.
func (b *Balancer) forward(c net.Conn, n int) {
	defer func() { _ = c.Close() }()
	for i := range b.replicas {
		next := (n + i) % len(b.replicas)
		if b.out[next].Load() {
			continue
		}
		r, err := new(net.Dialer).DialContext(context.Background(), "tcp", b.replicas[next])
		if err != nil {
			continue
		}
		defer func() { _ = r.Close() }()
		var response sync.WaitGroup
		response.Go(func() {
			_, _ = io.Copy(c, r) // a half-closed connection is closed on both sides
			_ = c.Close()
		})
		_, _ = io.Copy(r, c)
		_ = r.Close()
		response.Wait()
		return
	}
}
