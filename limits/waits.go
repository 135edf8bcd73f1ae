package limits

import "strings"

// waitTime is the time after the next attempt of a refused claim for which its client still waits. It is longer than the
// interval between the attempts of a claim in the queue.
const waitTime = second

// longestWait bounds the time to the next attempt. The client of a refused claim may not come back.
const longestWait = 60 * second

// slotsWait replaces waitTime for concurrency slots, which are free again soon.
const slotsWait = second / 5

// waits contains the clients that wait for a budget, by name. The clients that wait divide the budget by their shares.
type waits map[string]wait

// wait is a client with a refused claim. cost is the cost of this claim, and demand is the cost of all claims of the client
// that wait.
type wait struct{ share, cost, demand, until int64 }

// add records a refused claim. at is the time of its next attempt, or zero if that is unknown. The client waits until more
// microseconds later.
func (ws *waits) add(c *Claim, cost, at, now, more int64) {
	if len(c.Clients) == 0 {
		return
	}
	if *ws == nil {
		*ws = waits{}
	}
	(*ws)[c.Client] = wait{c.share(), cost, cost * int64(max(1, c.Waiting)), max((*ws)[c.Client].until, min(max(now, at), now+longestWait)+more)}
}

// mustYield reports whether a claim must yield the free tokens of a budget to other clients that wait. The claim's client
// and the waiting clients divide the free tokens and the tokens that they use by share: this is the part of each client.
// A claim within the part of its client need not yield. A claim beyond it is granted only if the unused parts of the waiting
// clients stay free, as far as these clients have a demand. If an unused part is smaller than a request, the whole request
// stays free for its client, but only if the unused part of the claim's client is smaller still. used returns the use of a
// client.
func (ws waits) mustYield(c *Claim, cost, free int64, used func(client string) int64, now int64) bool {
	if len(ws) == 0 {
		return false
	}
	tokens, shares := free+used(c.Client), c.share()
	for client, w := range ws {
		if w.until <= now {
			delete(ws, client)
		} else if client != c.Client {
			tokens, shares = tokens+used(client), shares+w.share
		}
	}
	rest := func(client string, share int64) int64 { return tokens*share - used(client)*shares } // multiplied by shares
	own := rest(c.Client, c.share())
	if own >= cost*shares {
		return false
	}
	left := free
	for client, w := range ws {
		switch other := rest(client, w.share); {
		case client == c.Client:
		case other >= w.cost*shares:
			left -= min(other/shares, w.demand)
		case other > max(own, 0) && w.cost <= tokens:
			left -= w.cost
		}
	}
	return left < cost
}

// Wait is a client of a shared account that waits for a budget. Client is the budget that counts the use of the client.
// Ends is the time after which the client does not wait any more.
type Wait struct {
	Client                    string
	Share, Cost, Demand, Ends int64
}

// Waits returns the clients that wait for a budget.
func (p *Part) Waits(budget string, now int64) (list []Wait) {
	var ws waits
	prefix := logKey(ClientBudget, budget) + ":"
	if resource, ok := strings.CutPrefix(budget, windowPrefix); ok && p.Windows[resource] != nil {
		ws, prefix = p.Windows[resource].waits, clientBudget(resource, "")
	} else if l := p.Logs[budget]; l != nil {
		ws = l.waits
	} else if budget == SlotsBudget {
		ws, prefix = p.waits, slotsPrefix
	}
	for client, w := range ws {
		if w.until > now {
			list = append(list, Wait{prefix + client, w.share, w.cost, w.demand, w.until})
		}
	}
	return list
}

// share returns the weight of the claim's client.
func (c *Claim) share() int64 { return int64(max(1, c.Share)) }

// nominal returns the part of a limit that the claim's client has by its share among all clients of the account.
func (c *Claim) nominal(limit int64) int64 {
	shares, known := int64(0), false
	for _, b := range c.Clients {
		shares, known = shares+int64(b.Share), known || b.Client == c.Client
	}
	if !known {
		shares += c.share()
	}
	return limit * c.share() / max(c.share(), shares)
}

// reservedParts is the number of parts of a limit of which the last part is reserved for clients below their nominal part.
const reservedParts = 100

// exceeds reports whether the use of the claim's client, with the claim, is more than its nominal part. The reserve is not for such a client,
// and the client follows the pace while more than half of the limit is used. So the other clients find tokens at any time,
// also if they need tokens only now and then.
func (c *Claim) exceeds(limit, cost int64, used func(client string) int64) bool {
	return len(c.Clients) > 0 && used(c.Client)+cost > c.nominal(limit)
}

// unreserved returns the part of a limit that a claim may use whose client exceeds its nominal part.
func unreserved(limit, cost int64) int64 { return max(min(cost, limit), limit-limit/reservedParts) }

// paceTolerance is the time by which a paced claim may be granted before the pace of a log.
const paceTolerance = second / 2

// paced reports whether a claim waits for the pace of a log even if the log is almost empty. In a long window, an even rate
// would be too low for such a claim.
func (s Spend) paced(c *Claim) bool { return c.Paced && s.Window.Microseconds() < dividedFrom }

// aboveHalf reports whether a use is above half of a limit. From then on, every permit advances the pace, and a client that
// exceeds its nominal part follows the pace.
func aboveHalf(use, limit int64) bool { return 2*use > limit }

// interval returns the time by which a permit advances the pace of a log. The pace is the time at which the next paced
// claim is due, if costs are spread evenly over the window. CPU time has no pace, because it is an estimate.
func (s Spend) interval(limit int64) int64 {
	if s.is(CPU) {
		return 0
	}
	return s.Cost * s.Window.Microseconds() / max(1, limit)
}
