package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// attackedGateway is a gateway with the production settings, and an upstream that records its
// requests.
type attackedGateway struct {
	*testing.T
	address string // address of the gateway
	mu      sync.Mutex
	seen    []string // method, target and body
}

// startAttacked starts the gateway and an upstream that echoes the method, the target and the
// body of each request.
func startAttacked(t *testing.T) *attackedGateway {
	t.Helper()
	a := &attackedGateway{T: t}
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		text := fmt.Sprintf("%s %s %q", r.Method, r.RequestURI, body)
		if err != nil {
			return // an incomplete request does not count
		}
		a.mu.Lock()
		a.seen = append(a.seen, text)
		a.mu.Unlock()
		_, _ = io.WriteString(w, text)
	}))
	t.Cleanup(up.Close)
	a.serve(up.URL)
	return a
}

// serve starts the gateway in front of an upstream.
func (a *attackedGateway) serve(upstream string, flags ...string) {
	a.Helper()
	s := start(a.T, append([]string{"serve", "--upstream", upstream, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, flags...)...)
	a.address = s.find(`msg="gateway started" address=(\S+)`)
}

// received returns the requests that the upstream has received, one per line.
func (a *attackedGateway) received() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Join(a.seen, "\n")
}

// send writes bytes to a new connection. It returns all bytes that the gateway sends until it closes the connection.
func (a *attackedGateway) send(request string) string {
	a.Helper()
	conn, err := net.Dial("tcp", a.address)
	if err != nil {
		a.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Minute)) // real time, because the connection is TCP
	go func() { _, _ = io.WriteString(conn, request) }()
	text, err := io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		a.Errorf("the gateway did not close the connection after %q", text)
	}
	return string(text)
}

// responses parses a stream of responses to the given methods, and returns their statuses and bodies.
func (a *attackedGateway) responses(stream string, methods ...string) (all []string) {
	a.Helper()
	r := bufio.NewReader(strings.NewReader(stream))
	for i := 0; ; i++ {
		method := http.MethodGet
		if i < len(methods) {
			method = methods[i]
		}
		resp, err := http.ReadResponse(r, &http.Request{Method: method})
		if err != nil {
			if rest, _ := io.ReadAll(r); !errors.Is(err, io.ErrUnexpectedEOF) || len(rest) > 0 {
				a.Errorf("invalid data after %q: %v, %q", all, err, rest)
			}
			return all
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			a.Errorf("body: %v", err)
		}
		all = append(all, fmt.Sprint(resp.StatusCode, " ", string(body)))
	}
}

// hidden is a request inside other data. The gateway must not parse it as a request.
const hidden = "GET /hidden HTTP/1.1\r\nHost: g\r\n\r\n"

func TestAmbiguousFramingIsRejected(t *testing.T) {
	a := startAttacked(t)
	for _, c := range []struct{ name, line, fields string }{
		{"two lengths that differ", "POST /a HTTP/1.1", "Content-Length: 4\r\nContent-Length: 5"},
		{"two lengths in one field", "POST /a HTTP/1.1", "Content-Length: 4, 5"},
		{"two equal lengths in one field", "POST /a HTTP/1.1", "Content-Length: 4, 4"},
		{"a length with a sign", "POST /a HTTP/1.1", "Content-Length: +4"},
		{"a negative length", "POST /a HTTP/1.1", "Content-Length: -4"},
		{"a length in hexadecimal", "POST /a HTTP/1.1", "Content-Length: 0x4"},
		{"a length that overflows", "POST /a HTTP/1.1", "Content-Length: 99999999999999999999"},
		{"an empty length", "POST /a HTTP/1.1", "Content-Length:"},
		{"an unknown coding", "POST /a HTTP/1.1", "Transfer-Encoding: xchunked"},
		{"an unknown coding and a length", "POST /a HTTP/1.1", "Transfer-Encoding: xchunked\r\nContent-Length: 4"},
		{"chunked is not the last coding", "POST /a HTTP/1.1", "Transfer-Encoding: chunked, identity"},
		{"chunks of another coding", "POST /a HTTP/1.1", "Transfer-Encoding: gzip, chunked"},
		{"identity", "POST /a HTTP/1.1", "Transfer-Encoding: identity"},
		{"chunks twice", "POST /a HTTP/1.1", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"},
		{"chunks and another coding, in two fields", "POST /a HTTP/1.1", "Transfer-Encoding: chunked\r\nTransfer-Encoding: x"},
		{"chunks behind a vertical tab", "POST /a HTTP/1.1", "Transfer-Encoding: \x0bchunked"},
		{"no coding", "POST /a HTTP/1.1", "Transfer-Encoding:"},
		{"a coding on a folded line", "POST /a HTTP/1.1", "Transfer-Encoding:\r\n xchunked"},
		{"a coding behind a space", "POST /a HTTP/1.1", "Transfer-Encoding : chunked"},
		{"a length behind a space", "POST /a HTTP/1.1", "Content-Length : 4"},
		{"chunks without a protocol version", "POST /a", "Transfer-Encoding: chunked"},
	} {
		t.Run(c.name, func(t *testing.T) {
			answer := a.send(c.line + "\r\nHost: g\r\n" + c.fields + "\r\n\r\n0\r\n\r\n" + hidden)
			if !strings.HasPrefix(answer, "HTTP/1.1 400 ") && !strings.HasPrefix(answer, "HTTP/1.1 501 ") || strings.Count(answer, "HTTP/1.1 ") != 1 {
				t.Errorf("got %.200q", answer)
			}
		})
	}
	if seen := a.received(); seen != "" {
		t.Errorf("upstream received %s", seen)
	}
}

// TestChunkedRequestIsForwardedWithOneFraming checks requests with both Content-Length and
// chunked coding (RFC 9112, section 6.1). The gateway forwards one framing, and does not parse
// the following bytes as a request.
func TestChunkedRequestIsForwardedWithOneFraming(t *testing.T) {
	for _, c := range []struct{ name, fields, body string }{
		{"CL.TE", "Content-Length: 100\r\nTransfer-Encoding: chunked", "0\r\n\r\n"},
		{"TE.CL", "Transfer-Encoding: chunked\r\nContent-Length: 4", "0\r\n\r\n"},
		{"a coding on a folded line", "Content-Length: 4\r\nTransfer-Encoding:\r\n chunked", "0\r\n\r\n"},
		{"chunks alone", "Transfer-Encoding: chunked", "0\r\n\r\n"},
		{"in capitals", "Content-Length: 4\r\nTRANSFER-ENCODING: CHUNKED", "0\r\n\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := startAttacked(t)
			answer := a.responses(a.send("POST /a HTTP/1.1\r\nHost: g\r\n"+c.fields+"\r\n\r\n"+c.body+hidden), http.MethodPost)
			if want := `200 POST /a ""`; len(answer) != 1 || answer[0] != want {
				t.Errorf("got %q, want only %q", answer, want)
			}
			if seen, want := a.received(), `POST /a ""`; seen != want {
				t.Errorf("upstream received %s", seen)
			}
		})
	}
	t.Run("equal lengths are one", func(t *testing.T) { // RFC 9110 section 8.6
		a := startAttacked(t)
		stream := a.send("POST /a HTTP/1.1\r\nHost: g\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\nbody" + strings.Replace(hidden, "Host", "Connection: close\r\nHost", 1))
		if got := fmt.Sprint(a.responses(stream, http.MethodPost)); got != `[200 POST /a "body" 200 GET /hidden ""]` {
			t.Errorf("got %s", got)
		}
	})
	t.Run("chunks in HTTP/1.0", func(t *testing.T) {
		a := startAttacked(t)
		answer := a.send("POST /a HTTP/1.0\r\nHost: g\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n0\r\n\r\n" + hidden)
		if strings.Count(answer, "HTTP/1.") != 1 || strings.Contains(a.received(), "/hidden") {
			t.Errorf("got %.200q; upstream received %s", answer, a.received())
		}
	})
}

func TestInvalidChunksAreRejected(t *testing.T) {
	for name, body := range map[string]string{
		"a size that ends in LF":          "4\nbody\r\n0\r\n\r\n",
		"an extension that ends in LF":    "4;a\nbody\r\n0\r\n\r\n",
		"a body that ends in LF":          "4\r\nbody\n0\r\n\r\n",
		"a last size that ends in LF":     "4\r\nbody\r\n0\n\r\n",
		"CR within an extension":          "4;a\rb\r\nbody\r\n0\r\n\r\n",
		"a size with a sign":              "+4\r\nbody\r\n0\r\n\r\n",
		"a size with a prefix 0x":         "0x4\r\nbody\r\n0\r\n\r\n",
		"a size that overflows":           "10000000000000004\r\nbody\r\n0\r\n\r\n",
		"no size":                         "\r\nbody\r\n0\r\n\r\n",
		"a size too small":                "3\r\nbody\r\n0\r\n\r\n",
		"a long extension":                "4;" + strings.Repeat("a", 64<<10) + "\r\nbody\r\n0\r\n\r\n",
		"long extensions of short chunks": strings.Repeat("1;"+strings.Repeat("a", 1<<10)+"\r\nx\r\n", 100) + "0\r\n\r\n",
		"a trailer without a colon":       "4\r\nbody\r\n0\r\nno field\r\n\r\n",
		"a trailer without end":           "4\r\nbody\r\n0\r\nA: " + strings.Repeat("a", 1<<20) + "\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			a := startAttacked(t)
			answer := a.send("POST /a HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n" + body + hidden)
			if !strings.HasPrefix(answer, "HTTP/1.1 400 ") || strings.Count(answer, "HTTP/1.1 ") != 1 {
				t.Errorf("got %.200q", answer)
			}
			if seen := a.received(); seen != "" {
				t.Errorf("upstream received %s", seen)
			}
		})
	}
}

func TestBodyOfCachedRequestIsNotParsed(t *testing.T) {
	for name, body := range map[string]string{
		"with a length":       "Content-Length: " + fmt.Sprint(len(hidden)) + "\r\n\r\n" + hidden,
		"in chunks":           "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(hidden), hidden),
		"too long to be read": "Content-Length: 1000000\r\n\r\n" + strings.Repeat(hidden, 1000),
	} {
		t.Run(name, func(t *testing.T) {
			a := startAttacked(t)
			const page = "GET /gitignore/templates HTTP/1.1\r\nHost: g\r\n"
			first := a.send(page + "Connection: close\r\n\r\n")
			stream := a.send(page + body + strings.Replace(page, "GET", "HEAD", 1) + "Connection: close\r\n\r\n")
			hits := a.responses(stream, http.MethodGet, http.MethodHead)
			if len(hits) == 0 || hits[0] != `200 GET /gitignore/templates ""` || len(hits) > 2 || len(hits) == 2 && hits[1] != "200 " {
				t.Errorf("first %q, then %q", first, hits)
			}
			if seen := a.received(); seen != `GET /gitignore/templates ""` {
				t.Errorf("upstream received %s", seen)
			}
		})
	}
}

func TestUpgradeOpensNoTunnel(t *testing.T) {
	a := startAttacked(t)
	for _, fields := range []string{"Connection: upgrade\r\nUpgrade: websocket", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__"} {
		stream := a.send("GET /up HTTP/1.1\r\nHost: g\r\n" + fields + "\r\n\r\nGET //two/ways HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n")
		got := a.responses(stream)
		if len(got) != 2 || got[0] != `200 GET /up ""` || !strings.HasPrefix(got[1], "400 ") {
			t.Errorf("got %q; the following bytes were not parsed as a request", got)
		}
	}
	if seen := a.received(); strings.Contains(seen, "two") {
		t.Errorf("upstream received %s", seen)
	}
}

func TestInvalidFieldsAreRejected(t *testing.T) {
	a := startAttacked(t)
	for name, head := range map[string]string{
		"a space before the colon":     "Host: g\r\nX-A : b",
		"a name with a space":          "Host: g\r\nX A: b",
		"a name with a control":        "Host: g\r\nX\x01A: b",
		"a name with NUL":              "Host: g\r\nX\x00A: b",
		"a name beyond ASCII":          "Host: g\r\nXé: b",
		"no name":                      "Host: g\r\n: b",
		"no colon":                     "Host: g\r\nX-A",
		"a folded first line":          " X-A: b\r\nHost: g",
		"NUL in a value":               "Host: g\r\nX-A: a\x00b",
		"CR in a value":                "Host: g\r\nX-A: a\rX-B: b",
		"a control in a value":         "Host: g\r\nX-A: a\x0bb",
		"DEL in a value":               "Host: g\r\nX-A: a\x7fb",
		"no host":                      "X-A: b",
		"two hosts":                    "Host: g\r\nHost: evil",
		"a host with a path":           "Host: g/evil",
		"a host with a line":           "Host: g\r evil",
		"a host with user information": "Host: u@g",
		"a host with a space":          "Host: g evil",
	} {
		t.Run(name, func(t *testing.T) {
			answer := a.send("GET /a HTTP/1.1\r\n" + head + "\r\n\r\n")
			if !strings.HasPrefix(answer, "HTTP/1.1 400 ") || strings.Count(answer, "HTTP/1.1 ") != 1 {
				t.Errorf("got %.200q", answer)
			}
		})
	}
	if seen := a.received(); seen != "" {
		t.Errorf("upstream received %s", seen)
	}
}
