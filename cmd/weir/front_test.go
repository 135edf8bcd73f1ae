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
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/config"
)

// counting counts what is answered in front of net/http.
type counting struct {
	*gateway
	answered atomic.Int64
}

func (c *counting) AnswerAtOnce(w http.ResponseWriter, r *http.Request) bool {
	c.answered.Add(1) // before: when it returns the client may have its answer
	answered := c.gateway.AnswerAtOnce(w, r)
	if !answered {
		c.answered.Add(-1)
	}
	return answered
}

// before returns a gateway before an API, to listen where there is room.
func before(t *testing.T, api string) *gateway {
	t.Helper()
	cfg := config.Default()
	cfg.Upstream.URL, cfg.Listen, cfg.Admin.Listen = api, "127.0.0.1:0", "127.0.0.1:0"
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	return g
}

// TestHitsAreAnsweredInFrontOfNetHTTP, on the gateway's own listener, and what is no hit behind
// it; with and without a body that takes two pieces.
func TestHitsAreAnsweredInFrontOfNetHTTP(t *testing.T) {
	t.Parallel()
	body := strings.Repeat("x", 64<<10)
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=3600")
		w.Header().Set("Etag", `"1"`)
		_, _ = io.WriteString(w, body)
	}))
	defer origin.Close()
	g := before(t, origin.URL)
	front := counting{gateway: g}
	address := "http://" + onListeners(t, g, func(clients *endpoint) { clients.hits = &front })[0].listener.Addr().String()

	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	defer client.CloseIdleConnections()
	for i, q := range []struct {
		path, etag string
		status     int
		inFront    int64
	}{
		{"/repos/a/b/subscribers", "", 200, 0}, // kept now
		{"/repos/a/b/subscribers", "", 200, 1},
		{"/repos/a/b/subscribers", `"1"`, 304, 2},
		{"/repos/a/c/subscribers", "", 200, 2},
		{"/repos/a/c/subscribers", "", 200, 3},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+q.path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if q.etag != "" {
			r.Header.Set("If-None-Match", q.etag)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != q.status || q.status == 200 && string(got) != body || front.answered.Load() != q.inFront {
			t.Fatalf("%d: %d with %d bytes, %v; %d in front, want %d", i, resp.StatusCode, len(got), err, front.answered.Load(), q.inFront)
		}
	}
}

// TestADrainLetsHitsEnd that a slow client still takes in, in front of net/http as behind it.
func TestADrainLetsHitsEnd(t *testing.T) {
	t.Parallel()
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "max-age=3600")
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write(make([]byte, 8<<20-1))
	}))
	defer origin.Close()
	g := before(t, origin.URL)
	endpoints, err := g.listen()
	if err != nil {
		t.Fatal(err)
	}
	begun := make(chan struct{})
	endpoints[0].hits = &telling{gateway: g, begun: begun}
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
	_ = c.(*net.TCPConn).SetReadBuffer(64 << 10) // else the system takes all of it
	in := bufio.NewReader(c)
	get := func() *http.Response {
		_, _ = io.WriteString(c, "GET /repos/a/b/subscribers HTTP/1.1\r\nHost: h\r\n\r\n")
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	if n, err := io.Copy(io.Discard, get().Body); n != 8<<20-1 || err != nil { // kept now
		t.Fatal(n, err)
	}
	resp := get() // and does not read on
	<-begun
	stop()
	select {
	case <-ended:
		t.Error("the process has ended while its answer was taken in")
	case <-time.After(2 * time.Second): // more than it waits for those who were cut off
	}
	if n, err := io.Copy(io.Discard, resp.Body); n != 8<<20-1 || err != nil {
		t.Errorf("%d bytes of a hit came: %v", n, err)
	}
	<-ended
}

// telling tells of the first request that it may answer.
type telling struct {
	*gateway
	begun chan struct{}
	once  sync.Once
}

func (f *telling) AnswerAtOnce(w http.ResponseWriter, r *http.Request) bool {
	f.once.Do(func() { close(f.begun) })
	return f.gateway.AnswerAtOnce(w, r)
}

// TestADrainTellsOfWhoWasCutOff in front of net/http as behind it: of a client that takes in too
// slowly what is not held.
func TestADrainTellsOfWhoWasCutOff(t *testing.T) {
	t.Parallel()
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/large" {
			_, _ = w.Write(make([]byte, 32<<20))
		}
	}))
	defer origin.Close()
	g := before(t, origin.URL)
	endpoints, err := g.listen()
	if err != nil {
		t.Fatal(err)
	}
	var told strings.Builder
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = serveAll(ctx, slog.New(slog.NewTextHandler(&told, nil)), func() drainPlan { return drainPlan{g.drain.Begin, 0, time.Second} }, endpoints...)
	}()
	c, err := net.Dial("tcp", endpoints[0].listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.(*net.TCPConn).SetReadBuffer(64 << 10) // else the system takes all of it
	in := bufio.NewReader(c)
	for _, path := range []string{"/first", "/large"} {
		_, _ = io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: h\r\n\r\n")
		if _, err := http.ReadResponse(in, nil); err != nil { // and nothing of the body
			t.Fatal(err)
		}
	}
	stop()
	<-ended
	if !strings.Contains(told.String(), "requests were cut off") {
		t.Errorf("it told %q", &told)
	}
}
