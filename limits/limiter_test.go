package limits

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/policy"
)

// office is a limiter over a memory ledger, with a clerk who renews.
type office struct {
	*testing.T
	*Limiter
	ledger *Memory
	ctx    context.Context
	clerk  sync.WaitGroup
	close  context.CancelFunc
}

// inOffice runs a test in virtual time, and checks that nobody stays behind.
func inOffice(t *testing.T, limits policy.Limits, test func(*office)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ledger := NewMemory(Rules{Limits: limits})
		o := &office{T: t, Limiter: NewLimiter(ledger), ledger: ledger}
		o.ctx, o.close = context.WithCancel(context.Background())
		o.clerk.Go(func() { o.Limiter.Run(o.ctx) })
		test(o)
		o.close()
		o.clerk.Wait()
		if len(o.queues) != 0 {
			t.Errorf("%d accounts still have waiters", len(o.queues))
		}
	})
}

func user(client string) policy.Caller {
	return policy.Caller{Kind: policy.User, Account: "a", Client: client, Class: "class"}
}

func core(operation string) Claim {
	return Claim{Operation: operation, Resource: policy.Core, Points: 1}
}

// acquire asks with this much patience.
func (o *office) acquire(c Claim, who policy.Caller, patience time.Duration) (*Permit, error) {
	return o.Acquire(o.ctx, c, who, time.Now().Add(patience))
}

func (o *office) acquired(c Claim, who policy.Caller) *Permit {
	o.Helper()
	p, err := o.acquire(c, who, 0)
	if err != nil {
		o.Fatal(err)
	}
	return p
}

// answered settles a permit as answered at once, complete.
func (o *office) answered(p *Permit) {
	o.Helper()
	outcome := Outcome{Sent: true, Answered: true, Ended: true, Elapsed: time.Millisecond}
	outcome.Rate = Rate{Limit: 1_000_000, Used: 1, Reset: time.Now().Add(time.Hour), Resource: p.Resource}
	if err := o.Settle(o.ctx, *p, outcome); err != nil {
		o.Fatal(err)
	}
}

// warm lets the ledger and the estimates know what an operation is like.
func (o *office) warm(operation string) {
	for range recentTimes {
		o.answered(o.acquired(core(operation), user("")))
	}
}

// refused is the refusal that an error is.
func (o *office) refused(err error) *Refusal {
	o.Helper()
	var r *Refusal
	if !errors.As(err, &r) {
		o.Fatalf("not a refusal: %v", err)
	}
	return r
}

// narrow limits let three requests go at one time.
func narrow() policy.Limits {
	limits := policy.DefaultLimits()
	limits.Concurrent = 3
	return limits
}

// wide limits let so many requests go at one time, and bound nothing else.
func wide(concurrent int) policy.Limits {
	limits := policy.DefaultLimits()
	limits.Points.REST, limits.Concurrent, limits.CPU.Total = 1_000_000, concurrent, time.Hour
	return limits
}

// fill takes all there is of narrow limits.
func (o *office) fill() []*Permit {
	o.Helper()
	o.warm("op")
	return []*Permit{o.acquired(core("op"), user("")), o.acquired(core("op"), user("")), o.acquired(core("op"), user(""))}
}

func TestWaiterGoesWhenAPermitSettles(t *testing.T) {
	inOffice(t, narrow(), func(o *office) {
		flying := o.fill()
		began, admitted := time.Now(), make(chan time.Duration)
		go func() {
			p, err := o.acquire(core("op"), user(""), time.Minute)
			if err != nil || p.Waited != Concurrency || flying[0].Waited != "" {
				t.Errorf("%+v waited, %+v did not; %v", p, flying[0], err)
			}
			admitted <- time.Since(began)
		}()
		const flight = 3400 * time.Millisecond
		time.Sleep(flight)
		if waiting := o.Waiting(); len(waiting) != 1 || waiting["a"] != 1 {
			t.Errorf("waiting: %v", waiting)
		}
		_ = o.Settle(o.ctx, *flying[0], Outcome{})
		if after := <-admitted; after != flight {
			t.Errorf("admitted after %v", after)
		}
	})
}

func TestAcquireGivesUp(t *testing.T) {
	for _, c := range []struct {
		name             string
		patience, cancel time.Duration
		after            time.Duration
		is               func(error) bool
	}{
		{"at its deadline", 5 * time.Second, time.Hour, 5 * time.Second, func(err error) bool {
			var r *Refusal
			return errors.As(err, &r) && r.Reason == Concurrency && r.Until.After(time.Now())
		}},
		{"with its client", time.Minute, 2 * time.Second, 2 * time.Second, func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }},
		{"at once without patience", 0, time.Hour, 0, func(err error) bool { var r *Refusal; return errors.As(err, &r) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			inOffice(t, narrow(), func(o *office) {
				o.fill()
				ctx, cancel := context.WithTimeout(o.ctx, c.cancel)
				defer cancel()
				began := time.Now()
				_, err := o.Acquire(ctx, core("op"), user(""), began.Add(c.patience))
				if took := time.Since(began); took != c.after || !c.is(err) {
					t.Errorf("after %v: %v", took, err)
				}
			})
		})
	}
}

func TestRefusalAtOnceWhenTheKnownWaitIsTooLong(t *testing.T) {
	limits := policy.DefaultLimits()
	limits.Points.REST = 10
	inOffice(t, limits, func(o *office) {
		for range 10 {
			o.answered(o.acquired(core("op"), user("")))
		}
		began := time.Now()
		_, err := o.acquire(core("op"), user(""), 59*time.Second)
		r := o.refused(err)
		if time.Since(began) != 0 || r.Reason != Points || time.Until(r.Until) != time.Minute {
			t.Errorf("after %v: %v", time.Since(began), r)
		}
		p, err := o.acquire(core("op"), user(""), 61*time.Second)
		if err != nil || time.Since(began) != time.Minute {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		o.answered(p)
	})
}

func TestAttack48WaitersAreBounded(t *testing.T) {
	inOffice(t, narrow(), func(o *office) {
		o.fill()
		for client := range maxWaiters / maxPerClient {
			name := fmt.Sprint("client ", client)
			for range maxPerClient {
				go func() { _, _ = o.acquire(core("op"), user(name), time.Hour) }()
			}
			synctest.Wait()
			_, err := o.acquire(core("op"), user(name), time.Hour)
			if r := o.refused(err); r.Reason != Queue {
				t.Errorf("got %v", err)
			}
		}
		_, err := o.acquire(core("op"), user("another"), time.Hour)
		if r := o.refused(err); r.Reason != Queue {
			t.Errorf("got %v", err)
		}
		o.close()
		synctest.Wait()
	})
}

// Those who wait for one budget do not stand in the way of those who need
// another (limits.md I16).
func TestI16WhoWaitsForAnotherBudgetIsNotInTheWay(t *testing.T) {
	limits := policy.DefaultLimits()
	limits.Points.REST = 10
	inOffice(t, limits, func(o *office) {
		for range 10 {
			o.answered(o.acquired(core("op"), user("")))
		}
		waiting := make(chan error)
		go func() {
			_, err := o.acquire(core("op"), user(""), 61*time.Second)
			waiting <- err
		}()
		synctest.Wait()
		began := time.Now()
		o.answered(o.acquired(core("other"), user("")))
		if time.Since(began) != 0 {
			t.Error("waited")
		}
		if err := <-waiting; err != nil {
			t.Error(err)
		}
	})
}

// What cannot be reached in time is refused on arrival, not after the wait
// (limits.md I19).
func TestI19NobodyWaitsForWhatCannotBeInTime(t *testing.T) {
	inOffice(t, wide(1), func(o *office) {
		o.warm("op")
		var wg sync.WaitGroup
		o.backlog(&wg, user("first"), 100, 100*time.Millisecond, func() {})
		time.Sleep(20 * time.Second)
		began := time.Now()
		_, err := o.acquire(core("op"), user("second"), 5*time.Second)
		r := o.refused(err)
		if time.Since(began) != 0 {
			t.Errorf("refused after %v", time.Since(began))
		}
		if wait := time.Until(r.Until); wait < 9*time.Second || wait > 11*time.Second {
			t.Errorf("told to come back after %v", wait)
		}
		o.close()
		wg.Wait()
	})
}

func TestPermitsInFlightAreRenewed(t *testing.T) {
	inOffice(t, policy.DefaultLimits(), func(o *office) {
		p := o.acquired(core("op"), user(""))
		time.Sleep(10 * time.Minute)
		list, _ := o.ledger.Accounts(o.ctx, 1)
		if list[0].InUse != 1 {
			t.Error("the permit has ended before its request")
		}
		o.answered(p)
		if len(o.permits) != 0 {
			t.Errorf("%d flights", len(o.permits))
		}
	})
}

// TestTheTimeOfAnUploadIsNotTheUpstreams: however slowly a client sends, others are let
// go; from when its request is whole the upstream's time counts.
func TestTheTimeOfAnUploadIsNotTheUpstreams(t *testing.T) {
	inOffice(t, policy.DefaultLimits(), func(o *office) {
		cpu := func() int {
			list, _ := o.ledger.Accounts(o.ctx, 1)
			i := slices.IndexFunc(list[0].Budgets, func(b Budget) bool { return b.Resource == string(CPU) })
			return list[0].Budgets[i].Held
		}
		o.warm("op")
		p := o.acquired(core("op"), user(""))
		held := cpu()
		done := o.Upload(*p)
		time.Sleep(10 * time.Minute)
		list, _ := o.ledger.Accounts(o.ctx, 1)
		if now := cpu(); now != held || list[0].InUse != 1 {
			t.Errorf("%d held, before %d; %d in flight", now, held, list[0].InUse)
		}
		done()
		time.Sleep(20 * time.Second)
		done() // once more tells nothing
		time.Sleep(10 * time.Second)
		if now := cpu(); now < 28000 || now > 31000 {
			t.Errorf("%d held after half a minute of work", now)
		}
		o.answered(p)
		o.Upload(*p)()
	})
}

// lateLedger takes a while to answer, after it has done what it was asked for.
type lateLedger struct{ Ledger }

func (l lateLedger) Settle(ctx context.Context, p Permit, o Outcome) error {
	err := l.Ledger.Settle(ctx, p, o)
	time.Sleep(50 * time.Millisecond)
	return err
}

func TestRenewalTakesUpNothingThatLands(t *testing.T) {
	inOffice(t, narrow(), func(o *office) {
		o.Limiter.ledger = lateLedger{o.ledger}
		p := o.acquired(core("op"), user("c"))
		time.Sleep(renewEvery - 20*time.Millisecond)
		o.answered(p) // before a renewal, and told after it
		list, err := o.ledger.Accounts(o.ctx, 1)
		if err != nil || list[0].InUse != 0 {
			o.Errorf("%+v, %v; want nothing in flight", list, err)
		}
	})
}

func TestEstimatesErrOnTheSideOfTooMuch(t *testing.T) {
	e := estimates{ops: map[string]*estimate{}}
	if got := e.predict("op"); got != unknownTime {
		t.Errorf("unknown: %v", got)
	}
	for i, want := range []time.Duration{5 * time.Second, 3 * time.Second} {
		if e.observe("op", time.Second); e.predict("op") != want {
			t.Errorf("after %d answers of a second: %v", i+1, e.predict("op"))
		}
	}
	e.observe("op", 4*time.Second)
	for range recentTimes {
		if got := e.predict("op"); got < 4*time.Second {
			t.Fatalf("%v, and one of the last took 4 s", got)
		}
		e.observe("op", time.Millisecond)
	}
	if got := e.predict("op"); got != leastTime {
		t.Errorf("after many quick answers: %v", got)
	}
	for i := range 2 * maxEstimates {
		e.observe(fmt.Sprint(i), time.Second)
	}
	if len(e.ops) > maxEstimates+1 {
		t.Errorf("%d estimates", len(e.ops))
	}
}

func BenchmarkAdmitAndSettle(b *testing.B) {
	limits := policy.DefaultLimits()
	limits.Points.REST = 1 << 40
	m := NewMemory(Rules{Limits: limits})
	ctx := context.Background()
	claim := Claim{Account: "a", Kind: policy.User, Operation: "op", Resource: policy.Core, Points: 1, CPU: time.Millisecond}
	outcome := Outcome{Sent: true, Answered: true, Ended: true, Rate: Rate{Limit: 1 << 20, Used: 1, Reset: time.Now().Add(time.Hour), Resource: "core"}}
	b.ReportAllocs()
	for b.Loop() {
		claim.ID++
		if d, _ := m.Admit(ctx, claim); !d.Granted {
			b.Fatal(d.Reason)
		}
		_ = m.Settle(ctx, Permit{Claim: claim}, outcome)
	}
}
