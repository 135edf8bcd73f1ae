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
	"time"

	"github.com/weirgate/weir/internal/config"
)

// startEndpoint serves an endpoint on a loopback listener until stop is called.
func startEndpoint(t *testing.T, e endpoint, plan drainPlan) (address string, stop func()) {
	t.Helper()
	if e.listener == nil {
		var err error
		if e.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serveAll(ctx, slog.New(slog.DiscardHandler), func() drainPlan { return plan }, e) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return e.listener.Addr().String(), stop
}

// TestTimeoutOfAnEndpointEndsSlowRequests checks the deadline of the redirect listener and the admin listener.
func TestTimeoutOfAnEndpointEndsSlowRequests(t *testing.T) {
	readAll := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	address, _ := startEndpoint(t, endpoint{handler: readAll, timeout: 50 * time.Millisecond}, noDrain())
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n")
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second)) // real time, because the connection is TCP
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection stays open")
	}
}

// TestAdminListenerBoundsConnections checks that one address gets at most half of the connections.
func TestAdminListenerBoundsConnections(t *testing.T) {
	cfg := config.Default()
	cfg.Upstream.URL, cfg.Admin.Listen = "http://127.0.0.1:9", "127.0.0.1:0"
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	e, err := g.listenAdmin(cfg.Admin)
	if err != nil {
		t.Fatal(err)
	}
	address, _ := startEndpoint(t, e, noDrain())
	const tried = maxAdminConnections/2 + 10
	var open []net.Conn
	for range tried {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		open = append(open, c)
	}
	resp, err := http.Get("http://" + address + "/healthz") // a new connection replaces an idle one
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	closed := 0
	for _, c := range open {
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, io.EOF) {
			closed++
		}
	}
	if closed < 10 {
		t.Errorf("%d of %d connections were closed", closed, tried)
	}
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
	get := func(path string) {
		resp, err := server.Client().Get(server.URL + path)
		if err != nil {
			t.Error(err)
			return
		}
		_ = resp.Body.Close()
	}
	get("/first") // opens the connection
	var group sync.WaitGroup
	for range streams {
		group.Go(func() { get("/") })
	}
	group.Wait()
	if n := waiting.Load(); n != streams {
		t.Errorf("%d requests, want %d", n, streams)
	}
}

// TestDrainWaitsForTunnels checks that a connection that a handler has taken over gets the time of the drain, and then
// the end of its context.
func TestDrainWaitsForTunnels(t *testing.T) {
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
	address, stop := startEndpoint(t, endpoint{handler: handler}, drainPlan{func() {}, 0, finalTimeout + 500*time.Millisecond})
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, _ = io.WriteString(c, "CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n")
	if _, err := bufio.NewReader(c).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	stop()
	if !ended.Load() {
		t.Error("the process would end before the tunnel has ended")
	}
}
