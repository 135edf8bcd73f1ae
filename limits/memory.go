package limits

import (
	"context"
	"math"
	"sort"
	"sync"
	"time"

	"github.com/weirgate/weir/policy"
)

const (
	// cooldownDefault is how long a secondary limit error without retry-after
	// silences an account (Document B section 7, retry rule 4).
	cooldownDefault = time.Minute
	// cooldownDoublings bounds the doubling of that rule.
	cooldownDoublings = 6
	// sweepEvery is how many new accounts come between two sweeps of idle ones.
	sweepEvery = 1024
)

// Memory is the ledger of a single replica, in this process's memory. What it
// knows is lost with the process; the next one learns it from the first
// answer of each window, with only a few requests in flight until then.
//
// Accounts are forgotten once nothing of them is in flight and every window
// has ended, so memory is bounded by the accounts used within one window.
type Memory struct {
	mu       sync.Mutex // guards what follows
	limits   policy.Limits
	headroom float64 // fraction of each limit that is kept back
	accounts map[string]*account
	permits  map[uint64]hold
	lastID   uint64
	added    int // accounts since the last sweep
}

// account is the state of one account; guarded by Memory.mu.
type account struct {
	kind         policy.CallerKind
	windows      map[string]*window
	searches     map[string]*spendLog
	blockedUntil time.Time
	episodes     int // secondary errors in a row
}

// hold is a permit in flight.
type hold struct {
	permit Permit
	sent   time.Time
}

// NewMemory returns an empty ledger with these documented limits.
func NewMemory(limits policy.Limits) *Memory {
	return &Memory{limits: limits, accounts: map[string]*account{}, permits: map[uint64]hold{}}
}

// Configure replaces the documented limits, and says which fraction of every
// limit is kept back for users of the account elsewhere. What is known of
// windows that have begun stays.
func (m *Memory) Configure(limits policy.Limits, headroom float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limits, m.headroom = limits, headroom
}

// usable is what headroom leaves of a limit.
func (m *Memory) usable(limit int) int { return limit - int(math.Ceil(float64(limit)*m.headroom)) }

// Admit implements [Ledger]. It never fails.
func (m *Memory) Admit(_ context.Context, claim Claim) (Decision, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.admit(claim, time.Now()), nil
}

func (m *Memory) admit(claim Claim, now time.Time) Decision {
	a := m.account(claim.Account, claim.Kind, now)
	if now.Before(a.blockedUntil) {
		return Decision{Until: a.blockedUntil, Reason: Cooldown}
	}
	w := m.window(a, claim.Resource)
	if ok, until := w.admits(now, m.usable(w.limit)); !ok {
		return Decision{Until: until, Reason: Primary}
	}
	if log := a.searches[claim.Resource]; log != nil {
		limit := policy.Window{Max: m.usable(w.limit), Window: w.documented.Window}
		if ok, until := log.admits(now, limit, w.inFlight); !ok {
			return Decision{Until: until, Reason: Primary}
		}
	}
	w.inFlight++
	m.lastID++
	permit := Permit{ID: m.lastID, Account: claim.Account, Resource: claim.Resource}
	m.permits[permit.ID] = hold{permit, now}
	return Decision{Permit: &permit}
}

// Settle implements [Ledger]. It never fails.
func (m *Memory) Settle(_ context.Context, permit Permit, outcome Outcome) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.settle(permit, outcome, time.Now())
	return nil
}

func (m *Memory) settle(permit Permit, outcome Outcome, now time.Time) {
	h, ok := m.permits[permit.ID]
	if !ok {
		return
	}
	delete(m.permits, permit.ID)
	a := m.accounts[permit.Account]
	guessed := m.window(a, permit.Resource)
	guessed.inFlight--
	if !outcome.Sent {
		return
	}
	if !outcome.Answered {
		guessed.ghosts = append(guessed.ghosts, now)
		m.spendSearch(a, permit.Resource, now)
		return
	}
	resource := permit.Resource
	if outcome.Rate.Resource != "" {
		resource = outcome.Rate.Resource
	}
	counted := m.window(a, resource)
	if outcome.Rate != (Rate{}) {
		counted.learn(outcome.Rate, h.sent, now)
	}
	m.spendSearch(a, resource, now)
	a.heed(outcome, counted, now)
}

func (m *Memory) spendSearch(a *account, resource string, now time.Time) {
	if log := a.searches[resource]; log != nil {
		log.spend(now)
	}
}

// heed follows the retry rules after a limit error (Document B section 7).
func (a *account) heed(outcome Outcome, counted *window, now time.Time) {
	switch outcome.Limited {
	case NotLimited:
		a.episodes = 0
		return
	case PrimaryLimit:
		counted.exhaust(now)
		return
	case SecondaryLimit:
	}
	wait := outcome.RetryAfter
	if wait == 0 && counted.used >= counted.limit && counted.reset.After(now) {
		wait = counted.reset.Add(resetMargin).Sub(now)
	}
	if wait == 0 {
		wait = cooldownDefault << min(a.episodes, cooldownDoublings)
	}
	a.episodes++
	if until := now.Add(wait); until.After(a.blockedUntil) {
		a.blockedUntil = until
	}
}

// Budget implements [Ledger]. It never fails.
func (m *Memory) Budget(_ context.Context, name string, kind policy.CallerKind, resource string) (Budget, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if a := m.accounts[name]; a != nil {
		if w := a.windows[resource]; w != nil {
			return w.budget(resource, a.searches[resource], now), nil
		}
	}
	return newWindow(m.limits.For(kind, resource)).budget(resource, nil, now), nil
}

// budget is what x-ratelimit headers tell: requests in flight are not counted
// yet, as upstream would not have counted them. Search shows the tighter of
// its two windows.
func (w *window) budget(resource string, log *spendLog, now time.Time) Budget {
	w.roll(now)
	used, reset := w.used+len(w.ghosts), w.reset
	if log != nil {
		log.roll(now, w.documented.Window)
		if n := len(log.stamps); n > used {
			used, reset = n, log.stamps[0].Add(w.documented.Window)
		}
	}
	if reset.IsZero() {
		reset = now.Add(w.documented.Window)
	}
	used = min(used, w.limit)
	return Budget{Resource: resource, Limit: w.limit, Used: used, Remaining: w.limit - used, Reset: reset}
}

// Accounts implements [Ledger], ordered by name. It never fails.
func (m *Memory) Accounts(_ context.Context, most int) ([]Account, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	names := make([]string, 0, len(m.accounts))
	for name := range m.accounts {
		names = append(names, name)
	}
	sort.Strings(names)
	list := make([]Account, 0, min(most, len(names)))
	for _, name := range names[:min(most, len(names))] {
		list = append(list, m.accounts[name].describe(name, now))
	}
	return list, nil
}

func (a *account) describe(name string, now time.Time) Account {
	d := Account{Name: name, Kind: a.kind}
	if now.Before(a.blockedUntil) {
		d.BlockedUntil = a.blockedUntil
	}
	for _, resource := range policy.Resources() {
		if w := a.windows[resource]; w != nil {
			d.InFlight += w.inFlight
			d.Budgets = append(d.Budgets, w.budget(resource, a.searches[resource], now))
		}
	}
	return d
}

func (m *Memory) account(name string, kind policy.CallerKind, now time.Time) *account {
	a := m.accounts[name]
	if a == nil {
		m.sweep(now)
		a = &account{kind: kind, windows: map[string]*window{}, searches: map[string]*spendLog{}}
		m.accounts[name] = a
	}
	return a
}

// sweep forgets idle accounts, once in every sweepEvery new ones.
func (m *Memory) sweep(now time.Time) {
	if m.added++; m.added < sweepEvery {
		return
	}
	m.added = 0
	for name, a := range m.accounts {
		if a.idle(now) {
			delete(m.accounts, name)
		}
	}
}

func (a *account) idle(now time.Time) bool {
	if now.Before(a.blockedUntil) {
		return false
	}
	for resource, w := range a.windows {
		if log := a.searches[resource]; log != nil {
			if log.roll(now, w.documented.Window); len(log.stamps) > 0 {
				return false
			}
		}
		if !w.idle(now) {
			return false
		}
	}
	return true
}

// window returns the account's window for a resource. What a resource is
// called comes from the catalogue or the upstream, so their number is bounded:
// a name that is in neither's list counts as core.
func (m *Memory) window(a *account, resource string) *window {
	w := a.windows[resource]
	if w != nil {
		return w
	}
	if !policy.IsResource(resource) {
		resource = policy.Core
		if w = a.windows[resource]; w != nil {
			return w
		}
	}
	w = newWindow(m.limits.For(a.kind, resource))
	a.windows[resource] = w
	if resource == policy.Search || resource == policy.CodeSearch {
		a.searches[resource] = &spendLog{}
	}
	return w
}
