package redisledger

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// withPrefetch runs a test with two replicas. The first one prefetches permits and counts its batches, and its account has
// had an answer before.
func withPrefetch(t *testing.T, run func(p *pair, c *batchCounter)) {
	withTwoReplicas(t, func(p *pair) {
		if err := p.r1.scripts.renew.Load(p.Context(), p.r1.Client).Err(); err != nil {
			p.Fatal(err)
		}
		p.spend(p.r1, 1, 1, true)
		p.r2.account("a", policy.User) // Accounts reports it
		c := &batchCounter{script: p.r1.scripts.batch}
		p.r1.Client.(*redis.Client).AddHook(c)
		p.r1.flushDelay, p.r1.prefetchMax = flushDelay, prefetchMax
		defer p.r1.background.Wait()
		run(p, c)
	})
}

// requests sends requests of one class one after the other.
func (p *pair) requests(n int) {
	p.Helper()
	for range n {
		c := p.claim(1)
		if !p.admit(p.r1, c) {
			p.Fatal("refused")
		}
		p.settleAnswered(p.r1, c, true)
		synctest.Wait() // for background batches
	}
}

// prefetched returns the number of prefetched permits.
func (p *pair) prefetched() (n int) {
	p.r1.mu.Lock()
	defer p.r1.mu.Unlock()
	for _, c := range p.r1.accounts["a"].classes {
		n += len(c.prefetched)
	}
	return n
}

// requestUntilPrefetched sends requests and returns the number of prefetched permits.
func (p *pair) requestUntilPrefetched() int {
	p.Helper()
	p.requests(10)
	n := p.prefetched()
	if n == 0 {
		p.Fatal("no permit was prefetched")
	}
	return n
}

// waitForReturns waits until unused prefetched permits have been given back.
func waitForReturns() { time.Sleep(2*prefetchTime + 2*flushDelay) }

// inUse returns the number of permits in use that the other replica reports.
func (p *pair) inUse() int { return p.r2.onlyAccount(p.T).InUse }

// expectNothingHeld fails the test if the account has permits in use or holds.
func (p *pair) expectNothingHeld(when string) {
	p.Helper()
	a := p.r2.onlyAccount(p.T)
	if a.InUse != 0 {
		p.Errorf("%s: %d permits in use, want 0", when, a.InUse)
	}
	for _, b := range a.Budgets {
		if b.Held != 0 {
			p.Errorf("%s: %+v, want nothing held", when, b)
		}
	}
}

// settle settles a claim of the first replica.
func (p *pair) settle(c limits.Claim, o limits.Outcome) {
	p.Helper()
	if err := p.r1.Settle(p.Context(), limits.Permit{Claim: c}, o); err != nil {
		p.Fatal(err)
	}
}

// After the last request, unused permits are given back, no batch is sent, and no local state remains.
func TestBusyAccountNeedsFewBatches(t *testing.T) {
	withPrefetch(t, func(p *pair, c *batchCounter) {
		p.requests(300)
		if n := c.batches.Load(); n > 300/4 {
			p.Errorf("300 requests needed %d batches", n)
		}
		waitForReturns()
		p.expectNothingHeld("without requests")
		n := c.batches.Load()
		time.Sleep(2 * time.Minute)
		if more := c.batches.Load() - n; more != 0 {
			p.Errorf("%d batches without a request", more)
		}
		s := p.r1.accounts["a"]
		if n := len(s.aliases); n != 0 {
			p.Errorf("%d aliases left", n)
		}
		p.heartbeat(p.r1)
		if len(s.aliases)+len(s.permits)+len(s.orphans) != 0 || s.refilling {
			p.Errorf("state left behind: %d aliases, %d permits, %d orphans, refilling %v", len(s.aliases), len(s.permits), len(s.orphans), s.refilling)
		}
	})
}

func TestSlowAccountPrefetchesNothing(t *testing.T) {
	withPrefetch(t, func(p *pair, _ *batchCounter) {
		for range 20 {
			p.requests(1)
			if n := p.prefetched(); n != 0 {
				p.Fatalf("%d permits prefetched", n)
			}
			time.Sleep(2 * prefetchTime)
		}
	})
}

// The same requests must have the same charges with and without prefetching, for all classes and outcomes.
func TestPrefetchedPermitsAreChargedLikeOthers(t *testing.T) {
	charges := func(prefetch int) (text string) {
		withPrefetch(t, func(p *pair, _ *batchCounter) {
			p.r1.prefetchMax = prefetch
			prefetched := 0
			for i := range 150 {
				c := p.claim(1 + i%2)
				c.CPU, c.Batch = 10*time.Millisecond, i%5 == 0
				if i%3 == 0 {
					c.Operation, c.CreatesContent = "issues/create", i < 80
				}
				prefetched += p.prefetched()
				if !p.admit(p.r1, c) {
					p.Fatal("refused", i)
				}
				p.settle(c, limits.Outcome{Sent: i%4 > 0, Answered: i%4 > 1, Ended: true, Elapsed: 20 * time.Millisecond, Resent: i % 4 / 3})
				synctest.Wait()
			}
			if (prefetched > 0) != (prefetch > 0) {
				p.Errorf("%d permits prefetched", prefetched)
			}
			time.Sleep(lingerTime + time.Second)
			a := p.r2.onlyAccount(p.T)
			for _, b := range a.Budgets {
				text += fmt.Sprintln(b.Resource, b.Used, b.Held)
			}
			text += fmt.Sprintln(a.InUse)
		})
		return text
	}
	if with, without := charges(prefetchMax), charges(0); with != without {
		t.Errorf("with prefetching:\n%s\nwithout:\n%s", with, without)
	}
}

// A repeated claim gets the same permit, with and without Redis.
func TestPrefetchedPermitServesOneClaim(t *testing.T) {
	withPrefetch(t, func(p *pair, _ *batchCounter) {
		p.r1.prefetchMax = 0
		p.spend(p.r1, 1, 20, true)
		p.heartbeat(p.r1)
		p.r1.prefetchMax = prefetchMax
		p.requests(2)
		n := p.prefetched()
		if n < 2 {
			p.Fatalf("%d permits prefetched", n)
		}
		var claims []limits.Claim
		for range n + 3 {
			claims = append(claims, p.claim(1))
		}
		again := func() {
			for _, c := range claims {
				if !p.admit(p.r1, c) {
					p.Error("refused")
				}
			}
		}
		again()
		again()
		waitForReturns()
		if got := p.inUse(); got != len(claims) {
			p.Errorf("%d permits in use for %d claims", got, len(claims))
		}
		p.disconnect(p.r1)
		again()
		p.r1.reconnect(p.Context())
		if got := p.inUse(); got != len(claims) {
			p.Errorf("%d permits in use for %d claims after the outage", got, len(claims))
		}
		for _, c := range claims {
			p.settle(c, limits.Outcome{})
		}
		waitForReturns()
		p.expectNothingHeld("at the end")
	})
}

// This includes permits that a running batch prefetches.
func TestNoPrefetchedPermitIsUsedAfterALimitError(t *testing.T) {
	for _, limited := range []limits.LimitKind{limits.PrimaryLimit, limits.SecondaryLimit} {
		for _, running := range []bool{false, true} {
			withPrefetch(t, func(p *pair, c *batchCounter) {
				p.requestUntilPrefetched()
				refused := p.claim(1)
				if !p.admit(p.r1, refused) {
					p.Fatal("refused")
				}
				synctest.Wait()
				gate := make(chan struct{})
				if running {
					c.hold = func() { <-gate }
					for p.prefetched() > 0 {
						p.admit(p.r1, p.claim(1))
					}
					synctest.Wait() // until a batch prefetches more
				}
				var settling sync.WaitGroup
				settling.Go(func() { p.settle(refused, plain(limited)) })
				synctest.Wait()
				close(gate)
				settling.Wait()
				if d, err := p.r1.Admit(p.Context(), p.claim(1)); err != nil || d.Granted || d.Until.IsZero() {
					p.Errorf("limit error %v, running batch %v: %+v, %v", limited, running, d, err)
				}
				if p.prefetched() > 0 != running {
					p.Errorf("running batch %v: %d permits prefetched", running, p.prefetched())
				}
				waitForReturns()
				if n := p.prefetched(); n != 0 {
					p.Errorf("%d permits prefetched", n)
				}
			})
		}
	}
}

// The reply of a batch reports the cool-down.
func TestNoPrefetchedPermitIsUsedInACooldownOfAnotherReplica(t *testing.T) {
	withPrefetch(t, func(p *pair, _ *batchCounter) {
		c := p.claim(1)
		p.admit(p.r2, c)
		p.requestUntilPrefetched()
		if err := p.r2.Settle(p.Context(), limits.Permit{Claim: c}, plain(limits.SecondaryLimit)); err != nil {
			p.Fatal(err)
		}
		other := p.claim(1)
		other.Operation = "users/get"
		if p.admit(p.r1, other) {
			p.Error("granted in a cool-down")
		}
		if n := p.prefetched(); n == 0 || p.admit(p.r1, p.claim(1)) {
			p.Errorf("granted in a cool-down, with %d prefetched permits", n)
		}
	})
}

func TestPrefetchLeavesHalfOfEachBudget(t *testing.T) {
	for name, less := range map[string]func(r *limits.Rules, c *limits.Claim){
		"places":  func(r *limits.Rules, _ *limits.Claim) { r.Concurrent = 3 },
		"points":  func(r *limits.Rules, _ *limits.Claim) { r.Points.REST = 20 },
		"content": func(r *limits.Rules, c *limits.Claim) { r.Content[0].Max, c.CreatesContent = 20, true },
		"CPU":     func(r *limits.Rules, c *limits.Claim) { r.CPU.Total, c.CPU = 2*time.Second, 100*time.Millisecond },
		"search":  func(r *limits.Rules, c *limits.Claim) { r.Search.Authenticated, c.Resource = 20, policy.Search },
	} {
		withPrefetch(t, func(p *pair, _ *batchCounter) {
			var like limits.Claim
			rules := *p.r1.rules.Load()
			rules.Content = slices.Clone(rules.Content)
			less(&rules, &like)
			p.r1.Configure(rules)
			before := 0
			for i := range 20 {
				c := p.claim(1)
				c.CPU, c.CreatesContent, c.Resource = like.CPU, like.CreatesContent, cmp.Or(like.Resource, c.Resource)
				if i > 0 || name != "points" { // withPrefetch has spent a point
					if !p.admit(p.r1, c) {
						p.Fatalf("%s: refused after %d", name, i)
					}
				}
				window := rules.For(c.Kind, c.Resource)
				p.settle(c, limits.Outcome{Sent: true, Answered: true, Ended: true, Elapsed: c.CPU,
					Rate: limits.Rate{Limit: window.Max, Used: i + 1, Reset: time.Now().Add(window.Window)}})
				synctest.Wait()
				if before += p.prefetched(); i == 10 {
					waitForReturns()
				}
				if i > 10 && p.prefetched() > 0 {
					p.Errorf("%s: %d permits prefetched with %d of 20 left", name, p.prefetched(), 19-i)
				}
			}
			if before > 0 == (name == "places") {
				p.Errorf("%s: %d permits prefetched in all", name, before)
			}
		})
	}
}

// Admit gives back prefetched permits before it refuses a claim.
func TestPrefetchedPermitsDoNotBlockOtherClaims(t *testing.T) {
	withPrefetch(t, func(p *pair, _ *batchCounter) {
		rules := *p.r1.rules.Load()
		rules.Concurrent = 5
		p.r1.Configure(rules)
		p.requestUntilPrefetched()
		for i := range 5 {
			c := p.claim(1)
			c.Operation = "users/get"
			if d, err := p.r1.Admit(p.Context(), c); err != nil || !d.Granted {
				p.Fatalf("claim %d of 5: %+v, %v", i+1, d, err)
			}
		}
		if p.admit(p.r1, p.claim(1)) {
			p.Error("granted a sixth permit of five")
		}
	})
}

func TestPrefetchedPermitDoesNotServeAClaimOfMoreCPU(t *testing.T) {
	withPrefetch(t, func(p *pair, _ *batchCounter) {
		p.requestUntilPrefetched()
		c := p.claim(1)
		c.CPU = 5 * time.Second
		if !p.admit(p.r1, c) {
			p.Fatal("refused")
		}
		waitForReturns()
		budgets := p.r2.onlyAccount(p.T).Budgets
		if i := slices.IndexFunc(budgets, func(b limits.Budget) bool { return b.Resource == "cpu" }); i < 0 || budgets[i].Held != 5000 {
			p.Errorf("budgets %+v, want 5 seconds of CPU time held", budgets)
		}
	})
}

// The same holds for a repeated release, and for a settlement after the lease has ended.
func TestRepeatedSettlementOfAPrefetchedPermitChangesNothing(t *testing.T) {
	withPrefetch(t, func(p *pair, _ *batchCounter) {
		p.requestUntilPrefetched()
		c, late := p.claim(1), p.claim(1)
		p.admit(p.r1, c)
		p.admit(p.r1, late)
		state := func() string {
			waitForReturns()
			a := p.r2.onlyAccount(p.T)
			text := fmt.Sprint(a.InUse)
			for _, b := range a.Budgets {
				text += fmt.Sprint(" ", b.Resource, " ", b.Used, " ", b.Held)
			}
			return text
		}
		end := func() {
			if err := p.r1.Release(p.Context(), limits.Permit{Claim: c}, false); err != nil {
				p.Fatal(err)
			}
		}
		p.settleAnswered(p.r1, c, false)
		once := state()
		if !strings.HasPrefix(once, "2 ") {
			p.Error("want two permits in use:", once)
		}
		p.settleAnswered(p.r1, c, false)
		if twice := state(); twice != once {
			p.Errorf("settled twice: %s, want %s", twice, once)
		}
		end()
		once = state()
		if !strings.HasPrefix(once, "1 ") {
			p.Error("want one permit in use:", once)
		}
		end()
		p.settleAnswered(p.r1, c, true)
		if twice := state(); twice != once {
			p.Errorf("released twice: %s, want %s", twice, once)
		}
		time.Sleep(leaseTime)
		once = state()
		p.settle(late, limits.Outcome{})
		if after := state(); after != once {
			p.Errorf("settled late: %s, want %s", after, once)
		}
	})
}
