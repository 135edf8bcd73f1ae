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

// setting is a number from the environment.
func setting(t *testing.T, name string, byDefault int) int {
	text := os.Getenv(name)
	if text == "" {
		return byDefault
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// calm is a scenario without what replicas that have lost each other cannot
// know: what others spend, what CPU time requests take, limit errors for no
// reason. None of the replicas dies.
func calm(s limitstest.Scenario) limitstest.Scenario {
	n := &s.Upstream
	n.OtherTraffic, n.SecondaryErrors, n.ClosedWindows, n.Grant = 0, 0, 0, nil
	s.Rules.CPU.Total, s.Rules.CPU.GraphQL = time.Hour, time.Hour
	n.Limits = s.Rules.Limits
	s.Crash, s.Replicas = 0, 2+s.Replicas/2
	return s
}

// dated is calm where answers say when they were made: by nothing else could a clock be
// known to be another than the upstream's.
func dated(s limitstest.Scenario) limitstest.Scenario {
	s.Upstream.NoDate = false
	return calm(s)
}

// suffer runs a scenario on Redis while things befall it.
func suffer(t *testing.T, sockets [2]string, s limitstest.Scenario, x trouble, trace func(string, ...any)) (report limitstest.Report, failures int) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, sockets)
		r.ahead = x.Ahead
		if trace != nil {
			r.trace = trace
		}
		ctx, end := context.WithCancel(context.Background())
		var befalling sync.WaitGroup
		report = s.Run(t, func(_ *testing.T, rules limits.Rules) func(int) limits.Ledger {
			befalling.Go(func() { r.befall(ctx, x, rand.New(rand.NewPCG(s.Seed, 7)), s.Replicas) })
			return func(replica int) limits.Ledger { return r.open(rules, replica) }
		}, trace)
		end()
		befalling.Wait()
		failures = r.failures
	})
	return report, failures
}

// TestNoLimitIsExceededOverRedis runs scenarios of a hostile upstream on a real
// Redis: WEIR_REDIS_SCENARIOS of each kind, or the one of WEIR_SEED.
func TestNoLimitIsExceededOverRedis(t *testing.T) {
	whole := func(s limitstest.Scenario) limitstest.Scenario { return s }
	for _, c := range []struct {
		name string
		of   func(limitstest.Scenario) limitstest.Scenario
		trouble
	}{
		{"I1 all is well", whole, trouble{}},
		{"I10 the other server takes over", calm, trouble{Failovers: true, Lag: time.Second}},
		{"I10 and it is empty", calm, trouble{Losses: true}},
		{"I11 replicas are cut off", calm, trouble{Cuts: true}},
		{"I11 and their clocks are a minute slow", dated, trouble{Cuts: true, Ahead: time.Minute}},
		{"I11 and their clocks are a minute fast", dated, trouble{Cuts: true, Ahead: -time.Minute}},
		{"I10 I11 all of it", calm, trouble{Cuts: true, Failovers: true, Losses: true, Lag: time.Second}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			sockets := [2]string{testservers.Redis(t), testservers.Redis(t)}
			if seed := setting(t, "WEIR_SEED", 0); seed != 0 {
				s := c.of(limitstest.Draw(uint64(seed)))
				r, _ := suffer(t, sockets, s, c.trouble, t.Logf)
				t.Errorf("seed %d: %d requests\n%s", seed, r.Requests, strings.Join(r.Violations, "\n"))
				return
			}
			n := setting(t, "WEIR_REDIS_SCENARIOS", 3)
			table, failures := limitstest.NewTable(), 0
			for seed := 1; seed <= n; seed++ {
				s := c.of(limitstest.Draw(uint64(seed)))
				r, f := suffer(t, sockets, s, c.trouble, nil)
				if len(r.Violations) > 0 {
					t.Errorf("seed %d:\n%s", seed, strings.Join(r.Violations, "\n"))
				}
				table.Add(&s, &r)
				failures += f
			}
			t.Logf("%d failovers", failures)
			table.Print(t)
		})
	}
}

// TestSaturationUsesTheLimitsOverRedis holds how full the upstream's windows are
// against what is promised (limits.md I14), with four replicas that all set
// something aside: for windows of a minute, or of any length when WEIR_WINDOWS
// asks for so many.
func TestSaturationUsesTheLimitsOverRedis(t *testing.T) {
	windows := setting(t, "WEIR_WINDOWS", 0)
	table := limitstest.NewTable()
	sockets := [2]string{testservers.Redis(t), testservers.Redis(t)}
	for _, s := range limitstest.Saturations() {
		if windows == 0 && s.Window != time.Minute || s.MinFullness == 0 {
			continue
		}
		t.Run(s.Limit, func(t *testing.T) {
			scenario := s.Scenario(4, max(2, windows), false)
			r, _ := suffer(t, sockets, scenario, trouble{}, nil)
			if len(r.Violations) > 0 {
				t.Error(r.Violations)
			}
			if full := r.Fullness(s.Limit); full < s.MinFullness {
				t.Errorf("a window was only %.2f %% full", 100*full)
			}
			table.Add(&scenario, &r, s.Limit)
		})
	}
	table.Print(t)
}
