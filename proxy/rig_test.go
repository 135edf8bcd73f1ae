package proxy

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/inbound"
	"github.com/weirgate/weir/proxy/wire"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }
func noError(t testing.TB, err error)                 { t.Helper(); testservers.NoError(t, err) }
func stopIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.StopIf(t, c, f, a...) }

// together calls f concurrently with the numbers below n, and waits until all calls have returned.
func together(n int, f func(i int)) {
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() { f(i) })
	}
	calls.Wait()
}

// logTo writes the log as text.
func logTo(w io.Writer) option {
	return func(c *Config) { c.Log = slog.New(slog.NewTextHandler(w, nil)) }
}

// limited sets the limits.
func limited(l policy.Limits) option { return withLedger(limits.NewMemory(limits.Rules{Limits: l})) }

// withLedger sets the ledger.
func withLedger(l limits.Ledger) option {
	return func(c *Config) { c.Ledger, c.Limiter = l, limits.NewLimiter(l) }
}

// oneSlot limits each account to one request at a time.
func oneSlot(c *Config) {
	l := policy.DefaultLimits()
	l.Concurrent = 1
	limited(l)(c)
}

// traced keeps the spans of the world in the exporter.
func traced(kept *tracetest.InMemoryExporter, samplers ...sdktrace.Sampler) option {
	options := []sdktrace.TracerProviderOption{sdktrace.WithSyncer(kept)}
	for _, s := range samplers {
		options = append(options, sdktrace.WithSampler(s))
	}
	return func(c *Config) { c.Tracer = sdktrace.NewTracerProvider(options...).Tracer("test") }
}

// trusting trusts the proxies in a network.
func trusting(network string) option {
	return func(c *Config) { c.TrustedProxies = inbound.TrustedProxies{netip.MustParsePrefix(network)} }
}

// responds returns an upstream that sends this status with these fields and no body.
func responds(code int, fields ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		setFields(w, fields...)
		w.WriteHeader(code)
	}
}

// inOrder returns an upstream whose responses come from these handlers in their order, and then from the last one.
func inOrder(handlers ...http.HandlerFunc) http.HandlerFunc {
	var requests atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) {
		handlers[min(int(requests.Add(1)), len(handlers))-1](w, r)
	}
}

// byPath returns an upstream that has handlers for some paths.
func byPath(others http.HandlerFunc, paths map[string]http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if next := paths[r.URL.Path]; next != nil {
			next(w, r)
			return
		}
		others(w, r)
	}
}

// setRate sets the rate limit fields of a response. Without a name, the field of the resource is left out.
func setRate(h http.Header, resource string, limit, used int, reset time.Time) {
	h.Set("X-Ratelimit-Limit", strconv.Itoa(limit))
	h.Set("X-Ratelimit-Used", strconv.Itoa(used))
	h.Set("X-Ratelimit-Remaining", strconv.Itoa(max(0, limit-used)))
	h.Set("X-Ratelimit-Reset", strconv.FormatInt(reset.Unix(), 10))
	if resource != "" {
		h.Set("X-Ratelimit-Resource", resource)
	}
}

// onDial calls f before each connection to the upstream. An error is the result of the dial.
func onDial(c *Config, f func() error) {
	transport := transportOf(c)
	dial := transport.DialContext
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if err := f(); err != nil {
			return nil, err
		}
		return dial(ctx, network, address)
	}
}

// newRequest returns a request with fields of the form "Name: value".
func (w *world) newRequest(ctx context.Context, method, url string, body io.Reader, fields ...string) *http.Request {
	w.Helper()
	r := testservers.Must(http.NewRequestWithContext(ctx, method, url, body))
	for _, f := range fields {
		if name, value, ok := strings.Cut(f, ": "); ok {
			r.Header.Add(name, value)
		}
	}
	return r
}

// receive reads the body of a response.
func receive(resp *http.Response, err error) got {
	if err != nil {
		return got{err: err}
	}
	text, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	return got{resp, string(text), err}
}

// open sends a request of the client, and returns the response when its header fields have arrived.
func (w *world) open(client *http.Client, method, path string, body io.Reader, fields ...string) *http.Response {
	w.Helper()
	resp, err := client.Do(w.newRequest(context.Background(), method, "http://gateway.test"+path, body, fields...))
	noError(w, err)
	return resp
}

// wantHeader compares header fields of a response. The form of the fields is "Name: value", and "Name: " for a missing field.
func (w *world) wantHeader(r got, fields ...string) {
	w.Helper()
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		w.want(name, r.Header.Get(name), value)
	}
}

// wantReply compares the status of a response, and header fields like wantHeader.
func (w *world) wantReply(name string, r got, status int, fields ...string) got {
	w.Helper()
	w.want(strings.TrimSpace(name+" status"), r.StatusCode, status)
	w.wantHeader(r, fields...)
	return r
}

// lastSeen returns the last request that reached the upstream.
func (w *world) lastSeen() *http.Request {
	list := w.seen.all()
	return list[len(list)-1]
}

// accounts returns the accounts of the ledger.
func (w *world) accounts(most int) []limits.Account {
	w.Helper()
	list, err := w.gateway.Ledger.(limits.Operator).Accounts(context.Background(), most)
	noError(w, err)
	return list
}

// rawTransport returns a transport to an upstream without TLS whose connections serve reads and writes.
func rawTransport(t *testing.T, serve func(net.Conn)) *http.Transport {
	l := testservers.ListenPipe("raw.test:80")
	serveRaw(t, l, l, serve)
	transport := wire.NewTransport()
	transport.DialContext = l.Dial
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}
