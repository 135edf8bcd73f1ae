package limitstest

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// Contender is a client that competes with other clients for one account.
type Contender struct {
	Name             string
	Share            int
	Priority         policy.Priority
	Guarantee, Limit float64
	Claim            limits.Claim // for each request
	// Loops is the number of loops that send requests without a pause. If Gap is not zero, each loop starts requests at
	// random times instead, with this mean pause, and does not wait for the responses.
	Loops int
	Gap   time.Duration
	// From is the arrival, and Until is the departure. If Until is zero, the client stays until the end.
	From, Until time.Duration
	// Replicas are the replicas of the client. Each request uses a random one of them.
	Replicas []int
}

// contend starts the loops of a contender.
func (r *run) contend(ctx context.Context, f *Contender) {
	caller := policy.Caller{
		Kind: r.scenario.Upstream.Kind, Account: accountName(0), Client: f.Name, Share: f.Share, Priority: f.Priority,
		Paced: f.Priority == policy.Batch,
	}
	for _, other := range r.scenario.Contenders {
		caller.Clients = append(caller.Clients, policy.ClientBudget{
			Client: other.Name, Share: other.Share, Guarantee: other.Guarantee, Limit: other.Limit,
		})
	}
	for range f.Loops {
		rng := rand.New(rand.NewPCG(r.rng.Uint64(), 3))
		var ends []client
		for _, n := range f.Replicas {
			c := r.ends[n]
			c.caller, c.rng, c.maxWait = caller, rng, 100*time.Hour
			c.ops, c.weights = []operation{{f.Claim, 1}}, 1
			ends = append(ends, c)
		}
		r.clients.Go(func() { f.loop(ctx, ends, rng) })
	}
}

// loop sends requests from the arrival to the departure of the contender. ends contains the client at each replica.
func (f *Contender) loop(ctx context.Context, ends []client, rng *rand.Rand) {
	pause(ctx, f.From)
	if f.Until > 0 {
		stay, leave := context.WithTimeout(ctx, f.Until-f.From)
		defer leave()
		ctx = stay
	}
	for ctx.Err() == nil {
		done := ends[rng.IntN(len(ends))].start(ctx)
		if f.Gap > 0 {
			pause(ctx, upTo(rng, 2*f.Gap))
		} else {
			<-done
		}
	}
}
