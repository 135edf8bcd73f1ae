package limitstest

import (
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// writeRules limits the writes of two clients.
var writeRules = map[string]policy.ClientWrites{
	"bot":   {Client: policy.WriteLimits{PerMinute: 5, PerHour: 12}},
	"fleet": {Client: policy.WriteLimits{PerHour: 300}, Tag: policy.WriteLimits{PerMinute: 2}},
}

// writes returns a claim for a write of a client with a tag.
func writes(client, tag string) limits.Claim {
	c := get("core")
	c.Client, c.Writes, c.WriteTag = client, 1, client+"/"+tag
	return c
}

var writeCases = []testCase{
	{"the writes of a client in a minute and in an hour are limited", func(h *harness) {
		for range 2 {
			for range 5 {
				h.spend(writes("bot", ""), answered())
			}
			h.refused(writes("bot", "another"), limits.Writes, 60*second)
			time.Sleep(60 * second)
		}
		h.spend(writes("bot", ""), answered())
		h.spend(writes("bot", ""), answered())
		h.refused(writes("bot", ""), limits.Writes, 58*60*second)
		h.check("used", h.budget("writes:1h0m0s:bot").Used, 12)
		h.check("remaining", h.budget("writes:1m0s:bot").Remaining, 3)
	}},
	{"reads and the writes of others are not limited", func(h *harness) {
		for range 30 {
			c := writes("bot", "")
			c.Writes = 0
			h.spend(c, answered())
			h.spend(writes("other", ""), answered())
		}
	}},
	{"a call with several writes needs all of them", func(h *harness) {
		several := func(n int) limits.Claim {
			c := writes("bot", "")
			c.Writes = n
			return c
		}
		h.spend(several(4), answered())
		h.refused(several(2), limits.Writes, 60*second)
		h.spend(several(1), answered())
		time.Sleep(60 * second)
		h.refused(several(6), limits.Writes, 60*second) // more than the limit
		h.check("used", h.budget("writes:1h0m0s:bot").Used, 5)
	}},
	{"each tag has writes of its own", func(h *harness) {
		for _, tag := range []string{"run-1", "run-2", ""} {
			h.spend(writes("fleet", tag), answered())
			time.Sleep(second)
			h.spend(writes("fleet", tag), answered())
			h.refused(writes("fleet", tag), limits.Writes, 59*second)
		}
		h.check("limit", h.budget("writes:1m0s:fleet/run-1").Limit, 2)
	}},
	{"a write that was not sent does not count", func(h *harness) {
		for range 20 {
			h.spend(writes("bot", ""), limits.Outcome{})
		}
		for range 5 {
			h.spend(writes("bot", ""), answered())
		}
	}},
	{"writes in use count", func(h *harness) {
		h.spend(get("core"), answered())
		var permits []limits.Permit
		for range 5 {
			permits = append(permits, h.granted(writes("bot", "")))
		}
		h.refused(writes("bot", ""), limits.Writes, untilSettled)
		h.settled(permits[0], limits.Outcome{})
		h.spend(writes("bot", ""), answered())
	}},
}
