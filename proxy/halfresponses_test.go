package proxy

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// halfResponse is a response that the upstream does not complete.
type halfResponse struct {
	name string
	// text is what an upstream with HTTP/1.1 sends before it closes the connection. STORE is replaced by Cache-Control. An
	// upstream with HTTP/2 sends a Content-Length of declared if that is positive, and sent bytes, and resets the stream.
	text           string
	declared, sent int
	// begun is set if the client gets the header of the response, and then an aborted body.
	begun bool
}

func halfJSON(size int) string { return `{"a":"` + strings.Repeat("x", size) }

func gzipped(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	return b.String()
}

const (
	statusOK  = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nSTORE\r\n"
	wholeText = `{"a":"whole"}`
)

func halfResponses() []halfResponse {
	cutGzip := gzipped(`{"a":"` + fmt.Sprint(make([]int, 100)) + `"}`)
	cutGzip = cutGzip[:len(cutGzip)-10]
	undelimited := strings.Replace(statusOK, "1.1", "1.0", 1)
	return []halfResponse{
		{name: "short Content-Length", text: statusOK + "Content-Length: 4000\r\n\r\n" + halfJSON(2000)},
		{name: "no byte of the body", text: statusOK + "Content-Length: 4000\r\n\r\n"},
		{name: "long, short Content-Length", text: statusOK + "Content-Length: 400000\r\n\r\n" + halfJSON(200_000), begun: true},
		{name: "long, beginning only", text: statusOK + "Content-Length: 400000\r\n\r\n" + halfJSON(100), begun: true},
		{name: "no last chunk", text: statusOK + "Transfer-Encoding: chunked\r\n\r\n64\r\n" + halfJSON(94) + "\r\n", begun: true},
		{name: "no chunk", text: statusOK + "Transfer-Encoding: chunked\r\n\r\n", begun: true},
		{name: "invalid chunk", text: statusOK + "Transfer-Encoding: chunked\r\n\r\n64\r\n" + halfJSON(94) + "\r\nzz\r\n", begun: true},
		{name: "no trailer", text: statusOK + "Trailer: Sum\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n" + halfJSON(94) + "\r\n0\r\n", begun: true},
		{name: "HTTP/1.0", text: undelimited + "\r\n" + halfJSON(100)},
		{name: "long, HTTP/1.0", text: undelimited + "\r\n" + halfJSON(200_000), begun: true},
		{name: "HTTP/1.0, no byte of JSON", text: undelimited + "\r\n"},
		{name: "HTTP/1.0, spaces only", text: undelimited + "\r\n \n"},
		{name: "HTTP/1.0, within a literal", text: undelimited + "\r\ntru"},
		{name: "HTTP/1.0, within the second value", text: strings.Replace(undelimited, "json", "x-ndjson", 1) + "\r\n" + wholeText + "\n{"},
		{name: "cut gzip", text: statusOK + fmt.Sprintf("Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n", len(cutGzip)) + cutGzip},
		{name: "cut gzip over HTTP/1.0", text: undelimited + "Content-Encoding: gzip\r\n\r\n" + cutGzip},
		{name: "no header", text: ""},
		{name: "half header", text: "HTTP/1.1 200 OK\r\nContent-Le"},
		{name: "reset", declared: 4000, sent: 2000},
		{name: "reset before the body", declared: 4000},
		{name: "long, reset", declared: 400_000, sent: 200_000, begun: true},
		{name: "reset without a length", sent: 2000, begun: true},
	}
}

// A response without a length is whole if its content is, or if Weir does not know the form of its content.
func TestWholeResponsesWithoutALengthPass(t *testing.T) {
	for _, c := range [][2]string{
		{"application/json", wholeText}, {"application/json", "true\n"}, {"application/json", "\ufeff{}"}, {"application/json", "no JSON"},
		{"application/x-ndjson", "{}\n{}\n"}, {"application/json", "[" + strings.Repeat("{},", 10_000) + "1]"}, {"text/plain", ""}, {"text/plain", "{"},
	} {
		bubble(t, fmt.Sprintf("%s %.10q", c[0], c[1]), func(t *testing.T) {
			w := newWorld(t, nothing, rawUpstream(t, "HTTP/1.0 200 OK\r\nContent-Type: "+c[0]+"\r\n\r\n"+c[1]))
			r := w.wantReply("", w.get("/repos/a/b", owner), http.StatusOK)
			w.want("body", r.body, c[1])
		})
	}
}

// A stream without a length reaches the client piece by piece, unless its content can show a cut.
func TestStreamsWithoutALengthAreNotHeld(t *testing.T) {
	for _, mediaType := range []string{"text/event-stream", "text/plain", "application/octet-stream"} {
		bubble(t, mediaType, func(t *testing.T) {
			transport := rawTransport(t, func(c net.Conn) {
				if _, err := readHead(c); err == nil {
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: "+mediaType+"\r\n\r\ndata: 1\n\n")
					time.Sleep(20 * time.Second)
					_, _ = io.WriteString(c, "data: 2\n\n")
				}
			})
			w := newWorld(t, nothing, func(c *Config) { c.Transport = transport })
			began := time.Now()
			resp := testservers.Must(w.client.Do(w.newRequest(w.Context(), http.MethodGet, "http://gateway.test/events", http.NoBody, owner)))
			first := make([]byte, 9)
			_ = testservers.Must(io.ReadFull(resp.Body, first))
			w.want("time of the first event", time.Since(began) < time.Second, true)
			w.want("all events", string(first)+string(testservers.Must(io.ReadAll(resp.Body))), "data: 1\n\ndata: 2\n\n")
			_ = resp.Body.Close()
		})
	}
}

// halfUpstream sends the half response while half is set, and otherwise a whole one.
type halfUpstream struct {
	halfResponse
	cacheControl string
	half         atomic.Bool
	requests     atomic.Int32
}

// option connects a gateway to the upstream.
func (u *halfUpstream) option(t *testing.T) option {
	if u.text == "" && u.declared+u.sent > 0 {
		transport := serveUpstream(t, http2, u)
		return func(c *Config) { c.Transport = transport }
	}
	transport := rawTransport(t, func(c net.Conn) {
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		u.requests.Add(1)
		time.Sleep(time.Second)
		// The next request must not be sent on this connection, which ends.
		text := statusOK + "Connection: close\r\nContent-Length: 13\r\n\r\n" + wholeText
		if u.half.Load() {
			text = u.text
		}
		_, _ = io.WriteString(c, strings.Replace(text, "STORE", "Cache-Control: "+u.cacheControl, 1))
	})
	return func(c *Config) { c.Transport = transport }
}

// ServeHTTP implements http.Handler.
func (u *halfUpstream) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	u.requests.Add(1)
	time.Sleep(time.Second)
	setFields(w, "Content-Type: application/json", "Cache-Control: "+u.cacheControl)
	if !u.half.Load() {
		_, _ = io.WriteString(w, wholeText)
		return
	}
	if u.declared > 0 {
		w.Header().Set("Content-Length", fmt.Sprint(u.declared))
	}
	_, _ = io.WriteString(w, strings.Repeat("x", u.sent))
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// wantHalf checks what a client sees of the half response.
func (w *world) wantHalf(u *halfUpstream, r got) {
	w.Helper()
	switch {
	case u.begun && (r.Response == nil || r.err == nil):
		w.Errorf("got %v with the complete body %.50q, want an aborted response", r.err, r.body)
	case !u.begun && (r.Response == nil || r.StatusCode != http.StatusBadGateway || r.err != nil):
		w.Errorf("got %+v, %v, want 502", r.Response, r.err)
	}
}

// TestHalfResponsesNeverLookWhole checks each way in which an upstream can stop, for responses that may be stored and for
// others. The client gets 502, or a stale response, or the abort of a response that has begun. No half response is stored.
func TestHalfResponsesNeverLookWhole(t *testing.T) {
	for _, h := range halfResponses() {
		for _, cacheControl := range []string{"no-store", "private, max-age=60"} {
			for _, client := range []string{http1, http2} {
				if h.name == "cut gzip" && cacheControl == "no-store" {
					continue // its framing is complete, and the client detects it
				}
				bubble(t, fmt.Sprintf("%s/%s/%s", h.name, cacheControl, client), func(t *testing.T) {
					u := &halfUpstream{halfResponse: h, cacheControl: cacheControl}
					w := newWorld(t, nothing, u.option(t))
					request := w.clientOf(client)
					u.half.Store(true)
					w.wantHalf(u, request())
					time.Sleep(11 * time.Second) // an unconfirmed permit is held for a while
					w.want("permits in flight", w.inFlight(), 0)
					rec := w.last()
					w.want("record", fmt.Sprint(rec.Status, rec.Error != "", rec.Cache.Stored), "502 true false")
					u.half.Store(false)
					r := request()
					failIf(t, r.body != wholeText || strings.Contains(r.Header.Get("Cache-Status"), "hit"), "then got %q %q", r.Header.Get("Cache-Status"), r.body)
					if cacheControl == "no-store" || h.begun {
						return
					}
					time.Sleep(2 * time.Minute)
					u.half.Store(true)
					w.want("stale response", request().body, wholeText)
				})
			}
		}
	}
}

// clientOf returns a function that sends a request over a protocol.
func (w *world) clientOf(protocol string) func() got {
	client, scheme := w.client, "http"
	if protocol == http2 {
		client, scheme = w.http2Client(), "https"
	}
	return func() got {
		return receive(client.Do(w.newRequest(w.Context(), http.MethodGet, scheme+"://gateway.test/repos/a/b", http.NoBody, owner)))
	}
}

// Followers of a call see what its leader sees. They send separate requests only after a response that has begun, of which
// the leader's client has a part (TestTruncatedResponseIsNotShared).
func TestFollowersSeeTheHalfResponse(t *testing.T) {
	for _, h := range halfResponses() {
		bubble(t, h.name, func(t *testing.T) {
			u := &halfUpstream{halfResponse: h, cacheControl: "private, max-age=60"}
			u.half.Store(true)
			w := newWorld(t, nothing, u.option(t))
			request, followers := w.clientOf(http2), atomic.Int32{}
			together(4, func(int) {
				r := request()
				switch {
				case r.Response != nil && r.StatusCode == http.StatusBadGateway && r.err == nil:
					followers.Add(1)
				default:
					w.wantHalf(u, r)
				}
			})
			want, attempts := int32(4), int32(1)
			switch {
			case h.begun:
				want, attempts = 0, 4
			case h.name == "no header":
				attempts += maxRetries
			}
			w.want("clients with 502", followers.Load(), want)
			w.want("requests upstream", u.requests.Load(), attempts)
		})
	}
}

// A write whose response is cut may have succeeded.
func TestHalfResponseOfAWritePurges(t *testing.T) {
	for _, h := range halfResponses() {
		bubble(t, h.name, func(t *testing.T) {
			u := &halfUpstream{halfResponse: h, cacheControl: "private, max-age=60"}
			w := newWorld(t, nothing, wholeAPI(t, unchanged), u.option(t))
			w.get("/repos/a/b", owner)
			u.half.Store(true)
			r := w.try(http.MethodPatch, "/repos/a/b", strings.NewReader("{}"), owner)
			if h.name != "cut gzip" { // its framing is complete, and the client detects it
				w.wantHalf(u, r)
			}
			w.want("spent", w.last().Spent > 0, true)
			u.half.Store(false)
			before := strings.Contains(w.get("/repos/a/b", owner).Header.Get("Cache-Status"), "hit")
			failIf(t, before, "the response from before the write is served: %+v", w.last())
		})
	}
}

// A response of a computation (202) that is cut is not shared.
func TestHalfComputingResponseIsRefused(t *testing.T) {
	h := halfResponse{name: "202", text: strings.Replace(statusOK, "200 OK", "202 Accepted", 1) + "Content-Length: 400\r\n\r\n{"}
	bubble(t, h.name, func(t *testing.T) {
		u := &halfUpstream{halfResponse: h, cacheControl: "no-store"}
		u.half.Store(true)
		w := newWorld(t, nothing, u.option(t))
		w.wantHalf(u, w.get("/repos/a/b/stats/participation", owner, "Prefer: wait=0"))
	})
}

// A part is stored only if it has all bytes of its Content-Range, or all but one of those that a suffix selected.
func TestShortPartsAreNotStored(t *testing.T) {
	for _, c := range []struct {
		selected, contentRange string
		stored                 bool
	}{
		{"bytes=0-3", "bytes 0-3/10", true},
		{"bytes=0-3", "bytes 0-4/10", false},
		{"bytes=0-3", "bytes 0-2/10", false},
		{"bytes=0-3", "bytes 0-3/3", false},
		{"bytes=0-3", "bytes 0-3/*", false},
		{"bytes=0-3", "", false},
		{"bytes=-4", "bytes 6-9/10", true},
		{"bytes=-4", "bytes 5-9/10", true},
		{"bytes=-4", "bytes 4-9/10", false},
		{"bytes=-4", "bytes 7-9/10", false},
		{"bytes=-4", "bytes 0-9/10", false},
		{"bytes=-4", "bytes 0-3/10", false},
	} {
		upstream := func(w http.ResponseWriter, _ *http.Request) {
			setFields(w, "Cache-Control: private, max-age=60", "Content-Range: "+c.contentRange)
			w.WriteHeader(http.StatusPartialContent)
			_, _ = io.WriteString(w, "0123")
		}
		setup(upstream).sub(t, c.selected+" "+c.contentRange, func(w *world) {
			for range 2 {
				w.want("body", w.get("/repos/a/b", owner, "Range: "+c.selected).body, "0123")
			}
			w.want("requests upstream", w.upstreamSaw(), map[bool]int{true: 1, false: 2}[c.stored])
			w.want("entries", w.gateway.Cache.Count("url:/repos/a/b"), map[bool]int{true: 1, false: 0}[c.stored])
		})
	}
}
