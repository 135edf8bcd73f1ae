package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirgate/weir/limits"
)

// Names of stages.
const (
	stageQueue   = "queue"
	stageFlight  = "flight"
	stageAttempt = "attempt"
	stagePoll    = "poll"
	stageRetry   = "retry"
	stageSettle  = "settle"
)

// stage is a part of a request's journey that goes on: in its record always, and as a
// span where its trace is kept.
type stage struct {
	ex    *exchange
	index int             // in the record
	ctx   context.Context // what is done in the stage is done in it
	span  trace.Span      // nil where none is kept
}

// enter begins a stage; leave ends it.
func (g *Gateway) enter(ex *exchange, ctx context.Context, name string) stage {
	s := stage{ex: ex, index: len(ex.record.Stages), ctx: ctx}
	if ex.record.Stages == nil {
		ex.record.Stages = make([]Stage, 0, 4) // queue, attempt, settle, and one more
	}
	ex.record.Stages = append(ex.record.Stages, Stage{Name: name, Start: time.Since(ex.start)})
	if ex.span == nil {
		return s
	}
	if name == stageAttempt {
		s.ctx, s.span = g.Tracer.Start(ctx, ex.record.Method+" "+ex.route, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(g.attemptAttributes(ex)...))
	} else {
		s.ctx, s.span = g.Tracer.Start(ctx, name)
	}
	return s
}

// leave ends the stage and returns how long it took. detail is why, or what came of it.
func (s stage) leave(detail string, err error) time.Duration {
	kept := &s.ex.record.Stages[s.index]
	kept.Elapsed = time.Since(s.ex.start) - kept.Start
	kept.Detail, kept.Failed = detail, err != nil
	if s.span != nil {
		s.describe(detail, err)
		s.span.End()
	}
	return kept.Elapsed
}

// describe tells the span what came of the stage.
func (s stage) describe(detail string, err error) {
	switch status, isStatus := strconv.Atoi(detail); {
	case detail == "":
	case s.ex.record.Stages[s.index].Name != stageAttempt:
		s.span.SetAttributes(attribute.String("weir.reason", detail))
	case isStatus == nil:
		s.span.SetAttributes(semconv.HTTPResponseStatusCode(status))
		if status >= http.StatusBadRequest {
			s.span.SetAttributes(semconv.ErrorTypeKey.String(detail))
			s.span.SetStatus(codes.Error, "")
		}
	default:
		s.span.SetAttributes(semconv.ErrorTypeKey.String(detail))
	}
	if err != nil && !errors.Is(err, context.Canceled) { // who leaves is no error
		s.span.SetStatus(codes.Error, "")
	}
}

// linkTo links the stage to the span of who has asked for this one, too.
func (s stage) linkTo(other trace.SpanContext) {
	if s.span != nil && other.IsValid() {
		s.span.AddLink(trace.Link{SpanContext: other})
	}
}

// attemptAttributes are those of a request upstream. The query may hold secrets, and
// stays out of them.
func (g *Gateway) attemptAttributes(ex *exchange) []attribute.KeyValue {
	host, port := hostPort(g.Upstream.Host, g.Upstream.Scheme == "https")
	list := []attribute.KeyValue{
		semconv.HTTPRequestMethodKey.String(ex.record.Method),
		semconv.ServerAddress(host), semconv.ServerPort(port),
		semconv.URLFull(g.Upstream.Scheme + "://" + g.Upstream.Host + strings.TrimSuffix(g.Upstream.EscapedPath(), "/") + ex.shownPath()),
		semconv.URLTemplate(ex.route),
	}
	if ex.record.Attempts > 0 {
		list = append(list, semconv.HTTPRequestResendCount(ex.record.Attempts))
	}
	return list
}

// whyWaited is what a request for a permit had to wait for, or was refused for; empty
// where it got it at once.
func whyWaited(p *limits.Permit, err error) string {
	if err == nil {
		return string(p.Waited)
	}
	var refusal *limits.Refusal
	switch {
	case errors.As(err, &refusal):
		return string(refusal.Reason)
	case errors.Is(err, context.Canceled):
		return "canceled"
	}
	return "store"
}

// whatCame is the status of an answer, or the kind of the error in its place.
func whatCame(resp *http.Response, err error) string {
	if err == nil {
		return strconv.Itoa(resp.StatusCode)
	}
	var name *net.DNSError
	switch {
	case errors.Is(err, errStalled), isTimeout(err):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.As(err, &name):
		return "name_resolution"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection_refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "connection_broken"
	}
	return otherRoute
}

// traceRequest begins the span of a client's request, where its trace is kept: as part
// of the trace that the client names, if it does (W3C Trace Context).
func (g *Gateway) traceRequest(ex *exchange) {
	if g.Tracer == nil {
		return
	}
	ctx := ex.in.Context()
	if len(ex.in.Header["Traceparent"]) > 0 {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(ex.in.Header))
	}
	ex.traced(g.Tracer.Start(ctx, ex.record.Method, ofServer...))
}

// ofServer are made once: each request begins a span, few are kept.
var ofServer = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer)}

// traceBackground begins the span of what nobody waits for, with a link to what began it.
func (g *Gateway) traceBackground(ex *exchange, cause trace.SpanContext) {
	if g.Tracer != nil {
		ex.traced(g.Tracer.Start(ex.in.Context(), ex.record.Method, trace.WithLinks(trace.Link{SpanContext: cause})))
	}
}

// traced takes up a span, if it is kept.
func (ex *exchange) traced(ctx context.Context, span trace.Span) {
	if span.IsRecording() {
		ex.span, ex.in = span, ex.in.WithContext(ctx)
		ex.record.Trace, ex.record.Span = span.SpanContext().TraceID().String(), span.SpanContext().SpanID().String()
	}
}

// spanContext is by which others refer to the exchange; it is not valid where no trace
// is kept.
func (ex *exchange) spanContext() trace.SpanContext {
	if ex.span == nil {
		return trace.SpanContext{}
	}
	return ex.span.SpanContext()
}

// traceparent is how other replicas are told of a span, and spanContextOf reads it; empty
// where it is not valid.
func traceparent(c trace.SpanContext) string {
	if !c.IsValid() {
		return ""
	}
	told := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), c), told)
	return told.Get("traceparent")
}

func spanContextOf(traceparent string) trace.SpanContext {
	told := propagation.MapCarrier{"traceparent": traceparent}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), told))
}

// endTrace ends the exchange's span, by the finished record.
func (g *Gateway) endTrace(ex *exchange) {
	if ex.span == nil {
		return
	}
	r := &ex.record
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
		attribute.String("weir.operation", r.Operation), attribute.String("weir.account", r.Account), attribute.String("weir.client", r.ClientLabel()),
		attribute.String("weir.cache", r.Outcome), attribute.String("weir.cache_status", r.Cache),
		attribute.Int64("weir.wait_ms", r.Waited.Milliseconds()),
	)
	if admission := r.admission(); admission != "" {
		attributes = append(attributes, attribute.String("weir.admission", admission))
	}
	if r.Status >= http.StatusInternalServerError {
		attributes = append(attributes, semconv.ErrorTypeKey.String(strconv.Itoa(r.Status)))
		ex.span.SetStatus(codes.Error, "")
	}
	ex.span.SetAttributes(attributes...)
	ex.span.End()
}

// clientAttributes are those of a span of kind server (the conventions' HTTP server
// spans), none where no client asks. What a client wrote is made fit for text.
func (g *Gateway) clientAttributes(ex *exchange) []attribute.KeyValue {
	list := make([]attribute.KeyValue, 0, 20) // with those of every span
	if ex.record.Background {
		return list
	}
	secure := g.TrustedProxies.IsHTTPS(ex.in)
	host, port := hostPort(ex.in.Host, secure)
	scheme := "http"
	if secure {
		scheme = "https"
	}
	list = append(list,
		semconv.URLScheme(scheme), semconv.URLPath(ex.shownPath()), semconv.HTTPResponseStatusCode(ex.record.Status),
		semconv.ServerAddress(fitForText(host)), semconv.ServerPort(port),
		semconv.NetworkProtocolVersion(protocolVersion(ex.in)),
	)
	if sender := g.TrustedProxies.ClientAddress(ex.in); sender.IsValid() {
		list = append(list, semconv.ClientAddress(sender.String()))
	}
	if agent := ex.in.UserAgent(); agent != "" && !ex.isSecret(agent) {
		list = append(list, semconv.UserAgentOriginal(fitForText(agent)))
	}
	return list
}

// protocolVersion is the version of HTTP as the conventions write it.
func protocolVersion(r *http.Request) string {
	if r.ProtoMajor >= 2 {
		return strconv.Itoa(r.ProtoMajor)
	}
	return strconv.Itoa(r.ProtoMajor) + "." + strconv.Itoa(r.ProtoMinor)
}

// hostPort splits an authority; its port is that of the scheme where it names none.
func hostPort(authority string, secure bool) (host string, port int) {
	host, named, err := net.SplitHostPort(authority)
	if err != nil {
		host = strings.Trim(authority, "[]")
	}
	if port, err = strconv.Atoi(named); err != nil {
		port = 80
		if secure {
			port = 443
		}
	}
	return host, port
}

// maxText bounds what of a client's own words goes into a span.
const maxText = 256

func fitForText(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxText)], "\uFFFD") }

// hidden stands in a path for what may be a secret.
const hidden = "REDACTED"

// credentialShape is what tokens of the API and keys of the gateway look like.
var credentialShape = regexp.MustCompile(`gh[a-z]_|github_pat_|weir_`)

// shownPath is the path for traces: of an operation that nobody documents its shape,
// of others without what may be a secret.
func (ex *exchange) shownPath() string {
	switch {
	case ex.match.Operation == nil:
		return otherRoute
	case !ex.match.Operation.Known():
		return ex.route
	}
	segments := strings.Split(ex.match.Path, "/")
	for i, s := range segments {
		if len(s) > maxText || ex.isSecret(s) {
			segments[i] = hidden
		}
	}
	return strings.Join(segments, "/")
}

// isSecret reports whether a text looks like a credential, or holds or is part of one
// that the request shows.
func (ex *exchange) isSecret(text string) bool {
	if credentialShape.MatchString(text) {
		return true
	}
	for _, name := range []string{"Authorization", "Cookie"} {
		for _, value := range ex.in.Header[name] {
			if _, credential, ok := strings.Cut(value, " "); ok {
				value = credential
			}
			if len(value) >= leastSecret && strings.Contains(text, value) || len(text) >= leastSecret && strings.Contains(value, text) {
				return true
			}
		}
	}
	return false
}

// leastSecret is how long a part of a credential is that tells something.
const leastSecret = 8
