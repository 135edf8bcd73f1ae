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
// Clients behind a load balancer that is not a trusted proxy share one address and one bucket. The zero value and nil have no
// bound.
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

// with calls do with the bucket of an address, and updates latest. It does nothing while the limiter is disabled.
func (l *RateLimiter) with(address netip.Addr, now time.Time, do func(*bucket)) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.buckets == nil {
		return
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
	do(b)
}

// Allow takes one token of an address and reports whether the request may proceed.
func (l *RateLimiter) Allow(address netip.Addr, now time.Time) (ok bool) {
	ok = true
	l.with(address, now, func(b *bucket) {
		n := 1
		if now.Before(b.slowUntil) {
			n = l.blockTokensLocked()
		}
		ok = b.tokens.AllowN(l.latest, n)
	})
	return ok
}

// AllowN takes n more tokens for a large request that Allow has admitted, but at most half of the burst. If they are not
// available, AllowN takes none and returns the time after which a request of this size can succeed.
func (l *RateLimiter) AllowN(address netip.Addr, n int, now time.Time) (after time.Duration) {
	l.with(address, now, func(b *bucket) {
		if n = min(n, l.burst/2); !b.tokens.AllowN(l.latest, n) {
			after = time.Duration(float64(n+1) / float64(l.rate) * float64(time.Second))
		}
	})
	return after
}

// Enter counts a request in progress and returns true. If its address already has burst requests in progress, Enter
// counts nothing and returns false. The caller must call Leave once after each true result. The bound matters for HTTP/2,
// where one connection has many requests.
func (l *RateLimiter) Enter(address netip.Addr, now time.Time) (ok bool) {
	ok = true
	l.with(address, now, func(b *bucket) { ok = enter(&b.open, l.burst) })
	return ok
}

// enter increments a count below its bound, and reports whether it did.
func enter(count *int, most int) bool {
	if *count >= most {
		return false
	}
	*count++
	return true
}

// Leave ends a request in progress.
func (l *RateLimiter) Leave(address netip.Addr) {
	l.leave(address, func(b *bucket) *int { return &b.open })
}

func (l *RateLimiter) leave(address netip.Addr, count func(*bucket) *int) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.buckets == nil {
		return
	}
	if b, ok := l.buckets.Peek(ClientOf(address)); ok && *count(b) > 0 { // an evicted address starts with 0
		*count(b)--
	}
}

// maxRefused bounds the refused requests of an address that are in progress. A client that reads its responses rarely has
// more than one.
const maxRefused = 100

// EnterRefused counts a refused request in progress and returns true. If its address already has maxRefused of them,
// EnterRefused counts nothing and returns false: the client does not read, and each further response would use memory.
// The caller must call LeaveRefused once after each true result.
func (l *RateLimiter) EnterRefused(address netip.Addr, now time.Time) (ok bool) {
	ok = true // also if a reload has disabled the limiter
	l.with(address, now, func(b *bucket) { ok = enter(&b.refused, maxRefused) })
	return ok
}

// LeaveRefused ends a refused request in progress.
func (l *RateLimiter) LeaveRefused(address netip.Addr) {
	l.leave(address, func(b *bucket) *int { return &b.refused })
}

// Reserve takes n tokens of an address, but at most its burst, and returns the time until they are available. If that
// time exceeds maxDelay, Reserve takes no tokens and returns maxDelay.
func (l *RateLimiter) Reserve(address netip.Addr, n int, now time.Time, maxDelay time.Duration) (delay time.Duration) {
	l.with(address, now, func(b *bucket) { delay = l.reserveLocked(b, n, maxDelay) })
	return delay
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
	l.with(address, now, func(b *bucket) {
		b.slowUntil = now.Add(slowTime)
		l.reserveLocked(b, l.blockTokensLocked(), blockTime)
	})
}

// blockTokensLocked returns the tokens that an address gets in blockTime.
func (l *RateLimiter) blockTokensLocked() int {
	return min(l.burst, max(1, int(float64(l.rate)*blockTime.Seconds())))
}

func (l *RateLimiter) reserveLocked(b *bucket, n int, maxDelay time.Duration) (delay time.Duration) {
	reservation := b.tokens.ReserveN(l.latest, min(n, l.burst))
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
