package redisledger

import (
	"testing"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// search sends one search through a replica, and settles it with an outcome. It reports whether the search was granted.
func (p *pair) search(l *Ledger, o limits.Outcome) bool {
	p.Helper()
	c := p.claim(1)
	c.Resource, c.Operation = policy.Search, "search/issues"
	if !p.admit(l, c) {
		return false
	}
	o.Sent, o.Answered, o.Ended = true, true, true
	p.settle(l, c, o)
	return true
}

// searches sends successful searches without rate headers, and fails the test if a search is refused.
func (p *pair) searches(l *Ledger, n int, when string) {
	p.Helper()
	for i := range n {
		stopIf(p, !p.search(l, limits.Outcome{Succeeded: true}), "%s: search %d was refused", when, i+1)
	}
}

// limitedSearch sends a search that gets a limit error.
func (p *pair) limitedSearch(l *Ledger) {
	p.Helper()
	stopIf(p, !p.search(l, limits.Outcome{Limited: policy.LimitPrimary}), "refused before the limit error")
}

func (p *pair) searchRefused(l *Ledger, when string) {
	p.Helper()
	failIf(p, p.search(l, limits.Outcome{}), "granted %s", when)
}

func (p *pair) unlimited(l *Ledger) bool {
	p.Helper()
	b, _ := l.Budget(policy.Caller{Account: "a", Kind: policy.User}, policy.Search)
	return b.Unlimited
}

func TestReplicasShareUnlimitedWindows(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.searches(p.r1, 100, "first replica")
		p.searches(p.r2, 100, "second replica")
		failIf(p, !p.unlimited(p.r1) || !p.unlimited(p.r2), "the window is not unlimited at each replica")
		p.limitedSearch(p.r1)
		p.searchRefused(p.r2, "after a limit error that another replica received")
		time.Sleep(2 * time.Minute)
		p.heartbeat(p.r1) // returns the tokens of the first replica
		p.searches(p.r2, 30, "after the limit error")
		p.searchRefused(p.r2, "beyond the limit after a limit error")
		failIf(p, p.unlimited(p.r2), "unlimited after a limit error")
	})
}

func TestUnlimitedWindowsContinueWithoutRedis(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.searches(p.r1, 100, "with Redis")
		p.heartbeat(p.r1)
		p.disconnect(p.r1)
		p.searches(p.r1, 100, "without Redis")
		p.r1.reconnect(p.Context())
		p.searches(p.r1, 100, "after the outage")
		p.disconnect(p.r1)
		p.limitedSearch(p.r1)
		p.searchRefused(p.r1, "after a limit error without Redis")
		p.r1.reconnect(p.Context())
		p.searchRefused(p.r2, "after a limit error that another replica received without Redis")
	})
}

// The new Redis does not know that the window is unlimited. The earlier requests must not fill the window.
func TestUnlimitedWindowIsLearnedAgainAfterDataLoss(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		p.searches(p.r1, 100, "before the loss")
		p.loseData(p.r1)
		time.Sleep(2 * time.Second)
		p.searches(p.r1, 100, "after the loss")
	})
}
