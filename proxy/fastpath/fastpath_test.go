package fastpath

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// testHandler serves paths below /held as hits, and all paths through net/http. It records how
// each request was served.
type testHandler struct {
	hits   atomic.Int64
	mu     sync.Mutex
	log    []string
	onHit  func()                                   // called during a hit
	handle func(http.ResponseWriter, *http.Request) // for net/http; echo by default
}

func (h *testHandler) record(path string, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.log = append(h.log, path+" "+r.Method+" "+r.URL.RequestURI())
}

func (h *testHandler) ServeHit(w http.ResponseWriter, r *http.Request) bool {
	if !strings.HasPrefix(r.URL.Path, "/held") {
		return false
	}
	if h.onHit != nil {
		h.onHit()
	}
	h.hits.Add(1)
	h.record("hit", r)
	if r.URL.Path == "/held/unframed" {
		_, _ = io.WriteString(w, "a")
		return true
	}
	echo(w, r)
	return true
}

func (h *testHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.record("net/http", r)
	if h.handle != nil {
		h.handle(w, r)
		return
	}
	echo(w, r)
}

// want compares the requests that were served since the previous call.
func (h *testHandler) want(t *testing.T, want ...string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Equal(h.log, want) {
		t.Errorf("served %q, want %q", h.log, want)
	}
	h.log = nil
}

// start serves on a network in memory.
func start(t *testing.T, h *testHandler) (*testservers.PipeListener, *http.Server) {
	t.Helper()
	l, s := testservers.ListenPipe("fastpath"), &http.Server{Handler: h, IdleTimeout: time.Minute, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan error)
	var hits sync.WaitGroup
	go func() { done <- Serve(s, l, h, &hits) }()
	t.Cleanup(func() {
		_ = s.Close()
		hits.Wait()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
		_ = s.Close()
	})
	return l, s
}

// client is a connection of a client.
type client struct {
	net.Conn
	t  *testing.T
	in *bufio.Reader
}

func dial(t *testing.T, l *testservers.PipeListener) *client {
	t.Helper()
	c, err := l.Dial(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &client{c, t, bufio.NewReader(c)}
}

// dialActive returns a connection on which the fast path is active.
func dialActive(t *testing.T, l *testservers.PipeListener, h *testHandler) *client {
	t.Helper()
	c := dial(t, l)
	c.do(get("/first"))
	h.want(t, "net/http GET /first")
	return c
}

// send writes segments, each after the server has processed the previous one.
func (c *client) send(segments ...string) {
	c.t.Helper()
	for _, text := range segments {
		if _, err := io.WriteString(c, text); err != nil {
			c.t.Fatal(err)
		}
		synctest.Wait()
	}
}

// receive reads a response and returns its body. The server waits for the next request then.
func (c *client) receive() string {
	c.t.Helper()
	resp, err := http.ReadResponse(c.in, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	synctest.Wait()
	return string(body)
}

// do sends a request and reads its response.
func (c *client) do(request string) string {
	c.t.Helper()
	c.send(request)
	return c.receive()
}

// wantClosed waits until the server closes the connection.
func (c *client) wantClosed() {
	c.t.Helper()
	if b, err := c.in.ReadByte(); !errors.Is(err, io.EOF) {
		c.t.Fatalf("got %q, %v, want the end of the connection", b, err)
	}
}

func get(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: h\r\n\r\n" }

const post = "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"

func TestServesHitsWithoutNetHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h testHandler
		l, _ := start(t, &h)
		c := dial(t, l)
		c.do(get("/held/first"))
		c.do(get("/held/1"))
		c.do(get("/held/2"))
		c.do(get("/other"))
		if got := c.do(get("/held/large")); len(got) != 30_000 {
			t.Errorf("got %d bytes, want 30000", len(got))
		}
		c.do(post)
		c.do(get("/held/after-post"))
		c.do(get("/held/3"))
		h.want(t, "net/http GET /held/first", "hit GET /held/1", "hit GET /held/2", "net/http GET /other", "hit GET /held/large",
			"net/http POST /a", "net/http GET /held/after-post", "hit GET /held/3")
	})
}

// TestPassesAmbiguousInputToNetHTTP hides a request in the bytes of another. It must not be
// served as a hit, and the visible requests must be served by net/http.
func TestPassesAmbiguousInputToNetHTTP(t *testing.T) {
	for name, c := range map[string]struct {
		segments []string
		want     []string
	}{
		"request in a body": {
			[]string{"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 42\r\n\r\n" + get("/held/evil") + "123456"}, []string{"net/http POST /a"},
		},
		"request in the segment of a body": {
			[]string{"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 36\r\n\r\n", get("/held/evil")}, []string{"net/http POST /a"},
		},
		"request in a chunked body": {
			[]string{"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n24\r\n", get("/held/evil"), "\r\n0\r\n\r\n", get("/held/own")},
			[]string{"net/http POST /a", "net/http GET /held/own"},
		},
		"request in a field value":       {[]string{"GET /a HTTP/1.1\r\nHost: h\r\nX: ", get("/held/evil")}, nil},
		"request in a query":             {[]string{"GET /a?", "GET /held/evil HTTP/1.1\r\nHost: h\r\n\r\n"}, nil},
		"request after an empty line":    {[]string{"\r\n", get("/held/own")}, nil},
		"pipelined requests":             {[]string{get("/held/1") + get("/held/2")}, []string{"net/http GET /held/1", "net/http GET /held/2"}},
		"line at the end of the segment": {[]string{get("/a") + "GET /a HTTP/1.1\r\n", "Host: h\r\nX: ", get("/held/evil")}, []string{"net/http GET /a"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var h testHandler
				l, _ := start(t, &h)
				client := dialActive(t, l, &h)
				go func() { _, _ = io.Copy(io.Discard, client) }()
				for _, segment := range c.segments {
					if _, err := io.WriteString(client, segment); err != nil {
						break // the server has refused the request
					}
					synctest.Wait()
				}
				h.want(t, c.want...)
			})
		})
	}
}

// TestEarlyByteReachesNextRequest sends a part of the next request while a handler runs.
func TestEarlyByteReachesNextRequest(t *testing.T) {
	next := get("/held/2")
	for name, segments := range map[string][2]string{"one byte": {next[:1], next[1:]}, "all": {next, ""}, "half": {next[:9], next[9:]}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				proceed := make(chan struct{})
				h := testHandler{handle: func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/slow" {
						<-proceed
					}
					echo(w, r)
				}}
				l, _ := start(t, &h)
				c := dialActive(t, l, &h)
				c.send(get("/slow"))
				go func() {
					_, _ = io.WriteString(c, segments[0])
					_, _ = io.WriteString(c, segments[1])
				}()
				synctest.Wait()
				close(proceed)
				c.receive()
				c.receive()
				c.do(get("/held/3"))
				if name == "half" { // the start of the next request is unknown
					h.want(t, "net/http GET /slow", "net/http GET /held/2", "net/http GET /held/3")
				} else {
					h.want(t, "net/http GET /slow", "net/http GET /held/2", "hit GET /held/3")
				}
			})
		})
	}
}

func TestDisconnectCancelsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cancelled := make(chan struct{})
		h := testHandler{handle: func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				<-r.Context().Done()
				close(cancelled)
			}
			echo(w, r)
		}}
		l, _ := start(t, &h)
		c := dialActive(t, l, &h)
		c.send(get("/slow"))
		_ = c.Close()
		<-cancelled
	})
}

func TestShutdownWritesHitCompletely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proceed := make(chan struct{})
		h := testHandler{onHit: func() { <-proceed }}
		l, s := start(t, &h)
		c := dialActive(t, l, &h)
		c.send(get("/held/large"))
		done := make(chan error)
		go func() { done <- s.Shutdown(t.Context()) }()
		synctest.Wait()
		close(proceed)
		if got := c.receive(); len(got) != 30_000 {
			t.Errorf("got %d bytes, want 30000", len(got))
		}
		c.wantClosed()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestShutdownClosesIdleConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h testHandler
		l, s := start(t, &h)
		c := dialActive(t, l, &h)
		c.do(get("/held/1"))
		began := time.Now()
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("shutdown took %v, want at most one second", took)
		}
		c.wantClosed()
	})
}

func TestIdleTimeoutStartsAfterEachHit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h testHandler
		l, _ := start(t, &h)
		c := dialActive(t, l, &h)
		for range 5 {
			time.Sleep(50 * time.Second)
			c.do(get("/held/1"))
		}
		last := time.Now()
		c.wantClosed()
		if idle := time.Since(last); idle != time.Minute {
			t.Errorf("closed after %v, want one minute", idle)
		}
	})
}

func TestReadHeaderTimeoutAppliesAfterHit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h testHandler
		l, _ := start(t, &h)
		c := dialActive(t, l, &h)
		c.do(get("/held/1"))
		began := time.Now()
		c.send("GET /held/2 HTTP/1.1\r\n")
		_, _ = io.Copy(io.Discard, c.in)
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("closed after %v, want ten seconds", took)
		}
	})
}

func TestBrokenHitClosesConnection(t *testing.T) {
	for name, c := range map[string]struct {
		path  string
		onHit func()
	}{
		"panic":                  {"/held/1", func() { panic(http.ErrAbortHandler) }},
		"without Content-Length": {"/held/unframed", nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := testHandler{onHit: c.onHit}
				l, _ := start(t, &h)
				client := dialActive(t, l, &h)
				client.send(get(c.path))
				if _, err := io.ReadAll(client.in); err != nil {
					t.Errorf("got %v, want the end of the connection", err)
				}
			})
		})
	}
}

func TestNothingIsServedAfterClientDisconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proceed := make(chan struct{})
		h := testHandler{onHit: func() { <-proceed }}
		l, _ := start(t, &h)
		c := dialActive(t, l, &h)
		c.send(get("/held/1"))
		_ = c.Close()
		close(proceed)
		synctest.Wait()
		h.want(t, "hit GET /held/1")
	})
}

func TestHijackedConnectionPassesThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hijacked := make(chan net.Conn, 1)
		h := testHandler{handle: func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
			}
			hijacked <- c
		}}
		l, _ := start(t, &h)
		c := dial(t, l)
		c.send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n")
		server := <-hijacked
		go func() { _, _ = io.WriteString(c, get("/held/1")) }()
		b := make([]byte, 4096)
		if n, err := server.Read(b); err != nil || string(b[:n]) != get("/held/1") {
			t.Errorf("got %q, %v", b[:n], err)
		}
		_ = server.Close()
	})
}
