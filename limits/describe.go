package limits

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/weirgate/weir/policy"
)

// budget is what x-ratelimit headers tell: requests in flight are not counted
// yet, as upstream would not have counted them. Search shows the tighter of
// its two windows. What it tells holds until then if no step is made before; what is
// not told for now alone.
func (a *account) budget(resource string, r *Rules, now int64) (b Budget, until int64) {
	w := a.knownWindow(resource)
	if w == nil {
		w = newWindow(resource, r.For(a.kind, resource))
	}
	w.roll(now)
	b = Budget{Resource: resource, Limit: int(w.limit), Held: int(w.inFlight), Window: time.Duration(w.length) * time.Microsecond}
	reset := now + w.length
	until = w.ghosts.changes()
	var used int64
	for _, f := range w.told {
		until = min(until, f.reopens())
		if b.Limit = int(f.limit); f.used >= used {
			used, reset = f.used, f.shown()
		}
	}
	used += w.ghosts.total
	if l := a.knownLog(logKey{Primary, resource}); l != nil {
		l.roll(now)
		until = min(until, l.changes())
		if l.total > used {
			used, reset = l.total, l.entries[0].last+l.window
		}
	}
	b.Used = min(int(used), b.Limit)
	b.Remaining = b.Limit - b.Used
	b.Reset = time.UnixMicro(reset)
	if reset == now+w.length {
		until = now // it ends later by the moment
	}
	return b, until
}

// shown is the reset for people and clients: as the upstream told it, unless
// its clock is clearly another one.
func (f fact) shown() int64 {
	if f.late > -resetJitter && f.late < resetJitter {
		return f.reset
	}
	return f.end() / second * second
}

// describe is the account for people: the resources it has used, in the order
// of the documents, then what the upstream does not show.
func (a *account) describe(r *Rules, now int64) Account {
	now = a.advance(now)
	d := Account{Name: a.name, Kind: a.kind, InUse: len(a.leases)}
	d.Concurrent = int(a.cool.cap(now, r.Usable(int64(r.Concurrent))))
	if now < a.cool.until {
		d.BlockedUntil = time.UnixMicro(a.cool.until)
	}
	for _, resource := range policy.Resources() {
		if a.knownWindow(resource) != nil {
			b, _ := a.budget(resource, r, now)
			d.Budgets = append(d.Budgets, b)
		}
	}
	shown := len(d.Budgets)
	for _, l := range a.logs {
		if l.key.budget != Primary && !l.idle(now) {
			d.Budgets = append(d.Budgets, l.describe(r, now))
		}
	}
	slices.SortFunc(d.Budgets[shown:], func(x, y Budget) int { return cmp.Compare(x.Resource, y.Resource) })
	return d
}

func (l *spendLog) describe(r *Rules, now int64) Budget {
	b := r.LogBudget(l.key.budget, l.key.scope, int(l.total), int(l.held))
	b.Reset = time.UnixMicro(now)
	if n := len(l.entries); n > 0 {
		b.Reset = time.UnixMicro(l.entries[n-1].last + l.window)
	}
	return b
}

// LogBudget is how a sliding log is shown.
func (r *Rules) LogBudget(budget Reason, scope string, total, held int) Budget {
	limit := r.Points.REST
	switch {
	case budget == CPU && scope == policy.GraphQL:
		limit = int(r.CPU.GraphQL / time.Millisecond)
	case budget == CPU:
		limit = int(r.CPU.Total / time.Millisecond)
	case budget == Content:
		for _, w := range r.Content {
			if w.Window.String() == scope {
				limit = w.Max
			}
		}
	case scope == policy.GraphQL:
		limit = r.Points.GraphQL
	}
	limit = int(r.Usable(int64(limit)))
	return Budget{
		Resource: strings.TrimSuffix(string(budget)+":"+scope, ":"),
		Limit:    limit, Used: total, Remaining: limit - total, Held: held,
	}
}
