package limits

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/weirgate/weir/policy"
)

// sweepEvery is how many new accounts come between two sweeps of idle ones.
const sweepEvery = 1024

// Memory is the ledger of a single replica, in this process's memory. What it
// knows is lost with the process unless it is saved ([Memory.Save]); a process
// that does not know what was spent before takes [Rules.ColdStart] for it.
//
// Accounts are forgotten once nothing of them is in flight and every window
// has ended, so memory is bounded by the accounts used within one window.
type Memory struct {
	mu       sync.Mutex // guards what follows
	rules    Rules
	accounts *table
	added    int // accounts since the last sweep
	// begun is when the ledger began to count; cold, whether what was spent
	// before is unknown.
	begun time.Time
	cold  bool
}

// NewMemory returns an empty ledger.
func NewMemory(rules Rules) *Memory {
	return &Memory{rules: rules, accounts: newTable(), begun: time.Now(), cold: true}
}

// Configure replaces the rules. What is known of windows that have begun stays.
func (m *Memory) Configure(rules Rules) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rules = rules
	for p := range m.accounts.all() {
		p.step() // what is shown may be of the rules
	}
}

// now is the ledger's clock: the wall clock at its beginning, going on without
// the steps that a wall clock makes.
func (m *Memory) now() int64 { return m.begun.Add(time.Since(m.begun)).UnixMicro() }

// Admit implements [Ledger]. It never fails.
func (m *Memory) Admit(_ context.Context, claim Claim) (Decision, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	v := m.account(claim.Account, claim.Kind, now).admit(&claim, m.rules.Spends(claim), m, now)
	if !v.refused {
		return Decision{Granted: true}, nil
	}
	d := Decision{Reason: v.reason}
	if v.until != 0 {
		d.Until = time.UnixMicro(v.until)
	}
	return d, nil
}

// Settle implements [Ledger]. It never fails.
func (m *Memory) Settle(_ context.Context, permit Permit, outcome Outcome) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	m.account(permit.Account, permit.Kind, now).settle(&permit, &outcome, &m.rules, now)
	return nil
}

// Release implements [Ledger]. It never fails.
func (m *Memory) Release(_ context.Context, permit Permit, aborted bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.accounts.find(permit.Account); p.account != nil {
		p.step().release(permit.ID, aborted, m.now())
	}
	return nil
}

// Renew implements [Ledger]. It never fails.
func (m *Memory) Renew(_ context.Context, flights []OpenPermit) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	for i := range flights {
		f := &flights[i]
		m.account(f.Account, f.Kind, now).renew(f, m.rules.Spends(f.Claim), m, now)
	}
	return nil
}

// Budget implements [Ledger]. It never fails.
func (m *Memory) Budget(_ context.Context, name string, kind policy.CallerKind, resource string) (Budget, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	p := m.accounts.find(name)
	if p.account == nil {
		b, _ := newAccount(name, kind).budget(resource, &m.rules, now)
		return b, nil
	}
	b, ok := m.accounts.shown(p, resource, now)
	if !ok {
		var until int64
		b, until = p.account.budget(resource, &m.rules, now)
		m.accounts.show(p, b, until)
	}
	return b, nil
}

// Accounts implements [Ledger], ordered by name. It never fails.
func (m *Memory) Accounts(_ context.Context, most int) ([]Account, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	known := slices.Collect(m.accounts.all())
	if len(known) > most { // those that were heard of last
		slices.SortFunc(known, func(p, q *place) int { return cmp.Compare(q.account.last, p.account.last) })
		known = known[:most]
	}
	slices.SortFunc(known, func(p, q *place) int { return cmp.Compare(p.account.name, q.account.name) })
	list := make([]Account, 0, len(known))
	for _, p := range known {
		list = append(list, p.step().describe(&m.rules, now))
	}
	return list, nil
}

// account is one that is about to make a step.
func (m *Memory) account(name string, kind policy.CallerKind, now int64) *account {
	if p := m.accounts.find(name); p.account != nil {
		return p.step()
	}
	m.sweep(now)
	a := newAccount(name, kind)
	m.accounts.add(a)
	return a
}

// sweep forgets idle accounts, once in every sweepEvery new ones.
func (m *Memory) sweep(now int64) {
	if m.added++; m.added < sweepEvery {
		return
	}
	m.added = 0
	m.accounts.forget(func(a *account) bool { return a.idle(now) })
}

// rampSteps is in how many steps a ramp lets the budgets return.
const rampSteps = 16

// prefill enters into a new log what may have been spent before the ledger
// began, as if it had been spent in the window before.
func (m *Memory) prefill(l *spendLog, s *Spend) {
	var spent, steps int64
	switch {
	case !m.cold:
		return
	case m.rules.ColdStart == "strict":
		spent, steps = s.Limit, 1
	case m.rules.ColdStart == "ramp":
		spent, steps = s.Limit-s.Limit/4, rampSteps
	default:
		return
	}
	begun, length := m.begun.UnixMicro(), s.Window.Microseconds()
	for i := range steps {
		l.first = 0 // each step returns on its own
		l.spend(begun-length+length*(i+1)/steps, spent*(i+1)/steps-spent*i/steps)
	}
}
