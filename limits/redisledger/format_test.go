package redisledger

import (
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

// changed are the parts of the data that version 0.2 does not write, and ignores, and those of its grants.
var changed = []string{
	"-HSET weir:{weir}:grants", "-PEXPIRE weir:{weir}:grants",
	"HSET weir:account:3:{*} w:core .reports[].own",
	"HSET weir:account:3:{*} r:r1 .counts", "HSET weir:account:3:{*} r:r1 .counts.core", "HSET weir:account:3:{*} r:r1 .counts.core[].lost",
	"HSET weir:account:3:{*} r:r1 .counts.core[].own", "HSET weir:account:3:{*} r:r1 .counts.core[].reset",
	"HSET weir:account:3:{*} r:r2 .counts", "HSET weir:account:3:{*} r:r2 .counts.core", "HSET weir:account:3:{*} r:r2 .counts.core[].lost",
	"HSET weir:account:3:{*} r:r2 .counts.core[].own", "HSET weir:account:3:{*} r:r2 .counts.core[].reset",
}

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

// limit makes the upstream respond to a claim with a limit error.
func (p *pair) limit(l *Ledger, account string, o limits.Outcome) {
	p.Helper()
	o.Sent, o.Answered, o.Ended = true, true, true
	p.settle(l, p.mustAdmit(l, p.claimOf(account, 1), "before the limit error"), o)
}

// TestStoredFormatIsThatOfTheRelease makes two replicas store data of every kind, and compares its format with the
// recording.
func TestStoredFormatIsThatOfTheRelease(t *testing.T) {
	withTwoReplicas(t, func(p *pair) {
		ctx := p.Context()
		p.spendOf(p.r1, "user:1", "job", 300)
		p.spendOf(p.r2, "user:1", "bot", 200)
		p.mustAdmit(p.r2, p.claimOf("user:1", 1), "in progress at the time of the recording")
		p.limit(p.r1, "user:2", limits.Outcome{Limited: policy.LimitSecondary, RetryAfter: time.Hour})
		for _, err := range []error{
			second(p.r1.ShareResources(ctx, map[string]string{"orgs/get-audit-log user": "audit_log"})),
			second(p.r1.ShareAliases(ctx, []string{"token a user:1"})),
			second(p.r1.Once(ctx, "delivery", time.Now().Add(time.Hour))),
		} {
			failIf(p, err != nil, "%v", err)
		}
		p.heartbeat(p.both()...)
		testservers.CompareFormat(p.T, p.client(p.T), recording, func(value string) string {
			return redis.NewScript(unpack).Run(ctx, p.r2.Client, nil, value).Val().(string)
		}, changed...)
	})
}

// unpack returns a stored map as JSON, and other values as an empty text.
const unpack = `
local ok, value = pcall(cmsgpack.unpack, ARGV[1])
return ok and type(value) == 'table' and cjson.encode(value) or ''`

func second[T any](_ T, err error) error { return err }

// TestReplicaContinuesWithTheDataOfTheRelease starts a replica on the recorded data.
func TestReplicaContinuesWithTheDataOfTheRelease(t *testing.T) {
	d := newDatabase(t)
	synctest.Test(t, func(t *testing.T) {
		testservers.Replay(t, d.client(t), recording)
		p, ctx := &pair{T: t, database: d}, t.Context()
		l := p.open("r3", defaultRules())
		p.want("replicas, with the two of the recording", l.Replicas(), 3)

		// Of 900 points 501 are spent or held, and the recorded replicas have others in their leases.
		n := p.spendOf(l, "user:1", "bot", 1000)
		failIf(t, n == 0 || n > 399, "%d claims granted beside the recorded replicas, want at most 399", n)
		if d := p.decide(l, p.claimOf("user:2", 1)); d.Reason != limits.Cooldown || d.Wait < time.Hour-time.Minute {
			t.Errorf("account with a limit error: got %+v; want its cool-down", d)
		}
		if resources, err := l.ShareResources(ctx, nil); err != nil || resources["orgs/get-audit-log user"] != "audit_log" {
			t.Errorf("resources %v, %v", resources, err)
		}
		if aliases, err := l.ShareAliases(ctx, nil); err != nil || len(aliases) != 1 || aliases[0] != "token a user:1" {
			t.Errorf("aliases %q, %v", aliases, err)
		}
		first, err := l.Once(ctx, "delivery", time.Now().Add(time.Hour))
		failIf(t, err != nil || first, "a used name is unused: %v", err)
	})
}
