package telemetry

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// These are the values of the setting telemetry.log_format.
const (
	LogFormatText = "text"
	LogFormatJSON = "json"
)

// newHandler returns a handler that writes lines in the configured format, one call of Write for each line.
func newHandler(w io.Writer, c Config) slog.Handler {
	options := &slog.HandlerOptions{Level: c.Level}
	if c.LogFormat == LogFormatJSON {
		return slog.NewJSONHandler(w, options)
	}
	return slog.NewTextHandler(w, options)
}

// lockedWriter serializes the writes of the log and of the access lines.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// logs is a [slog.Handler] that forwards records to local, with trace_id and span_id if the context has a span. It also
// exports the records if the environment selects a log exporter.
type logs struct {
	local  slog.Handler
	remote slog.Handler // takes the span from the context; nil without an exporter
}

func (l *logs) Enabled(ctx context.Context, level slog.Level) bool {
	return l.local.Enabled(ctx, level)
}

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

func (l *logs) WithAttrs(attrs []slog.Attr) slog.Handler {
	return l.with(func(h slog.Handler) slog.Handler { return h.WithAttrs(attrs) })
}

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

// errorLog logs the errors of the SDK, at most one error per errorInterval, because the outage of a collector causes
// many errors.
type errorLog struct {
	log *slog.Logger

	mu         sync.Mutex
	logged     time.Time
	suppressed int
	closed     bool
}

const errorInterval = time.Minute

// Handle implements the SDK's error handler.
func (e *errorLog) Handle(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	if now := time.Now(); now.Sub(e.logged) >= errorInterval {
		e.log.Warn("telemetry export failed", "error", err, "suppressed", e.suppressed)
		e.logged, e.suppressed = now, 0
		return
	}
	e.suppressed++
}

// close stops the log. The SDK has one error handler for the process, and a provider may call the handler after Close.
func (e *errorLog) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
}
