package limitstest

import (
	"slices"

	"github.com/weirgate/weir/limits"
)

// outsideShare is what the model knows about the use of one budget by other programs.
type outsideShare struct {
	log       *slidingLog
	allowed   int64 // thousandths of the limit that Weir may use
	suspected bool  // after one error: allowed is the whole limit
	errorAt   int64 // time of the error that set allowed
	growsAt   int64 // time at which allowed grows
}

// share returns the share of a log, or nil.
func (m *model) share(l *slidingLog) *outsideShare {
	for _, s := range m.shares {
		if s.log == l {
			return s
		}
	}
	return nil
}

// allowed returns the part of a limit that Weir may use: at least one.
func (m *model) allowed(l *slidingLog, limit int64) int64 {
	s := m.share(l)
	if s == nil || s.suspected || limit < 1 {
		return limit
	}
	return max(1, s.allowed*limit/1000)
}

// growShares lets all shares grow by half a percent for every six minutes that have passed. The first growth is an hour
// after the error.
func (m *model) growShares(now int64) {
	for _, s := range m.shares {
		for ; s.growsAt <= now; s.growsAt += 360 * sec {
			s.allowed += 5
		}
	}
	m.shares = slices.DeleteFunc(m.shares, func(s *outsideShare) bool { return s.allowed >= 1000 && s.errorAt+3600*sec <= now })
}

// learnShare finds the fullest budget of a request that got a limit error. If this budget counts points or content, its
// share becomes four fifths of its use.
func (m *model) learnShare(c limits.Claim, now int64) {
	m.growShares(now)
	var fullest *slidingLog
	var limit, highest, other int64
	if most := m.concurrent(); most > 0 {
		other = int64(len(m.open)) * 1000 / most
	} else {
		other = int64(len(m.open)) * 1000
	}
	for _, s := range m.rules.Spends(nil, &c) {
		i := slices.IndexFunc(m.logs, func(l *slidingLog) bool { return l.budget == s.Budget && l.scope == s.Scope })
		if i < 0 || s.Limit < 1 {
			continue
		}
		l := m.logs[i]
		used := l.total(now) + m.held(l)
		switch s.Budget {
		case limits.CPU:
			other = max(other, used*1000/s.Limit)
		case limits.Points, limits.Content:
			if full := used * 1000 / m.allowed(l, s.Limit); full >= 500 && full > highest {
				fullest, limit, highest = l, s.Limit, full
			}
		}
	}
	if fullest == nil {
		return
	}
	s := m.share(fullest)
	isLow := s != nil && !s.suspected
	if isLow && now < s.errorAt+fullest.window || !isLow && other >= highest {
		return
	}
	before := int64(1000)
	if s == nil { // the first error: only remember it
		m.shares = append(m.shares, &outsideShare{fullest, before, true, now, now + 3600*sec})
		return
	}
	if isLow {
		before = s.allowed
	}
	used := (fullest.total(now) + m.held(fullest)) * 1000 / limit
	*s = outsideShare{fullest, max(100, min(before, used)*4/5), false, now, now + 3600*sec}
}
