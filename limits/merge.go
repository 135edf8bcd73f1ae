package limits

import (
	"cmp"
	"math"
	"slices"
)

// merge adds the state of another account, because the upstream counts both accounts as one. The other account must not
// be used afterwards.
//
// The merged account grants no claim that one of both accounts would refuse. It contains the sum of what both accounts
// spent and hold, which may exceed a limit: the account then grants nothing until enough tokens have returned. Spends
// until coldStart, and those of short windows until an unclean stop, are not real, but assumed for one account, so the larger one counts.
func (a *account) merge(b *account, now, coldStart int64) {
	now = a.advance(max(now, b.last))
	b.advance(now)
	a.Enforced = a.Enforced || b.Enforced
	a.Assumed = max(a.Assumed, b.Assumed)
	logs := map[*slidingLog]*slidingLog{}
	for key, from := range b.Logs {
		into := a.Logs[key]
		if into == nil {
			a.Logs[key] = from
			continue
		}
		assumed := coldStart
		if !into.isSaved() {
			assumed = max(assumed, a.Assumed)
		}
		logs[from] = into
		into.merge(from, now, assumed)
	}
	windows := map[*window]*window{}
	for resource, from := range b.Windows {
		into := a.Windows[resource]
		if into == nil {
			a.Windows[resource] = from
			continue
		}
		windows[from] = into
		into.mergeWindow(from, now, logs)
	}
	for _, v := range b.reservations {
		if into := windows[v.window]; into != nil {
			if v.slowStart == v.window.start() {
				v.slowStart = into.start()
			} else {
				v.slowStart = 0
			}
			v.window = into
		}
		for i, h := range v.holds {
			v.holds[i].log = cmp.Or(logs[h.log], h.log)
		}
		if a.reservations[v.id] == nil {
			a.reservations[v.id] = v
			a.nextExpiry = min(a.nextExpiry, v.expiry)
		} else if !v.charged { // another permit with the same ID
			v.keepSlowStart()
			a.spendUnconfirmed(v.window, now, v.cost)
			a.charge(v, now)
		}
	}
	other := b.Cooldown.clone()
	a.changeCooldown(func(c *cooldown) { c.merge(&other) })
	a.Cooldown.probe = cmp.Or(a.Cooldown.probe, b.Cooldown.probe)
}

// merge adds the spends and the held tokens of another log.
func (l *slidingLog) merge(other *slidingLog, now, assumed int64) {
	l.Window, l.Merge = max(l.Window, other.Window), max(l.Merge, other.Merge)
	l.expire(now)
	other.expire(now)
	all := slices.Concat(l.Entries, other.Entries)
	slices.SortStableFunc(all, func(x, y entry) int { return cmp.Compare(x.At, y.At) })
	l.Entries, l.Total, l.First = nil, 0, 0
	l.held += other.held
	for i := 0; i < len(all); i++ {
		e := all[i]
		if i+1 < len(all) && all[i+1].At == e.At && e.At <= assumed {
			e.Cost = max(e.Cost, all[i+1].Cost)
			i++
		}
		l.spend(e.At, e.Cost)
	}
	if len(l.Entries) > 2*mergeParts { // many logs were merged
		l.compress(l.Window / mergeParts)
	}
	l.First = 0 // the next spend gets a separate entry
	l.pace = max(l.pace, other.pace)
}

// compress combines the entries within a time span. Their tokens return at the time of the last entry.
func (l *slidingLog) compress(span int64) {
	var list []entry
	first := int64(math.MinInt64)
	for _, e := range l.Entries {
		if n := len(list); n > 0 && e.At-first < span {
			list[n-1] = entry{e.At, list[n-1].Cost + e.Cost}
			continue
		}
		list, first = append(list, e), e.At
	}
	l.Entries = list
}

// mergeWindow adds the requests and the reports of another window of the same resource. Where both windows have
// different knowledge, the knowledge that admits fewer requests remains until the next response. logs records the logs of
// the other window that were merged.
func (w *window) mergeWindow(other *window, now int64, logs map[*slidingLog]*slidingLog) {
	w.expire(now)
	other.expire(now)
	for client, from := range other.Clients {
		logs[from] = w.client(client)
		logs[from].merge(from, now, 0)
	}
	w.Unconfirmed.merge(&other.Unconfirmed, now, 0)
	w.Limit = min(w.Limit, other.Limit)
	w.Confirmed = (w.Confirmed || w.slowStarted < slowStartBurst && other.Confirmed) &&
		(other.Confirmed || other.slowStarted < slowStartBurst)
	w.slowStarted, w.lastSlowStart = w.slowStarted+other.slowStarted, max(w.lastSlowStart, other.lastSlowStart)
	w.sentSlowStart = max(w.sentSlowStart, other.sentSlowStart)
	w.withoutHeaders = min(w.withoutHeaders, other.withoutHeaders)
	w.Silent = min(w.Silent, other.Silent)
	if other.LastReset > w.LastReset {
		w.LastReset, w.LastEnd = other.LastReset, other.LastEnd
	}
	w.Opened = max(w.Opened, other.Opened)
	w.inUse += other.inUse
	w.Doubt = cmp.Or(w.Doubt, other.Doubt)
	w.reported += other.reported
	for _, p := range other.Reports {
		i := slices.IndexFunc(w.Reports, p.sameWindow)
		if i < 0 {
			w.Reports = append(w.Reports, p)
			continue
		}
		old := &w.Reports[i]
		old.Reset, old.Used, old.Limit = max(old.Reset, p.Reset), max(old.Used, p.Used), min(old.Limit, p.Limit)
		old.MaxOffset, old.MinOffset = max(old.MaxOffset, p.MaxOffset), min(old.MinOffset, p.MinOffset)
		old.Responses, old.Granted = min(old.Responses, p.Responses), max(old.Granted, p.Granted)
		// Other replicas merge their own counts, and both windows may contain the same foreign ones.
		old.Counts, old.Foreign = old.Counts.plus(p.Counts), old.Foreign.atLeast(p.Foreign)
	}
	w.boundReports()
}

// merge adds the cool-down of another account. The stricter state of both remains.
func (c *cooldown) merge(other *cooldown) {
	c.pause.merge(other.pause)
	c.FailedProbes = max(c.FailedProbes, other.FailedProbes)
	c.Probing = c.Probing || other.Probing
	c.SlowStart, c.Raised = max(c.SlowStart, other.SlowStart), max(c.Raised, other.Raised)
	if c.Ceiling == 0 || other.Ceiling != 0 && other.Ceiling < c.Ceiling {
		c.Ceiling = other.Ceiling
	}
	c.Closed = max(c.Closed, other.Closed)
	c.Content.merge(other.Content)
	for key, s := range other.Allowances {
		if own, ok := c.Allowances[key]; ok {
			s = allowance{min(s.Parts, own.Parts), max(s.Error, own.Error), max(s.Next, own.Next)}
		}
		c.putAllowance(key, s)
	}
}

// Merge adds the part of another account, because the upstream counts both accounts as one. The other part keeps only
// its cool-down, for the replicas that do not know yet that the accounts are one account.
func (p *Part) Merge(from *Part, now int64) {
	p.merge(&from.account, now, 0)
	rest := NewPart(from.Name, from.Kind)
	rest.Cooldown, rest.changes, rest.Enforced = from.Cooldown.clone(), from.changes, from.Enforced
	rest.Cooldown.probe = 0
	rest.least, rest.most, rest.timed = from.least, from.most, from.timed
	*from = *rest
}
