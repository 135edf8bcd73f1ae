package limitstest

import (
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// priced adds a cost to a claim.
func priced(c limits.Claim, cost int) limits.Claim {
	c.Cost = cost
	return c
}

// costing adds a true cost to an outcome.
func costing(o limits.Outcome, cost int) limits.Outcome {
	o.Cost = cost
	return o
}

// costCases test requests that cost more than 1 in their primary window. The window has 100 tokens.
var costCases = []testCase{
	{"200 parallel calls of a new account reserve at most the limit of its kind", func(h *harness) {
		for kind, limit := range map[policy.CallerKind]int{
			policy.Workflow: 1000, policy.User: 5000, policy.Installation: 5000, policy.Enterprise: 10_000, policy.EnterpriseWorkflow: 15_000,
		} {
			c := get(policy.GraphQL)
			c.Account, c.Kind, c.Cost = string(kind), kind, limit*2/5
			granted := 0
			for range 200 {
				if _, d := h.admit(c); d.Granted {
					granted++
				}
			}
			h.check("grants of "+string(kind), granted, 2)
		}
	}},
	{"a permit reserves its cost until a report contains it", func(h *harness) {
		reset := time.Now().Add(time.Hour).Truncate(second)
		h.spend(get("core"), reported("core", 1, 100, reset))
		p := h.granted(priced(get("core"), 60))
		h.refused(priced(get("core"), 40), limits.Primary, untilSettled)
		q := h.granted(priced(get("core"), 39))
		h.refused(get("core"), limits.Primary, untilSettled)
		h.check("held", h.budget("core").Held, 99)
		h.settled(p, costing(reported("core", 11, 100, reset), 10))
		h.granted(priced(get("core"), 50))
		h.refused(get("core"), limits.Primary, untilSettled)
		h.settled(q, reported("core", 50, 100, reset))
		h.check("used", h.budget("core").Used, 50)
		h.check("held", h.budget("core").Held, 50)
	}},
	{"the true cost of a response without rate headers is unconfirmed", func(h *harness) {
		reset := time.Now().Add(time.Hour).Truncate(second)
		h.spend(get("core"), reported("core", 1, 100, reset))
		failed := limits.Outcome{Sent: true, Answered: true, Ended: true, Failed: true}
		h.spend(priced(get("core"), 60), costing(failed, 20))
		h.check("used", h.budget("core").Used, 21)
		h.spend(priced(get("core"), 60), failed)
		h.check("used", h.budget("core").Used, 81)
	}},
	{"a request without a response costs its estimate", func(h *harness) {
		reset := time.Now().Add(time.Hour).Truncate(second)
		h.spend(get("core"), reported("core", 1, 100, reset))
		h.settled(h.granted(priced(get("core"), 60)), limits.Outcome{Sent: true, Resent: 1})
		time.Sleep(10 * second)
		h.check("used", h.budget("core").Used, 100) // 1, and 60 for each of two copies
	}},
	{"a refused cost does not refuse a lower one", func(h *harness) {
		reset := time.Now().Add(time.Hour).Truncate(second)
		h.spend(get("core"), reported("core", 90, 100, reset))
		h.refused(priced(get("core"), 11), limits.Primary, time.Until(reset)+jitter)
		h.granted(priced(get("core"), 10))
	}},
	{"a cost above the limit needs an unused window", func(h *harness) {
		reset := time.Now().Add(time.Hour).Truncate(second)
		unused := reported("core", 0, 100, reset)
		unused.Uncounted = true
		h.spend(get("core"), unused)
		p := h.granted(priced(get("core"), 500))
		h.refused(get("core"), limits.Primary, untilSettled)
		h.settled(p, costing(reported("core", 40, 100, reset), 40))
		h.refused(priced(get("core"), 500), limits.Primary, time.Until(reset)+jitter)
		h.granted(priced(get("core"), 60))
	}},
	{"the budget of a client counts true costs", func(h *harness) {
		reset := time.Now().Add(time.Hour).Truncate(second)
		h.spend(priced(from("job"), 30), costing(reported("core", 10, 100, reset), 10))
		h.check("used", h.budget("client:core:job").Used, 10)
		h.spend(priced(from("job"), 40), costing(reported("core", 50, 100, reset), 40))
		_, d := h.admit(from("job"))
		h.check("reason", d.Reason, limits.ClientBudget)
		_, d = h.admit(priced(from("bot"), 31)) // 20 are guaranteed to another client
		h.check("reason", d.Reason, limits.ClientBudget)
		h.granted(priced(from("bot"), 30))
	}},
	{"a cost above the limit of a client needs its unused budget", func(h *harness) {
		reset := time.Now().Add(time.Hour).Truncate(second)
		h.spend(get("core"), reported("core", 0, 100, reset))
		h.spend(priced(from("job"), 60), costing(reported("core", 5, 100, reset), 5))
		_, d := h.admit(priced(from("job"), 60))
		h.check("reason", d.Reason, limits.ClientBudget)
		h.granted(priced(from("job"), 45))
	}},
	{"clients share a window by their costs", func(h *harness) {
		reset, used := time.Now().Add(time.Hour).Truncate(second), 0
		spend := func(c limits.Claim, cost int) bool {
			p, d := h.admit(priced(c, cost))
			if d.Granted {
				used += cost
				h.settled(p, reported("core", used, 100, reset))
			}
			return d.Granted
		}
		spend(equal("bot"), 40)
		spend(equal("person"), 5)
		all := h.granted(priced(equal("bot"), 55))
		_, _ = h.admit(priced(equal("person"), 45)) // waits
		h.settled(all, limits.Outcome{})
		if spend(equal("bot"), 11) {
			h.Error("a client may exceed its part by its cost")
		}
		if !spend(equal("bot"), 10) || !spend(equal("person"), 45) {
			h.Error("a client does not get its part")
		}
	}},
}
