package redisledger

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// The tokens of a dead replica return one window after the end of its lease, and its spare tokens later.
func TestTokensOfADeadReplicaReturn(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.want("granted at the first replica", p.spend(p.r1, 300, 3, true), 3)
		began := time.Now()
		for p.spend(p.r2, 300, 1, true) == 0 {
			time.Sleep(time.Second)
		}
		want := leaseTime + time.Minute
		got := time.Since(began)
		failIf(p, got < want || got > want+15*time.Second, "tokens returned after %v, want about %v", got, want)
		p.spend(p.r1, 1, 1, true)
		p.heartbeat(p.r1) // requests spare tokens
		time.Sleep(leaseTime + 2*time.Minute)
		n := p.spend(p.r2, 1, 1000, true)
		failIf(p, n >= 900 || n < 890, "%d claims granted while the spare tokens remain, want almost 900", n)
		time.Sleep(spareTime)
		p.want("granted after the end of the spare tokens", p.spend(p.r2, 1, 1000, true), 900)
	})
}

// A replica without heartbeats remains registered as long as it may use its spare tokens.
func TestSilentReplicaRemainsRegistered(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.heartbeat(p.r2)
		for _, c := range []struct {
			after    time.Duration
			replicas int
		}{{spareTime - time.Second, 2}, {2 * time.Second, 1}} {
			time.Sleep(c.after)
			p.heartbeat(p.r1)
			p.want("registered replicas", p.r1.Replicas(), c.replicas)
		}
	})
}

// A leaving replica keeps no token longer than the upstream.
func TestLeaveReturnsLeases(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.heartbeat(p.r2)
		p.spend(p.r1, 300, 1, true)
		time.Sleep(30 * time.Second)
		p.spend(p.r1, 300, 2, true)
		p.heartbeat(p.r1)
		p.hook.changeAll(fail)
		err := p.r1.Leave(p.Context())
		failIf(p, err == nil, "Leave returned no error without Redis")
		time.AfterFunc(leaveTimeout/2, func() { p.hook.changeAll(nil) }) // Leave reconnects
		noError(p, p.r1.Leave(p.Context()))
		p.heartbeat(p.r2)
		p.want("registered replicas", p.r2.Replicas(), 1)
		p.want("granted before the first tokens return", p.spend(p.r2, 300, 1, true), 0)
		time.Sleep(45 * time.Second)
		p.want("granted after the first tokens returned", p.spend(p.r2, 300, 9, true), 1)
		time.Sleep(45 * time.Second)
		p.want("granted after all tokens returned", p.spend(p.r2, 300, 9, true), 2)
	})
}

// A leaving replica has spent tokens at times that are close together. None of them returns before its time.
func TestLeaveKeepsTokensOfCloseTimes(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		for range 3 {
			p.spend(p.r1, 100, 1, true)
			time.Sleep(time.Second)
		}
		noError(p, p.r1.Leave(p.Context()))
		p.want("granted beside the 3 of the replica that left", p.spend(p.r2, 100, 9, true), 6)
		time.Sleep(time.Minute - 4*time.Second)
		p.want("granted before the first token returns", p.spend(p.r2, 100, 9, true), 0)
	})
}

// One replica has spent all tokens before the other replica needs tokens. Both then get equal shares.
func TestReplicasShareReturningTokens(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.spend(p.r1, 9, 100, true)
		granted := map[*Ledger]int{}
		for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
			for _, l := range p.both() {
				granted[l] += p.spend(l, 9, 2, true)
			}
		}
		first, second := granted[p.r1], granted[p.r2]
		failIf(p, second < first*45/55 || first+second < 195, "%d and %d claims granted after the first minute, want 100 each", first, second)
	})
}

// Redis executes a heartbeat that asks for fewer tokens, and its reply is lost. The replica and Redis must agree on the
// tokens that the replica may still use.
func TestLostReplyOfAHeartbeatFreesNoTokens(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		first := p.spend(p.r1, 10, 20, true)
		p.heartbeat(p.r1) // requests spare tokens
		first += p.spend(p.r2, 10, 30, true)
		p.hook.changeNext(p.r1.scripts.roundTrip, loseReply)
		_ = p.r1.heartbeat(p.Context()) // less is free now
		first += p.spend(p.r2, 10, 100, true)
		p.disconnect(p.r1)
		n := first + p.spend(p.r1, 10, 100, true)
		failIf(p, n > 90, "%d claims of 10 points granted in a minute, want at most 90", n)
	})
}

// Redis may be back at any time, so a refusal during an outage ends soon, also if the lease ends with a window of an hour.
func TestRefusalDuringAnOutageEndsSoon(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		share := func(c *limits.Claim) {
			c.Client, c.Share = "a", 1
			c.Clients = []policy.ClientBudget{{Client: "a", Share: 1, Limit: 0.9}, {Client: "b", Share: 1, Limit: 0.9}}
		}
		w := &window{pair: p, limit: 5000, reset: time.Now().Add(time.Hour), change: share}
		for range 20 {
			w.spend(p.r1, 1)
			time.Sleep(time.Second)
		}
		p.heartbeat(p.r1)
		p.disconnect(p.r1)
		w.spend(p.r1, 1000)
		c := p.claim(1)
		share(&c)
		d := p.decide(p.r1, c)
		failIf(p, d.Granted || d.Wait > retryStore, "after %d requests: %+v, want a refusal for at most %v", w.used, d, retryStore)
	})
}

// One replica is cut off before the reset, and uses its extra tokens afterwards. The other replica gets a report of the
// new window before the old window has certainly ended.
func TestExtraTokensBelongToOneReplica(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.setWindow(20, 5*time.Minute)
		w := &window{pair: p, limit: 20, reset: time.Now().Add(2 * time.Minute)}
		w.spend(p.r1, 5)
		p.heartbeat(p.r1)
		w.spend(p.r2, 1)
		p.heartbeat(p.r1)
		time.Sleep(2*time.Minute - time.Second) // the first replica keeps no spare tokens of core
		for range 9 {
			c := p.claim(1)
			c.Resource = policy.Search // the other budgets have spare tokens
			p.admit(p.r1, c)
			p.settle(p.r1, c, plain(policy.NotLimited))
		}
		p.heartbeat(p.r1)
		late := p.claim(1)
		p.admit(p.r2, late)
		p.heartbeat(p.r1)
		p.disconnect(p.r1)
		time.Sleep(2 * time.Second) // the upstream has reset the window
		w.reset, w.used = w.reset.Add(5*time.Minute), 0
		w.answer(p.r2, late)
		time.Sleep(2 * time.Second)
		w.spend(p.r2, 100)
		used := w.used
		for range 100 {
			if !p.admit(p.r1, p.claim(1)) {
				break
			}
			used++
		}
		failIf(p, used > 20, "%d requests in the new window, want at most 20", used)
	})
}

// Redis ends a window a moment earlier than the first replica, because the second replica has the tighter bound of the
// upstream's clock. Until then the first replica declares its requests in the old window.
func TestLateEndOfAWindowFreesNoTokens(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		const limit, length = 5, 30 * time.Second
		p.setWindow(limit, length)
		reset, used := time.Now().Add(20*time.Second), 0
		settle := func(l *Ledger, c limits.Claim, date time.Time) {
			used++
			p.settle(l, c, answered(policy.Rate{Limit: limit, Used: used, Reset: reset, Date: date}))
		}
		slow, late := []limits.Claim{p.claim(1), p.claim(1)}, p.claim(1)
		for _, c := range slow {
			p.admit(p.r1, c)
		}
		date := time.Now()
		time.Sleep(900 * time.Millisecond)
		for _, c := range slow {
			settle(p.r1, c, date)
		}
		quick := p.claim(1)
		p.admit(p.r2, quick)
		settle(p.r2, quick, time.Now())
		p.admit(p.r2, late)
		time.Sleep(time.Until(reset.Add(time.Second)))
		reset, used = reset.Add(length), 2 // by another program
		settle(p.r2, late, time.Now())
		time.Sleep(1500 * time.Millisecond)
		for range 2 { // each call declares the use of the first replica
			p.release(p.r1, slow[0], false)
		}
		p.want("granted in the new window", p.grantedInTurns(limit), limit-used)
		time.Sleep(time.Second) // the window of the first replica ends
		p.r1.mu.Lock()
		defer p.r1.mu.Unlock()
		a, now := p.r1.accounts["a"], p.r1.now()
		budget := a.part.WindowBudget(policy.Core)
		tokens, use := a.lease(budget, now).tokens, a.part.Use(budget, now).Total()
		failIf(p, tokens > use, "the first replica has %d tokens and uses %d, want no other tokens", tokens, use)
	})
}

// grantedInTurns sends claims to both replicas in turns, and returns the number of granted claims.
func (p *pair) grantedInTurns(rounds int) (n int) {
	p.Helper()
	for range rounds {
		for _, l := range p.both() {
			if p.admit(l, p.claim(1)) {
				n++
			}
		}
	}
	return n
}

// The upstream grants less than documented. After the end of the window, a replica without a report must not use the
// documented limit.
func TestReportedLimitAppliesToAllReplicas(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		const granted = 2
		p.setWindow(5, 30*time.Second)
		for _, resource := range []string{policy.Core, policy.CodeSearch} {
			claim := func() limits.Claim {
				c := p.claim(1)
				c.Resource = resource
				return c
			}
			c := claim()
			p.admit(p.r1, c)
			p.settle(p.r1, c, answered(policy.Rate{Limit: granted, Used: 1, Reset: time.Now().Add(20 * time.Second), Date: time.Now()}))
			time.Sleep(90 * time.Second) // the window and the minute of the sliding log have ended
			n := 0
			for range 5 { // the slow start admits further requests after a second
				for _, l := range p.both() {
					if p.admit(l, claim()) {
						n++
					}
				}
				time.Sleep(time.Second)
			}
			p.want("granted of "+resource, n, granted)
		}
	})
}

// A replica forgets an idle account while Redis is lost. It must return the old lease when it uses the account again.
func TestForgottenAccountReturnsItsLease(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		for range 3 {
			c := p.claim(300)
			p.admit(p.r1, c)
			p.settle(p.r1, c, answered(policy.Rate{Limit: 5000, Used: 1, Reset: time.Now().Add(20 * time.Second), Date: time.Now()}))
		}
		p.disconnect(p.r1)
		time.Sleep(spareTime)
		p.r1.forgetIdle()
		stopIf(p, len(p.r1.accounts) > 0, "the account is not forgotten")
		p.r1.reconnect(p.Context())
		for range 20 {
			c := p.claim(1)
			c.Operation = "other"
			p.settleAnswered(p.r1, p.mustAdmit(p.r1, c, "after the outage"), true)
			time.Sleep(10 * time.Second)
			p.heartbeat(p.r1)
		}
		p.want("granted at the other replica", p.spend(p.r2, 300, 9, true), 3)
	})
}

// The replica cannot tell Redis about the requests that reports contain. It must not use their tokens again.
func TestReportedRequestsLeaveTheLease(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.configure(func(r *limits.Rules) { r.Primary.User = 30 })
		sent, reset := 0, time.Now().Add(30*time.Minute)
		spend := func(l *Ledger, used func() int) {
			for range 100 {
				c := p.claim(1)
				if !p.admit(l, c) {
					return
				}
				sent++
				p.settle(l, c, answered(policy.Rate{Limit: 30, Used: used(), Reset: reset}))
				if sent == 5 && l == p.r1 {
					p.heartbeat(p.r1) // requests spare tokens
					p.hook.changeAll(fail)
					p.r1.shards[""].responded = time.Now().Add(time.Hour) // failing calls are not yet a loss
				}
			}
		}
		spend(p.r1, func() int { return min(sent, 5) })
		stopIf(p, sent < 8, "%d requests sent, want some without redis", sent)
		alone := sent
		spend(p.r2, func() int { return 5 + sent - alone }) // the upstream counts the requests of both replicas
		failIf(p, sent > 30, "%d requests sent, want at most 30", sent)
	})
}

// A replica that is idle returns its spare tokens, so that another replica can use all tokens.
func TestIdleReplicaReturnsSpareTokens(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.spend(p.r1, 1, 100, true)
		p.heartbeat(p.r1)
		time.Sleep(2 * time.Minute)
		p.heartbeat(p.r1)
		p.want("granted at the other replica", p.spend(p.r2, 1, 1000, true), 900)
	})
}

// A delayed call arrives after a later call of the same replica.
func TestOvertakenCallChangesNothing(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.spend(p.r1, 1, 3, true)
		var late []any
		p.hook.changeNext(p.r1.scripts.roundTrip, func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
			late = cmd.Args()
			return fail(ctx, cmd, run)
		})
		_ = p.r1.heartbeat(p.Context())
		p.spend(p.r1, 100, 8, true)
		stopIf(p, late == nil, "no call was delayed")
		noError(p, p.r1.Client.(*redis.Client).Do(p.Context(), late...).Err())
		p.want("granted with 803 of 900 points used", p.spend(p.r2, 97, 9, true), 1)
	})
}

// Lua cannot unpack a table of 8,000 values, and a call for each permit would take longer than the life of a permit.
func TestAccountWithManyPermits(t *testing.T) {
	for _, c := range []struct {
		permits   int
		roundTrip time.Duration
	}{{20_000, 0}, {2000, 20 * time.Millisecond}} {
		subtest(t, fmt.Sprint(c.permits), func(p *pair) {
			p.configure(func(r *limits.Rules) {
				r.Concurrent, r.Primary.User, r.Points.REST = 2*c.permits, 2*c.permits, 2*c.permits
			})
			first := p.claim(1)
			p.admit(p.r1, first)
			p.settle(p.r1, first, answered(policy.Rate{Limit: 3 * c.permits, Used: 1, Reset: time.Now().Add(time.Hour)}))
			open := make([]limits.OpenPermit, c.permits)
			for i := range open {
				open[i] = limits.OpenPermit{Permit: limits.Permit{Claim: p.claim(1)}}
			}
			var granted atomic.Int64
			var admitting sync.WaitGroup
			for part := range 32 {
				admitting.Go(func() {
					for i := part; i < len(open); i += 32 {
						if p.admit(p.r1, open[i].Claim) {
							granted.Add(1)
						}
					}
				})
			}
			admitting.Wait()
			p.want("permits granted", int(granted.Load()), c.permits)
			p.hook.changeAll(func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
				time.Sleep(c.roundTrip)
				return run(ctx, cmd)
			})
			for range 4 {
				time.Sleep(20 * time.Second)
				p.r1.Renew(open)
				p.heartbeat(p.r1)
			}
			p.want("permits in use after 80 seconds", p.r2.onlyAccount(p.T).InUse, c.permits)
			time.Sleep(permitTime + time.Second)
			p.heartbeat(p.r1)
			p.want("permits in use after their end", p.r2.onlyAccount(p.T).InUse, 0)
		})
	}
}

// Other replicas get the tokens of claims that only some budgets grant.
func TestRefusedClaimKeepsNoTokens(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		for _, l := range p.both() { // the content budget is used up
			for range 40 {
				p.lastID++
				p.settle(l, p.mustAdmit(l, create(p.lastID), "within the content budget"), plain(policy.NotLimited))
			}
		}
		for range 5 {
			p.lastID++
			stopIf(p, p.admit(p.r1, create(p.lastID)), "granted beyond the content budget")
		}
		c := p.claim(2000 - 400)
		c.Operation, c.Resource = "issues/create", policy.GraphQL
		p.mustAdmit(p.r2, c, "with unused points")
	})
}

func TestReplicaIsAloneUntilAnotherUsesTheResource(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		check := func(name string, want bool) {
			p.Helper()
			testservers.Equal(p, name, p.r1.Alone("a", policy.Core, time.Now().Add(-time.Second)), want)
		}
		check("before the first claim", false)
		p.spend(p.r1, 1, 2, true)
		check("after claims", true)
		p.spend(p.r2, 1, 2, false)
		p.heartbeat(p.r2)
		p.spend(p.r1, 1, 1, true)
		check("while the other replica has tokens", false)
		failIf(p, p.r1.Alone("a", policy.Core, time.Now().Add(-2*time.Minute)), "two minutes ago is too early to know")
		p.disconnect(p.r1)
		check("without Redis", false)
	})
}

func TestLeaseKeepsTrueCosts(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		reset := time.Now().Add(time.Hour).Truncate(time.Second)
		heavy := func(cost int) limits.Claim {
			c := p.claim(1)
			c.Cost = cost
			return c
		}
		report := func(used, cost int) limits.Outcome {
			o := answered(policy.Rate{Limit: 100, Used: used, Reset: reset, Date: time.Now().Truncate(time.Second), Resource: policy.Core})
			o.Cost = cost
			return o
		}
		first := heavy(1)
		p.admit(p.r1, first)
		p.settle(p.r1, first, report(1, 0))
		c := heavy(60)
		stopIf(p, !p.admit(p.r1, c) || p.admit(p.r2, heavy(40)), "the replicas do not share the estimate")
		p.settle(p.r1, c, report(21, 20))
		p.heartbeat(p.r1)
		failIf(p, p.admit(p.r2, heavy(80)) || !p.admit(p.r2, heavy(79)), "the other replica does not get what the true cost leaves")
	})
}
