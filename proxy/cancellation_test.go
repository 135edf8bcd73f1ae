package proxy

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirgate/weir/policy"
)

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
	total := setting(t, "WEIR_CANCELLATIONS", 500)
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
		if len(api.excesses) > 0 {
			t.Errorf("%d requests exceeded a limit, the first one: %s", len(api.excesses), api.excesses[0])
		}
		if c.reads == 0 || api.arrived["GET"] == 0 || api.arrived["PATCH"] == 0 {
			t.Error("the test sent nothing")
		}
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
	if hit && version < before {
		c.Errorf("%s: version %d after version %d was applied: %s", path, version, before, status)
	}
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
	if b.Used+b.Held < c.api.used {
		c.Errorf("the ledger shows %d used and %d held, the upstream counted %d", b.Used, b.Held, c.api.used)
	}
}
