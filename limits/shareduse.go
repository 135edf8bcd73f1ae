package limits

import (
	"cmp"
	"slices"
	"strings"
)

// SharedUse is the use of a budget that several clients share, at the time at which the budget refused a claim.
type SharedUse struct {
	Budget string `json:"budget"` // as in [Budget.Resource]; "concurrency" for concurrency slots
	Limit  int64  `json:"limit"`
	// Clients are the clients with the largest use, at most maxUsers. If several replicas share the ledger, this is the use
	// that the refusing replica knows: its own, and that of the others at the last round trip.
	Clients []ClientUse `json:"clients"`
}

// ClientUse is what one client uses of a budget.
type ClientUse struct {
	Client string `json:"client"`
	Used   int64  `json:"used"`
}

// maxUsers bounds the clients of a SharedUse.
const maxUsers = 3

// sharedUse returns the use of a budget that has refused a claim, or nil if no client of the claim uses the budget. If the client has
// used its part of a window, it is the use of the window, which is the last need.
func (a *account) sharedUse(c *Claim, needs []Need, refusing *Need, now int64) *SharedUse {
	if refusing.Reason == ClientBudget {
		refusing = &needs[len(needs)-1]
	}
	var list []ClientUse
	for _, b := range c.Clients {
		if b.Share == 0 { // a group, whose use is that of its clients
			continue
		}
		if used := a.useBy(b.Client, refusing.Budget, now); used > 0 {
			list = append(list, ClientUse{b.Client, used})
		}
	}
	if len(list) == 0 {
		return nil
	}
	slices.SortFunc(list, func(x, y ClientUse) int {
		return cmp.Or(cmp.Compare(y.Used, x.Used), cmp.Compare(x.Client, y.Client))
	})
	return &SharedUse{Budget: resourceOf(refusing.Budget), Limit: refusing.Limit, Clients: slices.Clone(list[:min(len(list), maxUsers)])}
}

// useBy returns what a client uses of a budget. The window of a search has a log, which counts the use of clients.
func (a *account) useBy(client, budget string, now int64) int64 {
	if budget == slotsBudget {
		return a.slotsOf(client) + a.others[slotsPrefix+client]
	}
	if resource, ok := strings.CutPrefix(budget, windowPrefix); ok {
		if w := a.Windows[resource]; w.Length >= dividedFrom {
			return w.usedBy(clientBudget(resource, client), a.others, now)
		}
		budget = logKey(Primary, resource)
	}
	key := clientKey(budget, client)
	return a.Logs[key].use(now).Total() + a.others[key]
}

// resourceOf returns the name of a budget in listings.
func resourceOf(budget string) string {
	if budget == slotsBudget {
		return string(Concurrency)
	}
	for _, prefix := range []string{windowPrefix, logKey(Primary, "")} {
		budget = strings.TrimPrefix(budget, prefix)
	}
	return strings.TrimSuffix(budget, ":")
}

// SharedUse returns the use of the budget that has refused a claim. needs is the result of [Part.Needs].
func (p *Part) SharedUse(c Claim, needs []Need, refusing *Need, now int64) *SharedUse {
	return p.sharedUse(&c, needs, refusing, p.advance(now))
}
