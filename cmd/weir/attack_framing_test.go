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

// attacked is a gateway that runs as users run it, and an upstream that notes what
// reaches it.
type attacked struct {
	*testing.T
	address string // of the gateway
	mu      sync.Mutex
	seen    []string // method, target and body
}

// underAttack starts both. The upstream answers with the target and the body that it
// was sent.
func underAttack(t *testing.T) *attacked {
	t.Helper()
	a := &attacked{T: t}
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		text := fmt.Sprintf("%s %s %q", r.Method, r.RequestURI, body)
		if err != nil {
			return // not all of it: nothing has been asked
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
func (a *attacked) serve(upstream string, flags ...string) {
	a.Helper()
	s := start(a.T, append([]string{"serve", "--upstream", upstream, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, flags...)...)
	a.address = s.find(`msg="gateway started" address=(\S+)`)
}

// upstreamSaw is what has been asked there so far.
func (a *attacked) upstreamSaw() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Join(a.seen, "\n")
}

// send writes bytes to a connection of its own and returns what comes back until the
// gateway closes it.
func (a *attacked) send(request string) string {
	a.Helper()
	conn, err := net.Dial("tcp", a.address)
	if err != nil {
		a.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Minute)) // it is TCP
	go func() { _, _ = io.WriteString(conn, request) }()
	text, err := io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		a.Errorf("the connection stays open after %q", text)
	}
	return string(text)
}

// answers are the statuses and bodies in a stream of answers to methods.
func (a *attacked) answers(stream string, methods ...string) (all []string) {
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
				a.Errorf("behind %q: %v, %q", all, err, rest)
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

// hidden is a request that must stay what it is: part of a body, or nothing.
const hidden = "GET /hidden HTTP/1.1\r\nHost: g\r\n\r\n"

func TestAttack1AmbiguousFraming(t *testing.T) {
	a := underAttack(t)
	for _, c := range []struct{ name, line, fields string }{
		{"two lengths that differ", "POST /a HTTP/1.1", "Content-Length: 4\r\nContent-Length: 5"},
		{"two lengths in one field", "POST /a HTTP/1.1", "Content-Length: 4, 5"},
		{"two equal lengths in one field", "POST /a HTTP/1.1", "Content-Length: 4, 4"},
		{"a length with a sign", "POST /a HTTP/1.1", "Content-Length: +4"},
		{"a negative length", "POST /a HTTP/1.1", "Content-Length: -4"},
		{"a length in hexadecimal", "POST /a HTTP/1.1", "Content-Length: 0x4"},
		{"a length beyond every number", "POST /a HTTP/1.1", "Content-Length: 99999999999999999999"},
		{"an empty length", "POST /a HTTP/1.1", "Content-Length:"},
		{"an unknown coding", "POST /a HTTP/1.1", "Transfer-Encoding: xchunked"},
		{"an unknown coding and a length", "POST /a HTTP/1.1", "Transfer-Encoding: xchunked\r\nContent-Length: 4"},
		{"chunks are not the last coding", "POST /a HTTP/1.1", "Transfer-Encoding: chunked, identity"},
		{"chunks of something else", "POST /a HTTP/1.1", "Transfer-Encoding: gzip, chunked"},
		{"identity", "POST /a HTTP/1.1", "Transfer-Encoding: identity"},
		{"chunks twice", "POST /a HTTP/1.1", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"},
		{"chunks and something else, in two fields", "POST /a HTTP/1.1", "Transfer-Encoding: chunked\r\nTransfer-Encoding: x"},
		{"chunks behind a vertical tab", "POST /a HTTP/1.1", "Transfer-Encoding: \x0bchunked"},
		{"no coding", "POST /a HTTP/1.1", "Transfer-Encoding:"},
		{"a coding on a folded line", "POST /a HTTP/1.1", "Transfer-Encoding:\r\n xchunked"},
		{"a coding behind a space", "POST /a HTTP/1.1", "Transfer-Encoding : chunked"},
		{"a length behind a space", "POST /a HTTP/1.1", "Content-Length : 4"},
		{"chunks in HTTP/0.9 clothes", "POST /a", "Transfer-Encoding: chunked"},
	} {
		t.Run(c.name, func(t *testing.T) {
			answer := a.send(c.line + "\r\nHost: g\r\n" + c.fields + "\r\n\r\n0\r\n\r\n" + hidden)
			if !strings.HasPrefix(answer, "HTTP/1.1 400 ") && !strings.HasPrefix(answer, "HTTP/1.1 501 ") || strings.Count(answer, "HTTP/1.1 ") != 1 {
				t.Errorf("got %.200q", answer)
			}
		})
	}
	if seen := a.upstreamSaw(); seen != "" {
		t.Errorf("upstream saw %s", seen)
	}
}

// TestAttack1LengthAndChunks: what RFC 9112 section 6.1 lets a server read by its
// chunks is sent on with one framing, and nothing behind it on the connection is a
// request.
func TestAttack1LengthAndChunks(t *testing.T) {
	for _, c := range []struct{ name, fields, body string }{
		{"CL.TE", "Content-Length: 100\r\nTransfer-Encoding: chunked", "0\r\n\r\n"},
		{"TE.CL", "Transfer-Encoding: chunked\r\nContent-Length: 4", "0\r\n\r\n"},
		{"a coding on a folded line", "Content-Length: 4\r\nTransfer-Encoding:\r\n chunked", "0\r\n\r\n"},
		{"chunks alone", "Transfer-Encoding: chunked", "0\r\n\r\n"},
		{"in capitals", "Content-Length: 4\r\nTRANSFER-ENCODING: CHUNKED", "0\r\n\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := underAttack(t)
			answer := a.answers(a.send("POST /a HTTP/1.1\r\nHost: g\r\n"+c.fields+"\r\n\r\n"+c.body+hidden), http.MethodPost)
			if want := `200 POST /a ""`; len(answer) != 1 || answer[0] != want {
				t.Errorf("got %q, want %q and no more", answer, want)
			}
			if seen, want := a.upstreamSaw(), `POST /a ""`; seen != want {
				t.Errorf("upstream saw %s", seen)
			}
		})
	}
	t.Run("equal lengths are one", func(t *testing.T) { // RFC 9110 section 8.6
		a := underAttack(t)
		stream := a.send("POST /a HTTP/1.1\r\nHost: g\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\nbody" + strings.Replace(hidden, "Host", "Connection: close\r\nHost", 1))
		if got := fmt.Sprint(a.answers(stream, http.MethodPost)); got != `[200 POST /a "body" 200 GET /hidden ""]` {
			t.Errorf("got %s", got)
		}
	})
	t.Run("chunks in HTTP/1.0", func(t *testing.T) {
		a := underAttack(t)
		answer := a.send("POST /a HTTP/1.0\r\nHost: g\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n0\r\n\r\n" + hidden)
		if strings.Count(answer, "HTTP/1.") != 1 || strings.Contains(a.upstreamSaw(), "/hidden") {
			t.Errorf("got %.200q; upstream saw %s", answer, a.upstreamSaw())
		}
	})
}

func TestAttack2BadChunks(t *testing.T) {
	for name, body := range map[string]string{
		"a size that ends in LF":        "4\nbody\r\n0\r\n\r\n",
		"an extension that ends in LF":  "4;a\nbody\r\n0\r\n\r\n",
		"a body that ends in LF":        "4\r\nbody\n0\r\n\r\n",
		"a last size that ends in LF":   "4\r\nbody\r\n0\n\r\n",
		"CR within an extension":        "4;a\rb\r\nbody\r\n0\r\n\r\n",
		"a size with a sign":            "+4\r\nbody\r\n0\r\n\r\n",
		"a size in C's clothes":         "0x4\r\nbody\r\n0\r\n\r\n",
		"a size beyond every number":    "10000000000000004\r\nbody\r\n0\r\n\r\n",
		"no size":                       "\r\nbody\r\n0\r\n\r\n",
		"a size too small":              "3\r\nbody\r\n0\r\n\r\n",
		"a long extension":              "4;" + strings.Repeat("a", 64<<10) + "\r\nbody\r\n0\r\n\r\n",
		"much extension to little body": strings.Repeat("1;"+strings.Repeat("a", 1<<10)+"\r\nx\r\n", 100) + "0\r\n\r\n",
		"a trailer that is none":        "4\r\nbody\r\n0\r\nno field\r\n\r\n",
		"a trailer without end":         "4\r\nbody\r\n0\r\nA: " + strings.Repeat("a", 1<<20) + "\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			a := underAttack(t)
			answer := a.send("POST /a HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n" + body + hidden)
			if !strings.HasPrefix(answer, "HTTP/1.1 400 ") || strings.Count(answer, "HTTP/1.1 ") != 1 {
				t.Errorf("got %.200q", answer)
			}
			if seen := a.upstreamSaw(); seen != "" {
				t.Errorf("upstream saw %s", seen)
			}
		})
	}
}

func TestAttack3BodyOnAHit(t *testing.T) {
	for name, body := range map[string]string{
		"of a length":           "Content-Length: " + fmt.Sprint(len(hidden)) + "\r\n\r\n" + hidden,
		"in chunks":             "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(hidden), hidden),
		"too long to be looked": "Content-Length: 1000000\r\n\r\n" + strings.Repeat(hidden, 1000),
	} {
		t.Run(name, func(t *testing.T) {
			a := underAttack(t)
			const page = "GET /gitignore/templates HTTP/1.1\r\nHost: g\r\n"
			first := a.send(page + "Connection: close\r\n\r\n")
			stream := a.send(page + body + strings.Replace(page, "GET", "HEAD", 1) + "Connection: close\r\n\r\n")
			hits := a.answers(stream, http.MethodGet, http.MethodHead)
			if len(hits) == 0 || hits[0] != `200 GET /gitignore/templates ""` || len(hits) > 2 || len(hits) == 2 && hits[1] != "200 " {
				t.Errorf("first %q, then %q", first, hits)
			}
			if seen := a.upstreamSaw(); seen != `GET /gitignore/templates ""` {
				t.Errorf("upstream saw %s", seen)
			}
		})
	}
}

func TestAttack4UpgradeIsNoTunnel(t *testing.T) {
	a := underAttack(t)
	for _, fields := range []string{"Connection: upgrade\r\nUpgrade: websocket", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__"} {
		stream := a.send("GET /up HTTP/1.1\r\nHost: g\r\n" + fields + "\r\n\r\nGET //two/ways HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n")
		got := a.answers(stream)
		if len(got) != 2 || got[0] != `200 GET /up ""` || !strings.HasPrefix(got[1], "400 ") {
			t.Errorf("got %q: what follows was not looked at as a request", got)
		}
	}
	if seen := a.upstreamSaw(); strings.Contains(seen, "two") {
		t.Errorf("upstream saw %s", seen)
	}
}

func TestAttack8BadFields(t *testing.T) {
	a := underAttack(t)
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
	if seen := a.upstreamSaw(); seen != "" {
		t.Errorf("upstream saw %s", seen)
	}
}
