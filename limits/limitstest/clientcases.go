package limitstest

import (
	"fmt"
	"slices"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// clients divides each window: a person has a guarantee of 20 %, a job a limit of 50 % and of 25 % for each tag, and a bot
// a limit of 90 %.
var clients = []policy.ClientBudget{
	{Client: "person", Guarantee: 0.2, Limit: 1}, {Client: "job", Limit: 0.5, TagLimit: 0.25}, {Client: "bot", Limit: 0.9},
	{Client: "even", Limit: 1, Batch: true}, {Client: "team", Limit: 0.3},
}

func from(client string) limits.Claim {
	c := get("core")
	c.Client, c.Clients = client, clients
	return c
}

// creates returns a claim for content creation, of which 80 are allowed in a minute. More claims of the client wait.
func creates(client string, share int) limits.Claim {
	c := from(client)
	c.CreatesContent, c.Share, c.Waiting = true, share, 80
	return c
}

// shares are the weights of clients.
var shares = map[string]int{"even": 5, "job": 15, "bot": 25, "person": 35}

// weighted adds the weights of the clients to a claim.
func weighted(c limits.Claim) limits.Claim {
	c.Clients = slices.Clone(c.Clients)
	for i := range c.Clients {
		c.Clients[i].Share = shares[c.Clients[i].Client]
	}
	return c
}

// equal returns a claim of a client that has half of the shares of its account.
func equal(client string) limits.Claim {
	c := from(client)
	c.Share = 1
	c.Clients = []policy.ClientBudget{{Client: "bot", Share: 1, Limit: 1}, {Client: "person", Share: 1, Limit: 1}}
	return c
}

// repeat spends a claim until the ledger refuses it, at most 200 times. It returns the number of grants and the refusal.
// respond returns the outcome of each request.
func (h *harness) repeat(c limits.Claim, respond func() limits.Outcome) (n int, d limits.Decision) {
	h.Helper()
	for ; n < 200; n++ {
		p, d := h.admit(c)
		if !d.Granted {
			return n, d
		}
		h.settled(p, respond())
	}
	return n, d
}

// fill makes requests of a client until the ledger refuses one, at most 200. It returns their number and the refusal.
func (h *harness) fill(client string, used *int, reset time.Time) (n int, d limits.Decision) {
	h.Helper()
	return h.repeat(from(client), func() limits.Outcome {
		*used++
		return reported("core", *used, 100, reset)
	})
}

// clientCases test the division of a window among clients. The window has 100 requests.
var clientCases = []testCase{
	{"a guarantee is kept until the last twelfth of the window", func(h *harness) {
		reset, used := time.Now().Add(time.Hour).Truncate(second), 1
		h.spend(from("bot"), reported("core", used, 100, reset))
		n, d := h.fill("bot", &used, reset)
		h.check("requests of the bot", n, 79)
		h.check("reason", d.Reason, limits.ClientBudget)
		if wait := d.Wait; wait < 54*time.Minute || wait > 56*time.Minute {
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
	{"the budget of a client has its share, its limit without the pace, and the reset", func(h *harness) {
		c, reset := from("even"), time.Now().Add(30*time.Minute).Truncate(second)
		c.Clients = []policy.ClientBudget{
			{Client: "even", Share: 3, Limit: 0.8, Batch: true}, {Client: "job", Share: 1, Limit: 1}, {Client: "team", Limit: 0.5},
		}
		h.settled(h.granted(c), silent())
		b := h.budget("client:core:even")
		h.check("reset before a report", b.Reset, time.Time{})
		h.spend(c, reported("core", 2, 100, reset))
		b = h.budget("client:core:even")
		h.check("reset", b.Reset.UTC(), reset.UTC())
		h.check("window", b.Window, time.Hour)
		h.check("share", b.Nominal, 75)
		h.check("limit without the pace", b.Upper, 80)
		if b.Limit < 51 || b.Limit > 52 { // half of the window and a sixtieth have passed
			h.Errorf("the limit at the pace is %d", b.Limit)
		}
		h.check("share of the job", h.budget("client:core:job").Nominal, 25)
		h.check("share of the group", h.budget("client:core:team").Nominal, 0)
		time.Sleep(30*time.Minute - 3*second)
		if b = h.budget("client:core:even"); b.Upper < 99 {
			h.Errorf("the limit at the end of the window is %d", b.Upper)
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
	{"a refusal shows the use of a window by its clients", func(h *harness) {
		reset, used := time.Now().Add(time.Hour).Truncate(second), 0
		respond := func() limits.Outcome {
			used++
			return reported("core", used, 100, reset)
		}
		member := weighted(from("job"))
		member.Group = "team"
		_, d := h.repeat(member, respond)
		h.check("use after the limit of the group", fmt.Sprint(d.Shared), "&{core 100 [{job 30}]}")
		_, d = h.repeat(weighted(from("bot")), respond)
		h.check("use before the guarantee of the person", fmt.Sprint(d.Shared), "&{core 100 [{bot 50} {job 30}]}")
	}},
	{"a listing shows what clients borrow and lend", func(h *harness) {
		reset, used := time.Now().Add(time.Hour).Truncate(second), 0
		h.repeat(weighted(from("job")), func() limits.Outcome {
			used++
			return reported("core", used, 100, reset)
		})
		p := h.granted(weighted(from("person")))
		for client, want := range map[string]limits.Budget{
			"job": {Nominal: 18, Borrowed: 50 - 18}, "person": {Nominal: 43, Lent: 42 * 32 / 79},
			"bot": {Nominal: 31, Lent: 31 * 32 / 79}, "even": {Nominal: 6, Lent: 6 * 32 / 79}, "team": {},
		} {
			b := h.budget("client:core:" + client)
			h.check(client, limits.Budget{Client: b.Client, Nominal: b.Nominal, Borrowed: b.Borrowed, Lent: b.Lent}, limits.Budget{
				Client: client, Nominal: want.Nominal, Borrowed: want.Borrowed, Lent: want.Lent,
			})
		}
		h.settled(p, reported("core", used+1, 100, reset))
	}},
	{"a refusal shows the clients with the largest use", func(h *harness) {
		for client, n := range shares {
			for range n {
				h.spend(weighted(creates(client, n)), answered())
			}
		}
		_, d := h.admit(weighted(creates("job", shares["job"])))
		h.check("reason", d.Reason, limits.Content)
		h.check("use", fmt.Sprint(d.Shared), "&{content:1m0s 80 [{person 35} {bot 25} {job 15}]}")
		_, d = h.repeat(get("core"), func() limits.Outcome { return reported("core", 100, 100, time.Now().Add(time.Hour)) })
		h.check("use of a budget without clients", d.Shared, (*limits.SharedUse)(nil))
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
	{"clients that wait divide a short budget by their shares", func(h *harness) {
		n, d := h.repeat(creates("bot", 1), answered)
		h.check("first requests of the bot", n, 80)
		h.check("reason", d.Reason, limits.Content)
		h.refused(creates("person", 3), limits.Content, d.Wait)
		time.Sleep(d.Wait)
		n, d = h.repeat(creates("bot", 1), answered)
		h.check("requests of the bot", n, 20)
		h.check("reason", d.Reason, limits.ClientBudget)
		n, d = h.repeat(creates("person", 3), answered)
		h.check("requests of the person", n, 60)
		h.check("reason", d.Reason, limits.Content)
	}},
	{"a client with a guarantee finds requests until the end of the window", func(h *harness) {
		reset, used, refused := time.Now().Add(time.Hour).Truncate(second), 1, 0
		h.spend(from("bot"), reported("core", used, 100, reset))
		for i := 1; time.Until(reset) > 2*second; i++ {
			time.Sleep(second)
			if i%10 == 0 {
				h.fill("bot", &used, reset)
			}
			if i%180 != 179 {
				continue
			}
			if p, d := h.admit(from("person")); d.Granted {
				used++
				h.settled(p, reported("core", used, 100, reset))
			} else {
				refused++
			}
		}
		h.check("refused requests of the person", refused, 0)
		h.check("used", used >= 99, true)
	}},
	{"a batch client gets its share beside a client without a pause", func(h *harness) {
		batch, counts := creates("job", 1), map[string]int{}
		batch.Paced = true
		for i := range 360 {
			time.Sleep(second / 2)
			bot, _ := h.repeat(creates("bot", 1), answered)
			job, _ := h.repeat(batch, answered)
			if i >= 240 {
				counts["bot"], counts["job"] = counts["bot"]+bot, counts["job"]+job
			}
		}
		if all := counts["bot"] + counts["job"]; all < 79 || counts["job"] < 36 {
			h.Errorf("a minute: %v", counts)
		}
	}},
	{"a batch claim that is refused for the reserve keeps nothing from others", func(h *harness) {
		reset, used := time.Now().Add(time.Hour).Truncate(second), 0
		for range 96 {
			used++
			h.spend(from("person"), reported("core", used, 100, reset))
		}
		batch := from("job")
		batch.Batch = true
		if _, d := h.admit(batch); d.Granted {
			h.Error("the reserve was granted")
		}
		h.granted(from("person"))
	}},
	{"guarantees above the whole window shrink", func(h *harness) {
		bot, person := equal("bot"), equal("person")
		bot.Clients[0].Guarantee, bot.Clients[1].Guarantee = 0.8, 0.8
		person.Clients = bot.Clients
		reset, used := time.Now().Add(time.Hour).Truncate(second), 0
		respond := func() limits.Outcome {
			used++
			return reported("core", used, 100, reset)
		}
		h.repeat(bot, respond)
		h.repeat(person, respond)
		h.check("used", used, 100)
	}},
	{"the clients of a group get no more than its limit", func(h *harness) {
		reset, used := time.Now().Add(time.Hour).Truncate(second), 0
		member := func(client string) limits.Claim {
			c := from(client)
			c.Group = "team"
			return c
		}
		for range 20 {
			used++
			h.spend(member("bot"), reported("core", used, 100, reset))
		}
		for range 10 {
			used++
			h.spend(member("job"), reported("core", used, 100, reset))
		}
		_, d := h.admit(member("job"))
		h.check("reason", d.Reason, limits.ClientBudget)
		h.check("used", h.budget("client:core:team").Used, 30)
		n, _ := h.fill("job", &used, reset)
		h.check("requests of the job outside of the group", n, 40)
	}},
	{"the requests with one tag get no more than its limit", func(h *harness) {
		reset, used := time.Now().Add(time.Hour).Truncate(second), 1
		h.spend(from("bot"), reported("core", used, 100, reset))
		tagged := func(tag string) limits.Claim {
			c := from("job")
			c.Tag = "job/" + tag
			return c
		}
		fill := func(tag string) (int, limits.Decision) {
			return h.repeat(tagged(tag), func() limits.Outcome {
				used++
				return reported("core", used, 100, reset)
			})
		}
		n, d := fill("1")
		h.check("requests with the first tag", n, 25)
		h.check("reason", d.Reason, limits.ClientBudget)
		if wait := d.Wait; wait < 54*time.Minute || wait > 56*time.Minute {
			h.Errorf("the refusal ends after %v", wait)
		}
		n, _ = fill("2")
		h.check("requests with the second tag", n, 25)
		n, _ = fill("3")
		h.check("requests beyond the limit of the client", n, 0)
		for _, tag := range []string{"1", "2"} {
			b := h.budget("client:core:job/" + tag)
			h.check("budget of tag "+tag, limits.Budget{Limit: b.Limit, Used: b.Used, Remaining: b.Remaining}, limits.Budget{Limit: 25, Used: 25})
		}
		b, _ := h.Budget(policy.Caller{Account: "a", Kind: policy.User, Client: "job", Tag: "job/1", Clients: clients}, "core")
		h.check("budget of a caller", limits.Budget{Limit: b.Limit, Used: b.Used, Remaining: b.Remaining}, limits.Budget{Limit: 25, Used: 25})
		time.Sleep(59 * time.Minute)
		h.granted(tagged("1"))
	}},
	{"a client with an even pace uses the window evenly", func(h *harness) {
		reset, used := time.Now().Add(time.Hour).Truncate(second), 1
		h.spend(from("person"), reported("core", used, 100, reset))
		first := time.Now()
		n, d := h.fill("even", &used, reset)
		h.check("requests at once", n, 1)
		h.check("reason", d.Reason, limits.ClientBudget)
		if wait := d.Wait; wait < 10*second || wait > 40*second {
			h.Errorf("the refusal ends after %v", wait)
		}
		for time.Since(first) < 30*time.Minute {
			time.Sleep(10 * second)
			more, _ := h.fill("even", &used, reset)
			n += more
		}
		if n < 50 || n > 52 {
			h.Errorf("%d requests in half of the window", n)
		}
	}},
	{"a client uses the part of another client that does not wait", func(h *harness) {
		_, d := h.repeat(creates("bot", 1), answered)
		h.refused(creates("person", 3), limits.Content, d.Wait)
		time.Sleep(d.Wait + second)
		n, _ := h.repeat(creates("bot", 1), answered)
		h.check("requests of the bot", n, 80)
	}},
	{"a client beyond its nominal part follows the pace", func(h *harness) {
		bot, began := equal("bot"), time.Now()
		bot.CreatesContent = true
		n, d := h.repeat(bot, answered)
		h.check("requests at once", n, 41)
		h.check("reason", d.Reason, limits.Content)
		for time.Since(began) < 59*second {
			time.Sleep(second / 4)
			more, _ := h.repeat(bot, answered)
			n += more
		}
		h.check("requests of a minute", n, 80)
	}},
	{"a client beyond its nominal part leaves the reserve to others", func(h *harness) {
		bot, person := equal("bot"), equal("person")
		bot.Points, person.Points = 3, 3
		for range 35 * 2 {
			h.repeat(bot, answered)
			time.Sleep(second / 2)
		}
		h.repeat(bot, answered)
		h.check("used points", h.budget("points:op").Used, 891)
		n, _ := h.repeat(person, answered)
		h.check("requests of the person", n, 3)
	}},
	{"a lone client may use everything, at the pace beyond half", func(h *harness) {
		began, n, bot := time.Now(), 0, equal("bot")
		bot.Points = 9
		for time.Since(began) < 31*second {
			more, _ := h.repeat(bot, answered)
			n += more
			time.Sleep(second / 4)
		}
		h.check("requests in 31 seconds", n, 99)
	}},
	{"a client beyond its nominal part leaves content of an hour to others", func(h *harness) {
		bot, person, refused := equal("bot"), equal("person"), 0
		bot.CreatesContent, person.CreatesContent = true, true
		for i := range 500 { // at the pace of 500 in an hour
			h.repeat(bot, answered)
			if i%40 == 39 {
				if p, d := h.admit(person); d.Granted {
					h.settled(p, answered())
				} else {
					refused++
				}
			}
			time.Sleep(7200 * time.Millisecond)
		}
		if used := h.budget("content:1h0m0s").Used; refused > 1 || used < 490 {
			h.Errorf("%d requests of the person refused, %d of 500 used", refused, used)
		}
	}},
	{"a waiting client keeps tokens only for the claims that wait", func(h *harness) {
		_, d := h.repeat(creates("bot", 1), answered)
		one := creates("person", 1)
		one.Waiting = 1
		h.refused(one, limits.Content, d.Wait)
		time.Sleep(d.Wait)
		n, _ := h.repeat(creates("bot", 1), answered)
		h.check("requests of the bot", n, 79)
		h.granted(one)
	}},
	{"requests of batch clients are spread over a sliding window", func(h *harness) {
		c, began := creates("bot", 1), time.Now()
		c.Paced = true
		n, d := h.repeat(c, answered)
		h.check("requests at once", n, 1) // one in three quarters of a second
		h.check("reason", d.Reason, limits.Content)
		for range 79 {
			time.Sleep(d.Wait)
			var more int
			more, d = h.repeat(c, answered)
			n += more
		}
		h.check("requests of a minute", n, 80)
		h.check("time for the requests of a minute", time.Since(began).Round(second), 59*second)
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
