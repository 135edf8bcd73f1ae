package limitstest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/weirgate/weir/limits"
)

// link connects one replica to the ledger, and delays and repeats its calls. It records the times at which the ledger
// grants permits and learns of responses. After a crash of the replica, all calls fail.
type link struct {
	Ledger
	upstream *Upstream
	slow     time.Duration // longest latency of a call in each direction
	lag      time.Duration // longest time from a decision to the end of its call, and from a settlement to the store
	repeats  float64       // probability that a call is repeated

	mu        sync.Mutex // guards the fields below
	rng       *rand.Rand
	granted   map[uint64]time.Time
	responses map[uint64]*Response // responses that are not settled yet
	crashed   bool
}

var errCrashed = errors.New("the replica has crashed")

// delay waits for the latency of a call, and reports whether to repeat the call. It returns an error if the replica has
// crashed.
func (l *link) delay() (again bool, err error) {
	l.mu.Lock()
	wait := upTo(l.rng, l.slow)
	again = chance(l.rng, l.repeats)
	l.mu.Unlock()
	if wait > 0 {
		time.Sleep(wait)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.crashed {
		return false, errCrashed
	}
	return again, nil
}

// Admit implements limits.Ledger.
func (l *link) Admit(ctx context.Context, claim limits.Claim) limits.Decision {
	crashed := limits.Decision{Reason: "crashed", Wait: time.Hour}
	again, err := l.delay()
	if err != nil {
		return crashed
	}
	began := time.Now()
	d := l.Ledger.Admit(ctx, claim)
	if again {
		d = l.Ledger.Admit(ctx, claim)
	}
	if d.Granted {
		l.mu.Lock()
		l.granted[claim.ID] = maxTime(began, time.Now().Add(-l.lag))
		l.mu.Unlock()
	}
	if _, err := l.delay(); err != nil {
		return crashed
	}
	return d
}

// Settle implements limits.Ledger.
func (l *link) Settle(ctx context.Context, permit limits.Permit, outcome limits.Outcome) error {
	again, err := l.delay()
	if err != nil {
		return err
	}
	err = l.Ledger.Settle(ctx, permit, outcome)
	l.mu.Lock()
	response := l.responses[permit.ID]
	delete(l.responses, permit.ID)
	delete(l.granted, permit.ID)
	l.mu.Unlock()
	if err != nil {
		l.upstream.notLearned(response)
	} else if response != nil {
		l.upstream.Learned(response, l.lag)
	}
	if again {
		_, _ = l.delay()
		return l.Ledger.Settle(ctx, permit, outcome)
	}
	return err
}

// Release implements limits.Ledger.
func (l *link) Release(ctx context.Context, permit limits.Permit, aborted bool) {
	again, err := l.delay()
	if err == nil {
		l.Ledger.Release(ctx, permit, aborted)
	}
	if again {
		l.Ledger.Release(ctx, permit, aborted)
	}
}

// Renew implements limits.Ledger.
func (l *link) Renew(permits []limits.OpenPermit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.crashed {
		l.Ledger.Renew(permits)
	}
}

// grantedAt returns the time at which a permit was granted.
func (l *link) grantedAt(id uint64) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.granted[id]
}

// answered records the response that the client settles next.
func (l *link) answered(id uint64, response *Response) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.responses[id] = response
}

// crash makes all further calls fail.
func (l *link) crash() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.crashed = true
}
