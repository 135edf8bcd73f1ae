package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/inbound"
)

// Config is what a gateway is made of. All fields are required unless they say
// otherwise.
type Config struct {
	// Upstream is the API's base URL; a path prefix is kept.
	Upstream *url.URL
	// Timeout bounds the wait for response headers, and each pause within a
	// body, in either direction.
	Timeout time.Duration
	// BodyTimeout bounds the total time to read a request body; 0 has no bound.
	BodyTimeout time.Duration
	Catalogue   *policy.Catalogue
	Dialect     *policy.Dialect
	// Identify says who sends a request and with which credential it goes on.
	Identify func(*http.Request) (Identity, error)
	// RateLimiter, Shedder and Drain outlive the gateway. Nil values have no effect.
	RateLimiter    *inbound.RateLimiter
	Shedder        *inbound.Shedder
	Drain          *inbound.Drain
	TrustedProxies inbound.TrustedProxies
	Ledger         limits.Ledger
	// Limiter hands out the ledger's permits; it outlives a gateway.
	Limiter *limits.Limiter
	Cache   *cache.Store
	// Transport makes one wire attempt; see [NewTransport].
	Transport http.RoundTripper
	// Wait is how long a request queues unless its client says.
	Wait time.Duration
	// RefusalStatus is that of a limit refusal: 429 or 403.
	RefusalStatus int
	// RateLimitFields adds the IETF's RateLimit fields to the x-ratelimit ones.
	RateLimitFields bool
	Statistics      Statistics
	// Background runs what outlives its client; it outlives a gateway.
	Background *Background
	// Tracer makes the spans of a request's journey; nil makes none.
	Tracer trace.Tracer
	// LastRequests outlives a gateway. Nil is one of its own.
	LastRequests *LastRequests
	// Observe is told of each request when it has ended; nil tells nobody. It must not
	// wait.
	Observe func(*Record)
	Log     *slog.Logger
	// AccessLog selects the requests that are logged; empty is all.
	AccessLog AccessLog
}

// Identity is a caller, and how it shows itself to the upstream.
type Identity struct {
	Caller policy.Caller
	// Authorize puts the credential on an outbound request, or says why it cannot be
	// used: an [UnusableError], or the context's. Nil sends none.
	Authorize func(context.Context, http.Header) error
	// AuthorizeIsLocal is set where Authorize never waits.
	AuthorizeIsLocal bool
	// Scope is what the client may ask for; nil is everything.
	Scope *policy.Scope
	// Debug is set for a client that may ask, by Weir-Debug, what was made of its request.
	Debug bool
	// Heard is told what the upstream answered to the credential: the status of a request
	// that was sent at some time, 0 where none came. Nil where nobody wants to know.
	OnResponse func(op *policy.Operation, status int, sent time.Time)
	// Pick returns who of the same client pays for a question; where some have been tried
	// it may be nobody. Nil where there is no choice.
	Pick func(CredentialRequest) (Identity, bool)
	// Blind is told that the credential got 403 or 404, and whether another of the client's
	// got more. It goes with Pick.
	OnHidden func(w CredentialRequest, status int, seen bool)
}

// ErrUnauthenticated refuses a request that shows no credential where one is
// needed, or one that nobody knows.
var ErrUnauthenticated = errors.New("requires authentication")

// ErrIdentityUnavailable refuses a request whose sender cannot be known now, through
// no fault of its own: whom to ask does not answer.
var ErrIdentityUnavailable = errors.New("who sends this cannot be found out now")

// Gateway answers clients. It is safe for concurrent use.
type Gateway struct {
	Config
	buffers bufferPool
	// hitting are kept for requests that [Gateway.AnswerAtOnce] ends; what others need is made
	// anew, for who is behind them may look at it for longer than a request takes.
	hitting sync.Pool // of *hitting
	flights flights
	breaker breaker
	// digests is whether it is known how ETags are made.
	digests  trust
	reliance struct {
		sync.Mutex
		on map[string]*reliance // by operation
	}
	routes routeLabels
	last   *LastRequests
	// base is the upstream's URL in keys, forwarded the dialect's own request fields.
	base      string
	forwarded []string
	passes    map[string]bool // the request fields that go on
	// covered are the request fields that a key covers, whatever Vary says.
	covered []string
	reverse httputil.ReverseProxy // what those of all exchanges have in common
}

// New returns a gateway.
func New(c Config) *Gateway {
	g := &Gateway{Config: c, base: c.Upstream.String(), passes: map[string]bool{}}
	g.reverse = httputil.ReverseProxy{BufferPool: &g.buffers, ErrorLog: slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug)}
	g.covered = append([]string{"Accept", "Accept-Encoding", c.Dialect.VersionHeader}, c.Dialect.VaryByCredential...)
	if g.last = c.LastRequests; g.last == nil {
		g.last = &LastRequests{}
	}
	for _, name := range c.Dialect.Forward {
		g.forwarded = append(g.forwarded, http.CanonicalHeaderKey(name))
	}
	for _, name := range slices.Concat(forwarded, g.forwarded) {
		g.passes[name] = true
	}
	return g
}

// ServeHTTP is a request's journey (design section 2).
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ex := g.begin(w, r)
	defer g.finish(ex)

	var hit *cache.Entry
	err := g.throttle(ex)
	if err == nil {
		hit, err = g.decide(ex)
	}
	switch {
	case err != nil:
		g.refuse(ex, err)
	case hit != nil:
		g.replyFromEntry(ex, hit, time.Now())
	case g.answerFromLedger(ex):
	case g.answerFromCache(ex):
	case g.reconsider(ex) && g.answerFromCache(ex):
	default:
		g.wait(ex)
	}
}

// decide runs the checks that precede every answer, in order, and looks the question up
// in memory. It returns a fresh stored response that may be served without further checks,
// or nil. The error is the refusal for the client. Neither the upstream nor the shared
// cache is contacted. [Gateway.ServeHTTP] and the fast path share this sequence; both
// throttle the client themselves, because a request that the fast path does not answer
// must count only once.
func (g *Gateway) decide(ex *exchange) (hit *cache.Entry, err error) {
	if err := screen(ex.in); err != nil {
		return nil, err
	}
	if err := g.identify(ex); err != nil {
		return nil, err
	}
	if err := g.classify(ex); err != nil {
		return nil, err
	}
	if err := g.authorize(ex); err != nil {
		return nil, err
	}
	if err := g.preflight(ex); err != nil {
		return nil, err
	}
	if !ex.cacheable {
		return nil, nil
	}
	e, purged := g.Cache.Memory.Lookup(ex.key, ex.header)
	if now := time.Now(); e == nil || purged || ex.mustAsk(e, now) || !e.Fresh(now) || ex.mayBeBlind(e.Status) {
		return nil, nil
	}
	g.noteHeld(ex)
	return e, nil
}

// wait takes a request to where it waits: for the upstream, or for another one that asks
// the same. One too many gets what is held, however old, where it may.
func (g *Gateway) wait(ex *exchange) {
	if ex.shed = g.shed(ex.identity.Caller.Priority); ex.shed == nil {
		defer g.Shedder.Leave()
		if err := g.takeIn(ex); err != nil {
			g.refuse(ex, err)
			return
		}
	}
	if ex.body != nil && (ex.shed != nil || !ex.brings()) {
		ex.w.closes = true // nobody reads it, and what follows on the connection would be taken for it
	}
	g.forward(ex)
}

// forward sends the question through a ReverseProxy made for this exchange:
// its hooks are closures over x, so nothing of a request lives in shared state
// or in a context.
func (g *Gateway) forward(ex *exchange) {
	// The transport may still read the request's body, or look for its end,
	// when the answer has begun. Without this the server closes the body then,
	// the transport takes that for an error, and cuts the answer short.
	_ = http.NewResponseController(ex.w).EnableFullDuplex() // HTTP/2 has no need of it
	ex.detached = ex.detach()
	proxy := g.reverse
	proxy.Rewrite = func(p *httputil.ProxyRequest) { g.address(ex, p) }
	proxy.Transport = roundTripper(func(out *http.Request) (*http.Response, error) {
		// Beside hooks of our own its one would be called by a function that reflection
		// makes anew each time.
		ex.interim = httptrace.ContextClientTrace(out.Context()).Got1xxResponse
		if ex.shed != nil {
			return g.insteadOf(ex, ex.shed)
		}
		return g.answerByAny(ex, out.WithContext(ex.in.Context()))
	})
	proxy.ModifyResponse = func(resp *http.Response) error {
		if len(resp.Trailer) > 0 {
			// HTTP/1.1 has room for one of them; trailers need chunks.
			resp.Header.Del("Content-Length")
		}
		h := ex.w.Header()
		maps.Copy(h, resp.Header) // the proxy would copy them one by one
		resp.Header = nil
		g.finishHeader(ex, h)
		resp.Body = &passedBody{resp.Body, ex}
		return nil
	}
	proxy.ErrorHandler = func(_ http.ResponseWriter, _ *http.Request, err error) { g.refuse(ex, ex.bodyFault(err)) }
	bare := *ex.in // its fields are not what is sent, and need not be copied for that
	bare.Header = nil
	proxy.ServeHTTP(ex.w, &bare)
}

// passedBody notes when it is not the client's fault that it does not get all of an
// answer.
type passedBody struct {
	io.ReadCloser
	ex *exchange
}

func (b *passedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF && b.ex.in.Context().Err() == nil {
		b.ex.brokenOff(err)
	}
	return n, err
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Bounds of what a client may send beside its body. The server's own bound on
// headers must lie above maxHeader, so that the answer is ours.
const (
	maxTarget = 8 << 10
	maxHeader = 32 << 10
)

// MaxHeaderBytes is for the http.Server in front of a gateway.
const MaxHeaderBytes = 2 * maxHeader

// screen refuses what is not HTTP for us (journey, step 1). What cannot be
// parsed at all net/http has refused before.
func screen(r *http.Request) error {
	switch {
	case r.Method == http.MethodConnect, r.Method == http.MethodTrace:
		return &failure{status: http.StatusMethodNotAllowed, message: "Method Not Allowed: " + r.Method, allow: "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"}
	case len(r.RequestURI) > maxTarget:
		return &failure{status: http.StatusRequestURITooLong, message: "URI Too Long: at most 8 KiB"}
	case headerSize(r.Header) > maxHeader:
		return &failure{status: http.StatusRequestHeaderFieldsTooLarge, message: "Request Header Fields Too Large: at most 32 KiB"}
	case r.URL.IsAbs() && !isLocal(r):
		return &failure{status: http.StatusBadRequest, message: "Bad Request: Weir is not a forward proxy; send the path alone"}
	case strings.HasPrefix(r.URL.EscapedPath(), ownPaths):
		return &failure{status: http.StatusNotFound, message: "Not Found: Weir has nothing at this path"}
	}
	return nil
}

// ownPaths are Weir's own, never sent upstream.
const ownPaths = "/_weir/"

func headerSize(h http.Header) int {
	size := 0
	for name, values := range h {
		for _, value := range values {
			size += len(name) + len(value) + len(": \r\n")
		}
	}
	return size
}

// isLocal reports whether an absolute-form target names the address at which
// the request came in.
func isLocal(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok || r.URL.User != nil {
		return false
	}
	host, port, err := net.SplitHostPort(local.String())
	if err != nil {
		return false
	}
	return r.URL.Host == net.JoinHostPort(host, port) || r.URL.Host == "localhost:"+port
}

func (g *Gateway) identify(ex *exchange) error {
	who, err := g.Identify(ex.in)
	ex.identity = who
	ex.record.Account, ex.record.Client = who.Caller.Account, who.Caller.Client
	return err
}

// authorize refuses what the client may not ask for (journey, after step 3),
// before cache, budgets and upstream have a part in it.
func (g *Gateway) authorize(ex *exchange) error {
	if ex.identity.Scope.Allows(ex.method, ex.match.Operation) {
		return nil
	}
	call := methodLabel(ex.method) + " " + ex.match.Operation.ID
	return &failure{
		status: http.StatusForbidden, detail: "scope",
		message: fmt.Sprintf("Forbidden: this gateway does not let its client %q call %s", ex.identity.Caller.Client, call),
	}
}

// begin opens the exchange of a client's request, its record and its span.
func (g *Gateway) begin(w http.ResponseWriter, r *http.Request) *exchange {
	ex := g.open(w, r)
	g.traceRequest(ex)
	return ex
}

// open makes an exchange.
func (g *Gateway) open(w http.ResponseWriter, r *http.Request) *exchange {
	ex := &exchange{w: newRecorder(w, r, g.Timeout, g.Drain), start: time.Now()}
	ex.waitingSince = ex.start
	ex.in, ex.body = inbound.LimitBody(w, r, g.Timeout, g.BodyTimeout)
	ex.record = Record{ID: newRequestID(), Start: ex.start, Method: methodLabel(r.Method), Route: otherRoute}
	ex.prefer = parsePrefer(r.Header["Prefer"])
	return ex
}

// finish closes the record and writes the access line. A panic is answered
// with 500 where that is still possible; the one by which a broken body breaks
// the client's connection passes on.
func (g *Gateway) finish(ex *exchange) {
	p := recover()
	defer ex.body.Detach()
	defer ex.taken.end()
	broken, _ := p.(error)
	if p != nil && !errors.Is(broken, http.ErrAbortHandler) {
		g.Log.ErrorContext(ex.detach(), "panic in a request", "request", ex.record.ID, "panic", p, "stack", string(debug.Stack()))
		if !ex.w.wrote() {
			g.refuse(ex, &failure{status: http.StatusInternalServerError, message: "Internal Server Error"})
			p = nil
		}
	}
	ex.record.Status, ex.record.Bytes = ex.w.status, ex.w.bytes
	ex.record.Elapsed = time.Since(ex.start)
	if p != nil || errors.Is(context.Cause(ex.in.Context()), context.Canceled) && !ex.w.wrote() {
		ex.record.Status = statusClientGone
		if ex.broken {
			ex.record.Status = http.StatusBadGateway
		}
	}
	ex.conclude()
	g.endTrace(ex)
	g.last.add(ex.record)
	if g.Observe != nil {
		g.Observe(&ex.record)
	}
	g.logAccess(ex)
	if p != nil && !ex.record.Background { // there is no server to take it, nor a client to break with
		panic(http.ErrAbortHandler)
	}
}

// statusClientGone is logged when the client did not wait for the answer, or not for all
// of it. Where it was the upstream that broke off 502 is, whatever the client was told
// before.
const statusClientGone = 499
