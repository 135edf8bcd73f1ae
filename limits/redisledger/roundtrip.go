package redisledger

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/weirgate/weir/internal/redisclient"
	"github.com/weirgate/weir/limits"
)

// A round trip is one call of roundtrip.lua. It sends what this replica uses of each touched budget, its reports and
// changes of the cool-down, and claims. It receives the size of the leases, the reports and the cool-down of the other
// replicas, and the decisions. One round trip of an account runs at a time, so a busy account needs few calls.

const (
	// flushDelay is the time for which an outcome waits for a claim, because both can share one round trip.
	flushDelay = 5 * time.Millisecond
	// batchMax bounds the claims of one round trip, because Redis runs nothing else during a script. waitingMax bounds
	// the entries that wait for a round trip.
	batchMax   = 32
	waitingMax = 1000
)

// entry is one caller that waits for a round trip. If claim is nil, the caller waits for changes to be sent.
type entry struct {
	claim    *limits.Claim
	decision limits.Decision
	// moved means that the account of the claim was merged before the decision.
	moved bool
	// heartbeat renews all leases, and leave returns them. Both are sent even if Redis is lost.
	heartbeat, leave bool
}

// call is the argument of a script on an account: one JSON document.
type call struct {
	TTL     int64  `json:"ttl"` // of the account, in milliseconds
	Account string `json:"account"`
	Replica string `json:"replica"`
	// Process is the run_id of the Redis process for which the call is made.
	Process string `json:"process"`
	// MayBeLost means that a missing account may have been lost.
	MayBeLost bool `json:"may_be_lost"`
	// Relearning is the time for which an account grants nothing after a loss.
	Relearning int64 `json:"relearning"`
	Replicas   int64 `json:"replicas"`
	reach
	// Seq is the number of this call, and Confirmed is the number of the last call that Redis saved. Full means that
	// this replica uses nothing but Budgets.
	Seq       int64 `json:"seq"`
	Confirmed int64 `json:"confirmed"`
	Full      bool  `json:"full"`
	Renew     bool  `json:"renew"` // the leases
	// Enforced means that this replica knows that the upstream limits the account.
	Enforced bool `json:"enforced"`
	// Into is the account into which this replica has merged the account, or empty.
	Into            string                `json:"into,omitempty"`
	Headroom        float64               `json:"headroom"`
	CooldownVersion int64                 `json:"cooldown_version"` // that the replica knows
	CooldownChanged bool                  `json:"cooldown_changed"` // since that version
	Cooldown        *limits.CooldownState `json:"cooldown,omitempty"`
	Windows         []limits.WindowState  `json:"windows,omitempty"`
	Budgets         []budgetCall          `json:"budgets,omitempty"`
	Claims          [][]limits.Need       `json:"claims,omitempty"`
	Left            [][]leftCall          `json:"left,omitempty"`
	Adopted         []adoptedCall         `json:"adopted,omitempty"`
}

// reach bounds the time of Redis at the execution of a call, by the monotonic clock of this replica. Both bounds are zero
// before the first reply.
type reach struct {
	Earliest int64 `json:"earliest"`
	Latest   int64 `json:"latest"`
}

// budgetUse is the use of one budget, with times on the clock of Redis.
type budgetUse struct {
	Budget string `json:"budget"`
	limits.Use
}

// budgetCall contains the use of one budget. Spare is the number of tokens that the replica keeps beyond its use. Ahead
// is the number of spare tokens that it requests.
type budgetCall struct {
	budgetUse
	Spare   int64 `json:"spare"`
	Pending int64 `json:"pending"` // costs of the claims, for which the replica keeps tokens
	Ahead   int64 `json:"ahead"`
	Limit   int64 `json:"limit"`
	// Waits are the clients that this replica has refused without a call.
	Waits []waitCall `json:"waits,omitempty"`
}

// waitCall is a client that waits for a budget. Client is the budget of the client.
type waitCall struct {
	Client string `json:"client"`
	Share  int64  `json:"share"`
	Cost   int64  `json:"cost"`
	Demand int64  `json:"demand"` // at this replica
	Ends   int64  `json:"ends"`
}

// leftCall contains spent tokens that a leaving replica gives back, and the time until they return.
type leftCall struct {
	Budget string `json:"budget"`
	Spent  int64  `json:"spent"`
	Keep   int64  `json:"keep"`
}

// adoptedCall is a lease of another name of the account. Its replica may have ended, so the replica that merges
// the accounts declares its tokens. Keep is the time until they return.
type adoptedCall struct {
	Replica string `json:"replica"` // with the number of a part
	Budget  string `json:"budget"`
	Tokens  int64  `json:"tokens"`
	Keep    int64  `json:"keep"`

	ends int64
}

// reply is the reply of roundtrip.lua.
type reply struct {
	Missing   bool `json:"missing"`   // Redis has lost confirmed calls, and changed nothing
	Overtaken bool `json:"overtaken"` // Redis has executed a later call, and changed nothing
	Saved     bool `json:"saved"`

	Now             int64                 `json:"now,string"`
	Seq             int64                 `json:"seq"`
	Enforced        bool                  `json:"enforced"`
	Into            string                `json:"into"` // the account into which a replica has merged the account, or empty
	CooldownVersion int64                 `json:"cooldown_version"`
	Cooldown        *limits.CooldownState `json:"cooldown"`
	Windows         []limits.WindowState  `json:"windows"`
	Budgets         []budgetReply         `json:"budgets"`
	Claims          []claimReply          `json:"claims"`
}

// budgetReply is the lease of this replica, and the number of tokens of other replicas.
type budgetReply struct {
	Tokens int64 `json:"tokens"`
	Extra  int64 `json:"extra"`
	Spare  int64 `json:"spare"`
	Keep   int64 `json:"keep"`  // spare tokens that the replica should keep
	Yield  bool  `json:"yield"` // claims wait, so the replica should keep no tokens for its own claims
	// Divided means that the division of the budget among several clients matters: claims wait, or more than half of the
	// budget is used.
	Divided bool  `json:"divided"`
	Others  int64 `json:"others"`
}

// claimReply is the decision on a claim. Budget is the refusing budget, or empty if the account is relearning. At is the time at
// which the refusal may end, or 0.
type claimReply struct {
	Granted bool   `json:"granted"`
	Budget  string `json:"budget"`
	// The budget may have tokens. Kept means that they are guaranteed to other clients, and Yielded that other clients wait
	// for them.
	Kept    bool  `json:"kept"`
	Yielded bool  `json:"yielded"`
	At      int64 `json:"at,string"`
}

// roundTrip waits for a round trip that contains the entry. Every round trip ends, because calls have deadlines.
func (l *Ledger) roundTrip(ctx context.Context, a *account, e *entry) error {
	// The end of one context must not cancel a round trip, which contains entries with other contexts.
	ctx = context.WithoutCancel(ctx)
	defer a.waiting.Add(-1)
	if a.waiting.Add(1) > waitingMax {
		return unavailable(errors.New("too many calls wait for a round trip of the account"))
	}
	return a.batcher.Do(e, batchMax, func(entries []*entry) error {
		for range 4 {
			again, err := l.roundTripOnce(ctx, a, entries)
			if err != nil || again == nil {
				return err
			}
			entries = again
		}
		return unavailable(errors.New("the account changed or moved during four round trips"))
	})
}

// roundTripOnce runs roundtrip.lua once. It returns the entries of a further round trip, if Redis has lost data, another server of a
// cluster stores the account, or another replica has changed the cool-down at the same time.
func (l *Ledger) roundTripOnce(ctx context.Context, a *account, entries []*entry) (again []*entry, err error) {
	forced := slices.ContainsFunc(entries, func(e *entry) bool { return e.heartbeat || e.leave })
	if !forced && l.lostFor(ctx, l.keysOf(a.name)[0]) {
		return nil, unavailable(errLost)
	}
	var x *roundTrip
	var answer reply
	err = l.run(ctx, l.scripts.roundTrip, a.name, func(to server) any {
		x = l.prepare(a, entries, to)
		return x.call
	}, &answer)
	if x == nil {
		return nil, err
	}
	if errors.Is(err, errUnreadable) {
		l.Log.Error("replacing an unreadable account in redis by an empty one", "account", a.name, "error", err)
		err = l.run(ctx, l.scripts.repair, a.name, func(server) any { return x.call }, &reply{})
		answer.Missing = true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && answer.Missing {
		l.Log.Warn("redis lost data of the ledger; restoring it", "account", a.name)
		a.full, again = true, entries
	} else if err == nil {
		x.shard.replied(x.sent, l.now(), answer.Now)
		if answer.Into != "" { // the merged account decides about the claims
			l.aliases.AddShared(a.name, answer.Into, l.now())
		}
		again, err = x.apply(&answer)
		if a.awake != nil && a.accepted && (x.call.Full || time.Since(a.indexed) >= indexInterval) {
			l.unindexed[a] = true
		}
		if name := l.canonical(a.name); name != a.name { // the reply may contain reports and a cool-down
			l.merge(a, l.account(name, a.kind))
		}
	}
	if again != nil && forced && !answer.Missing { // the further round trip must not undo a heartbeat or a leave
		again = slices.DeleteFunc(slices.Clone(entries), func(e *entry) bool { return e.claim != nil })
	}
	a.unsure = a.unsure || err != nil
	if err != nil || answer.Missing {
		// Redis may have executed the call, so the leases keep only the tokens that the call kept.
		maps.Copy(a.touched, x.touched)
	}
	if redisclient.Moved(err) {
		return entries, nil
	}
	return again, err
}

// roundTrip is a round trip in progress.
type roundTrip struct {
	*account
	call    call
	rules   *limits.Rules
	now     func() int64
	merged  func() bool // reports whether the account was merged
	sent    int64       // time
	shard   *shard
	rest    bool // the call returns all leases of an idle account
	claims  []*entry
	touched map[string]bool
	ahead   map[string]int64 // requested spare tokens by budget
	changes int              // of the cool-down that the call contains
	adopted int              // leases of merged accounts that the call contains
}

// prepare makes the call. From this moment, the leases have at most the tokens that the call keeps.
func (l *Ledger) prepare(a *account, entries []*entry, to server) *roundTrip {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.rules.Load()
	l.seq++
	now := l.now()
	if kept := min(a.ttl(r), forgetTime.Milliseconds()); a.confirmed > 0 && (time.Since(a.saved)+renewTTL).Milliseconds() >= kept {
		a.confirmed, a.full = 0, true // Redis may have removed the account or this replica, and has lost nothing
	}
	a.full = a.full || a.rests
	merged := func() bool { return l.canonical(a.name) != a.name }
	x := &roundTrip{
		account: a, rules: r, now: l.now, merged: merged, sent: now, shard: to.shard,
		ahead: map[string]int64{}, touched: a.touched,
	}
	x.call = call{
		TTL: a.ttl(r), Account: a.title(), Replica: l.Replica, Process: to.process, reach: to.shard.reach(now), MayBeLost: l.mayBeLost(),
		Relearning: l.relearning().Microseconds(), Replicas: l.replicas.Load(), Seq: l.seq, Confirmed: a.confirmed,
		Enforced: a.enforced || a.part.Enforced, Headroom: r.Headroom, CooldownVersion: a.cooldown,
		Full: a.full, Renew: a.unsure || time.Since(a.saved) > renewTime,
	}
	heartbeat := slices.ContainsFunc(entries, func(e *entry) bool { return e.heartbeat })
	leave := slices.ContainsFunc(entries, func(e *entry) bool { return e.leave })
	x.rest = heartbeat && !leave && a.idle(now) && !slices.ContainsFunc(entries, func(e *entry) bool { return e.claim != nil })
	leave = leave || x.rest
	forced := heartbeat || leave
	for _, e := range entries {
		if e.claim == nil {
			continue
		}
		if e.moved = merged(); e.moved {
			continue
		}
		needs := a.part.Needs(*e.claim, r, now)
		a.noteClaim(needs, now)
		a.touch(a.part.WindowBudget(e.claim.Resource)) // an unlimited window may be limited now
		x.claims, x.call.Claims = append(x.claims, e), append(x.call.Claims, needs)
	}
	if a.full || leave {
		a.touch(a.part.Used(now)...)
	}
	if forced {
		x.touchLeases(leave, now)
	}
	a.touched = map[string]bool{}
	for _, budget := range slices.Sorted(maps.Keys(x.touched)) {
		if forced || a.full || a.inNextRoundTrip(budget, now) {
			x.add(budget)
		}
	}
	pending := map[string]int64{}
	for _, needs := range x.call.Claims {
		for _, n := range needs {
			pending[n.Budget] += n.Cost
		}
	}
	for i := range x.call.Budgets {
		b := &x.call.Budgets[i]
		own := a.leases[b.Budget]
		if !own.yield {
			b.Pending = pending[b.Budget]
		}
		own.tokens = min(own.tokens, b.Spent+b.Held+b.Spare+b.Pending)
		own.held = min(own.held, max(0, b.Spare-pending[b.Budget]))
		if x.rest { // also if the reply is lost
			own.tokens, own.held = 0, 0
		}
	}
	if leave {
		x.leave(now)
	}
	if merged() {
		x.call.Into = l.canonical(a.name)
	}
	x.adopted = len(a.adopted)
	for _, lease := range a.adopted {
		if lease.Keep = lease.ends - now; lease.Keep > 0 {
			x.call.Adopted = append(x.call.Adopted, lease)
		}
	}
	if changes := a.part.CooldownChanges(); a.part.Timed() && (changes > 0 || a.full && a.cooldown > 0) {
		x.call.Cooldown = a.part.CooldownState()
		x.call.CooldownChanged, x.changes = changes > 0, changes
	}
	return x
}

// touchLeases adds the leases to a heartbeat that have changed, and requests spare tokens for recent claims.
func (x *roundTrip) touchLeases(leave bool, now int64) {
	for budget := range x.leases {
		own := x.lease(budget, now)
		if !leave && x.wantsSpare(budget, own) {
			x.ahead[budget] = x.spareTokens(budget, own, x.rules, now)
		} else {
			own.spare = 0
		}
		if leave || x.ahead[budget] > 0 || x.changed(budget, own, now) {
			x.touch(budget)
		}
	}
}

// add adds a budget to the call.
func (x *roundTrip) add(budget string) {
	own, use := x.lease(budget, x.sent), x.part.Use(budget, x.sent)
	// Reported requests have left the lease, because the reported use contains them, even if this call fails.
	own.tokens = max(0, own.tokens-(use.Reported-own.reported))
	own.reported, own.sent = use.Reported, use
	b := budgetCall{
		budgetUse: budgetUse{budget, use}, Limit: own.limit,
		Spare: max(0, min(max(own.spare, x.recentSlots(budget, own, use)), own.tokens-use.Total())), Ahead: x.ahead[budget],
	}
	if x.unsure { // this call may fail too, and the replica needs its tokens without Redis
		b.Spare = max(0, own.tokens-use.Total())
	}
	b.Returns, b.Ends = x.part.ToRedis(use.Returns), x.part.ToRedis(use.Ends)
	if x.part.Timed() {
		x.part.EachWait(budget, x.sent, func(client string, share, cost, demand, ends int64) {
			b.Waits = append(b.Waits, waitCall{client, share, cost, demand, x.part.ToRedis(ends)})
		})
	}
	x.call.Budgets = append(x.call.Budgets, b)
	if !x.part.IsWindow(budget) {
		return
	}
	w := x.part.WindowState(budget, x.sent)
	if w.Version = x.windows[budget]; !x.part.Timed() {
		w.Version = -1
	}
	x.call.Windows = append(x.call.Windows, w)
}

// recentSlots returns the number of slots that were held at the same time within slotTime, less the slots in use. Slots
// are never spent, so without recentSlots a replica would have none when Redis is lost between two requests. While
// another replica needs slots, an equal share is the most.
func (x *roundTrip) recentSlots(budget string, own *lease, use limits.Use) int64 {
	if budget != x.part.SlotsBudget() {
		return 0
	}
	if use.Held >= own.most || time.Since(own.mostAt) > slotTime {
		own.most, own.mostAt = use.Held, time.Now()
	}
	most := own.most
	if own.yield {
		most = min(most, max(1, own.limit/max(1, x.call.Replicas)))
	}
	return most - use.Held
}

// apply records the reply.
func (x *roundTrip) apply(answer *reply) (again []*entry, err error) {
	a, now := x.account, x.now()
	switch {
	case answer.Overtaken:
		return nil, unavailable(errors.New("a later call was faster"))
	case len(answer.Budgets) < len(x.call.Budgets) || len(answer.Windows) != len(x.call.Windows) || len(answer.Claims) != len(x.claims):
		return nil, unavailable(errors.New("incomplete reply"))
	}
	first := !a.part.Timed()
	a.rests = len(x.call.Left) > 0
	a.part.Synchronize(answer.Now, x.sent, now)
	a.full, a.adopted = a.full && !x.call.Full, a.adopted[x.adopted:] // both may have changed during the call
	if answer.Saved {
		a.confirmed, a.unsure = answer.Seq, false
		a.saved = time.Now().Add(-time.Duration(now-x.sent) * time.Microsecond)
	}
	a.enforced = answer.Enforced
	a.part.LearnEnforced(answer.Enforced)
	for i, w := range answer.Windows {
		budget := x.call.Windows[i].Budget
		a.part.LearnWindow(budget, w, x.rules, now)
		a.windows[budget] = w.Version
	}
	if answer.Cooldown != nil {
		a.part.LearnCooldown(answer.Cooldown, now)
		a.cooldown = answer.CooldownVersion
	} else if x.call.Cooldown != nil {
		a.part.CooldownStored(x.changes)
		a.cooldown = answer.CooldownVersion
	}
	for i, b := range x.call.Budgets {
		own := a.leases[b.Budget]
		own.tokens, own.extra, own.held = answer.Budgets[i].Tokens, answer.Budgets[i].Extra, answer.Budgets[i].Spare
		own.yield, own.divided = answer.Budgets[i].Yield, answer.Budgets[i].Divided
		if own.spare = min(own.spare, answer.Budgets[i].Keep); b.Ahead > 0 {
			own.spare = answer.Budgets[i].Keep
		}
		a.part.SetOthers(b.Budget, answer.Budgets[i].Others)
		if own.tokens+own.extra+own.sent.Total()+own.reported == 0 && time.Since(own.used) > activeTime {
			delete(a.leases, b.Budget)
		}
	}
	for i, e := range x.claims {
		if e.moved = x.merged(); e.moved {
			for _, n := range x.call.Claims[i] {
				x.touch(n.Budget) // the next round trip returns the tokens
			}
			continue
		}
		e.decision = x.decide(*e.claim, x.call.Claims[i], answer.Claims[i], now)
	}
	if x.rest {
		clear(a.leases)
	}
	if first && slices.ContainsFunc(x.call.Windows, func(w limits.WindowState) bool { return x.part.HasReports(w.Budget, now) }) { // they were left out
		maps.Copy(a.touched, x.touched)
		again = []*entry{{}}
	}
	if a.part.CooldownChanges() > 0 {
		again = []*entry{{}}
	}
	return again, nil
}

// decide returns the decision on a claim. The rules decide again after Redis has granted tokens, with the reports and
// the cool-down of the other replicas.
func (x *roundTrip) decide(c limits.Claim, needs []limits.Need, answer claimReply, now int64) limits.Decision {
	if answer.Granted {
		d := x.part.Admit(c, x.rules, now)
		for _, n := range needs {
			if d.Granted {
				x.leases[n.Budget].sent.Held += n.Cost // as Redis has recorded
			} else {
				x.touch(n.Budget) // the next round trip returns the tokens
			}
		}
		return d
	}
	if d := x.part.Check(c, x.rules, now); !d.Granted || x.part.Has(c) {
		return d
	}
	d := limits.Decision{Reason: Store}
	if i := slices.IndexFunc(needs, func(n limits.Need) bool { return n.Budget == answer.Budget }); i >= 0 {
		d.Reason, d.Shared = needs[i].Reason, x.part.SharedUse(c, needs, &needs[i], now)
		if answer.Yielded && needs[i].Client != "" {
			d.Reason = limits.ClientBudget
			return d
		}
	}
	switch {
	case answer.Kept && answer.At != 0:
		d.Reason = limits.ClientBudget
	case answer.Kept || d.Reason == limits.ClientBudget:
		d.Reason, d.Wait = limits.ClientBudget, max(microseconds(x.part.RetryAt(c, x.rules, now)-now), time.Microsecond)
		return d
	}
	if answer.At != 0 {
		d.Wait, d.Early = max(microseconds(x.part.FromRedis(answer.At)-now), time.Microsecond), true
	}
	return d
}

// leftParts is the number of steps in which the tokens of a leaving replica return.
const leftParts = 16

// leave returns all leases. It splits the spent tokens by the time at which they return. Redis returns each part at its time,
// and all parts when this replica declares everything again.
func (x *roundTrip) leave(now int64) {
	x.call.Full, x.rests = true, true
	for range leftParts {
		x.call.Left = append(x.call.Left, []leftCall{})
	}
	for i := range x.call.Budgets {
		b := &x.call.Budgets[i]
		b.Reported = 0 // no extra tokens
		if b.Keep == 0 {
			continue
		}
		for at, tokens := range x.part.Returns(b.Budget, now) {
			step := min(leftParts-1, max(0, (at-now)*leftParts/b.Keep))
			b.Spent -= tokens
			part := x.call.Left[step]
			if last := len(part) - 1; last >= 0 && part[last].Budget == b.Budget { // a part has one lease of each budget
				part[last].Spent += tokens
				continue
			}
			x.call.Left[step] = append(part, leftCall{b.Budget, tokens, b.Keep * (step + 1) / leftParts})
		}
	}
}
