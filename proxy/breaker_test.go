package proxy

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/proxy/breaker"
	"github.com/weirgate/weir/proxy/record"
)

// breakConn is an upstream that reads a request and then breaks its connection.
func breakConn(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// breakWhile returns an upstream that reads requests and then breaks their connections while down is true.
func breakWhile(down *atomic.Bool, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if down.Load() {
			breakConn(w, r)
		}
		next(w, r)
	}
}

// breakBad is an upstream that reads each request for /users/bad and then breaks its connection.
var breakBad = byPath(nothing, map[string]http.HandlerFunc{"/users/bad": breakConn})

// permits returns the number of permits of a request.
func permits(r record.Record) (n int) {
	for _, s := range r.Stages {
		if s.Name == record.StageQueue && !s.Failed {
			n++
		}
	}
	return n
}

// A safe request is retried a few times while its client waits, and each attempt has a permit. Unsafe requests are not
// retried.
func TestSafeRequestIsRetriedAfterABrokenConnection(t *testing.T) {
	for _, c := range []struct {
		name, method string
		fields       []string
		breaks       int
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
		setup(inOrder(append(slices.Repeat([]http.HandlerFunc{breakConn}, c.breaks), nothing)...)).sub(t, c.name, func(w *world) {
			start := time.Now()
			r := w.do(c.method, "/made-up", nil, append(c.fields, bearer("a"))...)
			took := time.Since(start)
			w.want("status", r.StatusCode, c.status)
			w.want("requests upstream", w.upstreamSaw(), c.sent)
			failIf(w, took > time.Second, "got the response after %v", took)
			w.want("permits", permits(w.last()), c.sent)
			w.want("spent", w.last().Spent, c.sent)
			time.Sleep(10 * time.Second) // unconfirmed permits are held for a while
			w.want("permits in flight", w.inFlight(), 0)
		})
	}
}

// shortResponse is the response of raw upstreams. One read returns the whole request.
const shortResponse = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// The transport of net/http would retry on a reused connection without a permit, and retry a POST with an
// Idempotency-Key.
func TestTransportDoesNotRetryItself(t *testing.T) {
	for _, c := range []struct {
		name, method string
		status, sent int
	}{{"Weir retries a safe request", "GET", 200, 2}, {"an unsafe request is not retried", "POST", 502, 1}} {
		bubble(t, c.name, func(t *testing.T) {
			var conns, requests atomic.Int32 // requests excludes the first request of the first connection
			transport := rawTransport(t, func(conn net.Conn) {
				first := conns.Add(1) == 1
				for i := 0; ; i++ {
					if _, err := conn.Read(make([]byte, 4<<10)); err != nil {
						return
					}
					if i > 0 || !first {
						requests.Add(1)
					}
					if i == 1 {
						return
					}
					_, _ = io.WriteString(conn, shortResponse)
				}
			})
			w := newWorld(t, nothing, func(c *Config) { c.Transport = transport })
			w.want("status of the first request", w.get("/users/one").StatusCode, 200)
			synctest.Wait() // the connection is idle
			r := w.wantReply("", w.do(c.method, "/made-up", nil, "Idempotency-Key: 1"), c.status)
			w.want("requests upstream", int(requests.Load()), c.sent)
			w.want("attempts", w.last().Sent, c.sent)
			w.want("spent", w.last().Spent, c.sent)
			if c.status != 200 {
				w.refused(r, 502, "broke the connection")
			}
		})
	}
}

// The retry budget allows ten retries, and one further retry for each ten responses.
func TestRetryBudgetBoundsRetries(t *testing.T) {
	setup(breakBad).run(t, func(w *world) {
		const n = 100
		for i := range n {
			w.want("bad", w.get("/users/bad", bearer(strconv.Itoa(i))).StatusCode, 502)
			w.want("good", w.get("/user", bearer(strconv.Itoa(i))).StatusCode, 200)
		}
		w.want("retries", w.upstreamSaw()-2*n, breaker.RetryBurst+(n-1)/breaker.RetryCost)
		last := w.recent()[1]
		stage := last.Stages[len(last.Stages)-1]
		failIf(w, stage.Name != record.StageRetry || !stage.Failed, "the record has no failed retry: %+v", last.Stages)
	})
}

// While the circuit breaker is open, requests fail immediately or get stale responses. Each account sends one trial per
// second, and the first response closes the breaker.
func TestBreakerOpensForAnUnreachableUpstream(t *testing.T) {
	var down atomic.Bool
	var log strings.Builder
	setup(breakWhile(&down, replies("answer", "Cache-Control: max-age=10")), logTo(&log)).run(t, func(w *world) {
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
		w.want("requests until then", w.upstreamSaw(), 1+uncounted+breaker.MaxFailures)
		next := w.gateway.Config
		w.want("reachable after a reload", New(next).Reachable(), false)
		next.Upstream = next.Upstream.JoinPath("other")
		w.want("another upstream is reachable", New(next).Reachable(), true)
		for i := range 50 {
			time.Sleep(100 * time.Millisecond)
			start := time.Now()
			r := w.get(fmt.Sprint("/users/", i), "Prefer: wait=0")
			if w.want("duration", time.Since(start), time.Duration(0)); r.StatusCode == 502 {
				continue // a trial request
			}
			w.refused(r, 503, "does not respond")
			w.wantHeader(r, "Retry-After: 1", "Cache-Status: weir; detail=breaker")
		}
		w.want("requests in five seconds", w.upstreamSaw(), 1+uncounted+breaker.MaxFailures+5)
		w.want("stored body", w.get("/users/stored").body, "answer")
		status := w.recent()[0].Cache.String()
		failIf(w, !strings.HasPrefix(status, "weir; fwd=stale; ttl=-") || !strings.HasSuffix(status, "; detail=upstream"), "got Cache-Status %s for the stored response", status)
		down.Store(false)
		time.Sleep(breaker.TrialInterval)
		w.want("status of the trial", w.get("/users/new").StatusCode, 200)
		w.want("status after the trial", w.get("/users/newer").StatusCode, 200)
		for _, line := range []string{`msg="circuit breaker opened`, `msg="circuit breaker closed`} {
			failIf(w, strings.Count(log.String(), line) != 1, "%q is not logged once: %s", line, log.String())
		}
		time.Sleep(10 * time.Second)
		w.want("permits in flight", w.inFlight(), 0)
	})
}

// A client that keeps the breaker open does not use the trials of other accounts.
func TestEachAccountHasItsOwnTrials(t *testing.T) {
	setup(breakBad).run(t, func(w *world) {
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
		together(2*breaker.MaxTrials, func(i int) { w.get("/users/bad", fmt.Sprint("Authorization: Bearer ", i), "Prefer: wait=0") })
		w.want("concurrent trials", w.upstreamSaw()-before, breaker.MaxTrials-1)
	})
}

func TestClientDisconnectsDoNotOpenTheBreaker(t *testing.T) {
	setup(func(w http.ResponseWriter, r *http.Request) {
		if _, _ = io.Copy(io.Discard, r.Body); strings.HasPrefix(r.URL.Path, "/users/slow") {
			<-r.Context().Done()
		}
	}).run(t, func(w *world) {
		for i := range 2 * breaker.MaxFailures {
			for _, request := range []string{
				"GET /users/slow%d HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer %[1]d\r\n\r\n",
				"PUT /repos/a/b/subscription HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer %d\r\nTransfer-Encoding: chunked\r\n\r\nno",
			} {
				conn := w.dial()
				_, _ = fmt.Fprintf(conn, request, i)
				synctest.Wait()
				_ = conn.Close()
				synctest.Wait()
			}
		}
		w.want("reachable", w.gateway.Reachable(), true)
	})
}

// A trial continues after its client disconnects, so that the response can close the breaker.
func TestTrialContinuesAfterItsClientDisconnects(t *testing.T) {
	var down atomic.Bool
	down.Store(true)
	setup(breakWhile(&down, func(http.ResponseWriter, *http.Request) { time.Sleep(2 * time.Second) })).run(t, func(w *world) {
		for i := 0; w.gateway.Reachable(); i++ {
			w.get("/user", fmt.Sprint("Authorization: Bearer ", i))
		}
		down.Store(false)
		for i := range 5 {
			time.Sleep(breaker.TrialInterval)
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
	const n = breaker.MaxFailures
	for _, c := range []struct {
		name       string
		concurrent bool
		met        int32
	}{{"concurrent requests", true, n}, {"sequential requests", false, 1}} {
		bubble(t, c.name, func(t *testing.T) {
			var restarted atomic.Bool
			var met atomic.Int32 // requests on connections from before the restart, which end with their next request
			transport := rawTransport(t, func(conn net.Conn) {
				for old := !restarted.Load(); ; {
					if _, err := conn.Read(make([]byte, 4<<10)); err != nil {
						return
					}
					time.Sleep(time.Second) // concurrent requests use separate connections
					if old && restarted.Load() {
						met.Add(1)
						return
					}
					_, _ = io.WriteString(conn, shortResponse)
				}
			})
			w := newWorld(t, nothing, func(c *Config) { c.Transport = transport })
			send := func(i int) { w.want("status", w.get("/user", bearer(strconv.Itoa(i))).StatusCode, 200) }
			together(n, send)
			synctest.Wait()
			if restarted.Store(true); c.concurrent {
				together(n, send)
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

// Each client gets the upstream error of its own request. Weir neither retries the request
// nor stores the error, and throttles no account.
func TestServerErrorsAreForwardedWithoutSideEffects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := http.StatusBadGateway
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			setRate(w.Header(), "", 5000, 1, time.Now().Add(time.Hour))
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "unicorn")
		})
		send := func(i int) got { return w.get(fmt.Sprint("/users/", i), "Authorization: Bearer a") }
		w.want("status of the first request", send(0).StatusCode, status)
		together(99, func(i int) {
			r := send(1 + i)
			w.want("status", r.StatusCode, http.StatusBadGateway)
			w.want("body", r.body, "unicorn")
		})
		w.want("requests upstream", w.upstreamSaw(), 100)
		w.want("reachable", w.gateway.Reachable(), true)
		status = http.StatusOK
		w.want("status afterwards", send(0).StatusCode, http.StatusOK)
		w.want("permits in flight", w.inFlight(), 0)
	})
}

// Weir does not decompress bodies, so a stored body uses the memory of its encoded form.
func TestCompressedBodiesAreNotDecompressed(t *testing.T) {
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	zeros := make([]byte, 1<<20)
	for range 16 {
		_, _ = z.Write(zeros)
	}
	noError(t, z.Close())
	setup(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Content-Encoding", "gzip") // independent of Accept-Encoding
		_, _ = w.Write(bomb.Bytes())
	}).run(t, func(w *world) {
		for _, path := range []string{"/gitignore/templates", "/user", "/made-up"} {
			for range 2 {
				r := w.get(path, "Authorization: Bearer a", "Accept-Encoding: gzip")
				w.want("length", len(r.body), bomb.Len())
				w.want("coding", r.Header.Get("Content-Encoding"), "gzip")
			}
		}
		_, bytes := w.gateway.Cache.Size()
		failIf(w, bytes > 4*uint64(bomb.Len())+64<<10, "the cache has %d bytes for bodies of %d bytes", bytes, bomb.Len())
	})
}

// With invalid rate limit fields, the documented limits apply.
func TestInvalidRateLimitFieldsAreIgnored(t *testing.T) {
	const next, century = "946688400", "4102444800" // virtual time begins at 946684800
	nines := strings.Repeat("9", 40)
	for name, fields := range map[string][]string{ // limit, used, reset
		"not numbers":  {"many", "few", "soon"},
		"negative":     {"-5", "-1", "-1"},
		"out of range": {nines, nines, nines},
		"empty":        {"", "", ""},
		"next century": {"60", "60", century},
		"duplicates":   {"60, 5000", "1, 2", next + ", 946692000"},
	} {
		upstream := responds(200, "X-Ratelimit-Limit: "+fields[0], "X-Ratelimit-Used: "+fields[1], "X-Ratelimit-Reset: "+fields[2])
		setup(upstream).sub(t, name, func(w *world) {
			responses := 0
			for i := range 80 { // the anonymous limit is 60 per hour
				if w.get(fmt.Sprint("/users/", i), "Prefer: wait=5").StatusCode == http.StatusOK {
					responses++
				}
			}
			failIf(w, responses == 0 || responses > 60, "%d of 80 requests were forwarded", responses)
			if name != "next century" { // Weir waits for such a reset, up to a day
				time.Sleep(2 * time.Hour)
				w.want("status two hours later", w.get("/users/next").StatusCode, http.StatusOK)
			}
			w.want("permits in flight", w.inFlight(), 0)
		})
	}
}
