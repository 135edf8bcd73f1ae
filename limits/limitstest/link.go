package limitstest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/weirgate/weir/limits"
)

// link is one replica's way to the ledger. It notes when the ledger decides and
// learns, takes its time, repeats itself, and breaks when the replica dies.
type link struct {
	limits.Ledger
	upstream *Upstream
	slow     time.Duration // the longest that a call takes, each way
	repeats  float64       // odds that a call is made twice

	mu      sync.Mutex // guards what follows
	rng     *rand.Rand
	granted map[uint64]time.Time
	answers map[uint64]*Answer // that have come, but are not settled
	dead    bool
}

var errDead = errors.New("this replica is dead")

// delay takes a while, and reports whether the call goes through and whether it
// is made twice.
func (l *link) delay() (again bool, err error) {
	l.mu.Lock()
	wait := upTo(l.rng, l.slow)
	again = odds(l.rng, l.repeats)
	l.mu.Unlock()
	if wait > 0 {
		time.Sleep(wait)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		return false, errDead
	}
	return again, nil
}

// Admit implements limits.Ledger.
func (l *link) Admit(ctx context.Context, claim limits.Claim) (limits.Decision, error) {
	again, err := l.delay()
	if err != nil {
		return limits.Decision{}, err
	}
	d, err := l.Ledger.Admit(ctx, claim)
	if again && err == nil {
		d, err = l.Ledger.Admit(ctx, claim)
	}
	if d.Granted {
		l.mu.Lock()
		l.granted[claim.ID] = time.Now()
		l.mu.Unlock()
	}
	if _, broken := l.delay(); broken != nil {
		return limits.Decision{}, broken
	}
	return d, err
}

// Settle implements limits.Ledger.
func (l *link) Settle(ctx context.Context, permit limits.Permit, outcome limits.Outcome) error {
	again, err := l.delay()
	if err != nil {
		return err
	}
	err = l.Ledger.Settle(ctx, permit, outcome)
	l.mu.Lock()
	answer := l.answers[permit.ID]
	delete(l.answers, permit.ID)
	delete(l.granted, permit.ID)
	l.mu.Unlock()
	if err != nil {
		l.upstream.unheard(answer)
	} else if answer != nil {
		l.upstream.Told(answer)
	}
	if again {
		_, _ = l.delay()
		return l.Ledger.Settle(ctx, permit, outcome)
	}
	return err
}

// Release implements limits.Ledger.
func (l *link) Release(ctx context.Context, permit limits.Permit, aborted bool) error {
	again, err := l.delay()
	if err != nil {
		return err
	}
	err = l.Ledger.Release(ctx, permit, aborted)
	if again {
		err = l.Ledger.Release(ctx, permit, aborted)
	}
	return err
}

// Renew implements limits.Ledger.
func (l *link) Renew(ctx context.Context, flights []limits.OpenPermit) error {
	if _, err := l.delay(); err != nil {
		return err
	}
	return l.Ledger.Renew(ctx, flights)
}

// grantOf is when a permit was granted.
func (l *link) grantOf(id uint64) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.granted[id]
}

// answered notes the answer that is about to be settled.
func (l *link) answered(id uint64, answer *Answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answers[id] = answer
}

// die cuts the link.
func (l *link) die() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = true
}
