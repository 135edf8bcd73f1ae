package redisledger

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/limits/limitstest"
	"github.com/weirgate/weir/policy"
)

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

// decisions records the decisions of the ledgers of all replicas.
type decisions struct {
	began   time.Time
	mu      sync.Mutex
	granted []time.Time
	refused map[limits.Reason]int
}

func newDecisions() *decisions {
	return &decisions{began: time.Now(), refused: map[limits.Reason]int{}}
}

// watched is the ledger of a replica whose decisions are recorded.
type watched struct {
	*Ledger
	decisions *decisions
}

func (w watched) Admit(ctx context.Context, c limits.Claim) limits.Decision {
	d := w.Ledger.Admit(ctx, c)
	w.decisions.mu.Lock()
	defer w.decisions.mu.Unlock()
	if d.Granted {
		w.decisions.granted = append(w.decisions.granted, time.Now())
	} else if time.Since(w.decisions.began) > 3*time.Second { // accounts of a new Redis wait for restores
		w.decisions.refused[d.Reason]++
	}
	return d
}

// run runs a scenario on Redis in virtual time, while meddle disturbs the connections.
func run(t *testing.T, servers [2]database, s limitstest.Scenario, trace func(string, ...any), meddle func(context.Context, *rig)) (
	report limitstest.Report, d *decisions,
) {
	synctest.Test(t, func(t *testing.T) {
		d = newDecisions()
		r := newRig(t, servers)
		if trace != nil {
			r.trace = trace
		}
		ctx, end := context.WithCancel(context.Background())
		var meddling sync.WaitGroup
		report = s.Run(t, func(_ *testing.T, rules limits.Rules) func(int) limitstest.Ledger {
			meddling.Go(func() { meddle(ctx, r) })
			return func(replica int) limitstest.Ledger { return watched{r.open(rules, replica), d} }
		}, trace)
		end()
		meddling.Wait()
	})
	return report, d
}

// noViolations fails the test if a limit was exceeded.
func noViolations(t *testing.T, name string, r limitstest.Report) {
	t.Helper()
	failIf(t, len(r.Violations) > 0, "%s:\n%s", name, strings.Join(r.Violations, "\n"))
}

// undisturbed runs a scenario on Redis, and fails the test if a limit was exceeded.
func undisturbed(t *testing.T, servers [2]database, s limitstest.Scenario) limitstest.Report {
	t.Helper()
	r, _ := run(t, servers, s, nil, func(context.Context, *rig) {})
	noViolations(t, s.Name, r)
	return r
}

// full fails the test if a window was used less than required.
func full(t *testing.T, r limitstest.Report, limit string, least float64) {
	t.Helper()
	got := r.Fullness(limit)
	failIf(t, got < least, "used %.2f %% of a window, want %.2f %%", 100*got, 100*least)
}

// delayed makes Redis reply after 0 to 200 ms.
func delayed(_ context.Context, r *rig) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delay = 200 * time.Millisecond
}

// The scenarios have a hostile upstream. WEIR_REDIS_SCENARIOS sets their number for each case. WEIR_SEED selects one
// seed. The cases test the invariants I1, I10 and I11 of docs/internals/limits.md.
func TestNoLimitIsExceededOverRedis(t *testing.T) {
	t.Parallel() // while clusters wait
	unchanged := func(s limitstest.Scenario) limitstest.Scenario { return s }
	for _, c := range []struct {
		name  string
		adapt func(limitstest.Scenario) limitstest.Scenario
		faults
		lag   time.Duration // of the store
		delay bool
	}{
		{"no faults", unchanged, faults{}, 0, false},
		{"slow replies", unchanged, faults{}, time.Second, true},
		{"failovers", predictable, faults{Failovers: true, Lag: time.Second}, 0, false},
		{"failovers to an empty server", predictable, faults{Losses: true}, 0, false},
		{"partitions", predictable, faults{Cuts: true}, 0, false},
		{"partitions with the clock of Redis a minute ahead", predictableWithDates, faults{Cuts: true, ClockOffset: time.Minute}, 0, false},
		{"partitions with the clock of Redis a minute behind", predictableWithDates, faults{Cuts: true, ClockOffset: -time.Minute}, 0, false},
		{"all faults", predictable, faults{Cuts: true, Failovers: true, Losses: true, Lag: time.Second}, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			servers := newServers(t)
			table, failovers := limitstest.NewTable(), 0
			play := func(seed int, trace func(string, ...any)) limitstest.Report {
				s := c.adapt(limitstest.Draw(uint64(seed)))
				s.StoreLag = max(s.StoreLag, c.lag)
				r, _ := run(t, servers, s, trace, func(ctx context.Context, r *rig) {
					if c.delay {
						delayed(ctx, r)
					}
					r.inject(ctx, c.faults, rand.New(rand.NewPCG(s.Seed, 7)), s.Replicas)
					failovers += r.failovers
				})
				table.Add(&s, &r)
				return r
			}
			if seed := testservers.Setting(t, "WEIR_SEED", 0); seed != 0 {
				r := play(seed, t.Logf)
				t.Errorf("seed %d: %d requests\n%s", seed, r.Requests, strings.Join(r.Violations, "\n"))
				return
			}
			for seed := 1; seed <= testservers.Setting(t, "WEIR_REDIS_SCENARIOS", 1); seed++ {
				noViolations(t, fmt.Sprint("seed ", seed), play(seed, nil))
			}
			t.Logf("%d failovers", failovers)
			table.Print(t)
		})
	}
}

// TestClientsShareFairlyOverRedis runs WEIR_FAIR_SCENARIOS random scenarios for each property of fairness, with replicas
// that share one Redis server.
func TestClientsShareFairlyOverRedis(t *testing.T) {
	servers := newServers(t)
	scenarios := testservers.Setting(t, "WEIR_FAIR_SCENARIOS", 1)
	limitstest.RunFairness(t, scenarios, scenarios > 1, func(t *testing.T, s limitstest.Scenario) limitstest.Report {
		r, _ := run(t, servers, s, nil, func(context.Context, *rig) {})
		return r
	})
}

// Four replicas with offline leases must use the documented part of each window (I14 in docs/internals/limits.md). By default the
// test measures two windows of searches. With WEIR_WINDOWS the test measures that number of windows of each limit.
// TestNoLimitIsExceededByManyReplicas measures points, and TestSaturatedAccountsContinueWithoutRedis content.
func TestSaturationUsesTheLimitsOverRedis(t *testing.T) {
	windows := testservers.Setting(t, "WEIR_WINDOWS", 0)
	table := limitstest.NewTable()
	servers := newServers(t)
	for _, s := range limitstest.Saturations() {
		if windows == 0 && s.Limit != policy.Search && s.Limit != policy.CodeSearch || s.MinFullness == 0 {
			continue
		}
		t.Run(s.Limit, func(t *testing.T) {
			scenario := s.Scenario(4, max(2, windows), false)
			r := undisturbed(t, servers, scenario)
			full(t, r, s.Limit, s.MinFullness)
			table.Add(&scenario, &r, s.Limit)
		})
	}
	table.Print(t)
}

// WEIR_REPLICAS replicas saturate one account on a real Redis in virtual time. They must use windows as completely as a
// few replicas.
func TestNoLimitIsExceededByManyReplicas(t *testing.T) {
	replicas := testservers.Setting(t, "WEIR_REPLICAS", 8)
	hot := limitstest.Saturations()[0]
	s := hot.Scenario(replicas, max(1, testservers.Setting(t, "WEIR_WINDOWS", 1)), false)
	s.Clients = max(1, s.Clients)
	began := time.Now()
	r := undisturbed(t, newServers(t), s)
	full(t, r, hot.Limit, hot.MinFullness)
	table := limitstest.NewTable()
	table.Add(&s, &r, hot.Limit)
	table.Print(t)
	t.Logf("%d replicas, %d requests in %v, which took %v", replicas, r.Requests, s.Duration, time.Since(began).Round(time.Millisecond))
}

// A slow Redis is not a lost Redis.
func TestSlowRedisCostsLittle(t *testing.T) {
	s := limitstest.Saturations()[0]
	scenario := s.Scenario(4, 1, false)
	scenario.StoreLag = time.Second
	report, d := run(t, newServers(t), scenario, nil, delayed)
	noViolations(t, scenario.Name, report)
	full(t, report, s.Limit, 0.97)
	n := d.refused[Store]
	failIf(t, n > 0, "%d refusals because of the store, want none", n)
	t.Logf("used %.2f %% of a window, refusals %v", 100*report.Fullness(s.Limit), d.refused)
}

// All replicas lose Redis for 20 seconds, while they use all quota. Each replica may use the tokens that return to its
// leases, and uses Redis again within two seconds. With WEIR_WINDOWS the test also uses all points and searches.
func TestSaturatedAccountsContinueWithoutRedis(t *testing.T) {
	servers := newServers(t)
	const start, outage = 80 * time.Second, 20 * time.Second
	all := limitstest.Saturations()
	chosen := all[2:3] // content
	if testservers.Setting(t, "WEIR_WINDOWS", 0) > 0 {
		chosen = []limitstest.Saturation{all[0], all[2], all[4]} // points, content and searches
	}
	for _, s := range chosen {
		t.Run(s.Limit, func(t *testing.T) {
			var from time.Time
			report, d := run(t, servers, s.Scenario(4, 1, false), nil, func(_ context.Context, r *rig) {
				time.Sleep(start)
				from = time.Now()
				r.partition(func(int) bool { return true }, 4)
				time.Sleep(outage)
				r.partition(func(int) bool { return false }, 4)
				time.Sleep(2 * time.Second)
				r.mu.Lock()
				defer r.mu.Unlock()
				for _, l := range r.ledgers {
					since := l.Lost()
					failIf(t, !since.IsZero(), "Redis is still lost two seconds after the outage, since %v", since)
				}
			})
			noViolations(t, s.Limit, report)
			returned, used := 0, 0
			for _, g := range d.granted {
				if at := g.Add(s.Window); at.After(from) && at.Before(from.Add(outage)) {
					returned++
				}
				if g.After(from) && g.Before(from.Add(outage)) {
					used++
				}
			}
			t.Logf("%d tokens returned without Redis, %d used; used %.2f %% of a window", returned, used, 100*report.Fullness(s.Limit))
			failIf(t, used < returned*60/100, "%d of %d returned tokens used, want 60 %%", used, returned)
		})
	}
}

// Busy goroutines compete with the replicas for all processors, in real time, for WEIR_BUSY windows of five seconds. By
// default the test is skipped, because it disturbs other tests.
func TestBusyMachineLosesNoQuota(t *testing.T) {
	windows := testservers.Setting(t, "WEIR_BUSY", 0)
	if windows == 0 {
		t.Skip("set WEIR_BUSY to keep the processors busy")
	}
	server := newDatabase(t)
	stop := make(chan struct{})
	var busy sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		busy.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	s := limitstest.Saturations()[0].Scenario(4, 3, false)
	s.Rules.Points.REST, s.Rules.Points.Window = 75, 5*time.Second // the rate of 900 per minute
	s.Upstream.Limits = s.Rules.Limits
	s.Duration, s.WarmUp, s.StoreLag = time.Duration(1+windows)*s.Rules.Points.Window, s.Rules.Points.Window, time.Second
	d := newDecisions()
	report := s.Run(t, func(_ *testing.T, rules limits.Rules) func(int) limitstest.Ledger {
		return func(replica int) limitstest.Ledger {
			url := fmt.Sprintf("unix://%s?db=%d", server.socket, server.number)
			l, err := New(Config{URL: url, Replica: fmt.Sprint("r", replica), Rules: rules, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
			noError(t, err)
			t.Cleanup(func() { _ = l.Close() })
			l.Join(t.Context())
			return watched{l, d}
		}
	}, nil)
	close(stop)
	busy.Wait()
	noViolations(t, s.Name, report)
	n := d.refused[Store]
	failIf(t, n > 0, "%d refusals because of the store, want none", n)
	t.Logf("used %.2f %% of a window, refusals %v", 100*report.Fullness("points"), d.refused)
	full(t, report, "points", 0.97)
}
