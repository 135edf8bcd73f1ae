package fastpath

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/weirgate/weir/internal/testservers"
)

func TestParseHead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]head{
		"GET / HTTP/1.1\r\nHost: h\r\n\r\n":                                             {27, 0, true},
		"GET /a?b=c HTTP/1.1\r\nhost: h:80\r\nX: \r\nX:\t y \r\n\r\nmore":               {48, 0, true},
		"GET /a%2Fb HTTP/1.1\r\nHost: [::1]:80\r\nConnection: keep-alive\r\n\r\n":       {63, 0, true},
		"GET / HTTP/1.1\r\nHost: h\r\nPragma: no-cache\r\n\r\n":                         {45, 0, true},
		"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n":                        {46, 0, false},
		"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n":                                            {28, 0, false},
		"POST / HTTP/1.1\r\nContent-Length: 5\r\nHost: h\r\n\r\nhello":                  {47, 5, false},
		"GET / HTTP/1.1\r\nHost: h\r\n":                                                 {},
		"GET / HTTP/1.1\nHost: h\n\n":                                                   {},
		"GET / HTTP/1.1\r\nHost: h\nX: y\r\n\r\n":                                       {},
		"GET / HTTP/1.1\r\nHost: h\r\n X: y\r\n\r\n":                                    {},
		"GET / HTTP/1.1\r\nHost: h\r\nX : y\r\n\r\n":                                    {},
		"GET / HTTP/1.1\r\nHost: h\r\nX: \x80\r\n\r\n":                                  {},
		"GET / HTTP/1.1\r\nHost: h\r\nX: a\rb\r\n\r\n":                                  {},
		"GET / HTTP/1.1\r\n\r\n":                                                        {},
		"GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n":                                  {},
		"GET / HTTP/1.1\r\nHost:\r\n\r\n":                                               {},
		"GET / HTTP/1.0\r\nHost: h\r\n\r\n":                                             {},
		"GET  / HTTP/1.1\r\nHost: h\r\n\r\n":                                            {},
		"GET http://h/ HTTP/1.1\r\nHost: h\r\n\r\n":                                     {},
		"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n":                                         {},
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":                                              {},
		"\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n":                                         {},
		"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n":              {},
		"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1, 1\r\n\r\n":                    {},
		"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +1\r\n\r\n":                      {},
		"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9223372036854775808\r\n\r\n":     {},
		"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n1": {},
		"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n":                        {},
		"GET / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n":        {},
		"GET / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n\r\n":                     {},
	} {
		got, ok := parseHead(text)
		if ok != (want != head{}) || ok && got != want {
			t.Errorf("%q: got %+v, %v, want %+v", text, got, ok, want)
		}
	}
}

// FuzzParseHead compares parseHead with net/http. If net/http saw the end of a request at
// another byte, a client could hide a request. A plain GET must not be refused by net/http.
func FuzzParseHead(f *testing.F) {
	for _, text := range []string{
		"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET /repos/o/r?per_page=100&page=2 HTTP/1.1\r\nHost: gateway:8080\r\nAuthorization: Bearer t\r\nAccept: */*\r\nConnection: keep-alive\r\n\r\n",
		"GET /a HTTP/1.1\r\nHost: h\r\nIf-None-Match: \"x\"\r\nX: \r\nY:\t z \r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET /a?b#c HTTP/1.1\r\nHost: h\r\n\r\n", "GET /a?b?c=%zz HTTP/1.1\r\nHost: h\r\n\r\n", "GET //a HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET /a;b,c!(d)*' HTTP/1.1\r\nHost: h\r\n\r\n", "GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n", "GET http://h/a HTTP/1.1\r\nHost: h\r\n\r\n",
		"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello", "GET /a HTTP/1.1\r\nHost: h\r\nContent-Length : 5\r\n\r\nhello",
		"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\nhello", "GET /a HTTP/1.1\r\nHost: h\r\n Content-Length: 5\r\n\r\nhello",
		"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "GET /a HTTP/1.1\nHost: h\n\n", "GET /a HTTP/1.1\r\nHost: h\r\nX: a\rb\r\n\r\n",
		"GET /a HTTP/1.1\r\nHost: h\r\nX\x00: y\r\n\r\n", "GET /a\x7f HTTP/1.1\r\nHost: h\r\n\r\n", "\r\nGET /a HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "GET /a HTTP/1.1\r\nHost: h\r\nTrailer: X\r\nTe: trailers\r\n\r\n",
	} {
		f.Add([]byte(text))
	}
	l := testservers.ServePipe(f, "fuzz", &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, ok := parseHead(string(b))
		if !ok {
			return
		}
		in := bufio.NewReader(bytes.NewReader(b))
		r, err := http.ReadRequest(in)
		if err != nil {
			return // the server responds with 400 and closes the connection
		}
		rest, _ := io.ReadAll(in)
		if size := len(b) - len(rest); h.size != size || h.body != r.ContentLength || len(r.TransferEncoding) > 0 {
			t.Fatalf("got %+v; net/http: head of %d bytes, body of %d bytes %v: %q", h, size, r.ContentLength, r.TransferEncoding, b)
		}
		if !h.plain {
			return
		}
		c, err := l.Dial(context.Background(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		go func() { _, _ = c.Write(b[:h.size]) }()
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != http.StatusOK || resp.Close {
			t.Fatalf("net/http refused a plain GET: %v %v: %q", resp, err, b)
		}
		_ = resp.Body.Close()
	})
}

func TestLongHeadIsIncomplete(t *testing.T) {
	text := "GET / HTTP/1.1\r\nHost: h\r\nX: " + strings.Repeat("y", 4096) + "\r\n\r\n"
	if _, ok := parseHead(text[:4096]); ok {
		t.Error("parseHead accepted the start of a head")
	}
}
