package redisstore

import (
	"context"
	"testing"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/testservers"
)

func TestOneAtATimeHasAClaim(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, b := f.open(""), f.open("")
		claims := func(r *replica, c cache.FetchLease) *cache.FetchLease {
			f.Helper()
			mine, other := r.AcquireFetch(f.Context(), page, c)
			if mine == (other != nil) {
				f.Fatalf("mine: %v, another's: %+v", mine, other)
			}
			return other
		}
		next := time.Now().Add(time.Minute).Round(time.Millisecond)
		if other := claims(a, cache.FetchLease{Owner: "a", Since: 7}); other != nil {
			f.Errorf("nobody had claimed it: %+v", other)
		}
		if other := claims(a, cache.FetchLease{Owner: "a", Since: 7, Sent: true, Pending: fetched(0, "wait"), Next: next}); other != nil {
			f.Errorf("it is not renewed: %+v", other)
		}
		other := claims(b, cache.FetchLease{Owner: "b"})
		if other == nil || other.Owner != "a" || other.Since != 7 || !other.Sent || other.Failed || !other.Next.Equal(next) ||
			other.Pending == nil || string(other.Pending.Body) != "wait" {
			f.Errorf("the other is told %+v", other)
		}
		b.ReleaseFetch(f.Context(), page, "b", false)
		if claims(b, cache.FetchLease{Owner: "b"}) == nil {
			f.Error("another's claim was ended")
		}
		a.ReleaseFetch(f.Context(), page, "a", true)
		if other := claims(b, cache.FetchLease{Owner: "b"}); other == nil || !other.Failed {
			f.Errorf("that it has failed is not known: %+v", other)
		}
		client := f.client()
		defer func() { _ = client.Close() }()
		if lives := client.PTTL(f.Context(), claimName(page)).Val(); lives <= 0 || lives > failedLives {
			f.Errorf("that it has failed is known for %v", lives)
		}
		client.Del(f.Context(), claimName(page))
		claims(a, cache.FetchLease{Owner: "a"})
		a.ReleaseFetch(f.Context(), page, "a", false)
		if other := claims(b, cache.FetchLease{Owner: "b"}); other != nil {
			f.Errorf("it has ended: %+v", other)
		}
		f.cut(true)
		if mine, other := a.AcquireFetch(f.Context(), page, cache.FetchLease{Owner: "a"}); mine || other != nil {
			f.Error("nobody can tell without Redis")
		}
	})
}

func TestAClaimThatNobodyRenewsEnds(t *testing.T) {
	t.Parallel()
	f := &fleet{T: t, network: "unix", address: testservers.Redis(t)} // the time of miniredis is set by hand
	a, b := f.open(""), f.open("")
	if mine, _ := a.AcquireFetch(f.Context(), page, cache.FetchLease{Owner: "a"}); !mine {
		f.Fatal("not claimed")
	}
	testservers.Eventually(f, "another may have it", func(context.Context) bool {
		mine, _ := b.AcquireFetch(f.Context(), page, cache.FetchLease{Owner: "b"})
		return mine
	})
}
