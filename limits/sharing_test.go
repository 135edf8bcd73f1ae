package limits_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// worker is a client of an example in docs/sharing.md. It wants requests every second, as many as wants returns for the time since
// the start of the window.
type worker struct {
	policy.ClientBudget
	group         string
	wants         func(at time.Duration) int
	most          int // requests in the window; zero for no bound
	used, refused int
}

// greedy wants 50 requests a second from a time on.
func greedy(from time.Duration) func(time.Duration) int {
	return func(at time.Duration) int {
		if at < from {
			return 0
		}
		return 50
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

// hour runs workers for a primary window of 5,000 requests, and returns a table of the requests that each worker has used at some times.
func hour(t *testing.T, groups []policy.ClientBudget, workers ...*worker) (rows []string) {
	var budgets []policy.ClientBudget
	head, line := "| minute |", "|---|"
	for _, w := range workers {
		budgets = append(budgets, w.ClientBudget)
		head, line = head+" "+w.Client+" |", line+"---|"
	}
	rows = []string{head, line}
	budgets = append(budgets, groups...)
	synctest.Test(t, func(t *testing.T) {
		ledger := limits.NewMemory(limits.Rules{Limits: policy.DefaultLimits(), ColdStart: "trust"})
		start, used, id := time.Now(), 0, uint64(0)
		reset := start.Add(time.Hour)
		for at := time.Duration(0); at < time.Hour; at += time.Second {
			for _, w := range workers {
				for range w.wants(at) {
					if w.most > 0 && w.used == w.most {
						break
					}
					id++
					c := limits.Claim{ID: id, Account: "a", Kind: policy.User, Operation: "op", Resource: policy.Core, Points: 1, Client: w.Client,
						Group: w.group, Share: w.Share, Clients: budgets, Batch: w.Batch, Paced: w.Batch}
					if d, err := ledger.Admit(t.Context(), c); err != nil || !d.Granted {
						w.refused++
						break
					}
					used++
					w.used++
					rate := limits.Rate{Limit: 5000, Used: used, Reset: reset, Date: time.Now(), Resource: policy.Core}
					if err := ledger.Settle(t.Context(), limits.Permit{Claim: c}, limits.Outcome{Sent: true, Answered: true, Ended: true, Rate: rate}); err != nil {
						t.Fatal(err)
					}
				}
			}
			if minute := int((at + time.Second) / time.Minute); (at+time.Second)%time.Minute == 0 && slices.Contains([]int{5, 30, 55, 60}, minute) {
				row := fmt.Sprintf("| %d |", minute)
				for _, w := range workers {
					row += fmt.Sprintf(" %d |", w.used)
				}
				rows = append(rows, row)
			}
			time.Sleep(time.Second)
		}
		if used < 4950 {
			t.Errorf("%d of 5000 requests used, want 99 %%", used)
		}
	})
	return rows
}

// TestExamplesOfSharing runs the examples of docs/sharing.md, whose tables must have these figures.
func TestExamplesOfSharing(t *testing.T) {
	page, err := os.ReadFile("../docs/sharing.md")
	if err != nil {
		t.Fatal(err)
	}
	budget := func(client string, guarantee, limit float64) policy.ClientBudget {
		return policy.ClientBudget{Client: client, Share: 1, Guarantee: guarantee, Limit: limit}
	}
	script := &worker{ClientBudget: budget("script", 0, 0.9), wants: greedy(0)}
	person := &worker{ClientBudget: budget("person", 0.1, 1), wants: each(1, 12*time.Second, 0)}
	ci := &worker{ClientBudget: budget("ci", 0, 0.9), wants: greedy(0)}
	etl := &worker{ClientBudget: budget("etl", 0, 0.9), group: "data", wants: greedy(30 * time.Minute), most: 1200}
	reports := &worker{ClientBudget: budget("reports", 0, 0.9), group: "data", wants: each(10, time.Minute, 0)}
	data := policy.ClientBudget{Client: "data", Guarantee: 0.4, Limit: 0.6}
	builds := &worker{ClientBudget: budget("builds", 0.4, 0.9), wants: each(300, 10*time.Minute, 2*time.Minute)}
	backup := &worker{ClientBudget: budget("backup", 0, 0.9), wants: greedy(0)}
	backup.Batch = true
	for _, example := range []struct {
		name    string
		groups  []policy.ClientBudget
		workers []*worker
		served  *worker // is never refused
	}{
		{"person", nil, []*worker{script, person}, person},
		{"team", []policy.ClientBudget{data}, []*worker{ci, etl, reports}, reports},
		{"batch", nil, []*worker{builds, backup}, builds},
	} {
		rows := strings.Join(hour(t, example.groups, example.workers...), "\n")
		if !strings.Contains(string(page), rows+"\n") {
			t.Errorf("docs/sharing.md: the table of the example %q must be:\n%s", example.name, rows)
		}
		if example.served.refused > 0 {
			t.Errorf("%s: %d requests of %s were refused", example.name, example.served.refused, example.served.Client)
		}
	}
}
