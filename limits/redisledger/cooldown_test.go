package redisledger

import (
	"testing"
	"time"

	"github.com/weirgate/weir/limits"
)

// TestACoolDownOutlivesWhoHeardOfIt: a replica that Redis has told of one knows it when
// Redis is empty, and the replica that the API told of it is gone; whatever the clocks say.
func TestACoolDownOutlivesWhoHeardOfIt(t *testing.T) {
	for _, ahead := range []time.Duration{0, 2 * time.Minute, -2 * time.Minute} {
		t.Run(ahead.String(), func(t *testing.T) {
			inPair(t, func(p *pair) {
				p.ahead.Store(ahead.Microseconds())
				p.outlives()
			})
		})
	}
}

func (p *pair) outlives() {
	if d, err := p.r1.Admit(p.Context(), create(1)); err != nil || !d.Granted {
		p.Fatal(d, err)
	}
	limited := limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: limits.SecondaryLimit}
	if err := p.r1.Settle(p.Context(), limits.Permit{Claim: create(1)}, limited); err != nil {
		p.Fatal(err)
	}
	told, err := p.r2.Admit(p.Context(), create(2))
	if err != nil || told.Reason != limits.Cooldown {
		p.Fatal(told, err)
	}
	if err := p.r2.Client.FlushAll(p.Context()).Err(); err != nil {
		p.Fatal(err)
	}
	beaten(p.T, p.r2)
	time.Sleep(10 * time.Second) // until all have written what they know
	if d, err := p.r2.Admit(p.Context(), create(3)); err != nil || d.Reason != limits.Cooldown || d.Until.Sub(told.Until).Abs() > time.Second {
		p.Errorf("%+v, %v; it was told %+v", d, err, told)
	}
}
