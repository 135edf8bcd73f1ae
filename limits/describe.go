package limits

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weirgate/weir/policy"
)

// budget returns the budget of one resource as rate headers report it. Used excludes permits in use, which Held counts.
// A search resource has a window and a log; budget reports the use of the more used of the two.
func (a *account) budget(resource string, r *Rules, now int64) Budget {
	w := a.Windows[resource]
	if w == nil {
		w = newWindow(resource, r.For(a.Kind, resource))
	}
	if a.unlimited(w) {
		return Budget{Resource: resource, Unlimited: true}
	}
	w.expire(now)
	limit, used, reset := w.Limit, int64(0), now+w.Length
	for _, p := range w.Reports {
		if limit = p.Limit; p.Used >= used {
			used, reset = p.Used, p.shownReset()
		}
	}
	used += w.Unconfirmed.Total
	if l := a.Logs[logKey(Primary, resource)]; l != nil {
		if l.expire(now); l.Total > used {
			used, reset = l.Total, l.Entries[0].At+l.Window
		}
	}
	used = min(used, limit)
	return Budget{
		Resource: resource, Limit: int(limit), Used: int(used), Remaining: int(limit - used), Held: int(w.inUse),
		Reset: time.UnixMicro(reset), Window: time.Duration(w.Length) * time.Microsecond,
	}
}

// shownReset returns the reported reset. If the clock of the upstream clearly differs, shownReset returns the local
// time of that reset.
func (p report) shownReset() int64 {
	if p.MaxOffset > -resetJitter && p.MaxOffset < resetJitter {
		return p.Reset
	}
	return p.end() / second * second
}

// resources returns the resources that have a window.
func (a *account) resources() []string {
	return slices.SortedFunc(maps.Keys(a.Windows), policy.CompareResources)
}

// describe returns the account for operators. The budgets are the resources in the order of resources.yaml, then other
// resources that the upstream has named, then the budgets that the upstream does not report.
func (a *account) describe(r *Rules, now int64) Account {
	now = a.advance(now)
	d := Account{Name: a.Name, Kind: a.Kind, InUse: len(a.reservations)}
	d.Concurrent = int(a.Cooldown.slots(now, r.Usable(int64(r.Concurrent))))
	if now < a.Cooldown.Until {
		d.BlockedUntil = time.UnixMicro(a.Cooldown.Until)
	}
	for _, resource := range a.resources() {
		if b := a.budget(resource, r, now); !b.Unlimited {
			d.Budgets = append(d.Budgets, b)
		}
	}
	resources := len(d.Budgets)
	for _, l := range a.Logs {
		if l.Budget == Primary || l.idle(now) {
			continue
		}
		b := r.LogBudget(l.Budget, l.Scope, int(l.Total), int(l.held))
		b.Reset = time.UnixMicro(now)
		if n := len(l.Entries); n > 0 {
			b.Reset = time.UnixMicro(l.Entries[n-1].At + l.Window)
		}
		d.Budgets = append(d.Budgets, b)
	}
	slices.SortFunc(d.Budgets[resources:], func(x, y Budget) int { return cmp.Compare(x.Resource, y.Resource) })
	return d
}

// LogBudget returns the budget of a sliding log, without its reset.
func (r *Rules) LogBudget(budget Reason, scope string, used, held int) Budget {
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
		Resource: strings.TrimSuffix(logKey(budget, scope), ":"),
		Limit:    limit, Used: used, Remaining: limit - used, Held: held,
	}
}
