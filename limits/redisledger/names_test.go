package redisledger

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// openFor returns the ledger of a replica for an API.
func (p *pair) openFor(upstream, replica string) *Ledger {
	p.Helper()
	client := p.client(p.T)
	client.AddHook(tick(&p.clockOffset))
	l, err := New(Config{Client: client, Replica: replica, Upstream: upstream, Rules: defaultRules(), Log: slog.New(slog.DiscardHandler)})
	noError(p, err)
	l.scripts, l.timeout, l.flushDelay = newScripts(testClock), time.Minute, 0
	p.heartbeat(l)
	return l
}

// Either gateway is the first one after the loss.
func TestAPIsShareNothingAfterALoss(t *testing.T) {
	for _, first := range []string{"", "other"} {
		t.Run("first: "+first, func(t *testing.T) {
			d := newDatabase(t)
			synctest.Test(t, func(t *testing.T) {
				p := &pair{T: t, database: d}
				apis := map[string]*Ledger{"": p.openFor("", "a"), "other": p.openFor("other", "b")}
				limited, other := apis[""], apis["other"]
				time.Sleep(5 * time.Second)
				c, open := p.mustAdmit(limited, p.claim(1), "at the start"), p.mustAdmit(limited, p.claim(1), "at the start")
				p.settle(limited, c, limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: policy.LimitSecondary, RetryAfter: time.Hour})
				p.mustAdmit(other, p.claim(1), "before the loss")
				noError(t, p.client(t).FlushDB(t.Context()).Err())
				p.heartbeat(apis[first])
				p.settle(limited, open, limits.Outcome{Sent: true, Answered: true, Ended: true}) // before the next heartbeat
				for range 20 {
					p.heartbeat(limited, other)
					time.Sleep(500 * time.Millisecond)
				}
				p.mustAdmit(other, p.claim(1), "after the loss")
				if d := p.decide(limited, p.claim(1)); d.Reason != limits.Cooldown {
					t.Errorf("the limited API: %+v", d)
				}
				for _, l := range apis {
					p.want("replicas of an API", l.Replicas(), 1)
				}
			})
		})
	}
}

// A replica whose wall clock is ahead must not remove the accounts of others.
func TestIndexOfAccountsHasTheTimeOfRedis(t *testing.T) {
	for _, offset := range []time.Duration{-3 * time.Hour, 3 * time.Hour} {
		d := newDatabase(t)
		synctest.Test(t, func(t *testing.T) {
			p := &pair{T: t, database: d}
			p.clockOffset.Store(offset.Microseconds())
			l := p.openFor("", "r1")
			time.Sleep(5 * time.Second)
			p.spend(l, 1, 1, true)
			p.heartbeat(l)
			scores, err := l.Client.ZRangeWithScores(t.Context(), accountsKey, 0, -1).Result()
			stopIf(t, err != nil || len(scores) != 1, "index %v, %v; want an account", scores, err)
			difference := time.Since(time.Unix(int64(scores[0].Score), 0)) + offset
			failIf(t, difference.Abs() > time.Minute, "the index is %v behind the clock of Redis", difference)
		})
	}
}
