package limits

const (
	// fullShare is the share of a log without outside use. Shares are in thousandths of a limit. leastShare is the
	// lowest share.
	fullShare, leastShare = 1000, 100
	// A share stays the same for shareHold after an error, so that a constant outside use causes at most one error in
	// this time. Afterwards every shareEvery adds shareStep, a twentieth an hour. The steps are small, so that few
	// requests get the error that ends a recovery.
	shareHold             = 3600 * second
	shareStep, shareEvery = 5, 360 * second
	// maxShares bounds the shares of one account.
	maxShares = 32
)

// share is the part of the limit of one sliding log that Weir uses. Another program seems to use the rest. The upstream
// reports neither points nor content, so Weir learns the share from limit errors: an error lowers the share to
// four fifths of the use at that time, and the time without errors raises it in steps. A share of fullShare marks a log
// whose first error may be a coincidence. Only another error before the next step lowers this share.
type share struct {
	Parts int64 // thousandths of the limit
	Error int64 // time of the last error that changed the share
	Next  int64 // time of the next step
}

// logUse is the use of one sliding log at the time of a limit error.
type logUse struct {
	key                 string
	used, limit, window int64
}

// shared returns the part of a limit that the share of the log allows.
func (c *cooldown) shared(key string, limit int64) int64 {
	if s, ok := c.Shares[key]; ok {
		return min(limit, max(1, limit*s.Parts/fullShare))
	}
	return limit
}

// recover adds the steps that are due to all shares, and removes the shares that are full again.
func (c *cooldown) recover(now int64) {
	for key, s := range c.Shares {
		if now < s.Next {
			continue
		}
		steps := 1 + (now-s.Next)/shareEvery
		s.Parts, s.Next = s.Parts+steps*shareStep, s.Next+steps*shareEvery
		if c.Shares[key] = s; s.Parts >= fullShare {
			delete(c.Shares, key)
		}
	}
}

// learn explains a limit error by the fullest budget of the limited request, and lowers the share of this budget if it
// is one of the given logs. otherUse is the use of the fullest other budget, in thousandths.
//
// Logs that are less than half full do not explain the error. Another budget explains the error if it is at least as
// full as all logs, unless the share of the fullest log is already low: a log with a low share is full at the error that
// ends its recovery, and other budgets may be full, too.
func (c *cooldown) learn(uses []logUse, otherUse, now int64) {
	c.recover(now)
	var log logUse
	highest := int64(fullShare/2 - 1)
	for _, u := range uses {
		if use := u.used * fullShare / c.shared(u.key, u.limit); use > highest {
			log, highest = u, use
		}
	}
	if log.key == "" {
		return
	}
	s, known := c.Shares[log.key]
	lowered := known && s.Parts < fullShare
	switch {
	case lowered && now-s.Error < log.window: // the log contains spends from before the last error
		return
	case !lowered && otherUse >= highest:
		return
	case !known:
		c.setShare(log.key, fullShare, now)
		return
	}
	parts := min(s.Parts, log.used*fullShare/log.limit) * 4 / 5
	c.setShare(log.key, max(leastShare, parts), now)
}

// setShare sets a share after an error.
func (c *cooldown) setShare(key string, parts, now int64) {
	c.putShare(key, share{parts, now, now + shareHold})
}

// putShare stores a share. If the account has too many shares, putShare removes the share with the oldest error.
func (c *cooldown) putShare(key string, s share) {
	if c.Shares == nil {
		c.Shares = map[string]share{}
	}
	if c.Shares[key] = s; len(c.Shares) <= maxShares {
		return
	}
	oldest := ""
	for k, other := range c.Shares {
		if o := c.Shares[oldest]; oldest == "" || other.Error < o.Error || other.Error == o.Error && k < oldest {
			oldest = k
		}
	}
	delete(c.Shares, oldest)
}

// shareOf returns the part of the limit of a spend that Weir uses. The share is at least the cost of one request, because
// a more expensive request could never be sent.
func (a *account) shareOf(s Spend) int64 {
	if len(a.Cooldown.Shares) == 0 {
		return s.Limit
	}
	return max(a.Cooldown.shared(logKey(s.Budget, s.Scope), s.Limit), min(s.Cost, s.Limit))
}

// limitOf returns the limit of a spend. The log of a resource has the limit of its window.
func (a *account) limitOf(s Spend, w *window, r *Rules) int64 {
	if s.Budget == Primary {
		return r.Usable(w.Limit)
	}
	return a.shareOf(s)
}

// learnShares learns from a limit error of a request. Points and content explain the error only if they are fuller than
// CPU time and the concurrency slots, because these budgets have no share: the error lowers the concurrency anyway.
func (a *account) learnShares(c Claim, r *Rules, now int64) {
	use := func(used, limit int64) int64 { return used * fullShare / max(1, limit) }
	otherUse := use(int64(len(a.reservations))+a.others[SlotsBudget], r.Usable(int64(r.Concurrent)))
	var uses []logUse
	for _, s := range r.Spends(c) {
		l := a.Logs[logKey(s.Budget, s.Scope)]
		if l == nil || s.Limit <= 0 {
			continue
		}
		l.expire(now)
		switch used := l.Total + l.held + a.others[logKey(s.Budget, s.Scope)]; s.Budget {
		case Points, Content:
			uses = append(uses, logUse{logKey(s.Budget, s.Scope), used, s.Limit, l.Window})
		case CPU:
			otherUse = max(otherUse, use(used, s.Limit))
		}
	}
	a.changeCooldown(func(s *cooldown) { s.learn(uses, otherUse, now) })
}
