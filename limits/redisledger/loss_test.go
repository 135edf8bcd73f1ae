package redisledger

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/limits"
)

func TestOfflineLeaseIsUsedOnceWhenAReplyIsLost(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		first := p.spend(p.r1, 30, 3, true)
		p.heartbeat(p.r1)
		first += p.spend(p.r2, 30, 100, true)
		p.disconnect(p.r1)
		offline := p.spend(p.r1, 30, 100, true)
		if offline == 0 || 30*(first+offline) > 900 {
			p.Fatalf("%d points used, %d of them offline", 30*(first+offline), 30*offline)
		}
		p.hook.changeNext(p.r1.scripts.exchange, loseReply)
		p.r1.reconnect(p.Context()) // the network fails again
		if !p.r1.isLost() {
			p.Fatal("the ledger reconnected")
		}
		time.Sleep(61 * time.Second)
		if n := p.spend(p.r2, 30, 100, true) + p.spend(p.r1, 30, 100, true); 30*n > 900 {
			p.Errorf("%d points used, want at most 900", 30*n)
		}
	})
}

func TestOfflineUnitsAreUsedOnceWhenAReplyIsLost(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		rules := *p.r1.rules.Load()
		rules.Concurrent, rules.Primary.User, rules.Primary.Window = 14, 20, 2*time.Minute
		p.r1.Configure(rules)
		p.r2.Configure(rules)
		reset, used := time.Now().Add(70*time.Second), 0
		spend := func(l *Ledger, most int, ended bool) (times int) {
			for ; times < most; times++ {
				c := p.claim(1)
				if !p.admit(l, c) {
					break
				}
				used++
				rate := limits.Rate{Limit: 20, Used: used, Reset: reset, Date: time.Now()}
				if err := l.Settle(p.Context(), limits.Permit{Claim: c}, limits.Outcome{Sent: true, Answered: true, Ended: ended, Rate: rate}); err != nil {
					p.Fatal(err)
				}
			}
			return times
		}
		spend(p.r1, 3, true)
		p.heartbeat(p.r1)
		spend(p.r2, 100, true)
		used = 10 // the use that responses report to the first replica
		p.disconnect(p.r1)
		if spend(p.r1, 100, true) == 0 {
			p.Fatal("no claim was granted offline")
		}
		p.hook.changeNext(p.r1.scripts.exchange, loseReply)
		p.r1.reconnect(p.Context())
		time.Sleep(75 * time.Second)
		reset, used = time.Now().Add(2*time.Minute), 0
		if online, offline := spend(p.r2, 100, false), spend(p.r1, 100, false); online+offline > 14 {
			p.Errorf("%d permits in use of 14, %d of them offline", online+offline, offline)
		}
	})
}

// A replica keeps observations until their windows end, also without requests.
func TestObservationIsRestoredAfterAPause(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		c := p.claim(1)
		p.admit(p.r1, c)
		now := time.Now()
		o := limits.Outcome{Sent: true, Answered: true, Ended: true, Rate: limits.Rate{Limit: 5000, Used: 5000, Reset: now.Add(50 * time.Minute), Date: now}}
		if err := p.r1.Settle(p.Context(), limits.Permit{Claim: c}, o); err != nil {
			p.Fatal(err)
		}
		time.Sleep(45 * time.Minute)
		if err := p.r2.Client.FlushAll(p.Context()).Err(); err != nil {
			p.Fatal(err)
		}
		reconcileAll(p.T, p.r1)
		time.Sleep(time.Minute)
		if p.admit(p.r1, p.claim(1)) {
			p.Error("granted before the reset")
		}
		time.Sleep(5 * time.Minute)
		if !p.admit(p.r1, p.claim(1)) {
			p.Error("refused after the reset")
		}
	})
}

func TestManyAccountsAreRestoredInTime(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		const accounts, roundTrip = 2000, 3 * time.Millisecond
		rules := *p.r1.rules.Load()
		rules.Concurrent = 1
		p.r1.Configure(rules)
		p.r2.Configure(rules)
		claim := func(i int) limits.Claim {
			c := p.claim(1)
			c.Account = fmt.Sprint("account ", i)
			return c
		}
		for i := range accounts {
			if !p.admit(p.r1, claim(i)) {
				p.Fatal("refused")
			}
		}
		p.hook.change = func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
			if cmd.Name() == "evalsha" {
				time.Sleep(roundTrip)
			}
			return run(ctx, cmd)
		}
		p.heartbeat(p.r1)
		p.heartbeat(p.r2) // r2 now counts r1 and the accounts of r1
		ctx, end := context.WithCancel(p.Context())
		var running sync.WaitGroup
		running.Go(func() { p.r1.Run(ctx) })
		time.Sleep(heartbeatInterval + 10*time.Millisecond)
		if err := p.r2.Client.FlushAll(p.Context()).Err(); err != nil {
			p.Fatal(err)
		}
		p.heartbeat(p.r2)
		duplicates := 0
		const rounds, parts = 8, 4
		for round := range rounds {
			time.Sleep(250 * time.Millisecond)
			for i := round % parts; i < accounts; i += parts { // each account twice
				if p.admit(p.r2, claim(i)) {
					duplicates++
				}
			}
		}
		end()
		running.Wait()
		if duplicates > 0 {
			p.Errorf("%d of %d accounts have 2 permits in use, want 1", duplicates, accounts)
		}
	})
}

func TestIdleAccountIsRemoved(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		c := p.claim(1)
		if !p.admit(p.r1, c) {
			p.Fatal("refused")
		}
		permit := limits.Permit{Claim: c}
		if err := p.r1.Settle(p.Context(), permit, limits.Outcome{Sent: true}); err != nil { // abandoned
			p.Fatal(err)
		}
		p.disconnect(p.r1)
		_ = p.r1.Settle(p.Context(), permit, limits.Outcome{}) // a late settlement
		for range 100 {
			p.spend(p.r1, 1, 1, true)
		}
		time.Sleep(2 * time.Hour)
		p.hook.change = func(_ context.Context, cmd redis.Cmder, _ redis.ProcessHook) error {
			cmd.SetErr(errDisconnected)
			return errDisconnected
		}
		ctx, end := context.WithCancel(p.Context())
		var running sync.WaitGroup
		running.Go(func() { p.r1.Run(ctx) })
		time.Sleep(2 * heartbeatInterval)
		end()
		running.Wait()
		if n := len(p.r1.accounts); n != 0 {
			p.Errorf("%d local accounts, want none", n)
		}
	})
}

func TestCountersOfIdleReplicasAreRemoved(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.spend(p.r1, 1, 1, true)
		p.spend(p.r2, 1, 1, true)
		for range 100 {
			time.Sleep(2 * time.Minute)
			p.spend(p.r2, 1, 1, true)
		}
		key := p.r2.keysOf("a")[0]
		fields, err := p.r2.Client.HKeys(p.Context(), key).Result()
		if err != nil {
			p.Fatal(err)
		}
		for _, f := range fields {
			if f == "r:r1" {
				p.Errorf("the field %s still exists, want it removed", f)
			}
		}
	})
}

// A renewal after the end of the permit reserves all amounts of the permit again, although the permit was released.
func TestLateReleaseDoesNotExtendThePermit(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		c := p.claim(1)
		p.admit(p.r1, c)
		p.settleAnswered(p.r1, c, false)
		time.Sleep(2 * permitTime)
		permit := limits.Permit{Claim: c}
		if err := p.r1.Release(p.Context(), permit, true); err != nil {
			p.Fatal(err)
		}
		if err := p.r1.Renew(p.Context(), []limits.OpenPermit{{Permit: permit, Elapsed: time.Second}}); err != nil {
			p.Fatal(err)
		}
		list, err := p.r1.Accounts(p.Context(), 1)
		if err != nil {
			p.Fatal(err)
		}
		for _, b := range list[0].Budgets {
			if b.Resource == "cpu" && b.Held == 1000 {
				return
			}
		}
		p.Errorf("budgets %+v, want one second of CPU time held", list[0].Budgets)
	})
}

func TestUnreadableAccountIsRestored(t *testing.T) {
	for name, corrupt := range map[string]func(ctx context.Context, c redis.Cmdable, key, field, value string){
		"invalid values": func(ctx context.Context, c redis.Cmdable, key, field, _ string) { c.HSet(ctx, key, field, "\xffother") },
		"truncated values": func(ctx context.Context, c redis.Cmdable, key, field, value string) {
			c.HSet(ctx, key, field, value[:len(value)/2])
		},
		"wrong type": func(ctx context.Context, c redis.Cmdable, key, _, _ string) { c.Set(ctx, key, "other", time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, l *Ledger, _ *atomic.Int64) {
				admitUntilRefused(t, l, 1)
				key := l.keysOf("a")[0]
				for field, value := range l.Client.HGetAll(t.Context(), key).Val() {
					corrupt(t.Context(), l.Client, key, field, value)
				}
				if d, err := l.Admit(t.Context(), create(1000)); err != nil || d.Granted || d.Reason != limits.Content {
					t.Errorf("got %+v, %v; want a refusal, because the restored account has used its content budget", d, err)
				}
			})
		})
	}
}
