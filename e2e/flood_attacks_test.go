//go:build e2e

package e2e

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// floods are the attacks of TestFloods.
var floods = []flood{
	{name: "connections that close at once", attack: connectAndClose, workers: 50},
	{name: "idle connections at 1,024 descriptors", files: 1024, attack: idle(""), workers: 2000},
	{name: "20,000 idle connections of 40 addresses", attack: idle(""), workers: 10_000, processes: 2, addresses: 40, settle: 8 * time.Second},
	{name: "20,000 kept connections of 40 addresses", attack: idle(hitRequest), workers: 10_000, processes: 2, addresses: 40, settle: 8 * time.Second},
	{name: "slow headers", attack: drip("GET /gitignore/templates HTTP/1.1\r\nHost: g\r\nX-A: "), workers: 1000, addresses: 4},
	{name: "slow bodies", attack: drip("PUT /repos/a/b/subscription HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer a\r\nContent-Length: 1000000\r\n\r\n"), workers: 1000, addresses: 4},
	{name: "slow readers of hits", attack: readSlowly("/gitignore/templates/large"), workers: 1000, addresses: 4},
	{name: "slow readers of streams", attack: readSlowly("/hostile/endless"), workers: 1000, addresses: 4},
	{name: "requests above the rate", attack: flooding(func(int) string { return hitRequest }), workers: 50},
	{name: "made-up tokens", attack: flooding(func(n int) string {
		return fmt.Sprintf("GET /users/%d HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer made-up-%d\r\n\r\n", n, n)
	}), workers: 50},
	{name: "GraphQL queries with deep nesting", attack: flooding(func(n int) string {
		query := `{"query":"` + strings.Repeat("{a(first:100)", 5000) + strings.Repeat("}", 5000) + `"}`
		return fmt.Sprintf("POST /graphql HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer %d\r\nContent-Length: %d\r\n\r\n%s", n%10, len(query), query)
	}), workers: 20},
	{name: "bodies in chunks of one byte", attack: flooding(func(int) string {
		return "PUT /repos/a/b/subscription HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer a\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1;"+strings.Repeat("e", 8)+"\r\na\r\n", 10_000) + "0\r\n\r\n"
	}), workers: 20},
	{name: "webhook deliveries", attack: flooding(func(n int) string {
		return fmt.Sprintf("POST /_weir/webhooks HTTP/1.1\r\nHost: g\r\nX-GitHub-Delivery: %d\r\nX-Hub-Signature-256: sha256=%064d\r\nContent-Length: 100000\r\n\r\n%s", n, n, strings.Repeat("a", 100_000))
	}), workers: 50},
	{name: "clients that leave at every stage", attack: leave, workers: 50},
	{name: "half-closed connections", attack: halfClose, workers: 1000, addresses: 4},
	{name: "interim responses of the upstream", attack: flooding(hostile("interim")), workers: 50},
	{name: "compression bombs of the upstream", attack: flooding(hostile("bomb")), workers: 10, config: "cache: {memory: 16MiB}"},
	{name: "endless bodies of the upstream", attack: flooding(hostile("endless")), workers: 50},
	{name: "endless headers of the upstream", attack: flooding(hostile("header")), workers: 50},

	{name: "TLS handshakes", secure: true, attack: handshake, workers: 50},
	{name: "TLS handshakes that stop", secure: true, attack: stopHandshake, workers: 1000, addresses: 4},
	{name: "HTTP/2 streams with an immediate reset", secure: true, covered: true, attack: frames(func(h *floodHTTP2, i uint32) error {
		_ = h.get(2*i+1, true)
		return h.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
	}), workers: 50},
	{name: "HTTP/2 streams that the server must reset", secure: true, attack: frames(func(h *floodHTTP2, i uint32) error {
		_ = h.get(2*i+1, false)
		return h.WriteWindowUpdate(2*i+1, 0) // an error of the stream (RFC 9113, section 6.9)
	}), workers: 50},
	{name: "HTTP/2 continuations", secure: true, covered: true, attack: frames(func(h *floodHTTP2, i uint32) error {
		return h.continueHeaders(i, h.field("a", strings.Repeat("b", 8000)))
	}), workers: 50},
	{name: "HTTP/2 empty continuations", secure: true, attack: frames(func(h *floodHTTP2, i uint32) error {
		return h.continueHeaders(i, nil)
	}), workers: 50},
	{name: "HTTP/2 headers that reference a large field", secure: true, covered: true, attack: frames(func(h *floodHTTP2, i uint32) error {
		block := append(h.header("GET", "/gitignore/templates"), h.field("a", strings.Repeat("b", 3900))...)
		block = append(block, bytes.Repeat([]byte{0xbe}, 8000)...) // the first entry of the dynamic table
		return h.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: block, EndStream: true, EndHeaders: true})
	}), workers: 50},
	{name: "HTTP/2 settings", secure: true, covered: true, attack: frames(func(h *floodHTTP2, i uint32) error {
		return h.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: i % 1000}, http2.Setting{ID: http2.SettingHeaderTableSize, Val: i})
	}), workers: 50},
	{name: "HTTP/2 pings", secure: true, covered: true, attack: frames(func(h *floodHTTP2, _ uint32) error { return h.WritePing(false, [8]byte{}) }), workers: 50},
	{name: "HTTP/2 window updates", secure: true, attack: frames(func(h *floodHTTP2, _ uint32) error { return h.WriteWindowUpdate(0, 1) }), workers: 50},
	{name: "HTTP/2 empty data", secure: true, attack: frames(func(h *floodHTTP2, i uint32) error {
		if i == 0 {
			return h.put(1)
		}
		return h.WriteData(1, false, nil)
	}), workers: 50},
	{name: "HTTP/2 unknown frames", secure: true, attack: frames(func(h *floodHTTP2, _ uint32) error { return h.WriteRawFrame(0xfe, 0, 0, make([]byte, 16<<10)) }), workers: 50},
	{name: "HTTP/2 streams without a window", secure: true, attack: frames(func(h *floodHTTP2, i uint32) error {
		switch {
		case i == 0:
			return h.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		case i <= 100:
			return h.get(2*i+1, true)
		default:
			return h.wait()
		}
	}), workers: 50},
	{name: "HTTP/2 streams with slow bodies", secure: true, attack: frames(func(h *floodHTTP2, i uint32) error {
		if i < 100 {
			return h.put(2*i + 1)
		}
		sleep(h.f, 10*time.Millisecond)
		return h.WriteData(2*(i%100)+1, false, []byte("slow"))
	}), workers: 50},
}

const hitRequest = "GET /gitignore/templates HTTP/1.1\r\nHost: g\r\n\r\n"

// hostile returns requests for a response of hostileUpstream that no cache has.
func hostile(kind string) func(n int) string {
	return func(n int) string {
		return fmt.Sprintf("GET /hostile/%s?n=%d HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer a\r\n\r\n", kind, n)
	}
}

func connectAndClose(f *flooder, n int) error {
	c, err := f.dialPlain(n)
	if err != nil {
		return err
	}
	return c.Close()
}

// hold reads from a connection until the gateway or the attack ends it, and waits before the next.
func (f *flooder) hold(c net.Conn) error {
	_, err := io.Copy(io.Discard, c)
	_ = c.Close()
	sleep(f, 10*time.Second)
	return err
}

// idle keeps a connection open after a request, which may be empty. The first 20,000 connections open within five seconds.
func idle(request string) func(*flooder, int) error {
	return func(f *flooder, n int) error {
		if n < 20_000 {
			sleep(f, time.Duration(n)*250*time.Microsecond)
		}
		c, err := f.dial(n, "http/1.1")
		if err != nil {
			sleep(f, 10*time.Second)
			return err
		}
		_, _ = io.WriteString(c, request) // hold reports errors
		return f.hold(c)
	}
}

// dialSlowly connects, and waits after a failure.
func (f *flooder) dialSlowly(n int) (net.Conn, error) {
	c, err := f.dial(n, "http/1.1")
	if err != nil {
		sleep(f, 100*time.Millisecond)
	}
	return c, err
}

// drip sends the begin of a request, and then ten bytes per second.
func drip(begin string) func(*flooder, int) error {
	return func(f *flooder, n int) error {
		c, err := f.dialSlowly(n)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_, err = io.WriteString(c, begin)
		for err == nil && f.Err() == nil {
			sleep(f, 100*time.Millisecond)
			_, err = io.WriteString(c, "a")
		}
		return err
	}
}

// readSlowly requests a path, and reads ten bytes per second.
func readSlowly(path string) func(*flooder, int) error {
	return func(f *flooder, n int) error {
		c, err := f.dialSlowly(n)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		if plain, ok := c.(*floodConn); ok {
			_ = plain.Conn.(*net.TCPConn).SetReadBuffer(4096)
		}
		_, err = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: g\r\n\r\n", path)
		for b := make([]byte, 1); err == nil && f.Err() == nil; {
			_, err = c.Read(b)
			sleep(f, 100*time.Millisecond)
		}
		return err
	}
}

// flooding sends requests on one connection, and reads the responses, until the gateway closes it.
func flooding(request func(n int) string) func(*flooder, int) error {
	return func(f *flooder, n int) error {
		c, err := f.dial(n, "http/1.1")
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		var reading sync.WaitGroup
		reading.Go(func() { _, _ = io.Copy(io.Discard, c) })
		for i := 0; err == nil && f.Err() == nil; i++ {
			_, err = io.WriteString(c, request(n<<20|i))
		}
		_ = c.Close()
		reading.Wait()
		return err
	}
}

// leave closes connections with a reset at one of five stages.
func leave(f *flooder, n int) error {
	c, err := f.dial(n, "http/1.1")
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_ = c.(*floodConn).Conn.(*net.TCPConn).SetLinger(0) // Close sends a reset
	const put = "PUT /repos/a/b/subscription HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer a\r\nContent-Length: 100000\r\n\r\n"
	switch n / 50 % 5 {
	case 0:
		_, err = io.WriteString(c, "GET /gitignore")
	case 1: // while the upstream works
		_, err = io.WriteString(c, fmt.Sprintf("GET /users/leaves%d HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer a\r\n\r\n", n))
	case 2:
		_, err = io.WriteString(c, put+strings.Repeat("a", 50_000))
	case 3:
		_, err = io.WriteString(c, "GET /gitignore/templates/large HTTP/1.1\r\nHost: g\r\n\r\n")
		_, _ = c.Read(make([]byte, 1000))
	case 4:
		_, err = io.WriteString(c, "GET /hostile/endless HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer a\r\n\r\n")
		_, _ = c.Read(make([]byte, 1000))
	}
	return err
}

// halfClose closes the writing side after a request, and does not read.
func halfClose(f *flooder, n int) error {
	c, err := f.dialSlowly(n)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	begin := "GET /gitignore/templates/large HTTP/1.1\r\nHost: g\r\n\r\n"
	if n%2 == 0 {
		begin = "PUT /repos/a/b/subscription HTTP/1.1\r\nHost: g\r\nContent-Length: 100\r\n\r\na"
	}
	_, err = io.WriteString(c, begin)
	_ = c.(*floodConn).Conn.(*net.TCPConn).CloseWrite()
	sleep(f, 5*time.Second)
	return err
}

func handshake(f *flooder, n int) error {
	c, err := f.dial(n, "h2")
	if err != nil {
		return err
	}
	return c.Close()
}

// stopHandshake sends the first bytes of a TLS record.
func stopHandshake(f *flooder, n int) error {
	c, err := f.dialPlain(n)
	if err != nil {
		sleep(f, 100*time.Millisecond)
		return err
	}
	if _, err := io.WriteString(c, "\x16\x03\x01\x02\x00\x01\x00"); err != nil {
		return err
	}
	return f.hold(c)
}

// floodHTTP2 is an HTTP/2 connection on which an attacker writes frames.
type floodHTTP2 struct {
	*http2.Framer
	f       *flooder
	block   bytes.Buffer
	encoder *hpack.Encoder
}

// frames calls write with 0, 1, 2, … on one connection, until the gateway closes it.
func frames(write func(h *floodHTTP2, i uint32) error) func(*flooder, int) error {
	return func(f *flooder, n int) error {
		c, err := f.dial(n, "h2")
		if err != nil {
			return err
		}
		var reading sync.WaitGroup
		reading.Go(func() { _, _ = io.Copy(io.Discard, c) })
		h := &floodHTTP2{Framer: http2.NewFramer(c, c), f: f}
		h.AllowIllegalWrites = true
		h.encoder = hpack.NewEncoder(&h.block)
		_, err = io.WriteString(c, http2.ClientPreface)
		if err == nil {
			err = h.WriteSettings()
		}
		for i := uint32(0); err == nil && f.Err() == nil && i < 1<<29; i++ {
			err = write(h, i)
		}
		_ = c.Close()
		reading.Wait()
		return err
	}
}

// field returns an encoded field that the encoder adds to its dynamic table.
func (h *floodHTTP2) field(name, value string) []byte {
	h.block.Reset()
	_ = h.encoder.WriteField(hpack.HeaderField{Name: name, Value: value})
	return bytes.Clone(h.block.Bytes())
}

// header returns the encoded pseudo-fields of a request.
func (h *floodHTTP2) header(method, path string) (block []byte) {
	for _, f := range [][2]string{{":method", method}, {":scheme", "https"}, {":authority", "g"}, {":path", path}} {
		block = append(block, h.field(f[0], f[1])...)
	}
	return block
}

func (h *floodHTTP2) get(stream uint32, end bool) error {
	return h.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: h.header("GET", fmt.Sprint("/users/", stream)), EndStream: end, EndHeaders: true})
}

// continueHeaders begins a request, and then sends a fragment of its header again and again.
func (h *floodHTTP2) continueHeaders(i uint32, fragment []byte) error {
	if i == 0 {
		return h.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: h.header("GET", "/"), EndStream: true})
	}
	return h.WriteContinuation(1, false, fragment)
}

func (h *floodHTTP2) put(stream uint32) error {
	return h.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: h.header("PUT", "/repos/a/b/subscription"), EndHeaders: true})
}

// wait keeps the connection for a second.
func (h *floodHTTP2) wait() error {
	sleep(h.f, time.Second)
	return h.WritePing(false, [8]byte{})
}

// bomb is a gzip stream of 1 GB of zeros.
var bomb = sync.OnceValue(func() []byte {
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression)
	zeros := make([]byte, 1<<20)
	for range 1000 {
		_, _ = w.Write(zeros)
	}
	_ = w.Close()
	return b.Bytes()
})

// hostileUpstream returns the handler of a hostile response, or nil for other paths.
func hostileUpstream(path string) http.HandlerFunc {
	switch path {
	case "/gitignore/templates/large":
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 4<<20)) }
	case "/hostile/endless":
		return func(w http.ResponseWriter, r *http.Request) {
			for err := error(nil); err == nil; {
				_, err = w.Write(make([]byte, 64<<10))
				sleep(r.Context(), 20*time.Millisecond) // 50 of them send 160 MB/s
			}
		}
	case "/hostile/bomb":
		return func(w http.ResponseWriter, r *http.Request) {
			sleep(r.Context(), 100*time.Millisecond) // 10 of them send 100 MB/s
			w.Header().Set("Content-Encoding", "gzip")
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Cache-Control", "max-age=60")
			_, _ = w.Write(bomb())
		}
	case "/hostile/interim":
		return raw("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
	case "/hostile/header":
		return raw("X-A: " + strings.Repeat("a", 1000) + "\r\n")
	}
	return nil
}

// raw repeats a text on the connection until it breaks.
func raw(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		if !strings.HasPrefix(text, "HTTP/") {
			_, err = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
		}
		for err == nil {
			_, err = io.WriteString(c, text)
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
	}
}
