package redisledger

import (
	"slices"
	"testing"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

func TestReplicasShareTheLimitOfATag(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		granted := map[string]int{}
		for i := range 40 {
			for _, tag := range []string{"ci/1", "ci/2"} {
				l := []*Ledger{p.r1, p.r2}[i%2]
				c := p.claim(1)
				c.Client, c.Tag = "ci", tag
				c.Clients = []policy.ClientBudget{{Client: "ci", Limit: 1, TagLimit: 10.0 / 5000}}
				if p.admit(l, c) {
					granted[tag]++
					p.settleAnswered(l, c, true)
				}
			}
		}
		if granted["ci/1"] != 10 || granted["ci/2"] != 10 {
			p.Errorf("the replicas granted %v, want 10 for each tag", granted)
		}
		for _, l := range []*Ledger{p.r1, p.r2} {
			accounts, err := l.Accounts(p.Context(), 1)
			if err != nil {
				p.Fatal(err)
			}
			i := slices.IndexFunc(accounts[0].Budgets, func(b limits.Budget) bool { return b.Resource == "client:core:ci/2" })
			if i < 0 || accounts[0].Budgets[i].Used != 10 || accounts[0].Budgets[i].Limit != 10 {
				p.Errorf("budgets: %+v", accounts[0].Budgets)
			}
		}
	})
}
