package coalesce

import (
	"context"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/testservers"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }
func stopIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.StopIf(t, c, f, a...) }

// The tests of package proxy cover the rest of the package.

func TestDetachedCallOutlivesItsLeader(t *testing.T) {
	var g Group
	c, leads := g.Join(Question{}, func(cache.Generation) bool { return false })
	_, cancelFirst := context.WithCancelCause(t.Context())
	c.Lead(cancelFirst, trace.SpanContext{})
	background, cancel := context.WithCancelCause(t.Context())
	stopIf(t, !c.Detach(cancel) || !leads, "the call was not detached")
	stopIf(t, background.Err() != nil, "the request was canceled although the leader follows")
	c.SetComputing(&cache.Entry{}, time.Now().Add(time.Second))
	r, _ := c.Wait(t.Context(), time.Now())
	failIf(t, r != Computing, "got %v, want computing", r)
	failIf(t, background.Err() != nil, "the request was canceled although the client is expected to return")
	polls := g.Polls()
	failIf(t, len(polls) != 1 || polls[0].Polls != 1 || polls[0].Waiting != 1, "got polls %+v", polls)
	c.Finish(Ending{Result: Stored})
	failIf(t, background.Err() == nil || c.Detach(cancel) || len(g.Polls()) > 0, "the call continues after its end")
}
