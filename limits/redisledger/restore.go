package redisledger

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/weirgate/weir/limits"
)

// Write numbers detect lost writes. Redis counts the writes of each replica in the field r:REPLICA of the account.
// Every reply contains the number of the write, which localAccount.confirmed records. Every call contains the confirmed
// number. If Redis has a lower number, writes are missing: the step changes nothing, and the replica restores the
// writes.
//
// Each entry of a local log has the number of its write, so a restore sends only the entries after the number in Redis.
// The restore is one write with the number confirmed + 1. Afterwards, the sent entries get this number (restored).
//
// A reply may arrive after a restore:
//
//	step A is applied as write 7, and its reply is delayed   confirmed 6, Redis 7
//	Redis loses writes 6 and 7                               confirmed 6, Redis 5
//	a heartbeat finds 5 < 6 and restores write 6 as write 7  confirmed 7, Redis 7
//	the reply for A arrives with number 7                    confirmed 8, Redis 7
//
// Number 7 would hide that A is lost. Therefore, if a restore ran during a step, the entries of the step get the number
// confirmed + 1, which Redis does not have yet. The next call finds 7 < 8, and the replica restores A.

// restoreCall is the argument of restore.lua.
type restoreCall struct {
	Have          int64        `json:"have"`
	CooldownUntil int64        `json:"cooldown_until"`
	Logs          []logEntries `json:"logs,omitempty"`
	Windows       []windowCall `json:"windows,omitempty"`
	Permits       []permitCall `json:"permits,omitempty"`
}

type logEntries struct {
	Name    string      `json:"name"`
	Window  int64       `json:"window"`
	Merge   int64       `json:"merge"`
	Entries []entryCall `json:"entries,omitempty"`
}

type entryCall struct {
	At   int64 `json:"at"`
	Cost int64 `json:"cost"`
}

type windowCall struct {
	Resource resource  `json:"resource"`
	Rate     *rateCall `json:"rate,omitempty"`
	Assumed  bool      `json:"assumed"` // no response reported the rate
	Received int64     `json:"received"`
}

// restore repeats all writes of this replica after write number have. If Redis has another number of writes, restore
// changes nothing and returns that number.
func (l *Ledger) restore(ctx context.Context, a *localAccount, have int64) (has int64, err error) {
	r := l.rules.Load()
	var confirmed int64
	answer, err := l.run(ctx, l.scripts.restore, a.name, func(process string) call {
		c := l.call(a, r, process, nil)
		confirmed, c.Step = c.Confirmed, l.localState(a, r, have)
		return c
	}, func(answer reply) {
		if have < confirmed {
			a.restored(have, confirmed, answer.Writes)
		}
	})
	if err != nil || !answer.Missing {
		return have, err
	}
	return answer.Writes, nil
}

// reconcile sends the observations that have not been sent, and restores missing writes.
func (l *Ledger) reconcile(ctx context.Context, a *localAccount) error {
	l.mu.Lock()
	confirmed, observed := a.confirmed, a.observedOffline
	a.observedOffline = false
	l.mu.Unlock()
	has, err := l.restore(ctx, a, confirmed)
	if err == nil && has < confirmed {
		l.Log.Warn(lostWrites, "account", a.name)
		_, err = l.restore(ctx, a, has)
	}
	if observed && (err != nil || has > confirmed) {
		l.mu.Lock()
		a.observedOffline = true
		l.mu.Unlock()
	}
	return err
}

// restored changes the write numbers of entries after a restore. Entries after the number have get the number of the
// restore. Entries that were written during the restore are still missing, and get the next number. Ledger.mu must be
// held.
func (a *localAccount) restored(have, confirmed, write int64) {
	a.restores++
	a.confirmed = max(a.confirmed, write)
	for _, own := range a.logs {
		for i := range own.entries {
			switch e := &own.entries[i]; {
			case e.write > confirmed:
				e.write, a.confirmed = write+1, write+1
			case e.write > have:
				e.write = write
			}
		}
	}
}

// localState returns the writes of this replica after write number have, its observations and its permits.
func (l *Ledger) localState(a *localAccount, r *limits.Rules, have int64) restoreCall {
	l.mu.Lock()
	defer l.mu.Unlock()
	args := restoreCall{Have: have, CooldownUntil: a.cooldownUntil, Permits: l.permitCalls(a, r)}
	now := a.now()
	for name, own := range a.logs {
		if own.total(now) == 0 {
			delete(a.logs, name)
			continue
		}
		log := logEntries{Name: name, Window: own.window, Merge: own.merge}
		for _, e := range own.entries {
			if e.write > have {
				log.Entries = append(log.Entries, entryCall{e.last, e.cost})
			}
		}
		args.Logs = append(args.Logs, log)
		if budget, res, _ := strings.Cut(name, ":"); budget == "unconfirmed" || budget == string(limits.Primary) {
			args.Windows = append(args.Windows, windowCall{Resource: resourceOf(r, a.kind, res)})
		}
	}
	for res, list := range a.observed {
		// Assumed windows go first, because they must not replace windows that a response reported.
		list = slices.SortedStableFunc(slices.Values(list), func(x, y observation) int {
			return cmp.Compare(min(x.received, 1), min(y.received, 1))
		})
		for _, o := range list {
			window := windowCall{resourceOf(r, a.kind, res), rateCallOf(o.Rate), o.received == 0, o.received}
			args.Windows = append(args.Windows, window)
		}
	}
	return args
}
