package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// startEndpoint serves an endpoint until stop is called.
func startEndpoint(t *testing.T, e endpoint, plan drainPlan) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serveAll(ctx, slog.New(slog.DiscardHandler), func() drainPlan { return plan }, e) }()
	stop = sync.OnceFunc(func() {
		cancel()
		err := <-served
		failIf(t, err != nil, "%v", err)
	})
	t.Cleanup(stop)
	return stop
}

// TestTimeoutOfAnEndpointEndsSlowRequests checks the deadline of the redirect listener and the admin listener.
func TestTimeoutOfAnEndpointEndsSlowRequests(t *testing.T) {
	admin := must(open(t, configure(nowhere, onLoopback)).listenAdmin(configure("", onLoopback).Admin))(t)
	_ = admin.listener.Close()
	failIf(t, admin.timeout != adminIOTimeout, "the admin listener has the timeout %v, want %v", admin.timeout, adminIOTimeout)
	synctest.Test(t, func(t *testing.T) {
		l := testservers.ListenPipe("admin.test:80")
		readAll := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
		startEndpoint(t, endpoint{listener: l, handler: readAll, timeout: adminIOTimeout}, noDrain())
		c := must(l.Dial(t.Context(), "", ""))(t)
		defer func() { _ = c.Close() }()
		_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{")
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		_, err := io.Copy(io.Discard, c)
		failIf(t, errors.Is(err, os.ErrDeadlineExceeded), "the connection stays open")
	})
}

// TestAdminListenerBoundsConnections checks that one address gets at most half of the connections.
func TestAdminListenerBoundsConnections(t *testing.T) {
	g := open(t, configure(nowhere, onLoopback))
	e := must(g.listenAdmin(g.started.Admin))(t)
	startEndpoint(t, e, noDrain())
	const tried = maxAdminConnections/2 + 10
	var open []net.Conn
	for range tried {
		open = append(open, dial(t, e.listener.Addr().String()))
	}
	get(t, "http://"+e.listener.Addr().String()+"/healthz") // a new connection replaces an idle one
	closed := 0
	for _, c := range open {
		_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, io.EOF) {
			closed++
		}
	}
	failIf(t, closed < 10, "%d of %d connections were closed", closed, tried)
}

// TestHTTP2ClientMayUse100Streams checks that a client of Go, which assumes 100 streams before it knows the number, gets
// an answer to each of 100 requests on one connection.
func TestHTTP2ClientMayUse100Streams(t *testing.T) {
	const streams = 100
	var waiting atomic.Int32
	all := make(chan struct{})
	server := httptest.NewUnstartedServer(nil)
	server.Config, server.EnableHTTP2 = newServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/first" {
			return
		}
		if waiting.Add(1) == streams {
			close(all)
		}
		<-all
	}), slog.New(slog.DiscardHandler)), true
	server.StartTLS()
	defer server.Close()
	var group sync.WaitGroup
	for i := range 1 + streams {
		group.Go(func() {
			path := []string{"/first", "/"}[min(i, 1)]
			if resp, err := server.Client().Get(server.URL + path); err != nil {
				t.Error(err)
			} else {
				_ = resp.Body.Close()
			}
		})
		if i == 0 {
			group.Wait() // the connection is open
		}
	}
	group.Wait()
	n := waiting.Load()
	failIf(t, n != streams, "%d requests, want %d", n, streams)
}

// TestDrainWaitsForTunnels checks that a connection that a handler has taken over gets the time of the drain, and then
// the end of its context.
func TestDrainWaitsForTunnels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended atomic.Bool
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = c.Close() }()
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			<-r.Context().Done()
			ended.Store(true)
		})
		l := testservers.ListenPipe("gateway.test:80")
		stop := startEndpoint(t, endpoint{listener: l, handler: handler}, drainPlan{func() {}, 0, finalTimeout + 500*time.Millisecond})
		c := must(l.Dial(t.Context(), "", ""))(t)
		defer func() { _ = c.Close() }()
		go func() { _, _ = io.WriteString(c, "CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n") }()
		r := bufio.NewReader(c)
		must(r.ReadString('\n'))(t)
		go func() { _, _ = io.Copy(io.Discard, r) }()
		stop()
		failIf(t, !ended.Load(), "the process would end before the tunnel has ended")
	})
}
