package main

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/config"
)

// hitCounter counts the requests that the fast path serves.
type hitCounter struct {
	*gateway
	hits atomic.Int64
}

func (c *hitCounter) ServeHit(w http.ResponseWriter, r *http.Request) bool {
	c.hits.Add(1) // before the response, because the client may receive it before ServeHit returns
	served := c.gateway.ServeHit(w, r)
	if !served {
		c.hits.Add(-1)
	}
	return served
}

// gatewayOnLoopback returns a gateway that listens on free ports of the loopback interface.
func gatewayOnLoopback(t *testing.T, upstream string, fastPath bool) *gateway {
	t.Helper()
	cfg := config.Default()
	cfg.Upstream.URL, cfg.Listen, cfg.Admin.Listen, cfg.FastPath = upstream, "127.0.0.1:0", "127.0.0.1:0", fastPath
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	return g
}

func TestFastPathServesHitsOfTheListener(t *testing.T) {
	t.Parallel()
	body := strings.Repeat("x", 64<<10)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "max-age=3600")
		w.Header().Set("Etag", `"1"`)
		_, _ = io.WriteString(w, body)
	}))
	defer upstream.Close()
	g := gatewayOnLoopback(t, upstream.URL, true)
	counter := hitCounter{gateway: g}
	address := "http://" + serveOnListeners(t, g, func(e *endpoint) { e.hits = &counter })[0].listener.Addr().String()
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	defer client.CloseIdleConnections()
	get := func(path, etag string, status int) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if etag != "" {
			r.Header.Set("If-None-Match", etag)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != status || status == 200 && string(got) != body {
			t.Fatalf("%s: got %d with %d bytes, %v, want %d", path, resp.StatusCode, len(got), err, status)
		}
	}
	get("/repos/a/b/subscribers", "", 200)
	if n := counter.hits.Load(); n != 0 {
		t.Errorf("the fast path served %d requests before the response was stored", n)
	}
	for range 100 { // a request that arrives too early goes through net/http
		if get("/repos/a/b/subscribers", "", 200); counter.hits.Load() > 0 {
			break
		}
	}
	get("/repos/a/b/subscribers", `"1"`, 304)
	get("/repos/a/c/subscribers", "", 200)
	if n := counter.hits.Load(); n != 2 {
		t.Errorf("the fast path served %d requests, want the hit and the 304", n)
	}
}

func TestFastPathCanBeDisabled(t *testing.T) {
	t.Parallel()
	for _, enabled := range []bool{true, false} {
		endpoints, err := gatewayOnLoopback(t, "http://upstream.test", enabled).listen()
		if err != nil {
			t.Fatal(err)
		}
		if got := endpoints[0].hits != nil; got != enabled {
			t.Errorf("fast_path %v: got %v", enabled, got)
		}
		for _, e := range endpoints {
			_ = e.listener.Close()
		}
	}
}

func TestDrainWritesHitsCompletely(t *testing.T) {
	t.Parallel()
	const size = 8<<20 - 1
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=3600")
		w.Header().Set("Content-Type", "text/plain")
		if r.URL.Path == "/repos/a/large/subscribers" {
			_, _ = w.Write(make([]byte, size))
		}
	}))
	defer upstream.Close()
	g := gatewayOnLoopback(t, upstream.URL, true)
	endpoints, err := g.listen()
	if err != nil {
		t.Fatal(err)
	}
	counter := &hitCounter{gateway: g}
	endpoints[0].hits = counter
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = serveAll(ctx, slog.New(slog.DiscardHandler), func() drainPlan { return drainPlan{g.drain.Begin, 0, time.Minute} }, endpoints...)
	}()
	c, err := net.Dial("tcp", endpoints[0].listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.(*net.TCPConn).SetReadBuffer(64 << 10) // less than the response
	in := bufio.NewReader(c)
	get := func(path string) *http.Response {
		_, _ = io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: h\r\n\r\n")
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	if n, err := io.Copy(io.Discard, get("/repos/a/large/subscribers").Body); n != size || err != nil {
		t.Fatalf("first response: got %d bytes, %v", n, err)
	}
	for range 100 { // a request that arrives too early goes through net/http
		if _, _ = io.Copy(io.Discard, get("/repos/a/small/subscribers").Body); counter.hits.Load() > 0 {
			break
		}
	}
	before := counter.hits.Load()
	resp := get("/repos/a/large/subscribers") // after a hit, no request is too early
	if counter.hits.Load() != before+1 {
		t.Error("the fast path did not serve the hit")
	}
	stop()
	select {
	case <-ended:
		t.Error("the process ended before the client read the response")
	case <-time.After(2 * finalTimeout):
	}
	if n, err := io.Copy(io.Discard, resp.Body); n != size || err != nil {
		t.Errorf("hit during the drain: got %d bytes, %v, want %d", n, err, size)
	}
	<-ended
}

func TestDrainLogsInterruptedResponses(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/large" {
			_, _ = w.Write(make([]byte, 32<<20))
		}
	}))
	defer upstream.Close()
	g := gatewayOnLoopback(t, upstream.URL, true)
	endpoints, err := g.listen()
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		plan := drainPlan{g.drain.Begin, 0, time.Second}
		_ = serveAll(ctx, slog.New(slog.NewTextHandler(&log, nil)), func() drainPlan { return plan }, endpoints...)
	}()
	c, err := net.Dial("tcp", endpoints[0].listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.(*net.TCPConn).SetReadBuffer(64 << 10) // less than the response
	in := bufio.NewReader(c)
	for _, path := range []string{"/first", "/large"} {
		_, _ = io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: h\r\n\r\n")
		if _, err := http.ReadResponse(in, nil); err != nil { // the body stays unread
			t.Fatal(err)
		}
	}
	stop()
	<-ended
	if !strings.Contains(log.String(), "requests were cut off") {
		t.Errorf("the log is %q", &log)
	}
}
