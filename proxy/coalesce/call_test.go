package coalesce

import (
	"context"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/weirgate/weir/cache"
)

// The tests of package proxy cover the rest of the package.

func TestDetachedCallOutlivesItsLeader(t *testing.T) {
	var g Group
	c, leads := g.Join(Question{}, func(cache.Generation) bool { return false })
	_, cancelFirst := context.WithCancelCause(t.Context())
	c.Lead(cancelFirst, trace.SpanContext{})
	background, cancel := context.WithCancelCause(t.Context())
	if !c.Detach(cancel) || !leads {
		t.Fatal("the call was not detached")
	}
	if background.Err() != nil {
		t.Fatal("the request was canceled although the leader follows")
	}
	c.SetComputing(&cache.Entry{}, time.Now().Add(time.Second))
	r, _ := c.Wait(t.Context(), time.Now())
	if r != Computing {
		t.Errorf("got %v, want computing", r)
	}
	if background.Err() != nil {
		t.Errorf("the request was canceled although the client is expected to return")
	}
	polls := g.Polls()
	if len(polls) != 1 || polls[0].Polls != 1 || polls[0].Waiting != 1 {
		t.Errorf("got polls %+v", polls)
	}
	c.Finish(Ending{Result: Stored})
	if background.Err() == nil || c.Detach(cancel) || len(g.Polls()) > 0 {
		t.Errorf("the call continues after its end")
	}
}
