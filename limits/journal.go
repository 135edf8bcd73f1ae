package limits

import (
	"encoding/json"
	"errors"
	"io"
)

// file is a file to which a ledger appends lines, such as an [os.File] that was opened with O_APPEND.
type file interface {
	io.Writer
	Truncate(size int64) error
}

// journal is a file with the lines of a saved ledger.
type journal struct {
	file file
	// size is the number of bytes now, and base after all accounts were written.
	size, base int64
	err        error // of the first line that could not be appended
}

// append appends a line. After an error the journal removes the line break before the missing line, which marks the file as
// incomplete ([Memory.Load]), and gets no further line.
func (j *journal) append(line []byte) {
	if j == nil || j.err != nil {
		return
	}
	if _, err := j.file.Write(line); err != nil {
		j.err = errors.Join(err, j.file.Truncate(max(0, j.size-1)))
		return
	}
	j.size += int64(len(line))
}

// append appends a line to the file, and to the file that will replace it. It writes into the page cache and does not wait for the
// disk. mu must be held.
func (m *Memory) append(l savedLine) {
	if m.journal == nil {
		return
	}
	m.ahead = m.clock.Ahead()
	line := m.encode(l)
	m.journal.append(line)
	m.next.append(line)
}

// encode returns the text of a line. mu must be held.
func (m *Memory) encode(l savedLine) []byte {
	l.At, l.Ahead = m.now(), m.clock.Ahead().Microseconds()
	text, err := json.Marshal(l)
	if err != nil {
		panic(err) // the struct contains only numbers and texts
	}
	return append(text, '\n')
}

// Rotate writes the lines of all accounts to a new file, and appends to it from then on. commit must replace the old file by the new
// one. Until then the ledger appends to both files. After an error it appends only to the old file.
func (m *Memory) Rotate(to file, hashKey []byte, commit func() error) error {
	next := &journal{file: to}
	m.mu.Lock()
	next.append(m.encode(m.firstLine(hashKey)))
	m.next = next
	m.mu.Unlock()
	m.eachAccount(func(a *account) {
		if !m.idle(a) {
			next.append(m.encode(savedLine{Account: a.pessimistic()}))
		}
	})
	m.mu.Lock()
	next.base = next.size
	err := next.err
	m.mu.Unlock()
	if err == nil {
		err = commit()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.next = nil; err == nil {
		m.journal = next
	}
	return err
}

// rotateFrom is the number of appended bytes from which a file is replaced, if they are also more than the file had.
const rotateFrom = 1 << 20

// RotationDue reports whether the file should be replaced, and why lines are missing in it. It also appends a line after a step of the
// wall clock, because the next process calculates the time since the last line.
func (m *Memory) RotationDue() (due bool, missing error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.clock.Ahead() != m.ahead {
		m.append(savedLine{})
	}
	j := m.journal
	return j.err != nil || j.size-j.base > max(rotateFrom, j.base), j.err
}

// A line covers one of aheadParts parts of each window, and aheadCreates requests that create content, beyond the state of the account.
// After an unclean stop they count as spent.
const aheadParts, aheadCreates = 64, 8

func (w *window) aheadTokens() int64 { return max(1, w.Limit/aheadParts) }

// windowKey describes a window in the last line: a bound of the upstream's count, and the values whose change needs a new line.
type windowKey struct{ use, limit, reset, ended int64 }

func (w *window) key() (k windowKey) {
	for _, p := range w.Reports {
		k.use, k.reset = max(k.use, p.use()), max(k.reset, p.Reset)
	}
	return windowKey{k.use + w.inUse + w.Unconfirmed.Total, w.Limit, k.reset, w.ended}
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

// covers reports whether the last line of an account covers its state. resource is that of the changed window.
func (a *account) covers(resource string) bool {
	w := a.Windows[resource]
	if a.exceeded || a.Cooldown.key() != a.covered {
		return false
	}
	if w == nil || a.unlimited(w) {
		return true
	}
	key := w.key()
	above := w.covered.use - key.use
	key.use = w.covered.use
	// A line far above the use contains assumptions that a report has replaced.
	return key == w.covered && w.left >= 0 && 0 <= above && above <= 3*w.aheadTokens()
}

// cover appends a line for an account unless its last line covers its state. mu must be held.
func (m *Memory) cover(a *account, resource string) {
	if m.journal != nil && !a.covers(resource) {
		m.append(savedLine{Account: a.ahead()})
	}
}

// ahead returns the account for a line that covers further tokens.
func (a *account) ahead() *account {
	a.exceeded, a.covered = false, a.Cooldown.key()
	for _, l := range a.Logs {
		l.left = aheadCreates
	}
	for _, w := range a.Windows {
		w.left, w.covered = w.aheadTokens(), w.key()
		w.covered.use += w.left
	}
	return a.pessimistic()
}

// pessimistic returns a copy of an account, for a line. It contains no short logs. The last entries of the long logs and of the windows
// are the tokens in use and those that the last line covers.
func (a *account) pessimistic() *account {
	saved := *a
	saved.Logs, saved.Windows = map[string]*slidingLog{}, map[string]*window{}
	for key, l := range a.Logs {
		if l.isSaved() {
			copied := l.with(a.last, l.held+max(0, l.left))
			saved.Logs[key] = &copied
		}
	}
	for resource, w := range a.Windows {
		copied := *w
		if saved.Windows[resource] = &copied; a.unlimited(w) {
			continue
		}
		further := max(0, w.left)
		copied.Unconfirmed = w.Unconfirmed.with(a.last, w.inUse+further)
		w.covered.use = min(w.covered.use, w.key().use+further) // this line may be in one of two files
		copied.Clients = map[string]*slidingLog{}
		for client, l := range w.Clients { // the times of the requests do not matter before the end of the window
			sum := slidingLog{Budget: l.Budget, Scope: l.Scope, Window: l.Window, Merge: l.Merge}
			sum.spend(a.last, l.Total+l.held)
			copied.Clients[client] = &sum
		}
	}
	return &saved
}

// with returns a copy of a log with a last entry for further tokens, which may be zero.
func (l *slidingLog) with(now, tokens int64) slidingLog {
	c := *l
	c.Entries = append(c.Entries[:len(c.Entries):len(c.Entries)], entry{now, tokens})
	c.Total, c.First = c.Total+tokens, 0
	return c
}

// isSaved reports whether a line contains a log. After an unclean stop, the other logs count as spent.
func (l *slidingLog) isSaved() bool { return isSaved(l.Budget, l.Window) }

func isSaved(budget Reason, window int64) bool {
	return (budget == Content || budget == Writes) && window >= dividedFrom
}
