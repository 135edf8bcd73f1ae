package inbound

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

func TestConnectionsOfTrustedProxiesHaveNoBoundPerAddress(t *testing.T) {
	var c Connections
	c.LimitPerAddress(1, trustedProxies("10.0.0.0/8"))
	proxy, client := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("192.0.2.1")
	for i := range 3 {
		if !c.add(proxy) {
			t.Errorf("connection %d of the proxy was refused", i)
		}
		if got, want := c.add(client), i == 0; got != want {
			t.Errorf("connection %d of the client: got %v, want %v", i, got, want)
		}
	}
	c.remove(client)
	if !c.add(client) {
		t.Error("a closed connection still counts")
	}
}

func TestListenerClosesConnectionsAboveTheTotal(t *testing.T) {
	var limited, unlimited Connections
	limited.LimitTotal(2)
	for _, c := range []struct {
		name        string
		connections *Connections
		want        int
	}{{"limited", &limited, 2}, {"zero value", &unlimited, 10}} {
		l := testservers.ListenPipe("x")
		bounded := c.connections.Listener(l, time.Second, slog.New(slog.DiscardHandler))
		go func() {
			for range 10 {
				_, _ = l.Dial(context.Background(), "", "")
			}
			_ = l.Close()
		}()
		open := 0
		for _, err := bounded.Accept(); err == nil; _, err = bounded.Accept() {
			open++
		}
		if open != c.want {
			t.Errorf("%s: got %d open connections, want %d", c.name, open, c.want)
		}
	}
}

// slowPipe returns a connection with a write timeout of one minute, and the client's end of the connection.
func slowPipe(t *testing.T) (*conn, net.Conn) {
	near, far := net.Pipe()
	c := &conn{Conn: near, writeTimeout: time.Minute, onClose: func() {}}
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
			if err := at.set(start.Add(at.want)); err != nil {
				t.Fatal(err)
			}
			_, err := c.Write([]byte("bye"))
			if got, want := time.Since(start), min(at.want, time.Minute); !errors.Is(err, os.ErrDeadlineExceeded) || got != want {
				t.Errorf("got %v after %v, want a timeout after %v", err, got, want)
			}
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
			if (err == nil) != c.complete {
				t.Errorf("%s: wrote %d bytes: %v", c.name, n, err)
			}
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
		if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read after a timeout: got %d bytes and %v, want a timeout", n, err)
		}
	})
}
