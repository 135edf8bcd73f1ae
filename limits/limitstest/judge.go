package limitstest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// judge draws the scenarios of one property, and collects the figures.
type judge struct {
	*testing.T
	runScenario func(*testing.T, Scenario) Report
	seed        uint64
	rng         *rand.Rand
	last        Scenario
	rows        []string
}

// small reports whether the scenario is small.
func (j *judge) small() bool { return j.seed%2 == 1 }

// most returns n, or at most two in a small scenario.
func (j *judge) most(n int) int {
	if j.small() {
		return min(n, 2)
	}
	return n
}

// points returns the budget of points. In a small scenario a request costs five points.
func (j *judge) points() contested {
	c := contested{saturationOf(points), 900, operations()[0].Claim}
	if j.small() {
		c.claim.Points = 5
	}
	return c
}

// crowd returns clients with random shares, whose requests need a budget.
func (j *judge) crowd(n int, b contested) []Contender {
	clients := make([]Contender, n)
	for i := range clients {
		clients[i] = Contender{
			Name: fmt.Sprint("client ", i), Share: 1 + j.rng.IntN(5), Priority: policy.Normal, Limit: 0.9, Claim: b.claim,
		}
	}
	return clients
}

// anywhere returns one random replica, or all replicas.
func (j *judge) anywhere(replicas int) []int {
	if j.rng.IntN(2) == 0 {
		return upToN(replicas)
	}
	return []int{j.rng.IntN(replicas)}
}

// run runs a scenario. If warmUp is not zero, the use of the windows is measured from then on.
func (j *judge) run(b contested, replicas int, clients []Contender, warmUp, duration time.Duration) Report {
	s := b.Scenario(replicas, 1, false)
	s.Seed, s.Clients, s.Contenders, s.WarmUp, s.Duration = j.seed, 0, clients, warmUp, duration
	r := j.runScenario(j.T, s)
	j.last = s
	if len(r.Violations) > 0 {
		j.Errorf("seed %d: %s", j.seed, strings.Join(r.Violations, "\n"))
	}
	return r
}

// check adds a figure of the last scenario to the table. If the figure is not ok, the test fails.
func (j *judge) check(ok bool, format string, args ...any) {
	j.Helper()
	figure, verdict := fmt.Sprintf(format, args...), "ok"
	if !ok {
		verdict = "FAILED"
		j.Errorf("seed %d, %d replicas, %d clients: %s", j.seed, j.last.Replicas, len(j.last.Contenders), figure)
	}
	j.rows = append(j.rows, fmt.Sprintf("%d\t%d\t%d\t%s\t%s", j.seed, j.last.Replicas, len(j.last.Contenders), verdict, figure))
}

// print logs the table of the figures.
func (j *judge) print() {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(w, "seed\treplicas\tclients\tverdict\tfigure\n%s\n", strings.Join(j.rows, "\n"))
	_ = w.Flush()
	j.Logf("\n%s", text.String())
}

// upToN returns the numbers from 0 to n-1.
func upToN(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// contested is a budget for which the clients of an account compete.
type contested struct {
	Saturation
	max   int64 // per window
	claim limits.Claim
}

var (
	contestedContent = contested{saturationOf(content), 80, operations()[3].Claim}
	contestedSearch  = contested{saturationOf(policy.Search), 30, operations()[4].Claim}
	// contestedSlots has few slots, because a scenario with 100 slots needs too many requests.
	contestedSlots = contested{Saturation{Limit: concurrency, rules: func(l *policy.Limits) {
		unlimitedCPU(l)
		l.Primary.User, l.Points.REST, l.Concurrent = 1_000_000, 1_000_000, 3
	}}, 3, operations()[0].Claim}
)

func saturationOf(limit string) Saturation {
	all := Saturations()
	return all[slices.IndexFunc(all, func(s Saturation) bool { return s.Limit == limit })]
}

// least returns the required use of each window: 99 %, less the part of one request that may remain.
func (b *contested) least() float64 { return 0.99 - (b.cost()-1)/float64(b.max) }

// cost returns the cost of one request in the contested budget.
func (b *contested) cost() float64 {
	if b.Limit == points {
		return float64(b.claim.Points)
	}
	return 1
}
