package limits_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// worker is a client of an example in docs/sharing.md. It wants requests in every step, as many as wants returns for the time since
// the start of the window.
type worker struct {
	policy.ClientBudget
	group string
	wants func(at time.Duration) int
	most  int // requests in the window; zero for no bound
	// waiting requests are repeated in the next step. longest is the longest time for which a request has waited.
	waiting, used int
	since         time.Duration // of the last step without waiting requests
	longest       time.Duration
}

// step is the interval between the attempts of a worker.
const step = 100 * time.Millisecond

// greedy wants 50 requests a second from a time on.
func greedy(from time.Duration) func(time.Duration) int {
	return func(at time.Duration) int {
		if at < from {
			return 0
		}
		return 5
	}
}

// each wants n requests in every interval from a time on.
func each(n int, interval, from time.Duration) func(time.Duration) int {
	return func(at time.Duration) int {
		if at < from || (at-from)%interval != 0 {
			return 0
		}
		return n
	}
}

// hour runs workers for a primary window of 5,000 requests, and returns the requests that each worker has used after each minute.
func hour(t *testing.T, groups []policy.ClientBudget, workers ...*worker) (used [61][]int) {
	var budgets []policy.ClientBudget
	for _, w := range workers {
		budgets = append(budgets, w.ClientBudget)
	}
	budgets = append(budgets, groups...)
	synctest.Test(t, func(t *testing.T) {
		ledger := limits.NewMemory(limits.Rules{Limits: policy.DefaultLimits(), ColdStart: "trust"})
		start, sum, id := time.Now(), 0, uint64(0)
		reset := start.Add(time.Hour)
		for at := time.Duration(0); at < time.Hour; at += step {
			for _, w := range workers {
				if w.waiting == 0 {
					w.since = at
				}
				w.waiting = max(w.waiting, w.wants(at))
				for w.waiting > 0 && (w.most == 0 || w.used < w.most) {
					id++
					c := limits.Claim{ID: id, Account: "a", Kind: policy.User, Operation: "op", Resource: policy.Core, Points: 1, Client: w.Client,
						Group: w.group, Share: w.Share, Clients: budgets, Batch: w.Batch, Paced: w.Batch, Waiting: w.waiting}
					if d := ledger.Admit(t.Context(), c); !d.Granted {
						w.longest = max(w.longest, at-w.since)
						break
					}
					sum++
					w.used++
					w.waiting--
					rate := policy.Rate{Limit: 5000, Used: sum, Reset: reset, Date: time.Now(), Resource: policy.Core}
					noError(t, ledger.Settle(t.Context(), limits.Permit{Claim: c}, limits.Outcome{Sent: true, Answered: true, Ended: true, Rate: rate}))
				}
			}
			if minute := int((at + step) / time.Minute); (at+step)%time.Minute == 0 {
				for _, w := range workers {
					used[minute] = append(used[minute], w.used)
				}
			}
			time.Sleep(step)
		}
		failIf(t, sum < 4950, "%d of 5000 requests used, want 99 %%", sum)
	})
	return used
}

// TestExamplesOfSharing runs the examples of docs/sharing.md, which must have these figures, and the numbers of the rules.
func TestExamplesOfSharing(t *testing.T) {
	page, err := os.ReadFile("../docs/sharing.md")
	noError(t, err)
	budget := func(client string, guarantee, limit float64) policy.ClientBudget {
		return policy.ClientBudget{Client: client, Share: 1, Guarantee: guarantee, Limit: limit}
	}
	script := &worker{ClientBudget: budget("script", 0, 0.9), wants: greedy(0)}
	person := &worker{ClientBudget: budget("person", 0.2, 1), wants: each(1, 12*time.Second, 0)}
	ci := &worker{ClientBudget: budget("ci", 0, 0.9), wants: greedy(0)}
	etl := &worker{ClientBudget: budget("etl", 0, 0.9), group: "data", wants: greedy(30 * time.Minute), most: 1200}
	reports := &worker{ClientBudget: budget("reports", 0, 0.9), group: "data", wants: each(10, time.Minute, 0)}
	data := policy.ClientBudget{Client: "data", Guarantee: 0.4, Limit: 0.6}
	builds := &worker{ClientBudget: budget("builds", 0.4, 0.9), wants: each(300, 10*time.Minute, 2*time.Minute)}
	backup := &worker{ClientBudget: budget("backup", 0, 0.9), wants: greedy(0)}
	backup.Batch = true
	for _, example := range []struct {
		minutes []int
		groups  []policy.ClientBudget
		workers []*worker
		served  *worker // waits for at most a second
	}{
		{[]int{5, 55, 60}, nil, []*worker{script, person}, person},
		{[]int{5, 55, 60}, []policy.ClientBudget{data}, []*worker{ci, etl, reports}, reports},
		{[]int{30, 55, 60}, nil, []*worker{builds, backup}, builds},
	} {
		used := hour(t, example.groups, example.workers...)
		table, line := "| minute |", "\n|---|"
		for _, w := range example.workers {
			table, line = table+" "+w.Client+" |", line+"---|"
		}
		table += line + "\n"
		for _, minute := range example.minutes {
			table += fmt.Sprintf("| %d |", minute)
			for _, n := range used[minute] {
				table += fmt.Sprintf(" %d |", n)
			}
			table += "\n"
		}
		failIf(t, !strings.Contains(string(page), table), "docs/sharing.md must contain the table\n%s", table)
		failIf(t, example.served.longest > time.Second, "a request of %s waited %v", example.served.Client, example.served.longest)
	}
	sync := &worker{ClientBudget: budget("sync", 0, 0.9), wants: greedy(0)}
	sync.Share = 2
	scan := &worker{ClientBudget: budget("scan", 0, 0.9), wants: func(at time.Duration) int {
		if at < 4*time.Minute {
			return greedy(2 * time.Minute)(at)
		}
		return each(10, 6*time.Second, 4*time.Minute)(at) // 100 a minute
	}}
	used := hour(t, nil, sync, scan)
	in := func(minute, worker int) int { return used[minute][worker] - used[minute-1][worker] }
	for _, text := range append(limits.SharingNumbers(), fmt.Sprintf(
		"with `share: 2` gets %d alone, %d if a client with `share: 1` takes the other %d, and %d if that client needs only %d.",
		in(2, 0), in(4, 0), in(4, 1), in(5, 0), in(5, 1))) {
		failIf(t, !strings.Contains(strings.Join(strings.Fields(string(page)), " "), text), "docs/sharing.md must contain %q", text)
	}
}
