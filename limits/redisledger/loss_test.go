package redisledger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// callHook is a client hook that can change calls.
type callHook struct {
	mu     sync.Mutex
	change func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error
}

func (*callHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*callHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (s *callHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.mu.Lock()
		change := s.change
		s.mu.Unlock()
		if change == nil {
			return next(ctx, cmd)
		}
		return change(ctx, cmd, next)
	}
}

// changeAll changes all later calls. If change is nil, calls are not changed.
func (s *callHook) changeAll(change func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change = change
}

// changeNext changes the next call of a script.
func (s *callHook) changeNext(script *redis.Script, change func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change = func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
		if cmd.Name() != "evalsha" || cmd.Args()[1] != script.Hash() {
			return run(ctx, cmd)
		}
		s.mu.Lock()
		s.change = nil
		s.mu.Unlock()
		return change(ctx, cmd, run)
	}
}

var errDisconnected = errors.New("connection lost")

// loseReply runs a call and loses its reply.
func loseReply(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
	_ = run(ctx, cmd)
	cmd.SetErr(errDisconnected)
	return errDisconnected
}

// pair has two replicas on one Redis. The calls of the first replica pass through a hook.
type pair struct {
	*testing.T
	r1, r2      *Ledger
	hook        *callHook
	lastID      uint64
	clockOffset *atomic.Int64 // of Redis
}

func withTwoReplicas(t *testing.T, run func(p *pair)) {
	inBubble(t, func(t *testing.T, r1 *Ledger, offset *atomic.Int64) {
		p := &pair{T: t, r1: r1, hook: &callHook{}, clockOffset: offset}
		for _, script := range []*redis.Script{r1.scripts.heartbeat, r1.scripts.batch} {
			if err := script.Load(t.Context(), r1.Client).Err(); err != nil {
				t.Fatal(err)
			}
		}
		r1.Client.(*redis.Client).AddHook(p.hook)
		client := clientOf(t, r1.Client.(*redis.Client).Options().Dialer)
		client.AddHook(tick{offset})
		p.r2 = open(t, client, "r2", *r1.rules.Load(), testClock)
		run(p)
	})
}

func (p *pair) claim(points int) limits.Claim {
	p.lastID++
	return limits.Claim{ID: p.lastID, Account: "a", Kind: policy.User, Operation: "repos/get", Resource: policy.Core, Points: points}
}

func (p *pair) admit(l *Ledger, c limits.Claim) bool {
	p.Helper()
	d, err := l.Admit(p.Context(), c)
	if err != nil {
		p.Fatal(err)
	}
	return d.Granted
}

// settleAnswered settles a permit with a response. If ended is not set, the response body remains open.
func (p *pair) settleAnswered(l *Ledger, c limits.Claim, ended bool) {
	p.Helper()
	now := time.Now()
	rate := limits.Rate{Limit: 5000, Used: 1, Reset: now.Add(time.Hour).Truncate(time.Second), Date: now.Truncate(time.Second)}
	if err := l.Settle(p.Context(), limits.Permit{Claim: c}, limits.Outcome{Sent: true, Answered: true, Ended: ended, Rate: rate}); err != nil {
		p.Fatal(err)
	}
}

// spend admits and settles claims until a claim is refused, at most the given number. It returns the number of granted
// claims.
func (p *pair) spend(l *Ledger, points, most int, ended bool) (times int) {
	p.Helper()
	for ; times < most; times++ {
		c := p.claim(points)
		if !p.admit(l, c) {
			break
		}
		p.settleAnswered(l, c, ended)
	}
	return times
}

func (p *pair) heartbeat(l *Ledger) {
	p.Helper()
	if err := l.heartbeat(p.Context()); err != nil {
		p.Fatal(err)
	}
}

func (p *pair) disconnect(l *Ledger) { l.markLost(errDisconnected) }

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
		p.hook.changeNext(p.r1.scripts.heartbeat, loseReply)
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
		p.hook.changeNext(p.r1.scripts.heartbeat, loseReply)
		p.r1.reconnect(p.Context())
		time.Sleep(75 * time.Second)
		reset, used = time.Now().Add(2*time.Minute), 0
		if online, offline := spend(p.r2, 100, false), spend(p.r1, 100, false); online+offline > 14 {
			p.Errorf("%d permits in use of 14, %d of them offline", online+offline, offline)
		}
	})
}

func TestLateHeartbeatKeepsTheNewerLease(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.spend(p.r1, 1, 30, true)
		var late []any
		p.hook.changeNext(p.r1.scripts.heartbeat, func(_ context.Context, cmd redis.Cmder, _ redis.ProcessHook) error {
			late = cmd.Args()
			cmd.SetErr(errDisconnected)
			return errDisconnected
		})
		_ = p.r1.heartbeat(p.Context()) // the call is delayed
		p.r1.reconnect(p.Context())     // uses another connection
		if p.r1.isLost() || late == nil {
			p.Fatal("the ledger did not reconnect")
		}
		online := p.spend(p.r2, 1, 1000, false)
		if err := p.r1.Client.(*redis.Client).Do(p.Context(), late...).Err(); err != nil {
			p.Fatal(err)
		}
		online += p.spend(p.r2, 1, 1000, false)
		p.disconnect(p.r1)
		offline := p.spend(p.r1, 1, 1000, false)
		if offline == 0 || online+offline > 100 {
			p.Errorf("%d permits in use of 100, %d of them offline", online+offline, offline)
		}
	})
}

func TestRepeatedClaimRenewsThePermit(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.spend(p.r2, 1, 1, true)
		c := p.claim(1)
		p.hook.changeNext(p.r1.scripts.batch, loseReply)
		if p.admit(p.r1, c) {
			p.Fatal("granted offline without a lease")
		}
		time.Sleep(permitLife - time.Second/2)
		p.r1.reconnect(p.Context())
		if !p.admit(p.r1, c) {
			p.Fatal("refused")
		}
		time.Sleep(time.Second - time.Millisecond) // the limiter does not renew permits younger than a second
		if n := p.spend(p.r2, 1, 1000, false); n != 99 {
			p.Errorf("%d other permits granted, want 99", n)
		}
	})
}

func TestReplyAfterARestoreCountsAsLost(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.spend(p.r1, 5, 20, true)
		reached, release := make(chan struct{}), make(chan struct{})
		p.hook.changeNext(p.r1.scripts.batch, func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
			err := run(ctx, cmd)
			close(reached)
			<-release
			return err
		})
		var callers sync.WaitGroup
		c := p.claim(5)
		callers.Go(func() {
			if d, err := p.r1.Admit(p.Context(), c); err != nil || !d.Granted {
				p.Error(d, err)
			}
		})
		<-reached
		if err := p.r2.Client.FlushAll(p.Context()).Err(); err != nil {
			p.Fatal(err)
		}
		p.heartbeat(p.r1)
		close(release)
		callers.Wait()
		p.settleAnswered(p.r1, c, true)
		p.heartbeat(p.r1)
		list, err := p.r1.Accounts(p.Context(), 1)
		if err != nil {
			p.Fatal(err)
		}
		for _, b := range list[0].Budgets {
			if b.Resource == "points:repos/get" && b.Used+b.Held < 105 {
				p.Errorf("%d points used and %d held, want 105", b.Used, b.Held)
			}
		}
	})
}

// After a limit error without rate headers, the ledger assumes a reset. A restore must not change that reset. The
// assumed reset must not hide the reports of later responses.
func TestAssumedResetIsRestored(t *testing.T) {
	for _, after := range []time.Duration{time.Minute, time.Hour + time.Second} {
		withTwoReplicas(t, func(p *pair) {
			refused, later := p.claim(1), p.claim(1)
			p.admit(p.r1, refused)
			p.admit(p.r1, later)
			settle := func(c limits.Claim, limited limits.LimitKind, rate limits.Rate) {
				o := limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: limited, Rate: rate}
				if err := p.r1.Settle(p.Context(), limits.Permit{Claim: c}, o); err != nil {
					p.Fatal(err)
				}
			}
			settle(refused, limits.PrimaryLimit, limits.Rate{})
			now := time.Now()
			settle(later, limits.NotLimited, limits.Rate{Limit: 5000, Used: 1, Reset: now.Add(-time.Second), Date: now.Add(-time.Hour - time.Minute)})
			time.Sleep(after)
			budget := func() limits.Budget {
				r := p.r1.rules.Load()
				args := readCall{Windows: []resource{resourceOf(r, later.Kind, later.Resource)}, WindowOnly: true}
				answer, err := p.r1.read(p.Context(), later.Account, args)
				if err != nil {
					p.Fatal(err)
				}
				return answer.account(later.Account, r).Budgets[0]
			}
			before := budget()
			if before.Remaining != 0 {
				p.Errorf("%s after the error: %+v, want nothing remaining", after, before)
			}
			if err := p.r2.Client.FlushAll(p.Context()).Err(); err != nil {
				p.Fatal(err)
			}
			reconcileAll(p.T, p.r1)
			if restored := budget(); restored != before {
				p.Errorf("%s after the error: restored %+v, want %+v", after, restored, before)
			}
		})
	}
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
			p.Errorf("%d local accounts with %+v, want none", n, p.r1.accounts["a"].permits)
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
		time.Sleep(2 * permitLife)
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
