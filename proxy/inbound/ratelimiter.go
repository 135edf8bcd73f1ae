package inbound

import (
	"container/list"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// RateLimiter bounds the request rate of each client address with a token bucket. It protects
// the work of the gateway itself; an accepted request has not yet used any upstream quota.
//
// Clients behind a load balancer that is not a trusted proxy share one address and one
// bucket. The zero value and nil have no bound.
type RateLimiter struct {
	mu    sync.Mutex
	rate  rate.Limit // requests per second; 0 disables the limiter
	burst int
	// latest is the newest time seen. Concurrent requests may arrive with older times.
	latest time.Time
	// buckets and order hold the same buckets; order is by last use, newest first.
	buckets map[netip.Addr]*list.Element
	order   list.List
}

// maxBuckets bounds the number of addresses in memory. The least recently used address is
// evicted first and starts with a full bucket when it returns.
const maxBuckets = 10_000

// minIdle is the shortest time without requests after which a full bucket is removed.
const minIdle = time.Minute

type bucket struct {
	address netip.Addr
	used    time.Time
	tokens  *rate.Limiter
}

// Configure sets the requests per second and the burst of each address; a rate of 0 disables
// the limiter. Known addresses keep their remaining tokens.
func (l *RateLimiter) Configure(perSecond, burst int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rate, l.burst = rate.Limit(perSecond), burst
	if perSecond == 0 {
		l.buckets = nil
		l.order.Init()
		return
	}
	for e := l.order.Front(); e != nil; e = e.Next() {
		tokens := bucketOf(e).tokens
		tokens.SetLimitAt(l.latest, l.rate)
		tokens.SetBurstAt(l.latest, burst)
	}
}

// Allow takes one token of an address and reports whether its request may proceed.
func (l *RateLimiter) Allow(address netip.Addr, now time.Time) bool {
	if l == nil {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rate == 0 {
		return true
	}
	if now.Before(l.latest) {
		now = l.latest
	}
	l.latest = now
	b := l.bucketLocked(clientOf(address))
	b.used = now
	l.removeIdleLocked(now)
	return b.tokens.AllowN(now, 1)
}

// HasToken reports whether [RateLimiter.Allow] would allow a request, without taking a token.
func (l *RateLimiter) HasToken(address netip.Addr, now time.Time) bool {
	if l == nil {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.buckets[clientOf(address)]
	return e == nil || bucketOf(e).tokens.TokensAt(now) >= 1
}

// bucketLocked returns the bucket of an address and marks it as the most recently used.
func (l *RateLimiter) bucketLocked(address netip.Addr) *bucket {
	if e := l.buckets[address]; e != nil {
		l.order.MoveToFront(e)
		return bucketOf(e)
	}
	if len(l.buckets) >= maxBuckets {
		l.removeLocked(l.order.Back())
	}
	if l.buckets == nil {
		l.buckets = map[netip.Addr]*list.Element{}
	}
	b := &bucket{address: address, tokens: rate.NewLimiter(l.rate, l.burst)}
	l.buckets[address] = l.order.PushFront(b)
	return b
}

// removeIdleLocked removes at most two idle addresses with full buckets. Each request adds at
// most one, so the table shrinks without a pause for any request.
func (l *RateLimiter) removeIdleLocked(now time.Time) {
	for range 2 {
		e := l.order.Back()
		b := bucketOf(e)
		if now.Sub(b.used) < minIdle || b.tokens.TokensAt(now) < float64(l.burst) {
			return
		}
		l.removeLocked(e)
	}
}

func (l *RateLimiter) removeLocked(e *list.Element) {
	delete(l.buckets, bucketOf(e).address)
	l.order.Remove(e)
}

func bucketOf(e *list.Element) *bucket { return e.Value.(*bucket) }
