package limits

import (
	"strings"
	"time"

	"github.com/weirgate/weir/policy"
)

// appendSpends appends the cost of writes in the logs of a client or tag.
func appendSpends(list []Spend, l policy.WriteLimits, name string, writes int) []Spend {
	add := func(limit int, window time.Duration) {
		if limit == 0 {
			return
		}
		s := Spend{Budget: Writes, Scope: window.String() + ":" + name, Limit: int64(limit), Cost: int64(writes), Window: window}
		if limit > exactUpTo {
			s.Merge = window / mergeParts
		}
		list = append(list, s)
	}
	add(l.PerMinute, time.Minute)
	add(l.PerHour, time.Hour)
	return list
}

// appendWrites appends the cost of a write in the logs of its client and tag.
func (r *Rules) appendWrites(list []Spend, c *Claim) []Spend {
	l, ok := r.Writes[c.Client]
	if !ok || c.Writes == 0 {
		return list
	}
	return appendSpends(appendSpends(list, l.Client, c.Client, c.Writes), l.Tag, c.WriteTag, c.Writes)
}

// writeLimit returns the limit of a log of writes, or zero if the rules do not have it any more.
func (r *Rules) writeLimit(scope string) int {
	window, name, _ := strings.Cut(scope, ":")
	l := r.Writes[name].Client
	for client, w := range r.Writes {
		if strings.HasPrefix(name, tagPrefix(client)) {
			l = w.Tag
		}
	}
	if window == time.Hour.String() {
		return l.PerHour
	}
	return l.PerMinute
}
