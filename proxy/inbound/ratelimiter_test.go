package inbound

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/internal/testservers"
)

// testAddress returns the n-th of many addresses.
func testAddress(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

func newLimiter(perSecond, burst int) *RateLimiter {
	l := &RateLimiter{}
	l.Configure(perSecond, burst)
	return l
}

func (l *RateLimiter) wantAddresses(t *testing.T, when string, want int) {
	t.Helper()
	got := l.buckets.Len()
	failIf(t, got != want, "%s: got %d addresses, want %d", when, got, want)
}

func TestRateLimiterEvictsTheLeastRecentlyUsedAddress(t *testing.T) {
	l, now := newLimiter(1, 1), time.Now()
	for n := range maxBuckets {
		l.Allow(testAddress(n), now)
	}
	failIf(t, l.Allow(testAddress(0), now), "the first address was evicted below the bound")
	l.wantAddresses(t, "at the bound", maxBuckets)
	l.Allow(testAddress(maxBuckets), now)
	l.wantAddresses(t, "above the bound", maxBuckets)
	failIf(t, l.Allow(testAddress(0), now), "a recently used address was evicted")
	failIf(t, !l.Allow(testAddress(1), now), "the least recently used address was not evicted")
}

func TestRateLimiterRemovesIdleAddresses(t *testing.T) {
	l, now := newLimiter(1, 100), time.Now()
	for n := range 1000 {
		l.Allow(testAddress(n), now)
	}
	for range 99 {
		l.Allow(testAddress(0), now) // the bucket of this address needs more than minIdle to refill
	}
	late := now.Add(minIdle + time.Second)
	for _, c := range []struct {
		when     string
		at       time.Time
		requests int
		want     int
	}{
		{"before minIdle", now.Add(minIdle - time.Nanosecond), 1, 1001},
		{"after one request, which removes two", late, 1, 999},
		{"after minIdle, with the active address and the empty bucket", late, 500, 2},
		{"after all buckets are full", late.Add(time.Minute), 1, 1},
	} {
		failIf(t, c.want == 1 && !l.buckets.Contains(testAddress(0)), "the empty bucket was removed")
		for range c.requests {
			l.Allow(testAddress(1000), c.at)
		}
		l.wantAddresses(t, c.when, c.want)
	}
}

func TestConfigureKeepsRemainingTokens(t *testing.T) {
	l, now := &RateLimiter{}, time.Now()
	a, b := testAddress(1), testAddress(2)
	for _, c := range []struct {
		step             string
		perSecond, burst int
		pause            time.Duration
		address          netip.Addr
		want             int // allowed requests
	}{
		{"burst", 2, 10, 0, a, 10},
		{"same configuration", 2, 10, 0, a, 0},
		{"larger burst", 4, 20, 0, a, 0},
		{"new rate", 4, 20, time.Second, a, 4},
		{"another address", 4, 20, 0, b, 1},
		{"smaller burst", 4, 5, 0, b, 5},
		{"disabled", 0, 0, 0, a, 100},
		{"enabled again", 4, 5, 0, a, 5},
	} {
		now = now.Add(c.pause)
		l.Configure(c.perSecond, c.burst)
		failIf(t, c.burst == 0 && l.buckets != nil, "a disabled limiter keeps addresses")
		got, most := 0, 100
		if c.step == "another address" {
			most = 1
		}
		for got < most && l.Allow(c.address, now) {
			got++
		}
		failIf(t, got != c.want, "%s: got %d requests, want %d", c.step, got, c.want)
	}
}

// TestAllowNeverExceedsBurstAndRate checks all time windows, for any order of requests and
// for times that run backwards.
func TestAllowNeverExceedsBurstAndRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		perSecond, burst := rapid.IntRange(1, 20).Draw(t, "rate"), rapid.IntRange(1, 20).Draw(t, "burst")
		l := &RateLimiter{}
		l.Configure(perSecond, burst)
		now := time.Now()
		allowed := map[netip.Addr][]time.Time{}
		for range rapid.IntRange(1, 300).Draw(t, "requests") {
			now = now.Add(time.Duration(rapid.IntRange(-50, 200).Draw(t, "milliseconds")) * time.Millisecond)
			a := testAddress(rapid.IntRange(0, 2).Draw(t, "address"))
			if l.Allow(a, now) {
				allowed[a] = append(allowed[a], l.latest)
			} else if len(allowed[a]) == 0 {
				t.Fatalf("the first request of %s was refused", a)
			}
		}
		for a, times := range allowed {
			for i := range times {
				for j := i; j < len(times); j++ {
					limit := float64(burst) + times[j].Sub(times[i]).Seconds()*float64(perSecond)
					if n := j - i + 1; float64(n) > limit+1e-6 {
						t.Fatalf("%s sent %d requests within %s, want at most %.2f", a, n, times[j].Sub(times[i]), limit)
					}
				}
			}
		}
	})
}

func TestConcurrentRequestsShareOneBurst(t *testing.T) {
	l, now := newLimiter(1, 100), time.Now()
	var allowed atomic.Int64
	var workers sync.WaitGroup
	for worker := range 8 {
		workers.Go(func() {
			for n := range 100 {
				if l.Allow(testAddress(0), now) {
					allowed.Add(1)
				}
				l.Allow(testAddress(worker*100+n+1), now)
				if n == 50 {
					l.Configure(1, 100)
				}
			}
		})
	}
	workers.Wait()
	failIf(t, allowed.Load() != 100, "got %d allowed requests, want 100", allowed.Load())
}

func TestReserveWaitsForTokens(t *testing.T) {
	l, now := newLimiter(10, 20), time.Now()
	for i, want := range []time.Duration{0, 0, time.Second, 2 * time.Second, 2 * time.Second} {
		testservers.Equal(t, fmt.Sprintf("call %d", i), l.Reserve(testAddress(1), 10, now, 2*time.Second), want)
	}
	testservers.Equal(t, "more than a burst of another address", l.Reserve(testAddress(2), 1000, now, time.Hour), 0)
}

func TestBlockedAddressIsRefusedForAWhile(t *testing.T) {
	l, now := newLimiter(1000, 2000), time.Now()
	for range 100 {
		l.Block(testAddress(1), now)
	}
	failIf(t, l.Allow(testAddress(1), now) || l.Allow(testAddress(1), now.Add(blockTime*9/10)) || !l.Allow(testAddress(1), now.Add(blockTime*22/10)), "the address is not refused for about %v", 2*blockTime)
	failIf(t, !l.Allow(testAddress(2), now), "another address is refused")
}

func TestBlockedAddressHasFewEvents(t *testing.T) {
	l, now := newLimiter(1000, 2000), time.Now()
	l.Block(testAddress(1), now)
	allowed := func(since, until time.Duration) (n int) {
		for at := since; at < until; at += time.Millisecond {
			if l.Allow(testAddress(1), now.Add(at)) {
				n++
			}
		}
		return n
	}
	_ = allowed(0, slowTime/2) // uses the burst
	if n := allowed(slowTime/2, slowTime); n > int(slowTime/2/blockTime)+1 {
		t.Errorf("%d events in half of slowTime", n)
	}
	n := allowed(slowTime, 2*slowTime)
	failIf(t, n < 900, "%d events in the second after slowTime", n)
}

func TestLargeRequestsTakeMoreTokens(t *testing.T) {
	l, now := newLimiter(10, 20), time.Now()
	for i, want := range []time.Duration{0, 1100 * time.Millisecond} { // 20 tokens: 1 + 10, 1 + 10
		stopIf(t, !l.Allow(testAddress(1), now), "request %d is refused", i)
		got := l.AllowN(testAddress(1), 1000, now)
		failIf(t, got != want, "request %d: wait for %v, want %v", i, got, want)
	}
	now = now.Add(1100 * time.Millisecond)
	failIf(t, !l.Allow(testAddress(1), now) || l.AllowN(testAddress(1), 1000, now) != 0, "the request is refused after the announced time")
	l.Configure(1, 1)
	failIf(t, !l.Allow(testAddress(2), now) || l.AllowN(testAddress(2), 1000, now) != 0, "a burst of one allows no large request")
}

func TestRefusedRequestsInProgressAreBounded(t *testing.T) {
	var l RateLimiter
	l.Configure(1, 1)
	now, address := time.Now(), netip.MustParseAddr("192.0.2.1")
	for range maxRefused {
		stopIf(t, !l.EnterRefused(address, now), "refused too early")
	}
	failIf(t, l.EnterRefused(address, now) || !l.EnterRefused(netip.MustParseAddr("192.0.2.2"), now), "want a bound for each address")
	l.LeaveRefused(address)
	failIf(t, !l.EnterRefused(address, now) || !l.Enter(address, now), "want one more refused request, and a count of its own for admitted requests")
}
