package front

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// heads are requests as clients write them, and as attackers do.
var heads = []string{
	"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
	"GET /repos/o/r/subscribers?per_page=100&page=2 HTTP/1.1\r\nHost: gateway:8080\r\nAuthorization: Bearer t\r\nUser-Agent: x\r\nAccept: */*\r\naccept-encoding: gzip, deflate\r\nConnection: keep-alive\r\n\r\n",
	"GET /a HTTP/1.1\r\nHost: h\r\nIf-None-Match: \"x\"\r\nX: \r\nY:\t z \r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n",
	"GET /a HTTP/1.1\r\nHost: h\r\nAccept: a\r\nAccept: b\r\nCache-Control: no-cache\r\n\r\n",
	"GET /a HTTP/1.1\r\nHost: h\r\nPragma: no-cache\r\n\r\n",
	"GET /a;b,c!(d)*' HTTP/1.1\r\nHost: h\r\n\r\n", "GET /a%2Fb HTTP/1.1\r\nHost: h\r\n\r\n", "GET //a HTTP/1.1\r\nHost: h\r\n\r\n", "GET /a? HTTP/1.1\r\nHost: h\r\n\r\n",
	"GET /a?b#c HTTP/1.1\r\nHost: h\r\n\r\n", "GET /a?b?c=%zz HTTP/1.1\r\nHost: h\r\n\r\n", "GET /a:b@c&d=e+$f~g HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
	"GET http://h/a HTTP/1.1\r\nHost: h\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello", "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
	"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\nhello",
	"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: +5\r\n\r\nhello",
	"GET /a HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n", "GET /a HTTP/1.1\r\nHost: h\r\nContent-Length : 5\r\n\r\nhello", "GET /a HTTP/1.1\r\nHost: h\r\n Content-Length: 5\r\n\r\nhello",
	"GET /a HTTP/1.1\nHost: h\n\n", "GET /a HTTP/1.1\r\nHost: h\nX: y\r\n\r\n", "GET /a HTTP/1.1\r\nHost: h\r\nX: a\rb\r\n\r\n", "GET  /a HTTP/1.1\r\nHost: h\r\n\r\n", "GET /a  HTTP/1.1\r\nHost: h\r\n\r\n",
	"GET /a HTTP/1.1\r\n\r\n", "GET /a HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", "GET /a HTTP/1.1\r\nHost:\r\n\r\n", "GET /a HTTP/1.1\r\nHost: a b\r\n\r\n", "GET /a HTTP/1.0\r\nHost: h\r\n\r\n",
	"GET /a HTTP/1.1\r\nHost: h\r\nX: \x80\r\n\r\n", "GET /a HTTP/1.1\r\nHost: h\r\nX\x00: y\r\n\r\n", "GET /a\x7f HTTP/1.1\r\nHost: h\r\n\r\n", "\r\nGET /a HTTP/1.1\r\nHost: h\r\n\r\n",
	"GET /a HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", "GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "GET /a HTTP/1.1\r\nHost: h\r\nTrailer: X\r\nTe: trailers\r\n\r\n",
	"HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n", "get /a HTTP/1.1\r\nHost: h\r\n\r\n", "GET /a HTTP/1.1\r\nHost: h\r\nCookie: a=b\r\nCookie: c=d\r\n\r\n",
}

// FuzzHead holds what is read here against net/http: a request that ends at another byte there
// would let a client slip one in that nobody has looked at, and one that says something else
// would get what it did not ask for.
func FuzzHead(f *testing.F) {
	for _, text := range heads {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h, again head
		ok, before := h.parse(b, new(said)), new(said)
		for _, text := range append(heads[1:3:3], string(b), string(b)) { // on a connection
			if of := again.parse([]byte(text), before); text == string(b) && (of != ok || ok && !alike(again, h)) {
				t.Fatalf("first %v %+v\nand then %v %+v: %q", ok, h, of, again, b)
			}
		}
		if !ok {
			return
		}
		rest := bufio.NewReader(bytes.NewReader(b))
		theirs, err := http.ReadRequest(rest)
		if err != nil {
			if h.plain {
				t.Fatalf("plain here, and in net/http %v: %q", err, b)
			}
			return // it is theirs to refuse, and they close the connection
		}
		left, err := io.ReadAll(rest)
		if err != nil {
			t.Fatal(err)
		}
		if size := len(b) - len(left); h.size != size {
			t.Fatalf("a head of %d bytes, in net/http of %d: %q", h.size, size, b)
		}
		if h.body != max(0, theirs.ContentLength) || len(theirs.TransferEncoding) > 0 {
			t.Fatalf("a body of %d bytes, in net/http of %d (%v): %q", h.body, theirs.ContentLength, theirs.TransferEncoding, b)
		}
		if !h.plain {
			return
		}
		ours, u := http.Request{Header: http.Header{"Left": {"over"}}}, url.URL{Fragment: "over"}
		h.into(&ours, &u, "", make([]string, maxFields))
		ours.Pattern = theirs.Pattern
		if !reflect.DeepEqual(ours.URL, theirs.URL) || !maps.EqualFunc(ours.Header, theirs.Header, func(a, b []string) bool { return reflect.DeepEqual(a, b) }) {
			t.Fatalf("%v %v\nin net/http %v %v: %q", ours.URL, ours.Header, theirs.URL, theirs.Header, b)
		}
		ours.URL, ours.Header, theirs.URL, theirs.Header = nil, nil, nil, nil
		if !reflect.DeepEqual(&ours, theirs) {
			t.Fatalf("%+v\nin net/http %+v: %q", &ours, theirs, b)
		}
	})
}

func alike(a, b head) bool {
	same := slices.Equal(a.fields, b.fields)
	a.fields, b.fields = nil, nil
	return same && reflect.DeepEqual(a, b)
}

// TestWhatIsSaidAgainIsNotMadeAnew: a request costs what it says that the one before did not.
func TestWhatIsSaidAgainIsNotMadeAnew(t *testing.T) {
	var h head
	before := new(said)
	text := []byte(heads[1])
	if n := testing.AllocsPerRun(100, func() { h.parse(text, before) }); n > 1 { // its target
		t.Errorf("%.0f allocations", n)
	}
}

// TestWhatWasSaidIsBounded whatever is said.
func TestWhatWasSaidIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before, longest := new(said), rapid.IntRange(0, 2*maxSaid)
		for range rapid.IntRange(1, 5).Draw(t, "requests") {
			text := "GET / HTTP/1.1\r\nHost: h\r\n"
			for i := range rapid.IntRange(0, 10).Draw(t, "fields") {
				text += fmt.Sprintf("X-%d: %s\r\n", i, strings.Repeat("x", longest.Draw(t, "length")))
			}
			var h, alone head
			if ok := h.parse([]byte(text+"\r\n"), before); !ok || !alone.parse([]byte(text+"\r\n"), new(said)) || !alike(h, alone) {
				t.Fatalf("got %+v, want %+v", h, alone)
			}
			size := 0
			for _, l := range before.lines {
				size += len(l.text)
			}
			if size != before.size || size > maxSaid {
				t.Fatalf("%d bytes are kept, and %d said to be", size, before.size)
			}
		}
	})
}

func TestWhatIsPlain(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		heads[0]: true, heads[1]: true, heads[2]: true, heads[3]: true,
		"GET /a HTTP/1.1\r\nHost: h\r\nPragma: no-cache\r\n\r\n":     false,
		"GET /a%20b HTTP/1.1\r\nHost: h\r\n\r\n":                     false,
		"HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n":                        false,
		"GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n":    false,
		"GET /a HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n":    false,
		"GET /a HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n\r\n": false,
	} {
		var h head
		if !h.parse([]byte(text), new(said)) || h.plain != want {
			t.Errorf("%q: plain %v, want %v", text, h.plain, want)
		}
	}
}

func TestWhoWritesOtherwiseIsLeftToNetHTTP(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"GET /a HTTP/1.1\r\nHost: h\r\n", "GET /a HTTP/1.1\nHost: h\n\n", "GET /a HTTP/1.1\r\nHost: h\nX: y\r\n\r\n", "GET /a HTTP/1.1\r\nHost: h\r\n X: y\r\n\r\n",
		"GET /a HTTP/1.1\r\n\r\n", "GET /a HTTP/1.0\r\nHost: h\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n",
		"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 1, 1\r\n\r\n", "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nContent-Length: 1\r\n\r\n", "GET /a HTTP/1.1\r\nHost: h\r\nX : y\r\n\r\n",
		"GET /a HTTP/1.1\r\nHost: h\r\n" + strings.Repeat("X: y\r\n", maxFields+1) + "\r\n",
	} {
		var h head
		if h.parse([]byte(text), new(said)) {
			t.Errorf("%q was read", text)
		}
	}
}

// TestWhatIsSaidNoMoreIsLetGo: a line that has changed leaves nothing behind: it may have held a
// credential, and much else.
func TestWhatIsSaidNoMoreIsLetGo(t *testing.T) {
	var h head
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const connections = 200
	kept, before := make([]*said, connections), heap()
	for i := range kept {
		kept[i] = new(said)
		for last := range maxFields { // one long line behind short ones, which is short in the next
			text := "GET / HTTP/1.1\r\nHost: h\r\n" + strings.Repeat("X: a\r\n", last)
			if last < maxFields-1 {
				text += "X: " + strings.Repeat("x", maxSaid-len("Host: h")-len("X: a")*last-len("X: ")) + "\r\n"
			}
			if !h.parse([]byte(text+"\r\n"), kept[i]) || kept[i].size > maxSaid {
				t.Fatal("not read, or too much of it kept")
			}
		}
	}
	if each := (heap() - before) / connections; each > 10*maxSaid {
		t.Errorf("%d bytes are kept of what is said on a connection", each)
	}
	runtime.KeepAlive(kept)
}
