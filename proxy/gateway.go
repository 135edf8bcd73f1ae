// Package proxy forwards API requests from clients to one upstream, through the cache and the limits. Package policy
// describes the operations of the upstream.
//
// [Gateway.ServeHTTP] is the entry point. A hit runs these functions in order:
//   - gateway.go: ServeHTTP, check
//   - exchange.go: classify
//   - credentials.go: pickCredential, useCredential
//   - exchange.go: setKey
//   - lookup.go: answerFromCache, usableEntry, with isCurrent of events.go
//   - reply.go: replyFromEntry
//   - gateway.go: finish
//
// A miss runs these functions after usableEntry:
//   - credentials.go: pickByBudget
//   - upload.go: bufferSmallBody
//   - gateway.go: forward, with checkOwn of rewrite.go
//   - credentials.go: answerWithAny
//   - upstream.go: answer
//   - coalesce.go: coalesce, lead, fetchForFleet, with coalesce/call.go and coalesce/lease.go
//   - upstream.go: fetch, sendWithRetries
//   - tokens.go: beginToken
//   - upstream.go: acquire, which runs awaitCredential of credentials.go, admit, and prepare with setConditions of proof.go
//   - transport.go: send, with recognizeLimit of upstream.go
//   - upstream.go: settle
//   - credentials.go: endCredentialUse
//   - store.go: store, or for a 304 notModified, with confirmed of proof.go
//   - coding.go: encode
//   - gateway.go: finish
//
// refusal.go writes all error bodies. tags.go derives the tags of responses, by which [cache.Store.Purge] finds them.
//
// An exchange is one client request in progress. The question of an exchange is the upstream request. The cache key and
// background tasks are made from the question.
//
// Invariants:
//   - The cache key is made from the same question that is sent.
//   - No request is sent upstream without a permit, and every permit is settled.
//   - A response reaches another client only through the cache, under the key of that client's security class.
//   - The request fields of known operations are forwarded by an allow-list.
//   - Every forwarded request field that may change a response is part of the cache key.
//   - The credential is set last and is sent to the upstream only. A request with a key of this gateway in its target or
//     in a forwarded field is refused.
package proxy

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/time/rate"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/inbound"
)

// Config configures a gateway. All fields are required unless documented otherwise.
type Config struct {
	// Upstream is the base URL of the API, and may have a path prefix.
	Upstream *url.URL
	// Prefix is a path prefix by which clients reach the upstream at the gateway's own address, such as /api/uploads.
	// Empty means the root.
	Prefix string
	// Host names an upstream beside the API in the routes of records. Empty means the API.
	Host string
	// Instance is a unique name of this process, by which it recognizes requests that return in a loop. If empty, New
	// makes a name.
	Instance string
	// Timeout bounds the wait for response headers, and each pause within a body in either direction.
	Timeout time.Duration
	// BodyTimeout bounds the total time to read a request body; 0 has no bound.
	BodyTimeout time.Duration
	Catalogue   *policy.Catalogue
	Dialect     *policy.Dialect
	// Identify returns the caller of a request. The errors include ErrUnauthenticated and ErrIdentityUnavailable.
	Identify func(*http.Request) (Identity, error)
	// HoldsOwn reports whether a text that would be sent upstream contains a key or a token for this gateway. r is the
	// client's request. Nil checks nothing.
	HoldsOwn func(r *http.Request, text string) bool
	// RateLimiter, Shedder and Drain outlive the gateway. Nil values have no effect.
	RateLimiter    *inbound.RateLimiter
	Shedder        *inbound.Shedder
	Drain          *inbound.Drain
	TrustedProxies inbound.TrustedProxies
	Ledger         limits.Ledger
	// Limiter grants the permits of Ledger and outlives the gateway.
	Limiter *limits.Limiter
	Cache   *cache.Store
	// ETags selects the ETags that prove access; empty means [ETagsComputed].
	ETags ETags
	// WebhookFresh bounds the use of a response without revalidation while webhooks report its changes; 0 disables it.
	WebhookFresh time.Duration
	// GraphQLCache has the rules that store responses to GraphQL queries.
	GraphQLCache policy.GraphQLCache
	// Transport makes one attempt; see [NewTransport].
	Transport http.RoundTripper
	// Wait is the maximum queue time of a request without a Prefer field.
	Wait time.Duration
	// RefusalStatus is the status of a limit refusal: 429 or 403.
	RefusalStatus int
	// RateLimitFields adds the RateLimit fields of the IETF to the x-ratelimit fields.
	RateLimitFields bool
	Statistics      Statistics
	// Background runs work that continues after a client's disconnect. Background outlives the gateway.
	Background *Background
	// Tracer starts the spans of requests. Nil disables tracing.
	Tracer trace.Tracer
	// PropagateTrace sends the trace context (W3C Trace Context) to the upstream.
	PropagateTrace bool
	// Resources contains the resources that the upstream named. If nil, New creates an empty list.
	Resources *Resources
	// Tokens contains the credentials that the upstream accepted or refused. If nil, New creates an empty list.
	Tokens *ClientTokens
	// Identities contains the users and installations that the upstream named. If nil, New creates an empty list.
	Identities *Identities
	// AccountOf returns the account of a token that a client sends. It is nil if clients do not send their own tokens.
	AccountOf func(token string) string
	// Observe is called once with the record of each finished request, which does not change any more. Observe must not
	// block. Nil is allowed.
	Observe func(*Record)
	Log     *slog.Logger
}

// Gateway is the handler for API requests and is safe for concurrent use.
type Gateway struct {
	Config
	breaker breaker
	// linkIn304 contains the operations whose 304s repeat the Link field. etagWarning limits the rate of warnings about
	// computed ETags.
	linkIn304   sync.Map
	etagWarning rate.Sometimes
	tokens      *ClientTokens
	// base is the upstream's URL in cache keys. dialectFields are the request fields that the dialect adds to cache
	// keys.
	base          string
	via           []string // the Via value that is added to requests
	dialectFields []string
	forwardable   map[string]bool // request fields that are forwarded
	// covered are the request fields that a Vary field may name without creating a variant. The cache key contains the
	// field or the security class, or the gateway sends a fixed value (Accept-Encoding).
	covered []string
	reverse httputil.ReverseProxy
}

// New returns a gateway.
func New(c Config) *Gateway {
	g := &Gateway{Config: c, base: c.Upstream.String(), forwardable: map[string]bool{}}
	g.Resources = cmp.Or(c.Resources, &Resources{})
	g.Identities = cmp.Or(c.Identities, &Identities{})
	g.tokens = cmp.Or(c.Tokens, &ClientTokens{})
	g.via = []string{"1.1 weir-" + cmp.Or(c.Instance, rand.Text())}
	g.etagWarning.Interval = time.Hour
	g.reverse = httputil.ReverseProxy{BufferPool: &bufferPool{}, ErrorLog: slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug)}
	g.covered = append([]string{"Accept", "Accept-Encoding", c.Dialect.VersionHeader}, c.Dialect.VaryByCredential...)
	if g.Tracer == nil {
		g.Tracer = noop.Tracer{}
	}
	for _, name := range c.Dialect.Forward {
		g.dialectFields = append(g.dialectFields, http.CanonicalHeaderKey(name))
	}
	for _, name := range slices.Concat(forwardedFields, g.dialectFields) {
		g.forwardable[name] = true
	}
	return g
}

// ServeHTTP handles one client request.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ex := g.open(w, r)
	g.traceRequest(ex)
	defer g.finish(ex)

	err := g.throttle(ex)
	if err == nil {
		err = g.check(ex)
	}
	if err == nil && ex.body != nil && !ex.forwardsBody() {
		err = ex.discardBody()
	}
	switch {
	case err != nil:
		g.refuse(ex, err)
		return
	case g.answerFromLedger(ex), g.answerFromCache(ex):
		return
	case g.pickByBudget(ex) && g.answerFromCache(ex): // the cache may have an entry for another credential
		return
	}

	// The request must wait for the upstream or for a coalesced call. An overloaded gateway forwards no requests, but
	// may serve stale responses.
	if ex.shed = g.shed(ex.identity.Caller.Priority); ex.shed == nil {
		defer g.Shedder.Leave()
		if err := g.bufferSmallBody(ex); err != nil {
			g.refuse(ex, err)
			return
		}
	}
	if ex.body != nil && (ex.shed != nil || !ex.forwardsBody()) {
		ex.w.closes = true // net/http or another program could parse bytes of the body as the next request
	}
	g.forward(ex)
}

// check screens, identifies, classifies and authorizes the request, and builds the question. The error is the refusal
// for the client.
func (g *Gateway) check(ex *exchange) (err error) {
	if err := g.screen(ex.in); err != nil {
		return err
	}
	ex.identity, err = g.Identify(ex.in)
	caller := ex.identity.Caller
	ex.record.Account, ex.record.Client = caller.Account, caller.Client
	if err != nil {
		return err
	}
	if ex.tag, err = requestTagOf(ex.identity, ex.in.Header); err != nil {
		return err
	}
	ex.record.Tag = ex.tag
	if err := g.classify(ex); err != nil {
		return err
	}
	if op := ex.match.Operation; !ex.identity.Scope.Allows(ex.method, op) {
		return &failure{
			status: http.StatusForbidden, detail: "scope",
			message: fmt.Sprintf("Forbidden: this gateway does not let its client %q call %s %s",
				caller.Client, methodLabel(ex.method), op.ID),
		}
	}
	if err := ex.checkGraphQL(); err != nil {
		return err
	}
	if err := g.checkToken(ex); err != nil {
		return err
	}
	ex.authorized = true
	if f := ex.match.Preflight(ex.identity.Caller.Kind); f != nil { // the upstream would certainly refuse the request
		return &failure{status: f.Status, finding: f, message: f.Message, detail: f.Check}
	}
	if invalid := (*policy.GraphQLError)(nil); errors.As(ex.invalid, &invalid) && invalid.Type != policy.GraphQLParseError {
		return &failure{status: http.StatusOK, graphQL: invalid, message: invalid.Message, detail: "graphql"}
	}
	return nil
}

// checkGraphQL checks a GraphQL call against the rules of the client.
func (ex *exchange) checkGraphQL() error {
	if ex.graphQL == nil || ex.identity.Scope == nil || !ex.identity.Scope.GraphQL.Restricts() {
		return nil
	}
	if ex.match.Query != "" {
		return &failure{status: http.StatusForbidden, message: "Forbidden: send the GraphQL query in the body; this client may not have a query in the URL", detail: "scope"}
	}
	var forbidden *policy.GraphQLError
	if errors.As(ex.identity.Scope.GraphQL.Check(ex.graphQL), &forbidden) {
		return &failure{status: http.StatusForbidden, graphQL: forbidden, message: forbidden.Message, detail: "scope"}
	}
	return nil
}

// forward sends the question through an [httputil.ReverseProxy]. The hooks are closures over the exchange, so neither
// shared structures nor a context contain state of the request.
func (g *Gateway) forward(ex *exchange) {
	if err := g.checkOwn(ex); err != nil {
		g.refuse(ex, err)
		return
	}
	// The transport may still read the request body after the start of the response. Without full duplex, net/http
	// would close that body, and the response would be truncated. HTTP/2 is always full duplex and returns an error
	// here.
	_ = http.NewResponseController(ex.w).EnableFullDuplex()
	var body io.Closer // of the response
	returned := false
	defer func() {
		if !returned && body != nil {
			_ = body.Close() // after a panic, so that the permit is released
		}
	}()
	proxy := g.reverse
	proxy.Rewrite = func(p *httputil.ProxyRequest) {
		out := p.Out
		out.URL, out.Host = g.target(ex.match), ""
		out.Header = maps.Clone(ex.header) // prepare sets the credential after the permit
		if ex.method == http.MethodGet || ex.method == http.MethodHead {
			out.Body, out.ContentLength, out.TransferEncoding = nil, 0, nil
			return
		}
		out.Trailer = nil
		g.addTrailers(ex, out)
	}
	proxy.Transport = roundTripper(func(out *http.Request) (*http.Response, error) {
		// send calls the hook from the httptrace of each attempt.
		pass := httptrace.ContextClientTrace(out.Context()).Got1xxResponse
		ex.interim = func(status int, header textproto.MIMEHeader) error {
			return pass(status, textproto.MIMEHeader(g.interimFields(ex, http.Header(header))))
		}
		if ex.shed != nil {
			return g.staleOr(ex, ex.shed)
		}
		resp, err := g.answerWithAny(ex, out.WithContext(ex.in.Context()))
		if err == nil {
			body = resp.Body
		}
		return resp, err
	})
	proxy.ModifyResponse = func(resp *http.Response) error {
		ex.encode(resp)
		if g.filterResponse(ex.match.Operation, resp.Trailer); len(resp.Trailer) > 0 {
			resp.Header.Del("Content-Length") // HTTP/1.1 needs chunks for trailers
		}
		h := ex.w.Header()
		maps.Copy(h, resp.Header)
		resp.Header = nil // the ReverseProxy would copy the header again
		g.finishHeader(ex, h)
		resp.Body = &forwardedBody{resp.Body, ex, func() { g.filterResponse(ex.match.Operation, resp.Trailer) }}
		return nil
	}
	proxy.ErrorHandler = func(_ http.ResponseWriter, _ *http.Request, err error) { g.refuse(ex, ex.bodyFault(err)) }
	bare := *ex.in
	bare.Header = nil // Rewrite sets the fields, so the ReverseProxy need not copy them
	proxy.ServeHTTP(ex.w, &bare)
	returned = true
}

// forwardedBody records an error of the upstream's body. A disconnect of the client is not recorded.
type forwardedBody struct {
	io.ReadCloser
	ex             *exchange
	filterTrailers func()
}

func (b *forwardedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.filterTrailers() // net/http has set them
	}
	if ex := b.ex; err != nil && err != io.EOF && ex.in.Context().Err() == nil {
		ex.broken, ex.record.Error = true, "upstream body ended early: "+err.Error()
		ex.record.Cache.Stored, ex.record.Cache.HasTTL = false, false
	}
	return n, err
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// These constants bound the size of a request without its body. The bound of the server must exceed maxHeader, so that
// the gateway writes the refusal.
const (
	maxTarget = 8 << 10
	maxHeader = 32 << 10
)

// MaxHeaderBytes is the setting for the [http.Server] of a gateway.
const MaxHeaderBytes = 2 * maxHeader

// isOwnPath reports whether a decoded path is one of Weir's own paths, also below the prefix of the API. Requests for
// these paths are never forwarded.
func isOwnPath(path string) bool {
	path = strings.TrimPrefix(path, EnterprisePrefix)
	return path == "/_weir" || strings.HasPrefix(path, "/_weir/")
}

// screen refuses requests that the gateway does not handle.
func (g *Gateway) screen(r *http.Request) error {
	switch {
	case r.Method == http.MethodConnect, r.Method == http.MethodTrace:
		return &failure{
			status: http.StatusMethodNotAllowed, message: "Method Not Allowed: " + r.Method,
			allow: "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS",
		}
	case len(r.RequestURI) > maxTarget:
		return &failure{status: http.StatusRequestURITooLong, message: "URI Too Long: at most 8 KiB"}
	case headerSize(r.Header) > maxHeader:
		return &failure{status: http.StatusRequestHeaderFieldsTooLarge, message: "Request Header Fields Too Large: at most 32 KiB"}
	case r.URL.IsAbs() && !isLocal(r):
		return &failure{status: http.StatusBadRequest, message: "Bad Request: this listener is not a forward proxy; send the path alone, or use the address of proxy.listen"}
	case isOwnPath(r.URL.Path), isOwnPath(strings.TrimPrefix(r.URL.Path, g.Prefix)):
		return &failure{status: http.StatusNotFound, message: "Not Found: Weir has nothing at this path"}
	case g.Host == "" && isGit(r):
		return &failure{
			status: http.StatusMisdirectedRequest, detail: "git", plain: true,
			message: "Weir serves the API, not git. Use the URL of the git host, directly or through Weir's forward proxy (docs/proxy.md).",
		}
	case g.hasPassed(r):
		return &failure{status: http.StatusLoopDetected, detail: "loop", message: "Loop Detected: the upstream forwards to this gateway"}
	}
	return nil
}

// isGit reports whether a request is of git over HTTP (gitprotocol-http) or of Git LFS. The API has no such paths.
func isGit(r *http.Request) bool {
	path, post := r.URL.Path, r.Method == http.MethodPost
	return strings.HasSuffix(path, "/info/refs") && strings.HasPrefix(r.URL.Query().Get("service"), "git-") ||
		post && strings.HasSuffix(path, "/git-upload-pack") || post && strings.HasSuffix(path, "/git-receive-pack") ||
		strings.Contains(path, ".git/info/lfs/") && !strings.HasPrefix(path, "/repos/")
}

func headerSize(h http.Header) int {
	size := 0
	for name, values := range h {
		for _, value := range values {
			size += len(name) + len(value) + len(": \r\n")
		}
	}
	return size
}

// isLocal reports whether an absolute-form target names the address that received the request.
func isLocal(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok || r.URL.User != nil {
		return false
	}
	_, port, err := net.SplitHostPort(local.String())
	return err == nil && (r.URL.Host == local.String() || r.URL.Host == "localhost:"+port)
}

// open returns a new exchange.
func (g *Gateway) open(w http.ResponseWriter, r *http.Request) *exchange {
	ex := &exchange{w: newRecorder(w, r, g.Timeout, g.Drain), start: time.Now(), span: noop.Span{}}
	ex.waitingSince = ex.start
	ex.in, ex.body = inbound.LimitBody(w, r, g.Timeout, g.BodyTimeout)
	ex.record = Record{ID: rand.Text(), Start: ex.start, Method: methodLabel(r.Method), Route: otherRoute, Upstream: g.Upstream.Hostname()}
	ex.prefer = parsePrefer(r.Header["Prefer"])
	return ex
}

// statusClientGone is the recorded status if the client disconnected before the end of the response.
const statusClientGone = 499

// finish completes and traces the record of the exchange, and calls Observe. After a panic, finish responds with
// 500 if no response has begun. Otherwise finish panics with [http.ErrAbortHandler], so that the client sees an
// incomplete response. An exchange without a response ends in the same way, because net/http would respond with 200.
func (g *Gateway) finish(ex *exchange) {
	p := recover()
	defer ex.body.Detach()
	defer ex.buffered.release()
	if ex.leave != nil {
		defer func() {
			if ex.body == nil { // net/http resets a stream with an unread body
				ex.w.flush(ex.in)
			}
			ex.leave(ex.address)
		}()
	}
	if err, _ := p.(error); p != nil && !errors.Is(err, http.ErrAbortHandler) {
		g.Log.ErrorContext(ex.detach(), "panic in a request", "request", ex.record.ID, "panic", p, "stack", string(debug.Stack()))
		if ex.w.status == 0 {
			g.refuse(ex, &failure{status: http.StatusInternalServerError, message: "Internal Server Error"})
			p = nil
		}
	}
	ex.record.Status, ex.record.Bytes = ex.w.status, ex.w.bytes
	ex.record.Elapsed = time.Since(ex.start)
	if p != nil || errors.Is(context.Cause(ex.in.Context()), context.Canceled) && ex.w.status == 0 {
		ex.record.Status = statusClientGone
		if ex.broken {
			ex.record.Status = http.StatusBadGateway // the record has 502, although the client got another status
		}
	}
	ex.conclude()
	g.endTrace(ex)
	if g.Observe != nil {
		record := ex.record // an observer must not keep the exchange in memory
		g.Observe(&record)
	}
	if (p != nil || ex.w.status == 0) && !ex.record.Background { // a background task has no client
		ex.w.showAbort(ex.in, ex.broken)
		panic(http.ErrAbortHandler)
	}
}
