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

// inAdvance is a pair whose first replica asks ahead, and has its turns counted, for an
// account that was answered before.
func inAdvance(t *testing.T, tell func(p *pair, c *counting)) {
	inPair(t, func(p *pair) {
		if err := p.r1.scripts.renew.Load(p.Context(), p.r1.Client).Err(); err != nil {
			p.Fatal(err)
		}
		p.spent(p.r1, 1, 1, true)
		p.r2.account("a", policy.User) // it shows what it knows of
		c := &counting{script: p.r1.scripts.batch}
		p.r1.Client.(*redis.Client).AddHook(c)
		p.r1.flushDelay, p.r1.prefetchMax = flushDelay, prefetchMax
		defer p.r1.background.Wait()
		tell(p, c)
	})
}

// busy makes so many requests of one kind, one after the other.
func (p *pair) busy(requests int) {
	p.Helper()
	for range requests {
		c := p.claim(1)
		if !p.asked(p.r1, c) {
			p.Fatal("refused")
		}
		p.answered(p.r1, c, true)
		synctest.Wait() // for the turns that it has begun
	}
}

// waiting is how many permits wait for a claim.
func (p *pair) waiting() (n int) {
	p.r1.mu.Lock()
	defer p.r1.mu.Unlock()
	for _, c := range p.r1.accounts["a"].classes {
		n += len(c.prefetched)
	}
	return n
}

// busyAhead makes requests until permits wait, and returns how many.
func (p *pair) busyAhead() int {
	p.Helper()
	p.busy(10)
	n := p.waiting()
	if n == 0 {
		p.Fatal("nothing was asked for ahead")
	}
	return n
}

// rest is longer than a permit waits, and it takes to give it back.
func rest() { time.Sleep(2*prefetchTime + 2*flushDelay) }

// inFlight is how many requests are in flight, as the other replica sees it.
func (p *pair) inFlight() int { return p.r2.only(p.T).InUse }

// nothingHeld fails the test if the account has something in flight.
func (p *pair) nothingHeld(when string) {
	p.Helper()
	a := p.r2.only(p.T)
	if a.InUse != 0 {
		p.Errorf("%s: %d in flight", when, a.InUse)
	}
	for _, b := range a.Budgets {
		if b.Held != 0 {
			p.Errorf("%s: %+v", when, b)
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

// TestABusyAccountTakesFewTurns, and one that is not asked for any more none: what waits is
// given back, and nothing of it is kept.
func TestABusyAccountTakesFewTurns(t *testing.T) {
	inAdvance(t, func(p *pair, c *counting) {
		p.busy(300)
		if n := c.turns.Load(); n > 300/4 {
			p.Errorf("300 requests took %d turns", n)
		}
		rest()
		p.nothingHeld("at rest")
		n := c.turns.Load()
		time.Sleep(2 * time.Minute)
		if more := c.turns.Load() - n; more != 0 {
			p.Errorf("%d turns for nothing", more)
		}
		s := p.r1.accounts["a"]
		if n := len(s.aliases); n != 0 {
			p.Errorf("%d claims are remembered", n)
		}
		p.beat(p.r1)
		if len(s.aliases)+len(s.permits)+len(s.orphans) != 0 || s.returning || s.refilling {
			p.Errorf("state left behind: %d aliases, %d permits, %d orphans, %v, %v", len(s.aliases), len(s.permits), len(s.orphans), s.returning, s.refilling)
		}
	})
}

// TestASlowAccountAsksForNothingAhead: whose requests come seldom would only give it back.
func TestASlowAccountAsksForNothingAhead(t *testing.T) {
	inAdvance(t, func(p *pair, _ *counting) {
		for range 20 {
			p.busy(1)
			if n := p.waiting(); n != 0 {
				p.Fatalf("%d wait", n)
			}
			time.Sleep(2 * prefetchTime)
		}
	})
}

// TestWhatIsUsedAheadIsCounted as if it had been asked for when it was claimed: of each kind,
// whatever became of it.
func TestWhatIsUsedAheadIsCounted(t *testing.T) {
	counted := func(ahead int) (shown string) {
		inAdvance(t, func(p *pair, _ *counting) {
			p.r1.prefetchMax = ahead
			waited := 0
			for i := range 150 {
				c := p.claim(1 + i%2)
				c.CPU, c.Batch = 10*time.Millisecond, i%5 == 0
				if i%3 == 0 {
					c.Operation, c.CreatesContent = "issues/create", i < 80
				}
				waited += p.waiting()
				if !p.asked(p.r1, c) {
					p.Fatal("refused", i)
				}
				p.settle(c, limits.Outcome{Sent: i%4 > 0, Answered: i%4 > 1, Ended: true, Elapsed: 20 * time.Millisecond, Resent: i % 4 / 3})
				synctest.Wait()
			}
			if (waited > 0) != (ahead > 0) {
				p.Errorf("%d have waited", waited)
			}
			time.Sleep(lingerTime + time.Second)
			a := p.r2.only(p.T)
			for _, b := range a.Budgets {
				shown += fmt.Sprintln(b.Resource, b.Used, b.Held)
			}
			shown += fmt.Sprintln(a.InUse)
		})
		return shown
	}
	if with, without := counted(prefetchMax), counted(0); with != without {
		t.Errorf("%s\nwithout:\n%s", with, without)
	}
}

// TestAPermitStandsForOneClaim: and a claim that is made again gets the same, with Redis and
// without.
func TestAPermitStandsForOneClaim(t *testing.T) {
	inAdvance(t, func(p *pair, _ *counting) {
		p.r1.prefetchMax = 0
		p.spent(p.r1, 1, 20, true)
		p.beat(p.r1)
		p.r1.prefetchMax = prefetchMax
		p.busy(2)
		n := p.waiting()
		if n < 2 {
			p.Fatalf("%d wait", n)
		}
		var claims []limits.Claim
		for range n + 3 {
			claims = append(claims, p.claim(1))
		}
		again := func() {
			for _, c := range claims {
				if !p.asked(p.r1, c) {
					p.Error("refused")
				}
			}
		}
		again()
		again()
		rest()
		if got := p.inFlight(); got != len(claims) {
			p.Errorf("%d in flight for %d claims", got, len(claims))
		}
		p.cutOff(p.r1)
		again()
		p.r1.reconnect(p.Context())
		if got := p.inFlight(); got != len(claims) {
			p.Errorf("%d in flight for %d claims when Redis is found", got, len(claims))
		}
		for _, c := range claims {
			p.settle(c, limits.Outcome{})
		}
		rest()
		p.nothingHeld("at the end")
	})
}

// TestNoneIsUsedAfterALimitError: neither one that waits, nor one that Redis was asked for
// before it was told.
func TestNoneIsUsedAfterALimitError(t *testing.T) {
	for _, limited := range []limits.LimitKind{limits.PrimaryLimit, limits.SecondaryLimit} {
		for _, onItsWay := range []bool{false, true} {
			inAdvance(t, func(p *pair, c *counting) {
				p.busyAhead()
				refused := p.claim(1)
				if !p.asked(p.r1, refused) {
					p.Fatal("refused")
				}
				synctest.Wait()
				gate := make(chan struct{})
				if onItsWay {
					c.hold = func() { <-gate }
					for p.waiting() > 0 {
						p.asked(p.r1, p.claim(1))
					}
					synctest.Wait() // a turn that asks for more
				}
				var settling sync.WaitGroup
				settling.Go(func() { p.settle(refused, plain(limited)) })
				synctest.Wait()
				close(gate)
				settling.Wait()
				if d, err := p.r1.Admit(p.Context(), p.claim(1)); err != nil || d.Granted || d.Until.IsZero() {
					p.Errorf("limited %v, on its way %v: %+v, %v", limited, onItsWay, d, err)
				}
				if p.waiting() > 0 != onItsWay {
					p.Errorf("on its way %v: %d wait", onItsWay, p.waiting())
				}
				rest()
				if n := p.waiting(); n != 0 {
					p.Errorf("%d wait", n)
				}
			})
		}
	}
}

// TestNoneIsUsedWhileOthersCoolDown: what a turn has told of a cool-down that another replica
// has heard of holds for those that wait.
func TestNoneIsUsedWhileOthersCoolDown(t *testing.T) {
	inAdvance(t, func(p *pair, _ *counting) {
		c := p.claim(1)
		p.asked(p.r2, c)
		p.busyAhead()
		if err := p.r2.Settle(p.Context(), limits.Permit{Claim: c}, plain(limits.SecondaryLimit)); err != nil {
			p.Fatal(err)
		}
		other := p.claim(1)
		other.Operation = "users/get"
		if p.asked(p.r1, other) {
			p.Error("granted in a cool-down")
		}
		if n := p.waiting(); n == 0 || p.asked(p.r1, p.claim(1)) {
			p.Errorf("granted in a cool-down, of %d that wait", n)
		}
	})
}

// TestOfLittleNothingIsAskedAhead: half of every budget is left to those who need it.
func TestOfLittleNothingIsAskedAhead(t *testing.T) {
	for name, less := range map[string]func(r *limits.Rules, c *limits.Claim){
		"places":  func(r *limits.Rules, _ *limits.Claim) { r.Concurrent = 3 },
		"points":  func(r *limits.Rules, _ *limits.Claim) { r.Points.REST = 20 },
		"content": func(r *limits.Rules, c *limits.Claim) { r.Content[0].Max, c.CreatesContent = 20, true },
		"CPU":     func(r *limits.Rules, c *limits.Claim) { r.CPU.Total, c.CPU = 2*time.Second, 100*time.Millisecond },
		"search":  func(r *limits.Rules, c *limits.Claim) { r.Search.Authenticated, c.Resource = 20, policy.Search },
	} {
		inAdvance(t, func(p *pair, _ *counting) {
			var like limits.Claim
			rules := *p.r1.rules.Load()
			rules.Content = slices.Clone(rules.Content)
			less(&rules, &like)
			p.r1.Configure(rules)
			before := 0
			for i := range 20 {
				c := p.claim(1)
				c.CPU, c.CreatesContent, c.Resource = like.CPU, like.CreatesContent, cmp.Or(like.Resource, c.Resource)
				if i > 0 || name != "points" { // one was spent
					if !p.asked(p.r1, c) {
						p.Fatalf("%s: refused after %d", name, i)
					}
				}
				window := rules.For(c.Kind, c.Resource)
				p.settle(c, limits.Outcome{Sent: true, Answered: true, Ended: true, Elapsed: c.CPU,
					Rate: limits.Rate{Limit: window.Max, Used: i + 1, Reset: time.Now().Add(window.Window)}})
				synctest.Wait()
				if before += p.waiting(); i == 10 {
					rest()
				}
				if i > 10 && p.waiting() > 0 {
					p.Errorf("%s: %d wait when %d of 20 are left", name, p.waiting(), 19-i)
				}
			}
			if before > 0 == (name == "places") {
				p.Errorf("%s: %d have waited", name, before)
			}
		})
	}
}

// TestWhatWaitsIsInNobodysWay: a claim that would be refused for it has it given back first.
func TestWhatWaitsIsInNobodysWay(t *testing.T) {
	inAdvance(t, func(p *pair, _ *counting) {
		rules := *p.r1.rules.Load()
		rules.Concurrent = 5
		p.r1.Configure(rules)
		p.busyAhead()
		for i := range 5 {
			c := p.claim(1)
			c.Operation = "users/get"
			if d, err := p.r1.Admit(p.Context(), c); err != nil || !d.Granted {
				p.Fatalf("the claim %d of 5: %+v, %v", i+1, d, err)
			}
		}
		if p.asked(p.r1, p.claim(1)) {
			p.Error("six of five")
		}
	})
}

// TestNoneStandsForAClaimOfMoreTime: what is taken to need more holds more.
func TestNoneStandsForAClaimOfMoreTime(t *testing.T) {
	inAdvance(t, func(p *pair, _ *counting) {
		p.busyAhead()
		c := p.claim(1)
		c.CPU = 5 * time.Second
		if !p.asked(p.r1, c) {
			p.Fatal("refused")
		}
		rest()
		budgets := p.r2.only(p.T).Budgets
		if i := slices.IndexFunc(budgets, func(b limits.Budget) bool { return b.Resource == "cpu" }); i < 0 || budgets[i].Held != 5000 {
			p.Errorf("not 5 seconds are held: %+v", budgets)
		}
	})
}

// TestWhatIsToldTwiceOfOneAheadChangesNothing: that it was settled, that its answer has ended;
// nor what is told after its lease is over.
func TestWhatIsToldTwiceOfOneAheadChangesNothing(t *testing.T) {
	inAdvance(t, func(p *pair, _ *counting) {
		p.busyAhead()
		c, late := p.claim(1), p.claim(1)
		p.asked(p.r1, c)
		p.asked(p.r1, late)
		state := func() string {
			rest()
			a := p.r2.only(p.T)
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
		p.answered(p.r1, c, false)
		once := state()
		if !strings.HasPrefix(once, "2 ") {
			p.Error("not two in flight:", once)
		}
		p.answered(p.r1, c, false)
		if twice := state(); twice != once {
			p.Errorf("settled twice there is %s, %s before", twice, once)
		}
		end()
		once = state()
		if !strings.HasPrefix(once, "1 ") {
			p.Error("not one in flight:", once)
		}
		end()
		p.answered(p.r1, c, true)
		if twice := state(); twice != once {
			p.Errorf("ended twice there is %s, %s before", twice, once)
		}
		time.Sleep(leaseTime)
		once = state()
		p.settle(late, limits.Outcome{})
		if after := state(); after != once {
			p.Errorf("settled late there is %s, %s before", after, once)
		}
	})
}
