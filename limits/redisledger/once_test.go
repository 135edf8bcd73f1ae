package redisledger

import (
	"testing"
	"time"
)

func TestOnceIsTrueAtOneReplica(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		once := func(l *Ledger, name string, end time.Time) bool {
			first, err := l.Once(p.Context(), name, end)
			if err != nil {
				p.Fatal(err)
			}
			return first
		}
		end := time.Now().Add(time.Minute)
		if !once(p.r1, "x", end) || once(p.r2, "x", end) || once(p.r1, "x", end) || !once(p.r2, "y", time.Now()) {
			p.Error("want true for the first call with a name only")
		}
		for name, most := range map[string]time.Duration{"x": time.Minute, "y": time.Second} {
			if ttl := p.r1.Client.PTTL(p.Context(), oncePrefix+name).Val(); ttl <= 0 || ttl > most {
				p.Errorf("%s has the TTL %v", name, ttl)
			}
		}
		if err := p.r1.Client.Del(p.Context(), oncePrefix+"x").Err(); err != nil { // as its TTL does
			p.Fatal(err)
		}
		if !once(p.r2, "x", end) {
			p.Error("want true again after the end")
		}
	})
}
