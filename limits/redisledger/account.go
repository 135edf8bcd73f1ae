package redisledger

import (
	"sync/atomic"
	"time"

	"github.com/weirgate/weir/internal/redisclient"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

const (
	// A lease ends leaseTime after the last round trip with Redis. Its spare tokens end after spareTime (account.lua).
	// forgetTime is the time without calls after which Redis may forget a replica (account.lua). leaseMargin allows for clock
	// drift.
	leaseTime   = 30 * time.Second
	spareTime   = 5 * time.Minute
	forgetTime  = 2 * time.Hour
	leaseMargin = 2 * time.Second
	// renewTime is the time after which a round trip renews the leases, even if nothing has changed.
	renewTime = 5 * time.Second
	// coldParts is the number of replicas that may start without Redis at the same time without exceeding a limit.
	coldParts = 4
	// activeTime is the time after the last claim for which a lease has spare tokens, and after the last use for which an
	// account does not rest.
	activeTime = 30 * time.Second
	// slotTime is the time for which a replica keeps a slot after the end of its permit.
	slotTime = time.Second
	// retryStore is the time after which a claim that was refused with Store may be repeated.
	retryStore = time.Second
)

// Store is the reason of refusals while Redis is lost, and while replicas restore an account.
const Store limits.Reason = "store"

// account is the state of an account at this replica. Ledger.mu guards all fields except batcher.
type account struct {
	name string
	kind policy.CallerKind
	// part applies the rules to the requests of this replica.
	part   *limits.Part
	leases map[string]*lease // by budget
	// saved is the time of the last round trip that Redis saved. All leases end without another round trip.
	saved time.Time

	// confirmed is the number of the last call that Redis saved. If Redis has a lower number, it has lost data, and the
	// next call is full: it contains everything.
	confirmed int64
	full      bool
	// unsure is set after a failed call. Redis may execute the failed call later, unless it saves a later call first.
	unsure bool
	// cooldown and windows are the versions of the cool-down and of the windows that this replica has learned.
	cooldown int64
	windows  map[string]int64
	enforced bool
	// adopted contains the leases of merged accounts that the next round trip declares.
	adopted []adoptedCall
	// touched contains the budgets whose use the next round trip sends.
	touched map[string]bool
	// rests is set when this replica has returned its leases because the account is idle, until the next round trip declares
	// everything again. awake is Ledger.awake, or nil if the ledger does not have the account.
	rests bool
	awake map[*account]bool

	used      time.Time // last use by a request
	indexed   time.Time // last entry into the index of accounts
	heartbeat time.Time // last heartbeat
	flushing  bool      // a background flush waits for flushDelay

	// accepted is set when a response was not 401. The upstream may have no account for a token that it never accepted.
	accepted bool
	// batcher runs one round trip of the account at a time. waiting is the number of callers that wait.
	waiting atomic.Int64
	batcher redisclient.Batcher[*entry]
}

// lease is a number of tokens of one budget that belong to this replica. Tokens in use belong to the lease until they
// return. No other replica can use the tokens before the lease has ended and its last tokens have returned.
type lease struct {
	tokens int64
	// extra tokens of a primary window belong to the lease after the reset.
	extra int64
	// spare is the number of tokens beyond the use that this replica keeps, so that it can continue without Redis.
	// held is the number of spare tokens that it has.
	spare, held int64
	// yield is set while refused claims wait for the budget at any replica.
	yield bool
	// divided is set while the round trips with a claim contain the use of its client.
	divided bool
	// reported and windows are the requests in reports, and the number of windows that had ended, at the last round trip.
	reported, windows int64
	sent              limits.Use // at the last round trip
	// most is the largest number of held slots at the time of a round trip, and mostAt is that time. A later round trip
	// replaces both after slotTime.
	most   int64
	mostAt time.Time
	// cost and limit are those of the last claim, at the time used.
	cost, limit int64
	used        time.Time
}

func newAccount(name string, kind policy.CallerKind) *account {
	return &account{
		name: name, kind: kind, part: limits.NewPart(name, kind), leases: map[string]*lease{},
		windows: map[string]int64{}, touched: map[string]bool{},
	}
}

// title returns the kind and name of the account, as Redis stores both.
func (a *account) title() string { return string(a.kind) + " " + a.name }

// lease returns the lease of a budget, and creates an empty lease if necessary.
func (a *account) lease(budget string, now int64) *lease {
	own := a.leases[budget]
	if own == nil {
		own = &lease{windows: a.part.WindowsEnded(budget, now)}
		a.leases[budget] = own
	}
	if ended := a.part.WindowsEnded(budget, now); ended != own.windows {
		own.tokens, own.extra, own.reported, own.windows = own.tokens+own.extra, 0, 0, ended
	}
	return own
}

// touch adds budgets to the next round trip.
func (a *account) touch(budgets ...string) {
	for _, b := range budgets {
		a.touched[b] = true
	}
	a.wake()
}

// wake makes heartbeats include the account.
func (a *account) wake() {
	if a.awake != nil {
		a.awake[a] = true
	}
}

// admitFromLeases decides a claim without Redis. If the replica has not joined the others since its start, it may use a
// cold-start part of every limit.
func (a *account) admitFromLeases(c limits.Claim, r *limits.Rules, joined bool, now int64) limits.Decision {
	d := a.part.Check(c, r, now)
	if !d.Granted || a.part.Has(c) {
		return d
	}
	if until, probing := a.part.CooldownUntil(); probing { // only Redis can coordinate the probe
		return limits.Decision{Reason: limits.Cooldown, Wait: max(microseconds(until-now), retryStore)}
	}
	needs := a.part.Needs(c, r, now)
	cold := a.saved.IsZero() && !joined
	refused := limits.Decision{Granted: true}
	for _, n := range needs {
		if a.part.IsTemporary(n.Budget) {
			continue
		}
		own, use := a.lease(n.Budget, now), a.part.Use(n.Budget, now)
		tokens := a.tokensWithoutRedis(own)
		if cold {
			tokens = coldTokens(n.Limit, r)
		}
		switch reported := use.Reported - own.reported; {
		case use.Total()+reported+n.Cost <= tokens:
		case reported+n.Cost > tokens: // the lease is too small
			refused = limits.Decision{Reason: Store, Wait: retryStore}
		case refused.Granted || refused.Wait != 0 && microseconds(use.Returns-now) > refused.Wait:
			refused = limits.Decision{Reason: n.Reason}
			switch {
			case use.Returns != 0 && use.Held+reported+n.Cost <= tokens: // Redis may be back earlier
				refused.Wait = min(max(microseconds(use.Returns-now), time.Microsecond), retryStore)
			case use.Held == 0: // unconfirmed requests of a primary window
				refused.Wait = retryStore
			}
		}
	}
	if !refused.Granted {
		return refused
	}
	a.noteClaim(needs, now)
	return a.part.Admit(c, r, now)
}

// noteClaim records the costs and limits of a claim's needs, and adds their budgets to the next round trip.
func (a *account) noteClaim(needs []limits.Need, now int64) {
	for _, n := range needs {
		own := a.lease(n.Budget, now)
		own.cost, own.limit, own.used = n.Cost, n.Limit, time.Now()
		a.touch(n.Budget)
		if n.Client != "" {
			a.touch(n.Client)
		}
		for _, g := range n.Guarantees { // the round trip must know the use of the other clients
			a.touch(g.Budget)
		}
	}
}

// inNextRoundTrip reports whether the next round trip contains a budget. While no claim waits for a budget and at most half of
// it is used, only heartbeats contain what its clients use.
func (a *account) inNextRoundTrip(budget string, now int64) bool {
	whole := a.part.Whole(budget)
	if whole == "" || a.lease(whole, now).divided {
		return true
	}
	a.lease(budget, now) // for the heartbeat
	return false
}

// wantsSpare reports whether a lease should have spare tokens.
func (a *account) wantsSpare(budget string, own *lease) bool {
	_, probing := a.part.CooldownUntil()
	return !probing && time.Since(own.used) < activeTime && !a.part.IsTemporary(budget)
}

// changed reports whether the lease has tokens that Redis does not know as used or spare.
func (a *account) changed(budget string, own *lease, now int64) bool {
	use := a.part.Use(budget, now)
	return use != own.sent || own.tokens > use.Total()+own.spare
}

// spareTokens returns the number of tokens beyond the use that this replica requests for a budget: enough to repeat its
// recent requests without Redis.
func (a *account) spareTokens(budget string, own *lease, r *limits.Rules, now int64) int64 {
	requests := 1 + a.part.RecentPoints(now)
	if a.part.IsWindow(budget) { // reported requests do not return
		requests *= int64(spareTime / r.Points.Window)
	}
	return a.part.Use(budget, now).Total() + own.cost*requests
}

// tokensWithoutRedis returns the tokens of a lease that this replica may use without another round trip.
func (a *account) tokensWithoutRedis(own *lease) int64 {
	switch age := time.Since(a.saved) + leaseMargin; {
	case age < leaseTime:
		return own.tokens
	case age < spareTime:
		return min(own.tokens, own.held)
	}
	return 0
}

// coldTokens returns the tokens of a replica that started without Redis, and does not know the leases of the others.
func coldTokens(limit int64, r *limits.Rules) int64 {
	switch r.ColdStart {
	case "strict":
		return 0
	case "trust":
		return limit
	}
	return limit / coldParts
}

// idle is the only rule of idleness: no request used the account for activeTime, no permit is open, and Redis knows
// everything that this replica knows. The next heartbeat of an idle account returns its leases (roundTrip.rest). Then the
// account rests: it has no lease, costs no call, and its next round trip declares everything again.
func (a *account) idle(now int64) bool {
	return time.Since(a.used) > activeTime && a.part.Use(a.part.SlotsBudget(), now).Held == 0 && a.part.CooldownChanges() == 0 &&
		len(a.touched) == 0 && !a.full && !a.unsure
}

// due reports whether an account that is not idle needs a heartbeat.
func (a *account) due(now int64) bool {
	if a.full || len(a.touched) > 0 || a.part.CooldownChanges() > 0 || len(a.leases) > 0 && time.Since(a.saved) > renewTime {
		return true
	}
	for budget := range a.leases {
		own := a.lease(budget, now)
		if own.spare > 0 || a.wantsSpare(budget, own) || a.changed(budget, own, now) {
			return true
		}
	}
	return false
}

// microseconds returns the duration between two times of a ledger.
func microseconds(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
