package limitstest

import (
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// clients divides each window: a person has a guarantee of 20 %, a job a limit of 50 %, and a bot a limit of 90 %.
var clients = []policy.ClientBudget{
	{Client: "person", Guarantee: 0.2, Limit: 1}, {Client: "job", Limit: 0.5}, {Client: "bot", Limit: 0.9},
}

func from(client string) limits.Claim {
	c := get("core")
	c.Client, c.Clients = client, clients
	return c
}

// fill makes requests of a client until the ledger refuses one, at most 200. It returns their number and the refusal.
func (h *harness) fill(client string, used *int, reset time.Time) (n int, d limits.Decision) {
	h.Helper()
	for ; n < 200; n++ {
		p, d := h.admit(from(client))
		if !d.Granted {
			return n, d
		}
		*used++
		h.settled(p, reported("core", *used, 100, reset))
	}
	return n, d
}

// clientCases test the division of a window among clients. The window has 100 requests.
var clientCases = []testCase{
	{"a guarantee is kept until the last twelfth of the window", func(h *harness) {
		reset, used := time.Now().Add(time.Hour).Truncate(second), 1
		h.spend(from("bot"), reported("core", used, 100, reset))
		n, d := h.fill("bot", &used, reset)
		h.check("requests of the bot", n, 79)
		h.check("reason", d.Reason, limits.ClientBudget)
		if wait := time.Until(d.Until); wait < 54*time.Minute || wait > 56*time.Minute {
			h.Errorf("the refusal ends after %v", wait)
		}
		time.Sleep(50 * time.Minute)
		n, d = h.fill("person", &used, reset)
		h.check("requests of the person", n, 20)
		h.check("reason", d.Reason, limits.Primary)
	}},
	{"a client gets no more than its limit", func(h *harness) {
		reset, used := time.Now().Add(time.Hour).Truncate(second), 0
		n, d := h.fill("job", &used, reset)
		h.check("requests of the job", n, 50)
		h.check("reason", d.Reason, limits.ClientBudget)
		n, _ = h.fill("bot", &used, reset)
		h.check("requests of the bot", n, 30)
		h.check("limit", h.budget("client:core:job").Limit, 50)
		h.check("used", h.budget("client:core:job").Used, 50)
		h.check("guarantee", h.budget("client:core:person").Guarantee, 20)
		for client, want := range map[string]limits.Budget{
			"job": {Limit: 50, Used: 50}, "bot": {Limit: 90, Used: 90}, "person": {Limit: 100, Used: 80, Remaining: 20},
		} {
			b, _ := h.Budget(policy.Caller{Account: "a", Kind: policy.User, Client: client, Clients: clients}, "core")
			h.check("budget of "+client, limits.Budget{Limit: b.Limit, Used: b.Used, Remaining: b.Remaining}, want)
		}
	}},
	{"the guarantee of a client shrinks by its requests", func(h *harness) {
		reset, used := time.Now().Add(time.Hour).Truncate(second), 0
		for range 15 {
			used++
			h.spend(from("person"), reported("core", used, 100, reset))
		}
		n, _ := h.fill("bot", &used, reset)
		h.check("requests of the bot", n, 80)
		n, _ = h.fill("person", &used, reset)
		h.check("further requests of the person", n, 5)
	}},
	{"no quota remains at the end of the window", func(h *harness) {
		reset, used := time.Now().Add(time.Hour).Truncate(second), 0
		h.fill("bot", &used, reset)
		time.Sleep(54 * time.Minute)
		for time.Until(reset) > 2*second {
			time.Sleep(10 * second)
			h.fill("bot", &used, reset)
		}
		h.check("used", used, 100)
		time.Sleep(10 * second)
		reset, used = reset.Add(time.Hour), 0
		n, _ := h.fill("bot", &used, reset)
		h.check("requests of the bot in the next window", n, 80)
	}},
	{"a short window is not divided", func(h *harness) {
		h.spend(from("job"), silent())
		c := from("job")
		c.Resource = "search"
		for i := range 30 {
			h.spend(c, reported("search", i+1, 30, time.Now().Add(time.Minute)))
		}
		h.refused(c, limits.Primary, 61*second)
	}},
	{"a request that was not sent leaves the budget of its client unchanged", func(h *harness) {
		reset, used := time.Now().Add(time.Hour).Truncate(second), 1
		h.spend(from("job"), reported("core", used, 100, reset))
		for range 60 {
			h.settled(h.granted(from("job")), limits.Outcome{})
		}
		n, _ := h.fill("job", &used, reset)
		h.check("requests of the job", n, 49)
	}},
}
