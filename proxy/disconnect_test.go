package proxy

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// inFlight returns the number of open permits of the ledger.
func (w *world) inFlight() (n int) {
	w.Helper()
	for _, a := range w.accounts(100) {
		n += a.InUse
	}
	return n
}

// leaver is a client that sends a request and then disconnects.
type leaver struct {
	name string
	// send sends a request whose body, if any, stays incomplete. The returned function disconnects.
	send func(w *world, method, path string) (leave func())
}

// leavers disconnect in each way that a protocol has.
var leavers = []leaver{
	{"HTTP/1.1, connection closed", func(w *world, method, path string) func() {
		conn := w.dial()
		body := ""
		if method == http.MethodPut {
			body = "Content-Length: 100\r\n\r\nhalf"
		}
		_, _ = fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: g\r\n%s", method, path, cmp.Or(body, "\r\n"))
		go func() { _, _ = io.Copy(io.Discard, conn) }()
		return func() { _ = conn.Close() }
	}},
	{"HTTP/2, stream reset", func(w *world, method, path string) func() {
		return w.sendOverHTTP2(method, path).reset
	}},
	{"HTTP/2, connection closed", func(w *world, method, path string) func() {
		return w.sendOverHTTP2(method, path).closeConn
	}},
}

// stream is a request over HTTP/2 to the gateway.
type stream struct{ reset, closeConn func() }

// sendOverHTTP2 sends a request over a new connection with HTTP/2. A PUT has an incomplete body. The response is discarded.
func (w *world) sendOverHTTP2(method, path string) stream {
	w.Helper()
	client := w.http2Client()
	transport := client.Transport.(*http.Transport)
	dial, conns := transport.DialContext, make(chan net.Conn, 1)
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		conns <- conn
		return conn, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.Cleanup(cancel)
	var body io.Reader = http.NoBody
	if method == http.MethodPut {
		in, more := io.Pipe()
		w.Cleanup(func() { _ = more.Close() })
		body = in
		go func() { _, _ = io.WriteString(more, "half") }()
	}
	r := w.newRequest(ctx, method, "https://gateway.test"+path, body)
	if method == http.MethodPut {
		r.ContentLength = 100
	}
	go func() {
		resp, err := client.Do(r)
		if err != nil {
			return
		}
		w.want("protocol of the client", resp.Proto, "HTTP/2.0")
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}()
	conn := <-conns
	return stream{reset: cancel, closeConn: func() { _ = conn.Close() }}
}

func TestClientDisconnectReleasesItsPermit(t *testing.T) {
	for _, c := range []struct {
		name, method, path string
		// upstream is the handler that runs while the client disconnects.
		upstream http.HandlerFunc
	}{
		{"before the response", "GET", "/gitignore/templates", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
		{"during the response", "GET", "/gitignore/templates", func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprint(w, "half")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}},
		{"during the request body", "PUT", "/repos/a/b/subscription", func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }},
		{"during polls for statistics", "GET", "/repos/a/b/stats/participation", responds(http.StatusAccepted)},
	} {
		for _, l := range leavers {
			var disconnected atomic.Bool
			setup(func(w http.ResponseWriter, r *http.Request) {
				if !disconnected.Load() {
					c.upstream(w, r)
					return
				}
				_, _ = fmt.Fprint(w, "whole")
			}).sub(t, c.name+", "+l.name, func(w *world) {
				leave := l.send(w, c.method, c.path)
				time.Sleep(time.Second / 2)
				disconnected.Store(true)
				leave()
				time.Sleep(time.Minute) // unconfirmed permits are held for a while
				w.want("requests upstream, without further polls", w.upstreamSaw(), 1)
				w.want("permits in flight", w.inFlight(), 0)
				if len(w.gateway.Recent()) == 0 || w.gateway.Recent()[0].Status != statusClientGone {
					w.Errorf("got records %+v", w.gateway.Recent())
				}
				w.want("body for the next client", w.get("/gitignore/templates").body, "whole")
			})
		}
	}
}

func TestClientDisconnectRemovesItsClaimFromTheQueue(t *testing.T) {
	for _, l := range leavers {
		bubble(t, l.name, func(t *testing.T) {
			release := make(chan struct{})
			w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) { <-release })
			for i := range 3 { // the slow start allows three requests before the first response
				go func() { w.get(fmt.Sprint("/users/", i)) }()
			}
			synctest.Wait()
			leave := l.send(w, "GET", "/user")
			time.Sleep(time.Second / 2) // the slow start allows the next request after a second
			leave()
			time.Sleep(time.Second)
			close(release)
			synctest.Wait()
			w.want("requests upstream", w.upstreamSaw(), 3)
			w.want("permits in flight", w.inFlight(), 0)
		})
	}
}

// readHead reads the head of a request from a connection.
func readHead(c net.Conn) (string, error) {
	var head strings.Builder
	for b := make([]byte, 1); !strings.HasSuffix(head.String(), "\r\n\r\n"); head.WriteByte(b[0]) {
		if _, err := c.Read(b); err != nil {
			return "", err
		}
	}
	return head.String(), nil
}

// rawUpstream responds to every request with these bytes and closes the connection.
func rawUpstream(t *testing.T, response string) option {
	transport := rawTransport(t, func(c net.Conn) {
		if _, err := readHead(c); err == nil {
			_, _ = io.WriteString(c, response)
		}
	})
	return func(c *Config) { c.Transport = transport }
}

func TestMalformedResponsesOfTheUpstream(t *testing.T) {
	for _, c := range []struct {
		name, response string
		status         int
		body           string // of a successful response
		stored         bool
	}{
		{"length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole", 200, "whole", true},
		{"chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nwhole\r\n0\r\n\r\n", 200, "whole", true},
		{"end marked by close only", "HTTP/1.0 200 OK\r\n\r\nwhole", 200, "whole", false},
		{"bytes after the end", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwholeHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", 200, "whole", true},
		{"contradictory lengths", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nwhole", 502, "", false},
		{"not HTTP", "SSH-2.0-OpenSSH\r\n\r\n", 502, "", false},
		{"endless header", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 1<<20), 502, "", false},
		{"endless interim responses", strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", 10_000), 502, "", false},
		{"unrequested switch of protocols", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", 502, "", false},
		{"body of a 204", "HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nbody", 204, "", false},
	} {
		bubble(t, c.name, func(t *testing.T) {
			w := newWorld(t, nothing, rawUpstream(t, c.response))
			for _, cacheStatus := range []string{"fwd=uri-miss", "hit"} {
				r := w.get("/gitignore/templates")
				w.want("status", r.StatusCode, c.status)
				if c.status < 300 {
					w.want("body", r.body, c.body)
				} else {
					w.refused(r, c.status, "Bad Gateway")
				}
				if c.stored && !strings.Contains(r.Header.Get("Cache-Status"), cacheStatus) {
					t.Errorf("want %s, got %s", cacheStatus, r.Header.Get("Cache-Status"))
				}
				if !c.stored && strings.Contains(r.Header.Get("Cache-Status"), "hit") {
					t.Errorf("the response was stored: %s", r.Header.Get("Cache-Status"))
				}
			}
			time.Sleep(10 * time.Second) // unconfirmed permits are held for a while
			w.want("permits in flight", w.inFlight(), 0)
		})
	}
}
