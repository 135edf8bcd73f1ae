package limits

import (
	"cmp"
	"fmt"
	"slices"
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

// writeBudget is a limit of the writes of a client or tag.
type writeBudget struct {
	WritesError
	name string // of the client or tag
}

// writeBudgets returns the limits that apply to a write of a client with a tag.
func writeBudgets(l policy.ClientWrites, client, tag string, writes int) []writeBudget {
	return slices.DeleteFunc([]writeBudget{
		{WritesError{writes, l.Client.PerMinute, time.Minute, false}, client}, {WritesError{writes, l.Client.PerHour, time.Hour, false}, client},
		{WritesError{writes, l.Tag.PerMinute, time.Minute, true}, tag}, {WritesError{writes, l.Tag.PerHour, time.Hour, true}, tag},
	}, func(b writeBudget) bool { return b.Limit == 0 })
}

// checkWrites returns a [*WritesError] for the lowest limit if a claim has more writes than a limit.
func checkWrites(l policy.ClientWrites, writes int) error {
	budgets := writeBudgets(l, "", "", writes)
	if len(budgets) == 0 {
		return nil
	}
	lowest := slices.MinFunc(budgets, func(x, y writeBudget) int { return cmp.Compare(x.Limit, y.Limit) })
	if writes <= lowest.Limit {
		return nil
	}
	return &lowest.WritesError
}

// appendWrites appends the cost of a write in the logs of its client and tag.
func (r *Rules) appendWrites(list []Spend, c *Claim) []Spend {
	if c.Writes == 0 {
		return list
	}
	for _, b := range writeBudgets(r.Writes[c.Client], c.Client, c.WriteTag, c.Writes) {
		s := r.spend(Writes, b.Window.String()+":"+b.name, int64(b.Writes), b.Limit, b.Window)
		s.Limit = int64(b.Limit) // a limit of the operator has no headroom
		list = append(list, s)
	}
	return list
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
