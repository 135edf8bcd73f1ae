package proxy

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/refusal"
)

// inFlight returns the number of open permits of the ledger.
func (w *world) inFlight() (n int) {
	w.Helper()
	for _, a := range w.accounts(100) {
		n += a.InUse
	}
	return n
}

// leaver is a client that sends a request and then disconnects.
type leaver struct {
	name string
	// send sends a request whose body, if any, stays incomplete. The returned function disconnects.
	send func(w *world, method, path string) (leave func())
}

// leavers disconnect in each way that a protocol has.
var leavers = []leaver{
	{"HTTP/1.1, connection closed", func(w *world, method, path string) func() {
		conn := w.dial()
		body := ""
		if method == http.MethodPut {
			body = "Content-Length: 100\r\n\r\nhalf"
		}
		_, _ = fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: g\r\n%s", method, path, cmp.Or(body, "\r\n"))
		go func() { _, _ = io.Copy(io.Discard, conn) }()
		return func() { _ = conn.Close() }
	}},
	{"HTTP/2, stream reset", func(w *world, method, path string) func() {
		return w.sendOverHTTP2(method, path).reset
	}},
	{"HTTP/2, connection closed", func(w *world, method, path string) func() {
		return w.sendOverHTTP2(method, path).closeConn
	}},
}

// stream is a request over HTTP/2 to the gateway.
type stream struct{ reset, closeConn func() }

// sendOverHTTP2 sends a request over a new connection with HTTP/2. A PUT has an incomplete body. The response is discarded.
func (w *world) sendOverHTTP2(method, path string) stream {
	w.Helper()
	client := w.http2Client()
	transport := client.Transport.(*http.Transport)
	dial, conns := transport.DialContext, make(chan net.Conn, 1)
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		conns <- conn
		return conn, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.Cleanup(cancel)
	var body io.Reader = http.NoBody
	if method == http.MethodPut {
		in, more := io.Pipe()
		w.Cleanup(func() { _ = more.Close() })
		body = in
		go func() { _, _ = io.WriteString(more, "half") }()
	}
	r := w.newRequest(ctx, method, "https://gateway.test"+path, body)
	if method == http.MethodPut {
		r.ContentLength = 100
	}
	go func() {
		resp, err := client.Do(r)
		if err != nil {
			return
		}
		w.want("protocol of the client", resp.Proto, "HTTP/2.0")
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}()
	conn := <-conns
	return stream{reset: cancel, closeConn: func() { _ = conn.Close() }}
}

func TestClientDisconnectReleasesItsPermit(t *testing.T) {
	for _, c := range []struct {
		name, method, path string
		// upstream is the handler that runs while the client disconnects, after a time.
		upstream http.HandlerFunc
		after    time.Duration
		requests int // upstream
	}{
		{"before the response", "GET", "/gitignore/templates", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, time.Second / 2, 1},
		{"during the response", "GET", "/gitignore/templates", func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprint(w, "half")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, time.Second / 2, 1},
		{"during the request body", "PUT", "/repos/a/b/subscription", func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }, time.Second / 2, 1},
		{"before a second poll for statistics", "GET", "/repos/a/b/stats/participation", responds(http.StatusAccepted), time.Second / 2, 1},
		{"after a second poll for statistics", "GET", "/repos/a/b/stats/participation", responds(http.StatusAccepted), 1500 * time.Millisecond, 2},
	} {
		for _, l := range leavers {
			var disconnected atomic.Bool
			setup(func(w http.ResponseWriter, r *http.Request) {
				if !disconnected.Load() {
					c.upstream(w, r)
					return
				}
				_, _ = fmt.Fprint(w, "whole")
			}).sub(t, c.name+", "+l.name, func(w *world) {
				leave := l.send(w, c.method, c.path)
				time.Sleep(c.after)
				disconnected.Store(true)
				leave()
				time.Sleep(time.Minute) // unconfirmed permits are held for a while
				n := w.upstreamSaw()
				failIf(w, n > c.requests, "%d requests upstream; polls continue", n)
				w.want("permits in flight", w.inFlight(), 0)
				failIf(w, len(w.recent()) == 0 || w.recent()[0].Status != refusal.ClientGone, "got records %+v", w.recent())
				w.want("body for the next client", w.get("/gitignore/templates").body, "whole")
			})
		}
	}
}

func TestClientDisconnectRemovesItsClaimFromTheQueue(t *testing.T) {
	for _, l := range leavers {
		bubble(t, l.name, func(t *testing.T) {
			release := make(chan struct{})
			w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) { <-release })
			for i := range 3 { // the slow start allows three requests before the first response
				go func() { w.get(fmt.Sprint("/users/", i)) }()
			}
			synctest.Wait()
			leave := l.send(w, "GET", "/user")
			time.Sleep(time.Second / 2) // the slow start allows the next request after a second
			leave()
			time.Sleep(time.Second)
			close(release)
			synctest.Wait()
			w.want("requests upstream", w.upstreamSaw(), 3)
			w.want("permits in flight", w.inFlight(), 0)
		})
	}
}

// readHead reads the head of a request from a connection.
func readHead(c net.Conn) (string, error) {
	var head strings.Builder
	for b := make([]byte, 1); !strings.HasSuffix(head.String(), "\r\n\r\n"); head.WriteByte(b[0]) {
		if _, err := c.Read(b); err != nil {
			return "", err
		}
	}
	return head.String(), nil
}

// rawUpstream responds to every request with these bytes and closes the connection.
func rawUpstream(t *testing.T, response string) option {
	transport := rawTransport(t, func(c net.Conn) {
		if _, err := readHead(c); err == nil {
			_, _ = io.WriteString(c, response)
		}
	})
	return func(c *Config) { c.Transport = transport }
}

func TestMalformedResponsesOfTheUpstream(t *testing.T) {
	for _, c := range []struct {
		name, response string
		status         int
		body           string // of a successful response
		stored         bool
	}{
		{"length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole", 200, "whole", true},
		{"chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nwhole\r\n0\r\n\r\n", 200, "whole", true},
		{"end marked by close only", "HTTP/1.0 200 OK\r\n\r\nwhole", 200, "whole", false},
		{"bytes after the end", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwholeHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", 200, "whole", true},
		{"contradictory lengths", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nwhole", 502, "", false},
		{"not HTTP", "SSH-2.0-OpenSSH\r\n\r\n", 502, "", false},
		{"endless header", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 1<<20), 502, "", false},
		{"endless interim responses", strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", 10_000), 502, "", false},
		{"unrequested switch of protocols", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", 502, "", false},
		{"status below 100", "HTTP/1.1 099 Odd\r\nContent-Length: 5\r\n\r\nwhole", 502, "", false},
		{"body of a 204", "HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nbody", 204, "", false},
	} {
		bubble(t, c.name, func(t *testing.T) {
			w := newWorld(t, nothing, rawUpstream(t, c.response))
			for _, cacheStatus := range []string{"fwd=uri-miss", "hit"} {
				r := w.wantReply("", w.get("/gitignore/templates"), c.status)
				if c.status < 300 {
					w.want("body", r.body, c.body)
				} else {
					w.refused(r, c.status, "Bad Gateway")
				}
				failIf(t, c.stored && !strings.Contains(r.Header.Get("Cache-Status"), cacheStatus), "want %s, got %s", cacheStatus, r.Header.Get("Cache-Status"))
				failIf(t, !c.stored && strings.Contains(r.Header.Get("Cache-Status"), "hit"), "the response was stored: %s", r.Header.Get("Cache-Status"))
			}
			time.Sleep(10 * time.Second) // unconfirmed permits are held for a while
			w.want("permits in flight", w.inFlight(), 0)
		})
	}
}

// The limits of countingAPI: points of one minute for each endpoint, and requests of one hour.
const (
	pointsPerMinute = 900
	coreLimit       = 5000
)

// countingAPI is an upstream with issues. It counts every request that arrives, also requests whose client has left, and
// applies each write a moment after its arrival.
type countingAPI struct {
	delay func(most time.Duration) time.Duration

	mu       sync.Mutex
	spends   map[string][]spentPoints // of the last minute, by method
	window   time.Time                // start of the window of core
	used     int                      // requests in the window of core
	arrived  map[string]int           // by method, and writes by path
	versions map[string]int           // by path: the number of applied writes
	excesses []string
}

type spentPoints struct {
	at     time.Time
	points int
}

func (a *countingAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	used, reset := a.arrive(r.Method, r.URL.Path)
	work := a.delay(3 * time.Millisecond)
	if r.Method != http.MethodGet && a.delay(time.Millisecond) == 0 {
		work = a.delay(5 * time.Second)
	}
	time.Sleep(work)
	a.mu.Lock()
	if r.Method != http.MethodGet {
		a.versions[r.URL.Path]++
	}
	version := strconv.Itoa(a.versions[r.URL.Path])
	a.mu.Unlock()
	time.Sleep(a.delay(3 * time.Millisecond))
	h := w.Header()
	h.Set("Cache-Control", "private, max-age=60")
	h.Set("Etag", strconv.Quote(version))
	setRate(h, policy.Core, coreLimit, used, reset)
	_, _ = io.WriteString(w, version)
}

// arrive counts a request.
func (a *countingAPI) arrive(method, path string) (used int, reset time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, points := time.Now(), 0
	recent := slices.DeleteFunc(a.spends[method], func(s spentPoints) bool { return now.Sub(s.at) >= time.Minute })
	a.spends[method] = append(recent, spentPoints{now, map[bool]int{true: 1, false: 5}[method == http.MethodGet]})
	for _, s := range a.spends[method] {
		points += s.points
	}
	if now.Sub(a.window) >= time.Hour {
		a.window, a.used = now, 0
	}
	a.used++
	a.arrived[method]++
	if method != http.MethodGet {
		a.arrived[path]++
	}
	if points > pointsPerMinute || a.used > coreLimit {
		a.excesses = append(a.excesses, fmt.Sprintf("%s: %d points of %s in a minute, %d requests in the window", now, points, method, a.used))
	}
	return a.used, a.window.Add(time.Hour)
}

func (a *countingAPI) version(path string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.versions[path]
}

// writes returns the number of writes that have arrived.
func (a *countingAPI) writes(path string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.arrived[path]
}

// overBothProtocols runs a test with an upstream that speaks HTTP/1.1, and with one that speaks HTTP/2 over TLS.
// The option connects the gateway to the upstream.
func overBothProtocols(t *testing.T, handler func() http.Handler, test func(t *testing.T, connect option)) {
	for _, protocol := range []string{http1, http2} {
		bubble(t, protocol, func(t *testing.T) {
			transport := serveUpstream(t, protocol, http.StripPrefix("/base", handler()))
			test(t, func(c *Config) { c.Transport = transport })
		})
	}
}

// Clients disconnect at random moments. The upstream must not get more requests than its limits allow, the ledger must
// not show less use than the upstream, and no hit may be older than a write that arrived before. WEIR_CANCELLATIONS sets
// the number of requests.
func TestCanceledRequestsAreCountedAndPurge(t *testing.T) {
	total := testservers.Setting(t, "WEIR_CANCELLATIONS", 500)
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(1, 2))
	// Whole milliseconds let many events happen at the same virtual time, so that goroutines race.
	upTo := func(most time.Duration) time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return time.Duration(rng.Int64N(int64(most/time.Millisecond)+1)) * time.Millisecond
	}
	var api *countingAPI
	handler := func() http.Handler {
		api = &countingAPI{delay: upTo, spends: map[string][]spentPoints{}, arrived: map[string]int{}, versions: map[string]int{}}
		return api
	}
	overBothProtocols(t, handler, func(t *testing.T, connect option) {
		w := newWorld(t, nothing, wholeAPI(t, unchanged), connect)
		c := &cancellations{world: w, api: api, upTo: upTo}
		for done := 0; done < total; done += 500 {
			c.run(min(500, total-done))
			time.Sleep(stoppedWorking) // all canceled requests have ended
			c.compareUse()
		}
		t.Logf("%d GETs and %d PATCHes arrived, %d of %d reads after a canceled write were hits", api.arrived["GET"], api.arrived["PATCH"], c.hits, c.reads)
		failIf(t, len(api.excesses) > 0, "%d requests exceeded a limit: %.200q", len(api.excesses), api.excesses)
		failIf(t, c.reads == 0 || api.arrived["GET"] == 0 || api.arrived["PATCH"] == 0, "the test sent nothing")
	})
}

// cancellations sends requests and cancels them.
type cancellations struct {
	*world
	api  *countingAPI
	upTo func(time.Duration) time.Duration

	mu    sync.Mutex
	reads int // reads after canceled writes
	hits  int // among reads
}

// run sends a number of requests from several clients.
func (c *cancellations) run(requests int) {
	const clients = 20
	together(clients, func(i int) {
		for range (requests + i) / clients {
			c.send()
		}
	})
}

// send sends one request that is canceled within the time of an exchange, and checks that a read after a write is no
// outdated hit.
func (c *cancellations) send() {
	path := fmt.Sprintf("/repos/acme/widgets/issues/%d", 1+c.upTo(20*time.Millisecond)/time.Millisecond)
	method := []string{http.MethodGet, http.MethodPatch}[c.upTo(time.Millisecond)/time.Millisecond]
	ctx, cancel := context.WithTimeout(context.Background(), c.upTo(8*time.Millisecond))
	defer cancel()
	if method == http.MethodGet {
		c.request(ctx, method, path, "Cache-Control: no-cache")
		return
	}
	arrived := c.api.writes(path)
	c.request(ctx, method, path, "")
	time.Sleep(time.Millisecond + c.upTo(10*time.Millisecond))
	if c.api.writes(path) == arrived {
		return // the write is still waiting, or has been canceled before
	}
	for range 2 {
		c.read(path)
		time.Sleep(c.upTo(6 * time.Second))
	}
}

// read reads an issue, and checks that the response is no outdated hit.
func (c *cancellations) read(path string) {
	before := c.api.version(path)
	status, body := c.request(context.Background(), http.MethodGet, path, "")
	version, err := strconv.Atoi(body)
	if err != nil {
		return // refused
	}
	c.mu.Lock()
	c.reads++
	hit := strings.HasPrefix(status, "weir; hit")
	if hit {
		c.hits++
	}
	c.mu.Unlock()
	failIf(c, hit && version < before, "%s: version %d after version %d was applied: %s", path, version, before, status)
}

// request sends a request, and repeats it after each refusal, like a careful client.
func (c *cancellations) request(ctx context.Context, method, path, cacheControl string) (status, body string) {
	for {
		body := strings.NewReader(map[string]string{http.MethodPatch: "{}"}[method])
		req := c.newRequest(ctx, method, "http://gateway.test"+path, body, bearer("tok-owner"), cacheControl)
		r := receive(c.client.Do(req))
		if r.err != nil {
			return "", "" // canceled, perhaps during the body
		}
		if r.StatusCode != http.StatusTooManyRequests {
			return r.Header.Get("Cache-Status"), r.body
		}
		wait, _ := strconv.Atoi(r.Header.Get("Retry-After"))
		select {
		case <-time.After(time.Duration(wait)*time.Second + c.upTo(time.Second)):
		case <-ctx.Done():
			return "", ""
		}
	}
}

// compareUse checks that the ledger shows at least the use that the upstream has counted in the same window.
func (c *cancellations) compareUse() {
	account := policy.Caller{Kind: policy.User, Account: "account of Bearer tok-owner", Class: "account of Bearer tok-owner"}
	b, known := c.gateway.Ledger.Budget(account, policy.Core)
	c.api.mu.Lock()
	defer c.api.mu.Unlock()
	if reset := c.api.window.Add(time.Hour); !known || b.Reset.Before(reset) || time.Now().After(reset) {
		return // the ledger knows another window
	}
	failIf(c, b.Used+b.Held < c.api.used, "the ledger shows %d used and %d held, the upstream counted %d", b.Used, b.Held, c.api.used)
}
