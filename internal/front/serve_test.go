package front_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/front"
	"github.com/weirgate/weir/internal/testservers"
)

// TestWhoIsAnsweredLateIsListenedTo: a client that leaves is not waited for, however long it
// has waited; one that goes on sending has not left, and neither has one whose connection
// would have been idle for too long.
func TestWhoIsAnsweredLateIsListenedTo(t *testing.T) {
	for name, c := range map[string]struct {
		does func(c *client)
		left bool
	}{
		"leaves at once":       {func(c *client) { _ = c.Close() }, true},
		"leaves soon":          {func(c *client) { time.Sleep(time.Millisecond); _ = c.Close() }, true},
		"leaves late":          {func(c *client) { time.Sleep(time.Second); _ = c.Close() }, true},
		"stays":                {func(*client) {}, false},
		"stays, and asks more": {func(c *client) { time.Sleep(time.Second); c.send(get("/b")[:5]) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const patience = 3 * time.Minute // more than an idle client has
				left := make(chan bool, 1)
				h := house{handler: func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/slow" {
						select {
						case <-r.Context().Done():
							left <- errors.Is(context.Cause(r.Context()), context.Canceled)
						case <-time.After(patience):
							left <- false
						}
					}
					answer(w, r)
				}}
				l, _ := serve(t, &h)
				client := held(t, l, &h)
				client.send(get("/slow"))
				c.does(client)
				if began := time.Now(); <-left != c.left {
					t.Errorf("it has left: %v", !c.left)
				} else if waited := time.Since(began); c.left && waited > time.Second {
					t.Errorf("it was waited for %v", waited)
				}
				h.wants(t, "front, late GET /slow")
				if !c.left {
					client.gets(1)
				}
			})
		})
	}
}

// TestWhatIsAnsweredLateEndsWithTheServer: an answer is not cut off when the server is shut
// down, but ends when the context of all its requests does.
func TestWhatIsAnsweredLateEndsWithTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, end := context.WithCancelCause(t.Context())
		cause := errors.New("it is over")
		var answering sync.WaitGroup
		h := house{handler: func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				if r.Context().Value(http.ServerContextKey) == nil || r.Context().Value(http.LocalAddrContextKey) == nil {
					t.Error("its context does not tell where it came in")
				}
				<-r.Context().Done()
				if got := context.Cause(r.Context()); !errors.Is(got, cause) {
					t.Error(got)
				}
			}
			answer(w, r)
		}}
		l := testservers.ListenPipe("front")
		s := &http.Server{Handler: &h, BaseContext: func(net.Listener) context.Context { return all }}
		served := make(chan error)
		go func() { served <- front.Serve(s, l, &h, &answering) }()
		c := held(t, l, &h)
		c.send(get("/slow"))
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		h.wants(t, "front, late GET /slow")
		end(cause)
		c.gets(1)
		c.ended()
		answering.Wait()
	})
}

// TestAWriterIsOfOneAnswer: who still has it when the handler has returned writes nothing, not
// behind this answer nor into another.
func TestAWriterIsOfOneAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var kept []http.ResponseWriter
		h := house{handler: func(w http.ResponseWriter, r *http.Request) {
			for _, other := range kept {
				other.Header().Set("X-Late", "a")
			}
			if len(w.Header()) > 0 {
				t.Errorf("another set %v", w.Header())
			}
			kept = append(kept, w)
			answer(w, r)
		}}
		l, _ := serve(t, &h)
		c := held(t, l, &h)
		kept = nil
		c.send(get("/a"))
		c.gets(1)
		synctest.Wait()
		if _, err := io.WriteString(kept[0], "more"); err == nil {
			t.Error("more was taken")
		}
		kept[0].Header().Set("X-Late", "a")
		kept[0].WriteHeader(http.StatusEarlyHints)
		if err := http.NewResponseController(kept[0]).Flush(); err == nil {
			t.Error("it was flushed")
		}
		c.send(get("/b"))
		if body := c.gets(1)[0]; !strings.HasPrefix(body, "GET /b") {
			t.Error(body)
		}
	})
}

// TestWhatIsFlushedHasCome, and does not wait for what follows: the head alone, too.
func TestWhatIsFlushedHasCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proceed := make(chan struct{})
		h := house{handler: func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/flushed" {
				answer(w, r)
				return
			}
			for _, text := range []string{"", "a", "b"} {
				_, _ = io.WriteString(w, text)
				if err := http.NewResponseController(w).Flush(); err != nil {
					t.Error(err)
				}
				<-proceed
			}
		}}
		l, _ := serve(t, &h)
		c := held(t, l, &h)
		c.send(get("/flushed"))
		resp, err := http.ReadResponse(c.in, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"a", "b"} {
			proceed <- struct{}{}
			var got [1]byte
			if _, err := io.ReadFull(resp.Body, got[:]); err != nil || string(got[:]) != want {
				t.Fatalf("got %q, %v; want %q", got, err, want)
			}
		}
		close(proceed)
		if _, err := io.ReadAll(resp.Body); err != nil {
			t.Error(err)
		}
	})
}

// TestAHeadIsSentWithWhatWasWritten before the first flush, in one piece: two would be two
// packets.
func TestAHeadIsSentWithWhatWasWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := house{handler: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "text")
			_ = http.NewResponseController(w).Flush()
		}}
		l, _ := serve(t, &h)
		c := held(t, l, &h)
		c.send(get("/a"))
		var piece [4096]byte
		if n, err := c.Read(piece[:]); err != nil || !strings.HasSuffix(string(piece[:n]), "\r\n\r\n4\r\ntext\r\n") {
			t.Errorf("got %q, %v", piece[:n], err)
		}
		go func() { _, _ = io.Copy(io.Discard, c) }() // the end of it
	})
}

// TestAnAnswerHasNothingOfAnother: what one is made from is used again for the next, whoever
// asks for it.
func TestAnAnswerHasNothingOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := house{handler: func(w http.ResponseWriter, r *http.Request) {
			if len(w.Header()) > 0 {
				t.Errorf("%s begins with %v", r.URL.Path, w.Header())
			}
			answer(w, r)
		}}
		l, _ := serve(t, &h)
		a, b := held(t, l, &h), held(t, l, &h)
		for range 20 { // more than are tried at once
			for _, c := range []*client{a, b} {
				c.send(get("/other"))
				c.gets(1)
			}
		}
	})
}

// TestTheContextOfARequestEndsWithIt: who waits for its end would wait for ever.
func TestTheContextOfARequestEndsWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var kept context.Context
		h := house{handler: func(w http.ResponseWriter, r *http.Request) {
			kept = r.Context()
			answer(w, r)
		}}
		l, _ := serve(t, &h)
		c := held(t, l, &h)
		c.send(get("/a"))
		c.gets(1)
		synctest.Wait()
		if kept.Err() == nil {
			t.Error("it goes on")
		}
	})
}

// TestTheEndOfTheServerIsNotTheClients: who has sent more while it is answered, before the
// server is shut down or after, has not left, and gets its answer.
func TestTheEndOfTheServerIsNotTheClients(t *testing.T) {
	for _, before := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			h := house{handler: func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/slow" {
					time.Sleep(time.Second)
				}
				if r.Context().Err() != nil {
					t.Error("it has left")
				}
				answer(w, r)
			}}
			l, s := serve(t, &h)
			c := held(t, l, &h)
			c.send(get("/slow"))
			time.Sleep(100 * time.Millisecond)
			if before {
				c.send("GET")
			}
			if err := s.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
			if !before {
				c.send("GET")
			}
			c.gets(1)
			c.ended()
		})
	}
}

// TestWhoWasAnsweredLateIsIdleForNoLonger than others.
func TestWhoWasAnsweredLateIsIdleForNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := house{handler: func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				time.Sleep(time.Second)
			}
			answer(w, r)
		}}
		l, _ := serve(t, &h)
		c := held(t, l, &h)
		for _, path := range []string{"/slow", "/other", "/slow", "/other"} {
			time.Sleep(50 * time.Second)
			c.send(get(path))
			c.gets(1)
		}
		last := time.Now()
		c.ended()
		if idle := time.Since(last); idle < 50*time.Second || idle > time.Minute {
			t.Fatalf("it ended after %v", idle)
		}
	})
}

// TestNobodyListensIntoTheNextRequest: over TCP a deadline that passes ends a read only if it
// stays until who reads has seen it.
func TestNobodyListensIntoTheNextRequest(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := house{handler: func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(30 * time.Millisecond) // until it is listened
		answer(w, r)
	}}
	s, served := &http.Server{Handler: &h}, make(chan error)
	var answering sync.WaitGroup
	go func() { served <- front.Serve(s, l, &h, &answering) }()
	defer func() {
		_ = s.Close()
		answering.Wait()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	c := &client{conn, t, bufio.NewReader(conn)}
	for range 10 {
		if _, err := io.WriteString(c, get("/a")); err != nil {
			t.Fatal(err)
		}
		c.gets(1)
	}
}

// TestWhoCannotBeWrittenToHasLeft, also one of whom nobody hears it, because it had begun to ask
// for more.
func TestWhoCannotBeWrittenToHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := make(chan struct{})
		h := house{handler: func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				time.Sleep(time.Second)
				w.WriteHeader(http.StatusEarlyHints)
				<-r.Context().Done()
				close(left)
			}
			answer(w, r)
		}}
		l, _ := serve(t, &h)
		c := held(t, l, &h)
		c.send(get("/slow"))
		time.Sleep(100 * time.Millisecond)
		c.send("G")
		_ = c.Close()
		<-left
	})
}

// ofItsOwn is a context that can end in a way that the standard library does not know: for
// whatever hangs on it, somebody waits.
type ofItsOwn struct {
	context.Context
	ended chan struct{}
}

func (c ofItsOwn) Done() <-chan struct{} { return c.ended }

// TestNothingIsLeftOfAConnection where what its requests hang on goes on.
func TestNothingIsLeftOfAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // which fails where somebody waits for ever
		var h house
		var answering sync.WaitGroup
		l, all := testservers.ListenPipe("front"), ofItsOwn{context.Background(), make(chan struct{})}
		s := &http.Server{Handler: &h, BaseContext: func(net.Listener) context.Context { return all }}
		served := make(chan error)
		go func() { served <- front.Serve(s, l, &h, &answering) }()
		c := held(t, l, &h)
		c.send(get("/other"))
		c.gets(1)
		h.wants(t, "front, late GET /other")
		_ = c.Close()
		synctest.Wait()
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
}

// watched is a listener of connections that note whether another could run before they are
// touched: reads and writes are called before something is read and written, behind after
// something is written.
type watched struct {
	net.Listener
	behind, reads, writes func()
}

func (l watched) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return watchedConn{c, l}, err
}

type watchedConn struct {
	net.Conn
	by watched
}

func (c watchedConn) Read(p []byte) (int, error) {
	c.by.reads()
	return c.Conn.Read(p)
}

func (c watchedConn) Write(p []byte) (int, error) {
	c.by.writes()
	n, err := c.Conn.Write(p)
	c.by.behind()
	return n, err
}

// TestWhoIsReadyRunsFirst: before what is answered late is written, once, and before a client is
// asked for more that has just been answered so, whoever can run does. What is answered at once
// runs on.
func TestWhoIsReadyRunsFirst(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const tries = 50 // the scheduler now and then looks elsewhere first
	for path, lets := range map[string]bool{"/late": true, "/pieces": true, "/held": false} {
		var another atomic.Bool
		var read, written atomic.Int32
		note := func(n *atomic.Int32) func() {
			return func() {
				if another.Swap(false) {
					n.Add(1)
				}
			}
		}
		begin := func() {
			another.Store(false)
			go another.Store(true)
		}
		h := &house{atOnce: begin, handler: func(w http.ResponseWriter, r *http.Request) {
			begin()
			if r.URL.Path == "/pieces" {
				_ = http.NewResponseController(w).Flush()
				_, _ = io.WriteString(w, "text") // two chunks, the last one too
				return
			}
			answer(w, r)
		}}
		l, s := testservers.ListenPipe("front"), &http.Server{Handler: h}
		done := make(chan error)
		go func() { done <- front.Serve(s, watched{l, begin, note(&read), note(&written)}, h, new(sync.WaitGroup)) }()
		c := dial(t, l)
		for range tries {
			if _, err := io.WriteString(c, get(path)); err != nil {
				t.Fatal(err)
			}
			c.gets(1)
		}
		_ = s.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
		least, most := int32(tries/2), int32(tries*6/5)
		if !lets {
			least, most = 0, tries/5
		}
		for what, n := range map[string]int32{"was read": read.Load(), "was written": written.Load()} {
			if n < least || n > most {
				t.Errorf("%s: another ran %d times before it %s, want %d to %d", path, n, what, least, most)
			}
		}
	}
}
