package limitstest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// pattern is the rhythm of the requests of a client.
type pattern int

const (
	overload pattern = iota // requests without a pause
	cron                    // a burst in every window
	idle                    // an idle time, then overload
	steady                  // single requests with random pauses
	patterns
)

// unlisted is a resource that resources.yaml does not have.
const unlisted = "export_jobs"

// operation is a kind of request.
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
		{claim("exports/get", unlisted, 1), 1},
	}
}

// client sends requests for one account through one replica.
type client struct {
	*run
	link    *link
	limiter *limits.Limiter
	caller  policy.Caller
	rng     *rand.Rand
	pattern pattern
	maxWait time.Duration
	ops     []operation
	weights int
	crashes time.Time // time of the replica's crash, or zero
}

// loop sends requests until ctx ends.
func (c *client) loop(ctx context.Context) {
	s := c.scenario
	if c.pattern == idle {
		pause(ctx, upTo(c.rng, s.Duration*2/3))
	}
	for ctx.Err() == nil {
		switch c.pattern {
		case cron:
			for range 1 + c.rng.IntN(s.Burst) {
				c.start(ctx)
			}
			pause(ctx, s.Rules.Points.Window)
		case steady:
			c.start(ctx)
			pause(ctx, upTo(c.rng, 2*s.Gap))
		default:
			<-c.start(ctx)
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

// start sends one request in the background.
func (c *client) start(ctx context.Context) <-chan struct{} {
	rng := rand.New(rand.NewPCG(c.rng.Uint64(), 0))
	done := make(chan struct{})
	c.requests.Go(func() {
		defer close(done)
		if !c.request(ctx, rng) {
			pause(ctx, 100*time.Millisecond+upTo(rng, 2*time.Second))
		}
	})
	return done
}

// pick returns a random operation.
func (c *client) pick(rng *rand.Rand) limits.Claim {
	n := rng.IntN(c.weights)
	for _, o := range c.ops {
		if n -= o.weight; n < 0 {
			return o.Claim
		}
	}
	panic("weights are less than their sum")
}

// queries is the number of GraphQL operations of a scenario.
const queries = 5

// price chooses the true cost of a request, and sets the estimate of its claim. The estimates of one GraphQL operation
// exceed the true costs by the same factor.
func (c *client) price(claim *limits.Claim, rng *rand.Rand) int64 {
	s := c.scenario
	if claim.Resource != policy.GraphQL || s.MaxPrice == 0 {
		return 1
	}
	price, query := 1+rng.IntN(s.MaxPrice), rng.IntN(queries)
	factor := 1 + (s.Overestimate-1)*float64(query)/(queries-1)
	claim.Query, claim.UpperEstimate = fmt.Sprint("query ", query), float64(price)*factor
	return int64(price)
}

// request sends one request. It returns false if the limiter refused it.
func (c *client) request(ctx context.Context, rng *rand.Rand) bool {
	s := c.scenario
	acquiring := ctx
	if chance(rng, s.Cancel) {
		canceled, cancel := context.WithTimeout(ctx, upTo(rng, c.maxWait))
		defer cancel()
		acquiring = canceled
	}
	asked, claim := time.Now(), c.pick(rng)
	price := c.price(&claim, rng)
	permit, err := c.limiter.Acquire(acquiring, claim, c.caller, asked.Add(c.maxWait))
	wait := time.Since(asked)
	if err != nil && ctx.Err() == nil {
		wait = c.maxWait
	}
	c.upstream.waited(c.caller.Client, wait)
	if err != nil {
		return false
	}
	granted := c.link.grantedAt(permit.ID)
	if dial := upTo(rng, s.Upstream.Dial); dial > 0 {
		time.Sleep(dial)
	}
	settling := context.Background()
	if chance(rng, s.Unsent) {
		_, _ = c.limiter.Settle(settling, *permit, limits.Outcome{})
		return true
	}
	maxWait := upTo(rng, s.Timeout)
	if !chance(rng, s.Cancel) {
		maxWait = s.Timeout
	}
	if !c.crashes.IsZero() {
		maxWait = max(0, min(maxWait, time.Until(c.crashes)))
	}
	began := time.Now()
	responses := c.upstream.Send(Request{
		Claim: permit.Claim, Price: price, Granted: granted, Expected: permit.CPU, Timeout: maxWait, Lag: 2*time.Second + 3*s.LedgerLatency,
	}, rng)
	timer := time.NewTimer(maxWait)
	defer timer.Stop()
	select {
	case response := <-responses:
		if response != nil {
			c.settle(permit, response, time.Since(began))
			return true
		}
		<-timer.C
	case <-timer.C:
	}
	c.upstream.log(c.caller.Account, "abandons %s granted at %s", permit.Operation, c.upstream.clock(granted))
	_, _ = c.limiter.Settle(settling, *permit, limits.Outcome{Sent: true, Elapsed: time.Since(began)})
	return true
}

// settle settles a permit with a response, and releases the permit at the end of the body.
func (c *client) settle(permit *limits.Permit, response *Response, elapsed time.Duration) {
	outcome := limits.Outcome{
		Sent: true, Resent: response.Resent, Answered: true, Ended: response.Body == 0, Failed: response.Failed,
		Succeeded: !response.Failed && response.Limited == policy.NotLimited,
		Elapsed:   elapsed, Rate: response.Rate, Uncounted: response.Uncounted, Limited: response.Limited, RetryAfter: response.RetryAfter, Cost: response.Cost,
	}
	ended := time.Now().Add(response.Body)
	c.link.answered(permit.ID, response)
	_, _ = c.limiter.Settle(context.Background(), *permit, outcome)
	if !outcome.Ended {
		time.Sleep(time.Until(ended))
		c.limiter.Release(context.Background(), *permit, response.Aborted)
	}
}
