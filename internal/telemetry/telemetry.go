// Package telemetry sets up the log of the process and the OpenTelemetry SDK, and turns request records and account states
// into access lines and metrics.
//
// Invariants:
//   - Only the standard OTEL_* environment variables decide where telemetry is sent. Without these variables, no
//     telemetry is sent.
//   - /metrics exists unless OTEL_SDK_DISABLED is true.
//   - The number of series of each metric is bounded for all input of clients and the upstream.
//   - The package sees a request only as a [record.Record], which holds no secret.
//   - A finished request waits neither for its access line nor for its metrics. What is lost is counted.
//
// Entry points: [Open] and [Telemetry.NewObserver]. Spans are created with the OpenTelemetry API by the packages whose work they describe.
package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/contrib/bridges/otelslog"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/contrib/instrumentation/runtime"
	"go.opentelemetry.io/otel"
	prometheusexporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric/noop"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// Config holds the values that the environment may override.
type Config struct {
	ServiceName string // service.name, unless OTEL_SERVICE_NAME is set
	Version     string // service.version
	Instance    string // service.instance.id
	// Sample is the fraction of traces to record, 0 to 1, for traces that begin in Weir. OTEL_TRACES_SAMPLER takes
	// precedence.
	Sample float64
	// Log receives the lines of the log of this level and above, and the access lines. LogFormat and AccessLog are the
	// settings of the same name.
	Log                  io.Writer
	Level                slog.Level
	LogFormat, AccessLog string
}

// Telemetry is a running set of providers. A Telemetry is safe for concurrent use.
type Telemetry struct {
	metrics
	config  Config
	output  *lockedWriter
	tracer  trace.Tracer // nil without a trace exporter
	logs    slog.Handler // nil without a log exporter
	handler http.Handler
	close   []func(context.Context) error
	errors  errorLog
}

const (
	scope = "github.com/weirgate/weir"
	// maxSeries bounds the series of one metric. The SDK combines further series in one series with the attribute
	// otel.metric.overflow.
	maxSeries = 4000
	// maxScrapes is the number of concurrent requests to /metrics.
	maxScrapes = 4
	// maxAttributeLength bounds a span attribute, in bytes, unless the environment sets a limit.
	maxAttributeLength = 1024
	// closeTimeout bounds the final export.
	closeTimeout = 5 * time.Second
)

// Open starts the providers that the environment selects. An unknown exporter or protocol is an error.
func Open(c Config) (*Telemetry, error) {
	t := &Telemetry{config: c, output: &lockedWriter{w: c.Log}, handler: promhttp.HandlerFor(prometheus.NewRegistry(), promhttp.HandlerOpts{})}
	if disabled, _ := strconv.ParseBool(os.Getenv("OTEL_SDK_DISABLED")); disabled {
		t.disabled = true
		return t, t.open(noop.NewMeterProvider())
	}
	t.errors.log = slog.New(newHandler(t.output, c))
	otel.SetErrorHandler(&t.errors)
	ctx, res := context.Background(), t.resource()
	err := errors.Join(
		withVariables("TRACES", t.openTraces(ctx, c, res)),
		withVariables("METRICS", t.openMetrics(ctx, res)),
		withVariables("LOGS", t.openLogs(ctx, res)),
	)
	if err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// withVariables adds the variables that select the exporter of a signal to an error.
func withVariables(signal string, err error) error {
	if err == nil {
		return nil
	}
	exporter, protocol := "OTEL_"+signal+"_EXPORTER", "OTEL_EXPORTER_OTLP_"+signal+"_PROTOCOL"
	return fmt.Errorf("telemetry: %s=%q, %s=%q: %w", exporter, os.Getenv(exporter), protocol, cmp.Or(os.Getenv(protocol), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL")), err)
}

// Close exports the buffered telemetry, within a few seconds, and stops the providers.
func (t *Telemetry) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	for _, shutdown := range t.close {
		if err := shutdown(ctx); err != nil {
			otel.Handle(err)
		}
	}
	t.close = nil
	t.errors.close()
}

// Log returns the log of the process. It writes each line at once, and exports the lines if the environment selects a log
// exporter.
func (t *Telemetry) Log() *slog.Logger {
	return slog.New(&logs{local: newHandler(t.output, t.config), remote: t.logs})
}

// Tracer returns the tracer for Weir's spans, or nil without a trace exporter.
func (t *Telemetry) Tracer() trace.Tracer { return t.tracer }

// ServeHTTP responds with the metrics in the formats of Prometheus.
func (t *Telemetry) ServeHTTP(w http.ResponseWriter, r *http.Request) { t.handler.ServeHTTP(w, r) }

func (t *Telemetry) resource() *resource.Resource {
	c := t.config
	r, err := resource.New(context.Background(),
		resource.WithTelemetrySDK(),
		resource.WithAttributes(semconv.ServiceName(c.ServiceName), semconv.ServiceVersion(c.Version), semconv.ServiceInstanceID(c.Instance)),
		resource.WithFromEnv(), // the last option takes precedence
	)
	if err != nil {
		t.errors.log.Warn("resource attributes incomplete; check OTEL_RESOURCE_ATTRIBUTES", "error", err)
	}
	return r
}

// isConfigured reports whether the environment selects an exporter for a signal (TRACES, METRICS, LOGS). Without this
// check, the SDK would export to a collector on localhost.
func isConfigured(signal string) bool {
	for _, name := range []string{"OTEL_" + signal + "_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_" + signal + "_ENDPOINT"} {
		if strings.TrimSpace(os.Getenv(name)) != "" {
			return true
		}
	}
	return false
}

func (t *Telemetry) openTraces(ctx context.Context, c Config, res *resource.Resource) error {
	if !isConfigured("TRACES") {
		return nil
	}
	exporter, err := autoexport.NewSpanExporter(ctx)
	if err != nil || autoexport.IsNoneSpanExporter(exporter) {
		return err
	}
	limits := sdktrace.NewSpanLimits()
	if limits.AttributeValueLengthLimit < 0 {
		limits.AttributeValueLengthLimit = maxAttributeLength
	}
	options := []sdktrace.TracerProviderOption{sdktrace.WithBatcher(exporter), sdktrace.WithResource(res), sdktrace.WithRawSpanLimits(limits)}
	if os.Getenv("OTEL_TRACES_SAMPLER") == "" {
		options = append(options, sdktrace.WithSampler(newSampler(c.Sample)))
	}
	provider := sdktrace.NewTracerProvider(options...)
	t.tracer = provider.Tracer(scope, trace.WithInstrumentationVersion(c.Version), trace.WithSchemaURL(semconv.SchemaURL))
	t.close = append(t.close, provider.Shutdown)
	return nil
}

// newSampler returns a sampler that records a fraction of the traces that begin in Weir. A span with a parent follows
// the decision of the parent. A background span that is linked to a recorded span is recorded.
func newSampler(fraction float64) sdktrace.Sampler {
	return sdktrace.ParentBased(linkSampler{sdktrace.TraceIDRatioBased(fraction)})
}

// linkSampler records spans with a link to a recorded span, and samples all other spans.
type linkSampler struct{ sdktrace.Sampler }

// ShouldSample implements [sdktrace.Sampler].
func (s linkSampler) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	if slices.ContainsFunc(p.Links, func(l trace.Link) bool { return l.SpanContext.IsSampled() }) {
		return sdktrace.AlwaysSample().ShouldSample(p)
	}
	return s.Sampler.ShouldSample(p)
}

func (t *Telemetry) openMetrics(ctx context.Context, res *resource.Resource) error {
	registry := prometheus.NewRegistry()
	exporter, err := prometheusexporter.New(prometheusexporter.WithRegisterer(registry), prometheusexporter.WithoutScopeInfo())
	if err != nil {
		return err
	}
	options := []sdkmetric.Option{sdkmetric.WithReader(exporter), sdkmetric.WithResource(res), sdkmetric.WithCardinalityLimit(maxSeries)}
	if isConfigured("METRICS") {
		reader, err := autoexport.NewMetricReader(ctx)
		if err != nil {
			return err
		}
		if !autoexport.IsNoneMetricReader(reader) {
			options = append(options, sdkmetric.WithReader(reader))
		}
	}
	provider := sdkmetric.NewMeterProvider(options...)
	t.close = append(t.close, provider.Shutdown)
	t.handler = promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: maxScrapes})
	return errors.Join(runtime.Start(runtime.WithMeterProvider(provider)), t.open(provider))
}

func (t *Telemetry) openLogs(ctx context.Context, res *resource.Resource) error {
	if !isConfigured("LOGS") {
		return nil
	}
	exporter, err := autoexport.NewLogExporter(ctx)
	if err != nil || autoexport.IsNoneLogExporter(exporter) {
		return err
	}
	provider := sdklog.NewLoggerProvider(sdklog.WithProcessor(sdklog.NewBatchProcessor(exporter)), sdklog.WithResource(res))
	t.logs = otelslog.NewHandler(scope, otelslog.WithLoggerProvider(provider))
	t.close = append(t.close, provider.Shutdown)
	return nil
}
