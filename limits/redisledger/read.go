package redisledger

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// reader takes the fields of an answer one after the other.
type reader struct {
	fields []string
	err    error
}

var errShort = errors.New("the ledger's answer is cut short")

func (r *reader) text() string {
	if len(r.fields) == 0 {
		r.err = errShort
		return ""
	}
	first := r.fields[0]
	r.fields = r.fields[1:]
	return first
}

func (r *reader) number() int64 {
	n, err := strconv.ParseInt(r.text(), 10, 64)
	r.err = errors.Join(r.err, err)
	return n
}

// parseAccount reads what read.lua tells. Times in it are Redis's; they are told
// on this process's clock.
func parseAccount(name string, fields []string, rules *limits.Rules) (limits.Account, error) {
	r := &reader{fields: fields}
	kind, _, _ := strings.Cut(r.text(), " ")
	a := limits.Account{Name: name, Kind: policy.CallerKind(kind), InFlight: int(r.number()), Concurrent: int(r.number())}
	blocked, now := r.number(), r.number()
	here := time.Now()
	at := func(t int64) time.Time { return here.Add(time.Duration(t-now) * time.Microsecond) }
	if blocked != 0 {
		a.BlockedUntil = at(blocked)
	}
	for range r.number() {
		b := limits.Budget{Resource: r.text(), Limit: int(r.number())}
		used := int(r.number())
		b.Held = int(r.number())
		b.Used = min(used, b.Limit)
		b.Remaining = b.Limit - b.Used
		b.Reset = at(r.number())
		a.Budgets = append(a.Budgets, b)
	}
	shown := len(a.Budgets)
	for len(r.fields) > 0 && r.err == nil {
		budget, scope, _ := strings.Cut(r.text(), ":")
		total, held := int(r.number()), int(r.number())
		b := rules.LogBudget(limits.Reason(budget), strings.ReplaceAll(scope, "\x1f", " "), total, held)
		b.Reset = at(r.number())
		a.Budgets = append(a.Budgets, b)
	}
	slices.SortFunc(a.Budgets[shown:], func(x, y limits.Budget) int { return strings.Compare(x.Resource, y.Resource) })
	return a, r.err
}
