package redisledger

import (
	"testing"
	"time"

	"github.com/weirgate/weir/limits"
)

// The first replica gets the limit error. The second replica restores the cool-down in an empty Redis.
func TestCooldownIsRestoredByAnotherReplica(t *testing.T) {
	for _, offset := range []time.Duration{0, 2 * time.Minute, -2 * time.Minute} {
		t.Run("clock offset "+offset.String(), func(t *testing.T) {
			withTwoReplicas(t, func(p *pair) {
				p.clockOffset.Store(offset.Microseconds())
				p.checkCooldownIsRestored()
			})
		})
	}
}

// checkCooldownIsRestored starts a cool-down, empties Redis, and checks that the cool-down continues.
func (p *pair) checkCooldownIsRestored() {
	if d, err := p.r1.Admit(p.Context(), create(1)); err != nil || !d.Granted {
		p.Fatal(d, err)
	}
	limited := limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: limits.SecondaryLimit}
	if err := p.r1.Settle(p.Context(), limits.Permit{Claim: create(1)}, limited); err != nil {
		p.Fatal(err)
	}
	before, err := p.r2.Admit(p.Context(), create(2))
	if err != nil || before.Reason != limits.Cooldown {
		p.Fatal(before, err)
	}
	if err := p.r2.Client.FlushAll(p.Context()).Err(); err != nil {
		p.Fatal(err)
	}
	reconcileAll(p.T, p.r2)
	time.Sleep(10 * time.Second) // longer than an account waits for restores
	if d, err := p.r2.Admit(p.Context(), create(3)); err != nil || d.Reason != limits.Cooldown || d.Until.Sub(before.Until).Abs() > time.Second {
		p.Errorf("after the restore: got %+v, %v; want %+v", d, err, before)
	}
}
