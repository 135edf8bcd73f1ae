// Package telemetry is where OpenTelemetry's SDK is set up, and where what is told of
// requests and accounts becomes metrics.
//
// Invariants:
//   - Where things go is said by the standard OTEL_* variables alone, which the SDK reads
//     from the process's environment; where they say nothing, nothing is sent anywhere.
//   - /metrics is there in any case, but where OTEL_SDK_DISABLED is true.
//   - Every label has a bound, whatever clients and the API write (series, and the SDK's
//     own limit behind it).
//   - What a hit costs is a few additions: nothing is built for it, and nothing waits.
//   - Nothing of a request is known here but its [proxy.Record], in which there is no
//     secret.
//
// It does not make spans: that is for those whose work they are of, by the API.
package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
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

// Config is what the environment does not say, or says otherwise.
type Config struct {
	// ServiceName is service.name, unless OTEL_SERVICE_NAME says.
	ServiceName string
	// Version and Instance are service.version and service.instance.id.
	Version, Instance string
	// Sample is the fraction of traces that is kept of those that nobody else has decided
	// about, unless OTEL_TRACES_SAMPLER says.
	Sample float64
	// Log hears what goes wrong with telemetry itself.
	Log *slog.Logger
}

// Telemetry is open until it is closed. It is safe for concurrent use.
type Telemetry struct {
	metrics
	tracer  trace.Tracer // nil where no traces are kept
	logs    slog.Handler // nil where none are sent
	handler http.Handler
	close   []func(context.Context) error
	// complaints is told what goes wrong.
	complaints complaints
}

const (
	scope = "github.com/weirgate/weir"
	// maxSeries bounds the series of one metric; what is more becomes one, which the SDK
	// marks with otel.metric.overflow.
	maxSeries = 4000
	// maxScrapes is how many may ask for the metrics at the same time.
	maxScrapes = 4
	// maxValue bounds an attribute of a span, in bytes, unless the environment says.
	maxValue = 1024
	// farewell is how long what is not sent yet may take at the end.
	farewell = 5 * time.Second
)

// Open opens what the environment asks for. An error is of a variable that nobody
// understands.
func Open(c Config) (*Telemetry, error) {
	t := &Telemetry{handler: promhttp.HandlerFor(prometheus.NewRegistry(), promhttp.HandlerOpts{})} // nothing
	if disabled, _ := strconv.ParseBool(os.Getenv("OTEL_SDK_DISABLED")); disabled {
		t.off = true
		return t, t.open(noop.NewMeterProvider())
	}
	t.complaints.log = c.Log
	otel.SetErrorHandler(&t.complaints)
	ctx, about := context.Background(), c.resource()
	err := errors.Join(
		misunderstood("TRACES", t.openTraces(ctx, c, about)),
		misunderstood("METRICS", t.openMetrics(ctx, about)),
		misunderstood("LOGS", t.openLogs(ctx, about)),
	)
	if err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// misunderstood says which variables an error is about.
func misunderstood(signal string, err error) error {
	if err == nil {
		return nil
	}
	exporter, protocol := "OTEL_"+signal+"_EXPORTER", "OTEL_EXPORTER_OTLP_"+signal+"_PROTOCOL"
	return fmt.Errorf("telemetry: %s=%q, %s=%q: %w", exporter, os.Getenv(exporter), protocol, cmp.Or(os.Getenv(protocol), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL")), err)
}

// Close sends what is not sent yet, as far as that goes in a few seconds, and ends.
func (t *Telemetry) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	for _, end := range t.close {
		if err := end(ctx); err != nil {
			otel.Handle(err)
		}
	}
	t.close = nil
	t.complaints.end()
}

// Tracer makes the spans; it is nil where no traces are kept.
func (t *Telemetry) Tracer() trace.Tracer { return t.tracer }

// ServeHTTP answers with the metrics, for Prometheus.
func (t *Telemetry) ServeHTTP(w http.ResponseWriter, r *http.Request) { t.handler.ServeHTTP(w, r) }

// resource says who speaks. What it cannot find out it leaves out.
func (c Config) resource() *resource.Resource {
	r, err := resource.New(context.Background(),
		resource.WithTelemetrySDK(),
		resource.WithAttributes(semconv.ServiceName(c.ServiceName), semconv.ServiceVersion(c.Version), semconv.ServiceInstanceID(c.Instance)),
		resource.WithFromEnv(), // the last one counts
	)
	if err != nil {
		c.Log.Warn("OTEL_RESOURCE_ATTRIBUTES is not understood", "error", err)
	}
	return r
}

// asked reports whether the environment wants a signal (TRACES, METRICS, LOGS) to go
// somewhere. The SDK's own default would be a collector on this machine.
func asked(signal string) bool {
	for _, name := range []string{"OTEL_" + signal + "_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_" + signal + "_ENDPOINT"} {
		if strings.TrimSpace(os.Getenv(name)) != "" {
			return true
		}
	}
	return false
}

func (t *Telemetry) openTraces(ctx context.Context, c Config, about *resource.Resource) error {
	if !asked("TRACES") {
		return nil
	}
	exporter, err := autoexport.NewSpanExporter(ctx)
	if err != nil || autoexport.IsNoneSpanExporter(exporter) {
		return err
	}
	limits := sdktrace.NewSpanLimits()
	if limits.AttributeValueLengthLimit < 0 {
		limits.AttributeValueLengthLimit = maxValue
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about), sdktrace.WithRawSpanLimits(limits))
	t.tracer = provider.Tracer(scope, trace.WithInstrumentationVersion(c.Version), trace.WithSchemaURL(semconv.SchemaURL))
	if os.Getenv("OTEL_TRACES_SAMPLER") == "" { // then the SDK keeps what has no parent
		t.tracer = chooser{t.tracer, c.Sample}
	}
	t.close = append(t.close, provider.Shutdown)
	return nil
}

func (t *Telemetry) openMetrics(ctx context.Context, about *resource.Resource) error {
	registry := prometheus.NewRegistry()
	scraped, err := prometheusexporter.New(prometheusexporter.WithRegisterer(registry), prometheusexporter.WithoutScopeInfo())
	if err != nil {
		return err
	}
	options := []sdkmetric.Option{sdkmetric.WithReader(scraped), sdkmetric.WithResource(about), sdkmetric.WithCardinalityLimit(maxSeries)}
	if asked("METRICS") {
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

func (t *Telemetry) openLogs(ctx context.Context, about *resource.Resource) error {
	if !asked("LOGS") {
		return nil
	}
	exporter, err := autoexport.NewLogExporter(ctx)
	if err != nil || autoexport.IsNoneLogExporter(exporter) {
		return err
	}
	provider := sdklog.NewLoggerProvider(sdklog.WithProcessor(sdklog.NewBatchProcessor(exporter)), sdklog.WithResource(about))
	t.logs = otelslog.NewHandler(scope, otelslog.WithLoggerProvider(provider))
	t.close = append(t.close, provider.Shutdown)
	return nil
}
