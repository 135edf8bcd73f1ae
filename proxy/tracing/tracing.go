// Package tracing records the stages of a request in its [record.Record], and in OpenTelemetry spans if the request is sampled.
package tracing

import (
	"cmp"
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/weirgate/weir/proxy/inbound"
	"github.com/weirgate/weir/proxy/names"
	"github.com/weirgate/weir/proxy/record"
	"github.com/weirgate/weir/proxy/secrets"
)

// Tracer traces the requests of one gateway.
type Tracer struct {
	Spans          trace.Tracer // nil disables spans
	Propagate      bool         // sends trace contexts (W3C Trace Context) to the upstream
	Upstream       *url.URL
	TrustedProxies inbound.TrustedProxies
}

// Request is the trace of one request.
type Request struct {
	tracer *Tracer
	span   trace.Span // records nothing if the request is not sampled
	record *record.Record
}

// Serve starts the trace of a client's request. If the request has a trace context, its span is part of the client's trace.
// The returned request has the context of the span.
func (t *Tracer) Serve(in *http.Request, r *record.Record) (*http.Request, Request) {
	if t.Spans == nil && !t.Propagate {
		return in, Request{t, noop.Span{}, r}
	}
	ctx := propagation.TraceContext{}.Extract(in.Context(), propagation.HeaderCarrier(in.Header))
	return t.start(ctx, in, r, trace.WithSpanKind(trace.SpanKindServer))
}

// Background starts the trace of a request without a client, with a link to the request that caused it.
func (t *Tracer) Background(in *http.Request, r *record.Record, cause trace.SpanContext) (*http.Request, Request) {
	return t.start(in.Context(), in, r, trace.WithLinks(trace.Link{SpanContext: cause}))
}

func (t *Tracer) start(ctx context.Context, in *http.Request, r *record.Record, option trace.SpanStartOption) (*http.Request, Request) {
	ctx, span := cmp.Or[trace.Tracer](t.Spans, noop.Tracer{}).Start(ctx, r.Method, option)
	if span.IsRecording() || t.Propagate {
		in = in.WithContext(ctx)
	}
	if !span.IsRecording() {
		return in, Request{t, noop.Span{}, r}
	}
	r.Trace, r.Span = span.SpanContext().TraceID().String(), span.SpanContext().SpanID().String()
	return in, Request{t, span, r}
}

// Context identifies the span of the request, and is invalid if the request is not sampled.
func (r Request) Context() trace.SpanContext { return r.span.SpanContext() }

// Traceresponse returns the response field of that name (W3C Trace Context, level 2), or an empty string if the request is not sampled.
func (r Request) Traceresponse() string {
	if !r.span.IsRecording() {
		return ""
	}
	c := r.Context()
	return "00-" + c.TraceID().String() + "-" + c.SpanID().String() + "-" + c.TraceFlags().String()
}

// End ends the trace of a request from an address. The record is finished.
func (r Request) End(in *http.Request, address netip.Addr) {
	if !r.span.IsRecording() {
		return
	}
	done := r.record
	name := done.Method
	if done.Route != record.OtherRoute {
		name += " " + done.Route
	}
	if done.Background {
		name = "background " + name
	}
	r.span.SetName(name)
	attributes := append(r.clientAttributes(in, address),
		semconv.HTTPRequestMethodKey.String(done.Method), semconv.HTTPRoute(done.Route),
		attribute.String("weir.operation", done.Operation), attribute.String("weir.account", done.Account),
		attribute.String("weir.client", done.ClientLabel()),
		attribute.String("weir.cache", string(done.Outcome)), attribute.String("weir.cache_status", done.Cache.String()),
		attribute.Int64("weir.wait_ms", done.Waited.Milliseconds()), attribute.Int("weir.spent", done.Spent),
	)
	if done.Query != "" {
		attributes = append(attributes, semconv.GraphQLOperationName(done.Query))
	}
	if done.Tag != "" {
		attributes = append(attributes, attribute.String("weir.tag", done.Tag))
	}
	if admission := done.Admission(); admission != "" {
		attributes = append(attributes, attribute.String("weir.admission", admission))
	}
	if done.Status >= http.StatusInternalServerError {
		attributes = append(attributes, semconv.ErrorTypeKey.String(strconv.Itoa(done.Status)))
		r.span.SetStatus(codes.Error, "")
	}
	r.span.SetAttributes(attributes...)
	r.span.End()
}

// clientAttributes returns the attributes of a server span (OpenTelemetry's HTTP conventions), or nil for a background
// task. Text from the client is truncated and made valid UTF-8.
func (r Request) clientAttributes(in *http.Request, address netip.Addr) []attribute.KeyValue {
	if r.record.Background {
		return nil
	}
	origin := r.tracer.TrustedProxies.Origin(in)
	local := &url.URL{Scheme: origin.Scheme, Host: origin.Host}
	version := strconv.Itoa(in.ProtoMajor)
	if in.ProtoMajor < 2 {
		version += "." + strconv.Itoa(in.ProtoMinor)
	}
	list := []attribute.KeyValue{
		semconv.URLScheme(local.Scheme), semconv.URLPath(r.record.Path), semconv.HTTPResponseStatusCode(r.record.Status),
		semconv.ServerAddress(truncated(local.Hostname())), semconv.ServerPort(names.Port(local)), semconv.NetworkProtocolVersion(version),
	}
	if address.IsValid() {
		list = append(list, semconv.ClientAddress(address.String()))
	}
	if agent := in.UserAgent(); agent != "" && !secrets.In(agent, in.Header) {
		list = append(list, semconv.UserAgentOriginal(truncated(agent)))
	}
	return list
}

func truncated(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), secrets.MaxText)], "\uFFFD")
}

// requestAttributes returns the attributes of a client span (OpenTelemetry's HTTP conventions). The query is omitted
// because it may contain secrets.
func (r Request) requestAttributes() []attribute.KeyValue {
	upstream := r.tracer.Upstream
	list := []attribute.KeyValue{
		semconv.HTTPRequestMethodKey.String(r.record.Method),
		semconv.ServerAddress(upstream.Hostname()), semconv.ServerPort(names.Port(upstream)),
		semconv.URLFull(strings.TrimSuffix(upstream.Scheme+"://"+upstream.Host+upstream.EscapedPath(), "/") + r.record.Path),
		semconv.URLTemplate(r.record.Route),
	}
	if r.record.Sent > 0 {
		list = append(list, semconv.HTTPRequestResendCount(r.record.Sent))
	}
	return list
}
