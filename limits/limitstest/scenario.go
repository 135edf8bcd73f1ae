package limitstest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// OpenReplicas makes an empty ledger that keeps these rules, and cleans it up when the
// test ends; what it returns gives each replica its way to it. It is called
// inside the bubble. A ledger that has a method Run(context.Context) has it run
// as long as its replica lives.
type OpenReplicas func(t *testing.T, rules limits.Rules) func(replica int) limits.Ledger

// ShareLedger opens ledgers that all replicas may use as they are.
func ShareLedger(open func(rules limits.Rules) limits.Ledger) OpenReplicas {
	return func(_ *testing.T, rules limits.Rules) func(int) limits.Ledger {
		ledger := open(rules)
		return func(int) limits.Ledger { return ledger }
	}
}

// Scenario is an upstream, and those who ask it.
type Scenario struct {
	Name     string
	Seed     uint64
	Rules    limits.Rules
	Upstream Profile
	// Replicas share one ledger; each has so many clients of each account.
	Replicas, Accounts, Clients int
	// Duration is how long they ask; WarmUp, after how long use is measured (zero:
	// not at all).
	Duration, WarmUp time.Duration
	// Weights are of the operations, in the order of the catalogue of this
	// package; nil means drawn.
	Weights []int
	// Backlog has every client ask without a pause, and wait for hours.
	Backlog bool
	// Burst is how many requests a cron client makes at once, Gap the mean
	// pause of a steady one.
	Burst int
	Gap   time.Duration
	// Timeout is after how long a client gives up on an answer; Cancel the odds
	// that it does so earlier, Unsent that a permit is not used.
	Timeout        time.Duration
	Cancel, Unsent float64
	// LedgerLatency is how long a call of the ledger may take each way, Repeats the odds
	// that it is made twice, Crash that a replica dies.
	LedgerLatency     time.Duration
	Duplicates, Crash float64
}

// run is a scenario that runs.
type run struct {
	scenario *Scenario
	upstream *Upstream
	rng      *rand.Rand
	clients  sync.WaitGroup
	errands  sync.WaitGroup // their requests
	limiters sync.WaitGroup
}

// Run runs the scenario, inside a bubble. trace, unless it is nil, hears the
// story.
func (s *Scenario) Run(t *testing.T, open OpenReplicas, trace func(format string, args ...any)) Report {
	var steady time.Time
	if s.WarmUp > 0 {
		steady = time.Now().Add(s.WarmUp)
	}
	r := &run{scenario: s, upstream: NewUpstream(s.Upstream, s.Seed, steady), rng: rand.New(rand.NewPCG(s.Seed, 1))}
	r.upstream.trace = trace
	ledger := open(t, s.Rules)
	ctx, end := context.WithCancel(context.Background())
	limiting, shut := context.WithCancel(context.Background())
	var foreign sync.WaitGroup
	for i := range s.Replicas {
		r.replica(ctx, limiting, i, ledger(i))
	}
	if s.Upstream.OtherTraffic > 0 {
		for i := range s.Accounts {
			rng := rand.New(rand.NewPCG(s.Seed, uint64(100+i)))
			foreign.Go(func() { r.upstream.others(accountName(i), rng, ctx.Done()) })
		}
	}
	time.Sleep(s.Duration)
	if s.WarmUp > 0 {
		r.upstream.mu.Lock()
		r.upstream.measure()
		r.upstream.from = time.Time{}
		r.upstream.mu.Unlock()
	}
	end()
	foreign.Wait()
	r.clients.Wait()
	r.errands.Wait()
	shut()
	r.limiters.Wait()
	return r.upstream.Report()
}

func accountName(i int) string { return fmt.Sprint("account ", i) }

// replica starts a limiter, until limiting ends, and its clients, until ctx ends
// or the replica dies.
func (r *run) replica(ctx, limiting context.Context, n int, ledger limits.Ledger) {
	s := r.scenario
	l := &link{
		Ledger: ledger, upstream: r.upstream, slow: s.LedgerLatency, repeats: s.Duplicates,
		rng: rand.New(rand.NewPCG(s.Seed, uint64(1000+n))), granted: map[uint64]time.Time{}, answers: map[uint64]*Answer{},
	}
	limiter := limits.NewLimiter(l)
	living, bury := context.WithCancel(limiting)
	if ledger, ok := ledger.(interface{ Run(ctx context.Context) }); ok {
		r.limiters.Go(func() { ledger.Run(living) })
	}
	var dies time.Time
	if n > 0 && odds(r.rng, s.Crash) { // one survives
		after := upTo(r.rng, s.Duration)
		dies = time.Now().Add(after)
		dying, end := context.WithCancel(ctx)
		r.clients.Go(func() {
			defer end()
			if pause(dying, after); dying.Err() == nil {
				l.die()
				bury()
			}
		})
		ctx = dying
	}
	for i := range s.Accounts {
		for j := range s.Clients {
			c := r.client(n, i, j)
			c.link, c.limiter, c.dies = l, limiter, dies
			r.clients.Go(func() { c.live(ctx) })
		}
	}
	r.limiters.Go(func() {
		defer bury()
		limiter.Run(limiting)
	})
}

// client draws a client.
func (r *run) client(replica, account, n int) *client {
	s := r.scenario
	rng := rand.New(rand.NewPCG(r.rng.Uint64(), 2))
	c := &client{run: r, rng: rng, ops: operations()}
	c.caller = policy.Caller{
		Kind: s.Upstream.Kind, Account: accountName(account), Client: fmt.Sprintf("client %d of %d", n, replica), Share: 1 + rng.IntN(5),
		Priority: []policy.Priority{policy.Normal, policy.Interactive, policy.Batch}[rng.IntN(3)],
	}
	c.pattern = pattern(rng.IntN(int(patterns)))
	c.patience = upTo(rng, 2*s.Rules.Points.Window)
	for i := range c.ops {
		weight := rng.IntN(4) * rng.IntN(4)
		if s.Weights != nil {
			weight = s.Weights[i]
		}
		c.ops[i].weight = weight
		c.weights += weight
	}
	if c.weights == 0 {
		c.ops[0].weight, c.weights = 1, 1
	}
	if s.Backlog {
		c.pattern, c.patience = overload, 100*time.Hour
		c.caller.Priority = policy.Normal
	}
	return c
}
