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

const (
	// sweepInterval is the interval at which [Memory.Run] removes idle accounts.
	sweepInterval = time.Minute
	// sweptAtOnce bounds the accounts that are handled while Admit waits for the lock.
	sweptAtOnce = 16
	// minShrink is the number of removed accounts from which the map is copied, because a map keeps its memory.
	minShrink = 1024
)

// Memory is the ledger of a single replica, in the memory of this process. [Memory.Save] writes the state for the next
// process. [Memory.Run] removes accounts that have no permit in use and whose windows have all ended.
//
// An account whose responses are all 401 is removed with its last permit. The upstream does not accept the token, so
// there is no account that the upstream charges. Made-up tokens therefore use no memory.
type Memory struct {
	mu       sync.Mutex // guards the fields below
	rules    Rules
	accounts map[string]*account // by canonical name
	aliases  Aliases
	peak     int     // most accounts since accounts was allocated
	spends   []Spend // of the claim that Admit decides
	needs    []Need  // of that claim
	clock    *Clock
	started  int64
	cold     bool // the spends before the start are unknown
	// assumption replaces Rules.ColdStart, unless it is empty.
	assumption string
	// journal is the file of the ledger, and next the file that will replace it; nil without such a file. ahead is that of the last appended line.
	journal, next *journal
	ahead         time.Duration
}

// NewMemory returns an empty ledger.
func NewMemory(rules Rules) *Memory { return newMemoryAt(rules, NewClock()) }

// newMemoryAt returns an empty ledger with a clock.
func newMemoryAt(rules Rules, clock *Clock) *Memory {
	return &Memory{rules: rules, accounts: map[string]*account{}, clock: clock, started: clock.Now(), cold: true}
}

// Run removes idle accounts until ctx ends.
func (m *Memory) Run(ctx context.Context) {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			m.sweep()
		}
	}
}

// sweep removes idle accounts, and returns the memory of the map after many removals.
func (m *Memory) sweep() {
	m.eachAccount(func(a *account) {
		if m.idle(a) {
			delete(m.accounts, a.Name)
		}
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.peak-len(m.accounts) < max(minShrink, 3*len(m.accounts)) {
		return
	}
	fewer := make(map[string]*account, len(m.accounts))
	maps.Copy(fewer, m.accounts)
	m.accounts, m.peak = fewer, len(fewer)
}

// eachAccount calls visit for every account. visit may remove the account. The lock is released after each group of
// sweptAtOnce accounts.
func (m *Memory) eachAccount(visit func(*account)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	visited := 0
	for _, a := range m.accounts {
		visit(a)
		if visited++; visited%sweptAtOnce == 0 {
			m.mu.Unlock()
			m.mu.Lock()
		}
	}
}

// Configure replaces the rules. The state of open windows is kept.
func (m *Memory) Configure(rules Rules) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rules = rules
}

// WriteLimits implements [Ledger].
func (m *Memory) WriteLimits(client string) policy.ClientWrites {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rules.Writes[client]
}

// now returns the ledger's time.
func (m *Memory) now() int64 { return m.clock.Now() }

// Merge implements [Ledger].
func (m *Memory) Merge(from, into string, kind policy.CallerKind) {
	m.mu.Lock()
	defer m.mu.Unlock()
	from, into, merged := m.aliases.Add(from, into, m.now())
	if !merged {
		return
	}
	line := savedLine{Aliases: [][2]string{{from, into}}}
	if b := m.accounts[from]; b != nil {
		a, coldStart := m.account(into, cmp.Or(kind, b.Kind)), int64(0)
		if m.cold {
			coldStart = m.started
		}
		a.merge(b, m.now(), coldStart)
		delete(m.accounts, from)
		a.accepted = true // the upstream has named the account
		line.Account = a.ahead()
	}
	m.append(line)
}

// Canonical implements [Ledger].
func (m *Memory) Canonical(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.canonical(name)
}

// canonical returns the canonical name of an account. mu must be held.
func (m *Memory) canonical(name string) string {
	if m.aliases.list == nil {
		return name // without reading the clock
	}
	return m.aliases.Canonical(name, m.now())
}

// account returns an account, and creates it if necessary.
func (m *Memory) account(name string, kind policy.CallerKind) *account {
	name = m.canonical(name)
	a := m.accounts[name]
	if a == nil {
		a = newAccount(name, kind)
		m.accounts[name] = a
		m.peak = max(m.peak, len(m.accounts))
	}
	return a
}

// fillLogs returns the spends of a claim. After a cold start or an unclean stop, it fills the new logs of the account.
func (m *Memory) fillLogs(a *account, c *Claim) []Spend {
	m.spends = m.rules.Spends(m.spends[:0], c)
	if !m.cold && a.Assumed == 0 {
		return m.spends
	}
	for _, s := range m.spends {
		if a.Logs[logKey(s.Budget, s.Scope)] == nil {
			m.spendAssumed(a, s)
		}
	}
	return m.spends
}

// rampSteps is the number of steps in which the tokens of a "ramp" return.
const rampSteps = 16

// fill adds the assumed spending before a start to a log.
func (m *Memory) fill(a *account, s Spend, started int64, assumption string) {
	var spent, steps int64
	_, l := a.log(&s)
	switch assumption {
	case "strict":
		spent, steps = s.Limit, 1
	case "ramp":
		spent, steps = s.Limit-s.Limit/4, rampSteps
	}
	length := s.Window.Microseconds()
	for i := range steps {
		l.First = 0 // do not merge the steps
		l.spend(started-length+length*(i+1)/steps, spent*(i+1)/steps-spent*i/steps)
	}
	l.First = 0 // real spends have separate entries (merge)
}

// ColdStart describes what the ledger holds back because past spending is unknown, or returns "".
func (m *Memory) ColdStart() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	end := m.spentUntil(m.started)
	if !m.cold || m.now() >= end {
		return ""
	}
	until := m.clock.Wall(end)
	switch m.coldStart() {
	case "strict":
		return "holding back all points and content until " + until.UTC().Format(time.RFC3339)
	case "ramp":
		return "holding back up to three quarters of points and content until " + until.UTC().Format(time.RFC3339)
	}
	return ""
}

// Admit implements [Ledger].
func (m *Memory) Admit(_ context.Context, claim Claim) Decision {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.accounts[m.canonical(claim.Account)] != nil
	a := m.account(claim.Account, claim.Kind)
	repeated := a.reservations[claim.ID] != nil
	now := a.advance(m.now())
	m.needs = a.needs(m.needs[:0], &claim, m.fillLogs(a, &claim), &m.rules, now)
	d := a.admit(&claim, m.needs, &m.rules, now, nil, true)
	switch {
	case !known && !d.Granted:
		delete(m.accounts, a.Name) // a refusal changes nothing
	case d.Granted && !repeated:
		m.cover(a, claim.Resource)
	}
	return d
}

// sharingOf returns the use and the waits of the clients of an account. Of an account that replicas share, only Redis knows them.
func (a *account) sharingOf(c *Claim, n *Need, now int64) sharing {
	if n.Client == "" {
		return sharing{}
	}
	waiting, kept := a.waits, int64(0)
	switch {
	case n.log != nil:
		waiting = n.log.waits
	case n.window != nil:
		waiting, kept = n.window.waits, n.window.unused(n.Guarantees, nil, now)
	}
	used := func(client string) int64 { return a.useBy(client, n.Budget, now) }
	return sharing{n.Share, n.Shares, used(c.Client), kept, waiting.others(c.Client, now, used)}
}

// Settle implements [Ledger] and never fails.
func (m *Memory) Settle(_ context.Context, permit Permit, outcome Outcome) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.account(permit.Account, permit.Kind)
	a.Settle(&permit, &outcome, &m.rules, m.now())
	a.accepted = a.accepted || !outcome.Unauthorized || outcome.Resent > 0
	m.cover(a, cmp.Or(outcome.Rate.Resource, permit.Resource))
	m.removeUnaccepted(a)
	return nil
}

// removeUnaccepted removes an account if the upstream has refused all its requests and no permit is in use.
func (m *Memory) removeUnaccepted(a *account) {
	if !a.accepted && len(a.reservations) == 0 {
		delete(m.accounts, a.Name)
	}
}

// Release implements [Ledger].
func (m *Memory) Release(_ context.Context, permit Permit, aborted bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a := m.accounts[m.canonical(permit.Account)]; a != nil {
		a.Release(permit.ID, aborted, m.now())
		m.removeUnaccepted(a)
	}
}

// Renew implements [Ledger].
func (m *Memory) Renew(permits []OpenPermit) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	for _, p := range permits {
		a := m.account(p.Account, p.Kind)
		m.fillLogs(a, &p.Claim)
		a.Renew(&p, &m.rules, now)
		m.cover(a, p.Resource)
	}
}

// Budget implements [Ledger]. All budgets are known.
func (m *Memory) Budget(caller policy.Caller, resource string) (b Budget, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.accounts[m.canonical(caller.Account)]
	if a == nil {
		a = newAccount(caller.Account, caller.Kind)
	}
	return a.Budget(caller, resource, &m.rules, m.clock), true
}

// Alone implements [Ledger]. No other process uses the ledger.
func (*Memory) Alone(string, string, time.Time) bool { return true }

// Resources implements [Ledger] and never fails.
func (m *Memory) Resources(_ context.Context, name string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a := m.accounts[m.canonical(name)]; a != nil {
		return a.Resources(), nil
	}
	return nil, nil
}

// Open implements [Operator].
func (m *Memory) Open(_ context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.accounts[m.canonical(name)]
	if a == nil {
		return ErrNotClosed
	}
	defer m.cover(a, "")
	a.exceeded = true // an opened window needs a line
	return a.Open(&m.rules, m.now())
}

// Accounts implements [Operator] and never fails. The most recently used accounts are returned, ordered by name. The lock
// is not held while the accounts are sorted.
func (m *Memory) Accounts(_ context.Context, most int) ([]Account, error) {
	type use struct {
		name string
		last int64
	}
	m.mu.Lock()
	known := len(m.accounts)
	m.mu.Unlock()
	recent := make([]use, 0, known) // growing it would take long under the lock
	m.eachAccount(func(a *account) { recent = append(recent, use{a.Name, a.last}) })
	slices.SortFunc(recent, func(a, b use) int { return cmp.Compare(b.last, a.last) })
	recent = recent[:min(most, len(recent))]
	slices.SortFunc(recent, func(a, b use) int { return cmp.Compare(a.name, b.name) })
	list := make([]Account, 0, len(recent))
	for _, u := range recent {
		m.mu.Lock()
		if a := m.accounts[u.name]; a != nil {
			list = append(list, a.Describe(&m.rules, nil, m.clock))
		}
		m.mu.Unlock()
	}
	return list, nil
}
