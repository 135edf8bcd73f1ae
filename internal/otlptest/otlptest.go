// Package otlptest is a real receiver of OTLP over gRPC, for tests: what a program sends
// comes over a connection, and is looked at here. It is no collector: it keeps everything.
package otlptest

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"sync"
	"testing"

	collectorlogs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	collectormetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	metrics "go.opentelemetry.io/proto/otlp/metrics/v1"
	resource "go.opentelemetry.io/proto/otlp/resource/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// Receiver keeps what it is sent. It is safe for concurrent use.
type Receiver struct {
	collectortrace.UnimplementedTraceServiceServer
	address string

	mu       sync.Mutex
	resource map[string]string
	spans    []Span
	metrics  []*metrics.Metric
	logs     []*logs.LogRecord
}

// Span is a span as it arrived, its identifiers in hexadecimal.
type Span struct {
	Name, Trace, ID, Parent string
	Kind                    trace.Span_SpanKind
	Failed                  bool
	Attributes              map[string]string
	// Links are the identifiers of the spans that it is linked to.
	Links []string
}

// Start starts a receiver that ends with the test, and lets the environment of the test
// say that everything goes there.
func Start(t testing.TB) *Receiver {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &Receiver{address: "http://" + listener.Addr().String()}
	server := grpc.NewServer()
	collectortrace.RegisterTraceServiceServer(server, r)
	collectormetrics.RegisterMetricsServiceServer(server, metricsReceiver{Receiver: r})
	collectorlogs.RegisterLogsServiceServer(server, logsReceiver{Receiver: r})
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // until it is stopped
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", r.address)
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	return r
}

// Spans are those that have arrived, in the order in which they ended.
func (r *Receiver) Spans() []Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Span(nil), r.spans...)
}

// Metrics are those that have arrived, once for each time.
func (r *Receiver) Metrics() []*metrics.Metric {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*metrics.Metric(nil), r.metrics...)
}

// Logs are the records that have arrived.
func (r *Receiver) Logs() []*logs.LogRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*logs.LogRecord(nil), r.logs...)
}

// Resource are the attributes of who sent something last.
func (r *Receiver) Resource() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.resource
}

func (r *Receiver) from(who *resource.Resource) { r.resource = Attributes(who.GetAttributes()) }

// Export implements OTLP's trace service.
func (r *Receiver) Export(_ context.Context, in *collectortrace.ExportTraceServiceRequest) (*collectortrace.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range in.GetResourceSpans() {
		r.from(of.GetResource())
		for _, by := range of.GetScopeSpans() {
			for _, s := range by.GetSpans() {
				span := Span{
					Name: s.GetName(), Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()), Parent: hex.EncodeToString(s.GetParentSpanId()),
					Kind: s.GetKind(), Failed: s.GetStatus().GetCode() == trace.Status_STATUS_CODE_ERROR, Attributes: Attributes(s.GetAttributes()),
				}
				for _, l := range s.GetLinks() {
					span.Links = append(span.Links, hex.EncodeToString(l.GetSpanId()))
				}
				r.spans = append(r.spans, span)
			}
		}
	}
	return &collectortrace.ExportTraceServiceResponse{}, nil
}

type metricsReceiver struct {
	collectormetrics.UnimplementedMetricsServiceServer
	*Receiver
}

// Export implements OTLP's metrics service.
func (r metricsReceiver) Export(_ context.Context, in *collectormetrics.ExportMetricsServiceRequest) (*collectormetrics.ExportMetricsServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range in.GetResourceMetrics() {
		r.from(of.GetResource())
		for _, by := range of.GetScopeMetrics() {
			r.metrics = append(r.metrics, by.GetMetrics()...)
		}
	}
	return &collectormetrics.ExportMetricsServiceResponse{}, nil
}

type logsReceiver struct {
	collectorlogs.UnimplementedLogsServiceServer
	*Receiver
}

// Export implements OTLP's logs service.
func (r logsReceiver) Export(_ context.Context, in *collectorlogs.ExportLogsServiceRequest) (*collectorlogs.ExportLogsServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range in.GetResourceLogs() {
		r.from(of.GetResource())
		for _, by := range of.GetScopeLogs() {
			r.logs = append(r.logs, by.GetLogRecords()...)
		}
	}
	return &collectorlogs.ExportLogsServiceResponse{}, nil
}

// Attributes are attributes as text.
func Attributes(list []*common.KeyValue) map[string]string {
	attributes := make(map[string]string, len(list))
	for _, a := range list {
		switch v := a.GetValue().GetValue().(type) {
		case *common.AnyValue_StringValue:
			attributes[a.GetKey()] = v.StringValue
		case *common.AnyValue_IntValue:
			attributes[a.GetKey()] = fmt.Sprint(v.IntValue)
		case *common.AnyValue_BoolValue:
			attributes[a.GetKey()] = fmt.Sprint(v.BoolValue)
		default:
			attributes[a.GetKey()] = fmt.Sprint(v)
		}
	}
	return attributes
}
