package limitstest

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// pattern is how a client asks.
type pattern int

const (
	overload pattern = iota // one request after the other
	cron                    // a burst every window
	idle                    // nothing, then overload
	steady                  // now and then
	patterns
)

// operation is one thing that clients ask for.
type operation struct {
	limits.Claim
	weight int
}

func operations() []operation {
	claim := func(name, resource string, points int) limits.Claim {
		return limits.Claim{Operation: name, Resource: resource, Points: points}
	}
	creates := claim("issues/create", policy.Core, 5)
	creates.CreatesContent = true
	return []operation{
		{claim("users/get", policy.Core, 1), 1},
		{claim("repos/list", policy.Core, 1), 1},
		{claim("repos/update", policy.Core, 5), 1},
		{creates, 1},
		{claim("search/issues", policy.Search, 1), 1},
		{claim("search/code", policy.CodeSearch, 1), 1},
		{claim("graphql", policy.GraphQL, 1), 1},
		{claim("graphql", policy.GraphQL, 5), 1},
	}
}

// client asks for one account at one replica.
type client struct {
	*run
	link     *link
	limiter  *limits.Limiter
	caller   policy.Caller
	rng      *rand.Rand
	pattern  pattern
	patience time.Duration
	ops      []operation
	weights  int
	dies     time.Time // when the replica does; zero: never
}

// live asks until ctx ends.
func (c *client) live(ctx context.Context) {
	s := c.scenario
	if c.pattern == idle {
		pause(ctx, upTo(c.rng, s.Duration*2/3))
	}
	for ctx.Err() == nil {
		switch c.pattern {
		case cron:
			for range 1 + c.rng.IntN(s.Burst) {
				c.ask(ctx)
			}
			pause(ctx, s.Rules.Points.Window)
		case steady:
			c.ask(ctx)
			pause(ctx, upTo(c.rng, 2*s.Gap))
		default:
			<-c.ask(ctx)
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// ask makes one request in the background.
func (c *client) ask(ctx context.Context) <-chan struct{} {
	rng := rand.New(rand.NewPCG(c.rng.Uint64(), 0))
	done := make(chan struct{})
	c.errands.Go(func() {
		defer close(done)
		if !c.request(ctx, rng) {
			pause(ctx, 100*time.Millisecond+upTo(rng, 2*time.Second))
		}
	})
	return done
}

// pick draws an operation.
func (c *client) pick(rng *rand.Rand) limits.Claim {
	n := rng.IntN(c.weights)
	for _, o := range c.ops {
		if n -= o.weight; n < 0 {
			return o.Claim
		}
	}
	panic("weights are less than their sum")
}

// request makes one request. It reports false when it was refused.
func (c *client) request(ctx context.Context, rng *rand.Rand) bool {
	s := c.scenario
	asking := ctx
	if odds(rng, s.Cancel) {
		canceled, cancel := context.WithTimeout(ctx, upTo(rng, c.patience))
		defer cancel()
		asking = canceled
	}
	permit, err := c.limiter.Acquire(asking, c.pick(rng), c.caller, time.Now().Add(c.patience))
	if err != nil {
		return false
	}
	granted := c.link.grantOf(permit.ID)
	if dial := upTo(rng, s.Upstream.Dial); dial > 0 {
		time.Sleep(dial)
	}
	settling := context.Background()
	if odds(rng, s.Unsent) {
		_ = c.limiter.Settle(settling, *permit, limits.Outcome{})
		return true
	}
	patience := upTo(rng, s.Timeout)
	if !odds(rng, s.Cancel) {
		patience = s.Timeout
	}
	if !c.dies.IsZero() {
		patience = max(0, min(patience, time.Until(c.dies)))
	}
	began := time.Now()
	answers := c.upstream.Send(Request{
		Claim: permit.Claim, Granted: granted, Expected: permit.CPU, Patience: patience, Lag: 2*time.Second + 3*s.LedgerLatency,
	}, rng)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case answer := <-answers:
		c.settle(permit, answer, time.Since(began))
	case <-timer.C:
		c.upstream.log(c.caller.Account, "gives up %s of %s", permit.Operation, c.upstream.clock(granted))
		_ = c.limiter.Settle(settling, *permit, limits.Outcome{Sent: true, Elapsed: time.Since(began)})
	}
	return true
}

// settle tells the limiter of an answer, and releases the permit when it has
// ended.
func (c *client) settle(permit *limits.Permit, answer *Answer, elapsed time.Duration) {
	outcome := limits.Outcome{
		Sent: true, Resent: answer.Resent, Answered: true, Ended: answer.Body == 0, Failed: answer.Failed,
		Elapsed: elapsed, Rate: answer.Rate, Limited: answer.Limited, RetryAfter: answer.RetryAfter,
	}
	ended := time.Now().Add(answer.Body)
	c.link.answered(permit.ID, answer)
	_ = c.limiter.Settle(context.Background(), *permit, outcome)
	if !outcome.Ended {
		time.Sleep(time.Until(ended))
		_ = c.limiter.Release(context.Background(), *permit, answer.Aborted)
	}
}
