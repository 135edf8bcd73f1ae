package proxy

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/limits/limitstest"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/caller"
	"github.com/weirgate/weir/proxy/screen"
)

// TestNoLimitIsExceededOverHTTP sends the traffic of WEIR_HTTP_SCENARIOS random scenarios through gateways to the hostile
// upstream, over each protocol. Clients leave at random times, often while their request is sent. If WEIR_SEED is set, the
// test runs only the scenario of that seed.
func TestNoLimitIsExceededOverHTTP(t *testing.T) {
	few := map[string]int{http1: 4, http2: 12} // streams have more ways to end
	for _, protocol := range []string{http1, http2} {
		t.Run(protocol, func(t *testing.T) {
			first, last := 1, testservers.Setting(t, "WEIR_HTTP_SCENARIOS", few[protocol])
			if seed := testservers.Setting(t, "WEIR_SEED", 0); seed != 0 {
				first, last = seed, seed
			}
			table := limitstest.NewTable()
			for seed := first; seed <= last; seed++ {
				s := limitstest.Draw(uint64(seed))
				leaving := 0.3
				r := runHostile(t, protocol, &s, leaving)
				for _, v := range r.Violations {
					t.Errorf("seed %d: %s", seed, v)
				}
				table.Add(&s, &r)
			}
			table.Print(t)
		})
	}
}

// TestSaturationUsesTheLimitsOverHTTP checks that saturated traffic through a gateway uses every window as fully as
// without HTTP (I14). WEIR_WINDOWS sets the number of windows, and adds the limits that need many requests.
func TestSaturationUsesTheLimitsOverHTTP(t *testing.T) {
	windows := testservers.Setting(t, "WEIR_WINDOWS", 0)
	few := map[string][]string{http1: {"concurrency", policy.Search}, http2: {"points", policy.Search}}
	for _, protocol := range []string{http1, http2} {
		t.Run(protocol, func(t *testing.T) {
			table := limitstest.NewTable()
			for _, limit := range limitstest.Saturations() {
				if windows == 0 && !slices.Contains(few[protocol], limit.Limit) {
					continue
				}
				s := limit.Scenario(1, max(2, windows), false)
				r := runHostile(t, protocol, &s, 0)
				for _, v := range r.Violations {
					t.Errorf("%s: %s", limit.Limit, v)
				}
				full := r.Fullness(limit.Limit)
				failIf(t, full < limit.MinFullness, "%s: a window was only %.1f%% full", limit.Limit, full*100)
				table.Add(&s, &r, limit.Limit)
			}
			table.Print(t)
		})
	}
}

// hostileRun is a scenario in progress: clients, gateways that share a ledger, and a hostile upstream.
type hostileRun struct {
	*limitstest.Scenario
	upstream *limitstest.Upstream
	protocol string
	leaving  float64 // probability that a client leaves early
	callSet
	connections

	clients, requests sync.WaitGroup
}

// connections are the connections to the upstream.
type connections struct {
	mu   sync.Mutex
	open []net.Conn
}

func (c *connections) dialing(dial func(ctx context.Context, network, address string) (net.Conn, error)) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err == nil {
			c.mu.Lock()
			c.open = append(c.open, conn)
			c.mu.Unlock()
		}
		return conn, err
	}
}

// cut ends all connections.
func (c *connections) cut() {
	c.mu.Lock()
	open := c.open
	c.open = nil
	c.mu.Unlock()
	for _, conn := range open {
		_ = conn.Close()
	}
}

// runHostile runs a scenario in virtual time.
func runHostile(t *testing.T, protocol string, s *limitstest.Scenario, leaving float64) (report limitstest.Report) {
	synctest.Test(t, func(t *testing.T) {
		var measured time.Time
		if s.WarmUp > 0 {
			measured = time.Now().Add(s.WarmUp)
		}
		s.Upstream.Resending = 0 // an HTTP server cannot resend; see TestEveryEndIsCharged
		s.MaxPrice = 0           // the gateway computes estimates from the queries
		h := &hostileRun{Scenario: s, upstream: limitstest.NewUpstream(s.Upstream, s.Seed, measured), protocol: protocol, leaving: leaving}
		h.calls = map[string]*hostileCall{}
		shared := limits.NewMemory(s.Rules)
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		rng := rand.New(rand.NewPCG(s.Seed, 1))
		for replica := range s.Replicas {
			w := h.gateway(t, &hostileLedger{Ledger: shared, run: h, rng: rand.New(rand.NewPCG(s.Seed, uint64(1000+replica)))})
			for account := range s.Accounts {
				for range s.Clients {
					c := h.client(w, replica, account, rand.New(rand.NewPCG(rng.Uint64(), 2)))
					h.clients.Go(func() { c.loop(ctx) })
				}
			}
		}
		for account := range s.Accounts {
			if s.Upstream.OtherTraffic > 0 {
				others := rand.New(rand.NewPCG(s.Seed, uint64(100+account)))
				h.clients.Go(func() { h.upstream.OtherTraffic(hostileAccount(account), others, ctx.Done()) })
			}
		}
		time.Sleep(s.Duration)
		if s.WarmUp > 0 {
			h.upstream.StopMeasuring()
		}
		stop()
		h.clients.Wait()
		h.requests.Wait()
		time.Sleep(time.Minute) // the gateways finish the requests whose clients have left
		report = h.upstream.Report()
	})
	return report
}

func hostileAccount(i int) string { return fmt.Sprint("account ", i) }

// gateway starts one replica.
func (h *hostileRun) gateway(t *testing.T, ledger *hostileLedger) *world {
	longest := 2 * h.Rules.Points.Window
	if h.Backlog {
		longest = 100 * time.Hour
	}
	return newWorldOver(t, h.protocol, h.respond, func(c *Config) {
		c.Ledger, c.Limiter = ledger, limits.NewLimiter(ledger)
		c.Timeout, c.Wait = h.Timeout, longest
		transport := transportOf(c)
		transport.DialContext = h.dialing(transport.DialContext)
		c.Transport = &hostileTransport{c.Transport, h}
		c.Identify = func(r *http.Request) (*caller.Identity, error) {
			account, id := r.Header.Get("Authorization"), r.UserAgent()
			call := h.call(id)
			return &caller.Identity{
				Caller: policy.Caller{
					Kind: h.Upstream.Kind, Account: account, Class: account, Client: call.client.name + callMark + id,
					Share: call.client.share, Priority: call.client.priority, Paced: call.client.priority == policy.Batch,
				},
				Passed: true,
			}, nil
		}
	})
}

// hostileCall is one request of a client. The User-Agent and the client of its claims identify it.
type hostileCall struct {
	client *hostileClient
	// leave disconnects the client. If gone is not nil, the client leaves soon after a grant, and closes gone before.
	leave func()
	gone  chan struct{}

	mu       sync.Mutex
	claim    limits.Claim
	granted  time.Time
	began    time.Time // start of the attempt
	left     time.Time // time at which the client leaves, or zero
	response *limitstest.Response
}

// callMark separates the name of a client from the ID of its request.
const callMark = "\x00"

// callSet contains the requests in progress.
type callSet struct {
	mu    sync.Mutex
	calls map[string]*hostileCall
}

func (s *callSet) call(id string) *hostileCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[id]
}

func (s *callSet) add(c *hostileCall) (id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id = fmt.Sprint("request/", len(s.calls))
	s.calls[id] = c
	return id
}

// hostileLedger delays calls, and records the grants and the responses of requests.
type hostileLedger struct {
	limits.Ledger
	run *hostileRun
	mu  sync.Mutex
	rng *rand.Rand
}

// split removes the ID of the request from a claim.
func (l *hostileLedger) split(c limits.Claim) (limits.Claim, *hostileCall) {
	client, id, _ := strings.Cut(c.Client, callMark)
	c.Client = client
	return c, l.run.call(id)
}

func (l *hostileLedger) random(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rng.IntN(n)
}

func (l *hostileLedger) delay() {
	if slow := l.run.LedgerLatency.Microseconds(); slow > 0 {
		time.Sleep(time.Duration(l.random(int(slow)+1)) * time.Microsecond)
	}
}

// Admit implements limits.Ledger.
func (l *hostileLedger) Admit(ctx context.Context, claim limits.Claim) limits.Decision {
	claim, call := l.split(claim)
	l.delay()
	began := time.Now()
	d := l.Ledger.Admit(ctx, claim)
	if d.Granted {
		call.mu.Lock()
		call.claim, call.granted = claim, began
		leaves := call.gone != nil && call.left.IsZero()
		call.mu.Unlock()
		if leaves { // a little later, so that the request is being sent
			steps := l.random(60)
			l.run.requests.Go(func() {
				for range steps {
					runtime.Gosched()
				}
				call.mu.Lock()
				if call.left.IsZero() {
					call.left = time.Now()
					close(call.gone)
				}
				call.mu.Unlock()
				call.leave()
			})
			return d
		}
	}
	l.delay()
	return d
}

// Settle implements limits.Ledger.
func (l *hostileLedger) Settle(ctx context.Context, permit limits.Permit, outcome limits.Outcome) error {
	claim, call := l.split(permit.Claim)
	permit.Claim = claim
	l.delay()
	err := l.Ledger.Settle(ctx, permit, outcome)
	call.mu.Lock()
	response := call.response
	call.response = nil
	call.mu.Unlock()
	if err == nil && outcome.Answered && response != nil {
		l.run.upstream.Learned(response, 0)
	}
	return err
}

// Release implements limits.Ledger.
func (l *hostileLedger) Release(ctx context.Context, permit limits.Permit, aborted bool) {
	permit.Claim, _ = l.split(permit.Claim)
	l.delay()
	l.Ledger.Release(ctx, permit, aborted)
}

// Renew implements limits.Ledger.
func (l *hostileLedger) Renew(permits []limits.OpenPermit) {
	permits = slices.Clone(permits)
	for i := range permits {
		permits[i].Claim, _ = l.split(permits[i].Claim)
	}
	l.Ledger.Renew(permits)
}

// hostileTransport delays requests between the permit and the sending.
type hostileTransport struct {
	http.RoundTripper
	run *hostileRun
}

// RoundTrip implements http.RoundTripper.
func (h *hostileTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	call := h.run.call(r.UserAgent())
	call.mu.Lock()
	call.began = time.Now()
	call.mu.Unlock()
	if dial := h.run.Upstream.Dial; dial > 0 {
		if err := sleep(r.Context(), rand.N(dial)); err != nil {
			return nil, err
		}
	}
	return h.RoundTripper.RoundTrip(r)
}

// respond passes a request to the hostile upstream, and sends its response.
func (h *hostileRun) respond(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // otherwise net/http does not detect a disconnect over HTTP/1.1
	call := h.call(r.UserAgent())
	if call.gone != nil { // the upstream must know when the client leaves
		<-call.gone
	}
	call.mu.Lock()
	request := limitstest.Request{
		Claim: call.claim, Granted: call.granted, Expected: call.claim.CPU, Timeout: time.Until(call.began.Add(h.Timeout)),
		Lag: 2*time.Second + 3*h.LedgerLatency,
	}
	if !call.left.IsZero() {
		request.Timeout = min(request.Timeout, time.Until(call.left))
	}
	call.mu.Unlock()
	request.Timeout = max(0, request.Timeout)
	rng := rand.New(rand.NewPCG(h.Seed, rand.Uint64()))
	select {
	case <-r.Context().Done():
	case response := <-h.upstream.Send(request, rng):
		if response != nil {
			h.write(w, r, call, response, rng)
			return
		}
		switch rng.IntN(4) {
		case 0:
			if h.Upstream.StallOdds == 0 { // all work ends within ten seconds of a loss
				h.cut()
			}
		case 1:
			<-r.Context().Done() // the response never arrives
		}
		panic(http.ErrAbortHandler) // the response is lost with its stream or connection
	}
}

// write sends a response.
func (h *hostileRun) write(w http.ResponseWriter, r *http.Request, call *hostileCall, response *limitstest.Response, rng *rand.Rand) {
	call.mu.Lock()
	call.response = response
	call.mu.Unlock()
	graphQL := strings.HasSuffix(r.URL.Path, "/graphql")
	status, body := http.StatusOK, `{"login":"octocat"}`
	if graphQL {
		body = `{"data":{"viewer":{"login":"octocat"}}}`
		if response.Cost > 0 {
			body = fmt.Sprintf(`{"data":{"viewer":{"login":"octocat"},"rateLimit":{"cost":%d}}}`, response.Cost)
		}
	}
	header := w.Header()
	header["Date"] = nil
	if rate := response.Rate; rate.Limit != 0 {
		setRate(header, rate.Resource, rate.Limit, rate.Used, rate.Reset)
		if !rate.Date.IsZero() {
			header.Set("Date", rate.Date.UTC().Format(http.TimeFormat))
		}
	}
	refused := []int{http.StatusForbidden, http.StatusTooManyRequests}
	switch {
	case response.Failed:
		status, body = []int{500, 502, 503, 504}[rng.IntN(4)], "<html>"
	case response.Limited == policy.LimitPrimary && graphQL && response.Rate.Limit != 0 && rng.IntN(2) == 0:
		body = `{"errors":[{"type":"RATE_LIMITED","message":"API rate limit exceeded."}]}`
	case response.Limited == policy.LimitPrimary:
		status, body = refused[rng.IntN(2)], `{"message":"API rate limit exceeded."}`
	case response.Limited == policy.LimitSecondary:
		status, body = refused[rng.IntN(2)], `{"message":"You have exceeded a secondary rate limit."}`
	}
	if response.RetryAfter > 0 {
		header.Set("Retry-After", strconv.Itoa(int(response.RetryAfter/time.Second)))
	}
	if rng.IntN(20) == 0 {
		header.Set("Connection", "close") // over HTTP/2, the server sends GOAWAY
	}
	if rng.IntN(2) == 0 {
		header.Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(status)
	if response.Body > 0 {
		_, _ = io.WriteString(w, body[:1])
		_ = http.NewResponseController(w).Flush()
		body = body[1:]
		if sleep(r.Context(), response.Body) != nil {
			return
		}
		if response.Aborted {
			call.leave()
			<-r.Context().Done()
			return
		}
	}
	_, _ = io.WriteString(w, body)
}

// hostileClient sends requests for one account through one replica.
type hostileClient struct {
	*hostileRun
	*world
	http     *http.Client
	rng      *rand.Rand
	account  string
	name     string
	share    int
	priority policy.Priority
	rhythm   int
	maxWait  time.Duration
	weights  []int
}

// client returns a client with a random behaviour.
func (h *hostileRun) client(w *world, replica, account int, rng *rand.Rand) *hostileClient {
	c := &hostileClient{hostileRun: h, world: w, http: w.client, rng: rng, account: hostileAccount(account)}
	c.name, c.share = fmt.Sprintf("client %d of %d", rng.IntN(1000), replica), 1+rng.IntN(5)
	c.priority = []policy.Priority{policy.Normal, policy.Interactive, policy.Batch}[rng.IntN(3)]
	c.rhythm, c.maxWait = rng.IntN(3), rand.N(2*h.Rules.Points.Window)
	for range hostileOperations {
		c.weights = append(c.weights, rng.IntN(4)*rng.IntN(4))
	}
	c.weights[0]++
	if h.Weights != nil {
		c.weights = h.Weights[:len(hostileOperations)]
	}
	if h.Backlog {
		c.rhythm, c.priority = 0, policy.Normal
	}
	if h.protocol == http2 {
		c.http = w.http2Client()
	}
	return c
}

// hostileOperations are requests in the order of Scenario.Weights. %d is a number that no other request has.
var hostileOperations = []struct{ method, path, body string }{
	{"GET", "/users/octocat?n=%d", ""},
	{"GET", "/repos/acme/widgets/subscribers?n=%d", ""},
	{"PUT", "/repos/acme/widgets/subscription?n=%d", "{}"},
	{"POST", "/repos/acme/widgets/issues?n=%d", "{}"},
	{"GET", "/search/issues?q=%d", ""},
	{"GET", "/search/code?q=%d", ""},
	{"POST", "/graphql", `{"query":"query($n: Int) { viewer { login } rateLimit { cost } }","variables":{"n":%d}}`},
	{"POST", "/graphql", `{"query":"mutation { addStar(input: {starrableId: \"%d\"}) { clientMutationId } }"}`},
}

// loop sends requests until ctx ends.
func (c *hostileClient) loop(ctx context.Context) {
	for ctx.Err() == nil {
		switch c.rhythm {
		case 0: // without a pause
			c.send(ctx)
		case 1: // bursts
			for range 1 + c.rng.IntN(c.Burst) {
				seed := c.rng.Uint64()
				c.requests.Go(func() {
					burst := *c
					burst.rng = rand.New(rand.NewPCG(seed, 0))
					burst.send(ctx)
				})
			}
			_ = sleep(ctx, c.Rules.Points.Window)
		default:
			c.send(ctx)
			_ = sleep(ctx, rand.N(2*c.Gap))
		}
	}
}

// send sends one request, and pauses after a refusal.
func (c *hostileClient) send(until context.Context) {
	total := 0
	for _, w := range c.weights {
		total += w
	}
	pick, op := c.rng.IntN(total), 0
	for pick >= c.weights[op] {
		pick -= c.weights[op]
		op++
	}
	if c.Backlog && op == 7 {
		op = 6 // mutations create content, whose limit is lower
	}
	o := hostileOperations[op]
	ctx, leave := context.WithCancel(until)
	defer leave()
	call := &hostileCall{client: c, leave: leave}
	id := c.add(call)
	if c.rng.Float64() < c.leaving {
		if c.rng.IntN(2) == 0 {
			call.gone = make(chan struct{})
		} else {
			after := rand.N([]time.Duration{time.Microsecond, time.Second, c.maxWait + 1}[c.rng.IntN(3)])
			call.left = time.Now().Add(after)
			defer time.AfterFunc(after, leave).Stop()
		}
	}
	n, _ := strconv.Atoi(strings.TrimPrefix(id, "request/"))
	path, body := o.path, o.body
	if body == "" || !strings.Contains(body, "%d") {
		path = fmt.Sprintf(path, n)
	} else {
		body = fmt.Sprintf(body, n)
	}
	request := c.newRequest(ctx, o.method, c.origin()+path, strings.NewReader(body), "Authorization: "+c.account, "User-Agent: "+id)
	if !c.Backlog {
		request.Header.Set("Prefer", fmt.Sprint("wait=", int(c.maxWait/time.Second)))
	}
	resp, err := c.http.Do(request)
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode >= 400 {
		_ = sleep(until, 100*time.Millisecond+rand.N(2*time.Second))
	}
}

func (c *hostileClient) origin() string {
	if c.protocol == http2 {
		return "https://gateway.test"
	}
	return "http://gateway.test"
}

// http2Client returns a client that speaks HTTP/2 with TLS to the gateway.
func (w *world) http2Client() *http.Client {
	if w.secure == nil {
		front := testservers.ServePipeTLS(w.T, "gateway.test:443", &http.Server{Handler: w.gateway, MaxHeaderBytes: screen.MaxHeaderBytes})
		transport := &http.Transport{DialContext: front.Dial, TLSClientConfig: testservers.PipeClientTLS(), ForceAttemptHTTP2: true, DisableCompression: true}
		w.Cleanup(transport.CloseIdleConnections)
		w.secure = &http.Client{Transport: transport}
	}
	return w.secure
}
