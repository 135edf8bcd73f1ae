package coalesce

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/weirgate/weir/cache"
)

func neverPurged(cache.Generation) bool { return false }

// lead starts a call as its leader and returns the context of its request.
func lead(t *testing.T, g *Group, q Question) (*Call, context.Context) {
	t.Helper()
	c, leads := g.Join(q, neverPurged)
	if !leads {
		t.Fatal("joined an existing call, want a new one")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	c.Lead(cancel, trace.SpanContext{})
	return c, ctx
}

// follow joins a call as a follower.
func follow(t *testing.T, g *Group, q Question) *Call {
	t.Helper()
	c, leads := g.Join(q, neverPurged)
	if leads {
		t.Fatal("started a new call, want a follower of the existing call")
	}
	return c
}

func TestWaitReturnsTheResultToEachFollower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group
		fault := errors.New("upstream unreachable")
		leader, _ := lead(t, &g, Question{Path: "/a"})
		for range 3 {
			c := follow(t, &g, Question{Path: "/a"})
			go func() {
				if r, err := c.Wait(t.Context(), time.Now().Add(time.Minute)); r != Failed || !errors.Is(err, fault) {
					t.Errorf("got %v, %v, want failed, %v", r, err, fault)
				}
			}()
		}
		time.Sleep(time.Second)
		leader.Finish(Failed, fault)
		leader.Finish(Stored, nil) // has no effect
		synctest.Wait()
		lead(t, &g, Question{Path: "/a"})
	})
}

func TestJoinSeparatesKeys(t *testing.T) {
	var g Group
	lead(t, &g, Question{Key: cache.NewKey("a")})
	lead(t, &g, Question{Key: cache.NewKey("b")})
}

func TestJoinStartsANewCallAfterAPurge(t *testing.T) {
	var g Group
	old, _ := lead(t, &g, Question{Since: 1})
	c, leads := g.Join(Question{Since: 2}, func(since cache.Generation) bool { return since < 2 })
	if !leads || c == old {
		t.Fatal("followed a call that began before the purge")
	}
	old.Finish(Stored, nil)
	if follow(t, &g, Question{Since: 2}) != c {
		t.Error("the end of the old call removed the new call")
	}
}

func TestRequestIsCanceledWhenAllClientsHaveLeft(t *testing.T) {
	var g Group
	leader, request := lead(t, &g, Question{})
	first, second := follow(t, &g, Question{}), follow(t, &g, Question{})
	leader.LeaderLeft()
	first.Leave()
	if err := request.Err(); err != nil {
		t.Fatalf("got cause %v while a follower waits", err)
	}
	second.Leave()
	if err := context.Cause(request); !errors.Is(err, errAbandoned) {
		t.Errorf("got cause %v, want %v", err, errAbandoned)
	}
	if c, leads := g.Join(Question{}, neverPurged); !leads || c == leader {
		t.Error("followed a canceled call")
	}
}

func TestDetachedCallOutlivesItsLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group
		c, _ := lead(t, &g, Question{})
		background, cancel := context.WithCancelCause(t.Context())
		if !c.Detach(cancel) {
			t.Fatal("the call was not detached")
		}
		if background.Err() != nil {
			t.Fatal("the request was canceled although the leader follows")
		}
		c.SetComputing(&cache.Entry{}, time.Now().Add(time.Second))
		if r, _ := c.Wait(t.Context(), time.Now()); r != Computing {
			t.Errorf("got %v, want computing", r)
		}
		if background.Err() != nil {
			t.Error("the request was canceled although the client is expected to return")
		}
		if polls := g.Polls(); len(polls) != 1 || polls[0].Polls != 1 || polls[0].Waiting != 1 {
			t.Errorf("got polls %+v", polls)
		}
		c.Finish(Stored, nil)
		if background.Err() == nil || c.Detach(cancel) || len(g.Polls()) > 0 {
			t.Error("the call continues after its end")
		}
	})
}

func TestWaitEndsAtTheDeadlineOnlyWhilePaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group
		c, _ := lead(t, &g, Question{})
		began := time.Now()
		if r, _ := follow(t, &g, Question{}).Wait(t.Context(), began.Add(time.Second)); r != Paused || time.Since(began) != time.Second {
			t.Errorf("got %v after %v, want paused after 1s", r, time.Since(began))
		}
		c.SetPaused(false)
		time.AfterFunc(time.Minute, func() { c.SetPaused(true) })
		if r, _ := follow(t, &g, Question{}).Wait(t.Context(), time.Now()); r != Paused || time.Since(began) != time.Minute+time.Second {
			t.Errorf("got %v after %v, want paused when the request waits again", r, time.Since(began))
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if r, err := follow(t, &g, Question{}).Wait(ctx, time.Now().Add(time.Hour)); r != Failed || !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, %v for a client that disconnects", r, err)
		}
	})
}

func TestNilCallIgnoresProgress(t *testing.T) {
	var c *Call
	c.SetPaused(true)
	c.SetComputing(nil, time.Time{})
	c.SetShared(true)
	c.Close()
	c.Finish(Stored, nil)
}
