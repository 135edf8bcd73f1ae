package proxy

import (
	"cmp"
	"context"
	"errors"
	"iter"
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
)

// These are the names of stages; see [Stage.Name].
const (
	stageQueue    = "queue"
	stageCoalesce = "coalesce"
	stageAttempt  = "attempt"
	stagePoll     = "poll"
	stageRetry    = "retry"
	stageSettle   = "settle"
)

// stage is a [Stage] in progress.
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
		ex.record.Stages = make([]Stage, 0, 4) // a request without a wait has three stages
	}
	ex.record.Stages = append(ex.record.Stages, Stage{Name: name, Start: time.Since(ex.record.Start)})
	if !ex.span.IsRecording() {
		return s
	}
	if name == stageAttempt {
		attributes := trace.WithAttributes(g.attemptAttributes(ex)...)
		s.ctx, s.span = g.Tracer.Start(ctx, ex.record.Method+" "+ex.record.Route, trace.WithSpanKind(trace.SpanKindClient), attributes)
	} else {
		s.ctx, s.span = g.Tracer.Start(ctx, name)
	}
	return s
}

// end ends the stage and returns the duration. detail is the reason or the result of the stage.
func (s stage) end(detail string, err error) time.Duration {
	if detail != "" && s.span.IsRecording() {
		s.span.SetAttributes(attribute.String("weir.reason", detail))
	}
	return s.close(detail, err)
}

// endAttempt ends the stage of an attempt with the response or the error.
func (s stage) endAttempt(resp *http.Response, err error) {
	detail := attemptResult(resp, err)
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

// showLimit records the limit error of an attempt.
func (s stage) showLimit(o limits.Outcome) {
	if o.Limited == limits.NotLimited {
		return
	}
	s.ex.record.Stages[s.index].Limited = o.Limited
	s.span.SetAttributes(attribute.String("weir.reason", o.Limited.String()))
}

// linkTo links the stage to the span of the other request that the stage waits for.
func (s stage) linkTo(other trace.SpanContext) {
	if other.IsValid() {
		s.span.AddLink(trace.Link{SpanContext: other})
	}
}

// attemptAttributes returns the attributes of a client span (OpenTelemetry's HTTP conventions). The query is omitted
// because it may contain secrets.
func (g *Gateway) attemptAttributes(ex *exchange) []attribute.KeyValue {
	list := []attribute.KeyValue{
		semconv.HTTPRequestMethodKey.String(ex.record.Method),
		semconv.ServerAddress(g.Upstream.Hostname()), semconv.ServerPort(port(g.Upstream)),
		semconv.URLFull(strings.TrimSuffix(g.Upstream.Scheme+"://"+g.Upstream.Host+g.Upstream.EscapedPath(), "/") + ex.maskedPath()),
		semconv.URLTemplate(ex.record.Route),
	}
	if ex.record.Attempts > 0 {
		list = append(list, semconv.HTTPRequestResendCount(ex.record.Attempts))
	}
	return list
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
	if errors.Is(err, context.Canceled) {
		return "canceled"
	}
	return "store"
}

// attemptResult returns the detail of an attempt stage: the status or the kind of the error.
func attemptResult(resp *http.Response, err error) string {
	if err == nil {
		return strconv.Itoa(resp.StatusCode)
	}
	switch {
	case errors.Is(err, errStalled), isTimeout(err):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "canceled"
	}
	_, errorType := connectionFault(err)
	return cmp.Or(errorType, "_OTHER")
}

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

// traceBackground starts the span of a background task, with a link to the request that started it.
func (g *Gateway) traceBackground(ex *exchange, cause trace.SpanContext) {
	ctx, span := g.Tracer.Start(ex.in.Context(), ex.record.Method, trace.WithLinks(trace.Link{SpanContext: cause}))
	g.setSpan(ex, ctx, span)
}

// propagate returns the request with the trace context of an attempt, or the request itself if trace contexts are not
// sent upstream. Baggage is never sent.
func (g *Gateway) propagate(attempt stage, out *http.Request) *http.Request {
	if !g.PropagateTrace {
		return out
	}
	traced := *out // an earlier attempt may still use the header
	traced.Header = maps.Clone(out.Header)
	propagation.TraceContext{}.Inject(attempt.ctx, propagation.HeaderCarrier(traced.Header))
	return &traced
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
		semconv.ServerAddress(truncated(local.Hostname())), semconv.ServerPort(port(local)), semconv.NetworkProtocolVersion(version),
	}
	if address := g.TrustedProxies.ClientAddress(ex.in); address.IsValid() {
		list = append(list, semconv.ClientAddress(address.String()))
	}
	if agent := ex.in.UserAgent(); agent != "" && !ex.isSecret(agent) {
		list = append(list, semconv.UserAgentOriginal(truncated(agent)))
	}
	return list
}

const (
	// maxText bounds text from the client in spans.
	maxText = 256
	// minSecret is the minimum length of a part of a credential that counts as a secret.
	minSecret = 8
	// masked replaces path segments that may contain a secret.
	masked = "REDACTED"
)

func truncated(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxText)], "\uFFFD") }

// credentialPrefixes begin the tokens of the API and the keys of the gateway. A question mark is any lower-case letter. Each
// prefix ends with an underscore.
var credentialPrefixes = [...]string{"gh?_", "github_pat_", "weir_"}

// afterCredentialPrefixes returns the rest of a text after each of its credential prefixes.
func afterCredentialPrefixes(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for end, c := range []byte(text) {
			if c == '_' && endsWithCredentialPrefix(text[:end+1]) && !yield(text[end+1:]) {
				return
			}
		}
	}
}

func endsWithCredentialPrefix(text string) bool {
	for _, prefix := range credentialPrefixes {
		before, after, hasLetter := strings.Cut(prefix, "?")
		switch n := len(text) - len(prefix); {
		case n < 0:
		case !hasLetter && text[n:] == prefix:
			return true
		case hasLetter && strings.HasPrefix(text[n:], before) && strings.HasSuffix(text, after) && 'a' <= text[n+len(before)] && text[n+len(before)] <= 'z':
			return true
		}
	}
	return false
}

// maskedPath returns the path for traces, without segments that may contain a secret. For an unknown operation,
// maskedPath returns the route.
func (ex *exchange) maskedPath() string {
	if ex.question == nil || !ex.question.match.Operation.Known() {
		return ex.record.Route
	}
	own := ex.appendCredentials(make([]string, 0, 2))
	isMasked := func(segment string) bool { return len(segment) > maxText || isSecret(segment, own) }
	for segment := range strings.SplitSeq(ex.question.match.Path, "/") {
		if isMasked(segment) {
			return maskSegments(ex.question.match.Path, isMasked)
		}
	}
	return ex.question.match.Path
}

func maskSegments(path string, isMasked func(segment string) bool) string {
	segments := strings.Split(path, "/")
	for i, s := range segments {
		if isMasked(s) {
			segments[i] = masked
		}
	}
	return strings.Join(segments, "/")
}

// appendCredentials appends the credentials of the request, without their scheme.
func (ex *exchange) appendCredentials(list []string) []string {
	for _, name := range [...]string{"Authorization", "Cookie"} {
		for _, value := range ex.in.Header[name] {
			if _, credential, ok := strings.Cut(value, " "); ok {
				value = credential
			}
			list = append(list, value)
		}
	}
	return list
}

// isSecret reports whether a text has the shape of a credential, contains the request's own credential, or is part of
// that credential.
func (ex *exchange) isSecret(text string) bool {
	return isSecret(text, ex.appendCredentials(nil))
}

func isSecret(text string, own []string) bool {
	for range afterCredentialPrefixes(text) {
		return true
	}
	for _, value := range own {
		if len(value) >= minSecret && strings.Contains(text, value) || len(text) >= minSecret && strings.Contains(value, text) {
			return true
		}
	}
	return false
}
