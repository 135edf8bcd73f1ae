package main

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/proxy"
)

// BenchmarkTelemetry compares the hits per second without telemetry with the hits per second with metrics and sampled
// traces. One request of a hundred is traced. The metric "ratio" is the median of the second number divided by the
// first. The runs alternate, so that other load affects both.
func BenchmarkTelemetry(b *testing.B) {
	upstream := httptest.NewServer(cacheableUpstream(2 << 10))
	defer upstream.Close()
	collector := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer collector.Close()

	b.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	with := startWithHit(b, upstream.URL, false)
	b.Setenv("OTEL_SDK_DISABLED", "true")
	comparePairs(b, "off", startWithHit(b, upstream.URL, false), "on", with)
}

// BenchmarkTelemetryOff compares a gateway without telemetry code with a gateway with disabled
// telemetry.
func BenchmarkTelemetryOff(b *testing.B) {
	upstream := httptest.NewServer(cacheableUpstream(2 << 10))
	defer upstream.Close()
	b.Setenv("OTEL_SDK_DISABLED", "true")
	comparePairs(b, "none", startWithHit(b, upstream.URL, true), "off", startWithHit(b, upstream.URL, false))
}

// comparePairs sends requests to two gateways alternately, and reports the hits per second of each gateway.
func comparePairs(b *testing.B, first, base, second, other string) {
	b.Helper()
	const clients, each = 4, 500
	bases := [2]string{base, other}
	var took [2]time.Duration
	var ratios []float64
	for begins := 0; b.Loop(); begins = 1 - begins {
		var now [2]time.Duration
		for _, i := range []int{begins, 1 - begins} {
			now[i] = runClients(b, bases[i], clients, each)
			took[i] += now[i]
		}
		ratios = append(ratios, now[0].Seconds()/now[1].Seconds())
	}
	requests := float64(b.N * clients * each)
	b.ReportMetric(requests/took[0].Seconds(), first+"/s")
	b.ReportMetric(requests/took[1].Seconds(), second+"/s")
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "ratio")
}

// cacheableUpstream responds with a body of the given size that is fresh for one hour.
func cacheableUpstream(size int) http.Handler {
	body := make([]byte, size)
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "max-age=3600")
		_, _ = w.Write(body)
	})
}

// startWithHit starts a gateway with a stored response, and traces one request of a hundred. A
// bare gateway has no telemetry.
func startWithHit(b *testing.B, upstream string, bare bool) (base string) {
	b.Helper()
	cfg := config.Default()
	cfg.Upstream.URL, cfg.Limits.Inbound.Rate, cfg.Telemetry.Sample = upstream, 0, 0.01
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	handler := http.Handler(g)
	if bare {
		c := g.current.Load().proxy.Config
		c.Tracer, c.Observe = nil, g.history.Observe
		handler = proxy.New(c)
	}
	server := httptest.NewServer(handler)
	b.Cleanup(func() {
		server.Close()
		g.close()
	})
	runClients(b, server.URL, 1, 1)
	return server.URL
}
