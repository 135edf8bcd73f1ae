package redisledger

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// TestReplicasTogetherExceedNoLimitOfWrites sends the writes of two tags through four replicas, ten times as many as the
// client may send. Some are not sent, get no response, or stay in progress.
func TestReplicasTogetherExceedNoLimitOfWrites(t *testing.T) {
	d := newDatabase(t)
	synctest.Test(t, func(t *testing.T) {
		rules := defaultRules()
		rules.Writes = map[string]policy.ClientWrites{"bot": {
			Client: policy.WriteLimits{PerMinute: 10, PerHour: 150}, Tag: policy.WriteLimits{PerMinute: 7},
		}}
		ledgers := make([]*Ledger, 4)
		for i := range ledgers {
			client := d.client(t)
			client.AddHook(tick(new(atomic.Int64)))
			ledgers[i] = open(t, client, fmt.Sprint("r", i), rules, testClock)
			defer func() { _ = ledgers[i].Close() }()
		}
		rng := rand.New(rand.NewPCG(1, 2))
		sent := map[string][]time.Time{}
		for i := range 3600 {
			if i%600 == 599 {
				time.Sleep(10 * time.Minute)
			}
			time.Sleep(time.Duration(rng.IntN(2000)) * time.Millisecond)
			tag := fmt.Sprint("bot/", rng.IntN(2))
			c := limits.Claim{
				ID: uint64(i + 1), Account: "a", Kind: policy.User, Operation: "op", Resource: policy.Core, Points: 1, Client: "bot", Writes: 1, WriteTag: tag,
			}
			l := ledgers[rng.IntN(len(ledgers))]
			if !l.Admit(context.Background(), c).Granted {
				continue
			}
			o := limits.Outcome{Sent: rng.IntN(10) > 0, Answered: true, Ended: true, Rate: policy.Rate{
				Limit: 5000, Used: i % 100, Reset: time.Now().Add(time.Hour), Date: time.Now(), Resource: policy.Core,
			}}
			o.Answered, o.Ended = o.Sent && rng.IntN(20) > 0, o.Sent
			noError(t, l.Settle(context.Background(), limits.Permit{Claim: c}, o))
			if o.Sent {
				sent["bot"], sent[tag] = append(sent["bot"], time.Now()), append(sent[tag], time.Now())
			}
		}
		most := func(name string, window time.Duration) (most int) {
			times := sent[name]
			for first, last := 0, 0; last < len(times); last++ {
				for times[last].Sub(times[first]) >= window {
					first++
				}
				most = max(most, last-first+1)
			}
			return most
		}
		for _, c := range []struct {
			name   string
			window time.Duration
			limit  int
		}{{"bot", time.Minute, 10}, {"bot", time.Hour, 150}, {"bot/0", time.Minute, 7}, {"bot/1", time.Minute, 7}} {
			n := most(c.name, c.window)
			failIf(t, n > c.limit || n < c.limit*9/10, "%s: %d writes in %v; want at most %d, and almost as many", c.name, n, c.window, c.limit)
		}
	})
}
