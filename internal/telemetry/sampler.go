package telemetry

import (
	"context"
	"math/rand/v2"
	"slices"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// chooser is a tracer that keeps a fraction of the traces that begin here. A part of a
// trace that began elsewhere is kept if that is, and so is what goes on in the background
// with what is kept.
//
// A sampler of the SDK's would say the same, but is asked when a span, its identifiers
// and its context are made already: for all hits, of which one in a hundred is kept.
type chooser struct {
	trace.Tracer // keeps what has no parent
	fraction     float64
}

// Start implements [trace.Tracer].
func (c chooser) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	if !trace.SpanContextFromContext(ctx).IsValid() && rand.Float64() >= c.fraction && !linked(options) {
		return ctx, noop.Span{}
	}
	return c.Tracer.Start(ctx, name, options...)
}

// linked reports whether a span is linked to one that is kept.
func linked(options []trace.SpanStartOption) bool {
	config := trace.NewSpanStartConfig(options...)
	return slices.ContainsFunc(config.Links(), func(l trace.Link) bool { return l.SpanContext.IsSampled() })
}
