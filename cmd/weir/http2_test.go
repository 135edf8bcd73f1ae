package main

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// rawHTTP2 is an HTTP/2 connection to a gateway on which the test writes frames (RFC 9113).
type rawHTTP2 struct {
	*testing.T
	*tls.Conn
	gateway  *gateway
	server   *httptest.Server
	open     atomic.Int32 // open upstream requests
	mostOpen atomic.Int32
	total    atomic.Int32
}

// Types and flags of frames (RFC 9113, section 6).
const (
	frameHeaders, frameReset, frameSettings, framePing, frameContinuation = 0x1, 0x3, 0x4, 0x6, 0x9

	endStream, endHeaders = 0x1, 0x4
)

// dialHTTP2 starts a gateway with the production server settings behind TLS, and connects. burst is the burst of an
// address, whose rate is one request per second; 0 has no bound.
func dialHTTP2(t *testing.T, burst int) *rawHTTP2 {
	t.Helper()
	s := &rawHTTP2{T: t}
	s.gateway = open(t, configure(serveAPI(t, func(_ http.ResponseWriter, r *http.Request) {
		s.total.Add(1)
		for n := s.open.Add(1); n > s.mostOpen.Load(); {
			s.mostOpen.Store(n)
		}
		defer s.open.Add(-1)
		failIf(t, strings.Contains(r.Host, "evil"), "upstream received the host %s", r.Host)
	}), trusting, inboundRate(min(burst, 1), burst)))
	s.server = serveTLS(t, s.gateway, true)
	s.connect()
	return s
}

// connect opens a connection and sends the preface.
func (s *rawHTTP2) connect() {
	s.Helper()
	trust := s.server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	trust.NextProtos = []string{"h2"}
	trust.ServerName = "127.0.0.1"
	s.Conn = tls.Client(dial(s, s.server.Listener.Addr().String()), trust)
	must(io.WriteString(s, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))(s)
	_ = s.frame(frameSettings, 0, 0, "")
}

// frame writes one frame.
func (s *rawHTTP2) frame(kind, flags byte, stream uint32, payload string) error {
	head := make([]byte, 9, 9+len(payload))
	binary.BigEndian.PutUint32(head, uint32(len(payload))<<8)
	head[3], head[4] = kind, flags
	binary.BigEndian.PutUint32(head[5:], stream)
	_, err := s.Write(append(head, payload...))
	return err
}

// literal encodes a field with a name from the static table and a literal value (RFC 7541).
func literal(name byte, value string) string { return string([]byte{name, byte(len(value))}) + value }

// getHeader returns the encoded header of GET https://g/.
func getHeader() string { return "\x82\x87\x84" + literal(0x41, "g") }

// wantOtherClientServed checks that the gateway serves a client on another connection.
func (s *rawHTTP2) wantOtherClientServed() {
	s.Helper()
	resp, err := s.server.Client().Get(s.server.URL + "/gitignore/templates")
	stopIf(s, err != nil || resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2, "request on another connection: %v, %v", resp, err)
	_ = resp.Body.Close()
}

func TestHTTP2ConnectAndTraceAreRefused(t *testing.T) {
	s := dialHTTP2(t, 0)
	_ = s.frame(frameHeaders, endHeaders, 1, literal(0x42, "CONNECT")+literal(0x41, "evil.test:443"))
	_ = s.frame(0, endStream, 1, hidden)
	_ = s.frame(frameHeaders, endHeaders|endStream, 3, literal(0x42, "TRACE")+"\x87\x84"+literal(0x41, "g"))
	s.wantOtherClientServed()
	statuses := func() (all []int) {
		for _, r := range s.gateway.recent() {
			if r.Method == http.MethodConnect || r.Method == http.MethodTrace {
				all = append(all, r.Status)
			}
		}
		return all
	}
	testservers.Eventually(t, "two requests are recorded", func(context.Context) bool { return len(statuses()) >= 2 })
	got := statuses()
	failIf(t, len(got) != 2 || got[0] != 405 || got[1] != 405, "statuses %v, want 405 twice", got)
	n := s.total.Load()
	failIf(t, n != 1, "upstream received %d requests, want 1", n)
}

func TestHTTP2AuthorityNeverSelectsUpstream(t *testing.T) {
	s := dialHTTP2(t, 0)
	for i, block := range []string{
		"\x82\x87\x84" + literal(0x41, "evil.test"),
		"\x82\x87\x84" + literal(0x41, "g") + "\x00\x04host" + literal(9, "evil.test")[1:],
		"\x82\x87" + literal(0x44, "//evil.test/user") + literal(0x41, "g"),
		"\x82\x87" + literal(0x44, "https://evil.test/user") + literal(0x41, "g"),
		"\x82" + literal(0x46, "evil") + "\x84" + literal(0x41, "g"),
		"\x82\x87" + literal(0x44, "*") + literal(0x41, "g"),
		"\x82\x87" + literal(0x44, "") + literal(0x41, "g"),
	} {
		if err := s.frame(frameHeaders, endHeaders|endStream, uint32(2*i+1), block); err != nil {
			break // the gateway may close the connection
		}
	}
	s.wantOtherClientServed() // the upstream fails the test if it receives another host
}

// TestHTTP2FloodsAreBounded checks that floods of frames hold neither memory nor more than 100
// upstream requests.
func TestHTTP2FloodsAreBounded(t *testing.T) {
	for name, flood := range map[string]func(s *rawHTTP2, i uint32) error{
		"streams with an immediate reset": func(s *rawHTTP2, i uint32) error {
			_ = s.frame(frameHeaders, endHeaders|endStream, 2*i+1, getHeader())
			return s.frame(frameReset, 0, 2*i+1, "\x00\x00\x00\x08")
		},
		"streams": func(s *rawHTTP2, i uint32) error {
			return s.frame(frameHeaders, endHeaders, 2*i+1, getHeader())
		},
		"continuations": func(s *rawHTTP2, i uint32) error {
			if i == 0 {
				return s.frame(frameHeaders, endStream, 1, getHeader())
			}
			return s.frame(frameContinuation, 0, 1, strings.Repeat("\x00\x01a\x7f\x80\x02"+strings.Repeat("b", 257), 16))
		},
		"one large field, over and over": func(s *rawHTTP2, i uint32) error {
			if i == 0 {
				return s.frame(frameHeaders, endStream, 1, getHeader()+"\x40\x01a\x7f\x80\x1e"+strings.Repeat("b", 3967))
			}
			return s.frame(frameContinuation, 0, 1, strings.Repeat("\xbe", 16<<10))
		},
		"settings": func(s *rawHTTP2, _ uint32) error { return s.frame(frameSettings, 0, 0, "\x00\x04\x00\x00\x00\x00") },
		"pings":    func(s *rawHTTP2, _ uint32) error { return s.frame(framePing, 0, 0, "12345678") },
	} {
		t.Run(name, func(t *testing.T) {
			s := dialHTTP2(t, 0)
			s.wantOtherClientServed()
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			var err error
			frames := uint32(0)
			for ; frames < 20_000 && err == nil; frames++ {
				_ = s.SetWriteDeadline(time.Now().Add(time.Second / 4)) // the gateway has stopped reading
				err = flood(s, frames)
			}
			failIf(t, err == nil && (name == "continuations" || name == "one large field, over and over"), "the gateway accepted %d frames of one header", frames)
			runtime.GC()
			runtime.ReadMemStats(&after)
			grown := int64(after.HeapAlloc) - int64(before.HeapAlloc)
			failIf(t, grown > 64<<20, "the heap grew by %d bytes during %d frames", grown, frames)
			n := s.mostOpen.Load()
			failIf(t, n > 100, "%d concurrent upstream requests, want at most 100", n)
			s.wantOtherClientServed()
		})
	}
}

// TestHTTP2ClientThatDoesNotReadIsDisconnected checks that refused requests, whose responses a client does not read, do
// not add up.
func TestHTTP2ClientThatDoesNotReadIsDisconnected(t *testing.T) {
	const burst = 150
	s := dialHTTP2(t, burst)
	var connections []*tls.Conn
	for i := range 3 {
		if i > 0 {
			s.connect()
		}
		connections = append(connections, s.Conn)
		_ = s.frame(frameSettings, 0, 0, "\x00\x04\x00\x00\x00\x00") // an initial window of 0 bytes
		for stream := range uint32(99) {
			_ = s.frame(frameHeaders, endHeaders|endStream, 2*stream+1, getHeader())
		}
	}
	closed := 0
	for _, c := range connections {
		_ = c.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		if _, err := io.Copy(io.Discard, c); !errors.Is(err, os.ErrDeadlineExceeded) {
			closed++
		}
	}
	failIf(t, closed == 0, "the gateway kept all connections")
}
