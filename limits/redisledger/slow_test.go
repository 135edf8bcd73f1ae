package redisledger

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/limits/limitstest"
)

// watched records the decisions of the ledgers of all replicas.
type watched struct {
	*Ledger
	decisions *decisions
}

type decisions struct {
	began   time.Time
	mu      sync.Mutex
	granted []time.Time
	refused map[limits.Reason]int
}

func (w watched) Admit(ctx context.Context, c limits.Claim) (limits.Decision, error) {
	d, err := w.Ledger.Admit(ctx, c)
	w.decisions.mu.Lock()
	defer w.decisions.mu.Unlock()
	if d.Granted {
		w.decisions.granted = append(w.decisions.granted, time.Now())
	} else if time.Since(w.decisions.began) > 3*time.Second { // accounts of a new Redis wait for restores
		w.decisions.refused[d.Reason]++
	}
	return d, err
}

func newDecisions() *decisions {
	return &decisions{began: time.Now(), refused: map[limits.Reason]int{}}
}

// saturate runs a saturation with four replicas on Redis. meddle can disturb the connections.
func saturate(t *testing.T, sockets [2]string, s limitstest.Scenario, meddle func(r *rig)) (report limitstest.Report, d *decisions) {
	synctest.Test(t, func(t *testing.T) {
		d = newDecisions()
		r := newRig(t, sockets)
		var meddling sync.WaitGroup
		report = s.Run(t, func(_ *testing.T, rules limits.Rules) func(int) limits.Ledger {
			meddling.Go(func() { meddle(r) })
			return func(replica int) limits.Ledger { return watched{r.open(rules, replica), d} }
		}, nil)
		meddling.Wait()
	})
	return report, d
}

// Redis replies after 0 to 200 ms. A slow Redis is not a lost Redis.
func TestSlowRedisCostsLittle(t *testing.T) {
	sockets := [2]string{testservers.Redis(t), testservers.Redis(t)}
	for _, s := range limitstest.Saturations()[:1] {
		t.Run(s.Limit, func(t *testing.T) {
			scenario := s.Scenario(4, 2, false)
			scenario.StoreLag = time.Second
			report, d := saturate(t, sockets, scenario, func(r *rig) {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.delay = 200 * time.Millisecond
			})
			if len(report.Violations) > 0 {
				t.Error(strings.Join(report.Violations, "\n"))
			}
			if full := report.Fullness(s.Limit); full < 0.97 {
				t.Errorf("used %.2f %% of a window, want 97 %%", 100*full)
			}
			if n := d.refused[Store]; n > 0 {
				t.Errorf("%d refusals because of the store, want none", n)
			}
			t.Logf("used %.2f %% of a window, refusals %v", 100*report.Fullness(s.Limit), d.refused)
		})
	}
}

// The scenarios have a hostile upstream, and Redis replies after 0 to 200 ms.
func TestNoLimitIsExceededOverSlowRedis(t *testing.T) {
	t.Parallel()
	sockets := [2]string{testservers.Redis(t), testservers.Redis(t)}
	for seed := 1; seed <= setting(t, "WEIR_REDIS_SCENARIOS", 2); seed++ {
		s := limitstest.Draw(uint64(seed))
		s.StoreLag = time.Second
		report, _ := saturate(t, sockets, s, func(r *rig) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.delay = 200 * time.Millisecond
		})
		if len(report.Violations) > 0 {
			t.Errorf("seed %d:\n%s", seed, strings.Join(report.Violations, "\n"))
		}
	}
}

// All replicas lose Redis for 20 seconds, while they use all quota. Each replica may use the tokens that return to its
// leases, and uses Redis again within two seconds.
func TestSaturatedAccountsContinueWithoutRedis(t *testing.T) {
	sockets := [2]string{testservers.Redis(t), testservers.Redis(t)}
	const outage = 20 * time.Second
	for i, window := range map[int]time.Duration{0: time.Minute, 2: time.Minute, 4: time.Minute} {
		s := limitstest.Saturations()[i]
		for _, start := range []time.Duration{110 * time.Second} {
			t.Run(fmt.Sprint(s.Limit, " after ", start), func(t *testing.T) {
				scenario := s.Scenario(4, 2, false)
				var from time.Time
				report, d := saturate(t, sockets, scenario, func(r *rig) {
					time.Sleep(start)
					from = time.Now()
					r.partition(func(int) bool { return true }, 4)
					time.Sleep(outage)
					r.partition(func(int) bool { return false }, 4)
					time.Sleep(2 * time.Second)
					r.mu.Lock()
					defer r.mu.Unlock()
					for _, l := range r.ledgers {
						if since := l.Lost(); !since.IsZero() {
							t.Errorf("Redis is still lost two seconds after the outage, since %v", since)
						}
					}
				})
				if len(report.Violations) > 0 {
					t.Error(strings.Join(report.Violations, "\n"))
				}
				returned, used := 0, 0
				for _, g := range d.granted {
					if at := g.Add(window); at.After(from) && at.Before(from.Add(outage)) {
						returned++
					}
					if g.After(from) && g.Before(from.Add(outage)) {
						used++
					}
				}
				t.Logf("%d tokens returned without Redis, %d used; used %.2f %% of a window", returned, used, 100*report.Fullness(s.Limit))
				if used < returned*60/100 {
					t.Errorf("%d of %d returned tokens used, want 60 %%", used, returned)
				}
			})
		}
	}
}

// Busy goroutines compete with the replicas for all processors, in real time, for WEIR_BUSY windows of five seconds. By
// default the test does nothing, because it disturbs other tests.
func TestBusyMachineLosesNoQuota(t *testing.T) {
	windows := setting(t, "WEIR_BUSY", 0)
	if windows == 0 {
		return
	}
	socket := testservers.Redis(t)
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
	report := s.Run(t, func(_ *testing.T, rules limits.Rules) func(int) limits.Ledger {
		return func(replica int) limits.Ledger {
			l, err := New(Config{URL: "unix://" + socket, Replica: fmt.Sprint("r", replica), Rules: rules, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			l.Join(t.Context())
			return watched{l, d}
		}
	}, nil)
	close(stop)
	busy.Wait()
	if len(report.Violations) > 0 {
		t.Error(strings.Join(report.Violations, "\n"))
	}
	if n := d.refused[Store]; n > 0 {
		t.Errorf("%d refusals because of the store, want none", n)
	}
	t.Logf("used %.2f %% of a window, refusals %v", 100*report.Fullness("points"), d.refused)
	if full := report.Fullness("points"); full < 0.97 {
		t.Errorf("used %.2f %% of a window, want 97 %%", 100*full)
	}
}
