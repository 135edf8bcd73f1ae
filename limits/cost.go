package limits

import (
	"math"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/weirgate/weir/policy"
)

const (
	// maxQueries bounds the queries with learned costs, and maxUses the windows with a known use. The least recently used
	// are removed first.
	maxQueries, maxUses = 4096, 4096
	// recentCalls is the number of calls of a query that an estimate considers. Fewer than minCalls calls do not lower it.
	recentCalls, minCalls = 8, 3
	// mostRaised bounds the estimate that recent calls may raise, as a multiple of the upper estimate. Low ones may rise further.
	mostRaised = 10
	// costCeiling bounds the cost of one request. No window of the upstream has so many tokens.
	costCeiling = 1_000_000
)

// costs predicts the costs of GraphQL calls from the true costs of recent calls of the same query. Variables usually change
// the cost and the upper estimate of a call in about the same proportion, so costs learns their ratio.
//
// If a response does not have the true cost, costs finds it in the reported use of the window, while no other call of
// the account is in progress.
type costs struct {
	mu      sync.Mutex
	queries *simplelru.LRU[accountQuery, []pricedCall] // the last calls of a query
	uses    *simplelru.LRU[accountResource, *windowUse]
}

type (
	// accountQuery is a query of an account, so that no other account can mislead an estimate.
	accountQuery    struct{ account, query string }
	accountResource struct{ account, resource string }
)

// pricedCall is a call with its upper estimate and its true cost.
type pricedCall struct {
	upper float64
	cost  int
}

// windowUse is the reported use of a window, and the state of the calls that may change it.
type windowUse struct {
	inProgress int
	// mixed means that calls overlapped. The growth of the reported use is then not the cost of one call.
	mixed bool
	last  policy.Rate // zero if the upstream may have counted a call since
	at    time.Time   // time of the last usable report
	// unsureUntil is the time until which the upstream may count a call without a response.
	unsureUntil time.Time
}

func newCosts() *costs {
	queries, _ := simplelru.NewLRU[accountQuery, []pricedCall](maxQueries, nil) // fails only for a size below 1
	uses, _ := simplelru.NewLRU[accountResource, *windowUse](maxUses, nil)
	return &costs{queries: queries, uses: uses}
}

// predict returns the estimate for a call. For an unknown query it is the upper estimate, rounded up. Each recent call gives
// a lower and an upper bound. Lower bounds always apply and may raise the estimate. Upper bounds apply after minCalls calls.
func (c *costs) predict(claim *Claim) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	upper := claim.UpperEstimate
	ceiling := int(math.Ceil(upper))
	recent, ok := c.queries.Get(accountQuery{claim.Account, claim.Query})
	if !ok {
		return ceiling
	}
	floor := 1
	for _, p := range recent {
		least, most := p.bounds(upper)
		if floor = max(floor, least); len(recent) >= minCalls {
			ceiling = min(ceiling, most)
		}
	}
	// A cost far above its estimate may be wrong, and a claim of a whole window would wait for its end.
	return min(max(floor, ceiling), int(mostRaised*upper)+mostRaised*mostRaised)
}

// bounds returns the bounds of the cost of a call with another upper estimate and the same ratio. The upstream rounds costs to
// the nearest integer, so the cost of a cheap call predicts little about expensive calls.
func (p pricedCall) bounds(upper float64) (least, most int) {
	if p.upper == upper {
		return p.cost, p.cost
	}
	scaled := func(cost float64) int { return int(math.Round(cost * upper / p.upper)) }
	return scaled(float64(p.cost) - 0.5), scaled(float64(p.cost) + 0.5)
}

// observe adds the true cost of a call.
func (c *costs) observe(claim *Claim, cost int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := accountQuery{claim.Account, claim.Query}
	recent, _ := c.queries.Get(key)
	c.queries.Add(key, appendRecent(recent, pricedCall{claim.UpperEstimate, min(cost, costCeiling)}, recentCalls))
}

// begin records a granted call.
func (c *costs) begin(p *Permit) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := accountResource{p.Account, p.Resource}
	u, ok := c.uses.Get(key)
	if !ok {
		u = &windowUse{}
		c.uses.Add(key, u)
	}
	u.inProgress++
	u.mixed = u.mixed || u.inProgress > 1
}

// end records the outcome of a call. It returns the cost of the call as the growth of the reported use, and the time of the
// previous report. The growth is zero if the cost is unknown.
func (c *costs) end(p *Permit, o *Outcome, now time.Time) (grown int, since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u, ok := c.uses.Get(accountResource{p.Account, p.Resource})
	if !ok || u.inProgress == 0 { // removed during the call
		return 0, since
	}
	u.inProgress--
	alone, last := !u.mixed, u.last
	u.mixed = u.mixed && u.inProgress > 0
	switch {
	case !o.Sent:
		return 0, since
	case !o.Answered || o.Resent > 0:
		u.unsureUntil = now.Add(time.Duration(linger) * time.Microsecond)
	}
	if o.Rate.Limit == 0 || o.Rate.Resource != p.Resource || now.Before(u.unsureUntil) {
		u.last = policy.Rate{}
		return 0, since
	}
	since = u.at
	u.last, u.at = o.Rate, now
	apart := o.Rate.Reset.Sub(last.Reset).Abs().Microseconds()
	if last.Limit != o.Rate.Limit || apart > resetJitter { // another window
		return 0, since
	}
	u.last.Used = max(last.Used, o.Rate.Used)
	grown = o.Rate.Used - last.Used
	if !alone || policy.GraphQLCost.IsOutside(int64(grown)) || p.Query != "" && float64(grown) > math.Ceil(p.UpperEstimate) {
		return 0, since
	}
	return grown, since
}
