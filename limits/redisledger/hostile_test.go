package redisledger

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/limits/limitstest"
)

// setting returns a number from the environment, or the default.
func setting(t *testing.T, name string, fallback int) int {
	text := os.Getenv(name)
	if text == "" {
		return fallback
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// predictable removes events that separated replicas cannot observe from a scenario: spends of other clients, CPU time
// of requests, limit errors without a cause, and crashes of replicas.
func predictable(s limitstest.Scenario) limitstest.Scenario {
	n := &s.Upstream
	n.OtherTraffic, n.SecondaryErrors, n.ClosedWindows, n.Grant = 0, 0, 0, nil
	s.Rules.CPU.Total, s.Rules.CPU.GraphQL = time.Hour, time.Hour
	n.Limits = s.Rules.Limits
	s.Crash, s.Replicas = 0, 2+s.Replicas/2
	return s
}

// predictableWithDates changes a scenario like predictable, and also adds a Date field to all responses. Replicas
// detect a wrong clock only by that field.
func predictableWithDates(s limitstest.Scenario) limitstest.Scenario {
	s.Upstream.NoDate = false
	return predictable(s)
}

// runWithFaults runs a scenario on Redis while the rig injects faults.
func runWithFaults(t *testing.T, sockets [2]string, s limitstest.Scenario, f faults, trace func(string, ...any)) (report limitstest.Report, failovers int) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, sockets)
		r.clockOffset = f.ClockOffset
		if trace != nil {
			r.trace = trace
		}
		ctx, end := context.WithCancel(context.Background())
		var injecting sync.WaitGroup
		report = s.Run(t, func(_ *testing.T, rules limits.Rules) func(int) limits.Ledger {
			injecting.Go(func() { r.inject(ctx, f, rand.New(rand.NewPCG(s.Seed, 7)), s.Replicas) })
			return func(replica int) limits.Ledger { return r.open(rules, replica) }
		}, trace)
		end()
		injecting.Wait()
		failovers = r.failovers
	})
	return report, failovers
}

// The scenarios have a hostile upstream. WEIR_REDIS_SCENARIOS sets their number for each case. WEIR_SEED selects one
// seed. The cases test the invariants I1, I10 and I11 of docs/limits.md.
func TestNoLimitIsExceededOverRedis(t *testing.T) {
	unchanged := func(s limitstest.Scenario) limitstest.Scenario { return s }
	for _, c := range []struct {
		name  string
		adapt func(limitstest.Scenario) limitstest.Scenario
		faults
	}{
		{"no faults", unchanged, faults{}},
		{"failovers", predictable, faults{Failovers: true, Lag: time.Second}},
		{"failovers to an empty server", predictable, faults{Losses: true}},
		{"partitions", predictable, faults{Cuts: true}},
		{"partitions with the clock of Redis a minute ahead", predictableWithDates, faults{Cuts: true, ClockOffset: time.Minute}},
		{"partitions with the clock of Redis a minute behind", predictableWithDates, faults{Cuts: true, ClockOffset: -time.Minute}},
		{"all faults", predictable, faults{Cuts: true, Failovers: true, Losses: true, Lag: time.Second}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			sockets := [2]string{testservers.Redis(t), testservers.Redis(t)}
			if seed := setting(t, "WEIR_SEED", 0); seed != 0 {
				s := c.adapt(limitstest.Draw(uint64(seed)))
				r, _ := runWithFaults(t, sockets, s, c.faults, t.Logf)
				t.Errorf("seed %d: %d requests\n%s", seed, r.Requests, strings.Join(r.Violations, "\n"))
				return
			}
			n := setting(t, "WEIR_REDIS_SCENARIOS", 2)
			table, failovers := limitstest.NewTable(), 0
			for seed := 1; seed <= n; seed++ {
				s := c.adapt(limitstest.Draw(uint64(seed)))
				r, f := runWithFaults(t, sockets, s, c.faults, nil)
				if len(r.Violations) > 0 {
					t.Errorf("seed %d:\n%s", seed, strings.Join(r.Violations, "\n"))
				}
				table.Add(&s, &r)
				failovers += f
			}
			t.Logf("%d failovers", failovers)
			table.Print(t)
		})
	}
}

// Four replicas with offline leases must use the documented part of each window (I14 in docs/limits.md). By default the
// test measures windows of a minute, and the window of GraphQL calls. With WEIR_WINDOWS the test measures that number of
// windows of each length.
// TestNoLimitIsExceededByManyReplicas measures the first saturation.
func TestSaturationUsesTheLimitsOverRedis(t *testing.T) {
	windows := setting(t, "WEIR_WINDOWS", 0)
	table := limitstest.NewTable()
	sockets := [2]string{testservers.Redis(t), testservers.Redis(t)}
	for i, s := range limitstest.Saturations() {
		if windows == 0 && (i == 0 || s.Window != time.Minute && s.Limit != "primary graphql") || s.MinFullness == 0 {
			continue
		}
		t.Run(s.Limit, func(t *testing.T) {
			scenario := s.Scenario(4, max(2, windows), false)
			r, _ := runWithFaults(t, sockets, scenario, faults{}, nil)
			if len(r.Violations) > 0 {
				t.Error(r.Violations)
			}
			if full := r.Fullness(s.Limit); full < s.MinFullness {
				t.Errorf("used %.2f %% of a window, want %.2f %%", 100*full, 100*s.MinFullness)
			}
			table.Add(&scenario, &r, s.Limit)
		})
	}
	table.Print(t)
}
