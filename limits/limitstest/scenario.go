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

// OpenReplicas creates an empty ledger with the given rules, and closes the ledger when the test ends. The returned
// function connects each replica to the ledger, inside the bubble of virtual time. If a ledger has a method
// Run(context.Context), Run is called for the life of the replica.
type OpenReplicas func(t *testing.T, rules limits.Rules) func(replica int) Ledger

// ShareLedger returns an OpenReplicas for a ledger that all replicas can call directly.
func ShareLedger(open func(rules limits.Rules) Ledger) OpenReplicas {
	return func(_ *testing.T, rules limits.Rules) func(int) Ledger {
		ledger := open(rules)
		return func(int) Ledger { return ledger }
	}
}

// Scenario describes an upstream and its clients.
type Scenario struct {
	Name     string
	Seed     uint64
	Rules    limits.Rules
	Upstream Profile
	// All replicas share one ledger. Clients is the number of clients for each replica and account.
	Replicas, Accounts, Clients int
	// Contenders are further clients, which share the account 0.
	Contenders []Contender
	// Duration is the time for which the clients send. If WarmUp is not zero, use is measured after that time.
	Duration, WarmUp time.Duration
	// Weights contains the weight of each operation, in the order of the function operations. If Weights is nil, the
	// weights are random.
	Weights []int
	// MaxPrice is the largest true cost of a GraphQL call; zero counts as 1. Estimates are up to Overestimate times the
	// true cost.
	MaxPrice     int
	Overestimate float64
	// Backlog makes every client send without a pause, and wait for hours.
	Backlog bool
	// Burst is the largest number of requests in a burst. Gap is the mean pause of a steady client.
	Burst int
	Gap   time.Duration
	// Timeout is the longest wait of a client for a response. Cancel is the probability of an earlier timeout. Unsent
	// is the probability that a permit is not used.
	Timeout        time.Duration
	Cancel, Unsent float64
	// LedgerLatency is the longest latency of a ledger call in each direction. Duplicates is the probability that a
	// call is repeated. Crash is the probability that a replica crashes.
	LedgerLatency     time.Duration
	Duplicates, Crash float64
	// StoreLag is the longest time from a decision of the store to the end of its call, and from the end of
	// [limits.Ledger.Settle] until the store learns a response without a limit error. The upstream blames a ledger only for
	// responses that the store had learned before the decision.
	StoreLag time.Duration
}

// run is a scenario in progress.
type run struct {
	scenario *Scenario
	upstream *Upstream
	rng      *rand.Rand
	clients  sync.WaitGroup
	requests sync.WaitGroup // requests of the clients
	limiters sync.WaitGroup
	ends     []client // one client of each replica, without a caller
}

// Run runs the scenario inside a bubble of virtual time. If trace is not nil, trace receives a log of the events.
func (s *Scenario) Run(t *testing.T, open OpenReplicas, trace func(format string, args ...any)) Report {
	var steady time.Time
	if s.WarmUp > 0 {
		steady = time.Now().Add(s.WarmUp)
	}
	r := &run{scenario: s, upstream: NewUpstream(s.Upstream, s.Seed, steady), rng: rand.New(rand.NewPCG(s.Seed, 1))}
	r.upstream.trace = trace
	ledger := open(t, s.Rules)
	ctx, stopClients := context.WithCancel(context.Background())
	limiting, stopLimiters := context.WithCancel(context.Background())
	var otherUsers sync.WaitGroup
	for i := range s.Replicas {
		r.replica(ctx, limiting, i, ledger(i))
	}
	for i := range s.Contenders {
		r.contend(ctx, &s.Contenders[i])
	}
	if s.Upstream.OtherTraffic > 0 {
		for i := range s.Accounts {
			rng := rand.New(rand.NewPCG(s.Seed, uint64(100+i)))
			otherUsers.Go(func() { r.upstream.OtherTraffic(accountName(i), rng, ctx.Done()) })
		}
	}
	time.Sleep(s.Duration)
	if s.WarmUp > 0 {
		r.upstream.StopMeasuring()
	}
	stopClients()
	otherUsers.Wait()
	r.clients.Wait()
	r.requests.Wait()
	stopLimiters()
	r.limiters.Wait()
	return r.upstream.Report()
}

func accountName(i int) string { return fmt.Sprint("account ", i) }

// replica starts a limiter until limiting ends, and its clients until ctx ends or the replica crashes.
func (r *run) replica(ctx, limiting context.Context, n int, ledger Ledger) {
	s := r.scenario
	l := &link{
		Ledger: ledger, upstream: r.upstream, slow: s.LedgerLatency, lag: s.StoreLag, repeats: s.Duplicates,
		rng: rand.New(rand.NewPCG(s.Seed, uint64(1000+n))), granted: map[uint64]time.Time{}, responses: map[uint64]*Response{},
	}
	limiter := limits.NewLimiter(l)
	alive, stop := context.WithCancel(limiting)
	if ledger, ok := ledger.(interface{ Run(ctx context.Context) }); ok {
		r.limiters.Go(func() { ledger.Run(alive) })
	}
	var crashes time.Time
	if n > 0 && chance(r.rng, s.Crash) { // replica 0 never crashes
		after := upTo(r.rng, s.Duration)
		crashes = time.Now().Add(after)
		untilCrash, end := context.WithCancel(ctx)
		r.clients.Go(func() {
			defer end()
			if pause(untilCrash, after); untilCrash.Err() == nil {
				l.crash()
				stop()
			}
		})
		ctx = untilCrash
	}
	r.ends = append(r.ends, client{run: r, link: l, limiter: limiter, crashes: crashes})
	for i := range s.Accounts {
		for j := range s.Clients {
			c := r.client(n, i, j)
			c.link, c.limiter, c.crashes = l, limiter, crashes
			r.clients.Go(func() { c.loop(ctx) })
		}
	}
	r.limiters.Go(func() {
		defer stop()
		limiter.Run(limiting)
	})
}

// client returns a random client.
func (r *run) client(replica, account, n int) *client {
	s := r.scenario
	rng := rand.New(rand.NewPCG(r.rng.Uint64(), 2))
	c := &client{run: r, rng: rng, ops: operations()}
	c.caller = policy.Caller{
		Kind: s.Upstream.Kind, Account: accountName(account), Client: fmt.Sprintf("client %d of %d", n, replica),
		Share:    1 + rng.IntN(5),
		Priority: []policy.Priority{policy.Normal, policy.Interactive, policy.Batch}[rng.IntN(3)],
	}
	c.caller.Paced = c.caller.Priority == policy.Batch
	c.pattern = pattern(rng.IntN(int(patterns)))
	c.maxWait = upTo(rng, 2*s.Rules.Points.Window)
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
		c.pattern, c.maxWait = overload, 100*time.Hour
		c.caller.Priority, c.caller.Paced = policy.Normal, false
	}
	return c
}
