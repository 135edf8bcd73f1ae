package proxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	h2 "golang.org/x/net/http2"

	"github.com/weirgate/weir/internal/testservers"
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

// window is the number of bytes of the request body that the upstream reads until the stage.
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
	transport := NewTransport()
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
	if e.name == "nothing ends" && !ok {
		t.Errorf("got %+v", got)
	}
	// Copies.
	record := w.last()
	permits := permits(record)
	points := 1
	if !s.safe {
		points = 5
	}
	charged := w.pointsUsed() - before
	allowed := permits
	if s.safe || e.proven { // the transport may send a copy, for which the permit is charged
		allowed++
	}
	charges := seen
	if e.proven {
		charges--
	}
	if seen > allowed || !s.safe && seen > 1 && !e.proven {
		t.Errorf("the upstream saw %d copies with %d permits", seen, permits)
	}
	// The ledger.
	if charged < charges*points || charged > max(seen, permits)*points {
		t.Errorf("charged %d points with %d permits, but the upstream saw %d copies of %d points", charged, permits, seen, points)
	}
	if stage == dialing && charged > 0 {
		t.Errorf("charged %d points without a connection", charged)
	}
	if record.Spent < charges {
		t.Errorf("the record has %d spent, but the upstream saw %d copies", record.Spent, seen)
	}
	// The cache.
	blocked = false
	if stage == dialing || !s.safe && seen > 0 {
		hit := strings.Contains(w.get(changed, owner).Header.Get("Cache-Status"), "hit")
		w.want("the response from before the request is served", hit, stage == dialing)
	}
	time.Sleep(10*time.Second + time.Millisecond)
	w.want("permits in flight", w.inFlight(), 0)
	if after := w.pointsUsed() - before; after < charges*points {
		t.Errorf("charged %d points ten seconds later, but the upstream saw %d copies of %d points", after, seen, points)
	}
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
