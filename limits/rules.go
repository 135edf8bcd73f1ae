package limits

import (
	"math"
	"time"

	"github.com/weirgate/weir/policy"
)

// Rules are the limits that a ledger enforces.
type Rules struct {
	policy.Limits
	// Headroom is the fraction of every limit that Weir leaves unused, for other programs that use the same account.
	Headroom float64
	// Probes is the number of failed probes in a row after which an account is closed, or zero to never close an
	// account.
	Probes int
	// ColdStart is the assumption of a memory ledger about earlier spending. "strict" assumes that all quota is used,
	// and "trust" that no quota is used. "ramp" assumes that three quarters are used and return in steps.
	ColdStart string
	// Writes limits the writes of clients, by name.
	Writes map[string]policy.ClientWrites
}

// Spend is the cost of one claim in one sliding log.
type Spend struct {
	// Budget and Scope identify the log, for example Points and an operation.
	Budget Reason
	Scope  string
	// Limit is the amount that may be spent within Window. Limit and Cost have the unit of the budget: requests, points
	// or milliseconds.
	Limit, Cost int64
	Window      time.Duration
	// Merge is the time span of the spends that share one entry, or zero.
	Merge time.Duration
}

// A log of a client merges over shorter times than the log of the budget, by clientMerges, because the tokens of a client
// should not return later than those of the budget.
const clientMerges = 8

// A log with a limit above exactUpTo merges the spends within 1/mergeParts of its window, so that it has at most
// mergeParts+1 entries.
const (
	exactUpTo  = 128
	mergeParts = 256
)

// Spends appends the cost of a claim in every sliding log of its account to list.
func (r *Rules) Spends(list []Spend, c *Claim) []Spend {
	graphQL := c.Resource == policy.GraphQL
	if c.CreatesContent {
		for _, w := range r.Content {
			list = append(list, r.spend(Content, w.Window.String(), 1, w.Max, w.Window))
		}
	}
	points := r.Points.REST
	if graphQL {
		points = r.Points.GraphQL
	}
	list = append(list, r.spend(Points, c.Operation, int64(c.Points), points, r.Points.Window))
	list = append(list, r.cpuSpend("", c.CPU, r.CPU.Total))
	if graphQL {
		list = append(list, r.cpuSpend(policy.GraphQL, c.CPU, r.CPU.GraphQL))
	}
	if c.Resource == policy.Search || c.Resource == policy.CodeSearch {
		w := r.For(c.Kind, c.Resource)
		list = append(list, r.spend(Primary, c.Resource, 1, w.Max, w.Window))
	}
	return r.appendWrites(list, c)
}

// paced reports whether a claim waits for the pace of a log even if the log is almost empty. In a long window, an even rate
// would be too low for such a claim.
func (s *Spend) paced(c *Claim) bool { return c.Paced && s.Window.Microseconds() < dividedFrom }

// clientKey returns the key of the log that counts the tokens that a client uses of the log with the key whole.
func clientKey(whole, client string) string { return clientPrefix + whole + ":" + client }

func (r *Rules) spend(budget Reason, scope string, cost int64, limit int, window time.Duration) Spend {
	s := Spend{Budget: budget, Scope: scope, Limit: r.Usable(int64(limit)), Cost: cost, Window: window}
	if limit > exactUpTo {
		s.Merge = window / mergeParts
	}
	return s
}

// cpuSpend returns a spend of CPU time. The cost is at most the limit, because a more expensive request could never be
// sent.
func (r *Rules) cpuSpend(scope string, cost, limit time.Duration) Spend {
	s := r.spend(CPU, scope, 0, int(limit/time.Millisecond), r.CPU.Window)
	s.Cost = min(r.Milliseconds(cost), s.Limit)
	return s
}

// Milliseconds converts a response time to charged CPU time, rounded up.
func (r *Rules) Milliseconds(elapsed time.Duration) int64 {
	return int64(math.Ceil(float64(elapsed) * r.CPU.Factor / float64(time.Millisecond)))
}

// Usable returns a limit without its headroom.
func (r *Rules) Usable(limit int64) int64 {
	return limit - int64(math.Ceil(float64(limit)*r.Headroom))
}
