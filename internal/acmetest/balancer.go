package acmetest

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// Balancer is the one address behind which replicas stand: it passes connections on
// to each of them in turn, and leaves out those that do not answer.
type Balancer struct {
	listener net.Listener
	replicas []string
	out      []atomic.Bool // those that get no connections
}

// NewBalancer starts a balancer before replicas at addresses.
func NewBalancer(t testing.TB, replicas ...string) *Balancer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &Balancer{l, replicas, make([]atomic.Bool, len(replicas))}
	var passing sync.WaitGroup
	passing.Go(func() {
		for turn := 0; ; turn++ {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			passing.Go(func() { b.pass(c, turn) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		passing.Wait()
	})
	return b
}

// Port is where it listens, at 127.0.0.1.
func (b *Balancer) Port() int { return b.listener.Addr().(*net.TCPAddr).Port }

// LeaveOut says whether a replica, by its number, gets no connections.
func (b *Balancer) LeaveOut(replica int, out bool) { b.out[replica].Store(out) }

// pass passes a connection on, until either side ends it.
func (b *Balancer) pass(c net.Conn, turn int) {
	defer func() { _ = c.Close() }()
	for i := range b.replicas {
		next := (turn + i) % len(b.replicas)
		if b.out[next].Load() {
			continue
		}
		r, err := new(net.Dialer).DialContext(context.Background(), "tcp", b.replicas[next])
		if err != nil {
			continue
		}
		defer func() { _ = r.Close() }()
		var back sync.WaitGroup
		back.Go(func() {
			_, _ = io.Copy(c, r) // an end on one side is one on both
			_ = c.Close()
		})
		_, _ = io.Copy(r, c)
		_ = r.Close()
		back.Wait()
		return
	}
}
