package limits

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/policy"
)

// harness contains a limiter with a memory ledger. A goroutine runs Limiter.Run.
type harness struct {
	*testing.T
	*Limiter
	ledger  *Memory
	ctx     context.Context
	running sync.WaitGroup
	close   context.CancelFunc
}

// inBubble runs a test in virtual time, and checks that no queue remains at its end.
func inBubble(t *testing.T, limits policy.Limits, test func(*harness)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ledger := NewMemory(Rules{Limits: limits})
		o := &harness{T: t, Limiter: NewLimiter(ledger), ledger: ledger}
		o.ctx, o.close = context.WithCancel(context.Background())
		o.running.Go(func() { o.Limiter.Run(o.ctx) })
		test(o)
		o.stop()
		failIf(t, len(o.queues) != 0, "%d accounts still have a queue", len(o.queues))
	})
}

// stop ends the limiter and the requests in the background.
func (o *harness) stop() {
	o.close()
	o.running.Wait()
}

func withPriority(client string, p policy.Priority) policy.Caller {
	caller := user(client)
	caller.Priority = p
	return caller
}

func user(client string) policy.Caller {
	return policy.Caller{Kind: policy.User, Account: "a", Client: client, Class: "class"}
}

func core(operation string) Claim {
	return Claim{Operation: operation, Resource: policy.Core, Points: 1}
}

// acquire waits for a permit for at most maxWait.
func (o *harness) acquire(c Claim, caller policy.Caller, maxWait time.Duration) (*Permit, error) {
	return o.Acquire(o.ctx, c, caller, time.Now().Add(maxWait))
}

func (o *harness) acquired(c Claim, caller policy.Caller) *Permit {
	o.Helper()
	p, err := o.acquire(c, caller, 0)
	noError(o, err)
	return p
}

// answer settles a permit with a complete response.
func (o *harness) answer(p *Permit) {
	o.Helper()
	outcome := Outcome{Sent: true, Answered: true, Ended: true, Elapsed: time.Millisecond}
	outcome.Rate = policy.Rate{Limit: 1_000_000, Used: 1, Reset: time.Now().Add(time.Hour), Resource: p.Resource}
	_, err := o.Settle(o.ctx, *p, outcome)
	noError(o, err)
}

// warmUp settles a request of an operation, so that the ledger knows the window and the estimate of the operation.
func (o *harness) warmUp(operation string) {
	for range recentTimes {
		o.answer(o.acquired(core(operation), user("")))
	}
}

// refusal checks that an error is a refusal, and returns the refusal.
func (o *harness) refusal(err error) *Refusal {
	o.Helper()
	var r *Refusal
	stopIf(o, !errors.As(err, &r), "got error %v, want a refusal", err)
	return r
}

// threeSlots returns limits with three concurrency slots.
func threeSlots() policy.Limits {
	limits := policy.DefaultLimits()
	limits.Concurrent = 3
	return limits
}

// slotsOnly returns limits in which only the number of concurrency slots is effective.
func slotsOnly(concurrent int) policy.Limits {
	limits := policy.DefaultLimits()
	limits.Points.REST, limits.Concurrent, limits.CPU.Total = 1_000_000, concurrent, time.Hour
	return limits
}

// tenPoints returns limits with ten points for each operation and minute.
func tenPoints() policy.Limits {
	limits := policy.DefaultLimits()
	limits.Points.REST = 10
	return limits
}

// spend sends n requests.
func (o *harness) spend(n int) {
	o.Helper()
	for range n {
		o.answer(o.acquired(core("op"), user("")))
	}
}

// refused sends a claim that must be refused at once, and returns the refusal.
func (o *harness) refused(c Claim, caller policy.Caller, maxWait time.Duration, reason Reason) *Refusal {
	o.Helper()
	began := time.Now()
	_, err := o.acquire(c, caller, maxWait)
	r := o.refusal(err)
	failIf(o, time.Since(began) != 0 || r.Reason != reason, "refused after %v: %v, want a refusal at once (%s)", time.Since(began), err, reason)
	return r
}

// wait sends a claim in the background, and ignores the result.
func (o *harness) wait(client string, maxWait time.Duration) {
	o.running.Go(func() { _, _ = o.acquire(core("op"), user(client), maxWait) })
}

// onlyAccount returns the only account of the ledger.
func (o *harness) onlyAccount() Account {
	o.Helper()
	list, err := o.ledger.Accounts(o.ctx, 2)
	if err != nil || len(list) != 1 {
		o.Fatal(list, err)
	}
	return list[0]
}

// fill uses the three slots of threeSlots.
func (o *harness) fill() []*Permit {
	o.Helper()
	o.warmUp("op")
	return []*Permit{o.acquired(core("op"), user("")), o.acquired(core("op"), user("")), o.acquired(core("op"), user(""))}
}

func TestAcquireReturnsWhenAnotherPermitSettles(t *testing.T) {
	inBubble(t, threeSlots(), func(o *harness) {
		open := o.fill()
		began, admitted := time.Now(), make(chan time.Duration)
		go func() {
			p, err := o.acquire(core("op"), user(""), time.Minute)
			failIf(t, err != nil || p.Waited != Concurrency || open[0].Waited != "", "got %+v and %+v, error %v; want the first to wait for concurrency", p, open[0], err)
			admitted <- time.Since(began)
		}()
		const duration = 3400 * time.Millisecond
		time.Sleep(duration)
		waiting := o.Waiting()
		failIf(t, len(waiting) != 1 || waiting[ClientResource{"a", "core", ""}] != 1, "got waiting requests %v, want one of account a", waiting)
		_, _ = o.Settle(o.ctx, *open[0], Outcome{})
		after := <-admitted
		failIf(t, after != duration, "got a permit after %v, want %v", after, duration)
	})
}

// TestPermitShowsTheUseThatItWaitedFor checks that a permit and a refusal have the use of the budget at the last refusal.
func TestPermitShowsTheUseThatItWaitedFor(t *testing.T) {
	inBubble(t, tenPoints(), func(o *harness) {
		agent, gh := user("agent"), user("gh")
		agent.Clients = []policy.ClientBudget{{Client: "agent", Share: 9, Limit: 1}, {Client: "gh", Share: 1, Limit: 1}}
		agent.Share, gh.Clients = 9, agent.Clients
		for i := range 10 {
			caller := agent
			if i == 0 {
				caller = gh
			}
			p := o.acquired(core("op"), caller)
			failIf(t, p.Shared != nil, "permit %d: %+v, but it did not wait", i, p.Shared)
			o.answer(p)
		}
		want := &SharedUse{Budget: "points:op", Limit: 10, Clients: []ClientUse{{"agent", 9}, {"gh", 1}}}
		_, err := o.acquire(core("op"), gh, time.Second)
		if got := o.refusal(err).Shared; !reflect.DeepEqual(got, want) {
			t.Errorf("refusal: %+v, want %+v", got, want)
		}
		waiting := make(chan map[ClientResource]int)
		go func() {
			time.Sleep(time.Second)
			waiting <- o.Waiting()
		}()
		p, err := o.acquire(core("op"), gh, 61*time.Second)
		failIf(t, err != nil || p.Waited != Points || !reflect.DeepEqual(p.Shared, want), "permit: %+v, error %v, want %+v", p, err, want)
		if got, want := <-waiting, map[ClientResource]int{{"a", "core", "gh"}: 1}; !maps.Equal(got, want) {
			t.Errorf("waiting: %v, want %v", got, want)
		}
	})
}

func TestAcquireStopsWaiting(t *testing.T) {
	for _, c := range []struct {
		name                   string
		maxWait, cancel, after time.Duration
		refused                bool // or an error of the context
	}{
		{"deadline", 5 * time.Second, time.Hour, 5 * time.Second, true},
		{"client disconnects", time.Minute, 2 * time.Second, 2 * time.Second, false},
		{"no wait allowed", 0, time.Hour, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, threeSlots(), func(o *harness) {
				o.fill()
				ctx, cancel := context.WithTimeout(o.ctx, c.cancel)
				defer cancel()
				began := time.Now()
				_, err := o.Acquire(ctx, core("op"), user(""), began.Add(c.maxWait))
				took := time.Since(began)
				failIf(t, took != c.after || !c.refused && !errors.Is(err, context.DeadlineExceeded), "Acquire returned %v after %v, want after %v", err, took, c.after)
				if c.refused {
					r := o.refusal(err)
					failIf(t, r.Reason != Concurrency || c.maxWait > 0 && !r.Until.After(time.Now()), "got %+v, want a later time and concurrency", r)
				}
			})
		})
	}
}

func TestAcquireRefusesImmediatelyIfTheWaitIsTooLong(t *testing.T) {
	inBubble(t, tenPoints(), func(o *harness) {
		o.spend(10)
		began := time.Now()
		r := o.refused(core("op"), user(""), 59*time.Second, Points)
		failIf(t, time.Until(r.Until) != time.Minute, "got %v, want a refusal for a minute", r)
		p, err := o.acquire(core("op"), user(""), 61*time.Second)
		failIf(t, err != nil || time.Since(began) != time.Minute, "got %v after %v, want a permit after a minute", err, time.Since(began))
		o.answer(p)
	})
}

func TestAcquireBoundsWaitingRequests(t *testing.T) {
	inBubble(t, threeSlots(), func(o *harness) {
		o.fill()
		for client := range maxWaiters / maxPerClient {
			name := fmt.Sprint("client ", client)
			for range maxPerClient {
				o.wait(name, time.Hour)
			}
			synctest.Wait()
			_ = o.refused(core("op"), user(name), time.Hour, Queue)
		}
		_ = o.refused(core("op"), user("newcomer"), time.Hour, Queue)
	})
}

// demands records the largest number of waiting claims that the limiter reports for each client.
type demands struct {
	Ledger
	mu   sync.Mutex // guards most
	most map[string]int
}

func (l *demands) Admit(ctx context.Context, c Claim) Decision {
	l.mu.Lock()
	l.most[c.Client] = max(l.most[c.Client], c.Waiting)
	l.mu.Unlock()
	return l.Ledger.Admit(ctx, c)
}

func TestLimiterReportsTheDemandOfEachClient(t *testing.T) {
	inBubble(t, threeSlots(), func(o *harness) {
		o.fill()
		most := map[string]int{}
		o.Limiter.ledger = &demands{Ledger: o.ledger, most: most}
		var wg sync.WaitGroup
		for _, client := range []string{"a", "a", "b", "a"} {
			caller := user(client)
			caller.Clients = []policy.ClientBudget{{Client: "a", Share: 1, Limit: 1}, {Client: "b", Share: 1, Limit: 1}}
			wg.Go(func() { _, _ = o.acquire(core("op"), caller, time.Second) })
		}
		wg.Wait()
		want := map[string]int{"a": 3, "b": 1}
		failIf(t, !maps.Equal(most, want), "demand: %v, want %v", most, want)
	})
}

// slowLedger delays Admit, and the result of Settle.
type slowLedger struct {
	Ledger
	admit, settle time.Duration
}

func (l slowLedger) Admit(ctx context.Context, c Claim) Decision {
	time.Sleep(l.admit)
	return l.Ledger.Admit(ctx, c)
}

func (l slowLedger) Settle(ctx context.Context, p Permit, o Outcome) error {
	err := l.Ledger.Settle(ctx, p, o)
	time.Sleep(l.settle)
	return err
}

// The deadline passes while the ledger decides. The refusal has the time of that decision.
func TestRefusalAtTheDeadlineHasTheTimeOfTheLastDecision(t *testing.T) {
	inBubble(t, tenPoints(), func(o *harness) {
		o.spend(5)
		time.Sleep(30 * time.Second)
		o.spend(5)
		o.Limiter.ledger = slowLedger{o.ledger, 50 * time.Millisecond, 0}
		for range 5 {
			go func() {
				p, err := o.acquire(core("op"), user(""), time.Minute)
				if err != nil {
					t.Error(err)
					return
				}
				o.answer(p)
			}()
		}
		synctest.Wait()
		began := time.Now()
		_, err := o.acquire(core("op"), user(""), 30*time.Second+275*time.Millisecond) // during the sixth call of Admit
		r := o.refusal(err)
		failIf(t, r.Reason != Points || r.Until.Sub(began) < 59*time.Second, "refused (%s) for %v, want about a minute", r.Reason, r.Until.Sub(began))
	})
}

// A request waits behind requests of a higher priority until its deadline.
func TestRefusalAtTheDeadlineHasTheExpectedTime(t *testing.T) {
	inBubble(t, slotsOnly(1), func(o *harness) {
		o.warmUp("op")
		o.backlog(withPriority("first", policy.Interactive), 100, 100*time.Millisecond)
		time.Sleep(20 * time.Second)
		refused := make(chan error)
		for range 20 { // one grant in twenty goes to the lower priority
			go func() {
				p, err := o.acquire(core("op"), user("second"), 12*time.Second)
				if err == nil {
					o.answer(p)
				}
				refused <- err
			}()
		}
		shortest, refusals := time.Hour, 0
		for range 20 {
			if err := <-refused; err != nil {
				shortest = min(shortest, time.Until(o.refusal(err).Until))
				refusals++
			}
		}
		failIf(t, refusals == 0 || shortest < 9*time.Second, "%d refusals, the shortest for %v; want about 10 s", refusals, shortest)
	})
}

// A full queue has a place again at the first deadline of a waiting request.
func TestRefusalByAFullQueueHasTheTimeOfTheNextPlace(t *testing.T) {
	inBubble(t, threeSlots(), func(o *harness) {
		o.fill()
		began := time.Now()
		for i := range maxPerClient {
			o.wait("greedy", time.Minute+time.Duration(i)*time.Second)
		}
		o.wait("modest", 10*time.Second)
		synctest.Wait()
		r := o.refused(core("op"), user("greedy"), time.Hour, Queue)
		failIf(t, r.Until.Sub(began) != time.Minute, "refused for %v, want a minute", r.Until.Sub(began))
	})
}

// TestWaitForOneBudgetDoesNotDelayAnother tests I16 of docs/internals/limits.md.
func TestWaitForOneBudgetDoesNotDelayAnother(t *testing.T) {
	inBubble(t, tenPoints(), func(o *harness) {
		o.spend(10)
		waiting := make(chan error)
		go func() {
			_, err := o.acquire(core("op"), user(""), 61*time.Second)
			waiting <- err
		}()
		synctest.Wait()
		began := time.Now()
		o.answer(o.acquired(core("second"), user("")))
		failIf(t, time.Since(began) != 0, "a request for another budget waited")
		if err := <-waiting; err != nil {
			t.Error(err)
		}
	})
}

// TestAcquireRefusesIfTheQueueIsTooSlow tests I19 of docs/internals/limits.md.
func TestAcquireRefusesIfTheQueueIsTooSlow(t *testing.T) {
	inBubble(t, slotsOnly(1), func(o *harness) {
		o.warmUp("op")
		o.backlog(user("first"), 100, 100*time.Millisecond)
		time.Sleep(20 * time.Second)
		r := o.refused(core("op"), user("second"), 5*time.Second, Concurrency)
		wait := time.Until(r.Until)
		failIf(t, wait < 9*time.Second || wait > 11*time.Second, "refused for %v, want about 10 s", wait)
	})
}

func TestRunRenewsPermitsInUse(t *testing.T) {
	inBubble(t, policy.DefaultLimits(), func(o *harness) {
		p := o.acquired(core("op"), user(""))
		time.Sleep(10 * time.Minute)
		failIf(t, o.onlyAccount().InUse != 1, "the permit expired while its request was open")
		o.answer(p)
		failIf(t, len(o.permits) != 0, "%d permits in use, want none", len(o.permits))
	})
}

// A slow upload does not use CPU time, because the CPU time is measured from the end of the upload.
func TestUploadTimeIsNotChargedAsCPUTime(t *testing.T) {
	inBubble(t, policy.DefaultLimits(), func(o *harness) {
		cpu := func() int {
			budgets := o.onlyAccount().Budgets
			return budgets[slices.IndexFunc(budgets, func(b Budget) bool { return b.Resource == string(CPU) })].Held
		}
		o.warmUp("op")
		p := o.acquired(core("op"), user(""))
		held := cpu()
		done := o.Upload(*p)
		time.Sleep(10 * time.Minute)
		if now, inUse := cpu(), o.onlyAccount().InUse; now != held || inUse != 1 {
			t.Errorf("after 10 minutes of upload: %d ms held, %d before; %d permits in use, want 1", now, held, inUse)
		}
		done()
		time.Sleep(5 * time.Second)
		done() // a second call has no effect
		time.Sleep(3 * time.Second)
		if now := cpu(); now < 6900 || now > 8100 {
			t.Errorf("%d ms held after 8 s, want about 8000", now)
		}
		time.Sleep(10 * time.Minute) // a long poll waits without work
		if now := cpu(); now != 10_000 {
			t.Errorf("%d ms held after 10 minutes, want 10000", now)
		}
		o.answer(p)
		o.Upload(*p)()
	})
}

func TestRenewalDoesNotReopenAClosedPermit(t *testing.T) {
	inBubble(t, threeSlots(), func(o *harness) {
		o.Limiter.ledger = slowLedger{o.ledger, 0, 50 * time.Millisecond}
		p := o.acquired(core("op"), user("c"))
		time.Sleep(renewEvery - 20*time.Millisecond)
		o.answer(p) // the renewal starts before Settle returns
		n := o.onlyAccount().InUse
		failIf(o, n != 0, "%d permits in use, want none", n)
	})
}

func TestEstimatesAreHighAfterFewResponses(t *testing.T) {
	e := estimates{ops: map[string][]time.Duration{}}
	if got := e.predict("op"); got != unknownTime {
		t.Errorf("estimate without responses: got %v", got)
	}
	for i, want := range []time.Duration{5 * time.Second, 3 * time.Second} {
		e.observe("op", time.Second)
		failIf(t, e.predict("op") != want, "estimate after %d responses of 1 s: got %v", i+1, e.predict("op"))
	}
	e.observe("op", 4*time.Second)
	for range recentTimes {
		got := e.predict("op")
		stopIf(t, got < 4*time.Second, "got %v, want at least the 4 s of a recent response", got)
		e.observe("op", time.Millisecond)
	}
	if got := e.predict("op"); got != leastTime {
		t.Errorf("estimate after many fast responses: got %v", got)
	}
	for i := range 2 * maxEstimates {
		e.observe(fmt.Sprint(i), time.Second)
	}
	failIf(t, len(e.ops) > maxEstimates+1, "%d estimates, want a bounded number", len(e.ops))
}

func BenchmarkAdmitAndSettle(b *testing.B) {
	limits := policy.DefaultLimits()
	limits.Points.REST = 1 << 40
	for _, name := range []string{"memory", "file"} {
		b.Run(name, func(b *testing.B) {
			m := NewMemory(Rules{Limits: limits})
			if name == "file" {
				file, err := os.Create(filepath.Join(b.TempDir(), "ledger"))
				if err != nil {
					b.Fatal(err)
				}
				if err := m.Rotate(file, nil, func() error { return nil }); err != nil {
					b.Fatal(err)
				}
			}
			ctx := context.Background()
			claim := Claim{Account: "a", Kind: policy.User, Operation: "op", Resource: policy.Core, Points: 1, CPU: time.Millisecond}
			outcome := Outcome{Sent: true, Answered: true, Ended: true,
				Rate: policy.Rate{Limit: 5000, Used: 1, Reset: time.Now().Add(time.Hour), Resource: "core"}}
			b.ReportAllocs()
			for b.Loop() {
				if outcome.Rate.Used = int(claim.ID % 4500); outcome.Rate.Used == 0 { // the window of another account
					claim.Account = fmt.Sprint("a", claim.ID)
				}
				claim.ID, outcome.Rate.Used = claim.ID+1, outcome.Rate.Used+1
				if d := m.Admit(ctx, claim); !d.Granted {
					b.Fatal(d.Reason)
				}
				_ = m.Settle(ctx, Permit{Claim: claim}, outcome)
			}
		})
	}
}

// The estimate for an operation without responses is high. The claims that wait for the first response use the estimate
// that it gives.
func TestWaitingClaimsUseTheLatestEstimateOfCPUTime(t *testing.T) {
	inBubble(t, policy.DefaultLimits(), func(o *harness) {
		var requests sync.WaitGroup
		reset := time.Now().Add(time.Hour).Truncate(time.Second)
		var mu sync.Mutex
		used, refused := 0, 0
		for range 160 {
			requests.Go(func() {
				p, err := o.acquire(core("repos/list"), user("busy"), 10*time.Second)
				if err != nil {
					mu.Lock()
					refused++
					mu.Unlock()
					return
				}
				time.Sleep(400 * time.Millisecond)
				mu.Lock()
				used++
				rate := policy.Rate{Limit: 5000, Used: used, Reset: reset, Resource: policy.Core}
				mu.Unlock()
				_, _ = o.Settle(o.ctx, *p, Outcome{Sent: true, Answered: true, Ended: true, Succeeded: true, Elapsed: 400 * time.Millisecond, Rate: rate})
			})
		}
		requests.Wait()
		failIf(t, refused != 0, "%d of 160 requests were refused", refused)
	})
}
