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

	"github.com/weirgate/weir/internal/testservers"
)

// localListener is a listener in memory whose connections report its address as their own.
type localListener struct{ *testservers.PipeListener }

// localConn is a connection of a localListener.
type localConn struct {
	net.Conn
	address net.Addr
}

func (c localConn) LocalAddr() net.Addr { return c.address }

func (l localListener) Accept() (net.Conn, error) {
	c, err := l.PipeListener.Accept()
	return localConn{c, l.Addr()}, err
}

// dialVirtual starts a gateway with the production timeouts and an upstream in virtual time. Each client address may
// open a limited number of connections. dial opens a connection.
func dialVirtual(t *testing.T, connections int, upstream http.HandlerFunc) (g *gateway, dial func() net.Conn) {
	t.Helper()
	g = open(t, configure("http://service.test", trusting, inboundRate(min(1, connections), connections)))
	connectTo(t, g, upstream)
	l := testservers.ListenPipe("gateway.test:80")
	server := newServer(g, slog.New(slog.DiscardHandler))
	g.connections.Observe(server)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(g.connections.Listener(localListener{l}, clientWriteTimeout, g.log)) // until Close
	}()
	t.Cleanup(func() { _ = server.Close(); <-served })
	return g, func() net.Conn {
		c := must(l.Dial(context.Background(), "", ""))(t)
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
	synctest.Test(t, func(t *testing.T) {
		_, dial := dialVirtual(t, 1000, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
		const host = " HTTP/1.1\r\nHost: g\r\n"
		endless := strings.Repeat("a", 600) // ten minutes at one byte per second
		for _, c := range []struct {
			name, begin, slowly string
			pause, want         time.Duration
		}{
			{"a header", "GET /" + host + "X-A: ", endless, time.Second, 10 * time.Second},
			{"the first line", "G", endless, time.Second, 10 * time.Second},
			{"the preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nS", endless, time.Second, 0},
			{"empty request", "", "", 0, 10 * time.Second},
			{"streamed body", "PUT /user/repos" + host + "Content-Length: 10000000\r\n\r\n", endless, time.Second, 30 * time.Second},
			{"buffered body", "PUT /user/repos" + host + "Content-Length: 100000\r\n\r\n", endless, time.Second, 30 * time.Second},
			{"chunks", "PUT /user/repos" + host + "Transfer-Encoding: chunked\r\n\r\n", strings.Repeat("1\r\na\r\n", 1000), time.Second, 30 * time.Second},
			{"discarded body", "GET /repos//a" + host + "Content-Length: 1000\r\n\r\n", endless, time.Second, 30 * time.Second},
			{"GraphQL body, which is parsed for its cost", "POST /graphql" + host + "Content-Length: 1000\r\n\r\n", endless, time.Second, 30 * time.Second},
			{
				"body shorter than its Content-Length", "GET /user" + host + "Content-Length: 1000\r\n\r\n", "aGET /hidden HTTP/1.1\r\nHost: g\r\n\r\n",
				31 * time.Second, 30 * time.Second,
			},
		} {
			took := drip(dial(), c.begin, c.slowly, c.pause)
			failIf(t, took < c.want || took > c.want+5*time.Second, "%s: ended after %v, want %v", c.name, took, c.want)
		}
	})
}

// TestSteadySlowBodyIsReadCompletely sends a body for minutes at the minimum rate.
func TestSteadySlowBodyIsReadCompletely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, dial := dialVirtual(t, 1000, func(w http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(io.Discard, r.Body)
			_, _ = fmt.Fprint(w, n, err)
		})
		conn := dial()
		const pieces = 50
		go func() {
			_, _ = fmt.Fprintf(conn, "PUT /user/repos HTTP/1.1\r\nHost: g\r\nConnection: close\r\nContent-Length: %d\r\n\r\n", pieces<<14)
			for range pieces {
				time.Sleep(10 * time.Second)
				_, _ = io.WriteString(conn, strings.Repeat("a", 1<<14))
			}
		}()
		text, err := io.ReadAll(conn)
		failIf(t, !strings.HasSuffix(string(text), fmt.Sprint(pieces<<14, " <nil>")) || err != nil, "response %q, %v", text, err)
	})
}

// TestSlowReadersAreCutOff checks clients that read almost nothing of a streamed response, and of a hit.
func TestSlowReadersAreCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		large := strings.Repeat("x", 1<<20)
		_, dial := dialVirtual(t, 1000, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(large)))
			_, _ = io.WriteString(w, large)
		})
		send := func(path string) net.Conn {
			c := dial()
			go func() { _, _ = io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n") }()
			return c
		}
		_, _ = io.Copy(io.Discard, send("/gitignore/templates")) // is stored
		for _, path := range []string{"/user/repos", "/gitignore/templates"} {
			conn, began := send(path), time.Now()
			n, b := 0, make([]byte, 16)
			for {
				read, err := conn.Read(b)
				if n += read; err != nil {
					break
				}
				time.Sleep(time.Second)
			}
			took := time.Since(began)
			failIf(t, n >= len(large) || took > 2*time.Minute, "%s: %d bytes in %v", path, n, took)
		}
	})
}

// TestConnectionsPerAddressAreLimited checks connections with requests in progress.
func TestConnectionsPerAddressAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		_, dial := dialVirtual(t, 3, func(http.ResponseWriter, *http.Request) { <-release })
		served := func(c net.Conn) bool {
			_, err := c.Read(make([]byte, 1<<10))
			return err == nil
		}
		var first []net.Conn
		for i := range 3 {
			c := dial()
			must(fmt.Fprintf(c, "GET /users/%d HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n", i))(t)
			synctest.Wait() // the request is in progress
			first = append(first, c)
		}
		for range 10 {
			time.Sleep(time.Second) // the rate of new connections
			failIf(t, served(dial()), "a connection above the limit was accepted")
		}
		close(release)
		for _, c := range first {
			failIf(t, !served(c), "a connection within the limit was closed")
			_ = c.Close()
		}
		synctest.Wait() // the server has noticed the closed connections
		c := dial()
		_, _ = io.WriteString(c, "GET /users/4 HTTP/1.1\r\nHost: g\r\n\r\n")
		failIf(t, !served(c), "a connection was refused below the limit")
	})
}

// slowBody returns a body that arrives at a rate in bytes per second.
func slowBody(rate, size int) io.ReadCloser {
	out, in := io.Pipe()
	go func() {
		for sent := 0; sent < size; sent += rate {
			time.Sleep(time.Second)
			if _, err := in.Write(make([]byte, min(rate, size-sent))); err != nil {
				return
			}
		}
		_ = in.Close()
	}()
	return out
}

// upload sends n slow bodies at the same time, with or without a Content-Length.
func (c *credentialRig) upload(n, rate, size int, withLength bool) (codes chan int) {
	codes = make(chan int, n)
	for i := range n {
		go func() {
			r := newRequest(http.MethodPost, fmt.Sprintf("/repos/acme/x%d/rulesets", i), "", "Authorization: Bearer key-of-docs")
			r.Body = slowBody(rate, size)
			defer func() { _ = r.Body.Close() }() // net/http also closes the body
			if r.ContentLength = -1; withLength {
				r.ContentLength = int64(size)
			}
			codes <- serveRequest(c.g, r).Code
		}()
	}
	return codes
}

// TestSlowUploadsBlockNoOtherClient checks that slow uploads hold no permits of an account
// that other clients use.
func TestSlowUploadsBlockNoOtherClient(t *testing.T) {
	const mebi = 1 << 20
	for _, u := range []struct {
		name       string
		rate, size int
		withLength bool
		waiting    int // at the upstream, after a minute
		status     int
	}{
		{"small bodies are buffered before the claim", 3000, mebi, true, 0, 200},
		{"small bodies without Content-Length are buffered before the claim", 3000, mebi, false, 0, 200},
		{"large bodies are streamed", 3000, 5 * mebi / 4, true, 20, 200},
		{"slow small bodies time out", 1100, mebi, true, 0, 408},
		{"slow large bodies time out", 1100, 8 * mebi, true, 20, 408},
		{"endless bodies time out", 3000, 1 << 40, false, 0, 408},
	} {
		t.Run(u.name, func(t *testing.T) {
			withCredentials(t, func(c *credentialRig) {
				c.answer = func(_ string, _ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }
				for i := range 32 { // requests with a known length
					c.request("builds", http.MethodPost, fmt.Sprintf("/repos/acme/x%d/rulesets", i), 200)
					time.Sleep(10 * time.Second)
				}
				c.takeTokens()
				codes := c.upload(20, u.rate, u.size, u.withLength)
				time.Sleep(time.Minute)
				waiting := len(c.takeTokens())
				failIf(t, waiting != u.waiting, "%d requests are upstream, want %d", waiting, u.waiting)
				for i := range 8 {
					c.wantTokens(fmt.Sprintf("/repos/acme/x%d/subscribers", i), 200, "tok-a")
					time.Sleep(time.Minute)
				}
				for range 20 {
					code := <-codes
					failIf(t, code != u.status, "status %d, want %d", code, u.status)
				}
				time.Sleep(time.Minute) // the uploads end
			}, user("a"))
		})
	}
}

// TestAbortIsVisibleInHTTP10 checks that a client to which the end of the connection is the end of the body sees a fault.
func TestAbortIsVisibleInHTTP10(t *testing.T) {
	g := open(t, configure(serveAPI(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, 100_000))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}), trusting))
	server := newServer(g, slog.New(slog.DiscardHandler))
	g.connections.Observe(server)
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(g.connections.Listener(l, clientWriteTimeout, g.log)) // until Close
	}()
	defer func() { _ = server.Close(); <-served }()
	c := must(net.Dial("tcp", l.Addr().String()))(t)
	defer func() { _ = c.Close() }()
	_, _ = io.WriteString(c, "GET /a HTTP/1.0\r\n\r\n")
	text, err := io.ReadAll(c)
	failIf(t, err == nil, "got %d bytes with a clean end", len(text))
}
