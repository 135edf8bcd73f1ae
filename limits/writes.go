package limits

import (
	"fmt"
	"strings"
	"time"

	"github.com/weirgate/weir/policy"
)

// WritesError is the error for a claim with more writes than a limit of its client permits in a whole window. No wait helps.
type WritesError struct {
	Writes, Limit int
	Window        time.Duration
	Tag           bool // the limit counts the requests with one tag
}

func (e *WritesError) Error() string {
	per, of := "a minute", "(clients[].writes)"
	if e.Window == time.Hour {
		per = "an hour"
	}
	if e.Tag {
		of = "with one tag (clients[].tag_writes)"
	}
	return fmt.Sprintf("the GraphQL call has %d mutations, and this client may send at most %d %s %s; split the call", e.Writes, e.Limit, per, of)
}

// checkWrites returns a [*WritesError] for the lowest limit if a claim has more writes than a limit.
func checkWrites(l policy.ClientWrites, writes int) error {
	var lowest *WritesError
	for _, e := range []WritesError{
		{writes, l.Client.PerMinute, time.Minute, false}, {writes, l.Client.PerHour, time.Hour, false},
		{writes, l.Tag.PerMinute, time.Minute, true}, {writes, l.Tag.PerHour, time.Hour, true},
	} {
		if e.Limit > 0 && writes > e.Limit && (lowest == nil || e.Limit < lowest.Limit) {
			lowest = &e
		}
	}
	if lowest == nil {
		return nil
	}
	return lowest
}

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
