package redisclient

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/weirgate/weir/internal/testservers"
)

// Spans have the name and the result of a command, but no arguments.
func TestCommandsOfTracedRequestsHaveASpan(t *testing.T) {
	server := miniredis.RunT(t)
	c, err := Open("redis://"+server.Addr(), nil)
	noError(t, err)
	defer func() { _ = c.Close() }()
	exported := tracetest.NewInMemoryExporter()
	ctx, span := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exported)).Tracer("test").Start(t.Context(), "request")
	do := func(ctx context.Context) {
		c.Set(ctx, "secret", "secret", time.Minute)
		c.Get(ctx, "absent-secret")
		c.LPush(ctx, "secret", "secret")
		_, _ = c.Pipelined(ctx, func(p redis.Pipeliner) error {
			p.Get(ctx, "secret")
			p.Get(ctx, "secret")
			return nil
		})
	}
	do(t.Context())
	do(ctx)
	span.End()
	var list []string
	for _, s := range exported.GetSpans() {
		text := fmt.Sprint(s.Name, " ", s.Status.Code)
		for _, a := range s.Attributes {
			text += fmt.Sprint(" ", a.Key, "=", a.Value.String())
		}
		list = append(list, text)
		failIf(t, s.Name != "request" && (s.Parent.SpanID() != span.SpanContext().SpanID() || s.SpanKind.String() != "client"), "not a client span of the request: %+v", s)
	}
	want := `SET Unset db.system.name=redis db.operation.name=SET
GET Unset db.system.name=redis db.operation.name=GET
LPUSH Error db.system.name=redis db.operation.name=LPUSH error.type=WRONGTYPE
PIPELINE Unset db.system.name=redis db.operation.name=PIPELINE db.operation.batch.size=2
request Unset`
	got := strings.Join(list, "\n")
	failIf(t, got != want, "got\n%s\nwant\n%s", got, want)
}

func TestErrorType(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("call: %w", context.DeadlineExceeded), "timeout"},
		{errors.New("secret"), "_OTHER"},
	} {
		testservers.Equal(t, fmt.Sprintf("%v", c.err), errorType(c.err), c.want)
	}
}
