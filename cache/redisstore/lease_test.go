package redisstore

import (
	"testing"
	"time"

	"github.com/weirgate/weir/cache"
)

func TestOnlyOneReplicaHoldsTheLease(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, b := f.pair()
		acquire := func(r *replica, c cache.FetchLease) *cache.FetchLease {
			f.Helper()
			acquired, other := r.AcquireFetch(f.Context(), page, c)
			stopIf(f, acquired == (other != nil), "acquired: %v, lease of another replica: %+v", acquired, other)
			return other
		}
		next := time.Now().Add(time.Minute).Round(time.Millisecond)
		if other := acquire(a, cache.FetchLease{Owner: "a", Since: 7}); other != nil {
			f.Errorf("a free lease was refused: %+v", other)
		}
		if other := acquire(a, cache.FetchLease{Owner: "a", Since: 7, Sent: true, Pending: fetched(0, "wait"), Next: next}); other != nil {
			f.Errorf("the owner could not renew: %+v", other)
		}
		other := acquire(b, cache.FetchLease{Owner: "b"})
		failIf(f, other == nil || other.Owner != "a" || other.Since != 7 || !other.Sent || other.Failed || !other.Next.Equal(next) ||
			other.Pending == nil || string(other.Pending.Body) != "wait", "the other replica gets %+v", other)
		b.ReleaseFetch(f.Context(), page, "b", false)
		failIf(f, acquire(b, cache.FetchLease{Owner: "b"}) == nil, "a replica released the lease of another replica")
		a.ReleaseFetch(f.Context(), page, "a", true)
		if other := acquire(b, cache.FetchLease{Owner: "b"}); other == nil || !other.Failed {
			f.Errorf("the failure is not reported: %+v", other)
		}
		client := f.client()
		lives := client.PTTL(f.Context(), leaseName(page)).Val()
		failIf(f, lives <= 0 || lives > failureLife, "the failure expires after %v", lives)
		client.Del(f.Context(), leaseName(page))
		acquire(a, cache.FetchLease{Owner: "a"})
		a.ReleaseFetch(f.Context(), page, "a", false)
		if other := acquire(b, cache.FetchLease{Owner: "b"}); other != nil {
			f.Errorf("the released lease was refused: %+v", other)
		}
		f.cut(true)
		if acquired, other := a.AcquireFetch(f.Context(), page, cache.FetchLease{Owner: "a"}); acquired || other != nil {
			f.Error("a lease was reported without Redis")
		}
	})
}

func TestLeaseExpiresWithoutRenewal(t *testing.T) {
	onRedis(t, func(f *fleet) { // miniredis does not expire keys
		a, b := f.pair()
		if acquired, _ := a.AcquireFetch(f.Context(), page, cache.FetchLease{Owner: "a"}); !acquired {
			f.Fatal("the free lease was refused")
		}
		f.eventually("another replica acquires the lease", func() bool {
			acquired, _ := b.AcquireFetch(f.Context(), page, cache.FetchLease{Owner: "b"})
			return acquired
		})
	})
}
