package redisledger

import (
	"context"
	"time"

	"github.com/weirgate/weir/policy"
)

// Merge implements [limits.Ledger]. The replica merges its own part of both accounts. The other replicas merge their
// parts when they learn the alias: from their next round trip about the account from, or from [Ledger.ShareAliases]. The next
// round trips return the leases of the account from, and send the use and the cool-down of the merged account.
func (l *Ledger) Merge(from, into string, kind policy.CallerKind) { l.link(from, into, kind, false) }

// Rename is like Merge for names in the configuration: the other replicas learn the alias even if this replica has not used the account
// from, because they may have.
func (l *Ledger) Rename(from, into string, kind policy.CallerKind) { l.link(from, into, kind, true) }

func (l *Ledger) link(from, into string, kind policy.CallerKind, tell bool) {
	l.mu.Lock()
	from, into = l.canonical(from), l.canonical(into)
	source := l.accounts[from]
	if from == into || source == nil && !tell {
		l.aliases.Add(from, into, l.now())
		l.mu.Unlock()
		return
	}
	if source == nil {
		source = newAccount(from, kind)
		source.full = l.forgotten
	}
	l.mu.Unlock()
	ctx := context.Background()
	var leases []adoptedCall
	if !l.lostFor(ctx, l.keysOf(from)[0]) {
		_, leases, _ = l.readFor(ctx, source, into) // without Redis, only the use of this replica is merged
	}
	l.mu.Lock()
	if l.accounts[from] == nil {
		l.add(source)
	}
	source = l.accounts[from]
	_, into, merged := l.aliases.Add(from, into, l.now())
	if !merged { // another call was faster
		l.mu.Unlock()
		return
	}
	if kind == "" {
		kind = source.kind
	}
	target := l.account(into, kind)
	l.merge(source, target)
	target.adopted = append(target.adopted, leases...)
	source.touch(source.part.SlotsBudget()) // Redis learns the alias even if the account is not in use
	l.mu.Unlock()
	for _, a := range []*account{target, source} {
		l.flush(ctx, a)
	}
}

// merge moves the use of a local account to another local account. Ledger.mu must be held.
func (l *Ledger) merge(source, target *account) {
	now := l.now()
	source.touch(source.part.Used(now)...)
	for budget, from := range source.leases {
		source.touch(budget)
		into := target.lease(budget, now)
		if into.limit == 0 {
			into.cost, into.limit = from.cost, from.limit
		}
		if from.used.After(into.used) {
			into.used = from.used
		}
		from.spare, from.used = 0, time.Time{} // the account gets no spare tokens
	}
	for _, resource := range source.part.Resources() {
		target.touch(target.part.WindowBudget(resource)) // Redis learns the reports
	}
	target.part.Merge(source.part, now)
	target.full = true // replaces the leases that another replica has adopted
	target.enforced = target.enforced || source.enforced
	target.touch(target.part.Used(now)...)
}

// Canonical implements [limits.Ledger].
func (l *Ledger) Canonical(name string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.canonical(name)
}

// canonical returns the canonical name of an account. Ledger.mu must be held.
func (l *Ledger) canonical(name string) string { return l.aliases.Canonical(name, l.now()) }
