package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	h2 "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/proxy/wire"
)

// stageOfEnd is the point at which a request ends.
type stageOfEnd int

const (
	dialing    stageOfEnd = iota // the transport has no connection yet
	slotless                     // the connection has no free stream
	headed                       // the upstream has the header fields of the request
	uploading                    // the upstream has a part of the request body
	requested                    // the upstream has the request
	early                        // the client has the header fields of the response, and the upstream a part of the request body
	responding                   // the client has the header fields of the response
	inBody                       // the client has a part of the body
	stagesOfEnd
)

func (s stageOfEnd) String() string {
	return [...]string{"without a connection", "without a slot", "after the header", "during the request body", "after the request", "after an early response header", "after the response header", "in the body"}[s]
}

// ender ends the subject. Proven means that the upstream has proven that it did not process the first copy.
type ender struct {
	name   string
	end    func(leave func(), c rawCopy)
	proven bool
	http2  bool // only HTTP/2 has this end
}

func resets(code h2.ErrCode) ender {
	return ender{
		name: "reset " + code.String(), end: func(_ func(), c rawCopy) { c.reset(code) },
		proven: code == h2.ErrCodeRefusedStream, http2: true,
	}
}

// enders are all ways in which a request may end, by the client and by the upstream.
var enders = []ender{
	{name: "nothing ends", end: func(_ func(), c rawCopy) { c.rest() }},
	{name: "the client disconnects", end: func(leave func(), _ rawCopy) { leave() }},
	resets(h2.ErrCodeRefusedStream),
	resets(h2.ErrCodeCancel),
	resets(h2.ErrCodeInternal),
	resets(h2.ErrCodeProtocol),
	resets(h2.ErrCodeEnhanceYourCalm),
	{name: "GOAWAY below the stream", end: func(_ func(), c rawCopy) { c.goAway(-2) }, proven: true, http2: true},
	{name: "GOAWAY at the stream", end: func(_ func(), c rawCopy) { c.goAway(0); synctest.Wait(); c.close() }, http2: true},
	{name: "GOAWAY above the stream", end: func(_ func(), c rawCopy) { c.goAway(2); synctest.Wait(); c.cut() }, http2: true},
	{name: "connection closed", end: func(_ func(), c rawCopy) { c.close() }},
	{name: "connection cut", end: func(_ func(), c rawCopy) { c.cut() }},
	{name: "stall", end: func(func(), rawCopy) {}},
}

// subject is the request that ends.
type subject struct {
	method, fields string
	body           int
	safe           bool
}

var subjects = []subject{
	{method: "GET", safe: true},
	{method: "PATCH", body: 100 << 10},
	{method: "PATCH", fields: "Idempotency-Key: 1", body: 100 << 10},
	{method: "DELETE"},
	{method: "DELETE", fields: "Idempotency-Key: 1"},
}

// TestEveryEndIsCharged ends requests at each stage in each way. Clients and upstream speak the same protocol. In every case:
//   - the ledger charges at least the copies that the upstream saw, and nothing before a connection,
//   - a write that may have arrived makes the stored response stale, and a write without a connection does not,
//   - a write is sent twice only if the upstream has proven that it did not process the first copy, and a copy of a read
//     without a permit is charged,
//   - the client gets no complete response that the upstream did not send,
//   - the slot is free ten seconds later.
func TestEveryEndIsCharged(t *testing.T) {
	for _, protocol := range []string{http1, http2} {
		for stage := range stagesOfEnd {
			for _, e := range enders {
				for _, s := range subjects {
					if !happens(protocol, stage, e, s) {
						continue
					}
					bubble(t, fmt.Sprintf("%s/%s/%s/%s", protocol, stage, e.name, strings.TrimSpace(s.method+" "+s.fields)), func(t *testing.T) { endRequest(t, protocol, stage, e, s) })
				}
			}
		}
	}
}

// happens reports whether a combination exists.
func happens(protocol string, stage stageOfEnd, e ender, s subject) bool {
	switch {
	case protocol == http1 && (e.http2 || stage == slotless):
		return false
	case (stage == headed || stage == uploading || stage == early) && s.body == 0:
		return false // the header is the whole request
	case stage <= slotless && e.name != "the client disconnects" && e.name != "stall" && e.name != "connection cut":
		return false // the upstream has no stream that could end
	case stage > requested && e.proven:
		return false // the response has begun
	case e.name == "nothing ends":
		return stage == requested
	}
	return true
}

// window returns the number of bytes of the request body that the upstream reads until the stage.
func window(stage stageOfEnd) uint32 {
	switch stage {
	case headed:
		return 0
	case uploading, early:
		return 10 << 10
	}
	return 1 << 20
}

// endRequest ends one request, and checks what follows.
func endRequest(t *testing.T, protocol string, stage stageOfEnd, e ender, s subject) {
	const timeout = 5 * time.Second
	r := &subjectLog{first: make(chan rawCopy, 1), done: make(chan struct{})}
	defer close(r.done)
	l := testservers.ListenPipe("raw.test:443")
	transport := wire.NewTransport()
	t.Cleanup(transport.CloseIdleConnections)
	var upstream http.RoundTripper = transport
	raw := &rawHTTP2{subjectLog: r, window: window(stage)}
	paused := &pausedTransport{gotConn: make(chan struct{}), resume: make(chan struct{})}
	switch protocol {
	case http1:
		serveRaw(t, l, l, rawHTTP1(r, int(window(stage))))
	case http2:
		serveRaw(t, l, l.TLS("h2"), raw.serve)
		upstream = secured(transport)
		if stage == slotless {
			paused.RoundTripper = upstream
			upstream = paused
		}
	}
	dials := make(chan error)
	blocked := false
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if blocked {
			select {
			case err := <-dials:
				return nil, err
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return l.Dial(ctx, network, address)
	}
	w := newWorld(t, nothing, wholeAPI(t, unchanged), func(c *Config) { c.Transport, c.Timeout = upstream, timeout })

	const changed = "/repos/acme/widgets"
	path := changed
	if s.safe {
		path += "/subscribers"
	}
	w.want("first response", w.get(changed, owner).body, "whole")
	before := w.pointsUsed()
	switch stage {
	case dialing:
		transport.CloseIdleConnections()
		blocked = true
	case slotless: // the transport would open another connection
		blocked = true
		ctx, done := context.WithCancel(context.Background())
		defer done()
		occupier, _ := http.NewRequestWithContext(ctx, http.MethodGet, upstreamURL+"/occupies", http.NoBody)
		go func() {
			if resp, err := paused.RoundTripper.RoundTrip(occupier); err == nil {
				_ = resp.Body.Close()
			}
		}()
		synctest.Wait()
	}
	w.client.CloseIdleConnections() // on a reused connection, the client might send a request again
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	body := strings.NewReader(strings.Repeat("x", s.body))
	client, scheme := w.client, "http"
	if protocol == http2 {
		client, scheme = w.http2Client(), "https"
	}
	request := w.newRequest(ctx, s.method, scheme+"://gateway.test"+path+"?"+subjectQuery, body, owner, s.fields)
	ended := make(chan got, 1)
	go func() { ended <- receive(client.Do(request)) }()
	synctest.Wait()
	var first rawCopy
	switch {
	case stage == slotless:
		<-paused.gotConn
		raw.allowOneStream()
		synctest.Wait()
		close(paused.resume)
		synctest.Wait()
		first.cut = func() { _ = raw.last.c.NetConn().Close() }
	case stage > slotless:
		first = <-r.first
		if stage >= early {
			first.headers()
		}
		if stage == inBody {
			first.part()
		}
		synctest.Wait()
	default:
		first.cut = func() { dials <- io.ErrUnexpectedEOF }
	}
	if stage == slotless {
		w.want("requests before the slot is free", r.seen(), 0)
	}
	e.end(leave, first)
	if stage == dialing && e.name == "connection cut" { // retries dial again
		go func() {
			for range maxRetries {
				select {
				case dials <- io.ErrUnexpectedEOF:
				case <-ctx.Done():
				}
			}
		}()
	}
	got := <-ended
	synctest.Wait()
	seen := r.seen()

	// The client.
	ok := got.err == nil && got.StatusCode == http.StatusOK
	if ok && (got.body != "whole" || r.complete() == 0) {
		t.Errorf("the client got %q, but the upstream sent %d complete responses", got.body, r.complete())
	}
	failIf(t, e.name == "nothing ends" && !ok, "got %+v", got)
	// Copies.
	rec := w.last()
	permits := permits(rec)
	points := 1
	if !s.safe {
		points = 5
	}
	charged := w.pointsUsed() - before
	allowed := permits
	if s.safe { // the transport may send a copy, for which the permit is charged
		allowed++
	}
	charges := seen
	if e.proven {
		charges--
	}
	failIf(t, seen > allowed || !s.safe && seen > 1 && !e.proven, "the upstream saw %d copies with %d permits", seen, permits)
	// The ledger.
	failIf(t, charged < charges*points || charged > max(seen, permits)*points, "charged %d points with %d permits, but the upstream saw %d copies of %d points", charged, permits, seen, points)
	failIf(t, stage == dialing && charged > 0, "charged %d points without a connection", charged)
	failIf(t, rec.Spent < charges, "the record has %d spent, but the upstream saw %d copies", rec.Spent, seen)
	// The cache.
	blocked = false
	if stage == dialing || !s.safe && seen > 0 {
		hit := strings.Contains(w.get(changed, owner).Header.Get("Cache-Status"), "hit")
		w.want("the response from before the request is served", hit, stage == dialing)
	}
	time.Sleep(10*time.Second + time.Millisecond)
	w.want("permits in flight", w.inFlight(), 0)
	after := w.pointsUsed() - before
	failIf(t, after < charges*points, "charged %d points ten seconds later, but the upstream saw %d copies of %d points", after, seen, points)
}

// pausedTransport pauses the subject after it has got a connection.
type pausedTransport struct {
	http.RoundTripper
	gotConn, resume chan struct{}
}

// RoundTrip implements http.RoundTripper.
func (p *pausedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if !strings.Contains(r.URL.RawQuery, subjectQuery) {
		return p.RoundTripper.RoundTrip(r)
	}
	return p.RoundTripper.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) {
			select {
			case p.gotConn <- struct{}{}:
				<-p.resume
			case <-p.resume: // a copy
			}
		},
	})))
}

// pointsUsed returns the used and reserved points of all accounts.
func (w *world) pointsUsed() (points int) {
	for _, a := range w.accounts(100) {
		for _, b := range a.Budgets {
			if strings.HasPrefix(b.Resource, "points") {
				points += b.Used + b.Held
			}
		}
	}
	return points
}

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
