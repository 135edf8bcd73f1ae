package proxy

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// breaking returns an upstream that reads the first requests and then breaks their connections. The test may change the
// returned number of breaks left. A negative number disables breaks.
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

// A safe request is retried a few times while its client waits, and each attempt has a permit. Unsafe requests are not
// retried.
func TestSafeRequestIsRetriedAfterABrokenConnection(t *testing.T) {
	for _, c := range []struct {
		name, method string
		fields       []string
		breaks       int64
		status, sent int
	}{
		{"breaks once", "GET", nil, 1, 200, 2},
		{"breaks twice", "GET", nil, 2, 200, 3},
		{"breaks three times", "GET", nil, 3, 502, 3},
		{"HEAD", "HEAD", nil, 1, 200, 2},
		{"client does not wait", "GET", []string{"Prefer: wait=0"}, 1, 502, 1},
		{"client waits for a second", "GET", []string{"Prefer: wait=1"}, 1, 200, 2},
		{"PUT", "PUT", nil, 1, 502, 1},
		{"DELETE", "DELETE", nil, 1, 502, 1},
		{"POST with Idempotency-Key", "POST", []string{"Idempotency-Key: 1"}, 1, 502, 1},
	} {
		bubble(t, c.name, func(t *testing.T) {
			upstream, _ := breaking(c.breaks)
			w := newWorld(t, upstream)
			start := time.Now()
			r := w.do(c.method, "/made-up", nil, append(c.fields, "Authorization: Bearer a")...)
			took := time.Since(start)
			w.want("status", r.StatusCode, c.status)
			w.want("requests upstream", w.upstreamSaw(), c.sent)
			if took > time.Second {
				t.Errorf("got the response after %v", took)
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
			time.Sleep(10 * time.Second) // unconfirmed permits are held for a while
			w.want("permits in flight", w.inFlight(), 0)
		})
	}
}

func TestTimeoutIsNotRetried(t *testing.T) {
	setup(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }).run(t, func(w *world) {
		w.refused(w.get("/user", "Prefer: wait=300"), 504, "in time")
		w.want("requests upstream", w.upstreamSaw(), 1)
	})
}

// The transport of net/http would retry on a reused connection without a permit, and retry a POST with an
// Idempotency-Key.
func TestTransportDoesNotRetryItself(t *testing.T) {
	for _, c := range []struct {
		name, method string
		status, sent int
	}{{"Weir retries a safe request", "GET", 200, 2}, {"an unsafe request is not retried", "POST", 502, 1}} {
		bubble(t, c.name, func(t *testing.T) {
			l := testservers.ListenPipe("raw.test:80")
			defer func() { _ = l.Close() }()
			var requests atomic.Int32 // excludes the first request of the first connection
			go func() {
				for n := 0; ; n++ {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					go func() {
						defer func() { _ = conn.Close() }()
						for i := range 9 {
							if _, err := conn.Read(make([]byte, 4<<10)); err != nil { // one read returns the whole request
								return
							}
							if i > 0 || n > 0 {
								requests.Add(1)
							}
							if i == 1 {
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
			w.want("status of the first request", w.get("/users/one").StatusCode, 200)
			synctest.Wait() // the connection is idle
			r := w.do(c.method, "/made-up", nil, "Idempotency-Key: 1")
			w.want("status", r.StatusCode, c.status)
			w.want("requests upstream", int(requests.Load()), c.sent)
			w.want("attempts", w.gateway.Recent()[0].Attempts, c.sent)
			w.want("spent", w.gateway.Recent()[0].Spent, c.sent)
			if c.status != 200 {
				w.refused(r, 502, "broke the connection")
			}
		})
	}
}

// The retry budget allows ten retries, and one further retry for each ten responses.
func TestRetryBudgetBoundsRetries(t *testing.T) {
	setup(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/users/bad" {
			panic(http.ErrAbortHandler)
		}
	}).run(t, func(w *world) {
		const n = 100
		for i := range n {
			w.want("bad", w.get("/users/bad", fmt.Sprint("Authorization: Bearer ", i)).StatusCode, 502)
			w.want("good", w.get("/user", fmt.Sprint("Authorization: Bearer ", i)).StatusCode, 200)
		}
		if retries := w.upstreamSaw() - 2*n; retries != retryBurst+(n-1)/retryCost {
			w.Errorf("%d retries", retries)
		}
		last := w.gateway.Recent()[1]
		if stage := last.Stages[len(last.Stages)-1]; stage.Name != stageRetry || !stage.Failed {
			w.Errorf("the record has no failed retry: %+v", last.Stages)
		}
	})
}

// While the circuit breaker is open, requests fail immediately or get stale responses. Each account sends one trial per
// second, and the first response closes the breaker.
func TestBreakerOpensForAnUnreachableUpstream(t *testing.T) {
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
		w.get("/users/stored")
		time.Sleep(20 * time.Second)
		down.Store(true)
		for i := 0; w.gateway.Reachable(); i++ {
			w.want("status before the breaker opens", w.get(fmt.Sprint("/users/", i)).StatusCode, 502)
		}
		uncounted := 0
		if upstreamProtocol == http1 {
			uncounted = 1 // a failure on an idle connection is not counted
		}
		w.want("requests until then", w.upstreamSaw(), 1+uncounted+maxFailures)
		for i := range 50 {
			time.Sleep(100 * time.Millisecond)
			start := time.Now()
			r := w.get(fmt.Sprint("/users/", i), "Prefer: wait=0")
			if w.want("duration", time.Since(start), time.Duration(0)); r.StatusCode == 502 {
				continue // a trial request
			}
			w.refused(r, 503, "does not respond")
			w.want("Retry-After", r.Header.Get("Retry-After"), "1")
			w.want("Cache-Status", r.Header.Get("Cache-Status"), "weir; detail=breaker")
		}
		w.want("requests in five seconds", w.upstreamSaw(), 1+uncounted+maxFailures+5)
		w.want("stored body", w.get("/users/stored").body, "answer")
		if status := w.gateway.Recent()[0].Cache; !strings.HasPrefix(status, "weir; fwd=stale; ttl=-") || !strings.HasSuffix(status, "; detail=upstream") {
			t.Errorf("got Cache-Status %s for the stored response", status)
		}
		down.Store(false)
		time.Sleep(trialInterval)
		w.want("status of the trial", w.get("/users/new").StatusCode, 200)
		w.want("status after the trial", w.get("/users/newer").StatusCode, 200)
		for _, line := range []string{`msg="circuit breaker opened`, `msg="circuit breaker closed`} {
			if strings.Count(log.String(), line) != 1 {
				t.Errorf("%q is not logged once: %s", line, log.String())
			}
		}
		time.Sleep(10 * time.Second)
		w.want("permits in flight", w.inFlight(), 0)
	})
}

// A client that keeps the breaker open does not use the trials of other accounts.
func TestEachAccountHasItsOwnTrials(t *testing.T) {
	setup(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/users/bad" {
			panic(http.ErrAbortHandler)
		}
	}).run(t, func(w *world) {
		bad := func() {
			w.get("/users/bad", "Authorization: Bearer abuser", "Cache-Control: no-store", "Prefer: wait=0")
		}
		open := func() {
			for w.gateway.Reachable() {
				bad()
				time.Sleep(time.Second) // an unknown account may send one request per second
			}
			bad() // uses the trial of its account
		}
		for range 3 {
			open()
			w.want("status of another client", w.get("/user", "Authorization: Bearer b").StatusCode, 200)
		}
		open()
		before := w.upstreamSaw()
		together(2*maxTrials, func(i int) { w.get("/users/bad", fmt.Sprint("Authorization: Bearer ", i), "Prefer: wait=0") })
		w.want("concurrent trials", w.upstreamSaw()-before, maxTrials-1)
	})
}

func TestClientDisconnectsDoNotOpenTheBreaker(t *testing.T) {
	setup(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, "/users/slow") {
			<-r.Context().Done()
		}
	}).run(t, func(w *world) {
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

// A trial continues after its client disconnects, so that the response can close the breaker.
func TestTrialContinuesAfterItsClientDisconnects(t *testing.T) {
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

// Idle connections that a restarted upstream closes do not open the breaker, and a retry uses a new connection.
func TestClosedIdleConnectionsDoNotOpenTheBreaker(t *testing.T) {
	const n = maxFailures
	for _, c := range []struct {
		name       string
		concurrent bool
		met        int32
	}{{"concurrent requests", true, n}, {"sequential requests", false, 1}} {
		bubble(t, c.name, func(t *testing.T) {
			var restarted atomic.Bool
			var met atomic.Int32
			w := newWorld(t, nothing, func(c *Config) { c.Transport = restarting(t, &restarted, &met) })
			send := func(i int) { w.want("status", w.get("/user", fmt.Sprint("Authorization: Bearer ", i)).StatusCode, 200) }
			all := func() {
				together(n, func(i int) { send(i) })
				synctest.Wait()
			}
			all()
			if restarted.Store(true); c.concurrent {
				all()
			} else {
				for i := range n {
					send(i)
				}
			}
			w.want("reachable", w.gateway.Reachable(), true)
			w.want("requests on closed connections", met.Load(), c.met)
		})
	}
}

// restarting returns a transport to an upstream that restarts. A request on a connection from before the restart closes
// the connection and increments met. Concurrent requests use separate connections.
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
					if _, err := conn.Read(make([]byte, 4<<10)); err != nil { // one read returns the whole request
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
