package limits

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// A saved ledger is a sequence of lines. The first line contains what the ledger knows of no single account. Each other line contains
// an account, and the last line of an account counts. [Memory.Rotate] writes a line for each account, and a ledger appends a line before
// an account exceeds what its last line covers (journal.go). [Memory.Save] writes everything, and a last line that marks a clean stop.
//
// After another stop, the budgets with short windows are not in the lines. They count as spent at the time of the start.

// snapshotVersion must change when earlier snapshots become unreadable.
const snapshotVersion = 4

// savedLine is a line of a saved ledger. Account names are configured names or keyed hashes.
type savedLine struct {
	// Version is set in the first line, with the key of the hashes that name accounts, and the start and the assumption of a cold start
	// that still matters.
	Version   int    `json:",omitempty"`
	HashKey   []byte `json:",omitempty"`
	ColdStart string `json:",omitempty"`
	Started   int64  `json:",omitempty"`
	// At is the time of the line on the clock of the ledger. Ahead is the time in microseconds by which the wall clock was ahead.
	At, Ahead int64
	Account   *account    `json:",omitempty"`
	Aliases   [][2]string `json:",omitempty"` // name and other name; the least recently used one is the first
	Clean     bool        `json:",omitempty"` // the last line of a clean stop
}

// Saved describes the saved ledger that [Memory.Load] has loaded.
type Saved struct {
	HashKey []byte
	// Clean means that the process stopped cleanly. Incomplete means that lines are missing, because the disk was full.
	Clean, Incomplete bool
}

// firstLine returns the first line. mu must be held.
func (m *Memory) firstLine(hashKey []byte) savedLine {
	l := savedLine{Version: snapshotVersion, HashKey: hashKey, Aliases: m.aliases.saved()}
	if m.cold && m.now() < m.spentUntil(m.started) {
		l.ColdStart, l.Started = m.coldStart(), m.started
	}
	return l
}

// Save writes the state of every account for the next process, and stops the journal. Permits in use are charged, because this
// process will not receive their outcomes. Their accounts pause, because the upstream may still work on their requests.
func (m *Memory) Save(w io.Writer, hashKey []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.journal = nil
	write := func(l savedLine) error {
		_, err := w.Write(m.encode(l))
		return err
	}
	err := write(m.firstLine(hashKey))
	for _, a := range m.accounts {
		now := a.advance(m.now())
		for _, v := range a.reservations {
			a.Cooldown.Until = max(a.Cooldown.Until, min(v.expiry, now+linger))
			v.expiry, a.nextExpiry = now, now
		}
		a.advance(now)
		if !m.idle(a) {
			err = errors.Join(err, write(savedLine{Account: a}))
		}
	}
	return errors.Join(err, write(savedLine{Clean: true}))
}

// Load replaces the state with the state that another process saved, so that there is no cold start. Load must be called before the
// first claim. After an error the ledger is unchanged.
func (m *Memory) Load(r io.Reader) (s Saved, err error) {
	var first, last savedLine
	accounts, aliases := map[string]*account{}, [][2]string{}
	text := bufio.NewReader(r)
	for n := 1; !s.Incomplete; n++ {
		line, err := text.ReadBytes('\n')
		if errors.Is(err, io.EOF) && n > 1 {
			if !json.Valid(line) { // an incomplete line was not in force
				break
			}
			s.Incomplete, err = true, nil // [journal.append]
		}
		last = savedLine{}
		if err == nil {
			err = json.Unmarshal(line, &last)
		}
		switch {
		case err != nil:
			return Saved{}, fmt.Errorf("read saved ledger: line %d: %w", n, err)
		case n == 1 && last.Version != snapshotVersion:
			return Saved{}, fmt.Errorf("read saved ledger: version %d is not supported, want %d", last.Version, snapshotVersion)
		case n == 1:
			first = last
		}
		for _, alias := range last.Aliases {
			delete(accounts, alias[0])
		}
		aliases = append(aliases, last.Aliases...)
		if a := last.Account; a != nil {
			accounts[a.Name] = a
		}
	}
	s.HashKey, s.Clean = first.HashKey, last.Clean && !s.Incomplete
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	// If the wall clock was set back since, no time has passed.
	passed := max(0, m.clock.wall().Sub(time.UnixMicro(last.At+last.Ahead)).Microseconds())
	later := now - passed - last.At
	m.accounts = map[string]*account{}
	for name, saved := range accounts {
		a := saved.loaded()
		a.shift(later)
		a.Cooldown.bound(now)
		if !s.Clean {
			a.assume(now, &m.rules, s.Incomplete)
		}
		m.accounts[name] = a
	}
	m.aliases = Aliases{}
	for _, alias := range aliases {
		m.aliases.Add(alias[0], alias[1], now) // also a wrong snapshot causes no cycle
	}
	m.cold, m.assumption, m.started = first.ColdStart != "", first.ColdStart, first.Started+later
	if s.Incomplete {
		m.assumeSpent()
	}
	return s, nil
}

// loaded returns a complete account with the saved state.
func (a *account) loaded() *account {
	b := newAccount(a.Name, a.Kind)
	for key, l := range a.Logs {
		if l != nil {
			b.Logs[key] = l
		}
	}
	for resource, w := range a.Windows {
		if w != nil {
			b.Windows[resource] = w
		}
	}
	b.Cooldown, b.Enforced, b.Assumed, b.accepted = a.Cooldown, a.Enforced, a.Assumed, true
	return b
}

// shift adds a time to all times of an account, for another clock.
func (a *account) shift(by int64) {
	for _, l := range a.Logs {
		l.shift(by)
	}
	for _, w := range a.Windows {
		w.Unconfirmed.shift(by)
		for _, l := range w.Clients {
			l.shift(by)
		}
		for i := range w.Reports {
			w.Reports[i].shift(by)
		}
		if w.Doubt != nil {
			w.Doubt.shift(by)
			w.Doubt.Since += by
		}
		for _, t := range []*int64{&w.LastEnd, &w.Opened} {
			if *t != 0 {
				*t += by
			}
		}
	}
	if a.Assumed != 0 {
		a.Assumed += by
	}
	a.Cooldown.shift(by)
}

func (l *slidingLog) shift(by int64) {
	l.First += by
	for i := range l.Entries {
		l.Entries[i].At += by
	}
}

func (p *report) shift(by int64) {
	p.MaxOffset, p.MinOffset = p.MaxOffset+by, p.MinOffset+by
	if p.Granted != 0 {
		p.Granted += by
	}
}

// AssumeSpent makes a ledger without a saved state count everything as spent, as the cold start "strict".
func (m *Memory) AssumeSpent() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.assumeSpent()
}

func (m *Memory) assumeSpent() { m.cold, m.assumption, m.started = true, "strict", m.now() }

// assume counts everything as spent that another process may have spent before its unclean stop. The last entries of its line
// ([account.pessimistic]) may have been spent until now. The upstream may still work on requests of that process. incomplete means that
// the process may have spent more, so only the reports and the cool-down count.
func (a *account) assume(now int64, r *Rules, incomplete bool) {
	for _, l := range a.Logs {
		l.spentBy(now)
	}
	for _, w := range a.Windows {
		if len(w.Reports) == 0 { // otherwise the reset ends these requests
			w.Unconfirmed.spentBy(now)
		}
		w.Confirmed = w.Confirmed && !incomplete
	}
	if incomplete {
		clear(a.Logs)
	}
	a.Assumed = now
	a.Cooldown.Until = max(a.Cooldown.Until, now+min(linger, r.Points.Window.Microseconds()))
}

// spentBy moves the last entry to a later time.
func (l *slidingLog) spentBy(at int64) {
	if n := len(l.Entries); n > 0 {
		l.Entries[n-1].At = max(l.Entries[n-1].At, at)
	}
}

// spendAssumed fills a new log after an unclean stop, or after a cold start.
func (m *Memory) spendAssumed(a *account, s Spend) {
	switch {
	case a.Assumed != 0 && !isSaved(s.Budget, s.Window.Microseconds()):
		m.fill(a, s, a.Assumed, "strict")
	case m.cold && s.Budget != Writes: // a limit of the operator, and not of the upstream
		m.fill(a, s, m.started, m.coldStart())
	}
}

// coldStart returns the assumption about the spending before a cold start.
func (m *Memory) coldStart() string { return cmp.Or(m.assumption, m.rules.ColdStart) }

// spentUntil returns the time at which the spends before a start have returned.
func (m *Memory) spentUntil(start int64) int64 {
	longest := max(m.rules.Points.Window, m.rules.CPU.Window, m.rules.Search.Window)
	for _, w := range m.rules.Content {
		longest = max(longest, w.Window)
	}
	return start + longest.Microseconds()
}

// idle reports whether an account has the state of a new account, and a new account would not count less as spent.
func (m *Memory) idle(a *account) bool {
	now := m.now()
	return a.idle(now) && (a.Assumed == 0 || now >= m.spentUntil(a.Assumed))
}
