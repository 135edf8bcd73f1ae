package main

import (
	"crypto/tls"
	"encoding/binary"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/config"
)

// stream2 is a connection of HTTP/2 by hand (RFC 9113), in front of a gateway.
type stream2 struct {
	*testing.T
	*tls.Conn
	gateway *gateway
	front   *httptest.Server
	busy    atomic.Int32 // requests at the upstream
	busiest atomic.Int32
	seen    atomic.Int32
}

// Types and flags of frames.
const (
	frameHeaders, frameReset, frameSettings, framePing, frameContinuation = 0x1, 0x3, 0x4, 0x6, 0x9

	endStream, endHeaders = 0x1, 0x4
)

// newStream2 starts a gateway on the server that users get, behind TLS, and connects.
func newStream2(t *testing.T) *stream2 {
	t.Helper()
	s := &stream2{T: t}
	up := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		s.seen.Add(1)
		for n := s.busy.Add(1); n > s.busiest.Load(); {
			s.busiest.Store(n)
		}
		defer s.busy.Add(-1)
		if strings.Contains(r.Host, "evil") {
			t.Errorf("asked for %s", r.Host)
		}
	}))
	t.Cleanup(up.Close)
	cfg := config.Default()
	cfg.Upstream.URL, cfg.Limits.ColdStart, cfg.Limits.Inbound.Rate = up.URL, "trust", 0
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	s.gateway, s.front = g, httptest.NewUnstartedServer(nil)
	s.front.Config, s.front.EnableHTTP2 = newServer(g, slog.New(slog.DiscardHandler)), true
	s.front.StartTLS()
	t.Cleanup(s.front.Close)
	trust := s.front.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	trust.NextProtos = []string{"h2"}
	if s.Conn, err = tls.Dial("tcp", s.front.Listener.Addr().String(), trust); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	_ = s.SetDeadline(time.Now().Add(time.Minute)) // it is TCP
	if _, err := io.WriteString(s, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	_ = s.frame(frameSettings, 0, 0, "")
	return s
}

func (s *stream2) frame(kind, flags byte, stream uint32, payload string) error {
	head := make([]byte, 9, 9+len(payload))
	binary.BigEndian.PutUint32(head, uint32(len(payload))<<8)
	head[3], head[4] = kind, flags
	binary.BigEndian.PutUint32(head[5:], stream)
	_, err := s.Write(append(head, payload...))
	return err
}

// literal is a field of the static table's name with another value (RFC 7541).
func literal(name byte, value string) string { return string([]byte{name, byte(len(value))}) + value }

// page is the header of GET https://g/.
func page() string { return "\x82\x87\x84" + literal(0x41, "g") }

// stillAnswers asks on a connection of its own.
func (s *stream2) stillAnswers() {
	s.Helper()
	resp, err := s.front.Client().Get(s.front.URL + "/gitignore/templates")
	if err != nil || resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
		s.Fatalf("others get %v, %v", resp, err)
	}
	_ = resp.Body.Close()
}

func TestAttack5HTTP2Connect(t *testing.T) {
	s := newStream2(t)
	_ = s.frame(frameHeaders, endHeaders, 1, literal(0x42, "CONNECT")+literal(0x41, "evil.test:443"))
	_ = s.frame(0, endStream, 1, hidden)
	_ = s.frame(frameHeaders, endHeaders|endStream, 3, literal(0x42, "TRACE")+"\x87\x84"+literal(0x41, "g"))
	s.stillAnswers()
	statuses := func() (all []int) {
		for _, r := range s.gateway.current.Load().proxy.Recent() {
			if r.Method == http.MethodConnect || r.Method == http.MethodTrace {
				all = append(all, r.Status)
			}
		}
		return all
	}
	for deadline := time.Now().Add(20 * time.Second); len(statuses()) < 2 && time.Now().Before(deadline); {
		s.stillAnswers()
	}
	if got := statuses(); len(got) != 2 || got[0] != 405 || got[1] != 405 {
		t.Errorf("answered by %v", got)
	}
	if n := s.seen.Load(); n != 1 {
		t.Errorf("upstream saw %d requests", n)
	}
}

func TestAttack7HTTP2Authority(t *testing.T) {
	s := newStream2(t)
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
			break // it may end all of it
		}
	}
	s.stillAnswers() // the upstream says if it was asked for another
}

func TestAttack47Floods(t *testing.T) {
	for name, flood := range map[string]func(s *stream2, i uint32) error{
		"streams that are reset at once": func(s *stream2, i uint32) error {
			_ = s.frame(frameHeaders, endHeaders|endStream, 2*i+1, page())
			return s.frame(frameReset, 0, 2*i+1, "\x00\x00\x00\x08")
		},
		"streams": func(s *stream2, i uint32) error {
			return s.frame(frameHeaders, endHeaders, 2*i+1, page())
		},
		"continuations": func(s *stream2, i uint32) error {
			if i == 0 {
				return s.frame(frameHeaders, endStream, 1, page())
			}
			return s.frame(frameContinuation, 0, 1, strings.Repeat("\x00\x01a\x7f\x80\x02"+strings.Repeat("b", 257), 16))
		},
		"one large field, over and over": func(s *stream2, i uint32) error {
			if i == 0 {
				return s.frame(frameHeaders, endStream, 1, page()+"\x40\x01a\x7f\x80\x1e"+strings.Repeat("b", 3967))
			}
			return s.frame(frameContinuation, 0, 1, strings.Repeat("\xbe", 16<<10))
		},
		"settings": func(s *stream2, _ uint32) error { return s.frame(frameSettings, 0, 0, "\x00\x04\x00\x00\x00\x00") },
		"pings":    func(s *stream2, _ uint32) error { return s.frame(framePing, 0, 0, "12345678") },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStream2(t)
			s.stillAnswers()
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			var err error
			frames := uint32(0)
			for ; frames < 20_000 && err == nil; frames++ {
				_ = s.SetWriteDeadline(time.Now().Add(time.Second)) // the gateway has stopped reading
				err = flood(s, frames)
			}
			if err == nil && (name == "continuations" || name == "one large field, over and over") {
				t.Errorf("%d frames of one header were taken", frames)
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 64<<20 {
				t.Errorf("%d bytes are held after %d frames", grown, frames)
			}
			if n := s.busiest.Load(); n > 100 {
				t.Errorf("%d requests at once", n)
			}
			s.stillAnswers()
		})
	}
}
