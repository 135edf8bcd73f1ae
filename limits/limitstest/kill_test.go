package limitstest_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/limits/limitstest"
)

// killed is the ledger of a process that is killed at random moments. The next process loads what the killed process has
// appended to its journal, and learns nothing about the permits of the killed process.
type killed struct {
	*testing.T
	rules limits.Rules
	mu    sync.Mutex // guards the fields below
	*limits.Memory
	journal *bytes.Buffer
	permits map[uint64]*limits.Memory
	kills   []time.Time
	back    []time.Duration // from each kill to the next grant
}

func newKilled(t *testing.T, rules limits.Rules) *killed {
	k := &killed{T: t, rules: rules, permits: map[uint64]*limits.Memory{}, journal: &bytes.Buffer{}}
	k.start()
	return k
}

// start starts a process with the file of the last one. mu must be held.
func (k *killed) start() {
	next := limits.NewMemory(k.rules)
	if k.journal.Len() > 0 {
		if clean, err := next.Load(bytes.NewReader(k.journal.Bytes())); err != nil || clean {
			k.Error(clean, err)
		}
	}
	k.Memory, k.journal = next, &bytes.Buffer{}
	if err := next.Dump(k.journal); err != nil {
		k.Error(err)
	}
	next.Journal(k.journal)
}

func (k *killed) kill() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kills = append(k.kills, time.Now())
	k.start()
}

func (k *killed) current() *limits.Memory {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.Memory
}

func (k *killed) Canonical(name string) string { return k.current().Canonical(name) }

func (k *killed) Alone(account, resource string, since time.Time) bool {
	return k.current().Alone(account, resource, since)
}

func (k *killed) of(p uint64) *limits.Memory {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.permits[p] != k.Memory {
		return nil
	}
	return k.Memory
}

func (k *killed) Admit(ctx context.Context, c limits.Claim) (limits.Decision, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	d, err := k.Memory.Admit(ctx, c)
	if d.Granted {
		k.permits[c.ID] = k.Memory
		if n := len(k.back); n < len(k.kills) {
			k.back = append(k.back, time.Since(k.kills[n]))
			for len(k.back) < len(k.kills) { // killed again before a grant
				k.back = append(k.back, 0)
			}
		}
	}
	return d, err
}

func (k *killed) Settle(ctx context.Context, p limits.Permit, o limits.Outcome) error {
	if m := k.of(p.ID); m != nil {
		return m.Settle(ctx, p, o)
	}
	return nil
}

func (k *killed) Release(ctx context.Context, p limits.Permit, aborted bool) error {
	if m := k.of(p.ID); m != nil {
		return m.Release(ctx, p, aborted)
	}
	return nil
}

func (k *killed) Renew(ctx context.Context, permits []limits.OpenPermit) error {
	for _, p := range permits {
		if m := k.of(p.ID); m != nil {
			_ = m.Renew(ctx, []limits.OpenPermit{p})
		}
	}
	return nil
}

func TestKilledProcessesExceedNoLimit(t *testing.T) {
	kills := testservers.Setting(t, "WEIR_KILLS", 5)
	for i, s := range limitstest.Saturations() {
		if s.Limit == "concurrency" && kills < 100 { // has a million requests
			continue
		}
		t.Run(s.Limit, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				scenario := s.Scenario(1, 1, true)
				scenario.Duration, scenario.WarmUp = time.Duration(kills)*3*time.Minute, 0
				var k *killed
				rng := rand.New(rand.NewPCG(uint64(i), 7))
				ctx, stop := context.WithCancel(t.Context())
				var killing sync.WaitGroup
				report := scenario.Run(t, limitstest.ShareLedger(func(rules limits.Rules) limits.Ledger {
					k = newKilled(t, rules)
					killing.Go(func() {
						for range kills {
							testservers.Sleep(ctx, time.Minute+time.Duration(rng.Int64N(int64(2*time.Minute))))
							if ctx.Err() == nil {
								k.kill()
							}
						}
					})
					return k
				}), nil)
				stop()
				killing.Wait()
				if len(report.Violations) > 0 {
					t.Errorf("%d violations, first: %v", len(report.Violations), report.Violations[0])
				}
				for _, back := range k.back {
					if back > 65*time.Second && s.Window < time.Hour {
						t.Errorf("no grant for %v after a kill", back)
					}
				}
				if len(k.back) == 0 && s.Window < time.Hour {
					t.Errorf("only %d starts were followed by a grant", len(k.back))
				}
				t.Logf("%d requests, %d kills", report.Requests, len(k.kills))
			})
		})
	}
}
