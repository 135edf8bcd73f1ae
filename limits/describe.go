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
// A search resource has a window and a log; budget reports the use of the more used of the two. foreign is the use of
// other replicas by budget.
func (a *account) budget(resource string, r *Rules, now int64, foreign map[string]Use, wall wallTime) Budget {
	w := a.Windows[resource]
	if w == nil {
		w = newWindow(resource, r.For(a.kind(r), resource))
	}
	if a.unlimited(w) {
		return Budget{Resource: resource, Unlimited: true}
	}
	w.expire(now)
	limit, used, reset := w.Limit, int64(0), wall(now+w.Length)
	for _, p := range w.Reports {
		limit = p.Limit
		if n := p.use(); n >= used {
			used, reset = n, p.shownReset(wall)
		}
	}
	others := foreign[windowPrefix+resource]
	used += w.Unconfirmed.Total + others.Spent
	key := logKey(Primary, resource)
	if u := foreign[key].plus(a.Logs[key].use(now)); u.Spent > used {
		used, reset = u.Spent, wall(u.Returns)
	}
	used = min(used, limit)
	return Budget{
		Resource: resource, Limit: int(limit), Used: int(used), Remaining: int(limit - used), Held: int(w.inUse + others.Held),
		Reset: reset, Window: time.Duration(w.Length) * time.Microsecond,
	}
}

// Budget returns what a caller may use of a resource.
func (a *account) Budget(caller policy.Caller, resource string, r *Rules, clock *Clock) Budget {
	now := a.advance(clock.Now())
	b := a.budget(resource, r, now, nil, clock.Wall)
	c := &Claim{Resource: resource, Client: caller.Client, Group: caller.Group, Tag: caller.Tag, Clients: caller.Clients}
	if w := a.Windows[resource]; w != nil && w.divided(c) && !b.Unlimited {
		own, others := w.divide(c, r, a.others, now)
		left := min(w.remaining(own, a.others, now), int64(b.Remaining)-w.unused(others, a.others, now))
		lowest := slices.MinFunc(own, func(x, y Need) int { return cmp.Compare(x.Limit, y.Limit) })
		b.Limit, b.Remaining = int(lowest.Limit), int(max(0, left))
		b.Used = b.Limit - b.Remaining
	}
	return b
}

// wallTime is [Clock.Wall].
type wallTime func(at int64) time.Time

// shownReset returns the reported reset. If the clock of the upstream clearly differs, shownReset returns the local
// time of that reset.
func (p report) shownReset(wall wallTime) time.Time {
	reset, end := time.UnixMicro(p.Reset), wall(p.end())
	if end.Sub(reset).Abs().Microseconds() < resetJitter {
		return reset
	}
	return time.Unix(end.Unix(), 0)
}

// Resources returns the resources that have a window.
func (a *account) Resources() []string {
	return slices.SortedFunc(maps.Keys(a.Windows), policy.CompareResources)
}

// Describe returns the account for operators. The budgets are the resources in the order of resources.yaml, then other
// resources that the upstream has named, then the budgets that the upstream does not report. foreign is the use of other
// replicas by budget.
func (a *account) Describe(r *Rules, foreign map[string]Use, c *Clock) Account {
	now, wall := a.advance(c.Now()), c.Wall
	d := Account{Name: a.Name, Kind: a.Kind, InUse: len(a.reservations) + int(foreign[slotsBudget].Held)}
	d.Concurrent = int(a.Cooldown.slots(now, r.Usable(int64(r.Concurrent))))
	if now < a.Cooldown.Until {
		d.BlockedUntil = wall(a.Cooldown.Until)
	}
	if a.Cooldown.Closed != 0 {
		d.ClosedSince = wall(a.Cooldown.Closed)
	}
	for _, resource := range a.Resources() {
		if b := a.budget(resource, r, now, foreign, wall); !b.Unlimited {
			d.Budgets = append(d.Budgets, b)
		}
	}
	resources := len(d.Budgets)
	for _, w := range a.Windows {
		d.Budgets = append(d.Budgets, w.describeClients(r, now, foreign, wall)...)
	}
	uses := maps.Clone(foreign)
	if uses == nil {
		uses = map[string]Use{}
	}
	for key, l := range a.Logs {
		uses[key] = uses[key].plus(l.use(now))
	}
	for key, u := range uses {
		budget, scope, _ := strings.Cut(key, ":")
		switch Reason(budget) {
		case Points, Content, CPU, Writes:
			b := r.LogBudget(Reason(budget), scope, int(u.Spent), int(u.Held))
			if u.Total() == 0 || b.Limit == 0 {
				continue
			}
			if limit := int(a.Cooldown.allowed(key, int64(b.Limit))); limit < b.Limit {
				b.Allowance = float64(limit) / float64(b.Limit)
				b.Limit, b.Remaining = limit, limit-b.Used
			}
			b.Reset = wall(cmp.Or(u.Ends, now))
			d.Budgets = append(d.Budgets, b)
		}
	}
	slices.SortFunc(d.Budgets[resources:], func(x, y Budget) int { return cmp.Compare(x.Resource, y.Resource) })
	return d
}

// LogBudget returns the budget of a sliding log, without its reset. The limit is zero if the rules do not have it any more.
func (r *Rules) LogBudget(budget Reason, scope string, used, held int) Budget {
	limit := 0
	if budget == Writes {
		limit = r.writeLimit(scope)
	}
	for _, s := range r.Spends(nil, &Claim{Operation: scope, Resource: scope, CreatesContent: true}) {
		if s.Budget == budget && s.Scope == scope {
			limit = int(s.Limit)
		}
	}
	return Budget{
		Resource: strings.TrimSuffix(logKey(budget, scope), ":"),
		Limit:    limit, Used: used, Remaining: limit - used, Held: held,
	}
}
