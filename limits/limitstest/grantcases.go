package limitstest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// grant stores a grant of requests of core.
func (h *harness) grant(id, client string, requests int, length time.Duration) {
	h.Helper()
	g := limits.Grant{ID: id, Client: client, Resource: "core", Requests: requests, Ends: time.Now().Add(length)}
	if err := h.Grant(context.Background(), g); err != nil {
		h.Fatal(err)
	}
}

// grants returns the IDs of the grants in force and of the grants that have ended.
func (h *harness) grants() (inForce, ended string) {
	h.Helper()
	list, gone, err := h.Grants(context.Background())
	if err != nil {
		h.Fatal(err)
	}
	for _, g := range list {
		inForce += g.ID
	}
	for _, g := range gone {
		ended += g.ID
	}
	return inForce, ended
}

// equals divides the windows between two clients without guarantees and limits.
func equals(client string) limits.Claim {
	c := get("core")
	c.Client, c.Clients = client, []policy.ClientBudget{{Client: "job", Limit: 1}, {Client: "bot", Limit: 1}}
	return c
}

// grantCases test grants. The window has 100 requests.
var grantCases = []testCase{
	{"a grant keeps requests for its client and raises its limit until its end", func(h *harness) {
		reset, used := time.Now().Add(time.Hour).Truncate(second), 1
		h.spend(from("bot"), reported("core", used, 100, reset))
		h.grant("a", "job", 25, 30*time.Minute)
		h.grant("b", "job", 5, 30*time.Minute)
		n, d := h.fill("bot", &used, reset)
		h.check("requests of the bot", n, 49) // the person has 20, and the job 30
		h.check("reason", d.Reason, limits.ClientBudget)
		h.check("limit of the job", h.budget("client:core:job").Limit, 80)
		h.check("guarantee of the job", h.budget("client:core:job").Guarantee, 30)
		b, _ := h.Budget(policy.Caller{Account: "a", Kind: policy.User, Client: "job", Clients: clients}, "core")
		h.check("budget of the job", b.Remaining, 30)
		n, _ = h.fill("job", &used, reset)
		h.check("requests of the job", n, 30)
		time.Sleep(30 * time.Minute)
		h.check("limit after the end", h.budget("client:core:job").Limit, 50)
		h.check("guarantee after the end", h.budget("client:core:job").Guarantee, 0)
		time.Sleep(31 * time.Minute)
		reset, used = time.Now().Add(time.Hour).Truncate(second), 0
		n, _ = h.fill("bot", &used, reset)
		h.check("requests of the bot in the next window", n, 80)
	}},
	{"a grant applies to clients without guarantees and limits", func(h *harness) {
		reset, used := time.Now().Add(time.Hour).Truncate(second), 0
		h.grant("a", "job", 40, time.Hour)
		outcome := func() limits.Outcome { used++; return reported("core", used, 100, reset) }
		n, d := h.repeat(equals("bot"), outcome)
		h.check("requests of the bot", n, 60)
		h.check("reason", d.Reason, limits.ClientBudget)
		n, _ = h.repeat(equals("job"), outcome)
		h.check("requests of the job", n, 40)
	}},
	{"a grant raises the limit of a group", func(h *harness) {
		reset, used := time.Now().Add(time.Hour).Truncate(second), 0
		h.grant("a", "team", 10, time.Hour)
		c := from("bot")
		c.Group = "team"
		n, d := h.repeat(c, func() limits.Outcome { used++; return reported("core", used, 100, reset) })
		h.check("requests of the group", n, 40)
		h.check("reason", d.Reason, limits.ClientBudget)
	}},
	{"a grant beyond the limit keeps the whole window", func(h *harness) {
		reset, used := time.Now().Add(time.Hour).Truncate(second), 0
		h.grant("a", "person", 1_000_000, time.Hour)
		h.spend(from("person"), reported("core", 1, 100, reset))
		n, _ := h.fill("bot", &used, reset)
		h.check("requests of the bot", n, 0)
		h.check("limit", h.budget("client:core:person").Limit, 100)
		h.check("guarantee", h.budget("client:core:person").Guarantee, 100)
	}},
	{"a grant of another resource changes nothing", func(h *harness) {
		reset, used := time.Now().Add(time.Hour).Truncate(second), 0
		g := limits.Grant{ID: "a", Client: "job", Resource: "graphql", Requests: 40, Ends: time.Now().Add(time.Hour)}
		if err := h.Grant(context.Background(), g); err != nil {
			h.Fatal(err)
		}
		n, _ := h.fill("bot", &used, reset)
		h.check("requests of the bot", n, 80)
	}},
	{"a revoked grant keeps nothing", func(h *harness) {
		reset, used := time.Now().Add(time.Hour).Truncate(second), 0
		h.grant("a", "job", 40, time.Hour)
		if g, err := h.Revoke(context.Background(), "a"); err != nil || g.Client != "job" {
			h.Errorf("got %v, %v", g, err)
		}
		if _, err := h.Revoke(context.Background(), "a"); !errors.Is(err, limits.ErrUnknownGrant) {
			h.Errorf("got %v", err)
		}
		n, _ := h.fill("bot", &used, reset)
		h.check("requests of the bot", n, 80)
		time.Sleep(2 * time.Hour)
		inForce, ended := h.grants()
		h.check("grants", inForce+ended, "")
	}},
	{"the end of a grant is reported once", func(h *harness) {
		h.grant("b", "job", 1, 2*time.Minute)
		h.grant("a", "job", 1, time.Minute)
		for _, want := range []string{"", "a", "b", ""} {
			_, ended := h.grants()
			h.check("ended", ended, want)
			time.Sleep(time.Minute)
		}
	}},
	{"the number and the time of grants are bounded", func(h *harness) {
		for i := range limits.MaxGrants {
			h.grant(fmt.Sprint(i), "job", 1, time.Hour)
		}
		valid := limits.Grant{ID: "x", Client: "job", Resource: "core", Requests: 1, Ends: time.Now().Add(2 * time.Hour)}
		for name, change := range map[string]func(*limits.Grant){
			"one too many": func(*limits.Grant) {},
			"no request":   func(g *limits.Grant) { g.Requests = 0 },
			"ended":        func(g *limits.Grant) { g.Ends = time.Now() },
			"too long":     func(g *limits.Grant) { g.Ends = time.Now().Add(limits.MaxGrantTime + second) },
			"short window": func(g *limits.Grant) { g.Resource = "search" },
		} {
			g := valid
			change(&g)
			if err := h.Grant(context.Background(), g); !errors.Is(err, limits.ErrInvalidGrant) {
				h.Errorf("%s: got %v", name, err)
			}
		}
		time.Sleep(time.Hour)
		h.grant("y", "job", 1, time.Hour)
		inForce, _ := h.grants()
		h.check("in force", inForce, "y")
	}},
}
