package testservers

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

// OTLP is a receiver of OTLP over gRPC. It keeps all received data, and is safe for concurrent use.
type OTLP struct {
	collectortrace.UnimplementedTraceServiceServer
	address string

	mu       sync.Mutex
	resource map[string]string
	spans    []Span
	metrics  []*metrics.Metric
	logs     []*logs.LogRecord
}

// Span is a received span with its identifiers in hexadecimal.
type Span struct {
	Name, Trace, ID, Parent string
	Kind                    trace.Span_SpanKind
	Failed                  bool
	Attributes              map[string]string
	// Links are the identifiers of the linked spans.
	Links []string
}

// StartOTLP starts a receiver and points the OTEL_EXPORTER_OTLP_* variables of the test to it.
func StartOTLP(t testing.TB) *OTLP {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &OTLP{address: "http://" + listener.Addr().String()}
	server := grpc.NewServer()
	collectortrace.RegisterTraceServiceServer(server, r)
	collectormetrics.RegisterMetricsServiceServer(server, metricsReceiver{OTLP: r})
	collectorlogs.RegisterLogsServiceServer(server, logsReceiver{OTLP: r})
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // until Stop
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", r.address)
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	return r
}

// Spans returns the received spans in the order in which they ended.
func (r *OTLP) Spans() []Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Span(nil), r.spans...)
}

// Metrics returns the received metrics, once for each export.
func (r *OTLP) Metrics() []*metrics.Metric {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*metrics.Metric(nil), r.metrics...)
}

// Logs returns the received log records.
func (r *OTLP) Logs() []*logs.LogRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*logs.LogRecord(nil), r.logs...)
}

// Resource returns the resource attributes of the last export.
func (r *OTLP) Resource() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.resource
}

func (r *OTLP) setResource(res *resource.Resource) { r.resource = Attributes(res.GetAttributes()) }

// Export implements OTLP's trace service.
func (r *OTLP) Export(_ context.Context, in *collectortrace.ExportTraceServiceRequest) (*collectortrace.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, group := range in.GetResourceSpans() {
		r.setResource(group.GetResource())
		for _, scope := range group.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
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
	*OTLP
}

// Export implements OTLP's metrics service.
func (r metricsReceiver) Export(_ context.Context, in *collectormetrics.ExportMetricsServiceRequest) (*collectormetrics.ExportMetricsServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, group := range in.GetResourceMetrics() {
		r.setResource(group.GetResource())
		for _, scope := range group.GetScopeMetrics() {
			r.metrics = append(r.metrics, scope.GetMetrics()...)
		}
	}
	return &collectormetrics.ExportMetricsServiceResponse{}, nil
}

type logsReceiver struct {
	collectorlogs.UnimplementedLogsServiceServer
	*OTLP
}

// Export implements OTLP's logs service.
func (r logsReceiver) Export(_ context.Context, in *collectorlogs.ExportLogsServiceRequest) (*collectorlogs.ExportLogsServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, group := range in.GetResourceLogs() {
		r.setResource(group.GetResource())
		for _, scope := range group.GetScopeLogs() {
			r.logs = append(r.logs, scope.GetLogRecords()...)
		}
	}
	return &collectorlogs.ExportLogsServiceResponse{}, nil
}

// Attributes converts attributes to text.
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
