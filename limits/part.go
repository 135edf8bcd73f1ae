package limits

import (
	"encoding/json"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/weirgate/weir/policy"
)

// Part is the part of an account that one replica uses, for a ledger that several replicas share. The replica applies
// the rules of this package to its own requests. For every budget it has a lease: tokens that no other replica uses.
// The leases of all replicas together are at most the limit of the budget. A token that the replica spends belongs to
// the lease until the token returns, so the replica can then spend it again.
//
// The ledger stores the leases, and exchanges the reports of windows and the cool-down between the replicas. Times are
// microseconds since 1970 on the clock of this process. A Part is not safe for concurrent use.
type Part struct {
	account
	// The clock of Redis minus the local clock is between least and most, if timed is set.
	least, most int64
	timed       bool
}

// NewPart returns the part of a replica that has not used the account.
func NewPart(name string, kind policy.CallerKind) *Part {
	p := &Part{account: *newAccount(name, kind)}
	p.shared, p.others = true, map[string]int64{}
	return p
}

// Synchronize records the time of Redis in the reply to a call that was sent and answered at local times.
func (p *Part) Synchronize(redis, sent, answered int64) {
	p.least, p.most, p.timed = redis-answered, redis-sent, true
}

// Timed reports whether times can be converted to the clock of Redis.
func (p *Part) Timed() bool { return p.timed }

// ToRedis returns the latest time on the clock of Redis for a local time, or zero for zero and if no time of Redis is known.
func (p *Part) ToRedis(at int64) int64 {
	if at == 0 || !p.timed {
		return 0
	}
	return at + p.most
}

// FromRedis returns the latest local time for a time on the clock of Redis.
func (p *Part) FromRedis(at int64) int64 { return at - p.least }

// Need is what a claim needs from one budget.
type Need struct {
	Budget string `json:"budget"` // identifies the budget within its account
	Reason Reason `json:"reason"` // of a refusal
	// Cost is the number of tokens. Limit is the limit for the tokens of all replicas together.
	Cost  int64 `json:"cost"`
	Limit int64 `json:"limit"`
	// Guarantees are tokens that the claim must leave to other clients, as far as these clients have not used them.
	Guarantees []guarantee `json:"guarantees,omitempty"`
	// Client is the budget that counts the tokens that the claim's client uses, if the account has several clients. Share is
	// the weight of the client, or zero if the budget is not divided. If the account has one client, it is that of a replica.
	Client string `json:"client,omitempty"`
	Share  int64  `json:"share"`
	// Shares is the sum of the weights of all clients, or zero for a primary window, in which clients have no nominal part.
	Shares int64 `json:"shares"`
	// Waiting is that of the claim.
	Waiting int `json:"waiting,omitempty"`
	// Window is the time in microseconds over which the pace spreads the limit, or zero for a budget without a pace. Paced means
	// that the claim waits for the pace.
	Window int64 `json:"window"`
	Paced  bool  `json:"paced"`

	log    *slidingLog // nil for other budgets
	window *window     // nil for other budgets
}

// Budgets that have no sliding log. A sliding log is identified by its reason and scope, such as "points:user/get". The
// names of windows end with a resource.
const (
	slotsBudget  = "slots"           // concurrency slots
	slotsPrefix  = slotsBudget + ":" // concurrency slots of a client
	probeBudget  = "probe"           // the probe after a cool-down
	windowPrefix = "window:"         // primary window
	startPrefix  = "start:"          // requests of the slow start of a primary window
)

// WindowBudget returns the budget of the primary window of a resource.
func (*Part) WindowBudget(resource string) string { return windowPrefix + resource }

// IsWindow reports whether a budget is a primary window.
func (*Part) IsWindow(budget string) bool { return strings.HasPrefix(budget, windowPrefix) }

// SlotsBudget returns the budget of the concurrency slots.
func (*Part) SlotsBudget() string { return slotsBudget }

// IsTemporary reports whether a budget limits requests for a short time, until the upstream has responded. Without the
// other replicas, such a budget cannot be shared.
func (*Part) IsTemporary(budget string) bool {
	return budget == probeBudget || strings.HasPrefix(budget, startPrefix)
}

// Whole returns the shared budget of a client's budget, for example "slots" for "slots:ci". For other budgets it returns "".
func (p *Part) Whole(budget string) string {
	if strings.HasPrefix(budget, slotsPrefix) {
		return slotsBudget
	}
	if l := p.Logs[budget]; l != nil {
		return l.whole
	}
	return ""
}

// Needs returns what a claim needs from each budget.
func (p *Part) Needs(c Claim, r *Rules, now int64) []Need {
	now = p.advance(now)
	list := p.needs(nil, &c, r.Spends(nil, &c), r, now)
	for i := range list {
		if list[i].Waiting = c.Waiting; len(c.Clients) == 0 {
			list[i].Share = 1
		}
	}
	return list
}

// Has reports whether the replica has a permit for a claim.
func (p *Part) Has(c Claim) bool { return p.reservations[c.ID] != nil }

// Check decides whether this replica's own requests and reports refuse a claim. It reserves nothing.
func (p *Part) Check(c Claim, r *Rules, now int64) Decision {
	now = p.advance(now)
	if p.Has(c) {
		return Decision{Granted: true}
	}
	return p.check(&c, p.needs(nil, &c, r.Spends(nil, &c), r, now), r, now, nil, false)
}

// Admit decides a claim for which the replica has leases, like [Ledger.Admit].
func (p *Part) Admit(c Claim, r *Rules, now int64) Decision {
	now = p.advance(now)
	return p.admit(&c, p.needs(nil, &c, r.Spends(nil, &c), r, now), r, now, p.others, false)
}

// Touches returns the budgets that a permit of a claim uses, and the window of another resource that its response
// named.
func (p *Part) Touches(c Claim, named string, r *Rules) []string {
	list := []string{slotsBudget, probeBudget, startPrefix + c.Resource, windowPrefix + c.Resource}
	if named != "" && named != c.Resource {
		list = append(list, startPrefix+named, windowPrefix+named)
	}
	if len(c.Clients) > 0 {
		list = append(list, slotsPrefix+c.Client)
		for _, name := range c.names() {
			list = append(list, clientBudget(c.Resource, name))
		}
	}
	for _, s := range r.Spends(nil, &c) {
		list = append(list, logKey(s.Budget, s.Scope))
		if len(c.Clients) > 0 && s.Budget != Writes {
			list = append(list, clientKey(list[len(list)-1], c.Client))
		}
	}
	return list
}

// RecentPoints returns the points in use of all operations, an upper bound of the requests within the window of points.
func (p *Part) RecentPoints(now int64) (points int64) {
	for _, l := range p.Logs {
		if l.Budget == Points {
			l.expire(now)
			points += l.Total + l.held
		}
	}
	return points
}

// Use is what a replica uses of one budget.
type Use struct {
	// Spent is the number of tokens that will return at a known time. Held is the number of tokens of open permits.
	Spent int64 `json:"spent"`
	Held  int64 `json:"held"`
	// Reported is the number of tokens of a primary window that reports contain.
	Reported int64 `json:"reported"`
	// Returns and Ends are the times at which the first and the last spent token return, or zero.
	Returns int64 `json:"returns,string"`
	Ends    int64 `json:"ends,string"`
	// Keep is the time for which the upstream counts a spent token, in microseconds.
	Keep int64 `json:"returns_after"`
}

// Total returns the number of tokens in use.
func (u Use) Total() int64 { return u.Spent + u.Held }

// plus adds what other replicas use of the budget.
func (u Use) plus(other Use) Use {
	u.Spent, u.Held, u.Ends = u.Spent+other.Spent, u.Held+other.Held, max(u.Ends, other.Ends)
	if u.Returns == 0 || other.Returns != 0 && other.Returns < u.Returns {
		u.Returns = other.Returns
	}
	return u
}

// Used returns the budgets of which the replica uses tokens.
func (p *Part) Used(now int64) []string {
	now = p.advance(now)
	names := []string{slotsBudget, probeBudget}
	names = slices.AppendSeq(names, maps.Keys(p.Logs))
	for resource, w := range p.Windows {
		names = append(names, windowPrefix+resource, startPrefix+resource)
		for client := range w.Clients {
			names = append(names, clientBudget(resource, client))
		}
	}
	for _, v := range p.reservations {
		if name := slotsPrefix + v.client; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return slices.DeleteFunc(names, func(name string) bool {
		u := p.Use(name, now)
		return u.Total() == 0 && u.Reported == 0
	})
}

// Use returns the use of one budget.
func (p *Part) Use(budget string, now int64) Use {
	now = p.advance(now)
	if l := p.logOf(budget, now); l != nil {
		return l.use(now)
	}
	switch {
	case budget == slotsBudget:
		return Use{Held: int64(len(p.reservations))}
	case budget == probeBudget && p.Cooldown.probe != 0:
		return Use{Held: 1}
	}
	if client, ok := strings.CutPrefix(budget, slotsPrefix); ok {
		return Use{Held: p.slotsOf(client)}
	}
	if w := p.windowOf(budget, now); w != nil {
		return Use{Spent: w.Unconfirmed.Total, Held: w.inUse, Reported: w.reported, Keep: w.Unconfirmed.Window}
	}
	if resource, ok := strings.CutPrefix(budget, startPrefix); ok {
		// The tokens return after a second, because the response may be lost, or have no rate headers.
		if w := p.Windows[resource]; w != nil && !w.Confirmed && now-w.lastSlowStart < slowStartEvery {
			w.expire(now)
			return Use{Held: min(w.slowStarted, slowStartBurst)}
		}
	}
	return Use{}
}

// windowOf returns the primary window of a budget without ended windows, or nil.
func (p *Part) windowOf(budget string, now int64) *window {
	resource, ok := strings.CutPrefix(budget, windowPrefix)
	w := p.Windows[resource]
	if !ok || w == nil {
		return nil
	}
	w.expire(now)
	return w
}

// logOf returns the log of a budget, or nil. Requests in ended windows are removed.
func (p *Part) logOf(budget string, now int64) *slidingLog {
	scope, ok := strings.CutPrefix(budget, clientPrefix)
	if l := p.Logs[budget]; l != nil || !ok {
		return l
	}
	resource, client, _ := strings.Cut(scope, ":")
	if w := p.windowOf(windowPrefix+resource, now); w != nil {
		return w.Clients[client]
	}
	return nil
}

// Returns returns the times at which spent tokens of a budget return, in order, with the numbers of tokens.
func (p *Part) Returns(budget string, now int64) iter.Seq2[int64, int64] {
	l := p.logOf(budget, now)
	if w := p.windowOf(budget, now); w != nil {
		l = &w.Unconfirmed
	}
	return func(yield func(at, tokens int64) bool) {
		if l == nil {
			return
		}
		l.expire(now)
		for _, e := range l.Entries {
			if !yield(e.At+l.Window, e.Cost) {
				return
			}
		}
	}
}

// WindowsEnded counts how many windows of a resource have ended.
func (p *Part) WindowsEnded(budget string, now int64) int64 {
	if w := p.windowOf(budget, now); w != nil {
		return w.ended
	}
	return 0
}

// SetOthers records the tokens of other replicas in one budget.
func (p *Part) SetOthers(budget string, tokens int64) {
	if tokens == 0 {
		delete(p.others, budget)
	} else {
		p.others[budget] = tokens
	}
}

// Others returns the tokens of other replicas in one budget.
func (p *Part) Others(budget string) int64 { return p.others[budget] }

// RetryAt returns the time of the next attempt of a claim that a client budget has refused.
func (p *Part) RetryAt(c Claim, r *Rules, now int64) int64 {
	return p.window(r, c.Resource).retryAt(&c, r, p.others, now)
}

// WindowState is what replicas exchange about the windows of one resource. Times are on the clock of Redis, and texts, because
// its JSON decoder rounds large numbers.
type WindowState struct {
	Budget  string         `json:"budget"`
	Version int64          `json:"version"` // that the replica has learned
	Silent  int64          `json:"silent"`
	Opened  int64          `json:"opened,string"`
	Reports []sharedReport `json:"reports,omitempty"`
}

// sharedReport is a [report].
type sharedReport struct {
	Reset     int64 `json:"reset,string"`
	MaxOffset int64 `json:"max_offset,string"`
	MinOffset int64 `json:"min_offset,string"`
	Limit     int64 `json:"limit"`
	Used      int64 `json:"used"`
	Responses int64 `json:"responses"`
	Granted   int64 `json:"granted"` // in a call
	// Own and Lost are the counts of the replica in a call, and those of the other replicas in a reply.
	Own  int64 `json:"own"`
	Lost int64 `json:"lost"`
}

// WindowState returns the knowledge about a window. Without a time of Redis, it has no reports.
func (p *Part) WindowState(budget string, now int64) WindowState {
	s, w := WindowState{Budget: budget}, p.windowOf(budget, now)
	if w == nil || !p.timed {
		return s
	}
	s.Silent = w.Silent
	earliest := func(at int64) int64 {
		if at == 0 {
			return 0
		}
		return at + p.least
	}
	s.Opened = earliest(w.Opened)
	for _, r := range w.Reports {
		s.Reports = append(s.Reports, sharedReport{
			r.Reset, r.MaxOffset + p.most, r.MinOffset + p.least, r.Limit, r.Used, r.Responses, earliest(r.Granted), r.Counts.Own, r.Counts.Lost,
		})
	}
	return s
}

// HasReports reports whether a window has reports.
func (p *Part) HasReports(budget string, now int64) bool {
	w := p.windowOf(budget, now)
	return w != nil && len(w.Reports) > 0
}

// LearnWindow adds the knowledge of all replicas about a window.
func (p *Part) LearnWindow(budget string, s WindowState, r *Rules, now int64) {
	resource := strings.TrimPrefix(budget, windowPrefix)
	now = p.advance(now)
	w := p.window(r, resource)
	w.Silent = max(w.Silent, s.Silent)
	if opened := s.Opened - p.most; s.Opened != 0 && opened > w.Opened+resetJitter { // the conversion of a known time is not exact
		w.expire(now)
		w.open(opened, int64(r.For(p.kind(r), resource).Max))
	}
	for _, o := range s.Reports {
		w.merge(report{
			Reset: o.Reset, MaxOffset: o.MaxOffset - p.least, MinOffset: o.MinOffset - p.most, Limit: o.Limit, Used: o.Used,
			Responses: o.Responses, Foreign: counts{o.Own, o.Lost},
		}, now)
	}
}

// LearnEnforced records that the upstream limits the account.
func (p *Part) LearnEnforced(enforced bool) { p.Enforced = p.Enforced || enforced }

// CooldownChanges returns the number of changes of the cool-down that other replicas do not have yet.
func (p *Part) CooldownChanges() int { return len(p.changes) }

// CooldownState is the cool-down of an account for other replicas, with times on the clock of Redis. Its text is JSON.
type CooldownState struct{ cooldown }

// MarshalText implements [encoding.TextMarshaler].
func (s CooldownState) MarshalText() ([]byte, error) { return json.Marshal(s.cooldown) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (s *CooldownState) UnmarshalText(text []byte) error { return json.Unmarshal(text, &s.cooldown) }

// CooldownState returns the cool-down for other replicas.
func (p *Part) CooldownState() *CooldownState {
	c := p.Cooldown.clone()
	c.shift(p.most)
	return &CooldownState{c}
}

// CooldownStored records that Redis contains the first changes of the cool-down.
func (p *Part) CooldownStored(changes int) { p.changes = slices.Delete(p.changes, 0, changes) }

// LearnCooldown replaces the cool-down by the cool-down that another replica stored, and repeats the changes that are
// not stored yet. A change without an effect needs no further call: many replicas may get limit errors of one cause together.
func (p *Part) LearnCooldown(s *CooldownState, now int64) {
	c := s.clone()
	c.shift(-p.least)
	c.bound(now)
	c.probe = p.Cooldown.probe
	p.changes = slices.DeleteFunc(p.changes, func(change func(*cooldown)) bool {
		before := c.clone()
		change(&c)
		return before.equal(&c)
	})
	p.Cooldown = c
}

// CooldownUntil returns the end of the cool-down, or zero. probing means that only a probe may follow.
func (p *Part) CooldownUntil() (until int64, probing bool) {
	return p.Cooldown.Until, p.Cooldown.Probing
}

// Idle reports whether the replica uses nothing of the account.
func (p *Part) Idle(now int64) bool { return len(p.changes) == 0 && p.idle(now) }
