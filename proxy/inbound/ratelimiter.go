package inbound

import (
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/time/rate"
)

// RateLimiter bounds the rate of events of each client address with a token bucket. An event is a request, a connection or
// a byte. Enter and Leave also bound the requests in progress. The bounds protect the gateway. A RateLimiter does not
// count upstream quota.
//
// Clients behind a load balancer that is not a trusted proxy share one address and one bucket. The zero value has no
// bound. Allow, AllowN, Enter and Leave also accept nil.
type RateLimiter struct {
	mu    sync.Mutex
	rate  rate.Limit // per second; 0 disables the limiter
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
	// Requests in progress, and refused requests whose response the client has not read.
	open, refused int
	slowUntil     time.Time // each event costs the tokens of blockTime until then
}

// Configure sets the rate per second and the burst of each address; a rate of 0 disables the limiter. Known
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
	b, n := l.bucketLocked(address, now), 1
	if now.Before(b.slowUntil) {
		n = l.blockTokensLocked()
	}
	return b.tokens.AllowN(l.latest, n)
}

// AllowN takes n more tokens for a large request that Allow has admitted, but at most half of the burst. If they are not
// available, AllowN takes none and returns the time after which a request of this size can succeed.
func (l *RateLimiter) AllowN(address netip.Addr, n int, now time.Time) (after time.Duration) {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.buckets == nil {
		return 0
	}
	n = min(n, l.burst/2)
	if l.bucketLocked(address, now).tokens.AllowN(l.latest, n) {
		return 0
	}
	return time.Duration(float64(n+1) / float64(l.rate) * float64(time.Second))
}

// bucketLocked returns the bucket of an address, and updates latest.
func (l *RateLimiter) bucketLocked(address netip.Addr, now time.Time) *bucket {
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
	return b
}

// Enter counts a request in progress and returns true. If its address already has burst requests in progress, Enter
// counts nothing and returns false. The caller must call Leave once after each true result. The bound matters for HTTP/2,
// where one connection has many requests.
func (l *RateLimiter) Enter(address netip.Addr, now time.Time) bool {
	if l == nil {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.buckets == nil {
		return true
	}
	b := l.bucketLocked(address, now)
	if b.open >= l.burst {
		return false
	}
	b.open++
	return true
}

// Leave ends a request in progress.
func (l *RateLimiter) Leave(address netip.Addr) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.buckets == nil {
		return
	}
	if b, ok := l.buckets.Peek(ClientOf(address)); ok && b.open > 0 { // an evicted address starts with 0
		b.open--
	}
}

// maxRefused bounds the refused requests of an address that are in progress. A client that reads its responses rarely has
// more than one.
const maxRefused = 100

// EnterRefused counts a refused request in progress and returns true. If its address already has maxRefused of them,
// EnterRefused counts nothing and returns false: the client does not read, and each further response would use memory.
// The caller must call LeaveRefused once after each true result.
func (l *RateLimiter) EnterRefused(address netip.Addr, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.buckets == nil { // a reload has disabled the limiter
		return true
	}
	b := l.bucketLocked(address, now)
	if b.refused >= maxRefused {
		return false
	}
	b.refused++
	return true
}

// LeaveRefused ends a refused request in progress.
func (l *RateLimiter) LeaveRefused(address netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.buckets == nil {
		return
	}
	if b, ok := l.buckets.Peek(ClientOf(address)); ok && b.refused > 0 {
		b.refused--
	}
}

// Reserve takes n tokens of an address, but at most its burst, and returns the time until they are available. If that
// time exceeds maxDelay, Reserve takes no tokens and returns maxDelay.
func (l *RateLimiter) Reserve(address netip.Addr, n int, now time.Time, maxDelay time.Duration) (delay time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reserveLocked(address, n, now, maxDelay)
}

// blockTime is the largest debt of an address, as the time to refill it. During a longer time, the address would also
// collect more tokens for requests, and send them in a larger burst. slowTime is the time after Block in which the
// address has one event per blockTime.
const (
	blockTime = time.Second / 20
	slowTime  = time.Second
)

// Block takes the tokens that an address gets in blockTime. If no token remains, Allow refuses the address until the debt
// is refilled. During slowTime each event of the address costs as many tokens.
func (l *RateLimiter) Block(address netip.Addr, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.buckets == nil {
		return
	}
	l.bucketLocked(address, now).slowUntil = now.Add(slowTime)
	l.reserveLocked(address, l.blockTokensLocked(), now, blockTime)
}

// blockTokensLocked returns the tokens that an address gets in blockTime.
func (l *RateLimiter) blockTokensLocked() int {
	return min(l.burst, max(1, int(float64(l.rate)*blockTime.Seconds())))
}

func (l *RateLimiter) reserveLocked(address netip.Addr, n int, now time.Time, maxDelay time.Duration) (delay time.Duration) {
	if l.buckets == nil {
		return 0
	}
	reservation := l.bucketLocked(address, now).tokens.ReserveN(l.latest, min(n, l.burst))
	if delay = reservation.DelayFrom(l.latest); delay > maxDelay {
		reservation.CancelAt(l.latest)
		return maxDelay
	}
	return delay
}

// removeIdleLocked removes at most two idle addresses with full buckets. Each request adds at most one address, so the
// table shrinks without a long pause for any request.
func (l *RateLimiter) removeIdleLocked() {
	for range 2 {
		_, b, _ := l.buckets.GetOldest() // never empty: the bucket of the current request exists
		if l.latest.Sub(b.used) < minIdle || b.open > 0 || b.refused > 0 || b.tokens.TokensAt(l.latest) < float64(l.burst) {
			return
		}
		l.buckets.RemoveOldest()
	}
}
