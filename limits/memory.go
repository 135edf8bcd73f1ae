package limits

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/weirgate/weir/policy"
)

// sweepEvery is the number of new accounts after which the ledger removes idle accounts.
const sweepEvery = 1024

// Memory is the ledger of a single replica, in the memory of this process. [Memory.Save] writes the state for the next
// process. The ledger removes an account when the account has no permit in use and all its windows have ended.
type Memory struct {
	mu       sync.Mutex // guards the fields below
	rules    Rules
	accounts map[string]*account
	created  int // accounts since the last removal of idle accounts
	started  time.Time
	cold     bool // the spends before the start are unknown
}

// NewMemory returns an empty ledger.
func NewMemory(rules Rules) *Memory {
	return &Memory{rules: rules, accounts: map[string]*account{}, started: time.Now(), cold: true}
}

// Configure replaces the rules. The state of open windows is kept.
func (m *Memory) Configure(rules Rules) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rules = rules
}

// now returns the ledger's time, which is monotonic.
func (m *Memory) now() int64 { return m.started.Add(time.Since(m.started)).UnixMicro() }

// account returns an account, and creates it if necessary.
func (m *Memory) account(name string, kind policy.CallerKind, now int64) *account {
	if a := m.accounts[name]; a != nil {
		return a
	}
	if m.created++; m.created >= sweepEvery {
		m.created = 0
		maps.DeleteFunc(m.accounts, func(_ string, a *account) bool { return a.idle(now) })
	}
	a := newAccount(name, kind)
	m.accounts[name] = a
	return a
}

// spends returns the spends of a claim. After a cold start, spends also fills the new logs of the account.
func (m *Memory) spends(a *account, c Claim) []Spend {
	spends := m.rules.Spends(c)
	for _, s := range spends {
		if m.cold && a.Logs[logKey(s.Budget, s.Scope)] == nil {
			m.fill(a.log(s), s)
		}
	}
	return spends
}

// rampSteps is the number of steps in which the tokens of a "ramp" return.
const rampSteps = 16

// fill adds the assumed spending before a cold start to a log.
func (m *Memory) fill(l *slidingLog, s Spend) {
	var spent, steps int64
	switch m.rules.ColdStart {
	case "strict":
		spent, steps = s.Limit, 1
	case "ramp":
		spent, steps = s.Limit-s.Limit/4, rampSteps
	}
	started, length := m.started.UnixMicro(), s.Window.Microseconds()
	for i := range steps {
		l.First = 0 // do not merge the steps
		l.spend(started-length+length*(i+1)/steps, spent*(i+1)/steps-spent*i/steps)
	}
}

// Admit implements [Ledger] and never fails.
func (m *Memory) Admit(_ context.Context, claim Claim) (Decision, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	a := m.account(claim.Account, claim.Kind, now)
	return a.admit(&claim, m.spends(a, claim), &m.rules, now), nil
}

// Settle implements [Ledger] and never fails.
func (m *Memory) Settle(_ context.Context, permit Permit, outcome Outcome) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	m.account(permit.Account, permit.Kind, now).settle(&permit, &outcome, &m.rules, now)
	return nil
}

// Release implements [Ledger] and never fails.
func (m *Memory) Release(_ context.Context, permit Permit, aborted bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a := m.accounts[permit.Account]; a != nil {
		a.release(permit.ID, aborted, m.now())
	}
	return nil
}

// Renew implements [Ledger] and never fails.
func (m *Memory) Renew(_ context.Context, permits []OpenPermit) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	for _, p := range permits {
		a := m.account(p.Account, p.Kind, now)
		a.renew(&p, m.spends(a, p.Claim), &m.rules, now)
	}
	return nil
}

// Budget implements [Ledger] and never fails.
func (m *Memory) Budget(_ context.Context, name string, kind policy.CallerKind, resource string) (Budget, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.accounts[name]
	if a == nil {
		a = newAccount(name, kind)
	}
	return a.budget(resource, &m.rules, m.now()), nil
}

// Resources implements [Ledger] and never fails.
func (m *Memory) Resources(_ context.Context, name string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a := m.accounts[name]; a != nil {
		return a.resources(), nil
	}
	return nil, nil
}

// Accounts implements [Ledger] and never fails. The most recently used accounts are returned, ordered by name.
func (m *Memory) Accounts(_ context.Context, most int) ([]Account, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	recent := slices.SortedFunc(maps.Values(m.accounts), func(a, b *account) int { return cmp.Compare(b.last, a.last) })
	recent = recent[:min(most, len(recent))]
	slices.SortFunc(recent, func(a, b *account) int { return cmp.Compare(a.Name, b.Name) })
	list := make([]Account, 0, len(recent))
	for _, a := range recent {
		list = append(list, a.describe(&m.rules, now))
	}
	return list, nil
}
