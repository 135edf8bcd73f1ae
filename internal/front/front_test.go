package front_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/front"
	"github.com/weirgate/weir/internal/testservers"
)

// house answers what lies under /held at once, and everything by net/http. It notes who
// answered.
type house struct {
	mu      sync.Mutex
	log     []string
	atOnce  func()                                   // while it answers at once
	handler func(http.ResponseWriter, *http.Request) // of net/http, in place of answer
}

func (h *house) note(who string, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.log = append(h.log, who+" "+r.Method+" "+r.URL.RequestURI())
}

// notes returns who has answered what since the last time.
func (h *house) notes() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	noted := h.log
	h.log = nil
	return noted
}

func (h *house) AnswerAtOnce(w http.ResponseWriter, r *http.Request) bool {
	if !strings.HasPrefix(r.URL.Path, "/held") {
		return false
	}
	if h.atOnce != nil {
		h.atOnce()
	}
	h.note("front", r)
	answer(w, r)
	return true
}

func (h *house) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who := "front, late"
	if reflect.TypeOf(w).String() == "*http.response" {
		who = "net/http"
	}
	h.note(who, r)
	if h.handler != nil {
		h.handler(w, r)
		return
	}
	answer(w, r)
}

// answer tells all that it knows of a request.
func answer(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	text := fmt.Sprintf("%s %s %s %v %q %v\n", r.Method, r.URL, r.Host, r.Header, body, err)
	if strings.HasPrefix(r.URL.Path, "/held/large") {
		text = strings.Repeat("x", 100_000)
	}
	h := w.Header()
	h.Set("Content-Type", "text/plain")
	h.Set("Content-Length", fmt.Sprint(len(text)))
	h.Set("X-Two-Lines", "a\r\nb: c")
	h["X-List"] = []string{"b", "a"}
	if r.Header.Get("If-None-Match") != "" {
		h.Del("Content-Length")
		h.Del("Content-Type")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.WriteHeader(http.StatusAccepted)
	_, _ = io.WriteString(w, text)
}

// serve answers on a network in memory, with the house in front of a server of net/http.
func serve(t *testing.T, h *house) (*testservers.PipeListener, *http.Server) {
	t.Helper()
	l, s := testservers.ListenPipe("front"), &http.Server{Handler: h, IdleTimeout: time.Minute, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan error)
	var answering sync.WaitGroup
	go func() { done <- front.Serve(s, l, h, &answering) }()
	t.Cleanup(func() {
		_ = s.Close()
		answering.Wait()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
		_ = s.Close()
	})
	return l, s
}

// client is a connection, and what comes on it.
type client struct {
	net.Conn
	t  *testing.T
	in *bufio.Reader
}

func dial(t *testing.T, l *testservers.PipeListener) *client {
	t.Helper()
	c, err := l.Dial(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &client{c, t, bufio.NewReader(c)}
}

// send writes pieces, each in one go, and waits until it has been taken.
func (c *client) send(pieces ...string) {
	c.t.Helper()
	for _, text := range pieces {
		if _, err := io.WriteString(c, text); err != nil {
			c.t.Fatal(err)
		}
		synctest.Wait()
	}
}

// gets reads so many answers, and returns their bodies.
func (c *client) gets(n int) (bodies []string) {
	c.t.Helper()
	for range n {
		resp, err := http.ReadResponse(c.in, nil)
		if err != nil {
			c.t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			c.t.Fatal(err)
		}
		bodies = append(bodies, string(body))
	}
	return bodies
}

// ended waits until the server has closed the connection.
func (c *client) ended() {
	c.t.Helper()
	if b, err := c.in.ReadByte(); !errors.Is(err, io.EOF) {
		c.t.Fatalf("got %q, %v; want the end", b, err)
	}
}

func get(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: h\r\n\r\n" }

const hello = "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"

func (h *house) wants(t *testing.T, want ...string) {
	t.Helper()
	if got := h.notes(); !slices.Equal(got, want) {
		t.Fatalf("answered were %q, want %q", got, want)
	}
}

func TestWhatIsHeldIsAnsweredWithoutNetHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h house
		l, _ := serve(t, &h)
		c := dial(t, l)
		c.send(get("/held/1"))
		c.gets(1)
		for range 3 {
			c.send(get("/held/2"))
			c.gets(1)
		}
		c.send(get("/other"))
		c.gets(1)
		c.send(get("/held/large"))
		if got := c.gets(1)[0]; len(got) != 100_000 {
			t.Fatalf("%d bytes", len(got))
		}
		c.send(hello)
		c.gets(1)
		c.send(get("/held/3"))
		c.gets(1)
		h.wants(t, "net/http GET /held/1", "front GET /held/2", "front GET /held/2", "front GET /held/2", "front, late GET /other", "front GET /held/large",
			"net/http POST /a", "front GET /held/3")
	})
}

// held opens a connection whose first request is over.
func held(t *testing.T, l *testservers.PipeListener, h *house) *client {
	t.Helper()
	c := dial(t, l)
	c.send(get("/first"))
	c.gets(1)
	h.notes()
	return c
}

func TestNobodySlipsARequestInBehindAnother(t *testing.T) {
	for name, of := range map[string]struct {
		sent []string
		want []string
	}{
		"in the body of one, whole": {
			[]string{"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 42\r\n\r\n" + get("/held/evil") + "123456"}, []string{"net/http POST /a"},
		},
		"in the body of one, apart": {
			[]string{"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 36\r\n\r\n", get("/held/evil")}, []string{"net/http POST /a"},
		},
		"in a body of chunks": {
			[]string{"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n24\r\n", get("/held/evil"), "\r\n0\r\n\r\n", get("/held/own")},
			[]string{"net/http POST /a", "net/http GET /held/own"},
		},
		"in a field that has begun": {
			[]string{"GET /a HTTP/1.1\r\nHost: h\r\nX: ", get("/held/evil")}, nil,
		},
		"behind the start of a line": {
			[]string{"GET /a?", "GET /held/evil HTTP/1.1\r\nHost: h\r\n\r\n"}, nil,
		},
		"behind an empty line": {
			[]string{"\r\n", get("/held/own")}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var h house
				l, _ := serve(t, &h)
				c := held(t, l, &h)
				go func() { _, _ = io.Copy(io.Discard, c) }() // whatever it is told
				for _, piece := range of.sent {
					if _, err := io.WriteString(c, piece); err != nil {
						break // it was told that it is wrong
					}
					synctest.Wait()
				}
				for _, who := range h.notes() {
					if strings.Contains(who, "evil") && !strings.Contains(who, "GET /a") {
						t.Fatalf("answered %q", who)
					}
					if of.want = slices.DeleteFunc(of.want, func(want string) bool { return want == who }); strings.HasPrefix(who, "front") {
						t.Fatalf("answered %q", who)
					}
				}
				if len(of.want) > 0 {
					t.Fatalf("not answered: %q", of.want)
				}
			})
		})
	}
}

func TestRequestsThatComeTogetherAreAnsweredInTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h house
		l, _ := serve(t, &h)
		c := held(t, l, &h)
		c.send(get("/held/1") + get("/held/2") + get("/other/3") + hello + get("/held/5"))
		for i, want := range []string{"GET /held/1 ", "GET /held/2 ", "GET /other/3 ", "POST /a ", "GET /held/5 "} {
			if got := c.gets(1)[0]; !strings.HasPrefix(got, want) {
				t.Fatalf("answer %d is %q, want %q", i, got, want)
			}
		}
		h.wants(t, "front GET /held/1", "front GET /held/2", "front, late GET /other/3", "net/http POST /a", "front GET /held/5")
	})
}

func TestWhatIsSentWhileAnotherIsAnsweredIsNotLost(t *testing.T) {
	for next, want := range map[string]string{get("/held/2")[1:]: "front GET /held/2", get("/held/2"): "net/http GGET /held/2"} {
		synctest.Test(t, func(t *testing.T) {
			proceed := make(chan struct{})
			h := house{handler: func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/slow" {
					<-proceed
				}
				answer(w, r)
			}}
			l, _ := serve(t, &h)
			c := held(t, l, &h)
			c.send(get("/slow"), "G")
			close(proceed)
			c.gets(1)
			c.send(next)
			c.gets(1)
			h.wants(t, "front, late GET /slow", want)
		})
	}
}

func TestWhoLeavesWhileItIsAnsweredIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := make(chan struct{})
		h := house{handler: func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				<-r.Context().Done()
				close(left)
			}
			answer(w, r)
		}}
		l, _ := serve(t, &h)
		c := held(t, l, &h)
		c.send(get("/slow"))
		_ = c.Close()
		<-left
	})
}

func TestTheEndOfTheServerCutsNoAnswerOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proceed := make(chan struct{})
		h := house{atOnce: func() { <-proceed }}
		l, s := serve(t, &h)
		c := held(t, l, &h)
		c.send(get("/held/1"))
		ended := make(chan error)
		go func() { ended <- s.Shutdown(t.Context()) }()
		synctest.Wait()
		close(proceed)
		c.gets(1)
		c.ended()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	})
}

func TestTheEndOfTheServerWaitsForNoIdleClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h house
		l, s := serve(t, &h)
		c := held(t, l, &h)
		c.send(get("/held/1"))
		c.gets(1)
		began := time.Now()
		if err := s.Shutdown(context.Background()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > time.Second {
			t.Fatalf("it took %v", took)
		}
		c.ended()
	})
}

func TestAnIdleConnectionEndsInItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h house
		l, _ := serve(t, &h)
		c := held(t, l, &h)
		for range 5 {
			time.Sleep(50 * time.Second)
			c.send(get("/held/1"))
			c.gets(1)
		}
		last := time.Now()
		c.ended()
		if idle := time.Since(last); idle < 50*time.Second || idle > time.Minute {
			t.Fatalf("it ended after %v", idle)
		}
	})
}

func TestWhatWasNotHeldIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h house
		l, _ := serve(t, &h)
		c := held(t, l, &h)
		for range 100 {
			c.send(get("/other"))
			c.gets(1)
		}
		h.notes()
		for range 32 {
			c.send(get("/held/1"))
			c.gets(1)
		}
		if got := h.notes(); !slices.Contains(got, "front GET /held/1") {
			t.Fatalf("answered were %q", got)
		}
		c.send(get("/held/2"))
		c.gets(1)
		h.wants(t, "front GET /held/2")
	})
}

func TestAHeadThatDoesNotEndIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h house
		l, _ := serve(t, &h)
		c := held(t, l, &h)
		c.send(get("/held/1"))
		c.gets(1)
		began := time.Now()
		c.send("GET /held/2 HTTP/1.1\r\n")
		_, _ = io.Copy(io.Discard, c.in)
		if took := time.Since(began); took > 11*time.Second {
			t.Fatalf("it was waited for %v", took)
		}
	})
}

// TestAHeadThatBeganEarlyIsNotWaitedFor any longer than one that begins when it may.
func TestAHeadThatBeganEarlyIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := house{handler: various}
		l, _ := serve(t, &h)
		c := held(t, l, &h)
		c.send(get("/slow"), "GET /held/2 HTTP/1.1\r\n")
		c.gets(1)
		began := time.Now()
		_, _ = io.Copy(io.Discard, c.in)
		if took := time.Since(began); took > 21*time.Second { // by front, and by net/http
			t.Fatalf("it was waited for %v", took)
		}
	})
}

func TestAConnectionThatIsTakenOverIsNetHTTPsNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		taken := make(chan net.Conn, 1)
		h := house{handler: func(w http.ResponseWriter, r *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
			}
			taken <- c
		}}
		l, _ := serve(t, &h)
		c := dial(t, l)
		c.send("GET /a HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
		theirs := <-taken
		go func() { _, _ = io.WriteString(c, get("/held/1")) }()
		b := make([]byte, 4096)
		if n, err := theirs.Read(b); err != nil || string(b[:n]) != get("/held/1") {
			t.Fatalf("%q, %v", b[:n], err)
		}
		_ = theirs.Close()
	})
}
