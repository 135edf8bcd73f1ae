package proxy

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/weirgate/weir/policy"
)

// Crowd bounds how many requests wait at once, all clients and accounts together: for a
// permit, for the upstream, for each other, for their own bodies (but those of GraphQL, which
// say what they cost). One more is refused at once, a batch job's when three quarters wait;
// what is answered from the cache waits for nothing. It outlives a [Gateway]; the zero value, and nil, let everybody in. It is safe
// for concurrent use.
type Crowd struct {
	most, inside atomic.Int64
}

// Configure sets how many may wait, 0 for no bound.
func (c *Crowd) Configure(most int) { c.most.Store(int64(most)) }

// enter lets one in that leaves again, or says that it is one too many.
func (c *Crowd) enter(p policy.Priority) error {
	if c == nil {
		return nil
	}
	inside, most := c.inside.Add(1), c.most.Load()
	if p == policy.Batch {
		most -= most / 4
	}
	if most == 0 || inside <= most {
		return nil
	}
	c.leave()
	return &failure{
		status: http.StatusServiceUnavailable, detail: "overload", retryAfter: time.Second,
		message: "Service Unavailable: too many requests wait in this gateway",
	}
}

func (c *Crowd) leave() {
	if c != nil {
		c.inside.Add(-1)
	}
}
