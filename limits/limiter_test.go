package limits

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/policy"
)

func TestWaiterGoesWhenAPermitSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(NewMemory(policy.DefaultLimits()))
		claim := Claim{Account: "a", Kind: policy.User, Resource: "core"}
		ctx := context.Background()
		var flying []*Permit
		for range slowStart {
			p, err := l.Acquire(ctx, claim, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			flying = append(flying, p)
		}
		began, admitted := time.Now(), make(chan time.Duration)
		go func() {
			if _, err := l.Acquire(ctx, claim, time.Now().Add(time.Minute)); err != nil {
				t.Error(err)
			}
			admitted <- time.Since(began)
		}()
		time.Sleep(3 * time.Second)
		if err := l.Settle(ctx, *flying[0], Outcome{}); err != nil {
			t.Fatal(err)
		}
		if after := <-admitted; after != 3*time.Second {
			t.Errorf("admitted after %v", after)
		}
		if len(l.waiting) != 0 {
			t.Errorf("%d accounts still have waiters", len(l.waiting))
		}
	})
}

func TestAcquireGivesUp(t *testing.T) {
	for _, c := range []struct {
		name     string
		patience time.Duration
		cancel   time.Duration
		after    time.Duration
		is       func(error) bool
	}{
		{"at its deadline", 5 * time.Second, time.Hour, 5 * time.Second, func(err error) bool {
			var r *Refusal
			return errors.As(err, &r) && r.Reason == Primary && r.Until.After(time.Now())
		}},
		{"with its client", time.Minute, 2 * time.Second, 2 * time.Second, func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }},
		{"at once without patience", 0, time.Hour, 0, func(err error) bool { var r *Refusal; return errors.As(err, &r) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := NewLimiter(NewMemory(policy.DefaultLimits()))
				claim := Claim{Account: "a", Kind: policy.User, Resource: "core"}
				for range slowStart {
					if _, err := l.Acquire(context.Background(), claim, time.Now()); err != nil {
						t.Fatal(err)
					}
				}
				ctx, cancel := context.WithTimeout(context.Background(), c.cancel)
				defer cancel()
				began := time.Now()
				_, err := l.Acquire(ctx, claim, began.Add(c.patience))
				if took := time.Since(began); took != c.after || !c.is(err) {
					t.Errorf("after %v: %v", took, err)
				}
			})
		})
	}
}

func TestWaitersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(NewMemory(policy.DefaultLimits()))
		claim := Claim{Account: "a", Kind: policy.User, Resource: "core"}
		ctx, cancel := context.WithCancel(context.Background())
		for range slowStart {
			if _, err := l.Acquire(ctx, claim, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		for range maxWaiters {
			go func() { _, _ = l.Acquire(ctx, claim, time.Now().Add(time.Hour)) }()
		}
		synctest.Wait()
		_, err := l.Acquire(ctx, claim, time.Now().Add(time.Hour))
		var r *Refusal
		if !errors.As(err, &r) || r.Reason != Queue {
			t.Errorf("got %v", err)
		}
		cancel()
		synctest.Wait()
		if len(l.waiting) != 0 {
			t.Error("waiters left behind")
		}
	})
}
