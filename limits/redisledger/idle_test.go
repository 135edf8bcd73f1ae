package redisledger

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// A minute after the last request, a replica only registers, and lists the accounts.
func TestIdleAccountsCostNothing(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		const accounts, minute = 450, time.Minute // more than a heartbeat renews, and more than one makes rest
		var commands atomic.Int64
		p.hook.changeAll(func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
			commands.Add(1)
			return run(ctx, cmd)
		})
		list := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Second) {
				_, err := p.r1.Accounts(p.Context(), accounts)
				stopIf(p, err != nil, "%v", err)
			}
		}
		p.whileRunning(func() {
			for i := range accounts {
				c := p.claimOf(fmt.Sprint("account ", i), 1)
				if i%3 == 0 { // counts for an hour
					c.Resource, c.CreatesContent = policy.GraphQL, true
				}
				p.mustAdmit(p.r1, c, "unused account")
				p.settleAnswered(p.r1, c, true)
			}
			list(minute)
			time.Sleep(heartbeatInterval / 2) // a heartbeat at the end of the minute could count or not
			before := commands.Load()
			list(minute)
			registrations, listings := minute/heartbeatInterval, minute/(10*time.Second)
			n := commands.Load() - before
			failIf(p, n > int64(registrations+listings), "%d commands in a minute, want %d registrations and %d listings", n, registrations, listings)
		})
	})
}

// A replica creates content and rests. What it has spent counts once for both replicas, until it returns.
func TestRestingReplicaKeepsWhatItSpent(t *testing.T) {
	const limit, first = 100, 60
	wake := func(p *pair) {
		c := p.claim(1)
		p.settleAnswered(p.r1, p.mustAdmit(p.r1, c, "awake"), true)
	}
	for name, c := range map[string]struct {
		rest func(p *pair)
		then func(p *pair)
	}{
		"at rest":            {(*pair).rest, func(*pair) {}},
		"awake":              {(*pair).rest, wake},
		"at rest again":      {(*pair).rest, func(p *pair) { wake(p); p.rest() }},
		"lost reply of rest": {func(p *pair) { p.tryRest(loseReply) }, func(*pair) {}},
		"lost reply, awake":  {func(p *pair) { p.tryRest(loseReply) }, wake},
		"failed rest":        {func(p *pair) { p.tryRest(fail) }, (*pair).rest},
		"data lost at rest":  {(*pair).rest, func(p *pair) { p.loseData(p.r1); time.Sleep(2 * time.Second) }},
	} {
		subtest(t, name, func(p *pair) {
			p.configure(func(r *limits.Rules) { r.Content[1].Max = limit })
			p.spendContent(p.r1, first)
			c.rest(p)
			c.then(p)
			for _, l := range p.both() {
				used := p.budget(l, "content:1h0m0s").Used
				failIf(p, used != first, "replica %s: %d contents used, want %d", l.Replica, used, first)
			}
			p.want("granted at the other replica", p.spendContent(p.r2, limit), limit-first)
			p.want("granted at the first replica", p.spendContent(p.r1, limit), 0)
		})
	}
}

// spendContent creates content for at most ten minutes, and returns the number of granted claims.
func (p *pair) spendContent(l *Ledger, most int) (n int) {
	p.Helper()
	for end := time.Now().Add(10 * time.Minute); n < most && time.Now().Before(end); {
		p.lastID++
		c := create(p.lastID)
		if !p.admit(l, c) {
			time.Sleep(10 * time.Second)
			continue
		}
		p.settleAnswered(l, c, true)
		n++
	}
	return n
}

// rest makes the account of the first replica rest.
func (p *pair) rest() {
	p.Helper()
	p.tryRest(nil)
	a := p.r1.accounts["a"]
	stopIf(p, !a.rests || len(a.leases) > 0, "the account does not rest: %d leases", len(a.leases))
}

// tryRest changes the call with which the account begins to rest.
func (p *pair) tryRest(change intercept) {
	p.heartbeat(p.r1)
	time.Sleep(activeTime + time.Second)
	if change != nil {
		p.hook.changeNext(p.r1.scripts.roundTrip, change)
	}
	_ = p.r1.heartbeat(p.Context())
}

// The replica that registers first after a loss of the registrations must not believe that it is the only one, because then new
// accounts of a cluster would not wait for the others.
func TestLossOfRegistrationsHidesNoReplica(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		time.Sleep(time.Second)
		p.heartbeat(p.both()...)
		p.empty()
		p.heartbeat(p.r1)
		p.want("replicas after the loss", p.r1.Replicas(), 2)
	})
}

// An operator ends a cool-down at another replica.
func TestAccountThatWakesUpReadsTheCurrentState(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		c := p.mustAdmit(p.r1, p.claim(1), "at the start")
		p.settle(p.r1, c, limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: policy.LimitSecondary, RetryAfter: time.Hour})
		p.rest()
		noError(p, p.r2.Open(p.Context(), "a"))
		time.Sleep(time.Second)
		p.mustAdmit(p.r1, p.claim(1), "after the end of the cool-down")
	})
}
