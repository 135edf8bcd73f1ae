package limits

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/weirgate/weir/policy"
)

const (
	// dividedFrom is the length of the shortest window with guarantees and limits of clients. The quota of a shorter window
	// returns soon enough, so only its sliding log is divided.
	dividedFrom = 600 * second
	// In the last of releaseParts parts of a window, limits grow to the whole window, and guarantees shrink to the forecast
	// of what their clients need. So no quota remains unused while any client has a claim.
	releaseParts = 12
	// A client with the priority batch may use its quota earlier by one of paceParts parts of a window.
	paceParts = 60
)

// guarantee is a number of tokens of a primary window that are kept for one client. The tokens that the client has used
// in the window fulfil a part of it.
type guarantee struct {
	Budget string `json:"budget"` // of the client
	Tokens int64  `json:"tokens"`
}

const clientPrefix = "client:" // tokens of one client in a primary window

// divided reports whether a window is divided among the clients of a claim.
func (w *window) divided(c *Claim) bool { return len(c.Clients) > 0 && w.Length >= dividedFrom }

func clientBudget(resource, client string) string { return clientPrefix + resource + ":" + client }

// client returns the log of a client's requests in the open window.
func (w *window) client(name string) *slidingLog {
	l := w.Clients[name]
	if l == nil {
		if w.Clients == nil {
			w.Clients = map[string]*slidingLog{}
		}
		l = &slidingLog{Budget: ClientBudget, Scope: w.Resource + ":" + name}
		w.Clients[name] = l
	}
	l.Window, l.Merge = w.Length+resetJitter, w.Length/mergeParts
	return l
}

// end returns the end of the open window.
func (w *window) end(now int64) int64 {
	end := now + w.Length
	for _, p := range w.Reports {
		end = min(end, p.end())
	}
	return end
}

// guarantees returns the requests that are kept for each client and group before their release begins. If they exceed the
// window, because of many interactive clients, all of them shrink by the same factor.
func (w *window) guarantees(clients []policy.ClientBudget, r *Rules) []float64 {
	usable, sum := float64(r.Usable(w.Limit)), 0.0
	list := make([]float64, len(clients))
	for i, b := range clients {
		list[i] = b.Guarantee * usable
		sum += list[i]
	}
	for i := range list {
		list[i] *= min(1, usable/max(1, sum))
	}
	return list
}

// kept returns the part of some tokens that is not released yet.
func (w *window) kept(tokens float64, now int64) int64 {
	left := float64(w.end(now)-now) / float64(w.Length/releaseParts)
	return int64(math.Ceil(tokens * max(0, min(1, left))))
}

// evenLimit returns the part of a limit that a client with the priority batch may have used by now.
func (w *window) evenLimit(limit, now int64) int64 {
	if len(w.Reports) == 0 { // the end is unknown
		return limit
	}
	elapsed := w.Length - max(0, w.end(now)-now) + w.Length/paceParts
	return int64(float64(limit) * min(1, float64(elapsed)/float64(w.Length)))
}

// names returns the names whose budgets count a claim: the client, its group and the tag.
func (c *Claim) names() []string {
	names := []string{c.Client}
	for _, name := range []string{c.Group, c.Tag} {
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}

// forecast returns the requests that a client may need until the end of the window, if it continues at the mean rate of
// the window. used is the use of the client.
func (w *window) forecast(used, now int64) int64 {
	left := max(0, w.end(now)-now)
	return int64(math.Ceil(float64(used) * float64(left) / float64(max(second, w.Length-left))))
}

// divide returns what a claim needs of the budgets of its client, group and tag, and the guarantees of the others.
// replicas is the use of other replicas by budget.
func (w *window) divide(c *Claim, r *Rules, replicas map[string]int64, now int64) (own []Need, others []guarantee) {
	usable, names, guarantees := r.Usable(w.Limit), c.names(), w.guarantees(c.Clients, r)
	for _, name := range names {
		own = append(own, Need{Budget: clientBudget(c.Resource, name), Reason: ClientBudget, Cost: w.costOf(c, r), Limit: usable})
	}
	for k, b := range c.Clients {
		if b.Client == c.Client && c.Tag != "" {
			own[len(own)-1].limitTo(w.upper(b.TagLimit, usable, now))
		}
		if i := slices.Index(names, b.Client); i >= 0 {
			own[i].limitTo(w.upper(b.Limit, usable, now))
			if b.Batch {
				own[i].Limit = min(own[i].Limit, max(1, w.evenLimit(usable, now)))
			}
			continue
		}
		budget, tokens := clientBudget(c.Resource, b.Client), guarantees[k]
		used := w.usedBy(budget, replicas, now)
		if kept := max(w.kept(tokens, now), min(int64(tokens), used+w.forecast(used, now))); kept > 0 {
			others = append(others, guarantee{budget, kept})
		}
	}
	return own, others
}

// limitTo lowers the limit of a need.
func (n *Need) limitTo(limit int64) { n.Limit, n.Cost = limit, capped(n.Cost, limit) }

// remaining returns the tokens that the budgets of a claim's client, group and tag have left. replicas is the use of other
// replicas by budget.
func (w *window) remaining(own []Need, replicas map[string]int64, now int64) int64 {
	left := int64(math.MaxInt64)
	for _, n := range own {
		left = min(left, n.Limit-w.usedBy(n.Budget, replicas, now))
	}
	return left
}

// free returns the tokens of the window that are not used.
func (w *window) free(r *Rules) int64 {
	limit := r.Usable(w.Limit)
	for i, p := range w.Reports {
		left := r.Usable(p.Limit) - p.use()
		if i == 0 || left < limit {
			limit = left
		}
	}
	return limit - w.Unconfirmed.Total - w.inUse
}

// usedBy returns the tokens that a client uses of the open window. replicas is the use of other replicas by budget.
func (w *window) usedBy(budget string, replicas map[string]int64, now int64) int64 {
	return replicas[budget] + w.Clients[strings.TrimPrefix(budget, clientBudget(w.Resource, ""))].use(now).Total()
}

// unused returns the part of the guarantees that is not fulfilled.
func (w *window) unused(guarantees []guarantee, replicas map[string]int64, now int64) (tokens int64) {
	for _, g := range guarantees {
		tokens += max(0, g.Tokens-w.usedBy(g.Budget, replicas, now))
	}
	return tokens
}

// retryAt returns the time of the next attempt of a claim that a client budget has refused: the start of the release or, if
// earlier, the next request at the even pace of the client. replicas is the use of other replicas by budget.
func (w *window) retryAt(c *Claim, r *Rules, replicas map[string]int64, now int64) int64 {
	at, usable := w.end(now)-w.Length/releaseParts, r.Usable(w.Limit)
	even := slices.ContainsFunc(c.Clients, func(b policy.ClientBudget) bool { return b.Client == c.Client && b.Batch })
	used, cost := w.usedBy(clientBudget(c.Resource, c.Client), replicas, now), w.costOf(c, r)
	if even && used+cost > w.evenLimit(usable, now) {
		at = min(at, w.end(now)-w.Length-w.Length/paceParts+int64(math.Ceil(float64(used+cost)*float64(w.Length)/float64(usable))))
	}
	return max(at, now+second)
}

// removeIdleClients removes the clients, groups and tags that have no requests in the open window.
func (w *window) removeIdleClients(now int64) {
	maps.DeleteFunc(w.Clients, func(_ string, l *slidingLog) bool { return l.idle(now) })
}

// upper returns the requests that a client or tag with a limit may use now, without its pace. part is the limit as a
// fraction.
func (w *window) upper(part float64, usable, now int64) int64 {
	return usable - w.kept((1-part)*float64(usable), now)
}

// describeClients returns the budgets of the clients of the last claim, each with the budgets of its tags. foreign is the
// use of other replicas by budget.
func (w *window) describeClients(r *Rules, now int64, foreign map[string]Use, wall wallTime) (list []Budget) {
	usable, guarantees := r.Usable(w.Limit), w.guarantees(w.budgets, r)
	for i, b := range w.budgets {
		c := &Claim{Resource: w.Resource, Client: b.Client, Clients: []policy.ClientBudget{b}}
		d := w.describeClient(c, r, now, foreign, wall)
		d.Client, d.Guarantee = b.Client, int(w.kept(guarantees[i], now))
		d.Upper = int(w.upper(b.Limit, usable, now))
		if b.Share > 0 {
			d.Nominal = int(nominal(usable, int64(b.Share), (&Claim{Client: b.Client, Clients: w.budgets}).shares()))
			d.Borrowed = max(0, d.Used+d.Held-d.Nominal)
		}
		list = append(list, d)
		if b.TagLimit == 0 {
			continue
		}
		for _, c.Tag = range w.tags(b.Client, foreign) {
			list = append(list, w.describeClient(c, r, now, foreign, wall))
		}
	}
	lend(list)
	return list
}

// describeClient returns the budget of the client of a claim or, if the claim has a tag, of the tag. Without a report,
// the reset is unknown and therefore zero.
func (w *window) describeClient(c *Claim, r *Rules, now int64, foreign map[string]Use, wall wallTime) Budget {
	own, _ := w.divide(c, r, nil, now)
	n := own[len(own)-1]
	use := foreign[n.Budget].plus(w.Clients[cmp.Or(c.Tag, c.Client)].use(now))
	d := Budget{
		Resource: n.Budget, Limit: int(n.Limit), Used: int(use.Spent), Remaining: int(max(0, n.Limit-use.Spent)), Held: int(use.Held),
		Window: time.Duration(w.Length) * time.Microsecond,
	}
	if len(w.Reports) > 0 {
		d.Reset = w.Reports[0].shownReset(wall)
	}
	return d
}

// lend sets what the clients of a window have lent. All unused nominal parts lend the same fraction.
func lend(list []Budget) {
	borrowed, unused := 0, 0
	for _, b := range list {
		borrowed, unused = borrowed+b.Borrowed, unused+max(0, b.Nominal-b.Used-b.Held)
	}
	for i := range list {
		b := &list[i]
		b.Lent = max(0, b.Nominal-b.Used-b.Held) * min(borrowed, unused) / max(1, unused)
	}
}
