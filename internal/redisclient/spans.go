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

// spans is a [redis.Hook] that starts a span for each command or pipeline of a traced request. A span has the
// name of the command, but no keys and no values.
type spans struct{}

func (spans) DialHook(next redis.DialHook) redis.DialHook { return next }

func (spans) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return traced(ctx, strings.ToUpper(cmd.Name()), 1, func(ctx context.Context) error { return next(ctx, cmd) })
	}
}

func (spans) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return traced(ctx, "PIPELINE", len(cmds), func(ctx context.Context) error { return next(ctx, cmds) })
	}
}

// traced calls do within a span if the context has a recording span, and without a span otherwise.
func traced(ctx context.Context, operation string, commands int, do func(context.Context) error) error {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return do(ctx)
	}
	attributes := []attribute.KeyValue{semconv.DBSystemNameRedis, semconv.DBOperationName(operation)}
	if commands > 1 {
		attributes = append(attributes, semconv.DBOperationBatchSize(commands))
	}
	tracer := parent.TracerProvider().Tracer("github.com/weirgate/weir/internal/redisclient")
	ctx, span := tracer.Start(ctx, operation, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes...))
	defer span.End()
	err := do(ctx)
	if err != nil && !errors.Is(err, redis.Nil) && !errors.Is(err, context.Canceled) {
		span.SetAttributes(semconv.ErrorTypeKey.String(errorType(err)))
		span.SetStatus(codes.Error, "") // the text of the error may contain arguments of the command
	}
	return err
}

// errorType returns the code at the beginning of a Redis error, such as NOSCRIPT, or the kind of a network error.
func errorType(err error) string {
	var reply redis.Error
	var network net.Error
	switch {
	case errors.As(err, &reply):
		code, _, _ := strings.Cut(reply.Error(), " ")
		return code
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return "timeout"
	}
	return semconv.ErrorTypeOther.Value.AsString()
}
