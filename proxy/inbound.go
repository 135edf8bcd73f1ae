package proxy

import (
	"container/list"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Inbound bounds how fast one client address may send, so that a program in a
// loop keeps itself waiting and not the gateway. It is about the gateway's own
// work: a request that it lets in has spent nothing of any budget yet.
//
// An address is that of the connection, or what a [Trusted] proxy tells; IPv6
// counts by /64, which is what one subscriber has. Behind a load balancer that
// is not trusted all clients have its address, and are limited as one.
//
// It outlives a [Gateway], so a reload gives nobody a fresh start. The zero
// value lets everybody in; see [Inbound.Configure]. It is safe for concurrent
// use.
type Inbound struct {
	mu    sync.Mutex
	rate  rate.Limit // requests a second; 0 lets everybody in
	burst int
	// latest is the newest time seen: time does not run backwards for requests
	// that overtake each other.
	latest time.Time
	// known and order hold the same buckets, those used last in front. Each
	// weighs about 250 bytes in all, so a full table takes 2.5 MB.
	known map[netip.Addr]*list.Element
	order list.List
}

// maxAddresses bounds the table. When it is full the address that was not heard
// of for longest goes, and begins with a whole burst when it comes back: who
// has ten thousand addresses has as many clients, here as anywhere.
const maxAddresses = 10_000

// idle is how long an address is kept at least. One that is kept no longer has
// a full bucket, like one that was never heard of.
const idle = time.Minute

// bucket is one address and what it may still send.
type bucket struct {
	address netip.Addr
	used    time.Time // when last
	tokens  *rate.Limiter
}

// Configure sets how many requests a second one address may send, and how many
// at once; 0 a second switches the limit off. Addresses that are known keep
// what they have left.
func (in *Inbound) Configure(perSecond, burst int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.rate, in.burst = rate.Limit(perSecond), burst
	if perSecond == 0 {
		in.known = nil
		in.order.Init()
		return
	}
	for e := in.order.Front(); e != nil; e = e.Next() {
		tokens := bucketOf(e).tokens
		tokens.SetLimitAt(in.latest, in.rate)
		tokens.SetBurstAt(in.latest, burst)
	}
}

// allow reports whether an address may send a request now.
func (in *Inbound) allow(address netip.Addr, now time.Time) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.rate == 0 {
		return true
	}
	if now.Before(in.latest) {
		now = in.latest
	}
	in.latest = now
	b := in.bucketLocked(address)
	b.used = now
	in.forgetLocked(now)
	return b.tokens.AllowN(now, 1)
}

// has reports whether an address may send a request now, and takes nothing for it.
func (in *Inbound) has(address netip.Addr, now time.Time) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	e := in.known[address]
	return in.rate == 0 || e == nil || bucketOf(e).tokens.TokensAt(now) >= 1
}

// bucketLocked returns the bucket of an address, and puts it in front.
func (in *Inbound) bucketLocked(address netip.Addr) *bucket {
	if e := in.known[address]; e != nil {
		in.order.MoveToFront(e)
		return bucketOf(e)
	}
	if len(in.known) >= maxAddresses {
		in.dropLocked(in.order.Back())
	}
	if in.known == nil {
		in.known = map[netip.Addr]*list.Element{}
	}
	b := &bucket{address: address, tokens: rate.NewLimiter(in.rate, in.burst)}
	in.known[address] = in.order.PushFront(b)
	return b
}

// forgetLocked drops addresses that are idle: two at most, so that no request
// pays for many, and the table shrinks all the same.
func (in *Inbound) forgetLocked(now time.Time) {
	for range 2 {
		e := in.order.Back()
		b := bucketOf(e)
		if now.Sub(b.used) < idle || b.tokens.TokensAt(now) < float64(in.burst) {
			return
		}
		in.dropLocked(e)
	}
}

func (in *Inbound) dropLocked(e *list.Element) {
	delete(in.known, bucketOf(e).address)
	in.order.Remove(e)
}

func bucketOf(e *list.Element) *bucket { return e.Value.(*bucket) }

// mayPass reports whether throttle would let a request pass.
func (g *Gateway) mayPass(r *http.Request) bool {
	return g.Inbound == nil || g.Inbound.has(counted(g.Trusted.sender(r)), time.Now())
}

// throttle refuses a request of an address that sends too fast (journey,
// before step 1): nothing is cheaper, and nothing of the request is looked at.
func (g *Gateway) throttle(ex *exchange) error {
	sender := g.Trusted.sender(ex.in)
	if g.Inbound == nil || g.Inbound.allow(counted(sender), ex.start) {
		return nil
	}
	return &failure{
		status: http.StatusTooManyRequests, detail: "inbound", retryAfter: time.Second,
		message: "Too Many Requests: this address sends faster than the gateway lets one address send",
		cause:   fmt.Errorf("limits.inbound: %s sends too fast", sender),
	}
}
