package limits

import (
	"math"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

const (
	// maxQueries bounds the queries with learned costs, and maxUses the windows with a known use. The least recently used
	// are removed first.
	maxQueries, maxUses = 4096, 4096
	// recentCosts is the number of calls of a query that an estimate considers. An estimate needs leastCosts calls.
	recentCosts, leastCosts = 8, 3
	// maxCost bounds the cost of one request. No window of the upstream has so many tokens.
	maxCost = 1_000_000
)

// costs predicts the costs of GraphQL calls from the true costs of recent calls of the same query. The variables of a call
// change its cost, and its upper estimate in the same proportion, so costs learns the ratio of both.
//
// If a response does not have the true cost, costs finds it in the reported use of the window, while no other call of
// the account is in progress.
type costs struct {
	mu      sync.Mutex
	queries *simplelru.LRU[string, *queryCosts]
	uses    *simplelru.LRU[accountResource, *windowUse]
}

type accountResource struct{ account, resource string }

// queryCosts contains the last calls of a query.
type queryCosts struct {
	recent [recentCosts]pricedCall // a ring buffer
	n      int                     // calls so far
}

// pricedCall is a call with its upper estimate and its true cost.
type pricedCall struct {
	upper float64
	cost  int
}

// windowUse is the use of a window that the last response reported.
type windowUse struct {
	inProgress int
	// mixed means that calls overlapped, so the reported use does not tell what each of them cost.
	mixed bool
	last  Rate      // zero if the upstream may have counted a call since
	at    time.Time // of the last response
	// unsureUntil is the time until which the upstream may count a call without a response.
	unsureUntil time.Time
}

func newCosts() *costs {
	queries, _ := simplelru.NewLRU[string, *queryCosts](maxQueries, nil) // fails only for a size below 1
	uses, _ := simplelru.NewLRU[accountResource, *windowUse](maxUses, nil)
	return &costs{queries: queries, uses: uses}
}

// predict returns the estimate for a call: its upper estimate rounded up, or a lower estimate after several calls of its
// query. Each recent call bounds the ratio of cost and upper estimate. The prediction is the lowest upper bound, but not below
// any lower bound, because the ratio may depend on the variables.
func (c *costs) predict(query string, upper float64) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	highest := int(math.Ceil(upper))
	q, ok := c.queries.Get(query)
	if !ok {
		return highest
	}
	n, lowest := min(q.n, recentCosts), 1
	for _, p := range q.recent[:n] {
		least, most := p.bounds(upper)
		if lowest = max(lowest, least); n >= leastCosts {
			highest = min(highest, most)
		}
	}
	return max(lowest, highest)
}

// bounds returns the bounds of the cost of a call with another upper estimate and the same ratio. The upstream rounds costs to
// the nearest integer, so a call with a low cost says little about calls with a high one.
func (p pricedCall) bounds(upper float64) (least, most int) {
	if p.upper == upper {
		return p.cost, p.cost
	}
	scaled := func(cost float64) int { return int(math.Round(cost * upper / p.upper)) }
	return scaled(float64(p.cost) - 0.5), scaled(float64(p.cost) + 0.5)
}

// observe adds the true cost of a call.
func (c *costs) observe(query string, upper float64, cost int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q, ok := c.queries.Get(query)
	if !ok {
		q = &queryCosts{}
		c.queries.Add(query, q)
	}
	q.recent[q.n%recentCosts] = pricedCall{upper, min(cost, maxCost)}
	q.n++
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

// end records the outcome of a call. It returns the growth of the reported use since the previous response and the time of
// that response. The growth is zero if another call of this process may have caused it.
func (c *costs) end(p *Permit, o *Outcome) (grown int, since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u, ok := c.uses.Get(accountResource{p.Account, p.Resource})
	if !ok || u.inProgress == 0 { // removed during the call
		return 0, since
	}
	u.inProgress--
	alone, last, now := !u.mixed, u.last, time.Now()
	u.mixed = u.mixed && u.inProgress > 0
	switch {
	case !o.Sent:
		return 0, since
	case !o.Answered || o.Resent > 0:
		u.unsureUntil = now.Add(time.Duration(linger) * time.Microsecond)
	}
	if o.Rate.Limit == 0 || o.Rate.Resource != p.Resource || now.Before(u.unsureUntil) {
		u.last = Rate{}
		return 0, since
	}
	since = u.at
	u.last, u.at = o.Rate, now
	apart := o.Rate.Reset.Sub(last.Reset).Abs().Microseconds()
	if last.Limit != o.Rate.Limit || apart > resetJitter { // another window
		return 0, since
	}
	u.last.Used = max(last.Used, o.Rate.Used)
	if grown = o.Rate.Used - last.Used; !alone || grown < 0 || float64(grown) > math.Ceil(p.MaxCost) {
		return 0, since
	}
	return grown, since
}
