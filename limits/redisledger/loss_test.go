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

// seam is a hook of the client in which a test does something to calls.
type seam struct {
	mu sync.Mutex
	on func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error
}

func (*seam) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*seam) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (s *seam) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.mu.Lock()
		on := s.on
		s.mu.Unlock()
		if on == nil {
			return next(ctx, cmd)
		}
		return on(ctx, cmd, next)
	}
}

// always does something to each call from now on; nil does nothing.
func (s *seam) always(do func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on = do
}

// once does something to the next call of a script.
func (s *seam) once(script *redis.Script, do func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on = func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
		if cmd.Name() != "evalsha" || cmd.Args()[1] != script.Hash() {
			return run(ctx, cmd)
		}
		s.mu.Lock()
		s.on = nil
		s.mu.Unlock()
		return do(ctx, cmd, run)
	}
}

var errCutOff = errors.New("the network is cut")

// unanswered loses the answer of a call that was made.
func unanswered(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
	_ = run(ctx, cmd)
	cmd.SetErr(errCutOff)
	return errCutOff
}

// pair is two replicas on one Redis; the first one's calls go through a seam.
type pair struct {
	*testing.T
	r1, r2 *Ledger
	seam   *seam
	lastID uint64
	ahead  *atomic.Int64 // Redis's clock, of the replicas'
}

func inPair(t *testing.T, tell func(p *pair)) {
	inBubble(t, func(t *testing.T, r1 *Ledger, ahead *atomic.Int64) {
		p := &pair{T: t, r1: r1, seam: &seam{}, ahead: ahead}
		for _, script := range []*redis.Script{r1.scripts.heartbeat, r1.scripts.batch} {
			if err := script.Load(t.Context(), r1.Client).Err(); err != nil {
				t.Fatal(err)
			}
		}
		r1.Client.(*redis.Client).AddHook(p.seam)
		client := clientOf(t, r1.Client.(*redis.Client).Options().Dialer)
		client.AddHook(tick{ahead})
		p.r2 = open(t, client, "r2", *r1.rules.Load(), testClock)
		tell(p)
	})
}

func (p *pair) claim(points int) limits.Claim {
	p.lastID++
	return limits.Claim{ID: p.lastID, Account: "a", Kind: policy.User, Operation: "repos/get", Resource: policy.Core, Points: points}
}

func (p *pair) asked(l *Ledger, c limits.Claim) bool {
	p.Helper()
	d, err := l.Admit(p.Context(), c)
	if err != nil {
		p.Fatal(err)
	}
	return d.Granted
}

// answered settles a permit; its answer goes on unless it has ended.
func (p *pair) answered(l *Ledger, c limits.Claim, ended bool) {
	p.Helper()
	now := time.Now()
	rate := limits.Rate{Limit: 5000, Used: 1, Reset: now.Add(time.Hour).Truncate(time.Second), Date: now.Truncate(time.Second)}
	if err := l.Settle(p.Context(), limits.Permit{Claim: c}, limits.Outcome{Sent: true, Answered: true, Ended: ended, Rate: rate}); err != nil {
		p.Fatal(err)
	}
}

// spent asks as often as it may, and at most so many times, and says how often
// that was.
func (p *pair) spent(l *Ledger, points, most int, ended bool) (times int) {
	p.Helper()
	for ; times < most; times++ {
		c := p.claim(points)
		if !p.asked(l, c) {
			break
		}
		p.answered(l, c, ended)
	}
	return times
}

func (p *pair) beat(l *Ledger) {
	p.Helper()
	if err := l.heartbeat(p.Context()); err != nil {
		p.Fatal(err)
	}
}

func (p *pair) cutOff(l *Ledger) { l.markLost(errCutOff) }

func TestAShareIsNotUsedTwiceWhenAnAnswerIsLost(t *testing.T) {
	inPair(t, func(p *pair) {
		first := p.spent(p.r1, 30, 3, true)
		p.beat(p.r1)
		first += p.spent(p.r2, 30, 100, true)
		p.cutOff(p.r1)
		alone := p.spent(p.r1, 30, 100, true)
		if alone == 0 || 30*(first+alone) > 900 {
			p.Fatalf("%d points, %d of them alone", 30*(first+alone), 30*alone)
		}
		p.seam.once(p.r1.scripts.heartbeat, unanswered)
		p.r1.reconnect(p.Context()) // the network comes back, and goes again
		if !p.r1.isLost() {
			p.Fatal("it is found")
		}
		time.Sleep(61 * time.Second)
		if n := p.spent(p.r2, 30, 100, true) + p.spent(p.r1, 30, 100, true); 30*n > 900 {
			p.Errorf("%d points of 900", 30*n)
		}
	})
}

func TestUnitsAreNotUsedTwiceWhenAnAnswerIsLost(t *testing.T) {
	inPair(t, func(p *pair) {
		rules := *p.r1.rules.Load()
		rules.Concurrent, rules.Primary.User, rules.Primary.Window = 14, 20, 2*time.Minute
		p.r1.Configure(rules)
		p.r2.Configure(rules)
		reset, used := time.Now().Add(70*time.Second), 0
		ask := func(l *Ledger, most int, ended bool) (times int) {
			for ; times < most; times++ {
				c := p.claim(1)
				if !p.asked(l, c) {
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
		ask(p.r1, 3, true)
		p.beat(p.r1)
		ask(p.r2, 100, true)
		used = 10 // as the first hears it
		p.cutOff(p.r1)
		if ask(p.r1, 100, true) == 0 {
			p.Fatal("nothing was set aside")
		}
		p.seam.once(p.r1.scripts.heartbeat, unanswered)
		p.r1.reconnect(p.Context())
		time.Sleep(75 * time.Second)
		reset, used = time.Now().Add(2*time.Minute), 0
		if inFlight, alone := ask(p.r2, 100, false), ask(p.r1, 100, false); inFlight+alone > 14 {
			p.Errorf("%d in flight of 14, %d of them alone", inFlight+alone, alone)
		}
	})
}

func TestABeatThatComesLateLeavesWhatWasSetAsideSince(t *testing.T) {
	inPair(t, func(p *pair) {
		p.spent(p.r1, 1, 30, true)
		var late []any
		p.seam.once(p.r1.scripts.heartbeat, func(_ context.Context, cmd redis.Cmder, _ redis.ProcessHook) error {
			late = cmd.Args()
			cmd.SetErr(errCutOff)
			return errCutOff
		})
		_ = p.r1.heartbeat(p.Context()) // it is on its way for a while
		p.r1.reconnect(p.Context())     // over another connection
		if p.r1.isLost() || late == nil {
			p.Fatal("not found")
		}
		inFlight := p.spent(p.r2, 1, 1000, false)
		if err := p.r1.Client.(*redis.Client).Do(p.Context(), late...).Err(); err != nil {
			p.Fatal(err)
		}
		inFlight += p.spent(p.r2, 1, 1000, false)
		p.cutOff(p.r1)
		alone := p.spent(p.r1, 1, 1000, false)
		if alone == 0 || inFlight+alone > 100 {
			p.Errorf("%d in flight of 100, %d of them alone", inFlight+alone, alone)
		}
	})
}

func TestAPermitThatIsAskedForAgainLivesFromThen(t *testing.T) {
	inPair(t, func(p *pair) {
		p.spent(p.r2, 1, 1, true)
		c := p.claim(1)
		p.seam.once(p.r1.scripts.batch, unanswered)
		if p.asked(p.r1, c) {
			p.Fatal("granted alone, with nothing set aside")
		}
		time.Sleep(leaseTime - time.Second/2)
		p.r1.reconnect(p.Context())
		if !p.asked(p.r1, c) {
			p.Fatal("refused")
		}
		time.Sleep(time.Second - time.Millisecond) // what is younger than a second is not renewed
		if n := p.spent(p.r2, 1, 1000, false); n != 99 {
			p.Errorf("%d in flight beside it", n)
		}
	})
}

func TestAnAnswerThatComesAfterTheRestoringIsLostToo(t *testing.T) {
	inPair(t, func(p *pair) {
		p.spent(p.r1, 5, 20, true)
		reached, release := make(chan struct{}), make(chan struct{})
		p.seam.once(p.r1.scripts.batch, func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
			err := run(ctx, cmd)
			close(reached)
			<-release
			return err
		})
		var asking sync.WaitGroup
		c := p.claim(5)
		asking.Go(func() {
			if d, err := p.r1.Admit(p.Context(), c); err != nil || !d.Granted {
				p.Error(d, err)
			}
		})
		<-reached
		if err := p.r2.Client.FlushAll(p.Context()).Err(); err != nil {
			p.Fatal(err)
		}
		p.beat(p.r1)
		close(release)
		asking.Wait()
		p.answered(p.r1, c, true)
		p.beat(p.r1)
		list, err := p.r1.Accounts(p.Context(), 1)
		if err != nil {
			p.Fatal(err)
		}
		for _, b := range list[0].Budgets {
			if b.Resource == "points:repos/get" && b.Used+b.Held < 105 {
				p.Errorf("%d points used, %d held; 105 were sent", b.Used, b.Held)
			}
		}
	})
}

// What was made up after a limit error that told nothing is written again as it was:
// until the last moment in which it counts, and with no word on what was told after.
func TestWhatWasMadeUpIsWrittenAgain(t *testing.T) {
	for _, after := range []time.Duration{time.Minute, time.Hour + time.Second} {
		inPair(t, func(p *pair) {
			refused, later := p.claim(1), p.claim(1)
			p.asked(p.r1, refused)
			p.asked(p.r1, later)
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
				a, err := p.r1.read(p.Context(), later.Account, true, resourceOf(p.r1.rules.Load(), later.Kind, later.Resource))
				if err != nil {
					p.Fatal(err)
				}
				return a.Budgets[0]
			}
			before := budget()
			if before.Remaining != 0 {
				p.Errorf("%s after the error there is %+v", after, before)
			}
			if err := p.r2.Client.FlushAll(p.Context()).Err(); err != nil {
				p.Fatal(err)
			}
			beaten(p.T, p.r1)
			if restored := budget(); restored != before {
				p.Errorf("%s after the error there is %+v, before the loss %+v", after, restored, before)
			}
		})
	}
}

// Who asks no more for a while knows still what was told, as long as it counts.
func TestWhatWasToldIsWrittenAgainAfterAPause(t *testing.T) {
	inPair(t, func(p *pair) {
		c := p.claim(1)
		p.asked(p.r1, c)
		now := time.Now()
		o := limits.Outcome{Sent: true, Answered: true, Ended: true, Rate: limits.Rate{Limit: 5000, Used: 5000, Reset: now.Add(50 * time.Minute), Date: now}}
		if err := p.r1.Settle(p.Context(), limits.Permit{Claim: c}, o); err != nil {
			p.Fatal(err)
		}
		time.Sleep(45 * time.Minute)
		if err := p.r2.Client.FlushAll(p.Context()).Err(); err != nil {
			p.Fatal(err)
		}
		beaten(p.T, p.r1)
		time.Sleep(time.Minute)
		if p.asked(p.r1, p.claim(1)) {
			p.Error("granted before the reset")
		}
		time.Sleep(5 * time.Minute)
		if !p.asked(p.r1, p.claim(1)) {
			p.Error("refused after it")
		}
	})
}

func TestManyAccountsAreWrittenAgainInTime(t *testing.T) {
	inPair(t, func(p *pair) {
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
			if !p.asked(p.r1, claim(i)) {
				p.Fatal("refused")
			}
		}
		p.seam.on = func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
			if cmd.Name() == "evalsha" {
				time.Sleep(roundTrip)
			}
			return run(ctx, cmd)
		}
		p.beat(p.r1)
		p.beat(p.r2) // it counts the other, and what it has in use
		ctx, end := context.WithCancel(p.Context())
		var running sync.WaitGroup
		running.Go(func() { p.r1.Run(ctx) })
		time.Sleep(heartbeatInterval + 10*time.Millisecond)
		if err := p.r2.Client.FlushAll(p.Context()).Err(); err != nil {
			p.Fatal(err)
		}
		p.beat(p.r2)
		twice := 0
		for range 8 {
			time.Sleep(250 * time.Millisecond)
			for i := range accounts {
				if p.asked(p.r2, claim(i)) {
					twice++
				}
			}
		}
		end()
		running.Wait()
		if twice > 0 {
			p.Errorf("%d of %d accounts have 2 requests in flight of 1", twice, accounts)
		}
	})
}

func TestNothingIsKeptForEver(t *testing.T) {
	inPair(t, func(p *pair) {
		c := p.claim(1)
		if !p.asked(p.r1, c) {
			p.Fatal("refused")
		}
		permit := limits.Permit{Claim: c}
		if err := p.r1.Settle(p.Context(), permit, limits.Outcome{Sent: true}); err != nil { // given up
			p.Fatal(err)
		}
		p.cutOff(p.r1)
		_ = p.r1.Settle(p.Context(), permit, limits.Outcome{}) // by a renewal that was late
		for range 100 {
			p.spent(p.r1, 1, 1, true)
		}
		time.Sleep(2 * time.Hour)
		p.seam.on = func(_ context.Context, cmd redis.Cmder, _ redis.ProcessHook) error {
			cmd.SetErr(errCutOff)
			return errCutOff
		}
		ctx, end := context.WithCancel(p.Context())
		var running sync.WaitGroup
		running.Go(func() { p.r1.Run(ctx) })
		time.Sleep(2 * heartbeatInterval)
		end()
		running.Wait()
		if n := len(p.r1.accounts); n != 0 {
			p.Errorf("%d accounts, %+v", n, p.r1.accounts["a"].permits)
		}
	})
}

func TestReplicasThatAreGoneAreForgotten(t *testing.T) {
	inPair(t, func(p *pair) {
		p.spent(p.r1, 1, 1, true)
		p.spent(p.r2, 1, 1, true)
		for range 100 {
			time.Sleep(2 * time.Minute)
			p.spent(p.r2, 1, 1, true)
		}
		key := p.r2.keysOf("a")[0]
		fields, err := p.r2.Client.HKeys(p.Context(), key).Result()
		if err != nil {
			p.Fatal(err)
		}
		for _, f := range fields {
			if f == "r:r1" {
				p.Errorf("%s is kept", f)
			}
		}
	})
}

// An end that is told after the place has come back does not make the permit live on:
// one that is renewed then is taken up with all that it holds.
func TestAnEndThatComesLateKeepsNothing(t *testing.T) {
	inPair(t, func(p *pair) {
		c := p.claim(1)
		p.asked(p.r1, c)
		p.answered(p.r1, c, false)
		time.Sleep(2 * leaseTime)
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
		p.Errorf("one second of CPU time is not held: %+v", list[0].Budgets)
	})
}

func TestUnreadableAccountIsRestored(t *testing.T) {
	for name, corrupt := range map[string]func(ctx context.Context, c redis.Cmdable, key, field, value string){
		"other values": func(ctx context.Context, c redis.Cmdable, key, field, _ string) { c.HSet(ctx, key, field, "\xffother") },
		"cut values": func(ctx context.Context, c redis.Cmdable, key, field, value string) {
			c.HSet(ctx, key, field, value[:len(value)/2])
		},
		"other type": func(ctx context.Context, c redis.Cmdable, key, _, _ string) { c.Set(ctx, key, "other", time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, l *Ledger, _ *atomic.Int64) {
				granted(t, l, 1)
				key := l.keysOf("a")[0]
				for field, value := range l.Client.HGetAll(t.Context(), key).Val() {
					corrupt(t.Context(), l.Client, key, field, value)
				}
				if d, err := l.Admit(t.Context(), create(1000)); err != nil || d.Granted || d.Reason != limits.Content {
					t.Errorf("%+v, %v; want a refusal, because the restored account has created its content", d, err)
				}
			})
		})
	}
}
