package redisledger

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

func TestOfflineLeaseIsUsedOnceWhenAReplyIsLost(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		first := p.spend(p.r1, 30, 3, true)
		p.heartbeat(p.r1)
		first += p.spend(p.r2, 30, 100, true)
		p.disconnect(p.r1)
		offline := p.spend(p.r1, 30, 100, true)
		stopIf(p, offline == 0 || 30*(first+offline) > 900, "%d points used, %d of them offline", 30*(first+offline), 30*offline)
		p.hook.changeNext(p.r1.scripts.roundTrip, loseReply)
		p.r1.reconnect(p.Context()) // the network fails again
		stopIf(p, !p.r1.isLost(), "the ledger reconnected")
		time.Sleep(61 * time.Second)
		n := p.spend(p.r2, 30, 100, true) + p.spend(p.r1, 30, 100, true)
		failIf(p, 30*n > 900, "%d points used, want at most 900", 30*n)
	})
}

func TestOfflineUnitsAreUsedOnceWhenAReplyIsLost(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.setWindow(20, 2*time.Minute)
		p.configure(func(r *limits.Rules) { r.Concurrent = 14 })
		w := &window{pair: p, limit: 20, reset: time.Now().Add(70 * time.Second)}
		w.spend(p.r1, 3)
		p.heartbeat(p.r1)
		w.spend(p.r2, 100)
		w.used = 10 // the use that responses report to the first replica
		p.disconnect(p.r1)
		stopIf(p, w.spend(p.r1, 100) == 0, "no claim was granted offline")
		p.hook.changeNext(p.r1.scripts.roundTrip, loseReply)
		p.r1.reconnect(p.Context())
		time.Sleep(75 * time.Second)
		w.reset, w.used, w.open = time.Now().Add(2*time.Minute), 0, true
		online, offline := w.spend(p.r2, 100), w.spend(p.r1, 100)
		failIf(p, online+offline > 14, "%d permits in use of 14, %d of them offline", online+offline, offline)
	})
}

// A replica keeps observations until their windows end, also without requests.
func TestObservationIsRestoredAfterAPause(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		c, now := p.claim(1), time.Now()
		p.admit(p.r1, c)
		p.settle(p.r1, c, answered(policy.Rate{Limit: 5000, Used: 5000, Reset: now.Add(50 * time.Minute), Date: now}))
		time.Sleep(45 * time.Minute)
		p.loseData(p.r1)
		time.Sleep(time.Minute)
		failIf(p, p.admit(p.r1, p.claim(1)), "granted before the reset")
		time.Sleep(5 * time.Minute)
		p.mustAdmit(p.r1, p.claim(1), "after the reset")
	})
}

// whileRunning runs the background work of the first replica while do runs.
func (p *pair) whileRunning(do func()) {
	ctx, end := context.WithCancel(p.Context())
	var running sync.WaitGroup
	running.Go(func() { p.r1.Run(ctx) })
	do()
	end()
	running.Wait()
}

func TestManyAccountsAreRestoredInTime(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		const accounts, roundTrip = 1000, 6 * time.Millisecond
		p.configure(func(r *limits.Rules) { r.Concurrent = 1 })
		claim := func(i int) limits.Claim { return p.claimOf(fmt.Sprint("account ", i), 1) }
		for i := range accounts {
			p.mustAdmit(p.r1, claim(i), "before the loss")
		}
		p.hook.changeAll(func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
			if cmd.Name() == "evalsha" {
				time.Sleep(roundTrip)
			}
			return run(ctx, cmd)
		})
		p.heartbeat(p.both()...) // the second replica now counts the first replica and its accounts
		duplicates := 0
		p.whileRunning(func() {
			time.Sleep(heartbeatInterval + 10*time.Millisecond)
			p.empty()
			p.heartbeat(p.r2)
			const rounds, parts = 8, 4
			for round := range rounds {
				time.Sleep(250 * time.Millisecond)
				for i := round % parts; i < accounts; i += parts { // each account twice
					if p.admit(p.r2, claim(i)) {
						duplicates++
					}
				}
			}
		})
		p.want("accounts with two permits in use", duplicates, 0)
	})
}

func TestIdleAccountIsRemoved(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		c := p.mustAdmit(p.r1, p.claim(1), "at the start")
		p.settle(p.r1, c, limits.Outcome{Sent: true}) // abandoned
		p.disconnect(p.r1)
		p.settle(p.r1, c, limits.Outcome{}) // a late settlement
		for range 100 {
			p.spend(p.r1, 1, 1, true)
		}
		time.Sleep(2 * time.Hour)
		p.hook.changeAll(fail)
		p.whileRunning(func() { time.Sleep(2 * heartbeatInterval) })
		p.want("local accounts", len(p.r1.accounts), 0)
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
		fields, err := p.r2.Client.HKeys(p.Context(), p.r2.keysOf("a")[0]).Result()
		failIf(p, err != nil || slices.Contains(fields, "r:r1"), "fields %q, %v; want no r:r1", fields, err)
	})
}

// A renewal after the end of the permit reserves all amounts of the permit again, although the permit was released.
func TestLateReleaseDoesNotExtendThePermit(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		c := p.claim(1)
		p.admit(p.r1, c)
		p.settleAnswered(p.r1, c, false)
		time.Sleep(2 * permitTime)
		p.release(p.r1, c, true)
		p.r1.Renew([]limits.OpenPermit{{Permit: limits.Permit{Claim: c}, Elapsed: time.Second}})
		p.want("CPU time held, in ms", p.budget(p.r1, "cpu").Held, 1000)
	})
}

func TestUnreadableAccountIsRestored(t *testing.T) {
	for name, corrupt := range map[string]func(ctx context.Context, c redis.Cmdable, key, field, value string){
		"invalid values": func(ctx context.Context, c redis.Cmdable, key, field, _ string) { c.HSet(ctx, key, field, "\xffother") },
		"truncated values": func(ctx context.Context, c redis.Cmdable, key, field, value string) {
			c.HSet(ctx, key, field, value[:len(value)/2])
		},
		"wrong type": func(ctx context.Context, c redis.Cmdable, key, _, _ string) { c.Set(ctx, key, "other", time.Hour) },
		"invalid cool-down": func(ctx context.Context, c redis.Cmdable, key, _, _ string) {
			c.Eval(ctx, `local m = cmsgpack.unpack(redis.call('HGET', KEYS[1], 'm')) m.cooldown, m.cooldown_version = '{"Until":"soon"}', 1e13 `+
				`redis.call('HSET', KEYS[1], 'm', cmsgpack.pack(m))`, []string{key})
		},
	} {
		subtest(t, name, func(p *pair) {
			p.createUntilRefused(p.r1)
			key := p.r1.keysOf("a")[0]
			for field, value := range p.r1.Client.HGetAll(p.Context(), key).Val() {
				corrupt(p.Context(), p.r1.Client, key, field, value)
			}
			_, err := p.r1.Accounts(p.Context(), 10)
			failIf(p, err != nil, "the listing of all accounts: %v", err)
			d := p.decide(p.r1, create(1000))
			failIf(p, d.Granted || d.Reason != limits.Content, "got %+v; want a refusal, because the restored account has used its content budget", d)
		})
	}
}

// Keys of all replicas contain data that Weir has not written. A replica starts and continues all the same.
func TestUnreadableSharedKeysAreReplaced(t *testing.T) {
	for _, key := range []string{replicasKey, epochKey, secretKey, accountsKey, resourcesKey, aliasesKey, namesKey} {
		for _, garbage := range []string{"SET %s x", "ZADD %s 1 x", "HSET %s since x", "HSET %s since 1 step x", "HSET %s step 1"} {
			withTwoReplicas(t, func(p *pair) {
				command := []any{}
				for _, word := range strings.Fields(fmt.Sprintf(garbage, key)) {
					command = append(command, word)
				}
				noError(p, p.r1.Client.Del(p.Context(), key).Err())
				noError(p, p.r1.Client.Do(p.Context(), command...).Err())
				started := p.open("r3", defaultRules())
				secret := started.Join(p.Context())
				failIf(p, len(secret) != 32, "%s: secret %x", command, secret)
				for _, l := range []*Ledger{started, p.r1} {
					for _, err := range []error{
						l.heartbeat(p.Context()),
						second(l.ShareResources(p.Context(), map[string]string{"orgs/get-audit-log user": "audit_log"})),
						second(l.ShareAliases(p.Context(), []string{"token a user:1"})), second(l.ShareNames(p.Context(), []string{"user a b"})),
						second(l.Accounts(p.Context(), 10)),
					} {
						failIf(p, err != nil, "%s: %s: %v", command, l.Replica, err)
					}
					time.Sleep(2 * time.Second) // in a new epoch, accounts wait for restores
					p.settleAnswered(l, p.mustAdmit(l, p.claim(1), "afterwards"), true)
				}
			})
		}
	}
}
