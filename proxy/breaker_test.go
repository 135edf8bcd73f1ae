package proxy

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// breaking is an upstream that breaks the connection on so many requests, each after it
// has read it, and answers then. Less than none is never.
func breaking(first int64) (http.HandlerFunc, *atomic.Int64) {
	left := new(atomic.Int64)
	left.Store(first)
	return func(w http.ResponseWriter, _ *http.Request) {
		if left.Add(-1) >= 0 {
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, "answer")
	}, left
}

// TestASafeRequestIsSentAgain where its connection breaks: a few times, while its client
// waits, each time with a permit of its own. What may have changed something is not.
func TestASafeRequestIsSentAgain(t *testing.T) {
	for _, c := range []struct {
		name, method string
		fields       []string
		breaks       int64
		status, sent int
	}{
		{"once", "GET", nil, 1, 200, 2},
		{"twice", "GET", nil, 2, 200, 3},
		{"as long as it breaks", "GET", nil, 3, 502, 3},
		{"a HEAD", "HEAD", nil, 1, 200, 2},
		{"of who does not wait", "GET", []string{"Prefer: wait=0"}, 1, 502, 1},
		{"of who waits for a second", "GET", []string{"Prefer: wait=1"}, 1, 200, 2},
		{"a PUT", "PUT", nil, 1, 502, 1},
		{"a DELETE", "DELETE", nil, 1, 502, 1},
		{"a POST that says it is idempotent", "POST", []string{"Idempotency-Key: 1"}, 1, 502, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				upstream, _ := breaking(c.breaks)
				w := newWorld(t, upstream)
				began := time.Now()
				r := w.do(c.method, "/made-up", nil, append(c.fields, "Authorization: Bearer a")...)
				took := time.Since(began)
				w.want("status", r.StatusCode, c.status)
				w.want("requests upstream", w.upstreamSaw(), c.sent)
				if took > time.Second {
					t.Errorf("it took %v", took)
				}
				record := w.gateway.Recent()[0]
				permits := 0
				for _, s := range record.Stages {
					if s.Name == stageQueue && !s.Failed {
						permits++
					}
				}
				w.want("permits", permits, c.sent)
				w.want("spent", record.Spent, c.sent)
				time.Sleep(10 * time.Second) // the upstream may be at work on it
				w.want("permits in flight", w.inFlight(), 0)
			})
		})
	}
}

// TestWhatHangsIsNotSentAgain: it would hang again, and its client has waited.
func TestWhatHangsIsNotSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		w.refused(w.get("/user", "Prefer: wait=300"), 504, "in time")
		w.want("requests upstream", w.upstreamSaw(), 1)
	})
}

// TestTheTransportSendsNothingAgain: it does where a connection that was used before ends
// without an answer, with no permit for the copy; and what says that it is idempotent,
// whatever it does.
func TestTheTransportSendsNothingAgain(t *testing.T) {
	for _, c := range []struct {
		name, method  string
		status, wants int
	}{{"what is safe Weir does", "GET", 200, 2}, {"what is not safe nobody does", "POST", 502, 1}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := testservers.ListenPipe("raw.test:80")
				defer func() { _ = l.Close() }()
				var asked atomic.Int32 // second requests of a connection, and all of others
				go func() {
					for n := 0; ; n++ {
						conn, err := l.Accept()
						if err != nil {
							return
						}
						go func() {
							defer func() { _ = conn.Close() }()
							for turn := range 9 {
								if _, err := conn.Read(make([]byte, 4<<10)); err != nil { // a pipe gives what was written at once
									return
								}
								if turn > 0 || n > 0 {
									asked.Add(1)
								}
								if turn == 1 {
									return
								}
								_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
							}
						}()
					}
				}()
				w := newWorld(t, nothing, func(c *Config) {
					transport := NewTransport()
					transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
						return l.Dial(ctx, network, address)
					}
					t.Cleanup(transport.CloseIdleConnections)
					c.Transport = transport
				})
				w.want("the first on its connection", w.get("/users/one").StatusCode, 200)
				synctest.Wait() // the connection is idle
				r := w.do(c.method, "/made-up", nil, "Idempotency-Key: 1")
				w.want("status", r.StatusCode, c.status)
				w.want("requests upstream", int(asked.Load()), c.wants)
				w.want("attempts", w.gateway.Recent()[0].Attempts, c.wants)
				w.want("spent", w.gateway.Recent()[0].Spent, c.wants)
				if c.status != 200 {
					w.refused(r, 502, "broke the connection")
				}
			})
		})
	}
}

// TestFewRequestsAreSentAgain where many break: ten, and one for each ten that are
// answered.
func TestFewRequestsAreSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/users/bad" {
				panic(http.ErrAbortHandler)
			}
		})
		const n = 100
		for i := range n {
			w.want("bad", w.get("/users/bad", fmt.Sprint("Authorization: Bearer ", i)).StatusCode, 502)
			w.want("good", w.get("/user", fmt.Sprint("Authorization: Bearer ", i)).StatusCode, 200)
		}
		if again := w.upstreamSaw() - 2*n; again != retryBurst+(n-1)/retryCost {
			t.Errorf("%d were sent again", again)
		}
		last := w.gateway.Recent()[1]
		if stage := last.Stages[len(last.Stages)-1]; stage.Name != stageRetry || !stage.Failed {
			t.Errorf("the record does not tell: %+v", last.Stages)
		}
	})
}

// TestAnUpstreamThatAnswersNobodyIsSpared: clients are told at once, what is held is given
// to them, each account tries once a second, and the first answer ends it.
func TestAnUpstreamThatAnswersNobodyIsSpared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		var log strings.Builder
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			if down.Load() {
				panic(http.ErrAbortHandler)
			}
			w.Header().Set("Cache-Control", "max-age=10")
			_, _ = io.WriteString(w, "answer")
		}, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		w.get("/users/held")
		time.Sleep(20 * time.Second)
		down.Store(true)
		for i := 0; w.gateway.Reachable(); i++ {
			w.want("while it is tried", w.get(fmt.Sprint("/users/", i)).StatusCode, 502)
		}
		w.want("requests until then", w.upstreamSaw(), 2+maxFailures) // one over a connection that lay idle counts for nothing
		for i := range 50 {
			time.Sleep(100 * time.Millisecond)
			began := time.Now()
			r := w.get(fmt.Sprint("/users/", i), "Prefer: wait=0")
			if w.want("it takes", time.Since(began), time.Duration(0)); r.StatusCode == 502 {
				continue // it has tried it
			}
			w.refused(r, 503, "does not respond")
			w.want("Retry-After", r.Header.Get("Retry-After"), "1")
			w.want("Cache-Status", r.Header.Get("Cache-Status"), "weir; detail=breaker")
		}
		w.want("requests in five seconds", w.upstreamSaw(), 2+maxFailures+5)
		w.want("what is held", w.get("/users/held").body, "answer")
		if told := w.gateway.Recent()[0].Cache; !strings.HasPrefix(told, "weir; fwd=stale; ttl=-") || !strings.HasSuffix(told, "; detail=upstream") {
			t.Errorf("what is held is told as %s", told)
		}
		down.Store(false)
		time.Sleep(trialInterval)
		w.want("when it is back", w.get("/users/new").StatusCode, 200)
		w.want("and the next", w.get("/users/newer").StatusCode, 200)
		for _, line := range []string{`msg="circuit breaker opened`, `msg="circuit breaker closed`} {
			if strings.Count(log.String(), line) != 1 {
				t.Errorf("%q is not said once: %s", line, log.String())
			}
		}
		time.Sleep(10 * time.Second)
		w.want("permits in flight", w.inFlight(), 0)
	})
}

// TestNobodyTakesTheTurnsOfOthers: a client that finds something on which the upstream
// breaks the connection has it spared, and no other client goes without for it.
func TestNobodyTakesTheTurnsOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/users/bad" {
				panic(http.ErrAbortHandler)
			}
		})
		bad := func() {
			w.get("/users/bad", "Authorization: Bearer abuser", "Cache-Control: no-store", "Prefer: wait=0")
		}
		shut := func() {
			for w.gateway.Reachable() {
				bad()
				time.Sleep(time.Second) // of an account not heard of one goes in a second
			}
			bad() // it takes its own turn
		}
		for range 3 {
			shut()
			w.want("another client", w.get("/user", "Authorization: Bearer b").StatusCode, 200)
		}
		shut()
		before := w.upstreamSaw()
		var clients sync.WaitGroup
		for i := range 2 * maxTrials {
			clients.Go(func() { w.get("/users/bad", fmt.Sprint("Authorization: Bearer ", i), "Prefer: wait=0") })
		}
		clients.Wait()
		w.want("accounts that try at once", w.upstreamSaw()-before, maxTrials-1)
	})
}

// TestWhoLeavesSaysNothingOfTheUpstream, nor who sends half a body.
func TestWhoLeavesSaysNothingOfTheUpstream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, "/users/slow") {
				<-r.Context().Done()
			}
		})
		for i := range 2 * maxFailures {
			conn := w.dial()
			_, _ = fmt.Fprintf(conn, "GET /users/slow%d HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer %d\r\n\r\n", i, i)
			synctest.Wait()
			_ = conn.Close()
			conn = w.dial()
			_, _ = fmt.Fprintf(conn, "PUT /repos/a/b/subscription HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer %d\r\nTransfer-Encoding: chunked\r\n\r\nno", i)
			synctest.Wait()
			_ = conn.Close()
			synctest.Wait()
		}
		w.want("reachable", w.gateway.Reachable(), true)
	})
}

// TestWhoLeavesEarlyTakesNobodysTurn: a client that takes its account's turn to try an
// upstream that is spared, and leaves before the answer, has the try go on.
func TestWhoLeavesEarlyTakesNobodysTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var back atomic.Bool
		w := newWorld(t, func(http.ResponseWriter, *http.Request) {
			if !back.Load() {
				panic(http.ErrAbortHandler)
			}
			time.Sleep(2 * time.Second)
		})
		for i := 0; w.gateway.Reachable(); i++ {
			w.get("/user", fmt.Sprint("Authorization: Bearer ", i))
		}
		back.Store(true)
		for i := range 5 {
			time.Sleep(trialInterval)
			conn := w.dial()
			_, _ = fmt.Fprintf(conn, "GET /users/back%d HTTP/1.1\r\nHost: g\r\n\r\n", i)
			time.Sleep(100 * time.Millisecond)
			_ = conn.Close()
		}
		time.Sleep(2 * time.Second)
		w.want("reachable", w.gateway.Reachable(), true)
	})
}

// TestConnectionsThatLayIdleSayNothing: an upstream that closes all of them at once, as one
// that is restarted does, is not spared, and a request that met one of them does not meet
// the next.
func TestConnectionsThatLayIdleSayNothing(t *testing.T) {
	const n = maxFailures
	for _, c := range []struct {
		name   string
		atOnce bool
		met    int32
	}{{"all are used at once", true, n}, {"one after the other", false, 1}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var restarted atomic.Bool
				var met atomic.Int32
				w := newWorld(t, nothing, func(c *Config) { c.Transport = restarting(t, &restarted, &met) })
				ask := func(i int) { w.want("status", w.get("/user", fmt.Sprint("Authorization: Bearer ", i)).StatusCode, 200) }
				all := func() {
					var clients sync.WaitGroup
					for i := range n {
						clients.Go(func() { ask(i) })
					}
					clients.Wait()
					synctest.Wait()
				}
				all()
				if restarted.Store(true); c.atOnce {
					all()
				} else {
					for i := range n {
						ask(i)
					}
				}
				w.want("reachable", w.gateway.Reachable(), true)
				w.want("met a connection that had gone", met.Load(), c.met)
			})
		})
	}
}

// restarting is a transport to an upstream whose connections from before it was restarted
// end when a request comes over them, which is counted. Each of those that come at once
// gets its own.
func restarting(t *testing.T, restarted *atomic.Bool, met *atomic.Int32) http.RoundTripper {
	l := testservers.ListenPipe("raw.test:80")
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				for old := !restarted.Load(); ; {
					if _, err := conn.Read(make([]byte, 4<<10)); err != nil { // a pipe gives what was written at once
						return
					}
					time.Sleep(time.Second)
					if old && restarted.Load() {
						met.Add(1)
						return
					}
					_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
				}
			}()
		}
	}()
	transport := NewTransport()
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		return l.Dial(ctx, network, address)
	}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = l.Close()
	})
	return transport
}
