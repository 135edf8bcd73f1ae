package main

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/proxy"
)

// nullWriter is a ResponseWriter that discards the response and keeps its header map.
type nullWriter struct{ header http.Header }

func (w *nullWriter) Header() http.Header       { return w.header }
func (*nullWriter) Write(p []byte) (int, error) { return len(p), nil }
func (*nullWriter) WriteHeader(int)             {}

// nullTransport is an upstream without a network.
type nullTransport struct{ body []byte }

func (t nullTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Request: r, ContentLength: int64(len(t.body)), Body: io.NopCloser(bytes.NewReader(t.body)),
		Header: http.Header{"Content-Type": {"application/octet-stream"}, "Cache-Control": {"no-store"}, "Content-Length": {"2048"}, "Date": {"Sat, 21 Nov 2026 12:00:00 GMT"}},
	}, nil
}

// startUnlimited starts a gateway with very high limits.
func startUnlimited(b *testing.B, upstream string) *gateway {
	b.Helper()
	cfg := config.Default()
	cfg.Upstream.URL, cfg.Limits.Inbound.Rate, cfg.Telemetry.Sample, cfg.Limits.ColdStart = upstream, 0, 0.01, "trust"
	l := &cfg.Limits.Limits
	l.Primary.User, l.Points.REST, l.Concurrent, l.CPU.Total = 1<<30, 1<<30, 1<<20, 1000*time.Hour
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(g.close)
	return g
}

// sampleRequest returns a typical request.
func sampleRequest(target string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, target, http.NoBody)
	r.Header.Set("Authorization", "Bearer a-sample-token")
	r.Header.Set("User-Agent", "bench")
	r.Header.Set("Accept", "application/json")
	return r
}

// benchmarkHandler measures a handler without net/http.
func benchmarkHandler(b *testing.B, h http.Handler, target string) {
	b.Helper()
	r := sampleRequest(target)
	w := &nullWriter{http.Header{}}
	h.ServeHTTP(w, r)
	b.ReportAllocs()
	for b.Loop() {
		clear(w.header)
		h.ServeHTTP(w, r)
	}
}

// BenchmarkHit measures a hit without net/http.
func BenchmarkHit(b *testing.B) {
	upstream := httptest.NewServer(cacheableUpstream(2 << 10))
	defer upstream.Close()
	benchmarkHandler(b, startUnlimited(b, upstream.URL), "/repos/acme/widgets/subscribers")
}

// BenchmarkPass measures a forwarded request without net/http.
func BenchmarkPass(b *testing.B) {
	c := startUnlimited(b, "http://api.example").current.Load().proxy.Config
	c.Transport = nullTransport{make([]byte, 2<<10)}
	benchmarkHandler(b, proxy.New(c), "/users/octocat/subscriptions")
}
