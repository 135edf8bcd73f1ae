package proxy

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/names"
	"github.com/weirgate/weir/proxy/record"
	"github.com/weirgate/weir/proxy/secrets"
	"github.com/weirgate/weir/proxy/wire"
)

// traceRequest starts the span of a client's request. If the request has a trace context (W3C Trace Context), the span
// is part of the client's trace.
func (g *Gateway) traceRequest(ex *exchange) {
	if _, off := g.Tracer.(noop.Tracer); off && !g.PropagateTrace {
		return
	}
	ctx := propagation.TraceContext{}.Extract(ex.in.Context(), propagation.HeaderCarrier(ex.in.Header))
	ctx, span := g.Tracer.Start(ctx, ex.record.Method, trace.WithSpanKind(trace.SpanKindServer))
	g.setSpan(ex, ctx, span)
}

// setSpan stores the span of a sampled request. If trace contexts are sent upstream, it also stores the context of a
// request that is not sampled.
func (g *Gateway) setSpan(ex *exchange, ctx context.Context, span trace.Span) {
	if span.IsRecording() || g.PropagateTrace {
		ex.in = ex.in.WithContext(ctx)
	}
	if span.IsRecording() {
		ex.span = span
		ex.record.Trace, ex.record.Span = span.SpanContext().TraceID().String(), span.SpanContext().SpanID().String()
	}
}

// endTrace ends the exchange's span with attributes from the finished record.
func (g *Gateway) endTrace(ex *exchange) {
	if !ex.span.IsRecording() {
		return
	}
	r := ex.record
	name := r.Method
	if r.Route != otherRoute {
		name += " " + r.Route
	}
	if r.Background {
		name = "background " + name
	}
	ex.span.SetName(name)
	attributes := append(g.clientAttributes(ex),
		semconv.HTTPRequestMethodKey.String(r.Method), semconv.HTTPRoute(r.Route),
		attribute.String("weir.operation", r.Operation), attribute.String("weir.account", r.Account),
		attribute.String("weir.client", r.ClientLabel()),
		attribute.String("weir.cache", string(r.Outcome)), attribute.String("weir.cache_status", r.Cache.String()),
		attribute.Int64("weir.wait_ms", r.Waited.Milliseconds()), attribute.Int("weir.spent", r.Spent),
	)
	if r.Query != "" {
		attributes = append(attributes, semconv.GraphQLOperationName(r.Query))
	}
	if r.Tag != "" {
		attributes = append(attributes, attribute.String("weir.tag", r.Tag))
	}
	if admission := r.Admission(); admission != "" {
		attributes = append(attributes, attribute.String("weir.admission", admission))
	}
	if r.Status >= http.StatusInternalServerError {
		attributes = append(attributes, semconv.ErrorTypeKey.String(strconv.Itoa(r.Status)))
		ex.span.SetStatus(codes.Error, "")
	}
	ex.span.SetAttributes(attributes...)
	ex.span.End()
}

// clientAttributes returns the attributes of a server span (OpenTelemetry's HTTP conventions), or nil for a background
// task. Text from the client is truncated and made valid UTF-8.
func (g *Gateway) clientAttributes(ex *exchange) []attribute.KeyValue {
	if ex.record.Background {
		return nil
	}
	origin := g.TrustedProxies.Origin(ex.in)
	local := &url.URL{Scheme: origin.Scheme, Host: origin.Host}
	version := strconv.Itoa(ex.in.ProtoMajor)
	if ex.in.ProtoMajor < 2 {
		version += "." + strconv.Itoa(ex.in.ProtoMinor)
	}
	list := []attribute.KeyValue{
		semconv.URLScheme(local.Scheme), semconv.URLPath(ex.maskedPath()), semconv.HTTPResponseStatusCode(ex.record.Status),
		semconv.ServerAddress(truncated(local.Hostname())), semconv.ServerPort(names.Port(local)), semconv.NetworkProtocolVersion(version),
	}
	if address := ex.address; address.IsValid() {
		list = append(list, semconv.ClientAddress(address.String()))
	}
	if agent := ex.in.UserAgent(); agent != "" && !secrets.In(agent, ex.in.Header) {
		list = append(list, semconv.UserAgentOriginal(truncated(agent)))
	}
	return list
}

func truncated(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), secrets.MaxText)], "\uFFFD")
}

// traceBackground starts the span of a background task, with a link to the request that started it.
func (g *Gateway) traceBackground(ex *exchange, cause trace.SpanContext) {
	ctx, span := g.Tracer.Start(ex.in.Context(), ex.record.Method, trace.WithLinks(trace.Link{SpanContext: cause}))
	g.setSpan(ex, ctx, span)
}

// stage is a [record.Stage] in progress.
type stage struct {
	ex    *exchange
	index int             // position of the Stage in the record
	ctx   context.Context // context for the work of the stage
	span  trace.Span      // records nothing if the request is not sampled
}

// beginStage adds a stage to the record and starts its span.
func (g *Gateway) beginStage(ex *exchange, ctx context.Context, name string) stage {
	s := stage{ex: ex, index: len(ex.record.Stages), ctx: ctx, span: noop.Span{}}
	if ex.record.Stages == nil {
		ex.record.Stages = make([]record.Stage, 0, 4) // a request without a wait has three stages
	}
	ex.record.Stages = append(ex.record.Stages, record.Stage{Name: name, Start: time.Since(ex.record.Start)})
	if !ex.span.IsRecording() {
		return s
	}
	if name == record.StageRequest {
		attributes := trace.WithAttributes(g.requestAttributes(ex)...)
		s.ctx, s.span = g.Tracer.Start(ctx, ex.record.Method+" "+ex.record.Route, trace.WithSpanKind(trace.SpanKindClient), attributes)
	} else {
		s.ctx, s.span = g.Tracer.Start(ctx, name)
	}
	return s
}

// requestAttributes returns the attributes of a client span (OpenTelemetry's HTTP conventions). The query is omitted
// because it may contain secrets.
func (g *Gateway) requestAttributes(ex *exchange) []attribute.KeyValue {
	list := []attribute.KeyValue{
		semconv.HTTPRequestMethodKey.String(ex.record.Method),
		semconv.ServerAddress(g.Upstream.Hostname()), semconv.ServerPort(names.Port(g.Upstream)),
		semconv.URLFull(strings.TrimSuffix(g.Upstream.Scheme+"://"+g.Upstream.Host+g.Upstream.EscapedPath(), "/") + ex.maskedPath()),
		semconv.URLTemplate(ex.record.Route),
	}
	if ex.record.Sent > 0 {
		list = append(list, semconv.HTTPRequestResendCount(ex.record.Sent))
	}
	return list
}

// end ends the stage and returns the duration. detail is the reason or the result of the stage.
func (s stage) end(detail string, err error) time.Duration {
	if detail != "" && s.span.IsRecording() {
		s.span.SetAttributes(attribute.String("weir.reason", detail))
	}
	return s.close(detail, err)
}

// endRequest ends the stage of a request with the response or the error.
func (s stage) endRequest(resp *http.Response, err error) {
	detail := requestResult(resp, err)
	if s.span.IsRecording() {
		if err == nil {
			s.span.SetAttributes(semconv.HTTPResponseStatusCode(resp.StatusCode))
		}
		if err != nil || resp.StatusCode >= http.StatusBadRequest {
			s.span.SetAttributes(semconv.ErrorTypeKey.String(detail))
		}
		if err == nil && resp.StatusCode >= http.StatusBadRequest {
			s.span.SetStatus(codes.Error, "")
		}
	}
	s.close(detail, err)
}

// requestResult returns the detail of the stage of a request: the status or the kind of the error.
func requestResult(resp *http.Response, err error) string {
	if err == nil {
		return strconv.Itoa(resp.StatusCode)
	}
	switch {
	case wire.IsTimeout(err):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "canceled"
	}
	_, errorType := wire.ConnectionFault(err)
	return cmp.Or(errorType, "_OTHER")
}

func (s stage) close(detail string, err error) time.Duration {
	r := &s.ex.record.Stages[s.index]
	r.Elapsed = time.Since(s.ex.record.Start) - r.Start
	r.Detail, r.Failed = detail, err != nil
	if err != nil && !errors.Is(err, context.Canceled) { // a client's disconnect is not an error
		s.span.SetStatus(codes.Error, "")
	}
	s.span.End()
	return r.Elapsed
}

// showShared adds the use of the budget that delayed or refused the permit to the stage.
func (s stage) showShared(p *limits.Permit, err error) {
	var u *limits.SharedUse
	if refusal, ok := errors.AsType[*limits.Refusal](err); ok {
		u = refusal.Shared
	} else if err == nil {
		u = p.Shared
	}
	if u == nil {
		return
	}
	s.ex.record.Stages[s.index].Shared = u
	if !s.span.IsRecording() {
		return
	}
	var clients []string
	var used []int64
	for _, c := range u.Clients {
		clients, used = append(clients, c.Client), append(used, c.Used)
	}
	s.span.SetAttributes(
		attribute.String("weir.budget", u.Budget), attribute.Int64("weir.budget.limit", u.Limit),
		attribute.StringSlice("weir.budget.clients", clients), attribute.Int64Slice("weir.budget.used", used),
	)
}

// queueResult returns the detail of a queue stage: the limit that delayed or refused the permit. The detail is empty
// without a wait.
func queueResult(p *limits.Permit, err error) string {
	if err == nil {
		return string(p.Waited)
	}
	if refusal, ok := errors.AsType[*limits.Refusal](err); ok {
		return string(refusal.Reason)
	}
	if _, ok := errors.AsType[*limits.WritesError](err); ok {
		return string(limits.Writes)
	}
	if errors.Is(err, context.Canceled) {
		return "canceled"
	}
	return "store"
}

// showLimit records the limit error of a request.
func (s stage) showLimit(o limits.Outcome) {
	if o.Limited == policy.NotLimited {
		return
	}
	s.ex.record.Stages[s.index].Limited = o.Limited
	s.span.SetAttributes(attribute.String("weir.reason", string(o.Limited)))
}

// linkTo links the stage to the span of the other request that the stage waits for.
func (s stage) linkTo(other trace.SpanContext) {
	if other.IsValid() {
		s.span.AddLink(trace.Link{SpanContext: other})
	}
}

// propagate returns the request with the trace context of its stage, or the request itself if trace contexts are not
// sent upstream. Baggage is never sent.
func (g *Gateway) propagate(s stage, out *http.Request) *http.Request {
	if !g.PropagateTrace {
		return out
	}
	traced := *out // an earlier request may still use the header
	traced.Header = maps.Clone(out.Header)
	propagation.TraceContext{}.Inject(s.ctx, propagation.HeaderCarrier(traced.Header))
	return &traced
}
