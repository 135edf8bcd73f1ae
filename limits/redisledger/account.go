package redisledger

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirgate/weir/internal/redisclient"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// localAccount is the state of an account at this replica. The fields are recent writes for a restore, reports of
// responses, permits and leases. Ledger.mu guards all fields.
type localAccount struct {
	name        string
	kind        policy.CallerKind
	used        time.Time // last use by a request
	indexed     time.Time // last entry into the index of accounts
	heartbeat   time.Time // last heartbeat
	confirmed   int64     // number of the last confirmed write (restore.go)
	restores    int       // number of restores of missing writes
	clockOffset int64     // clock of Redis minus local clock, in microseconds
	// cooldownUntil is the end of a cool-down on the clock of Redis.
	cooldownUntil int64
	logs          localLogs
	observed      map[string][]observation // by resource
	budgets       map[string]limits.Budget // by resource, from replies of Redis
	// enforced means that the upstream has reported or enforced a limit.
	enforced bool
	// observedOffline means that an observation has not been sent to Redis.
	observedOffline bool

	batcher redisclient.Batcher[*batchEntry]
	permits map[uint64]*openPermit // by permit ID; the entry for earlier copies of a request is under ^ID
	orphans []settlement           // settlements without an open permit, and returned claims
	leases  map[leaseKey]*offlineLease
	// offline contains the permits that were granted without Redis.
	offline map[uint64]*offlinePermit
	// reconciling forbids offline permits while the spends of the last outage are sent.
	reconciling bool

	flushing bool // a background flush waits for flushDelay
}

// localLog contains the spends of this replica in one sliding log, within the window of the log.
type localLog struct {
	window, merge int64
	entries       []logEntry // sorted by last
}

// logEntry is the sum of the spends between first and last. write is the number of the last write that sent a part of
// these spends to Redis (restore.go), or 0.
type logEntry struct{ first, last, cost, write int64 }

// spend adds a spend. Spends within the merge time share one entry.
func (l *localLog) spend(at, cost, write int64) {
	if cost == 0 {
		return
	}
	if n := len(l.entries); n > 0 {
		if e := &l.entries[n-1]; at-e.first < max(l.merge, 1) {
			e.last, e.cost, e.write = max(at, e.last), e.cost+cost, max(write, e.write)
			return
		}
	}
	l.entries = append(l.entries, logEntry{at, at, cost, write})
}

// total removes expired entries and returns the sum of the remaining entries.
func (l *localLog) total(now int64) (total int64) {
	l.entries = slices.DeleteFunc(l.entries, func(e logEntry) bool { return e.last+l.window <= now })
	for _, e := range l.entries {
		total += e.cost
	}
	return total
}

func (l *localLog) add(other *localLog) {
	for _, e := range other.entries {
		l.spend(e.last, e.cost, 0)
	}
}

// last returns the time of the newest entry, or 0.
func (l *localLog) last() int64 {
	if len(l.entries) == 0 {
		return 0
	}
	return l.entries[len(l.entries)-1].last
}

// localLogs are logs by name.
type localLogs map[string]*localLog

// get returns the log of a name with the given window and merge time, and creates the log if necessary.
func (m localLogs) get(name string, window, merge time.Duration) *localLog {
	own := m[name]
	if own == nil {
		own = &localLog{}
		m[name] = own
	}
	own.window, own.merge = window.Microseconds(), merge.Microseconds()
	return own
}

func (m localLogs) of(s *limits.Spend) *localLog { return m.get(logName(s), s.Window, s.Merge) }

// ofWindow returns a log of requests in a primary window. The log removes a request when the window that counted the
// request has certainly ended.
func (m localLogs) ofWindow(name string, length time.Duration) *localLog {
	return m.get(name, length+sameReset, (length+sameReset)/256)
}

// account returns the local account of a name, and creates the account if necessary.
func (l *Ledger) account(name string, kind policy.CallerKind) *localAccount {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[name]
	if a == nil {
		a = &localAccount{
			name: name, kind: kind, logs: localLogs{}, observed: map[string][]observation{},
			budgets: map[string]limits.Budget{}, permits: map[uint64]*openPermit{},
			leases: map[leaseKey]*offlineLease{}, offline: map[uint64]*offlinePermit{},
		}
		l.accounts[name] = a
	}
	a.used = time.Now()
	return a
}

// title returns the kind and name of the account, as Redis stores both.
func (a *localAccount) title() string { return string(a.kind) + " " + a.name }

// now estimates the clock of Redis.
func (a *localAccount) now() int64 { return time.Now().UnixMicro() + a.clockOffset }

// unconfirmed returns the log of this replica's requests that no response reported.
func (a *localAccount) unconfirmed(res string, r *limits.Rules) *localLog {
	return a.logs.ofWindow("unconfirmed:"+res, r.For(a.kind, res).Window)
}

// settled applies an outcome that Redis has confirmed. write is the number of the confirmed write. Ledger.mu must be
// held.
func (a *localAccount) settled(p limits.Permit, o limits.Outcome, r *limits.Rules, write, now int64, rate rateReply) {
	res := cmp.Or(o.Rate.Resource, p.Resource)
	a.expirePermit(p.ID, r)
	own := a.permits[p.ID]
	settledBefore := own != nil && !own.unsettled()
	b := limits.Budget{
		Resource: res, Limit: rate.Limit, Used: min(rate.Used, rate.Limit), Window: r.For(a.kind, res).Window, Unlimited: rate.Unlimited,
	}
	b.Remaining, b.Reset = b.Limit-b.Used, time.UnixMicro(rate.Reset-a.clockOffset)
	a.budgets[res] = b
	if own.unsettled() {
		at, later := now, now+lingerTime.Microseconds()
		charged := o
		if !o.Answered {
			at, charged.Elapsed = later, max(o.Elapsed, own.elapsed)
		}
		if o.Sent {
			a.spent(p.Claim, charged, r, write, at, later)
		}
		a.applyOutcome(own, o)
	}
	if !settledBefore {
		a.enforce(o)
		a.observe(res, o, b)
	}
}

// enforce ends the unlimited windows of the account if a response shows that the upstream limits the account.
// Ledger.mu must be held.
func (a *localAccount) enforce(o limits.Outcome) {
	if !o.Enforces() {
		return
	}
	a.enforced = true
	for res, b := range a.budgets {
		if b.Unlimited {
			b.Unlimited = false
			a.budgets[res] = b
		}
	}
}

// spendUnconfirmed records requests that no response reported, unless the window is unlimited. Ledger.mu must be held.
func (a *localAccount) spendUnconfirmed(res string, r *limits.Rules, at, requests, write int64) {
	if !a.budgets[res].Unlimited {
		a.unconfirmed(res, r).spend(at, requests, write)
	}
}

// spent records the spends of a request at one time, and the spends of its earlier copies at a later time. Ledger.mu
// must be held.
func (a *localAccount) spent(c limits.Claim, o limits.Outcome, r *limits.Rules, write, at, later int64) {
	copies := int64(o.Resent)
	for _, s := range r.Spends(c) {
		if s.Budget == limits.Primary && a.budgets[c.Resource].Unlimited {
			continue
		}
		log, cost := a.logs.of(&s), s.Cost
		if s.Budget != limits.CPU {
			log.spend(at, cost, write)
			log.spend(later, cost*copies, write)
			continue
		}
		if taken := r.Milliseconds(o.Elapsed); o.Answered || taken > cost {
			cost = taken
		}
		log.spend(at, cost, write)
	}
	switch {
	case !o.Answered:
		a.spendUnconfirmed(c.Resource, r, at, 1, write)
	case o.Rate.Limit == 0:
		a.spendUnconfirmed(cmp.Or(o.Rate.Resource, c.Resource), r, at, 1, write)
	}
	a.spendUnconfirmed(c.Resource, r, later, copies, write)
}

// observation combines the rate headers of the responses about one window. received is the arrival of the response that
// set Date, or of the first response, on the clock of Redis. received is 0 if the reset is assumed after a limit error
// without rate headers.
type observation struct {
	limits.Rate
	received int64
}

const (
	// longestWindow bounds the time until a reset.
	longestWindow = 24 * time.Hour
	// sameReset is the largest difference between two reported resets of one window.
	sameReset = 2 * time.Second
)

// reopens returns the time at which the window has certainly ended, on the clock of Redis (account.lua, reopens).
func (o observation) reopens() int64 {
	end := o.Reset.UnixMicro() + o.late()
	if o.received != 0 {
		end = min(end, o.received+longestWindow.Microseconds())
	}
	return end + sameReset.Microseconds()
}

// late returns an upper bound of the clock of Redis minus the clock of the upstream.
func (o observation) late() int64 {
	if o.Date.IsZero() {
		return 0
	}
	return o.received - o.Date.UnixMicro()
}

// observe records the report of a response about a window, and reports whether the window is open. The two newest
// windows are kept. After a primary limit error the window is exhausted. Without other data, observe then assumes the
// limit and the length of known. Ledger.mu must be held.
func (a *localAccount) observe(res string, o limits.Outcome, known limits.Budget) (open bool) {
	own := observation{o.Rate, a.now()}
	list := a.observed[res]
	if open = o.Rate.Limit != 0 && own.reopens() > own.received; open {
		i := slices.IndexFunc(list, func(old observation) bool { return own.Reset.Sub(old.Reset).Abs() <= sameReset })
		if i >= 0 {
			old := &list[i]
			old.Used, old.Limit = max(old.Used, own.Used), own.Limit // responses arrive in any order
			if own.Reset.After(old.Reset) {
				old.Reset = own.Reset
			}
			if !own.Date.IsZero() && (old.Date.IsZero() || own.late() < old.late()) {
				old.Date, old.received = own.Date, own.received
			}
			old.received = cmp.Or(old.received, own.received)
		} else {
			list = append(list, own)
			slices.SortFunc(list, func(x, y observation) int { return x.Reset.Compare(y.Reset) })
			list = list[max(0, len(list)-2):]
		}
	}
	if o.Limited == limits.PrimaryLimit {
		list = slices.DeleteFunc(list, func(t observation) bool { return t.reopens() <= a.now() })
		if len(list) == 0 {
			list = append(list, observation{limits.Rate{Limit: known.Limit, Reset: time.UnixMicro(a.now()).Add(known.Window)}, 0})
		}
		for i := range list {
			list[i].Used = max(list[i].Used, list[i].Limit)
		}
	}
	if len(list) > 0 {
		a.observed[res] = list
	}
	return open
}

// learn records the report of a response before Redis gets the outcome. The result is true if the response reported an
// open primary window. Ledger.mu must be held.
func (a *localAccount) learn(p limits.Permit, o limits.Outcome, r *limits.Rules) (reported bool) {
	if !o.Answered {
		return false
	}
	a.enforce(o)
	res := cmp.Or(o.Rate.Resource, p.Resource)
	w := r.For(a.kind, res)
	reported = a.observe(res, o, limits.Budget{Limit: cmp.Or(a.budgets[res].Limit, w.Max), Window: w.Window})
	if o.Limited == limits.SecondaryLimit {
		wait := max(o.RetryAfter+time.Second, time.Minute)
		a.cooldownUntil = max(a.cooldownUntil, a.now()+wait.Microseconds())
	}
	return reported
}

// learnOffline records the report of a response that cannot be sent to Redis now. The result is the result of learn.
func (a *localAccount) learnOffline(p limits.Permit, o limits.Outcome, r *limits.Rules) (reported bool) {
	a.observedOffline = a.observedOffline || o.Answered
	return a.learn(p, o, r)
}

// knownBudget returns the budget of a resource from the last reply of Redis and from later responses. Without either
// source, the result is the documented budget and false.
func (l *Ledger) knownBudget(a *localAccount, res string, r *limits.Rules) (limits.Budget, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	b, ok := a.budgets[res]
	ok = ok && b.Reset.After(now)
	if !ok {
		w := r.For(a.kind, res)
		b = limits.Budget{Resource: res, Limit: w.Max, Reset: now.Add(w.Window), Window: w.Window}
	}
	for _, o := range a.observed[res] { // sorted by reset
		late := o.late()
		if late > -sameReset.Microseconds() && late < sameReset.Microseconds() {
			late = 0 // as in account.lua, rate_of
		}
		reset := time.UnixMicro(o.Reset.UnixMicro() + late - a.clockOffset)
		switch difference := reset.Sub(b.Reset); {
		case !reset.After(now):
			continue
		case !ok || difference > sameReset:
			b.Limit, b.Used, b.Reset, ok = o.Limit, o.Used, reset, true
		case difference >= -sameReset:
			b.Used = max(b.Used, o.Used)
		}
	}
	b.Used = min(b.Used, b.Limit)
	b.Remaining = b.Limit - b.Used
	return b, ok
}

const (
	// idleAfter is the time after which an unused local account is removed.
	idleAfter = 10 * time.Minute
	// activeTime is the time after the last claim during which an offline lease is renewed.
	activeTime = time.Minute
)

// forgetIdle removes expired local state and unused local accounts.
func (l *Ledger) forgetIdle() {
	r := l.rules.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, a := range l.accounts {
		a.expirePermits(r)
		now := a.now()
		for log, own := range a.logs {
			if own.total(now) == 0 {
				delete(a.logs, log)
			}
		}
		for res, list := range a.observed {
			list = slices.DeleteFunc(list, func(o observation) bool { return o.reopens() <= now })
			if a.observed[res] = list; len(list) == 0 {
				delete(a.observed, res)
			}
		}
		state := len(a.offline) + len(a.permits) + len(a.logs) + len(a.observed)
		if time.Since(a.used) > idleAfter && state == 0 && a.cooldownUntil <= now {
			delete(l.accounts, name)
		}
	}
}
