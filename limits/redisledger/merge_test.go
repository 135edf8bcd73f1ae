package redisledger

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

func (p *pair) claimOf(account string, points int) limits.Claim {
	c := p.claim(points)
	c.Account = account
	return c
}

// mergeEverywhere merges both tokens into one account at both replicas.
func (p *pair) mergeEverywhere() {
	for _, l := range []*Ledger{p.r1, p.r2} {
		for _, name := range []string{"token a", "token b"} {
			l.Merge(name, "user:1", policy.User)
		}
	}
}

// Spends and cool-downs of both accounts apply to every name at every replica, and the leases of the merged accounts are
// returned.
func TestMergeReachesEveryNameAtEveryReplica(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		a, b := p.claimOf("token a", 500), p.claimOf("token b", 300)
		if !p.admit(p.r1, a) || !p.admit(p.r2, b) {
			p.Fatal("a first claim was refused")
		}
		p.mergeEverywhere()
		p.settleAnswered(p.r1, a, true)
		p.settleAnswered(p.r2, b, false)
		if !p.admit(p.r1, p.claimOf("token b", 100)) {
			p.Error("a claim was refused that fits the points of both tokens")
		}
		if p.admit(p.r2, p.claimOf("token a", 200)) {
			p.Error("a claim was granted beyond the points of both tokens")
		}
		if err := p.r2.Release(p.Context(), limits.Permit{Claim: b}, false); err != nil {
			p.Fatal(err)
		}
		for range 3 {
			p.heartbeat(p.r1)
			p.heartbeat(p.r2)
		}
		for _, l := range []*Ledger{p.r1, p.r2} {
			l.mu.Lock()
			for _, name := range []string{"token a", "token b"} {
				if old := l.accounts[name]; old != nil && (len(old.leases) > 0 || len(old.touched) > 0) {
					p.Errorf("%s still has leases %v and changes %v", name, old.leases, old.touched)
				}
			}
			l.mu.Unlock()
		}
		if got := p.r1.onlyAccount(p.T); got.Name != "user:1" {
			p.Errorf("account %s, want user:1", got.Name)
		}
	})
}

// A cool-down that one replica has before the merge reaches both names at the other replica.
func TestMergeSharesTheCooldown(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		a := p.claimOf("token a", 1)
		if !p.admit(p.r1, a) {
			p.Fatal("the first claim was refused")
		}
		p.settle(a, limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: limits.SecondaryLimit, RetryAfter: time.Minute})
		p.mergeEverywhere()
		p.heartbeat(p.r1)
		for _, name := range []string{"token a", "token b", "user:1"} {
			d, err := p.r2.Admit(p.Context(), p.claimOf(name, 1))
			if err != nil || d.Reason != limits.Cooldown || time.Until(d.Until) < 50*time.Second {
				p.Errorf("%s: %+v, %v; want a cool-down of a minute", name, d, err)
			}
		}
	})
}

// A claim whose account is merged during the exchange is decided by the merged account, and its tokens are returned.
func TestMergeDuringAnExchange(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		b := p.claimOf("token b", 800)
		if !p.admit(p.r1, b) {
			p.Fatal("the first claim was refused")
		}
		p.r1.Merge("token b", "user:1", policy.User)
		p.hook.changeNext(p.r1.scripts.exchange, func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
			err := run(ctx, cmd)
			go p.r1.Merge("token a", "user:1", policy.User)
			time.Sleep(time.Second)
			return err
		})
		if p.admit(p.r1, p.claimOf("token a", 200)) {
			p.Error("a claim was granted beyond the points of both tokens")
		}
		if !p.admit(p.r1, p.claimOf("token a", 100)) {
			p.Error("a claim was refused that fits the points of both tokens")
		}
		for range 3 {
			p.heartbeat(p.r1)
		}
		p.r1.mu.Lock()
		defer p.r1.mu.Unlock()
		if old := p.r1.accounts["token a"]; old != nil && len(old.leases) > 0 {
			p.Errorf("token a still has leases %v", old.leases)
		}
	})
}

func TestShareAliases(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		share := func(l *Ledger, changed ...string) []string {
			names, err := l.ShareAliases(p.Context(), changed)
			if err != nil {
				p.Fatal(err)
			}
			return names
		}
		want := func(got []string, want ...string) {
			p.Helper()
			if !slices.Equal(got, want) {
				p.Errorf("got %q, want %q", got, want)
			}
		}
		want(share(p.r1, "x", "y"), "x", "y")
		want(share(p.r2), "x", "y")
		want(share(p.r2))
		want(share(p.r2, "z", "x"), "z", "x")
		want(share(p.r1), "z", "x")
		if err := p.r1.Client.FlushAll(p.Context()).Err(); err != nil {
			p.Fatal(err)
		}
		want(share(p.r1, "w"), "w")
		want(share(p.r2), "w")
	})
}
