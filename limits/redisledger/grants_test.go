package redisledger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// learnGrants reads the grants, as the gateway does regularly, and returns their number.
func (p *pair) learnGrants(l *Ledger) int {
	p.Helper()
	inForce, _, err := l.Grants(p.Context())
	if err != nil {
		p.Fatal(err)
	}
	return len(inForce)
}

func TestGrantAppliesAtAllReplicasAndAfterARestart(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		used, reset := 0, time.Now().Add(time.Hour).Truncate(time.Second)
		spend := func(l *Ledger, client string, most int) (n int) {
			for ; n < most; n++ {
				c := p.claim(1)
				c.Client, c.Clients = client, []policy.ClientBudget{{Client: "job", Limit: 1}, {Client: "bot", Limit: 1}}
				if !p.admit(l, c) {
					return n
				}
				used++
				rate := limits.Rate{Limit: 100, Used: used, Reset: reset, Date: time.Now().Truncate(time.Second)}
				if err := l.Settle(p.Context(), limits.Permit{Claim: c}, limits.Outcome{Sent: true, Answered: true, Ended: true, Rate: rate}); err != nil {
					p.Fatal(err)
				}
			}
			return n
		}
		g := limits.Grant{ID: "a", Client: "job", Resource: policy.Core, Requests: 40, Ends: time.Now().Add(30 * time.Minute)}
		if err := p.r1.Grant(p.Context(), g); err != nil {
			p.Fatal(err)
		}
		p.learnGrants(p.r2)
		if n := spend(p.r2, "bot", 50) + spend(p.r1, "bot", 50); n != 60 {
			p.Errorf("the bot made %d requests at both replicas, want 60", n)
		}
		if n := spend(p.r2, "job", 10); n != 10 {
			p.Errorf("the job made %d requests, want 10", n)
		}
		rules := *p.r1.rules.Load()
		rules.Grants = nil
		restarted := open(p.T, p.r2.Client, "r3", rules, testClock)
		p.learnGrants(restarted)
		if n := spend(restarted, "bot", 50); n != 0 {
			p.Errorf("the bot made %d requests at the new replica, want none", n)
		}
		time.Sleep(30 * time.Minute)
		if n := spend(restarted, "bot", 50); n != 30 {
			p.Errorf("after the end of the grant the bot made %d requests, want 30", n)
		}
	})
}

func TestRevocationReachesAllReplicas(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		g := limits.Grant{ID: "a", Client: "job", Resource: policy.Core, Requests: 40, Ends: time.Now().Add(time.Hour)}
		if err := p.r1.Grant(p.Context(), g); err != nil {
			p.Fatal(err)
		}
		if n := p.learnGrants(p.r2); n != 1 {
			p.Errorf("%d grants, want 1", n)
		}
		if _, err := p.r2.Revoke(p.Context(), "a"); err != nil {
			p.Error(err)
		}
		if n := p.learnGrants(p.r1); n != 0 || len(p.r1.rules.Load().Grants) != 0 {
			p.Errorf("%d grants after the revocation", n)
		}
		time.Sleep(2 * time.Hour)
		if _, ended, err := p.r1.Grants(p.Context()); err != nil || len(ended) != 0 {
			p.Errorf("the revoked grant ended by time: %v, %v", ended, err)
		}
	})
}

func TestReloadKeepsGrants(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		g := limits.Grant{ID: "a", Client: "job", Resource: policy.Core, Requests: 40, Ends: time.Now().Add(time.Hour)}
		if err := p.r1.Grant(p.Context(), g); err != nil {
			p.Fatal(err)
		}
		p.r1.Configure(limits.Rules{Limits: policy.DefaultLimits()})
		if list := p.r1.rules.Load().Grants; len(list) != 1 {
			p.Errorf("grants after a reload: %v", list)
		}
	})
}

func TestOutageKeepsGrantsUntilTheirEnd(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		g := limits.Grant{ID: "a", Client: "job", Resource: policy.Core, Requests: 40, Ends: time.Now().Add(time.Hour)}
		if err := p.r1.Grant(p.Context(), g); err != nil {
			p.Fatal(err)
		}
		p.hook.changeAll(func(context.Context, redis.Cmder, redis.ProcessHook) error { return errDisconnected })
		if _, _, err := p.r1.Grants(p.Context()); !errors.Is(err, errDisconnected) {
			p.Errorf("got %v", err)
		}
		if list := p.r1.rules.Load().Grants; len(list) != 1 {
			p.Errorf("grants without Redis: %v", list)
		}
		time.Sleep(2 * time.Hour)
		p.hook.changeAll(nil)
		if _, ended, err := p.r1.Grants(p.Context()); err != nil || len(ended) != 1 {
			p.Errorf("ended during the outage: %v, %v", ended, err)
		}
	})
}

func TestConcurrentGrantsStayWithinTheBound(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		var calls sync.WaitGroup
		for i := range limits.MaxGrants + 20 {
			calls.Go(func() {
				_ = []*Ledger{p.r1, p.r2}[i%2].Grant(p.Context(), limits.Grant{
					ID: fmt.Sprint(i), Client: "job", Resource: policy.Core, Requests: 1, Ends: time.Now().Add(time.Hour),
				})
			})
		}
		calls.Wait()
		if n := p.learnGrants(p.r1); n > limits.MaxGrants {
			p.Errorf("%d grants", n)
		}
	})
}
