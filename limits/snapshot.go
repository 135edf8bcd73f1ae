package limits

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// A saved ledger is a sequence of lines. [Memory.Dump] writes a line for each account, and [Memory.Journal] appends a line
// before the account exceeds what its last line covers. The last line of an account counts. It contains the reports of the
// windows, the cool-down, and an upper bound of what the account spends in long windows until its next line. [Memory.Save]
// writes everything, and a last line that marks a clean stop.
//
// After another stop, the budgets with short windows are not in the lines. They count as spent at the time of the start.

// snapshotVersion must change when earlier snapshots become unreadable.
const snapshotVersion = 3

// savedLine is a line of a saved ledger. It contains no secret: account names are configured names or keyed hashes.
type savedLine struct {
	Version int `json:",omitempty"` // of the first line
	// At is the time of the line on the clock of the ledger. Ahead is the time in microseconds by which the wall clock was ahead.
	At, Ahead int64
	Account   *account `json:",omitempty"`
	// Use contains upper bounds of the tokens by budget that the line of the account does not contain: permits in use, and what may
	// be spent before the next line. A line with More, the name of an account, has new bounds.
	Use     map[string]int64 `json:",omitempty"`
	More    string           `json:",omitempty"`
	Aliases map[string]alias `json:",omitempty"`
	Clean   bool             `json:",omitempty"` // the last line of a clean stop
}

// coverage is what the last line of an account covers.
type coverage struct {
	use      map[string]int64 // as in the last line
	windows  map[*window]windowCoverage
	creates  int64 // further requests that create content
	cooldown cooldownKey
}

// windowCoverage is what the last line of an account covers of one window: further costs, and a use of the open window, of which
// the line of the account contains base. Another limit, reset or window needs a new line.
type windowCoverage struct{ left, use, base, limit, reset, ended int64 }

// One of aheadParts parts of a window, and aheadCreates requests that create content, may be spent without a new line. After an
// unclean stop they count as spent.
const aheadParts, aheadCreates = 64, 8

// use returns an upper bound of the upstream's count, and the newest reset.
func (w *window) use() (use, reset int64) {
	for _, p := range w.Reports {
		use, reset = max(use, p.use()), max(reset, p.Reset)
	}
	return use + w.inUse + w.Unconfirmed.Total, reset
}

// cooldownKey has the fields of a cool-down whose change needs a new line.
type cooldownKey [8]int64

func (c *cooldown) key() cooldownKey {
	probing := int64(0)
	if c.Probing {
		probing = 1
	}
	return cooldownKey{c.Until, c.Errors, probing, c.Ceiling, c.FailedProbes, c.Closed, c.Content.Until, c.Content.Errors}
}

// Journal appends changes to w from now on. Errors of w are ignored: w reports them itself.
func (m *Memory) Journal(w io.Writer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.journal = w
}

// covered appends a line for an account unless its last line covers its state. granted is a claim that was just granted, or nil.
// resource is that of the changed window. mu must be held.
func (m *Memory) covered(a *account, granted *Claim, resource string) {
	if m.journal == nil {
		return
	}
	c, w := a.coverage, a.Windows[resource]
	same, more := c != nil && c.cooldown == a.Cooldown.key(), false
	if same && w != nil && !a.unlimited(w) {
		use, reset := w.use()
		known, ahead := c.windows[w], aheadOf(w.Limit)
		// A line far above the use contains assumptions that a report has replaced.
		same = w.Limit == known.limit && reset == known.reset && w.ended == known.ended && known.use-use <= 3*ahead
		if granted != nil {
			known.left -= granted.cost()
		}
		if more = known.left < 0 || use > known.use; more {
			key := windowPrefix + resource
			further := ahead - min(0, known.left)
			c.use[key] = max(c.use[key]+further, use-known.base+ahead)
			known.left, known.use = known.left+further, known.base+c.use[key]
		}
		c.windows[w] = known
	}
	if same && granted != nil && granted.CreatesContent {
		if c.creates--; c.creates < 0 {
			c.creates, more = c.creates+aheadCreates, true
			for key, l := range a.Logs {
				if l.Budget == Content && l.isLong() {
					c.use[key] += aheadCreates
				}
			}
		}
	}
	switch {
	case !same:
		_ = m.writeAccount(m.journal, a)
	case more:
		_ = m.writeLine(m.journal, savedLine{More: a.Name, Use: c.use})
	}
}

// aheadOf returns the costs that may be spent in a window without a new line.
func aheadOf(limit int64) int64 { return max(1, limit/aheadParts) }

// writeAccount writes the line of an account without its short windows, and covers further requests. mu must be held.
func (m *Memory) writeAccount(w io.Writer, a *account) error {
	c := &coverage{map[string]int64{}, map[*window]windowCoverage{}, aheadCreates, a.Cooldown.key()}
	for resource, w := range a.Windows {
		if a.unlimited(w) {
			continue
		}
		ahead := aheadOf(w.Limit)
		count, reset := w.use()
		c.use[windowPrefix+resource] = w.inUse + ahead
		c.windows[w] = windowCoverage{ahead, count + ahead, count - w.inUse, w.Limit, reset, w.ended}
	}
	saved := *a
	saved.Logs = map[string]*slidingLog{}
	for key, l := range a.Logs {
		if l.Budget == Content && l.isLong() {
			saved.Logs[key] = l
			c.use[key] = l.held + aheadCreates
		}
	}
	a.coverage = c
	return m.writeLine(w, savedLine{Account: &saved, Use: c.use})
}

func (m *Memory) writeLine(w io.Writer, l savedLine) error {
	l.At, l.Ahead = m.now(), m.clock.Ahead().Microseconds()
	return json.NewEncoder(w).Encode(l)
}

// writeStart writes the first line. mu must be held.
func (m *Memory) writeStart(w io.Writer) error {
	return m.writeLine(w, savedLine{Version: snapshotVersion, Aliases: m.aliases.saved()})
}

// Dump writes the lines of all accounts. w must also get the lines that are appended during the call ([Memory.Journal]).
func (m *Memory) Dump(w io.Writer) error {
	m.mu.Lock()
	err := m.writeStart(w)
	m.mu.Unlock()
	m.eachAccount(func(a *account) {
		if !a.idle(m.now()) {
			err = errors.Join(err, m.writeAccount(w, a))
		}
	})
	return err
}

// Save writes the state of every account for the next process, and stops the journal. Permits in use are charged, because this
// process will not receive their outcomes.
func (m *Memory) Save(w io.Writer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.journal = nil
	err := m.writeStart(w)
	for _, a := range m.accounts {
		now := a.advance(m.now())
		for _, v := range a.reservations {
			v.expiry, a.nextExpiry = now, now
		}
		a.advance(now)
		if !a.idle(now) {
			err = errors.Join(err, m.writeLine(w, savedLine{Account: a}))
		}
	}
	return errors.Join(err, m.writeLine(w, savedLine{Clean: true}))
}

// Load replaces the state with the state that another process saved, so that there is no cold start. clean is false if that
// process had no clean stop. Load must be called before the first claim. After an error the ledger is unchanged.
func (m *Memory) Load(r io.Reader) (clean bool, err error) {
	var last savedLine
	lines, aliases := map[string]savedLine{}, map[string]alias{}
	text := bufio.NewReader(r)
	for n := 1; ; n++ {
		one, err := text.ReadBytes('\n')
		if errors.Is(err, io.EOF) && n > 1 { // an incomplete last line was not in force
			break
		}
		var l savedLine
		if err == nil {
			err = json.Unmarshal(one, &l)
		}
		switch {
		case err != nil:
			return false, fmt.Errorf("read saved ledger: line %d: %w", n, err)
		case n == 1 && l.Version != snapshotVersion:
			return false, fmt.Errorf("read saved ledger: version %d is not supported, want %d", l.Version, snapshotVersion)
		}
		last, clean = l, l.Clean
		for name, a := range l.Aliases {
			aliases[name] = a
			delete(lines, name)
		}
		if l.Account != nil {
			lines[l.Account.Name] = l
		} else if known, ok := lines[l.More]; ok {
			known.Use = l.Use
			lines[l.More] = known
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	// If the wall clock was set back since, no time has passed.
	passed := max(0, m.clock.wall().Sub(time.UnixMicro(last.At+last.Ahead)).Microseconds())
	later := now - passed - last.At
	accounts := map[string]*account{}
	for name, l := range lines {
		a := newAccount(name, l.Account.Kind)
		for key, log := range l.Account.Logs {
			if log != nil {
				a.Logs[key] = log
			}
		}
		for resource, w := range l.Account.Windows {
			if w != nil {
				a.Windows[resource] = w
			}
		}
		a.Cooldown, a.Enforced, a.Assumed = l.Account.Cooldown, l.Account.Enforced, l.Account.Assumed
		a.shift(later)
		if a.Cooldown.bound(now); !clean {
			a.assume(l.Use, l.At+later, now, &m.rules)
		}
		accounts[name] = a
	}
	m.accounts, m.cold = accounts, false
	m.aliases.load(aliases)
	return clean, nil
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
	m.assumption = "strict"
}

// isLong reports whether a log has a long window. After an unclean stop, the other logs count as spent.
func (l *slidingLog) isLong() bool { return l.Window >= dividedFrom }

// assume counts everything as spent that another process may have spent before its unclean stop. at is the time of the last
// line of the account, and use the tokens that this line covers. The upstream may still work on requests of that process.
func (a *account) assume(use map[string]int64, at, now int64, r *Rules) {
	for budget, tokens := range use {
		resource, _ := strings.CutPrefix(budget, windowPrefix)
		switch w, l := a.Windows[resource], a.Logs[budget]; {
		case l != nil:
			l.First = 0
			l.spend(now, tokens)
		case w == nil:
		case len(w.Reports) > 0: // the reset ends these requests
			w.Unconfirmed.spend(at, tokens)
		default:
			tokens += w.Unconfirmed.Total
			w.Unconfirmed.Entries, w.Unconfirmed.Total, w.Unconfirmed.First, w.Confirmed = nil, 0, 0, false
			w.Unconfirmed.spend(now, tokens)
		}
	}
	a.Assumed = now
	a.Cooldown.Until = max(a.Cooldown.Until, now+min(linger, r.Points.Window.Microseconds()))
}

// spendAssumed fills a new log after an unclean stop, or after a cold start.
func (m *Memory) spendAssumed(a *account, s Spend) {
	switch {
	case m.cold:
		m.fill(a.log(s), s, m.started, m.coldStart())
	case a.Assumed != 0 && s.Window.Microseconds() < dividedFrom:
		m.fill(a.log(s), s, a.Assumed, "strict")
	}
}

// coldStart returns the assumption about the spending before a cold start.
func (m *Memory) coldStart() string { return cmp.Or(m.assumption, m.rules.ColdStart) }

// assumed returns the time until which spends may be those of an assumption.
func (m *Memory) assumed(a, b *account) int64 {
	if m.cold {
		return m.started
	}
	return cmp.Or(a.Assumed, b.Assumed)
}
