package limits

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/policy"
)

// call returns a GraphQL call with an upper estimate.
func call(query string, upper float64) Claim {
	return Claim{Operation: "graphql", Resource: policy.GraphQL, Points: 1, Query: query, UpperEstimate: upper}
}

// costing returns the outcome of a successful call whose body has a cost.
func costing(cost int) Outcome {
	return Outcome{Sent: true, Answered: true, Ended: true, Succeeded: true, Cost: cost}
}

// using returns the outcome of a successful call whose rate headers have a use.
func using(used int, reset time.Time) Outcome {
	o := costing(0)
	o.Rate = policy.Rate{Limit: 5000, Used: used, Reset: reset, Resource: policy.GraphQL}
	return o
}

// spent settles a permit, and returns the cost.
func (o *harness) spent(p *Permit, outcome Outcome) int {
	o.Helper()
	cost, err := o.Settle(o.ctx, *p, outcome)
	noError(o, err)
	return cost
}

func TestEstimateOfAQueryFallsAfterEqualCosts(t *testing.T) {
	inBubble(t, policy.DefaultLimits(), func(o *harness) {
		for i, c := range []struct{ cost, estimate int }{
			{20, 30}, {20, 30}, {20, 30}, {20, 20}, {25, 20}, {20, 25}, {20, 25}, {20, 25}, {20, 25}, {20, 25}, {20, 25}, {20, 25},
			{20, 25}, {20, 20}, {40, 20}, {40, 40},
		} {
			p := o.acquired(call("q", 30), user(""))
			failIf(t, p.Cost != c.estimate, "call %d: got estimate %d, want %d", i, p.Cost, c.estimate)
			cost := o.spent(p, costing(c.cost))
			failIf(t, cost != c.cost, "call %d: got cost %d, want %d", i, cost, c.cost)
		}
		p := o.acquired(call("other", 30), user(""))
		failIf(t, p.Cost != 30 || o.spent(p, costing(0)) != 30, "another query has the estimate %d, want 30", p.Cost)
	})
}

func TestEstimateWithOtherVariablesKeepsTheRatio(t *testing.T) {
	for _, c := range []struct {
		upper float64
		cost  int
		next  float64
		want  int
	}{
		{200, 100, 400, 201}, {200, 100, 100, 50}, {100, 50, 2000, 1010}, {1.4, 1, 1.4, 1},
		{1, 1, 50, 50}, {2, 1, 100, 75}, // a low cost says little
		{10, 20, 5, 10}, // above the upper estimate
	} {
		e := newCosts()
		for range minCalls {
			e.observe(&Claim{Account: "a", Query: "q", UpperEstimate: c.upper}, c.cost)
		}
		got := e.predict(&Claim{Account: "a", Query: "q", UpperEstimate: c.next})
		failIf(t, got != c.want, "cost %d of at most %v: got %d of at most %v, want %d", c.cost, c.upper, got, c.next, c.want)
	}
}

func TestCallsOfOneAccountDoNotChangeTheEstimatesOfAnother(t *testing.T) {
	e := newCosts()
	for range minCalls {
		e.observe(&Claim{Account: "a", Query: "q", UpperEstimate: 300}, 1)
	}
	got := e.predict(&Claim{Account: "b", Query: "q", UpperEstimate: 300})
	failIf(t, got != 300, "got the estimate %d, want 300", got)
}

// The upstream rounds the cost of a call to the nearest integer.
func TestEstimateIsNotBelowTheCost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e, factor := newCosts(), rapid.Float64Range(1, 4).Draw(t, "factor")
		for i, exact := range rapid.SliceOfN(rapid.Float64Range(0.01, 5000), 1, 40).Draw(t, "exact costs") {
			cost, upper := max(1, int(math.Round(exact))), max(1, exact*factor)
			claim := &Claim{Account: "a", Query: "q", UpperEstimate: upper}
			if estimate := e.predict(claim); estimate < cost {
				t.Fatalf("call %d: got estimate %d, and cost %d", i, estimate, cost)
			}
			e.observe(claim, cost)
		}
	})
}

func TestRefusedCallsDoNotLowerTheEstimate(t *testing.T) {
	inBubble(t, policy.DefaultLimits(), func(o *harness) {
		failed, limited := costing(1), costing(1)
		failed.Succeeded, limited.Limited = false, policy.LimitPrimary
		for range 2 * minCalls {
			o.spent(o.acquired(call("q", 30), user("")), failed)
		}
		if p := o.acquired(call("q", 30), user("")); p.Cost != 30 {
			t.Errorf("got estimate %d, want 30", p.Cost)
		} else {
			o.spent(p, limited)
		}
	})
}

func TestQueriesAreBounded(t *testing.T) {
	e := newCosts()
	for i := range 2 * maxQueries {
		for range minCalls {
			e.observe(&Claim{Query: fmt.Sprint(i), UpperEstimate: 30}, 20)
		}
		e.begin(&Permit{Claim: Claim{Account: fmt.Sprint(i)}})
	}
	failIf(t, e.queries.Len() > maxQueries || e.uses.Len() > maxUses, "%d queries and %d windows, want a bounded number", e.queries.Len(), e.uses.Len())
	got := e.predict(&Claim{Query: "0", UpperEstimate: 30})
	failIf(t, got != 30, "got estimate %d of a forgotten query, want 30", got)
}

func TestReportedUseShowsTheCost(t *testing.T) {
	inBubble(t, policy.DefaultLimits(), func(o *harness) {
		reset := time.Now().Add(time.Hour)
		calls := 0
		next := func() *Permit {
			calls++ // no query has an estimate
			return o.acquired(call(fmt.Sprint(calls), 30), user(""))
		}
		check := func(name string, p *Permit, outcome Outcome, want int) {
			t.Helper()
			cost := o.spent(p, outcome)
			failIf(t, cost != want, "%s: got cost %d, want %d", name, cost, want)
		}
		check("first response", next(), using(10, reset), 30)
		check("second response", next(), using(22, reset), 12)
		check("another program", next(), using(100, reset), 30)
		check("no growth", next(), using(100, reset), 30)
		check("a body that has the cost", next(), func() Outcome { u := using(115, reset); u.Cost = 14; return u }(), 14)
		check("another reset", next(), using(12, reset.Add(time.Hour)), 30)
		p, q := next(), next()
		check("overlapping", q, using(24, reset.Add(time.Hour)), 30)
		check("overlapped", p, using(36, reset.Add(time.Hour)), 30)
		check("after overlapping calls", next(), using(48, reset.Add(time.Hour)), 12)
		check("lost response", next(), Outcome{Sent: true}, 30)
		check("soon after it", next(), using(72, reset.Add(time.Hour)), 30)
		time.Sleep(10 * time.Second)
		check("first after ten seconds", next(), using(84, reset.Add(time.Hour)), 30)
		check("second after ten seconds", next(), using(96, reset.Add(time.Hour)), 12)
		check("unsent", next(), Outcome{}, 30)
		check("after an unsent call", next(), using(108, reset.Add(time.Hour)), 12)
		unreadable := func() *Permit { return o.acquired(call("", 30), user("")) }
		check("unreadable query", unreadable(), using(200, reset.Add(time.Hour)), 92)
		check("growth beyond the largest query", unreadable(), using(1_000_000_000, reset.Add(time.Hour)), 30)
	})
}

// busyLedger is a ledger that other processes use, too.
type busyLedger struct{ *Memory }

func (busyLedger) Alone(string, string, time.Time) bool { return false }

func TestReportedUseOfOtherReplicasShowsNoCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(busyLedger{NewMemory(Rules{Limits: policy.DefaultLimits()})})
		for i := range 4 {
			p, err := l.Acquire(t.Context(), call("q", 30), user(""), time.Now())
			noError(t, err)
			cost, _ := l.Settle(t.Context(), *p, using(12*(i+1), time.Now().Add(time.Hour)))
			failIf(t, cost != 30, "got cost %d, want 30", cost)
		}
	})
}
