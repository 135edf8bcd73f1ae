package inbound

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }
func noError(t testing.TB, err error)                 { t.Helper(); testservers.NoError(t, err) }
func stopIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.StopIf(t, c, f, a...) }

// testConn is a connection from an address.
type testConn struct {
	net.Conn
	from   string
	closed bool
}

func (c *testConn) RemoteAddr() net.Addr { return testservers.PipeAddress(c.from + ":1000") }

func (c *testConn) Close() error {
	c.closed = true
	return nil
}

// server is a listener that accepts one connection at a time.
type server struct {
	Connections
	hooks    http.Server
	arriving *testConn
}

// setState reports a state as net/http does.
func (s *server) setState(c net.Conn, state http.ConnState) {
	s.Observe(&s.hooks)
	s.hooks.ConnState(c, state)
}

func (s *server) Addr() net.Addr { return testservers.PipeAddress("server") }
func (s *server) Close() error   { return nil }

func (s *server) Accept() (c net.Conn, err error) {
	if s.arriving == nil {
		return nil, io.EOF
	}
	c, s.arriving = s.arriving, nil
	return c, nil
}

// open opens a connection. served is nil if the server closes the connection immediately.
func (s *server) open(from string) (client *testConn, served net.Conn) {
	client = &testConn{from: from}
	s.arriving = client
	served, err := s.Listener(s, time.Second, slog.New(slog.DiscardHandler)).Accept()
	if (err == nil) == client.closed {
		panic("a connection is either served or closed")
	}
	return client, served
}

// openAll opens n connections and sets their states. It returns the number of connections that are served.
func (s *server) openAll(n int, from string, state http.ConnState) (served int) {
	for range n {
		if _, c := s.open(from); c != nil {
			s.setState(c, state)
			served++
		}
	}
	return served
}

func TestNumberOfConnectionsIsBounded(t *testing.T) {
	type opened struct {
		from         string
		n, want      int
		closesOldest bool // the first connection of all, which waits for a request
	}
	for _, c := range []struct {
		name       string
		total      int
		perAddress int
		steps      []opened
	}{
		{"no bound", 0, 0, []opened{{"192.0.2.1", 10, 10, false}}},
		{"total", 12, 0, []opened{{"192.0.2.1", 10, 10, false}, {"192.0.2.2", 10, 2, false}}},
		{"half of the total for an address", 100, 1000, []opened{{"192.0.2.1", 100, 50, false}, {"192.0.2.2", 100, 50, false}}},
		{"a trusted proxy has no bound per address", 0, 1, []opened{{"10.0.0.1", 3, 3, false}, {"192.0.2.1", 3, 1, false}}},
		{
			"a new connection replaces a waiting one of its address", 0, 3,
			[]opened{{"192.0.2.3", 0, 1, false}, {"192.0.2.3", 2, 2, false}, {"192.0.2.3", 2, 1, true}},
		},
	} {
		var s server
		s.LimitTotal(c.total)
		if c.perAddress > 0 {
			s.LimitPerAddress(1000, c.perAddress, trustedProxies("10.0.0.0/8"))
		}
		var waiting *testConn
		for _, o := range c.steps {
			if o.n == 0 {
				waiting, _ = s.open(o.from)
				continue
			}
			n := s.openAll(o.n, o.from, http.StateActive)
			failIf(t, n != o.want, "%s: %d of %d connections of %s are served, want %d", c.name, n, o.n, o.from, o.want)
			if waiting != nil && waiting.closed != o.closesOldest {
				t.Errorf("%s: the waiting connection is closed: %v, want %v", c.name, waiting.closed, o.closesOldest)
			}
		}
	}
}

func TestClosedConnectionsDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s server
		s.LimitPerAddress(1000, 1, nil)
		for i := range 10 {
			_, c := s.open("192.0.2.1")
			stopIf(t, c == nil, "connection %d was refused", i)
			_, _ = c.Close(), c.Close() // net/http may close a connection twice
			time.Sleep(time.Second)     // the rate of new connections
		}
	})
}

func TestNewConnectionsPerAddressHaveARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s server
		s.LimitPerAddress(10, 100, nil)
		served := func(from string) (n int) {
			for range 1000 {
				if _, c := s.open(from); c != nil {
					_ = c.Close()
					n++
				}
			}
			return n
		}
		first, other := served("192.0.2.1"), served("192.0.2.2")
		time.Sleep(time.Second)
		later := served("192.0.2.1")
		failIf(t, first != 200 || other != 200 || later != 20, "%d connections are served, %d of another address, and %d a second later; want 200, 200 and 20", first, other, later)
	})
}

// TestNewConnectionReplacesAWaitingOne fills the total with connections of one address that wait for a request. Other
// clients must get connections, and keep their idle connections.
func TestNewConnectionReplacesAWaitingOne(t *testing.T) {
	for _, state := range []http.ConnState{http.StateNew, http.StateIdle} {
		t.Run(state.String(), func(t *testing.T) {
			var s server
			s.LimitTotal(100)
			other, idle := s.open("192.0.2.2")
			s.setState(idle, http.StateIdle)
			oldest, first := s.open("192.0.2.1")
			busy, working := s.open("192.0.2.1")
			s.setState(first, state)
			s.setState(working, http.StateActive)
			n := s.openAll(1000, "192.0.2.1", state)
			failIf(t, n != 1000, "%d of 1,000 connections are served", n)
			failIf(t, !oldest.closed || busy.closed || other.closed, "closed: the oldest %v, one with a request %v, one of another address %v; want only the oldest", oldest.closed, busy.closed, other.closed)
			_, c := s.open("192.0.2.2")
			failIf(t, c == nil, "a connection of another address is refused")
		})
	}
}

// TestIdleConnectionsOfTrustedProxiesAreKept floods a server behind a load balancer with idle connections.
func TestIdleConnectionsOfTrustedProxiesAreKept(t *testing.T) {
	var s server
	s.LimitTotal(1000)
	s.LimitPerAddress(1000, 1000, trustedProxies("10.0.0.0/8"))
	var balancer []*testConn
	for range 100 {
		client, c := s.open("10.0.0.1")
		s.setState(c, http.StateIdle)
		balancer = append(balancer, client)
	}
	for i := range 5000 {
		if _, c := s.open(fmt.Sprintf("192.0.%d.%d", i/50%256, i%200)); c != nil {
			s.setState(c, http.StateIdle)
		}
	}
	for i, c := range balancer {
		stopIf(t, c.closed, "connection %d of the balancer was closed", i)
	}
}

// TestWaitingConnectionsAreBounded checks the bound of the memory for idle connections of many addresses.
func TestWaitingConnectionsAreBounded(t *testing.T) {
	var s server
	var clients []*testConn
	for i := range 2 * maxWaiting {
		client, c := s.open(fmt.Sprintf("10.0.%d.%d", i%50, i%200))
		stopIf(t, c == nil, "connection %d is refused", i)
		s.setState(c, http.StateIdle)
		clients = append(clients, client)
	}
	clients = slices.DeleteFunc(clients, func(c *testConn) bool { return c.closed })
	open := len(clients)
	failIf(t, open != maxWaiting, "%d idle connections are open, want %d", open, maxWaiting)
	n := s.openAll(maxWaiting, "192.0.2.1", http.StateActive)
	failIf(t, n != maxWaiting, "%d of %d connections with requests are served", n, maxWaiting)
}

// TestOverheadIsReadSlowly sends bytes to a server that allows 10 requests per second. Bodies must not be delayed.
func TestOverheadIsReadSlowly(t *testing.T) {
	const (
		size      = 50 << 10
		perSecond = 10 * overheadPerRequest
	)
	for _, c := range []struct {
		name, piece string
		want        time.Duration // for 100 pieces
	}{
		{"bodies", fmt.Sprintf("PUT / HTTP/1.1\r\nHost: g\r\nContent-Length: %d\r\n\r\n%s", size, strings.Repeat("a", size)), 0},
		{"header fields", "GET / HTTP/1.1\r\nHost: g\r\nX-A: " + strings.Repeat("a", size) + "\r\n\r\n", 100 * size * time.Second / perSecond},
		{"small chunks", "PUT / HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1\r\na\r\n", size/6) + "0\r\n\r\n", 100 * size * 5 / 6 * time.Second / perSecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var connections Connections
				connections.LimitPerAddress(10, 10, nil)
				var handled atomic.Int32
				httpServer := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					r, body := LimitBody(w, r, time.Hour, 0)
					defer body.Detach()
					_, _ = io.Copy(io.Discard, r.Body)
					handled.Add(1)
				})}
				connections.Observe(httpServer)
				l := testservers.ListenPipe("192.0.2.1:1000")
				var serving sync.WaitGroup
				serving.Go(func() { _ = httpServer.Serve(connections.Listener(l, time.Hour, slog.New(slog.DiscardHandler))) })
				conn, err := l.Dial(t.Context(), "", "")
				noError(t, err)
				serving.Go(func() { _, _ = io.Copy(io.Discard, conn) })
				began := time.Now()
				for range 100 {
					_, _ = io.WriteString(conn, c.piece)
				}
				synctest.Wait()
				took := time.Since(began)
				_, _ = conn.Close(), httpServer.Close()
				serving.Wait()
				time.Sleep(2 * maxReadDelay) // a delayed read ends
				failIf(t, took < c.want*9/10-time.Second || took > c.want*11/10+3*time.Second || handled.Load() < 99, "100 pieces took %v, want %v; %d were handled", took, c.want, handled.Load())
			})
		})
	}
}

// slowPipe returns a connection with a write timeout of one minute, and the client's end of the connection.
func slowPipe(t *testing.T) (*conn, net.Conn) {
	near, far := net.Pipe()
	c := &conn{Conn: near, writeTimeout: time.Minute, connections: &Connections{}}
	t.Cleanup(func() { _, _ = c.Close(), far.Close() })
	return c, far
}

func TestWriteKeepsEarlierDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := slowPipe(t)
		for _, at := range []struct {
			set  func(time.Time) error
			want time.Duration
		}{{c.SetWriteDeadline, 5 * time.Second}, {c.SetDeadline, 7 * time.Second}, {c.SetWriteDeadline, time.Hour}} {
			start := time.Now()
			noError(t, at.set(start.Add(at.want)))
			_, err := c.Write([]byte("bye"))
			got, want := time.Since(start), min(at.want, time.Minute)
			failIf(t, !errors.Is(err, os.ErrDeadlineExceeded) || got != want, "got %v after %v, want a timeout after %v", err, got, want)
		}
	})
}

func TestWriteContinuesWhileTheClientReads(t *testing.T) {
	for _, c := range []struct {
		name      string
		perMinute int
		complete  bool
	}{{"fast enough", writeSize, true}, {"too slow", writeSize - 1, false}} {
		synctest.Test(t, func(t *testing.T) {
			near, far := slowPipe(t)
			var reading sync.WaitGroup
			reading.Go(func() {
				for {
					if _, err := io.CopyN(io.Discard, far, int64(c.perMinute)); err != nil {
						return
					}
					time.Sleep(59 * time.Second)
				}
			})
			n, err := near.Write(make([]byte, 5*writeSize))
			failIf(t, (err == nil) != c.complete, "%s: wrote %d bytes: %v", c.name, n, err)
			_ = near.Close()
			reading.Wait()
		})
	}
}

func TestReadReturnsNothingAfterATimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, far := slowPipe(t)
		go func() { _, _ = io.WriteString(far, "late") }()
		_ = c.SetReadDeadline(time.Unix(1, 0)) // as net/http does to abort its own read
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("aborted read: got %v, want a timeout", err)
		}
		_ = c.SetReadDeadline(time.Time{})
		if n, err := c.Read(make([]byte, 1)); n != 1 || err != nil {
			t.Errorf("read after an abort: got %d bytes and %v, want one byte", n, err)
		}
		_ = c.SetReadDeadline(time.Now().Add(-time.Second))
		_, _ = c.Read(make([]byte, 1))
		_ = c.SetReadDeadline(time.Time{})
		n, err := c.Read(make([]byte, 1))
		failIf(t, n != 0 || !errors.Is(err, os.ErrDeadlineExceeded), "read after a timeout: got %d bytes and %v, want a timeout", n, err)
	})
}

// deadlineRecorder is a response writer that records read deadlines.
type deadlineRecorder struct {
	http.ResponseWriter
	read []time.Time
}

func (d *deadlineRecorder) SetReadDeadline(t time.Time) error {
	d.read = append(d.read, t)
	return nil
}

// testBody returns a body of two bytes for a version of HTTP.
func testBody(d *deadlineRecorder, version int) *Body {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("xx"))
	r.ProtoMajor = version
	_, b := LimitBody(d, r, time.Minute, 0)
	return b
}

func TestDetachedBodySetsNoDeadlines(t *testing.T) {
	for _, version := range []int{1, 2} {
		d := &deadlineRecorder{}
		b := testBody(d, version)
		if _, err := b.Read(make([]byte, 1)); err != nil || len(d.read) == 0 {
			t.Fatalf("HTTP/%d: got %v and %d deadlines, want at least one deadline", version, err, len(d.read))
		}
		b.Detach()
		before := len(d.read)
		_, err := io.ReadAll(b)
		failIf(t, err != nil || len(d.read) != before, "HTTP/%d: got %v and %d more deadlines, want none", version, err, len(d.read)-before)
	}
}

func TestHTTP2BodyHasDeadlinesOnlyInsideRead(t *testing.T) {
	d := &deadlineRecorder{}
	b := testBody(d, 2)
	failIf(t, len(d.read) > 0, "a deadline was set before the first read")
	_, err := b.Read(make([]byte, 1))
	failIf(t, err != nil || len(d.read) != 2 || d.read[0].IsZero() || !d.read[1].IsZero(), "got deadlines %v and %v, want one deadline that is removed after the read", d.read, err)
}

// slowReader needs one second for each read.
type slowReader struct{}

func (slowReader) Read(p []byte) (int, error) {
	time.Sleep(time.Second)
	return len(p), nil
}

func TestBodyTotalCountsOnlyTimeInsideRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := httptest.NewRequest(http.MethodPost, "/", slowReader{})
		_, b := LimitBody(&deadlineRecorder{}, r, time.Minute, 5*time.Second)
		for i := range 5 {
			_, err := b.Read(make([]byte, 4<<10))
			failIf(t, err != nil, "read %d: %v", i, err)
			time.Sleep(time.Hour)
		}
		_, err := b.Read(make([]byte, 4<<10))
		var invalid *BodyError
		failIf(t, !errors.As(err, &invalid) || !invalid.Timeout || b.Err() == nil, "after five seconds: got %v, want a timeout", err)
	})
}

func trustedProxies(networks ...string) TrustedProxies {
	var t TrustedProxies
	for _, n := range networks {
		t = append(t, netip.MustParsePrefix(n))
	}
	return t
}

// TestClientAddressUsesTrustedProxiesOnly covers attack 14 of docs/internals/attacks.md.
func TestClientAddressUsesTrustedProxiesOnly(t *testing.T) {
	proxies := trustedProxies("10.0.0.0/8", "2001:db8::1/128")
	for _, c := range []struct {
		name, remote string
		forwarded    []string
		want         string
	}{
		{"client without the field", "192.0.2.1:1", nil, "192.0.2.1"},
		{"client that forges the field", "192.0.2.1:1", []string{"203.0.113.1"}, "192.0.2.1"},
		{"proxy without the field", "10.0.0.1:1", nil, "10.0.0.1"},
		{"proxy", "10.0.0.1:1", []string{"203.0.113.1"}, "203.0.113.1"},
		{"IPv6 proxy", "[2001:db8::1]:1", []string{"203.0.113.1"}, "203.0.113.1"},
		{"IPv4-mapped addresses", "[::ffff:10.0.0.1]:1", []string{"::ffff:203.0.113.1"}, "203.0.113.1"},
		{"proxy after a client that forges the field", "10.0.0.1:1", []string{"198.51.100.1, 203.0.113.1"}, "203.0.113.1"},
		{"two proxies", "10.0.0.1:1", []string{"198.51.100.1, 203.0.113.1 , 10.0.0.2"}, "203.0.113.1"},
		{"two field lines", "10.0.0.1:1", []string{"198.51.100.1", "203.0.113.1,10.0.0.2"}, "203.0.113.1"},
		{"only proxies", "10.0.0.1:1", []string{"10.0.0.3,10.0.0.2"}, "10.0.0.3"},
		{"invalid address", "10.0.0.1:1", []string{"203.0.113.1, unknown, 10.0.0.2"}, "10.0.0.2"},
		{"empty member", "10.0.0.1:1", []string{"203.0.113.1,"}, "10.0.0.1"},
		{"address with a zone", "10.0.0.1:1", []string{"fe80::1%eth0"}, "fe80::1"},
		{"address with a port", "10.0.0.1:1", []string{"203.0.113.1:4711, 10.0.0.2:99"}, "203.0.113.1"},
		{"IPv6 address with a port", "10.0.0.1:1", []string{"[2001:db8::9]:4711"}, "2001:db8::9"},
		{"Unix socket", "@", []string{"203.0.113.1"}, "invalid IP"},
		{"Forwarded", "10.0.0.1:1", []string{`for=198.51.100.1, For="[2001:db8::9]:4711";proto=https, for="10.0.0.2:99"`}, "2001:db8::9"},
		{"Forwarded, hidden", "10.0.0.1:1", []string{"for=198.51.100.1, for=_hidden, for=10.0.0.2"}, "10.0.0.2"},
		{"Forwarded, without an address", "10.0.0.1:1", []string{"for=198.51.100.1, proto=https"}, "10.0.0.1"},
		{"Forwarded, forged", "192.0.2.1:1", []string{"for=203.0.113.1"}, "192.0.2.1"},
	} {
		field := "X-Forwarded-For"
		if strings.HasPrefix(c.name, "Forwarded") {
			field = "Forwarded"
		}
		r := &http.Request{RemoteAddr: c.remote, Header: http.Header{field: c.forwarded}}
		got := proxies.ClientAddress(r).String()
		failIf(t, got != c.want, "%s: got %s, want %s", c.name, got, c.want)
	}
}
