package limitstest

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// ClockRules returns the rules of [RunClockSteps].
func ClockRules() limits.Rules {
	rules := limits.Rules{Limits: policy.DefaultLimits(), ColdStart: "trust"}
	rules.Points.REST = clockPoints
	return rules
}

const (
	clockPoints  = 30 // per minute
	clockClients = 4  // of each replica
	clockSteps   = 10
	clockTime    = 10 * time.Minute
	// mostDecisions bounds the decisions of each claim. A claim is decided again when a permit of its account is settled, and when
	// a refusal ends.
	mostDecisions = 20
)

// countedLedger counts decisions.
type countedLedger struct {
	Ledger
	decisions *atomic.Int64
}

func (l countedLedger) Admit(ctx context.Context, c limits.Claim) limits.Decision {
	l.decisions.Add(1)
	return l.Ledger.Admit(ctx, c)
}

// RunClockSteps saturates an account for clockTime, while step changes a clock at clockSteps random times. No budget may be exceeded, no
// client may wait longer than it asks plus a second, and no waiting claim may spin. The time is virtual, except for the clock that
// steps.
func RunClockSteps(t *testing.T, step func(*rand.Rand), replicas ...Ledger) {
	t.Helper()
	began, rng := time.Now(), rand.New(rand.NewPCG(7, 9))
	var group sync.WaitGroup
	var mu sync.Mutex
	var answered []time.Time
	var decisions atomic.Int64
	claims := 0
	group.Go(func() {
		for i := range clockSteps {
			time.Sleep(time.Until(began.Add(time.Duration(i)*clockTime/clockSteps + time.Duration(rng.Int64N(int64(clockTime/clockSteps))))))
			step(rng)
		}
	})
	for i, ledger := range replicas {
		l := limits.NewLimiter(countedLedger{ledger, &decisions})
		for k := range clockClients {
			random := rand.New(rand.NewPCG(uint64(i), uint64(k)))
			group.Go(func() {
				for time.Since(began) < clockTime {
					asked, from := time.Duration(1+random.IntN(90))*time.Second, time.Now()
					p, err := l.Acquire(context.Background(), limits.Claim{Operation: "op", Resource: policy.Core, Points: 1}, policy.Caller{Account: "a", Kind: policy.User}, from.Add(asked))
					mu.Lock()
					claims++
					mu.Unlock()
					if waited := time.Since(from); waited > asked+time.Second {
						t.Errorf("a client waited for %v, and asked for %v", waited, asked)
					}
					if err != nil {
						time.Sleep(time.Second)
						continue
					}
					time.Sleep(100 * time.Millisecond)
					mu.Lock()
					answered = append(answered, time.Now())
					o := reported(policy.Core, len(answered), 5000, began.Add(time.Hour))
					mu.Unlock()
					if _, err := l.Settle(context.Background(), *p, o); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	group.Wait()
	for i := clockPoints; i < len(answered); i++ {
		if length := answered[i].Sub(answered[i-clockPoints]); length < time.Minute {
			t.Errorf("%d points within %v", clockPoints+1, length)
		}
	}
	if least := clockPoints * int(clockTime/time.Minute) * 8 / 10; len(answered) < least {
		t.Errorf("only %d requests were sent in %v, want at least %d", len(answered), clockTime, least)
	}
	if n := decisions.Load(); n > int64(mostDecisions*claims) {
		t.Errorf("%d decisions about %d claims", n, claims)
	}
	t.Logf("%d requests, %d claims, %d decisions", len(answered), claims, decisions.Load())
}
