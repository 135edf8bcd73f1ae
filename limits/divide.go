package limits

const (
	// reservedParts is the number of parts of a limit of which the last part is reserved for clients below their nominal part.
	reservedParts = 100
	// paceTolerance is the time by which a claim may be granted before the pace of its budget.
	paceTolerance = second / 2
)

// division is the state of one budget for a claim: all that the rule needs that divides a budget among the clients of an account.
// The rule is the function divide. It also exists in redisledger/divide.lua, where Redis knows the clients of all replicas.
type division struct {
	Cost  int64 `json:"cost"`
	Limit int64 `json:"limit"`
	// Free is the number of tokens that the claim could use if the budget were not divided. InUse is the number of tokens in
	// use, as far as the pace considers them.
	Free  int64 `json:"free"`
	InUse int64 `json:"in_use"`

	// Window is the time in which the limit may be used evenly, or zero for a budget without a pace. Pace is the time at which
	// the next claim is due. Paced claims wait for it.
	Window int64 `json:"window"`
	Pace   int64 `json:"pace"`
	Paced  bool  `json:"paced"`
	Now    int64 `json:"now"`

	sharing
}

// sharing is what the clients of an account use of a budget, and wait for. It is zero if the budget is not divided here.
type sharing struct {
	// Share is the weight of the claim's client. Shares is the sum of the weights of all clients, or zero for a budget in which
	// clients have no nominal part. Used is the use of the claim's client.
	Share  int64 `json:"share"`
	Shares int64 `json:"shares"`
	Used   int64 `json:"used"`
	// Kept is the number of tokens that are guaranteed to other clients, and that these have not used.
	Kept int64 `json:"kept"`
	// Waits are the other clients that wait for the budget.
	Waits []waiting `json:"waits"`
}

// waiting is a client that waits for a budget. Cost is the cost of its next claim, and Demand that of all its claims.
type waiting struct {
	Share  int64 `json:"share"`
	Cost   int64 `json:"cost"`
	Demand int64 `json:"demand"`
	Used   int64 `json:"used"`
}

// verdict is the decision of the rule. A claim fits if Missing, Due, Kept and Yields are zero.
type verdict struct {
	// Missing is the number of tokens that must return before the claim fits.
	Missing int64 `json:"missing"`
	// Due is the time for which the claim waits because of the pace, or zero. Pace is the pace after a grant of the claim.
	Due  int64 `json:"due"`
	Pace int64 `json:"pace"`
	// Beyond means that the claim's client exceeds its nominal part. Other tokens of this client may return earlier.
	Beyond bool `json:"beyond"`
	// Kept means that the claim must leave the free tokens to clients with guarantees, and Yields that it must leave them to
	// clients that wait.
	Kept   bool `json:"kept"`
	Yields bool `json:"yields"`
}

// divide applies the rule that divides a budget:
//
//   - A client that exceeds its nominal part of the limit leaves a hundredth of the limit to the others, and follows the pace
//     while more than half of the limit is used. So the others find tokens at any time.
//   - A claim leaves the tokens that are guaranteed to others.
//   - A claim yields to clients that wait, as far as they have used less than their part ([division.yields]).
//
// The claims that follow the pace, and all claims while more than half of the limit is used, advance the pace by their part of
// the window.
func (d division) divide() (v verdict) {
	free := d.Free
	if d.Shares > 0 && d.Used+d.Cost > nominal(d.Limit, d.Share, d.Shares) {
		v.Beyond = true
		free -= d.Limit - max(min(d.Cost, d.Limit), d.Limit-d.Limit/reservedParts)
	}
	due := d.Pace - paceTolerance
	if (d.Paced || v.Beyond && 2*d.InUse > d.Limit) && d.Now < due {
		v.Due = due
	}
	switch {
	case d.Cost > free:
		v.Missing = d.Cost - free
	case d.Cost+d.Kept > free:
		v.Kept = true
	default:
		v.Yields = d.yields(free)
	}
	v.Pace = d.Pace
	if d.Window > 0 && (d.Paced || 2*(d.InUse+d.Cost) > d.Limit) {
		v.Pace = min(max(d.Pace, d.Now)+d.Cost*d.Window/max(1, d.Limit), d.Now+d.Window)
	}
	return v
}

// yields reports whether a claim must leave free tokens to the clients that wait. The claim's client and the waiting clients
// divide the free tokens and the tokens that they use by share: this is the part of each client. A claim within the part of its
// client need not yield. A claim beyond it fits only if the unused parts of the waiting clients stay free, as far as these
// clients have a demand. If an unused part is smaller than a request, the whole request stays free for its client, but only if
// the unused part of the claim's client is smaller still.
func (d *division) yields(free int64) bool {
	if d.Share == 0 || len(d.Waits) == 0 {
		return false
	}
	tokens, shares := free+d.Used, d.Share
	for _, w := range d.Waits {
		tokens, shares = tokens+w.Used, shares+w.Share
	}
	unused := func(share, used int64) int64 { return tokens*share - used*shares } // multiplied by shares
	own := unused(d.Share, d.Used)
	if own >= d.Cost*shares {
		return false
	}
	left := free
	for _, w := range d.Waits {
		switch other := unused(w.Share, w.Used); {
		case other >= w.Cost*shares:
			left -= min(other/shares, w.Demand)
		case other > max(own, 0) && w.Cost <= tokens:
			left -= w.Cost
		}
	}
	return left < d.Cost
}

// nominal returns the part of a limit that a client has by its share among all clients of the account.
func nominal(limit, share, shares int64) int64 { return limit * share / max(share, shares) }

// share returns the weight of the claim's client.
func (c *Claim) share() int64 { return int64(max(1, c.Share)) }

// shares returns the sum of the weights of all clients of the account.
func (c *Claim) shares() (shares int64) {
	known := false
	for _, b := range c.Clients {
		shares, known = shares+int64(b.Share), known || b.Client == c.Client
	}
	if !known {
		shares += c.share()
	}
	return shares
}

const (
	// waitTime is the time after the next attempt of a refused claim for which its client still waits. It is longer than the
	// interval between the attempts of a claim in the queue. slotsWait replaces it for concurrency slots, which are free again soon.
	waitTime  = second
	slotsWait = second / 5
	// longestWait bounds the time to the next attempt. The client of a refused claim may not come back.
	longestWait = 60 * second
)

// waits contains the clients that wait for a budget, by name.
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

// others returns the other clients that wait. used returns the use of a client.
func (ws waits) others(own string, now int64, used func(client string) int64) (list []waiting) {
	for client, w := range ws {
		if w.until <= now {
			delete(ws, client)
		} else if client != own {
			list = append(list, waiting{w.share, w.cost, w.demand, used(client)})
		}
	}
	return list
}

// EachWait calls visit for each client that waits for a budget. client is the budget that counts the use of the client, and ends the
// time after which the client does not wait any more.
func (p *Part) EachWait(budget string, now int64, visit func(client string, share, cost, demand, ends int64)) {
	var ws waits
	prefix := logKey(ClientBudget, budget) + ":"
	if w := p.windowOf(budget, now); w != nil {
		ws, prefix = w.waits, clientBudget(w.Resource, "")
	} else if l := p.Logs[budget]; l != nil {
		ws = l.waits
	} else if budget == slotsBudget {
		ws, prefix = p.waits, slotsPrefix
	}
	for client, w := range ws {
		if w.until > now {
			visit(prefix+client, w.share, w.cost, w.demand, w.until)
		}
	}
}
