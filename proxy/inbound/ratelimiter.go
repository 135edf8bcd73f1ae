package inbound

import (
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/time/rate"
)

// RateLimiter bounds the request rate of each client address with a token bucket. The bound protects the gateway. A
// RateLimiter does not count upstream quota.
//
// Clients behind a load balancer that is not a trusted proxy share one address and one bucket. The zero value and nil
// have no bound.
type RateLimiter struct {
	mu    sync.Mutex
	rate  rate.Limit // requests per second; 0 disables the limiter
	burst int
	// latest is the latest time of a request. Concurrent requests may arrive with earlier times.
	latest  time.Time
	buckets *simplelru.LRU[netip.Addr, *bucket] // nil while the limiter is disabled
}

// maxBuckets bounds the number of addresses in memory. The least recently used address is evicted first. An evicted
// address starts again with a full bucket.
const maxBuckets = 10_000

// minIdle is the minimum time without requests before a full bucket is removed.
const minIdle = time.Minute

type bucket struct {
	used   time.Time
	tokens *rate.Limiter
}

// Configure sets the requests per second and the burst of each address; a rate of 0 disables the limiter. Known
// addresses keep their remaining tokens.
func (l *RateLimiter) Configure(perSecond, burst int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rate, l.burst = rate.Limit(perSecond), burst
	if perSecond == 0 {
		l.buckets = nil
		return
	}
	if l.buckets == nil {
		l.buckets, _ = simplelru.NewLRU[netip.Addr, *bucket](maxBuckets, nil)
	}
	for _, b := range l.buckets.Values() {
		b.tokens.SetLimitAt(l.latest, l.rate)
		b.tokens.SetBurstAt(l.latest, burst)
	}
}

// Allow takes one token of an address and reports whether the request may proceed.
func (l *RateLimiter) Allow(address netip.Addr, now time.Time) bool {
	if l == nil {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.buckets == nil {
		return true
	}
	if now.After(l.latest) {
		l.latest = now
	}
	client := ClientOf(address)
	b, ok := l.buckets.Get(client)
	if !ok {
		b = &bucket{tokens: rate.NewLimiter(l.rate, l.burst)}
		l.buckets.Add(client, b)
	}
	b.used = l.latest
	l.removeIdleLocked()
	return b.tokens.AllowN(l.latest, 1)
}

// removeIdleLocked removes at most two idle addresses with full buckets. Each request adds at most one address, so the
// table shrinks without a long pause for any request.
func (l *RateLimiter) removeIdleLocked() {
	for range 2 {
		_, b, _ := l.buckets.GetOldest() // never empty: the bucket of the current request exists
		if l.latest.Sub(b.used) < minIdle || b.tokens.TokensAt(l.latest) < float64(l.burst) {
			return
		}
		l.buckets.RemoveOldest()
	}
}
