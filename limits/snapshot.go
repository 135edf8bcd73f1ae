package limits

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/weirgate/weir/policy"
)

// snapshotVersion changes when older snapshots cannot be read any more.
const snapshotVersion = 1

// snapshot is a ledger on its way from one process to the next: what was spent
// and told. Nothing in it is a secret: accounts are names or keyed hashes.
type snapshot struct {
	Version  int            `json:"version"`
	Taken    time.Time      `json:"taken"`
	Accounts []savedAccount `json:"accounts"`
}

type savedAccount struct {
	Name     string            `json:"name"`
	Kind     policy.CallerKind `json:"kind"`
	Logs     []savedLog        `json:"logs"`
	Windows  []savedWindow     `json:"windows"`
	Cooldown savedCooldown     `json:"cooldown"`
}

type savedLog struct {
	Budget Reason `json:"budget"`
	Scope  string `json:"scope"`
	savedSpends
}

// savedSpends is a spendLog; times are microseconds since 1970.
type savedSpends struct {
	Window  int64      `json:"window"`
	Merge   int64      `json:"merge"`
	First   int64      `json:"first"`
	Entries [][2]int64 `json:"entries"` // stamp, cost
}

type savedWindow struct {
	Resource string      `json:"resource"`
	Limit    int64       `json:"limit"`
	Over     int64       `json:"over"`
	Answered bool        `json:"answered"`
	Told     [][6]int64  `json:"told"` // the fields of a fact
	Ghosts   savedSpends `json:"ghosts"`
}

type savedCooldown struct {
	Until    int64 `json:"until"`
	Since    int64 `json:"since"`
	Episodes int64 `json:"episodes"`
	Probing  bool  `json:"probing"`
	Ramp     int64 `json:"ramp"`
	Ceiling  int64 `json:"ceiling"`
	Raised   int64 `json:"raised"`
}

// Save writes what is known of every account, so that the next process does not
// begin without knowing it. Permits that are still in flight are charged: what
// becomes of their requests nobody will tell.
func (m *Memory) Save(w io.Writer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	s := snapshot{Version: snapshotVersion, Taken: time.UnixMicro(now)}
	for p := range m.accounts.all() {
		a := p.step()
		now := a.advance(now)
		for _, l := range a.leases {
			l.expiry = now
		}
		a.expires = now
		a.advance(now)
		if !a.idle(now) {
			s.Accounts = append(s.Accounts, a.save())
		}
	}
	return json.NewEncoder(w).Encode(s)
}

func (a *account) save() savedAccount {
	saved := savedAccount{Name: a.name, Kind: a.kind}
	for _, l := range a.logs {
		saved.Logs = append(saved.Logs, savedLog{l.key.budget, l.key.scope, l.save()})
	}
	for _, w := range a.windows {
		sw := savedWindow{Resource: w.resource, Limit: w.limit, Over: w.over, Answered: w.answered, Ghosts: w.ghosts.save()}
		for _, f := range w.told {
			sw.Told = append(sw.Told, [6]int64{f.reset, f.late, f.early, f.limit, f.used, f.heard})
		}
		saved.Windows = append(saved.Windows, sw)
	}
	c := a.cool
	saved.Cooldown = savedCooldown{c.until, c.since, c.episodes, c.probing, c.ramp, c.ceiling, c.raised}
	return saved
}

func (l *spendLog) save() savedSpends {
	s := savedSpends{Window: l.window, Merge: l.merge, First: l.first}
	for _, e := range l.entries {
		s.Entries = append(s.Entries, [2]int64{e.last, e.cost})
	}
	return s
}

// errFuture refuses a snapshot of a clock that was ahead of this one's.
var errFuture = errors.New("it was taken in the future")

// Load reads what another process has saved. It belongs at the beginning,
// before anything is admitted: from then on nothing is unknown, and there is no
// cold start. On an error the ledger is as it was.
func (m *Memory) Load(r io.Reader) error {
	var s snapshot
	if err := json.NewDecoder(r).Decode(&s); err != nil {
		return fmt.Errorf("the saved ledger cannot be read: %w", err)
	}
	if s.Version != snapshotVersion {
		return fmt.Errorf("the saved ledger is of version %d, not %d", s.Version, snapshotVersion)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.Taken.UnixMicro() > m.now()+margin {
		return fmt.Errorf("the saved ledger cannot be used: %w", errFuture)
	}
	accounts := newTable()
	for _, saved := range s.Accounts {
		accounts.add(saved.load(&m.rules))
	}
	m.accounts, m.cold = accounts, false
	return nil
}

func (s savedAccount) load(r *Rules) *account {
	a := newAccount(s.Name, s.Kind)
	for _, l := range s.Logs {
		log := l.load()
		log.key = logKey{l.Budget, l.Scope}
		a.logs = append(a.logs, &log)
	}
	for _, sw := range s.Windows {
		if !policy.IsResource(sw.Resource) {
			continue
		}
		w := a.window(r, sw.Resource)
		w.limit, w.over, w.answered, w.ghosts = sw.Limit, sw.Over, sw.Answered, sw.Ghosts.load()
		for _, f := range sw.Told {
			w.told = append(w.told, fact{f[0], f[1], f[2], f[3], f[4], f[5]})
		}
	}
	c := s.Cooldown
	a.cool = cooldown{until: c.Until, since: c.Since, episodes: c.Episodes, probing: c.Probing, ramp: c.Ramp, ceiling: c.Ceiling, raised: c.Raised}
	return a
}

func (s savedSpends) load() spendLog {
	l := spendLog{window: s.Window, merge: s.Merge, first: s.First}
	for _, e := range s.Entries {
		l.entries = append(l.entries, entry{e[0], e[1]})
		l.total += e[1]
	}
	return l
}
