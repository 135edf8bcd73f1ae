// Package inbound protects the gateway against too many connections and requests, slow senders and slow readers.
// [Drain] announces the shutdown to clients.
//
// [Connections] bounds open connections and sets write deadlines. [RateLimiter] bounds the request rate of each client
// address. [Body] sets read deadlines for request bodies. [Shedder] bounds the number of waiting requests.
// [TrustedProxies] finds the client address behind load balancers.
//
// Invariants: the package returns decisions and typed errors, which package proxy turns into responses. All values
// except TrustedProxies and Body outlive a reload of the configuration and are safe for concurrent use.
//
// Start reading with [Connections].
package inbound

import (
	"errors"
	"sync/atomic"

	"github.com/weirgate/weir/policy"
)

// Shedder bounds the number of requests of all clients and accounts that no hit answered, from then to the end of their
// responses. The zero value and nil have no bound.
type Shedder struct {
	limit, waiting atomic.Int64
}

// Configure sets the number of requests that may wait; 0 removes the bound.
func (s *Shedder) Configure(limit int) { s.limit.Store(int64(limit)) }

// Enter reports whether a request may wait. Batch requests may use three quarters of the limit. If the result is true,
// [Shedder.Leave] must be called after the wait.
func (s *Shedder) Enter(p policy.Priority) bool {
	if s == nil {
		return true
	}
	waiting, limit := s.waiting.Add(1), s.limit.Load()
	if p == policy.Batch {
		limit -= limit / 4
	}
	if limit == 0 || waiting <= limit {
		return true
	}
	s.waiting.Add(-1)
	return false
}

// Leave ends the wait of a request.
func (s *Shedder) Leave() {
	if s != nil {
		s.waiting.Add(-1)
	}
}

// Waiting returns the number of requests that wait.
func (s *Shedder) Waiting() int64 { return s.waiting.Load() }

// Drain records whether the gateway is shutting down. The zero value and nil are not draining.
type Drain struct{ begun atomic.Bool }

// Begin starts the drain. From now on each response closes its HTTP/1 connection, and HTTP/2 connections accept no
// further streams, so that clients connect to another replica.
func (d *Drain) Begin() { d.begun.Store(true) }

// Begun reports whether the drain has started.
func (d *Drain) Begun() bool { return d != nil && d.begun.Load() }

// ErrDrained is the cancellation cause of requests that are unfinished at the end of the drain.
var ErrDrained = errors.New("gateway is shutting down")
