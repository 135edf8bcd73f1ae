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
				c := p.mustAdmit(p.r1, create(1), "at the start")
				p.settle(p.r1, c, limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: limits.SecondaryLimit})
				before := p.decide(p.r2, create(2))
				if before.Reason != limits.Cooldown {
					p.Fatal(before)
				}
				p.loseData(p.r2)
				time.Sleep(10 * time.Second) // longer than an account waits for restores
				if d := p.decide(p.r2, create(3)); d.Reason != limits.Cooldown || d.Until.Sub(before.Until).Abs() > time.Second {
					p.Errorf("after the restore: got %+v, want %+v", d, before)
				}
			})
		})
	}
}
