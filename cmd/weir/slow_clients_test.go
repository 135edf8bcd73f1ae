package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/testservers"
)

// dialVirtual starts a gateway with the production timeouts and an upstream in virtual time. Each client address may
// open a limited number of connections. dial opens a connection.
func dialVirtual(t *testing.T, connections int, upstream http.HandlerFunc) (dial func() net.Conn) {
	t.Helper()
	cfg := config.Default()
	cfg.Upstream.URL, cfg.Limits.ColdStart = "http://service.test", "trust"
	cfg.Limits.Inbound.Rate, cfg.Limits.Inbound.Burst = 1, connections
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	g.transport.DialContext = testservers.ServePipe(t, "service.test:80", &http.Server{Handler: upstream}).Dial
	l := testservers.ListenPipe("gateway.test:80")
	server := newServer(g, slog.New(slog.DiscardHandler))
	g.connections.Observe(server)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(g.connections.Listener(l, clientWriteTimeout, g.log)) // until Close
	}()
	t.Cleanup(func() { _ = server.Close(); <-served })
	return func() net.Conn {
		c, err := l.Dial(context.Background(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
}

// drip writes a prefix, then one byte per pause. It returns the time until the gateway closed the connection.
func drip(c net.Conn, begin, text string, pause time.Duration) (took time.Duration) {
	began := time.Now()
	var writing sync.WaitGroup
	writing.Go(func() {
		_, err := io.WriteString(c, begin)
		for i := 0; i < len(text) && err == nil; i++ {
			_, err = c.Write([]byte{text[i]})
			time.Sleep(pause)
		}
	})
	_, _ = io.Copy(io.Discard, c) // the connection may end with or without an error
	took = time.Since(began)
	_ = c.Close()
	writing.Wait()
	return took
}

func TestSlowRequestsAreCutOff(t *testing.T) {
	echo := func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }
	endless := strings.Repeat("a", 600) // ten minutes at one byte per second
	for _, c := range []struct {
		name, begin, slowly string
		pause, want         time.Duration
	}{
		{"a header", "GET / HTTP/1.1\r\nHost: g\r\nX-A: ", endless, time.Second, 10 * time.Second},
		{"the first line", "G", endless, time.Second, 10 * time.Second},
		{"the preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nS", endless, time.Second, 0},
		{"empty request", "", "", 0, 10 * time.Second},
		{"streamed body", "PUT /user/repos HTTP/1.1\r\nHost: g\r\nContent-Length: 10000000\r\n\r\n", endless, time.Second, 30 * time.Second},
		{"buffered body", "PUT /user/repos HTTP/1.1\r\nHost: g\r\nContent-Length: 100000\r\n\r\n", endless, time.Second, 30 * time.Second},
		{"chunks", "PUT /user/repos HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n", strings.Repeat("1\r\na\r\n", 1000), time.Second, 30 * time.Second},
		{"discarded body", "GET /repos//a HTTP/1.1\r\nHost: g\r\nContent-Length: 1000\r\n\r\n", endless, time.Second, 30 * time.Second},
		{"GraphQL body, which is parsed for its cost", "POST /graphql HTTP/1.1\r\nHost: g\r\nContent-Length: 1000\r\n\r\n", endless, time.Second, 30 * time.Second},
		{"body shorter than its Content-Length", "GET /user HTTP/1.1\r\nHost: g\r\nContent-Length: 1000\r\n\r\n", "aGET /hidden HTTP/1.1\r\nHost: g\r\n\r\n", 31 * time.Second, 30 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := dialVirtual(t, 1000, echo)()
				if took := drip(conn, c.begin, c.slowly, c.pause); took < c.want || took > c.want+5*time.Second {
					t.Errorf("ended after %v, want %v", took, c.want)
				}
			})
		})
	}
}

// TestSteadySlowBodyIsReadCompletely sends a body for minutes at the minimum rate.
func TestSteadySlowBodyIsReadCompletely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := dialVirtual(t, 1000, func(w http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(io.Discard, r.Body)
			_, _ = fmt.Fprint(w, n, err)
		})()
		const pieces = 50
		go func() {
			_, _ = fmt.Fprintf(conn, "PUT /user/repos HTTP/1.1\r\nHost: g\r\nConnection: close\r\nContent-Length: %d\r\n\r\n", pieces<<14)
			for range pieces {
				time.Sleep(10 * time.Second)
				_, _ = io.WriteString(conn, strings.Repeat("a", 1<<14))
			}
		}()
		text, err := io.ReadAll(conn)
		if !strings.HasSuffix(string(text), fmt.Sprint(pieces<<14, " <nil>")) || err != nil {
			t.Errorf("response %q, %v", text, err)
		}
	})
}

// TestSlowReadersAreCutOff checks clients that read almost nothing of a response.
func TestSlowReadersAreCutOff(t *testing.T) {
	for name, path := range map[string]string{"a streamed response": "/user/repos", "a hit": "/gitignore/templates"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				large := strings.Repeat("x", 1<<20)
				dial := dialVirtual(t, 1000, func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Length", fmt.Sprint(len(large)))
					_, _ = io.WriteString(w, large)
				})
				request := "GET " + path + " HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n"
				if path != "/user/repos" {
					first := dial()
					go func() { _, _ = io.WriteString(first, request) }()
					_, _ = io.Copy(io.Discard, first)
				}
				conn, began := dial(), time.Now()
				_, _ = io.WriteString(conn, request)
				n, b := 0, make([]byte, 16)
				for {
					read, err := conn.Read(b)
					if n += read; err != nil {
						break
					}
					time.Sleep(time.Second)
				}
				if took := time.Since(began); n >= len(large) || took > 2*time.Minute {
					t.Errorf("%d bytes in %v", n, took)
				}
			})
		})
	}
}

// TestConnectionsPerAddressAreLimited checks connections with requests in progress.
func TestConnectionsPerAddressAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		dial := dialVirtual(t, 3, func(http.ResponseWriter, *http.Request) { <-release })
		served := func(c net.Conn) bool {
			_, err := c.Read(make([]byte, 1<<10))
			return err == nil
		}
		var first []net.Conn
		for i := range 3 {
			c := dial()
			if _, err := fmt.Fprintf(c, "GET /users/%d HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n", i); err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // the request is in progress
			first = append(first, c)
		}
		for range 10 {
			time.Sleep(time.Second) // the rate of new connections
			if served(dial()) {
				t.Error("a connection above the limit was accepted")
			}
		}
		close(release)
		for _, c := range first {
			if !served(c) {
				t.Error("a connection within the limit was closed")
			}
			_ = c.Close()
		}
		synctest.Wait() // the server has noticed the closed connections
		c := dial()
		_, _ = io.WriteString(c, "GET /users/4 HTTP/1.1\r\nHost: g\r\n\r\n")
		if !served(c) {
			t.Error("a connection was refused below the limit")
		}
	})
}
