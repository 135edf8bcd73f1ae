package redisledger

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// recording is the data of two replicas of version 0.2, at the time at which all bubbles begin.
const recording = "testdata/redis-0.2.txt"

// recordedClients are the clients of the account that the recorded replicas shared.
var recordedClients = []policy.ClientBudget{{Client: "job", Limit: 1}, {Client: "bot", Limit: 1}}

// spendOf admits and settles claims of an account until one is refused, at most the given number.
func (p *pair) spendOf(l *Ledger, account, client string, most int) (times int) {
	p.Helper()
	for ; times < most; times++ {
		c := p.claimOf(account, 1)
		c.Client, c.Clients = client, recordedClients
		if !p.admit(l, c) {
			break
		}
		p.settleAnswered(l, c, true)
	}
	return times
}

// TestStoredFormatIsThatOfTheRelease makes two replicas store data of every kind, and compares its format with the
// recording.
func TestStoredFormatIsThatOfTheRelease(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		ctx, now := p.Context(), time.Now()
		p.spendOf(p.r1, "user:1", "job", 300)
		p.spendOf(p.r2, "user:1", "bot", 200)
		if !p.admit(p.r2, p.claimOf("user:1", 1)) { // in progress at the time of the recording
			p.Error("a claim was refused")
		}
		p.limit(p.r1, "user:2", limits.Outcome{Limited: limits.SecondaryLimit, RetryAfter: time.Hour})
		for _, err := range []error{
			p.r1.Grant(ctx, limits.Grant{ID: "a", Client: "job", Resource: policy.Core, Requests: 40, Ends: now.Add(time.Hour)}),
			second(p.r1.ShareResources(ctx, map[string]string{"orgs/get-audit-log user": "audit_log"})),
			second(p.r1.ShareAliases(ctx, []string{"token a user:1"})),
			second(p.r1.Once(ctx, "delivery", now.Add(time.Hour))),
		} {
			if err != nil {
				p.Error(err)
			}
		}
		p.heartbeat(p.r1)
		p.heartbeat(p.r2)
		if err := p.r1.Client.Del(ctx, "weir:test-clock").Err(); err != nil {
			p.Fatal(err)
		}
		testservers.CompareFormat(p.T, p.r1.Client, recording, func(value string) string {
			return redis.NewScript(unpack).Run(ctx, p.r1.Client, nil, value).Val().(string)
		})
	})
}

// unpack returns a stored map as JSON, and other values as an empty text.
const unpack = `
local ok, value = pcall(cmsgpack.unpack, ARGV[1])
return ok and type(value) == 'table' and cjson.encode(value) or ''`

func second[T any](_ T, err error) error { return err }

// limit makes the upstream respond to a claim with a limit error.
func (p *pair) limit(l *Ledger, account string, o limits.Outcome) {
	p.Helper()
	c := p.claimOf(account, 1)
	o.Sent, o.Answered, o.Ended = true, true, true
	if !p.admit(l, c) {
		p.Error("a claim was refused")
	}
	if err := l.Settle(p.Context(), limits.Permit{Claim: c}, o); err != nil {
		p.Fatal(err)
	}
}

// TestReplicaContinuesWithTheDataOfTheRelease starts a replica on the recorded data.
func TestReplicaContinuesWithTheDataOfTheRelease(t *testing.T) {
	socket := testservers.Redis(t)
	synctest.Test(t, func(t *testing.T) {
		client := clientOf(t, func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", socket) })
		client.AddHook(tick{new(atomic.Int64)})
		testservers.Replay(t, client, recording)
		l := open(t, client, "r3", limits.Rules{Limits: policy.DefaultLimits()}, testClock)
		p, ctx := &pair{T: t, r1: l}, t.Context()
		if n := l.Replicas(); n != 3 {
			t.Errorf("%d replicas, want the new one and the two of the recording", n)
		}

		// Of 900 points 501 are spent or held, and the recorded replicas have others in their leases.
		if n := p.spendOf(l, "user:1", "bot", 1000); n == 0 || n > 399 {
			t.Errorf("%d claims granted beside the recorded replicas, want at most 399", n)
		}
		d, err := l.Admit(ctx, p.claimOf("user:2", 1))
		if err != nil || d.Reason != limits.Cooldown || time.Until(d.Until) < time.Hour-time.Minute {
			t.Errorf("account with a limit error: got %+v, %v; want its cool-down", d, err)
		}
		if n := p.learnGrants(l); n != 1 {
			t.Errorf("%d grants, want 1", n)
		}
		if resources, err := l.ShareResources(ctx, nil); err != nil || resources["orgs/get-audit-log user"] != "audit_log" {
			t.Errorf("resources %v, %v", resources, err)
		}
		if aliases, err := l.ShareAliases(ctx, nil); err != nil || len(aliases) != 1 || aliases[0] != "token a user:1" {
			t.Errorf("aliases %q, %v", aliases, err)
		}
		if first, err := l.Once(ctx, "delivery", time.Now().Add(time.Hour)); err != nil || first {
			t.Errorf("a used name is unused: %v", err)
		}
	})
}
