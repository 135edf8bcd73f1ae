package limits

import (
	"math"
	"time"

	"github.com/weirgate/weir/policy"
)

// Rules are the limits to keep, and how carefully.
type Rules struct {
	policy.Limits
	// Headroom is the fraction of every limit that is kept back for users of
	// the account elsewhere.
	Headroom float64
	// ColdStart says what a ledger takes for spent when it starts without
	// knowing: "strict" everything, "ramp" three quarters, returning evenly
	// within one window, "trust" (or nothing) nothing.
	ColdStart string
}

// Spend is what a claim takes from one sliding log.
type Spend struct {
	// Budget and Scope name the log: Points and an operation, for example.
	Budget Reason
	Scope  string
	// Limit is how much may be spent within Window; Cost is what this claim
	// takes, in the same unit: requests, points or milliseconds.
	Limit, Cost int64
	Window      time.Duration
	// Merge is how near to each other spends may lie and still become one
	// entry; zero keeps an exact log.
	Merge time.Duration
}

// exactUpTo is the largest limit whose log keeps every spend apart; larger
// logs merge what lies within a 256th of their window (limits.md section 1.3).
const (
	exactUpTo  = 128
	mergeParts = 256
)

// Spends returns what a claim takes from the sliding logs of its
// account (design section 5.2): from all or from none of them.
func (r *Rules) Spends(c Claim) []Spend {
	var list []Spend
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
	list = append(list, r.cpu("", c.CPU, r.CPU.Total))
	if graphQL {
		list = append(list, r.cpu(policy.GraphQL, c.CPU, r.CPU.GraphQL))
	}
	if c.Resource == policy.Search || c.Resource == policy.CodeSearch {
		w := r.For(c.Kind, c.Resource)
		list = append(list, r.spend(Primary, c.Resource, 1, w.Max, w.Window))
	}
	return list
}

func (r *Rules) spend(budget Reason, scope string, cost int64, limit int, window time.Duration) Spend {
	s := Spend{Budget: budget, Scope: scope, Limit: r.Usable(int64(limit)), Cost: cost, Window: window}
	if limit > exactUpTo {
		s.Merge = window / mergeParts
	}
	return s
}

// cpu is a spend of CPU time, in milliseconds. No request is taken to need
// more than there is: it would never be sent.
func (r *Rules) cpu(scope string, cost, limit time.Duration) Spend {
	s := r.spend(CPU, scope, 0, int(limit/time.Millisecond), r.CPU.Window)
	s.Cost = min(r.Milliseconds(cost), s.Limit)
	return s
}

// Milliseconds is the CPU time that a response time counts for, rounded up.
func (r *Rules) Milliseconds(elapsed time.Duration) int64 {
	return int64(math.Ceil(float64(elapsed) * r.CPU.Factor / float64(time.Millisecond)))
}

// Usable is what headroom leaves of a limit.
func (r *Rules) Usable(limit int64) int64 {
	return limit - int64(math.Ceil(float64(limit)*r.Headroom))
}
