package redisledger

import (
	"testing"
	"time"

	"github.com/weirgate/weir/policy"
)

// Each report is three requests behind. Two replicas, and a third one that joins later, use the window together.
func TestLateReportsExceedNoWindowOfSeveralReplicas(t *testing.T) {
	for _, lost := range []bool{false, true} { // data of Redis
		withTwoReplicas(t, func(p *pair) {
			const limit = 60
			replicas, reset, sent := p.both(), time.Now().Add(30*time.Minute), 0
			for range 200 {
				l := replicas[sent%len(replicas)]
				if c := p.claim(1); p.admit(l, c) {
					sent++
					rate := policy.Rate{Limit: limit, Used: max(0, sent-3), Reset: reset, Date: time.Now(), Resource: policy.Core}
					p.settle(l, c, answered(rate))
				}
				if time.Sleep(time.Second); sent == limit/2 && len(replicas) == 2 {
					if replicas = append(replicas, p.open("r3", defaultRules())); lost {
						p.loseData(p.r1)
						reconcileAll(p.T, p.r2)
						time.Sleep(5 * time.Second)
					}
				}
				p.heartbeat(replicas...)
			}
			p.want("requests", sent, limit)
		})
	}
}
