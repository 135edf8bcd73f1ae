package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// Logs returns a handler that writes as another does, with trace_id and span_id where
// there is a span, and sends what is written to where the environment says.
func (t *Telemetry) Logs(local slog.Handler) slog.Handler {
	return &logs{local: local, remote: t.logs}
}

type logs struct {
	local  slog.Handler
	remote slog.Handler // nil for none; it takes the span from the context
}

// Enabled implements [slog.Handler].
func (l *logs) Enabled(ctx context.Context, level slog.Level) bool {
	return l.local.Enabled(ctx, level)
}

// Handle implements [slog.Handler].
func (l *logs) Handle(ctx context.Context, record slog.Record) error {
	var err error
	if l.remote != nil {
		err = l.remote.Handle(ctx, record.Clone())
	}
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		record.AddAttrs(slog.String("trace_id", span.TraceID().String()), slog.String("span_id", span.SpanID().String()))
	}
	return errors.Join(err, l.local.Handle(ctx, record))
}

// WithAttrs implements [slog.Handler].
func (l *logs) WithAttrs(attrs []slog.Attr) slog.Handler {
	return l.with(func(h slog.Handler) slog.Handler { return h.WithAttrs(attrs) })
}

// WithGroup implements [slog.Handler].
func (l *logs) WithGroup(name string) slog.Handler {
	return l.with(func(h slog.Handler) slog.Handler { return h.WithGroup(name) })
}

func (l *logs) with(change func(slog.Handler) slog.Handler) *logs {
	next := &logs{local: change(l.local)}
	if l.remote != nil {
		next.remote = change(l.remote)
	}
	return next
}

// complaints is told what goes wrong with telemetry, and says it, but not again and
// again: a collector that is away is away for a while.
type complaints struct {
	log *slog.Logger

	mu       sync.Mutex
	said     time.Time
	withheld int
	over     bool // nobody is told any more
}

// complainEvery is the least time between two complaints.
const complainEvery = time.Minute

// Handle implements the SDK's error handler.
func (c *complaints) Handle(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	if now := time.Now(); now.Sub(c.said) >= complainEvery {
		c.log.Warn("telemetry", "error", err, "withheld", c.withheld)
		c.said, c.withheld = now, 0
		return
	}
	c.withheld++
}

// end is for when telemetry is closed: the SDK's handler is one for the process, and what
// has not ended in time may still call it.
func (c *complaints) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
}
