package proxy

import (
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

	"github.com/weirgate/weir/internal/testservers"
)

// inFlight is how many permits the ledger has given out and not got back.
func (w *world) inFlight() int {
	accounts, err := w.gateway.Ledger.Accounts(context.Background(), 100)
	if err != nil {
		w.Fatal(err)
	}
	n := 0
	for _, a := range accounts {
		n += a.InUse
	}
	return n
}

func TestClientThatLeavesLeavesNothingBehind(t *testing.T) {
	for _, c := range []struct {
		name    string
		request string
		// stage is what the upstream does while the client leaves.
		stage http.HandlerFunc
	}{
		{"before the answer has begun", "GET /gitignore/templates HTTP/1.1\r\nHost: g\r\n\r\n", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
		{"in the middle of the answer", "GET /gitignore/templates HTTP/1.1\r\nHost: g\r\n\r\n", func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprint(w, "half")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}},
		{"in the middle of its own request", "PUT /repos/a/b/subscription HTTP/1.1\r\nHost: g\r\nContent-Length: 100\r\n\r\nhalf", func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }},
		{"while statistics are computed", "GET /repos/a/b/stats/participation HTTP/1.1\r\nHost: g\r\n\r\n", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var left atomic.Bool
				w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
					if !left.Load() {
						c.stage(w, r)
						return
					}
					_, _ = fmt.Fprint(w, "whole")
				})
				conn := w.dial()
				_, _ = io.WriteString(conn, c.request)
				buffer := make([]byte, 1<<10)
				_ = conn.SetReadDeadline(time.Now().Add(time.Second / 2))
				_, _ = conn.Read(buffer)
				left.Store(true)
				_ = conn.Close()
				time.Sleep(10 * time.Second) // for so long the upstream may be at work on it
				w.want("permits in flight", w.inFlight(), 0)
				if len(w.gateway.Recent()) == 0 || w.gateway.Recent()[0].Status != statusClientGone {
					t.Errorf("logged as %+v", w.gateway.Recent())
				}
				w.want("the next client's answer", w.get("/gitignore/templates").body, "whole")
			})
		})
	}
}

func TestAttack48ClientThatLeavesTheQueueGivesUpItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) { <-release })
		for i := range 3 { // as many as go before the first answer
			go func() { w.get(fmt.Sprint("/users/", i)) }()
		}
		synctest.Wait()
		conn := w.dial()
		_, _ = io.WriteString(conn, "GET /user HTTP/1.1\r\nHost: g\r\n\r\n")
		time.Sleep(time.Second / 2) // in a second another may go
		_ = conn.Close()
		time.Sleep(time.Second)
		close(release)
		synctest.Wait()
		w.want("requests upstream", w.upstreamSaw(), 3)
		w.want("permits in flight", w.inFlight(), 0)
	})
}

// rawUpstream answers every request with these bytes and closes.
func rawUpstream(t *testing.T, answer string) option {
	l := testservers.ListenPipe("raw.test:80")
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				head := make([]byte, 1)
				for seen := ""; !strings.HasSuffix(seen, "\r\n\r\n"); seen += string(head) {
					if _, err := c.Read(head); err != nil {
						return
					}
				}
				_, _ = io.WriteString(c, answer)
			}()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return func(c *Config) {
		transport := NewTransport()
		transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			return l.Dial(ctx, network, address)
		}
		t.Cleanup(transport.CloseIdleConnections)
		c.Transport = transport
	}
}

func TestAttack9UpstreamThatSpeaksBadHTTP(t *testing.T) {
	for _, c := range []struct {
		name, answer string
		status       int
		body         string // of a success
		kept         bool
	}{
		{"a length, and all of it", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole", 200, "whole", true},
		{"chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nwhole\r\n0\r\n\r\n", 200, "whole", true},
		{"an end that nothing marks", "HTTP/1.0 200 OK\r\n\r\nwhole", 200, "whole", false},
		{"bytes after the end", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwholeHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", 200, "whole", true},
		{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nwhole", 502, "", false},
		{"no HTTP", "SSH-2.0-OpenSSH\r\n\r\n", 502, "", false},
		{"a header without end", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 1<<20), 502, "", false},
		{"interim answers without end", strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", 10_000), 502, "", false},
		{"a switch of protocols that nobody asked for", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", 502, "", false},
		{"a body where there is none", "HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nbody", 204, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, nothing, rawUpstream(t, c.answer))
				for _, turn := range []string{"fwd=uri-miss", "hit"} {
					r := w.get("/gitignore/templates")
					w.want("status", r.StatusCode, c.status)
					if c.status < 300 {
						w.want("body", r.body, c.body)
					} else {
						w.refused(r, c.status, "Bad Gateway")
					}
					if c.kept && !strings.Contains(r.Header.Get("Cache-Status"), turn) {
						t.Errorf("%s: %s", turn, r.Header.Get("Cache-Status"))
					}
					if !c.kept && strings.Contains(r.Header.Get("Cache-Status"), "hit") {
						t.Errorf("kept: %s", r.Header.Get("Cache-Status"))
					}
				}
				time.Sleep(10 * time.Second) // the upstream may be at work on what it refused to end
				w.want("permits in flight", w.inFlight(), 0)
			})
		})
	}
}
