package front_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/front"
	"github.com/weirgate/weir/internal/pipe"
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
		l := pipe.Listen("front")
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
