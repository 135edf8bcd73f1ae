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

// BenchmarkTelemetry compares how many hits a second a gateway responses without
// telemetry and with metrics and one trace of a hundred. "ratio" is the second over the
// first, in the middle of all pairs: both are asked in turns, and each begins every other
// time, so that what else the machine does meets both.
func BenchmarkTelemetry(b *testing.B) {
	origin := httptest.NewServer(keepable(2 << 10))
	defer origin.Close()
	collector := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer collector.Close()

	b.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	with := hitting(b, origin.URL, false)
	b.Setenv("OTEL_SDK_DISABLED", "true")
	inPairs(b, "off", hitting(b, origin.URL, false), "on", with)
}

// BenchmarkTelemetryOff compares a gateway that nothing was built into with one whose
// telemetry is off.
func BenchmarkTelemetryOff(b *testing.B) {
	origin := httptest.NewServer(keepable(2 << 10))
	defer origin.Close()
	b.Setenv("OTEL_SDK_DISABLED", "true")
	inPairs(b, "none", hitting(b, origin.URL, true), "off", hitting(b, origin.URL, false))
}

// inPairs asks two gateways in turns, and reports how many hits a second each responses.
func inPairs(b *testing.B, first, base, second, other string) {
	b.Helper()
	const clients, each = 4, 500
	bases := [2]string{base, other}
	var took [2]time.Duration
	var ratios []float64
	for begins := 0; b.Loop(); begins = 1 - begins {
		var now [2]time.Duration
		for _, i := range []int{begins, 1 - begins} {
			now[i] = inTurns(b, bases[i], clients, each)
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

// keepable is an API whose responses, of so many bytes, are fresh for an hour.
func keepable(size int) http.Handler {
	body := make([]byte, size)
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "max-age=3600")
		_, _ = w.Write(body)
	})
}

// hitting starts a gateway that has the answer to inTurns in its cache, and keeps one
// trace of a hundred. A bare one is neither traced nor measured at all.
func hitting(b *testing.B, upstream string, bare bool) (base string) {
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
	inTurns(b, server.URL, 1, 1)
	return server.URL
}
