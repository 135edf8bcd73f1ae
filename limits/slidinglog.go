package limits

// slidingLog is a budget with a sliding window. A cost is held while its permit is in use, spent when the response
// arrives, and returned one window later.
type slidingLog struct {
	Budget        Reason
	Scope         string
	Window, Merge int64
	// Entries are in the order of their times, and Total is the sum of their costs.
	Entries []entry
	Total   int64
	// First is the time of the first spend of the newest entry.
	First int64
	held  int64
	// left is the number of tokens that the last line of a file still covers.
	left int64
	// key is the key of the log in its account, or "" until a claim uses it.
	key string
	// whole is the key of the log whose tokens this log counts for one client, otherwise "".
	whole string
	// waits contains the clients that wait for tokens. pace is the time at which the next paced claim is due.
	waits waits
	pace  int64
}

// entry contains spends that are close in time. At is the time of the last spend.
type entry struct{ At, Cost int64 }

// expire removes the entries with an ended window.
func (l *slidingLog) expire(now int64) { l.removeUntil(now - l.Window) }

// removeUntil removes the entries until a time, and returns the sum of their costs.
func (l *slidingLog) removeUntil(at int64) (removed int64) {
	n := 0
	for n < len(l.Entries) && l.Entries[n].At <= at {
		removed += l.Entries[n].Cost
		n++
	}
	l.Total -= removed
	l.Entries = append(l.Entries[:0], l.Entries[n:]...)
	return removed
}

// use returns the use of the log. The log of no budget is nil.
func (l *slidingLog) use(now int64) (u Use) {
	if l == nil {
		return u
	}
	l.expire(now)
	u = Use{Spent: l.Total, Held: l.held, Keep: l.Window}
	if n := len(l.Entries); n > 0 {
		u.Returns, u.Ends = l.Entries[0].At+l.Window, l.Entries[n-1].At+l.Window
	}
	return u
}

// freesAt returns the time at which missing tokens return, or zero if the end of a permit in use decides. A claim above the limit
// never fits.
func (l *slidingLog) freesAt(missing int64, above bool, now int64) int64 {
	switch {
	case above:
		return now + l.Window
	case missing > l.held:
		return l.freeAt(missing - l.held)
	}
	return 0
}

// freeAt returns the time when the given amount of spent tokens has returned.
func (l *slidingLog) freeAt(amount int64) int64 {
	for _, e := range l.Entries {
		if amount -= e.Cost; amount <= 0 {
			return e.At + l.Window
		}
	}
	return 0
}

// spend adds a cost. If at is before the last entry, the time of the last entry is used.
func (l *slidingLog) spend(at, cost int64) {
	if cost == 0 {
		return
	}
	l.Total += cost
	if n := len(l.Entries); n > 0 {
		last := &l.Entries[n-1]
		at = max(at, last.At)
		if at-l.First < l.Merge || at == last.At {
			last.At, last.Cost = at, last.Cost+cost
			return
		}
	}
	l.Entries = append(l.Entries, entry{at, cost})
	l.First = at
}

// idle reports whether the log is empty.
func (l *slidingLog) idle(now int64) bool {
	l.expire(now)
	return len(l.Entries) == 0 && l.held == 0
}
