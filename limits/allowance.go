package limits

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

const (
	// fullAllowance is the allowance of a log without outside use. Allowances are in thousandths of a limit. leastAllowance is the
	// lowest allowance.
	fullAllowance, leastAllowance = 1000, 100
	// An allowance stays the same for allowanceHold after an error, so that a constant outside use causes at most one error in
	// this time. Afterwards every allowanceEvery adds allowanceStep, a twentieth an hour. The steps are small, so that few
	// requests get the error that ends a recovery.
	allowanceHold                 = 3600 * second
	allowanceStep, allowanceEvery = 5, 360 * second
	// maxAllowances bounds the allowances of one account.
	maxAllowances = 32
)

// allowance is the part of the limit of one sliding log that Weir uses. Another program seems to use the rest. The upstream
// reports neither points nor content, so Weir learns the allowance from limit errors: an error lowers the allowance to
// four fifths of the use at that time, and the time without errors raises it in steps. An allowance of fullAllowance marks a log
// whose first error may be a coincidence. Only another error before the next step lowers this allowance.
type allowance struct {
	Parts int64 // thousandths of the limit
	Error int64 // time of the last error that changed the allowance
	Next  int64 // time of the next step
}

// logUse is the use of one sliding log at the time of a limit error.
type logUse struct {
	key                 string
	used, limit, window int64
}

// allowed returns the part of a limit that the allowance of the log allows.
func (c *cooldown) allowed(key string, limit int64) int64 {
	if s, ok := c.Allowances[key]; ok {
		return min(limit, max(1, limit*s.Parts/fullAllowance))
	}
	return limit
}

// recover adds the steps that are due to all allowances, and removes the allowances that are full again.
func (c *cooldown) recover(now int64) {
	for key, s := range c.Allowances {
		if now < s.Next {
			continue
		}
		steps := 1 + (now-s.Next)/allowanceEvery
		s.Parts, s.Next = s.Parts+steps*allowanceStep, s.Next+steps*allowanceEvery
		if c.Allowances[key] = s; s.Parts >= fullAllowance {
			delete(c.Allowances, key)
		}
	}
}

// learn explains a limit error by the fullest budget of the limited request, and lowers the allowance of this budget if it
// is one of the given logs. otherUse is the use of the fullest other budget, in thousandths.
//
// Logs that are less than half full do not explain the error. Another budget explains the error if it is at least as
// full as all logs, unless the allowance of the fullest log is already low: a log with a low allowance is full at the error that
// ends its recovery, and other budgets may be full, too.
func (c *cooldown) learn(uses []logUse, otherUse, now int64) {
	c.recover(now)
	var log logUse
	highest := int64(fullAllowance/2 - 1)
	for _, u := range uses {
		if use := u.used * fullAllowance / c.allowed(u.key, u.limit); use > highest {
			log, highest = u, use
		}
	}
	if log.key == "" {
		return
	}
	s, known := c.Allowances[log.key]
	lowered := known && s.Parts < fullAllowance
	switch {
	case lowered && now-s.Error < log.window: // the log contains spends from before the last error
		return
	case !lowered && otherUse >= highest:
		return
	case !known:
		c.setAllowance(log.key, fullAllowance, now)
		return
	}
	parts := min(s.Parts, log.used*fullAllowance/log.limit) * 4 / 5
	c.setAllowance(log.key, max(leastAllowance, parts), now)
}

// setAllowance sets an allowance after an error.
func (c *cooldown) setAllowance(key string, parts, now int64) {
	c.putAllowance(key, allowance{parts, now, now + allowanceHold})
}

// putAllowance stores an allowance. If the account has too many allowances, putAllowance removes the allowance with the oldest error.
func (c *cooldown) putAllowance(key string, s allowance) {
	if c.Allowances == nil {
		c.Allowances = map[string]allowance{}
	}
	if c.Allowances[key] = s; len(c.Allowances) <= maxAllowances {
		return
	}
	delete(c.Allowances, slices.MinFunc(slices.Collect(maps.Keys(c.Allowances)), func(x, y string) int {
		return cmp.Or(cmp.Compare(c.Allowances[x].Error, c.Allowances[y].Error), strings.Compare(x, y))
	}))
}

// limitOf returns the limit of a spend, or its allowance after limit errors. The log of a resource has the limit of its window. The
// allowance is at least the cost of one request, because a more expensive request could never be sent.
func (a *account) limitOf(s *Spend, w *window, r *Rules) int64 {
	switch {
	case s.Budget == Primary:
		return r.Usable(w.Limit)
	case len(a.Cooldown.Allowances) == 0:
		return s.Limit
	}
	return max(a.Cooldown.allowed(logKey(s.Budget, s.Scope), s.Limit), min(s.Cost, s.Limit))
}

// learnAllowances learns from a limit error of a request. Points and content explain the error only if they are fuller than
// CPU time and the concurrency slots, because these budgets have no allowance: the error lowers the concurrency anyway.
func (a *account) learnAllowances(c Claim, r *Rules, now int64) {
	use := func(used, limit int64) int64 { return used * fullAllowance / max(1, limit) }
	otherUse := use(int64(len(a.reservations))+a.others[slotsBudget], r.Usable(int64(r.Concurrent)))
	var uses []logUse
	for _, s := range r.Spends(nil, &c) {
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
