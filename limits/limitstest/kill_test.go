package limitstest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/limits/limitstest"
	"github.com/weirgate/weir/policy"
)

// disk is a ledger file on a disk that may be full.
type disk struct {
	bytes.Buffer
	full *atomic.Bool
}

func (d *disk) Write(line []byte) (int, error) {
	if d.full.Load() {
		n, _ := d.Buffer.Write(line[:len(line)/3])
		return n, errors.New("no space left on device")
	}
	return d.Buffer.Write(line)
}

func (d *disk) Truncate(size int64) error {
	d.Buffer.Truncate(int(size))
	return nil
}

// killed is the ledger of a process that is killed at random moments. The next process loads what the killed process has
// appended to its file, and learns nothing about the permits of the killed process. The account has a new token every few minutes,
// whose name no process but the current one learns.
type killed struct {
	*testing.T
	rules limits.Rules
	mu    sync.Mutex // guards the fields below
	*limits.Memory
	file     *disk
	full     atomic.Bool
	permits  map[uint64]permit
	token    string
	kills    []time.Time
	back     []time.Duration // from each kill to the next grant
	rotation int             // files that were replaced
	lost     []time.Time     // starts with an incomplete file, after which content counts as spent for an hour
}

// permit is the process and the name of the account of a permit.
type permit struct {
	*limits.Memory
	account string
}

func newKilled(t *testing.T, rules limits.Rules) *killed {
	k := &killed{T: t, rules: rules, permits: map[uint64]permit{}}
	k.start()
	return k
}

// start starts a process with the file of the last one. mu must be held.
func (k *killed) start() {
	next := limits.NewMemory(k.rules)
	if k.file != nil {
		saved, err := next.Load(bytes.NewReader(k.file.Bytes()))
		failIf(k, err != nil || saved.Clean, "%v %v", saved, err)
		if saved.Incomplete {
			k.lost = append(k.lost, time.Now())
		}
	}
	k.Memory = next
	k.full.Store(false)
	k.file = &disk{full: &k.full}
	err := next.Rotate(k.file, nil, func() error { return nil })
	failIf(k, err != nil, "%v", err)
}

func (k *killed) kill() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kills = append(k.kills, time.Now())
	k.start()
}

// disturb rotates the file and creates tokens until ctx ends.
func (k *killed) disturb(ctx context.Context, rng *rand.Rand) {
	for i := 0; ; i++ {
		testservers.Sleep(ctx, 5*time.Second)
		if ctx.Err() != nil {
			return
		}
		k.mu.Lock()
		m := k.Memory
		if i%20 == 0 {
			if k.token != "" { // a full disk may have lost its name, which no ledger knows until the upstream names it again
				m.Merge(k.token, "account 0", policy.User)
			}
			k.token = fmt.Sprint("token ", i)
			m.Merge(k.token, "account 0", policy.User)
		}
		k.mu.Unlock()
		if due, _ := m.RotationDue(); !due && rng.IntN(4) > 0 {
			continue
		}
		slow, file := time.Duration(rng.Int64N(int64(4*time.Second))), &disk{full: &k.full}
		_ = m.Rotate(file, nil, func() error {
			time.Sleep(slow) // the process may be killed during this time
			k.mu.Lock()
			defer k.mu.Unlock()
			if k.Memory != m || rng.IntN(4) == 0 {
				return errors.New("not renamed")
			}
			k.file = file
			k.rotation++
			return nil
		})
	}
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

// call calls the ledger that knows a permit, with the account's name. It does nothing if the ledger was killed.
func (k *killed) call(p limits.Permit, do func(*limits.Memory, limits.Permit) error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	known := k.permits[p.ID]
	if known.Memory != k.Memory {
		return nil
	}
	p.Account = known.account
	return do(k.Memory, p)
}

func (k *killed) Admit(ctx context.Context, c limits.Claim) limits.Decision {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.token != "" {
		c.Account = k.token
	}
	d := k.Memory.Admit(ctx, c)
	if d.Granted {
		k.permits[c.ID] = permit{k.Memory, c.Account}
		if n := len(k.back); n < len(k.kills) {
			after := time.Since(k.kills[n])
			if c.CreatesContent && slices.ContainsFunc(k.lost, func(at time.Time) bool { return time.Since(at) < 65*time.Minute }) {
				after = 0
			}
			k.back = append(k.back, after)
			for len(k.back) < len(k.kills) { // killed again before a grant
				k.back = append(k.back, 0)
			}
		}
	}
	return d
}

func (k *killed) Settle(ctx context.Context, p limits.Permit, o limits.Outcome) error {
	return k.call(p, func(m *limits.Memory, p limits.Permit) error { return m.Settle(ctx, p, o) })
}

func (k *killed) Release(ctx context.Context, p limits.Permit, aborted bool) {
	_ = k.call(p, func(m *limits.Memory, p limits.Permit) error { m.Release(ctx, p, aborted); return nil })
}

func (k *killed) Renew(permits []limits.OpenPermit) {
	for _, open := range permits {
		_ = k.call(open.Permit, func(m *limits.Memory, p limits.Permit) error {
			m.Renew([]limits.OpenPermit{{Permit: p, Elapsed: open.Elapsed}})
			return nil
		})
	}
}

func TestKilledProcessesExceedNoLimit(t *testing.T) {
	kills := testservers.Setting(t, "WEIR_KILLS", 5)
	for i, s := range limitstest.Saturations() {
		scenario := s.Scenario(1, 1, true)
		if s.Limit == "concurrency" { // with all slots, a kill would take 68,000 requests
			const slots = 5
			scenario.Clients, scenario.Rules.Concurrent, scenario.Upstream.Limits.Concurrent = 2*slots, slots, slots
		}
		t.Run(s.Limit, func(t *testing.T) { testKills(t, kills, uint64(i), s, scenario) })
		if s.Limit == "content long" {
			mixed := s.Scenario(1, 1, true)
			mixed.Weights[0] = 9
			mixed.Rules.Primary.User, mixed.Upstream.Limits.Primary.User = 1e6, 1e6
			t.Run("content after reads", func(t *testing.T) { testKills(t, kills, 100, s, mixed) })
		}
	}
}

func testKills(t *testing.T, kills int, seed uint64, s limitstest.Saturation, scenario limitstest.Scenario) {
	synctest.Test(t, func(t *testing.T) {
		scenario.Duration, scenario.WarmUp = time.Duration(kills)*3*time.Minute, 0
		var k *killed
		rng := rand.New(rand.NewPCG(seed, 7))
		ctx, stop := context.WithCancel(t.Context())
		var killing sync.WaitGroup
		report := scenario.Run(t, limitstest.ShareLedger(func(rules limits.Rules) limitstest.Ledger {
			k = newKilled(t, rules)
			killing.Go(func() { k.disturb(ctx, rand.New(rand.NewPCG(seed, 8))) })
			killing.Go(func() {
				for n := range kills {
					testservers.Sleep(ctx, time.Minute+time.Duration(rng.Int64N(int64(100*time.Second))))
					if n%4 == 3 {
						k.full.Store(true) // until the next start
						testservers.Sleep(ctx, 20*time.Second)
					}
					if ctx.Err() == nil {
						k.kill()
					}
				}
			})
			return k
		}), nil)
		stop()
		killing.Wait()
		failIf(t, len(report.Violations) > 0, "%d violations, first: %v", len(report.Violations), report.Violations[:min(1, len(report.Violations))])
		for _, back := range k.back {
			failIf(t, back > 65*time.Second && s.Window < time.Hour, "no grant for %v after a kill", back)
		}
		failIf(t, len(k.back) == 0 && s.Window < time.Hour, "only %d starts were followed by a grant", len(k.back))
		t.Logf("%d requests, %d kills, %d incomplete files, %d rotations", report.Requests, len(k.kills), len(k.lost), k.rotation)
	})
}
