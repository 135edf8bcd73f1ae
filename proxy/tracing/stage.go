package tracing

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/record"
	"github.com/weirgate/weir/proxy/wire"
)

// Stage is a [record.Stage] in progress.
type Stage struct {
	Context context.Context // for the work of the stage

	request Request
	index   int        // position of the stage in the record
	span    trace.Span // records nothing if the request is not sampled
}

// Stage begins a stage of the request.
func (r Request) Stage(ctx context.Context, name string) Stage {
	s := Stage{ctx, r, len(r.record.Stages), noop.Span{}}
	if r.record.Stages == nil {
		r.record.Stages = make([]record.Stage, 0, 4) // a request without a wait has three stages
	}
	r.record.Stages = append(r.record.Stages, record.Stage{Name: name, Start: time.Since(r.record.Start)})
	switch {
	case !r.span.IsRecording():
	case name == record.StageRequest:
		attributes := trace.WithAttributes(r.requestAttributes()...)
		s.Context, s.span = r.tracer.Spans.Start(ctx, r.record.Method+" "+r.record.Route, trace.WithSpanKind(trace.SpanKindClient), attributes)
	default:
		s.Context, s.span = r.tracer.Spans.Start(ctx, name)
	}
	return s
}

// End ends the stage. detail is the reason or the result of the stage.
func (s Stage) End(detail string, err error) {
	if detail != "" && s.span.IsRecording() {
		s.span.SetAttributes(attribute.String("weir.reason", detail))
	}
	s.close(detail, err)
}

// EndWait ends a stage in which the request waited.
func (s Stage) EndWait(detail string, err error) {
	s.End(detail, err)
	s.request.record.Waited += s.recorded().Elapsed
}

// EndQueue ends the wait for a permit.
func (s Stage) EndQueue(p *limits.Permit, err error) {
	s.showShared(p, err)
	s.EndWait(queueResult(p, err), err)
}

// EndRequest ends the stage of a request upstream with the response or the error, and with the limit error of the response.
func (s Stage) EndRequest(resp *http.Response, limited policy.LimitKind, err error) {
	if limited != policy.NotLimited {
		s.recorded().Limited = limited
		s.span.SetAttributes(attribute.String("weir.reason", string(limited)))
	}
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

func (s Stage) recorded() *record.Stage { return &s.request.record.Stages[s.index] }

func (s Stage) close(detail string, err error) {
	r := s.recorded()
	r.Elapsed = time.Since(s.request.record.Start) - r.Start
	r.Detail, r.Failed = detail, err != nil
	if err != nil && !errors.Is(err, context.Canceled) { // a client's disconnect is not an error
		s.span.SetStatus(codes.Error, "")
	}
	s.span.End()
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

// showShared adds the use of the budget that delayed or refused the permit to the stage.
func (s Stage) showShared(p *limits.Permit, err error) {
	var u *limits.SharedUse
	if refusal, ok := errors.AsType[*limits.Refusal](err); ok {
		u = refusal.Shared
	} else if err == nil {
		u = p.Shared
	}
	if u == nil {
		return
	}
	s.recorded().Shared = u
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

// LinkTo links the stage to the span of the other request that the stage waits for.
func (s Stage) LinkTo(other trace.SpanContext) {
	if other.IsValid() {
		s.span.AddLink(trace.Link{SpanContext: other})
	}
}

// Propagate returns the request with the trace context of its stage, or the request itself if trace contexts are not
// sent upstream. Baggage is never sent.
func (s Stage) Propagate(out *http.Request) *http.Request {
	if !s.request.tracer.Propagate {
		return out
	}
	traced := *out // an earlier request may still use the header
	traced.Header = maps.Clone(out.Header)
	propagation.TraceContext{}.Inject(s.Context, propagation.HeaderCarrier(traced.Header))
	return &traced
}
