package proxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/caller"
	"github.com/weirgate/weir/proxy/record"
	"github.com/weirgate/weir/proxy/screen"
	"github.com/weirgate/weir/proxy/wire"
)

// world is a gateway with a client and an upstream. Servers, transport and client are real, but use net.Pipe
// connections, so that synctest can use virtual time.
type world struct {
	*testing.T
	gateway *Gateway
	client  *http.Client
	dial    func() net.Conn // a raw connection to the gateway
	// dialHalves returns a raw connection whose directions can be closed alone.
	dialHalves func() *testservers.HalfPipe
	seen       *requestLog
	records    *recordLog
	secure     *http.Client // see http2Client
}

// Protocols of an upstream: HTTP/1.1 without TLS, and HTTP/2 with TLS, as the real API speaks it.
const (
	http1 = "http1"
	http2 = "http2"
)

// upstreamProtocol is the protocol of the upstream in most tests, which WEIR_TEST_UPSTREAM chooses. Tests of the framing
// of HTTP/1.1 use [newHTTP1World] or a raw upstream.
var upstreamProtocol = cmp.Or(os.Getenv("WEIR_TEST_UPSTREAM"), http2)

// serveUpstream starts an upstream, and returns a transport to this upstream.
func serveUpstream(t *testing.T, protocol string, handler http.Handler) http.RoundTripper {
	transport := wire.NewTransport()
	t.Cleanup(transport.CloseIdleConnections)
	switch protocol {
	case http1:
		transport.DialContext = testservers.ServePipe(t, "upstream.test:80", &http.Server{Handler: handler}).Dial
		return transport
	case http2:
		transport.DialContext = testservers.ServePipeTLS(t, "upstream.test:443", &http.Server{Handler: handler}).Dial
		return secured(transport)
	}
	t.Fatalf("WEIR_TEST_UPSTREAM: %q is no protocol; use http1 or http2", protocol)
	return nil
}

// secureTransport sends all requests with TLS. The URL of the upstream has the scheme http, so that the URLs in the tests
// are the same with both protocols.
type secureTransport struct{ *http.Transport }

// secured returns a secureTransport that trusts the certificates of pipes.
func secured(transport *http.Transport) secureTransport {
	transport.TLSClientConfig = testservers.PipeClientTLS()
	transport.TLSClientConfig.CurvePreferences = []tls.CurveID{tls.X25519} // the fastest, because most tests have a new connection
	return secureTransport{transport}
}

// transportOf returns the transport of a world.
func transportOf(c *Config) *http.Transport {
	if s, ok := c.Transport.(secureTransport); ok {
		return s.Transport
	}
	return c.Transport.(*http.Transport)
}

// RoundTrip implements http.RoundTripper.
func (s secureTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	secure, target := *r, *r.URL
	target.Scheme, secure.URL = "https", &target
	return s.Transport.RoundTrip(&secure)
}

// requestLog has the requests that reached the upstream.
type requestLog struct {
	mu   sync.Mutex
	list []*http.Request
}

func (s *requestLog) add(r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, r.Clone(context.Background()))
}

func (s *requestLog) all() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*http.Request(nil), s.list...)
}

const upstreamURL = "http://upstream.test/base"

// option changes a world before it starts.
type option func(*Config)

// newWorld starts a gateway in front of an upstream handler. Requests reach the handler without the path prefix of
// upstreamURL.
func newWorld(t *testing.T, upstream http.HandlerFunc, options ...option) *world {
	t.Helper()
	return newWorldOver(t, upstreamProtocol, upstream, options...)
}

// newHTTP1World starts a gateway whose upstream speaks HTTP/1.1, for tests of features that only HTTP/1.1 has.
func newHTTP1World(t *testing.T, upstream http.HandlerFunc, options ...option) *world {
	t.Helper()
	return newWorldOver(t, http1, upstream, options...)
}

// worldSetup is an upstream and the options of a world.
type worldSetup struct {
	upstream http.HandlerFunc
	options  []option
}

// setup returns the description of a world for run and sub.
func setup(upstream http.HandlerFunc, options ...option) worldSetup {
	return worldSetup{upstream, options}
}

// run runs a test with virtual time in a new world.
func (s worldSetup) run(t *testing.T, test func(*world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(newWorld(t, s.upstream, s.options...)) })
}

// sub runs a subtest with virtual time in a new world.
func (s worldSetup) sub(t *testing.T, name string, test func(*world)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { s.run(t, test) })
}

// bubble runs a subtest with virtual time.
func bubble(t *testing.T, name string, test func(*testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

func newWorldOver(t *testing.T, protocol string, upstream http.HandlerFunc, options ...option) *world {
	t.Helper()
	// The last cleanup: net/http closes a connection with an incomplete body after half a second of virtual time.
	t.Cleanup(func() { time.Sleep(time.Second) })
	seen := &requestLog{}
	transport := serveUpstream(t, protocol, http.StripPrefix("/base", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.add(r)
		upstream(w, r)
	})))
	base := testservers.Must(url.Parse(upstreamURL))
	dialect := testservers.Must(policy.LoadDialect("service"))
	memory := cache.NewMemory(64 << 20)
	ledger := limits.NewMemory(limits.Rules{Limits: policy.DefaultLimits()})
	config := Config{
		Upstream: base, Timeout: 30 * time.Second, Catalogue: policy.Embedded(), Dialect: dialect,
		Identify: identifyByToken, Ledger: ledger, Limiter: limits.NewLimiter(ledger), Cache: cache.NewStore(memory, nil),
		Transport: transport, Wait: 10 * time.Second, RefusalStatus: http.StatusTooManyRequests,
		Statistics: Statistics{Wait: 10 * time.Second, First: time.Second, Factor: 2, Max: 15 * time.Second, Budget: 5 * time.Minute},
		Background: NewBackground(),
		Log:        slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	for _, o := range options {
		o(&config)
	}
	records, observe := &recordLog{}, config.Observe
	config.Observe = func(r *record.Record) {
		records.observe(r)
		if observe != nil {
			observe(r)
		}
	}
	g := New(config)
	running, stop := context.WithCancel(context.Background())
	var limiting sync.WaitGroup
	limiting.Go(func() { config.Limiter.Run(running) })
	front := testservers.ServePipe(t, "gateway.test:80", &http.Server{Handler: g, MaxHeaderBytes: screen.MaxHeaderBytes})
	client := &http.Client{
		Transport:     &http.Transport{DialContext: front.Dial, DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	t.Cleanup(func() {
		client.CloseIdleConnections()
		stop()
		limiting.Wait()
		config.Background.Close()
	})
	raw := func() net.Conn {
		c, err := front.Dial(context.Background(), "", "")
		noError(t, err)
		return c
	}
	halves := func() *testservers.HalfPipe {
		c, err := front.DialHalves(context.Background())
		noError(t, err)
		return c
	}
	return &world{T: t, gateway: g, client: client, dial: raw, dialHalves: halves, seen: seen, records: records}
}

// identifyByToken returns a separate user for each token.
func identifyByToken(r *http.Request) (*caller.Identity, error) {
	value := r.Header.Get("Authorization")
	if value == "" {
		return &caller.Identity{Caller: policy.Caller{Kind: policy.Unauthenticated, Account: "egress:test", Class: "anonymous"}}, nil
	}
	name := "account of " + value
	return &caller.Identity{
		Caller: policy.Caller{Kind: policy.User, Account: name, Class: name},
		Passed: true,
	}, nil
}

// bearer returns the Authorization field with a token.
func bearer(token string) string { return "Authorization: Bearer " + token }

// setFields sets header fields of the form "Name: value" of a response.
func setFields(w http.ResponseWriter, fields ...string) {
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		w.Header().Set(name, value)
	}
}

// replies returns an upstream that sends the same response to each request.
func replies(body string, fields ...string) http.HandlerFunc {
	return repliesWith(func(*http.Request) string { return body }, fields...)
}

// repliesWith returns an upstream whose response bodies depend on the request.
func repliesWith(body func(*http.Request) string, fields ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		setFields(w, fields...)
		_, _ = io.WriteString(w, body(r))
	}
}

// delayed returns an upstream that responds after a second.
func delayed(upstream http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(time.Second)
		upstream(w, r)
	}
}

// requestField returns a function that returns a field of a request.
func requestField(name string) func(*http.Request) string {
	return func(r *http.Request) string { return r.Header.Get(name) }
}

// identifying returns an option that changes the identities of identifyByToken.
func identifying(change func(*http.Request, *caller.Identity)) option {
	return func(c *Config) {
		c.Identify = func(r *http.Request) (*caller.Identity, error) {
			id, err := identifyByToken(r)
			change(r, id)
			return id, err
		}
	}
}

// got is a response with its complete body.
type got struct {
	*http.Response
	body string
	err  error // error while reading the body
}

// get sends a GET request to the gateway; fields have the form "Name: value".
func (w *world) get(path string, fields ...string) got {
	w.Helper()
	return w.do(http.MethodGet, path, nil, fields...)
}

func (w *world) do(method, path string, body io.Reader, fields ...string) got {
	w.Helper()
	r := w.try(method, path, body, fields...)
	stopIf(w, r.Response == nil, "%s %s: %v", method, path, r.err)
	return r
}

// try sends a request like do, but returns an error if there is no response.
func (w *world) try(method, path string, body io.Reader, fields ...string) got {
	w.Helper()
	req := testservers.Must(http.NewRequest(method, "http://gateway.test"+path, body))
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		req.Header.Add(name, value)
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return got{err: err}
	}
	text, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	return got{resp, string(text), err}
}

// raw writes bytes to a new connection, and returns all bytes that the gateway sends before the end of the connection.
func (w *world) raw(request string) string {
	w.Helper()
	c := w.dial()
	defer func() { _ = c.Close() }()
	go func() { _, _ = io.WriteString(c, request) }()
	text, _ := io.ReadAll(c)
	return string(text)
}

// upstreamSaw returns the number of requests that reached the upstream.
func (w *world) upstreamSaw() int { return len(w.seen.all()) }

func (w *world) want(name string, got, want any) {
	w.Helper()
	failIf(w, got != want, "%s: got %v, want %v", name, got, want)
}

// limitKind returns the kind of the limit error that a client recognizes in a response.
func (r got) limitKind() policy.LimitKind {
	return policy.ReadLimitError(policy.UpstreamAnswer{Status: r.StatusCode, Header: r.Header, Body: []byte(r.body)}).Kind
}

// last returns the record of the last request. A client may have its response before the request has ended.
func (w *world) last() record.Record {
	w.Helper()
	synctest.Wait()
	return w.recent()[0]
}

// recent returns the records of all requests, newest first.
func (w *world) recent() []record.Record { return w.records.newest() }
