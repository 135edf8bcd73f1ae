package proxy

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// deadlines is a client's connection of which only these are looked at.
type deadlines struct {
	http.ResponseWriter
	read []time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.read = append(d.read, t)
	return nil
}

// bodyOf is a body that brings a byte at each read, by a version of HTTP.
func bodyOf(d *deadlines, version int) *clientBody {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("xx"))
	r.ProtoMajor = version
	_, b := patiently(d, r, time.Minute, 0)
	return b
}

// TestNoConnectionIsTouchedBehindItsHandler: a transport reads on when a handler has
// returned, and the connection is another request's then, or a stream that is gone.
func TestNoConnectionIsTouchedBehindItsHandler(t *testing.T) {
	for _, version := range []int{1, 2} {
		d := &deadlines{}
		b := bodyOf(d, version)
		if _, err := b.Read(make([]byte, 1)); err != nil || len(d.read) == 0 {
			t.Fatalf("HTTP/%d: %v, and %d deadlines", version, err, len(d.read))
		}
		b.end()
		before := len(d.read)
		if _, err := io.ReadAll(b); err != nil || len(d.read) != before {
			t.Errorf("HTTP/%d: %v, and %d deadlines more", version, err, len(d.read)-before)
		}
	}
}

// TestNoDeadlineOfAStreamPassesWhileNobodyReads: in HTTP/2 it would end the body.
func TestNoDeadlineOfAStreamPassesWhileNobodyReads(t *testing.T) {
	d := &deadlines{}
	b := bodyOf(d, 2)
	if len(d.read) > 0 {
		t.Error("there is a deadline before anybody reads")
	}
	if _, err := b.Read(make([]byte, 1)); err != nil || len(d.read) != 2 || d.read[0].IsZero() || !d.read[1].IsZero() {
		t.Errorf("deadlines at %v, %v", d.read, err)
	}
}

// late is a body each piece of which takes a second.
type late struct{}

func (late) Read(p []byte) (int, error) {
	time.Sleep(time.Second)
	return len(p), nil
}

// TestABodyIsWaitedForSoLongInAll: the time in which nobody reads is not counted.
func TestABodyIsWaitedForSoLongInAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := httptest.NewRequest(http.MethodPost, "/", late{})
		_, b := patiently(&deadlines{}, r, time.Minute, 5*time.Second)
		for i := range 5 {
			if _, err := b.Read(make([]byte, 4<<10)); err != nil {
				t.Errorf("after %d pieces: %v", i, err)
			}
			time.Sleep(time.Hour)
		}
		if _, err := b.Read(make([]byte, 4<<10)); err == nil || b.fault.Load().status != http.StatusRequestTimeout {
			t.Errorf("after five seconds: %v", err)
		}
	})
}

// TestADeadlineThatSomebodyHasSetIsKept: patience with a reader makes it no later.
func TestADeadlineThatSomebodyHasSetIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer func() { _ = far.Close() }()
		c := &patientConn{Conn: near, patience: time.Minute, left: func() {}}
		defer func() { _ = c.Close() }()
		for _, at := range []struct {
			set  func(time.Time) error
			want time.Duration
		}{{c.SetWriteDeadline, 5 * time.Second}, {c.SetDeadline, 7 * time.Second}, {c.SetWriteDeadline, time.Hour}} {
			began := time.Now()
			if err := at.set(began.Add(at.want)); err != nil {
				t.Fatal(err)
			}
			_, err := c.Write([]byte("bye"))
			if took := time.Since(began); !isTimeout(err) || took != min(at.want, time.Minute) {
				t.Errorf("ended after %v, want %v: %v", took, at.want, err)
			}
		}
	})
}

// TestAttack46SlowReadersOfAStream: on a connection of HTTP/2 that moves, who takes in
// nothing of one answer is left.
func TestAttack46SlowReadersOfAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		large := bytes.Repeat([]byte("x"), 7<<20)
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/gitignore/templates" {
				_, _ = w.Write(large)
			}
		})
		var protocols http.Protocols
		protocols.SetUnencryptedHTTP2(true)
		front := testservers.ServePipe(t, "streams.test:80", &http.Server{Handler: w.gateway, Protocols: &protocols})
		streams := &http.Transport{DialContext: front.Dial, Protocols: &protocols, DisableCompression: true}
		t.Cleanup(streams.CloseIdleConnections)
		ask := func(path string) *http.Response {
			target := &url.URL{Scheme: "http", Host: "streams.test", Path: path}
			r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, target.String(), http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := streams.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			return resp
		}
		unread := ask("/gitignore/templates")
		for range 6 {
			time.Sleep(20 * time.Second)
			resp := ask("/emojis")
			_ = resp.Body.Close()
		}
		ended := 0
		for _, r := range w.gateway.Recent() {
			if r.Operation != "" && r.Bytes > 1<<20 {
				ended++
			}
		}
		if ended != 1 || unread.ProtoMajor != 2 {
			t.Errorf("the gateway still writes by %s: %d", unread.Proto, ended)
		}
		if n, err := io.Copy(io.Discard, unread.Body); err == nil {
			t.Errorf("%d bytes came to a client that did not read", n)
		}
		_ = unread.Body.Close()
	})
}
