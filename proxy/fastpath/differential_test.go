package fastpath

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// requests returns requests of all kinds. Many contain another request in a place where only a
// wrong parser finds a request.
func requests() []string {
	evil, long := get("/held/evil"), strings.Repeat("y", 5000)
	return []string{
		get("/held/1"), get("/held/1"), get("/held/2?a=b"), get("/held/large"), get("/other"), get("/slow"),
		get("/chunked"), get("/closes"), get("/panic"), get("/held/304"), get("/held/%zz"), get("/held/%41"),
		"HEAD /held/1 HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET /held/e HTTP/1.1\r\nhost: h\r\nif-none-match: x\r\nX-A: 1\r\nX-A: 2\r\n\r\n",
		"GET /held/1 HTTP/1.1\r\nHost: h\r\nPragma: no-cache\r\n\r\n",
		"GET /held/1 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
		"GET /held/1 HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\n\r\n",
		"GET /held/1 HTTP/1.0\r\n\r\n", "GET /held/1 HTTP/1.1\r\n\r\n", "nonsense\r\n\r\n", "\r\n",
		"GET /held/1 HTTP/1.1\r\nHost: h\r\n X: y\r\n\r\n",
		"GET /held/1 HTTP/1.1\r\nHost: h\r\nX: " + long + "\r\n\r\n",
		"GET /a HTTP/1.1\r\nHost: h\r\nContent-Length: 36\r\n\r\n" + evil,
		"HEAD /a HTTP/1.1\r\nHost: h\r\nContent-Length: 36\r\n\r\n" + evil,
		"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello",
		"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello\r\n", // with a stray CRLF
		"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 36\r\n\r\n" + evil,
		"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5000\r\n\r\n" + long,
		"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n", "POST /a HTTP/1.1\r\nHost: h\r\n\r\n\r\n",
		"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
		"POST /a HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 36\r\n\r\n" + evil,
		"POST /unread HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 36\r\n\r\n" + evil,
		"POST /unread HTTP/1.1\r\nHost: h\r\nContent-Length: 36\r\n\r\n" + evil,
		"POST /unread HTTP/1.1\r\nHost: h\r\nContent-Length: 5000\r\n\r\n" + long,
		"POST /some HTTP/1.1\r\nHost: h\r\nContent-Length: 5000\r\n\r\n" + long,
		"POST /duplex HTTP/1.1\r\nHost: h\r\nContent-Length: 36\r\n\r\n" + evil,
		"POST /panic HTTP/1.1\r\nHost: h\r\nContent-Length: 36\r\n\r\n" + evil,
	}
}

// respond is a handler that responds in many ways, before, during and after it reads the body.
func respond(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/slow":
		time.Sleep(time.Millisecond)
	case "/panic":
		panic(http.ErrAbortHandler)
	case "/chunked":
		_, _ = io.WriteString(w, "a")
		_ = http.NewResponseController(w).Flush()
		_, _ = io.WriteString(w, "b")
		return
	case "/closes":
		w.Header().Set("Connection", "close")
	case "/some":
		_, _ = io.ReadFull(r.Body, make([]byte, 10))
		w.WriteHeader(http.StatusUnauthorized)
		return
	case "/unread":
		w.WriteHeader(http.StatusUnauthorized)
		return
	case "/duplex":
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.WriteHeader(http.StatusUnauthorized)
		_ = r.Body.Close()
		return
	}
	echo(w, r)
}

// echo writes all parts of a request.
func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	text := fmt.Sprintf("%s %s %s %s %v %q %v\n", r.Method, r.URL, r.RequestURI, r.Host, r.Header, body, err)
	if r.URL.Path == "/held/large" {
		text = strings.Repeat("x", 30_000)
	}
	h := w.Header()
	h.Set("Content-Type", "text/plain")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	h.Set("X-Two-Lines", "a\r\nb: c")
	h["X-List"] = []string{"b", "a"}
	if r.Header.Get("If-None-Match") != "" || r.URL.Path == "/held/304" {
		h.Del("Content-Length")
		h.Del("Content-Type")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.WriteHeader(http.StatusAccepted)
	_, _ = io.WriteString(w, text)
}

// script is the input of one connection.
type script struct {
	text string
	cuts []int // where segments start
	// eager sends all segments without a wait, so that they may arrive while a handler runs.
	// Otherwise each segment is sent when the server waits for it.
	eager bool
}

func randomScript(random *rand.Rand) (s script) {
	all := requests()
	for range 1 + random.IntN(16) {
		text := all[random.IntN(len(all))]
		if random.IntN(4) > 0 {
			text = get("/held/1")
		}
		switch random.IntN(6) {
		case 0: // in the segment of the previous request
		case 1:
			cut := random.IntN(len(text) + 1)
			s.cuts = append(s.cuts, len(s.text), len(s.text)+cut, len(s.text)+cut+random.IntN(len(text)-cut+1))
		default:
			s.cuts = append(s.cuts, len(s.text))
		}
		s.text += text
	}
	s.eager = random.IntN(4) == 0
	return s
}

// TestSameBytesAsNetHTTP sends random scripts over TCP to a server with the fast path and to
// a server without. The responses must be equal byte by byte, without a retry. The seeds are fixed;
// WEIR_DIFFERENTIAL sets the number of scripts.
func TestSameBytesAsNetHTTP(t *testing.T) {
	scripts := 1000
	if text := os.Getenv("WEIR_DIFFERENTIAL"); text != "" {
		var err error
		if scripts, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	fast, plain := startTCP(t, true), startTCP(t, false)
	for seed := range uint64(scripts) {
		s := randomScript(rand.New(rand.NewPCG(1, seed)))
		if got, want := fast.run(t, s), plain.run(t, s); got != want {
			t.Fatalf("seed %d: eager %v, segments %q\nfast path:\n%s\nnet/http:\n%s", seed, s.eager, s.segments(), got, want)
		}
	}
	if n := fast.handler.hits.Load(); n < int64(scripts)/2 {
		t.Errorf("the fast path served %d hits in %d scripts; the test compares too little", n, scripts)
	}
}

// TestStrayLineEndIsHandledLikeNetHTTP sends CRLF before a request. net/http skips it directly
// after a POST, and otherwise responds with 400.
func TestStrayLineEndIsHandledLikeNetHTTP(t *testing.T) {
	fast, plain := startTCP(t, true), startTCP(t, false)
	for _, segments := range [][]string{
		{get("/first"), post, "\r\n" + get("/held/1"), get("/held/2")},
		{get("/first"), post + "\r\n", get("/held/1"), get("/held/2")},
		{get("/first"), post, get("/held/1"), "\r\n" + get("/held/2")},
		{get("/first"), post, get("/held/1"), get("/held/2"), "\r\n" + get("/held/3")},
		{get("/first"), get("/held/1"), "\r\n" + get("/held/2")},
		{get("/first"), get("/held/1"), "\r\n", get("/held/2")},
	} {
		var s script
		for _, segment := range segments {
			s.cuts = append(s.cuts, len(s.text))
			s.text += segment
		}
		if got, want := fast.run(t, s), plain.run(t, s); got != want {
			t.Errorf("segments %q\nfast path:\n%s\nnet/http:\n%s", segments, got, want)
		}
	}
}

func (s script) segments() (list []string) {
	from := 0
	for _, to := range append(s.cuts, len(s.text)) {
		if to > from {
			list = append(list, s.text[from:to])
		}
		from = to
	}
	return list
}

// tcpServer is a server on the loopback interface.
type tcpServer struct {
	net.Listener
	handler  *testHandler
	accepted chan *watchedConn
}

func startTCP(t *testing.T, fast bool) *tcpServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &tcpServer{Listener: l, handler: &testHandler{handle: respond}, accepted: make(chan *watchedConn, 1)}
	s := &http.Server{Handler: server.handler, IdleTimeout: time.Minute, ReadHeaderTimeout: time.Minute}
	var hits sync.WaitGroup
	done := make(chan struct{})
	go func() {
		defer close(done)
		if fast {
			_ = Serve(s, server, server.handler, &hits)
		} else {
			_ = s.Serve(server)
		}
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-done
		hits.Wait()
	})
	return server
}

func (s *tcpServer) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	w := &watchedConn{TCPConn: c.(*net.TCPConn)}
	w.changed.L = &w.mu
	s.accepted <- w
	return w, nil
}

// watchedConn is the server side of a connection. It shows what the server waits for.
type watchedConn struct {
	*net.TCPConn
	mu      sync.Mutex
	changed sync.Cond
	read    int
	waiting bool // in a Read that is not the background read of net/http
	closed  bool
}

func (c *watchedConn) Read(p []byte) (int, error) {
	c.set(func() { c.waiting = len(p) > 1 })
	n, err := c.TCPConn.Read(p)
	c.set(func() { c.waiting, c.read = false, c.read+n })
	return n, err
}

func (c *watchedConn) Close() error {
	c.set(func() { c.closed = true })
	return c.TCPConn.Close()
}

func (c *watchedConn) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	c.changed.Broadcast()
}

// awaitRead waits until the server has read a number of bytes and waits for more. It reports
// false if the server has closed the connection. The wait is bounded, because a Read into the
// last byte of a buffer looks like the background read.
func (c *watchedConn) awaitRead(n int) bool {
	late := false
	defer time.AfterFunc(200*time.Millisecond, func() { c.set(func() { late = true }) }).Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.closed && !late && (!c.waiting || c.read < n) {
		c.changed.Wait()
	}
	return !c.closed
}

var dateField = regexp.MustCompile(`Date: .*\r\n`)

// run sends a script and returns all bytes of the responses, without dates.
func (s *tcpServer) run(t *testing.T, script script) string {
	t.Helper()
	client, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	_ = client.SetDeadline(time.Now().Add(20 * time.Second))
	server := <-s.accepted
	output := make(chan string)
	go func() {
		text, err := io.ReadAll(client)
		if err != nil && !errors.Is(err, syscall.ECONNRESET) { // the server may close with unread bytes
			text = append(text, err.Error()...)
		}
		output <- dateField.ReplaceAllString(string(text), "")
	}()
	sent := 0
	for _, segment := range script.segments() {
		if n, err := io.WriteString(client, segment); err != nil {
			break // the server has closed the connection
		} else if sent += n; !script.eager && !server.awaitRead(sent) {
			break
		}
	}
	_ = client.(*net.TCPConn).CloseWrite()
	return <-output
}
