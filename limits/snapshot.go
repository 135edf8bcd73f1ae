package limits

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"
)

// snapshotVersion must change when earlier snapshots become unreadable.
const snapshotVersion = 2

// snapshot is the saved state of a memory ledger. It contains no secret: account names are configured names or keyed
// hashes.
type snapshot struct {
	Version  int
	Taken    time.Time
	Accounts []*account
	Aliases  map[string]alias // by name
}

// Save writes the state of every account for the next process. Permits in use are charged, because this process will
// not receive their outcomes.
func (m *Memory) Save(w io.Writer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	s := snapshot{Version: snapshotVersion, Taken: m.clock.Wall(now), Aliases: m.aliases.saved()}
	for _, a := range m.accounts {
		now := a.advance(now)
		for _, v := range a.reservations {
			v.expiry, a.nextExpiry = now, now
		}
		a.advance(now)
		if !a.idle(now) {
			s.Accounts = append(s.Accounts, a)
		}
	}
	return json.NewEncoder(w).Encode(s)
}

// Load replaces the state with the state that another process saved, so that there is no cold start. Load must be
// called before the first claim. After an error the ledger is unchanged.
func (m *Memory) Load(r io.Reader) error {
	var s snapshot
	if err := json.NewDecoder(r).Decode(&s); err != nil {
		return fmt.Errorf("read saved ledger: %w", err)
	}
	if s.Version != snapshotVersion {
		return fmt.Errorf("read saved ledger: version %d is not supported, want %d", s.Version, snapshotVersion)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.Taken.After(m.clock.wall().Add(time.Second)) {
		return errors.New("read saved ledger: its time is in the future; check the clock")
	}
	accounts := map[string]*account{}
	for _, saved := range s.Accounts {
		a := newAccount(saved.Name, saved.Kind)
		maps.Copy(a.Logs, saved.Logs)
		maps.Copy(a.Windows, saved.Windows)
		a.Cooldown, a.Enforced = saved.Cooldown, saved.Enforced
		accounts[a.Name] = a
	}
	m.accounts, m.cold = accounts, false
	m.aliases.load(s.Aliases)
	return nil
}
