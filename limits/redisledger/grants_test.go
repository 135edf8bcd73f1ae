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

// grantFor grants 40 requests of core to a client for a time.
func (p *pair) grantFor(life time.Duration) {
	p.Helper()
	g := limits.Grant{ID: "a", Client: "job", Resource: policy.Core, Requests: 40, Ends: time.Now().Add(life)}
	if err := p.r1.Grant(p.Context(), g); err != nil {
		p.Fatal(err)
	}
}

// grants reads the grants, as the gateway does regularly, and returns the number of grants in force and of those that ended.
func (p *pair) grants(l *Ledger) (inForce, ended int) {
	p.Helper()
	current, past, err := l.Grants(p.Context())
	if err != nil {
		p.Fatal(err)
	}
	return len(current), len(past)
}

func (p *pair) wantGrants(name string, l *Ledger, inForce, ended int) {
	p.Helper()
	if current, past := p.grants(l); current != inForce || past != ended || len(l.rules.Load().Grants) != inForce {
		p.Errorf("%s: %d grants in force (%v), %d ended; want %d and %d", name, current, l.rules.Load().Grants, past, inForce, ended)
	}
}

func TestGrantAppliesAtAllReplicasAndAfterARestart(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		w := &window{pair: p, limit: 100, reset: time.Now().Add(time.Hour).Truncate(time.Second)}
		spend := func(l *Ledger, client string, most int) int {
			w.change = func(c *limits.Claim) { c.Client, c.Clients = client, recordedClients }
			return w.spend(l, most)
		}
		p.grantFor(30 * time.Minute)
		p.grants(p.r2)
		p.want("requests of the bot at both replicas", spend(p.r2, "bot", 50)+spend(p.r1, "bot", 50), 60)
		p.want("requests of the job", spend(p.r2, "job", 10), 10)
		restarted := p.open("r3", defaultRules())
		p.grants(restarted)
		p.want("requests of the bot at the new replica", spend(restarted, "bot", 50), 0)
		time.Sleep(30 * time.Minute)
		p.want("requests of the bot after the end of the grant", spend(restarted, "bot", 50), 30)
	})
}

func TestRevocationReachesAllReplicas(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.grantFor(time.Hour)
		p.wantGrants("before the revocation", p.r2, 1, 0)
		if _, err := p.r2.Revoke(p.Context(), "a"); err != nil {
			p.Error(err)
		}
		p.wantGrants("after the revocation", p.r1, 0, 0)
		time.Sleep(2 * time.Hour)
		p.wantGrants("after the time of the grant", p.r1, 0, 0)
	})
}

// Grants survive a reload, and an outage until their end.
func TestReloadAndOutageKeepGrants(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.grantFor(time.Hour)
		p.r1.Configure(defaultRules())
		p.want("grants after a reload", len(p.r1.rules.Load().Grants), 1)
		p.hook.changeAll(func(context.Context, redis.Cmder, redis.ProcessHook) error { return errDisconnected })
		if _, _, err := p.r1.Grants(p.Context()); !errors.Is(err, errDisconnected) {
			p.Errorf("got %v", err)
		}
		p.want("grants without Redis", len(p.r1.rules.Load().Grants), 1)
		time.Sleep(2 * time.Hour)
		p.hook.changeAll(nil)
		p.wantGrants("after the outage", p.r1, 0, 1)
	})
}

func TestConcurrentGrantsStayWithinTheBound(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		var calls sync.WaitGroup
		for i := range limits.MaxGrants + 20 {
			calls.Go(func() {
				_ = p.both()[i%2].Grant(p.Context(), limits.Grant{
					ID: fmt.Sprint(i), Client: "job", Resource: policy.Core, Requests: 1, Ends: time.Now().Add(time.Hour),
				})
			})
		}
		calls.Wait()
		if n, _ := p.grants(p.r1); n > limits.MaxGrants {
			p.Errorf("%d grants", n)
		}
	})
}
