package redisledger

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/limits/limitstest"
)

func TestNoNumberOfAResponseBlocksAnAccountInRedis(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		r := limitstest.NewResponder(p.T, func() { p.heartbeat(p.r1, p.r2) }, p.r1, p.r2)
		r.RunResponses(testservers.Setting(p.T, "WEIR_RESPONSES", 300), rand.New(rand.NewPCG(1, 2)))
		client, ctx := p.client(p.T), p.Context()
		for _, key := range client.Keys(ctx, "*").Val() {
			const most = 128 << 10
			size := client.MemoryUsage(ctx, key).Val()
			failIf(p, size > most, "%s has %d bytes, want at most %d", key, size, most)
		}
		for _, l := range p.both() {
			n := len(l.accounts)
			failIf(p, n > 20, "a replica knows %d accounts, want at most 20", n)
		}
	})
}

// FuzzResponses passes one response three times to an account in memory, and to an account of two replicas in Redis.
func FuzzResponses(f *testing.F) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		f.Add(limitstest.RandomResponse(rng))
	}
	f.Fuzz(func(t *testing.T, raw string) {
		answer := func(r *limitstest.Responder) {
			for range 3 {
				r.Answer("a", raw)
			}
			r.CheckUsable("a")
		}
		synctest.Test(t, func(t *testing.T) {
			answer(limitstest.NewResponder(t, func() {}, limits.NewMemory(defaultRules())))
		})
		withTwoReplicas(t, func(p *pair) {
			answer(limitstest.NewResponder(p.T, func() { p.heartbeat(p.r1, p.r2) }, p.r1, p.r2))
		})
	})
}
