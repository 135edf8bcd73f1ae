package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	h2 "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/proxy/breaker"
	"github.com/weirgate/weir/proxy/refusal"
)

// The ways in which a client stops during a request.
const (
	halfClosed = "half-close" // the client sends no more, and reads
	closed     = "close"
	stalled    = "stall"
	ended      = "end"   // the protocol says that the body is complete, although it is too short
	reset      = "reset" // of the stream
)

// halfRequest is a request that the client does not complete.
type halfRequest struct {
	stage string
	// head has the request line without the target, and the fields. size is the number of body bytes that arrive, of 3 MiB or
	// of 100 bytes. tail follows them.
	head string
	size int
	tail string
	// saw is the number of requests that reach the upstream.
	saw int
}

const largeHalf = maxUploadBuffer + maxUploadBuffer/2

// halves are all stages of a write over HTTP/1.1.
var halves = []halfRequest{
	{"short Content-Length", "HTTP/1.1\r\nContent-Length: 100", 4, "", 0},
	{"HTTP/1.0", "HTTP/1.0\r\nContent-Length: 100", 4, "", 0},
	{"no byte of the body", "HTTP/1.1\r\nContent-Length: 100", 0, "", 0},
	{"no last chunk", "HTTP/1.1\r\nTransfer-Encoding: chunked", 0, "4\r\nhalf\r\n", 0},
	{"within a chunk", "HTTP/1.1\r\nTransfer-Encoding: chunked", 0, "64\r\nhalf", 0},
	{"within the size of a chunk", "HTTP/1.1\r\nTransfer-Encoding: chunked", 0, "4\r\nhalf\r\n6", 0},
	{"trailers missing", "HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTrailer: Sum", 0, "4\r\nhalf\r\n0\r\n", 0},
	{"within a trailer", "HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTrailer: Sum", 0, "4\r\nhalf\r\n0\r\nSum: 1", 0},
	{"100-continue", "HTTP/1.1\r\nContent-Length: 100\r\nExpect: 100-continue", 0, "", 1},
	{"within a large body", "HTTP/1.1\r\nContent-Length: 3145728", largeHalf, "", 1},
	{"within a large chunked body", "HTTP/1.1\r\nTransfer-Encoding: chunked", 0, "300000\r\n" + strings.Repeat("x", largeHalf), 1},
}

// halvesOverHTTP2 are all stages of a write over HTTP/2.
var halvesOverHTTP2 = []halfRequest{
	{"short content-length", "100", 4, "", 0},
	{"no byte of the body", "100", 0, "", 0},
	{"no length", "", 4, "", 0},
	{"within a large body", "3145728", largeHalf, "", 1},
}

// TestHalfRequestsNeverSucceed stops requests in each way at each stage. The client gets 400 or 408, or no response. A request
// of which nothing reached the upstream is neither charged, nor does it purge. All others do both. The body of a read is not
// sent upstream.
func TestHalfRequestsNeverSucceed(t *testing.T) {
	for _, upstream := range []string{http1, http2} {
		for _, target := range []string{"PATCH /repos/acme/widgets", "POST /graphql", "GET /repos/acme/widgets", "HEAD /repos/acme/other", "GET /rate_limit"} {
			isRead := strings.HasPrefix(target, "GET") || strings.HasPrefix(target, "HEAD")
			for _, h := range halves {
				for _, stop := range []string{halfClosed, closed, stalled} {
					if isRead || target == "POST /graphql" && h.size == 0 && h.tail == "" {
						h.saw = 0 // the gateway reads the body, whatever the client expects
					}
					bubble(t, fmt.Sprintf("%s/%s/%s/%s", upstream, target, h.stage, stop), func(t *testing.T) {
						newHalfWorld(t, upstream).stop(h, stop, target, (*halfWorld).sendHTTP1)
					})
				}
			}
			for _, h := range halvesOverHTTP2 {
				for _, stop := range []string{ended, reset, closed, stalled} {
					if stop == ended && (h.size > 1000 || h.head == "") {
						continue // without a length, the body is complete
					}
					if strings.HasPrefix(target, "HEAD") && (stop == reset || stop == closed) {
						continue // the log cannot show that the client has left
					}
					if isRead {
						h.saw = 0
					}
					bubble(t, fmt.Sprintf("%s/%s/HTTP2, %s/%s", upstream, target, h.stage, stop), func(t *testing.T) {
						newHalfWorld(t, upstream).stop(h, stop, target, (*halfWorld).sendHTTP2)
					})
				}
			}
		}
	}
}

// halfWorld is a gateway whose upstream counts requests and completes only complete ones.
type halfWorld struct {
	*world
	arrived, completed atomic.Int32 // requests that are not GET
}

func newHalfWorld(t *testing.T, upstream string) *halfWorld {
	h := &halfWorld{}
	h.world = newWorldOver(t, upstream, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			h.arrived.Add(1)
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				panic(http.ErrAbortHandler)
			}
			h.completed.Add(1)
		}
		setFields(w, "Cache-Control: private, max-age=300", "Content-Type: application/json")
		_, _ = io.WriteString(w, `{"data":{}}`)
	}, wholeAPI(t, unchanged))
	return h
}

// stop sends one half request, and checks what follows.
func (w *halfWorld) stop(h halfRequest, stop, target string, send func(*halfWorld, halfRequest, string, string) (status int)) {
	w.Helper()
	const read = "/repos/acme/widgets"
	w.get(read, owner)
	before := w.pointsUsed()
	status := send(w, h, stop, target)
	want := map[string]int{halfClosed: 400, ended: 400, stalled: 408}[stop]
	if stop == stalled && strings.Contains(h.stage, "trailer") {
		want = http.StatusBadRequest // net/http reports no timeout within trailers
	}
	w.want("status for the client", status, want)
	time.Sleep(time.Second)
	w.want("status in the log", w.last().Status, map[bool]int{true: want, false: refusal.ClientGone}[want > 0])
	w.want("requests upstream", int(w.arrived.Load()), h.saw)
	w.want("complete requests upstream", int(w.completed.Load()), 0)
	w.want("spent", w.last().Spent, h.saw)
	w.want("points", w.pointsUsed()-before, 5*h.saw)
	hit := strings.Contains(w.get(read, owner).Header.Get("Cache-Status"), "hit")
	w.want("the response from before the request is served", hit, h.saw == 0)
	time.Sleep(10 * time.Second)
	w.want("permits in flight", w.inFlight(), 0)
}

// sendHTTP1 returns the status of the response, or 0 without a response.
func (w *halfWorld) sendHTTP1(h halfRequest, stop, target string) (status int) {
	c := w.dialHalves()
	defer func() { _ = c.Close() }()
	version, fields, _ := strings.Cut(h.head, "\r\n")
	text := fmt.Sprintf("%s %s\r\nHost: g\r\n%s\r\n%s\r\n\r\n%s%s", target, version, owner, fields, strings.Repeat("x", h.size), h.tail)
	sent := make(chan struct{})
	go func() { defer close(sent); _, _ = io.WriteString(c, text) }()
	responses := make(chan int, 1)
	method, _, _ := strings.Cut(target, " ")
	go func() { responses <- readStatus(c, method) }()
	<-sent
	time.Sleep(time.Second)
	switch stop {
	case halfClosed:
		_ = c.CloseWrite()
	case closed:
		_ = c.Close()
	}
	return <-responses
}

// readStatus returns the status of the final response, or 0 if the connection ends before a complete response.
func readStatus(c net.Conn, method string) int {
	for r := bufio.NewReader(c); ; {
		resp, err := http.ReadResponse(r, &http.Request{Method: method})
		if err != nil {
			return 0
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return 0
		}
		if resp.StatusCode >= http.StatusOK {
			return resp.StatusCode
		}
	}
}

// sendHTTP2 is sendHTTP1 over HTTP/2.
func (w *halfWorld) sendHTTP2(h halfRequest, stop, target string) (status int) {
	method, path, _ := strings.Cut(target, " ")
	w.http2Client()
	raw, err := w.secure.Transport.(*http.Transport).DialContext(context.Background(), "", "")
	noError(w, err)
	config := testservers.PipeClientTLS()
	config.NextProtos, config.ServerName = []string{"h2"}, "gateway.test"
	c := tls.Client(raw, config)
	defer func() { _ = raw.Close() }()
	noError(w, c.Handshake())
	out := newQueue(c)
	f := h2.NewFramer(out, c)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, _ = io.WriteString(out, h2.ClientPreface)
	_ = f.WriteSettings()
	var block strings.Builder
	encoder := hpack.NewEncoder(&block)
	authorization, _ := strings.CutPrefix(owner, "Authorization: ")
	for _, field := range []string{":method " + method, ":scheme https", ":authority gateway.test", ":path " + path, "authorization " + authorization, "content-length " + h.head} {
		if name, value, _ := strings.Cut(field, " "); value != "" {
			_ = encoder.WriteField(hpack.HeaderField{Name: name, Value: value})
		}
	}
	_ = f.WriteHeaders(h2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte(block.String()), EndHeaders: true})
	responses := make(chan int, 1)
	go func() { responses <- readStream(f, h2.NewFramer(out, nil)) }() // a Framer is for one writer
	for left := h.size; left > 0; {
		n := min(left, 16<<10)
		_ = f.WriteData(1, false, make([]byte, n))
		if left -= n; (h.size-left)%(512<<10) == 0 {
			time.Sleep(time.Millisecond) // the gateway reads, and permits more
		}
	}
	time.Sleep(time.Second)
	switch stop {
	case ended:
		_ = f.WriteData(1, true, nil)
	case reset:
		_ = f.WriteRSTStream(1, h2.ErrCodeCancel)
		time.Sleep(time.Second)
		_ = raw.Close()
	case closed:
		_ = raw.Close()
	}
	status = <-responses
	_ = raw.Close()
	out.close()
	return status
}

// readStream returns the status of the response on the first stream, or 0 if it does not end.
func readStream(f, acks *h2.Framer) (status int) {
	for {
		frame, err := f.ReadFrame()
		if err != nil && !errors.As(err, new(h2.StreamError)) {
			return 0
		}
		switch frame := frame.(type) {
		case *h2.SettingsFrame:
			if !frame.IsAck() {
				_ = acks.WriteSettingsAck()
			}
		case *h2.MetaHeadersFrame:
			if status, _ = strconv.Atoi(frame.PseudoValue("status")); frame.StreamEnded() {
				return status
			}
		case *h2.DataFrame:
			if frame.StreamEnded() {
				return status
			}
		case *h2.RSTStreamFrame:
			return 0
		}
	}
}

// A client that has sent its whole request and closes its sending side counts as disconnected.
func TestHalfClosedReadIsAborted(t *testing.T) {
	for _, upstream := range []string{http1, http2} {
		bubble(t, upstream, func(t *testing.T) {
			w := newWorldOver(t, upstream, delayed(replies("whole")))
			c := w.dialHalves()
			_, _ = io.WriteString(c, "GET /user HTTP/1.1\r\nHost: g\r\n"+owner+"\r\n\r\n")
			time.Sleep(time.Second / 2)
			_ = c.CloseWrite()
			w.want("status for the client", readStatus(c, http.MethodGet), 0)
			w.want("status in the log", w.last().Status, refusal.ClientGone)
			w.want("spent", w.last().Spent, 1)
		})
	}
}

// Cut uploads are no faults of the upstream.
func TestCutUploadsLeaveTheBreakerClosed(t *testing.T) {
	for _, upstream := range []string{http1, http2} {
		bubble(t, upstream, func(t *testing.T) {
			w := newHalfWorld(t, upstream)
			for range 2 * breaker.MaxFailures {
				w.sendHTTP1(halves[9], halfClosed, "PATCH /repos/acme/widgets")
			}
			w.want("reachable", w.gateway.Reachable(), true)
		})
	}
}
