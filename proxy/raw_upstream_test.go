package proxy

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	h2 "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weirgate/weir/internal/testservers"
)

// subjectQuery marks the request whose first copy the raw upstream leaves to the test.
const subjectQuery = "subject=1"

// rawCopy is the first copy of the subject at the raw upstream. The functions act on its stream or connection. Functions
// that a protocol lacks are nil.
type rawCopy struct {
	headers func() // sends the header fields of a response with the body "whole"
	part    func() // sends a part of the body
	rest    func() // sends the rest of the response, or the whole response
	reset   func(code h2.ErrCode)
	goAway  func(last int) // with the last stream ID relative to the stream of the subject
	close   func()         // closes the connection in order
	cut     func()         // ends the connection without a notice
}

// subjectLog counts copies of the subject, and responds to all other requests.
type subjectLog struct {
	mu     sync.Mutex
	copies int
	first  chan rawCopy  // receives the first copy, when its header fields have arrived
	whole  int           // complete responses to the subject
	done   chan struct{} // closed at the end of the test
}

// see counts a request, and reports whether the test decides about it.
func (r *subjectLog) see(target string) (held bool) {
	if !strings.Contains(target, subjectQuery) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.copies++
	return r.copies == 1
}

func (r *subjectLog) seen() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.copies
}

func (r *subjectLog) complete() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.whole
}

func (r *subjectLog) completed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.whole++
}

// serveRaw accepts connections until the test ends.
func serveRaw(t *testing.T, pipes *testservers.PipeListener, l net.Listener, serve func(net.Conn)) {
	var conns sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			conns.Go(func() {
				defer func() { _ = c.Close() }()
				serve(c)
			})
		}
	})
	t.Cleanup(func() {
		_ = pipes.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		conns.Wait()
	})
}

// rawHTTP1 serves one connection with HTTP/1.1. It reads most bytes of the body of the first copy of the subject.
func rawHTTP1(r *subjectLog, most int) func(net.Conn) {
	return func(c net.Conn) {
		for {
			head, err := readHead(c)
			if err != nil {
				return
			}
			length := 0
			for line := range strings.Lines(head) {
				if n, ok := strings.CutPrefix(strings.ToLower(line), "content-length: "); ok {
					_, _ = fmt.Sscan(n, &length)
				}
			}
			const header = "HTTP/1.1 200 OK\r\nCache-Control: private, max-age=300\r\nContent-Length: 5\r\n\r\n"
			target, _, _ := strings.Cut(head, "\n")
			if r.see(target) {
				_, _ = io.CopyN(io.Discard, c, int64(min(length, most)))
				ended := make(chan struct{})
				var once sync.Once
				end := func() { once.Do(func() { close(ended) }); _ = c.Close() }
				r.first <- rawCopy{
					headers: func() { _, _ = io.WriteString(c, header) },
					part:    func() { _, _ = io.WriteString(c, "who") },
					rest:    func() { _, _ = io.WriteString(c, header+"whole"); r.completed() },
					close:   end, cut: end,
				}
				if most < length {
					select {
					case <-ended:
					case <-r.done:
					}
				}
				_, _ = io.Copy(io.Discard, c) // until the end of the connection
				return
			}
			if _, err := io.CopyN(io.Discard, c, int64(length)); err != nil {
				return
			}
			if strings.Contains(target, subjectQuery) {
				r.completed()
			}
			if _, err := io.WriteString(c, header+"whole"); err != nil {
				return
			}
		}
	}
}

// rawHTTP2 serves connections with HTTP/2 frames.
type rawHTTP2 struct {
	*subjectLog
	window uint32 // for the body of each request

	mu   sync.Mutex
	last *rawHTTP2Conn
}

func (u *rawHTTP2) serve(c net.Conn) {
	secure := c.(*tls.Conn)
	if secure.Handshake() != nil {
		return
	}
	preface := make([]byte, len(h2.ClientPreface))
	if _, err := io.ReadFull(c, preface); err != nil {
		return
	}
	out := newQueue(c)
	defer out.close()
	conn := &rawHTTP2Conn{Framer: h2.NewFramer(out, c), rawHTTP2: u, out: out, c: secure, ends: map[uint32]string{}}
	conn.encoder = hpack.NewEncoder(&conn.block)
	conn.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	u.mu.Lock()
	u.last = conn
	u.mu.Unlock()
	_ = conn.locked(func() error {
		_ = conn.WriteSettings(h2.Setting{ID: h2.SettingInitialWindowSize, Val: u.window})
		return conn.WriteWindowUpdate(0, 1<<20)
	})
	conn.loop()
}

// queueWriter writes to a connection in the background. A pipe has no buffer, so a blocked write would also stop the reads
// of the same goroutine, and client and upstream would wait for each other.
type queueWriter struct {
	writes chan []byte
	done   chan struct{}
	once   sync.Once
}

func newQueue(c net.Conn) *queueWriter {
	q := &queueWriter{writes: make(chan []byte, 1000), done: make(chan struct{})}
	go func() {
		defer close(q.done)
		var err error
		for p := range q.writes {
			if err == nil {
				_, err = c.Write(p)
			}
		}
	}()
	return q
}

// Write implements io.Writer. It must not be called after close.
func (q *queueWriter) Write(p []byte) (int, error) {
	q.writes <- bytes.Clone(p)
	return len(p), nil
}

// close waits until everything is written.
func (q *queueWriter) close() {
	q.once.Do(func() { close(q.writes) })
	<-q.done
}

// rawHTTP2Conn is a connection of rawHTTP2.
type rawHTTP2Conn struct {
	*h2.Framer
	*rawHTTP2
	c       *tls.Conn
	out     *queueWriter
	writing sync.Mutex
	block   bytes.Buffer
	encoder *hpack.Encoder
	ends    map[uint32]string // targets of requests with a body, by stream
}

func (c *rawHTTP2Conn) locked(write func() error) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return write()
}

// loop reads frames until the connection ends.
func (c *rawHTTP2Conn) loop() {
	for {
		frame, err := c.ReadFrame()
		if streamError := (h2.StreamError{}); errors.As(err, &streamError) {
			continue
		} else if err != nil {
			return
		}
		switch f := frame.(type) {
		case *h2.SettingsFrame:
			if !f.IsAck() {
				_ = c.locked(c.WriteSettingsAck)
			}
		case *h2.PingFrame:
			if !f.IsAck() {
				_ = c.locked(func() error { return c.WritePing(true, f.Data) })
			}
		case *h2.MetaHeadersFrame:
			target := f.PseudoValue("path")
			if c.see(target) {
				c.first <- c.copyOf(f.StreamID)
				continue
			}
			c.ends[f.StreamID] = target
			if f.StreamEnded() {
				c.answer(f.StreamID)
			} else { // the window of the settings may be too small for the body
				_ = c.locked(func() error { return c.WriteWindowUpdate(f.StreamID, 1<<20) })
			}
		case *h2.DataFrame:
			if f.StreamEnded() {
				c.answer(f.StreamID)
			}
		}
	}
}

// answer sends a complete response to a request, except to the first copy of the subject and to requests that occupy a slot.
func (c *rawHTTP2Conn) answer(id uint32) {
	target, ok := c.ends[id]
	if !ok || strings.Contains(target, "occupies") {
		return
	}
	delete(c.ends, id)
	if strings.Contains(target, subjectQuery) {
		c.completed()
	}
	c.headers(id)
	c.data(id, "whole", true)
}

// allowOneStream tells the client that the last connection has one stream at a time.
func (u *rawHTTP2) allowOneStream() {
	u.mu.Lock()
	defer u.mu.Unlock()
	c := u.last
	_ = c.locked(func() error { return c.WriteSettings(h2.Setting{ID: h2.SettingMaxConcurrentStreams, Val: 1}) })
}

func (c *rawHTTP2Conn) headers(id uint32) {
	_ = c.locked(func() error {
		c.block.Reset()
		for _, f := range []hpack.HeaderField{
			{Name: ":status", Value: "200"}, {Name: "cache-control", Value: "private, max-age=300"}, {Name: "content-length", Value: "5"},
		} {
			_ = c.encoder.WriteField(f)
		}
		return c.WriteHeaders(h2.HeadersFrameParam{StreamID: id, BlockFragment: c.block.Bytes(), EndHeaders: true})
	})
}

func (c *rawHTTP2Conn) data(id uint32, text string, end bool) {
	_ = c.locked(func() error { return c.WriteData(id, end, []byte(text)) })
}

func (c *rawHTTP2Conn) copyOf(id uint32) rawCopy {
	return rawCopy{
		headers: func() { c.headers(id) },
		part:    func() { c.data(id, "who", false) },
		rest:    func() { c.headers(id); c.data(id, "whole", true); c.completed() },
		reset:   func(code h2.ErrCode) { _ = c.locked(func() error { return c.WriteRSTStream(id, code) }) },
		goAway: func(last int) {
			_ = c.locked(func() error { return c.WriteGoAway(uint32(int(id)+last), h2.ErrCodeNo, nil) })
		},
		close: func() { c.out.close(); _ = c.c.Close() },
		cut:   func() { _ = c.c.NetConn().Close() },
	}
}
