package redisclient

import (
	"context"
	"errors"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// spans is a hook that makes a span of each command, or pipeline of them, that is sent
// in the course of what is traced. It tells which command, never of what: keys and
// values are not in it.
type spans struct{}

// DialHook implements [redis.Hook].
func (spans) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements [redis.Hook].
func (spans) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !trace.SpanFromContext(ctx).IsRecording() {
			return next(ctx, cmd)
		}
		return traced(ctx, strings.ToUpper(cmd.Name()), 1, func(ctx context.Context) error { return next(ctx, cmd) })
	}
}

// ProcessPipelineHook implements [redis.Hook].
func (spans) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if !trace.SpanFromContext(ctx).IsRecording() {
			return next(ctx, cmds)
		}
		return traced(ctx, "PIPELINE", len(cmds), func(ctx context.Context) error { return next(ctx, cmds) })
	}
}

// traced does something in a span of the provider whose span the context has.
func traced(ctx context.Context, operation string, commands int, do func(context.Context) error) error {
	attributes := []attribute.KeyValue{semconv.DBSystemNameRedis, semconv.DBOperationName(operation)}
	if commands > 1 {
		attributes = append(attributes, semconv.DBOperationBatchSize(commands))
	}
	tracer := trace.SpanFromContext(ctx).TracerProvider().Tracer("github.com/weirgate/weir/internal/redisclient")
	ctx, span := tracer.Start(ctx, operation, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes...))
	defer span.End()
	err := do(ctx)
	if err != nil && !errors.Is(err, redis.Nil) && !errors.Is(err, context.Canceled) {
		span.SetAttributes(semconv.ErrorTypeKey.String(kindOf(err)))
		span.SetStatus(codes.Error, "") // what it says may quote what was sent
	}
	return err
}

// kindOf is the kind of an error: the code with which Redis begins it, such as NOSCRIPT,
// or what went wrong on the way.
func kindOf(err error) string {
	var said redis.Error
	var network net.Error
	switch {
	case errors.As(err, &said):
		code, _, _ := strings.Cut(said.Error(), " ")
		return code
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return "timeout"
	}
	return semconv.ErrorTypeOther.Value.AsString()
}
