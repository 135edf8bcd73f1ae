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

// mergeEverywhere merges both tokens into one account at both replicas.
func (p *pair) mergeEverywhere() {
	for _, l := range p.both() {
		for _, name := range []string{"token a", "token b"} {
			l.Merge(name, "user:1", policy.User)
		}
	}
}

// checkNothingRemains fails the test if a replica still has leases or changes of an account.
func (p *pair) checkNothingRemains(l *Ledger, name string) {
	p.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if old := l.accounts[name]; old != nil && (len(old.leases) > 0 || len(old.touched) > 0) {
		p.Errorf("%s still has leases %v and changes %v", name, old.leases, old.touched)
	}
}

// Spends and cool-downs of both accounts apply to every name at every replica, and the leases of the merged accounts are
// returned.
func TestMergeReachesEveryNameAtEveryReplica(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		a := p.mustAdmit(p.r1, p.claimOf("token a", 500), "before the merge")
		b := p.mustAdmit(p.r2, p.claimOf("token b", 300), "before the merge")
		p.mergeEverywhere()
		p.settleAnswered(p.r1, a, true)
		p.settleAnswered(p.r2, b, false)
		p.mustAdmit(p.r1, p.claimOf("token b", 100), "within the points of both tokens")
		failIf(p, p.admit(p.r2, p.claimOf("token a", 200)), "a claim was granted beyond the points of both tokens")
		p.release(p.r2, b, false)
		for range 3 {
			p.heartbeat(p.both()...)
		}
		for _, l := range p.both() {
			p.checkNothingRemains(l, "token a")
			p.checkNothingRemains(l, "token b")
		}
		got := p.r1.onlyAccount(p.T)
		failIf(p, got.Name != "user:1", "account %s, want user:1", got.Name)
	})
}

// A cool-down that one replica has before the merge reaches both names at the other replica.
func TestMergeSharesTheCooldown(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.limit(p.r1, "token a", limits.Outcome{Limited: policy.LimitSecondary, RetryAfter: time.Minute})
		p.mergeEverywhere()
		p.heartbeat(p.r1)
		for _, name := range []string{"token a", "token b", "user:1"} {
			d := p.decide(p.r2, p.claimOf(name, 1))
			failIf(p, d.Reason != limits.Cooldown || d.Wait < 50*time.Second, "%s: %+v; want a cool-down of a minute", name, d)
		}
	})
}

// A limit error after the merge reaches the replicas that have not learned the alias yet, and a limit error of such a replica
// reaches the others.
func TestMergeReachesOtherReplicasWithTheirNextCall(t *testing.T) {
	limited := limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: policy.LimitSecondary, RetryAfter: time.Minute}
	for _, at := range []int{0, 1} { // the replica that merges gets the error, or the other one
		withTwoReplicas(t, func(p *pair) {
			sent := p.mustAdmit(p.both()[at], p.claimOf("token a", 1), "before the merge")
			p.settleAnswered(p.r1, p.mustAdmit(p.r1, p.claimOf("token a", 1), "before the merge"), true)
			p.r1.Merge("token a", "user:1", policy.User)
			p.settle(p.both()[at], sent, limited)
			for _, l := range p.both() {
				d := p.decide(l, p.claimOf("token a", 1))
				failIf(p, d.Reason != limits.Cooldown || d.Wait < 50*time.Second, "%s: %+v; want a cool-down of a minute", l.Replica, d)
			}
		})
	}
}

// A replica renames an account that only another replica uses. Both names share one limit.
func TestRenameReachesTheReplicaThatUsesTheFormerName(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.settleAnswered(p.r2, p.mustAdmit(p.r2, p.claimOf("token a", 500), "before the change"), true)
		p.r1.Rename("token a", "bot", policy.User)
		p.heartbeat(p.both()...)
		p.mustAdmit(p.r2, p.claimOf("token a", 100), "within the points of both names")
		failIf(p, p.admit(p.r1, p.claimOf("bot", 400)), "a claim was granted beyond the points of both names")
		p.mustAdmit(p.r1, p.claimOf("bot", 200), "within the points of both names")
	})
}

// The replica that merges an account declares what ended replicas have spent, because an ended replica cannot.
func TestMergeKeepsWhatEndedReplicasHaveSpent(t *testing.T) {
	for _, end := range []string{"leaves", "is killed"} {
		for _, rename := range []bool{false, true} {
			withTwoReplicas(t, func(p *pair) {
				p.settleAnswered(p.r2, p.mustAdmit(p.r2, p.claimOf("token a", 500), "before the merge"), true)
				if end == "leaves" {
					noError(p, p.r2.Leave(p.Context()))
				}
				if rename {
					p.r1.Rename("token a", "bot", policy.User)
				} else {
					p.settleAnswered(p.r1, p.mustAdmit(p.r1, p.claimOf("token a", 1), "before the merge"), true)
					p.r1.Merge("token a", "bot", policy.User)
				}
				failIf(p, p.admit(p.r1, p.claimOf("bot", 500)), "a replica %s: a claim was granted beyond the points of both names", end)
				p.mustAdmit(p.r1, p.claimOf("bot", 300), "within the points of both names")
				for range 200 { // until the tokens of a killed replica have returned
					time.Sleep(500 * time.Millisecond)
					p.heartbeat(p.r1)
				}
				p.mustAdmit(p.r1, p.claimOf("bot", 900), "after the return of all tokens")
			})
		}
	}
}

// Replicas that have linked two names in both directions agree on one of them.
func TestRenameBackReachesEveryReplica(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.r1.Rename("bot", "robot", policy.User)
		p.r2.Rename("robot", "bot", policy.User)
		p.heartbeat(p.both()...)
		p.settleAnswered(p.r1, p.mustAdmit(p.r1, p.claimOf("robot", 500), "at one replica"), true)
		failIf(p, p.admit(p.r2, p.claimOf("bot", 500)), "a claim was granted beyond the points of both names")
		one, other := p.r1.Canonical("robot"), p.r2.Canonical("robot")
		failIf(p, one != other, "one replica uses %s, the other %s", one, other)
	})
}

// A claim whose account is merged during the round trip is decided by the merged account, and its tokens are returned.
func TestMergeDuringARoundTrip(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.mustAdmit(p.r1, p.claimOf("token b", 800), "before the merge")
		p.r1.Merge("token b", "user:1", policy.User)
		p.hook.changeNext(p.r1.scripts.roundTrip, func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
			err := run(ctx, cmd)
			go p.r1.Merge("token a", "user:1", policy.User)
			time.Sleep(time.Second)
			return err
		})
		failIf(p, p.admit(p.r1, p.claimOf("token a", 200)), "a claim was granted beyond the points of both tokens")
		p.mustAdmit(p.r1, p.claimOf("token a", 100), "within the points of both tokens")
		for range 3 {
			p.heartbeat(p.r1)
		}
		p.checkNothingRemains(p.r1, "token a")
	})
}

// A reply about an account that was merged during the round trip contains reports that are merged already.
func TestMergeCountsRequestsOfOtherReplicasOnce(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		w := &window{pair: p, limit: 100, reset: time.Now().Add(30 * time.Minute)}
		w.change = func(c *limits.Claim) { c.Account = "token a" }
		w.spend(p.r2, 20)
		w.spend(p.r1, 5)
		w.spend(p.r2, 5)
		p.hook.changeNext(p.r1.scripts.roundTrip, func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
			err := run(ctx, cmd)
			go p.r1.Merge("token a", "user:1", policy.User)
			time.Sleep(time.Second)
			return err
		})
		w.spend(p.r1, 1)
		b, _ := p.r1.Budget(policy.Caller{Account: "token a"}, policy.Core)
		p.want("use", b.Used, w.used)
	})
}

func TestShareAliases(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		for i, c := range []struct {
			at        *Ledger
			changed   []string
			want      []string
			afterLoss bool
		}{
			{at: p.r1, changed: []string{"x", "y"}, want: []string{"x", "y"}},
			{at: p.r2, want: []string{"x", "y"}},
			{at: p.r2},
			{at: p.r2, changed: []string{"z", "x"}, want: []string{"z", "x"}},
			{at: p.r1, want: []string{"z", "x"}},
			{at: p.r1, changed: []string{"w"}, want: []string{"w"}, afterLoss: true},
			{at: p.r2, want: []string{"w"}},
		} {
			if c.afterLoss {
				p.empty()
			}
			got, err := c.at.ShareAliases(p.Context(), c.changed)
			failIf(p, err != nil || !slices.Equal(got, c.want), "call %d: got %q, %v; want %q", i+1, got, err, c.want)
		}
	})
}
