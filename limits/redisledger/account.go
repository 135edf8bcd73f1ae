package redisledger

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/weirgate/weir/internal/redisclient"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// shadow is what this replica knows of an account without asking Redis: what it
// has written there lately, so that it can write it again; what it was told;
// and what it may use alone. Its fields are guarded by Ledger.mu.
type shadow struct {
	name  string
	kind  policy.CallerKind
	acked int64     // writes of this replica that are done
	seen  time.Time // when the account was entered into the index
	used  time.Time
	turn  time.Time // when it was brought up to date
	// ahead is how far Redis's clock is ahead of ours, in microseconds.
	ahead int64
	// until is the end of a cool-down, on Redis's clock.
	until   int64
	logs    map[string]*ownLog
	told    map[string][]statement // by resource
	budgets map[string]limits.Budget
	classes map[string]*class
	flights map[uint64]*flight // by the permit's ID; the copies of one by its complement
	// alone are permits that were granted while Redis was lost.
	alone map[uint64]*aloneFlight
	// heard is set when something was heard that Redis has not been told.
	heard bool
	// returning is set while what was used alone is told.
	returning bool
	// restores is how often writes were found missing.
	restores int
	// turns are those in which Redis is told and asked; strays what became of permits that
	// no flight is known of; soon is set while a turn is to come without being asked for.
	turns  redisclient.Batcher[*ask]
	strays []tell
	soon   bool
	// kinds are the permits that were asked for ahead; stands tells which of them stand for
	// which claims, by their IDs; refills and sweeps are set while somebody asks for more, and
	// gives back what is over. distrusts counts how often all were given back.
	kinds           map[likeness]*ahead
	stands          map[uint64]uint64
	refills, sweeps bool
	distrusts       int
}

// ownLog is what this replica has spent of one sliding log within its window.
type ownLog struct {
	window, merge int64
	entries       []entry // in the order of their stamps
}

// entry is what was spent from first to stamp. write is the last of this
// replica's writes that it was told to Redis by; zero if by none.
type entry struct{ first, stamp, cost, write int64 }

// spend enters a spend; what lies within the merging width of an entry joins it.
func (l *ownLog) spend(at, cost, write int64) {
	if cost == 0 {
		return
	}
	if n := len(l.entries); n > 0 {
		if e := &l.entries[n-1]; at-e.first < max(l.merge, 1) {
			e.stamp, e.cost, e.write = max(at, e.stamp), e.cost+cost, max(write, e.write)
			return
		}
	}
	l.entries = append(l.entries, entry{at, at, cost, write})
}

// total drops what has returned and says what is left.
func (l *ownLog) total(now int64) int64 {
	var total int64
	kept := l.entries[:0]
	for _, e := range l.entries {
		if e.stamp+l.window > now {
			kept = append(kept, e)
			total += e.cost
		}
	}
	l.entries = kept
	return total
}

// join enters what another log of the same widths has.
func (l *ownLog) join(other *ownLog) {
	for _, e := range other.entries {
		l.spend(e.stamp, e.cost, 0)
	}
}

// covers gives the log the widths of what may have been counted in a primary
// window of that length (account.lua, ghosts).
func (l *ownLog) covers(window time.Duration) {
	l.window = (window + sameReset).Microseconds()
	l.merge = l.window / 256
}

// last is the newest stamp; zero when there is none.
func (l *ownLog) last() int64 {
	if len(l.entries) == 0 {
		return 0
	}
	return l.entries[len(l.entries)-1].stamp
}

// idleAfter is when an account that is not used any more is forgotten here.
const idleAfter = 10 * time.Minute

// shadow returns what is known of an account.
func (l *Ledger) shadow(name string, kind policy.CallerKind) *shadow {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.accounts[name]
	if s == nil {
		s = &shadow{
			name: name, kind: kind, logs: map[string]*ownLog{}, told: map[string][]statement{},
			budgets: map[string]limits.Budget{}, classes: map[string]*class{}, alone: map[uint64]*aloneFlight{}, flights: map[uint64]*flight{},
			kinds: map[likeness]*ahead{}, stands: map[uint64]uint64{},
		}
		l.accounts[name] = s
	}
	s.used = time.Now()
	return s
}

// title is how an account is known to people in Redis.
func (s *shadow) title() string { return string(s.kind) + " " + s.name }

// now is Redis's clock, as far as is known.
func (s *shadow) now() int64 { return time.Now().UnixMicro() + s.ahead }

// log returns this replica's part of a log.
func (s *shadow) log(spend *limits.Spend) *ownLog {
	name := logName(spend)
	own := s.logs[name]
	if own == nil {
		own = &ownLog{}
		s.logs[name] = own
	}
	own.window, own.merge = spend.Window.Microseconds(), spend.Merge.Microseconds()
	return own
}

// settled notes what a settling has written, and what it was shown: {limit, used, reset}.
// The caller holds Ledger.mu.
func (s *shadow) settled(p limits.Permit, o limits.Outcome, r *limits.Rules, write, now int64, shown rateReply) {
	named := named(o.Rate.Resource, p.Resource)
	s.expire(p.ID, r)
	f := s.flights[p.ID]
	before := f != nil && !f.open() // what is settled again tells nothing (settle.lua)
	if f.open() {
		at, later := now, now+lingerTime.Microseconds()
		charged := o
		if !o.Answered {
			at, charged.Elapsed = later, max(o.Elapsed, f.elapsed)
		}
		if o.Sent {
			s.spent(p.Claim, charged, r, write, at, later)
		}
		s.land(p.ID, o)
	}
	b := limits.Budget{Resource: named, Limit: shown.Limit, Window: r.For(s.kind, named).Window}
	b.Used = min(shown.Used, b.Limit)
	b.Remaining = b.Limit - b.Used
	b.Reset = time.UnixMicro(shown.Reset - s.ahead)
	s.budgets[named] = b
	if !before {
		s.hear(named, o, b)
	}
}

// spent notes a request as spent at some time, and what was sent of it before
// later. The caller holds Ledger.mu.
func (s *shadow) spent(c limits.Claim, o limits.Outcome, r *limits.Rules, write, at, later int64) {
	spends := r.Spends(c)
	copies := int64(o.Resent)
	for i := range spends {
		cost := spends[i].Cost
		if spends[i].Budget == limits.CPU {
			if taken := r.Milliseconds(o.Elapsed); o.Answered || taken > cost {
				cost = taken
			}
		}
		s.log(&spends[i]).spend(at, cost, write)
		if spends[i].Budget != limits.CPU {
			s.log(&spends[i]).spend(later, cost*copies, write)
		}
	}
	switch {
	case !o.Answered:
		s.ghosts(c.Resource, r).spend(at, 1, write)
	case o.Rate.Limit == 0:
		s.ghosts(named(o.Rate.Resource, c.Resource), r).spend(at, 1, write)
	}
	s.ghosts(c.Resource, r).spend(later, copies, write)
}

// statement is what answers have told of one of the upstream's windows; heard is
// when the first of them came, on Redis's clock.
type statement struct {
	limits.Rate
	heard int64
}

// reopens is when the window is taken to be over (account.lua, reopens).
func (t statement) reopens() int64 {
	over := t.Reset.UnixMicro() + t.late()
	if t.heard != 0 {
		over = min(over, t.heard+longest.Microseconds())
	}
	return over + sameReset.Microseconds()
}

// longest bounds how far away a reset can be (account.lua).
const longest = 24 * time.Hour

// late is how far Redis's clock may be ahead of the upstream's, as far as is known.
func (t statement) late() int64 {
	if t.Date.IsZero() {
		return 0
	}
	return t.heard - t.Date.UnixMicro()
}

// sameReset is how far two statements of one reset may lie apart (account.lua,
// jitter).
const sameReset = 2 * time.Second

// hear keeps what an answer has told, and reports whether it has: after a limit error
// the window is used up, whatever the answer told. Of one that nothing is known of
// b.Limit and b.Window are.
func (s *shadow) hear(res string, o limits.Outcome, b limits.Budget) (told bool) {
	told = s.note(res, o.Rate)
	if o.Limited != limits.PrimaryLimit {
		return told
	}
	list := slices.DeleteFunc(s.told[res], func(t statement) bool { return t.reopens() <= s.now() })
	if len(list) == 0 { // made up, as settle.lua does: heard of from nobody
		list = append(list, statement{limits.Rate{Limit: b.Limit, Reset: time.UnixMicro(s.now()).Add(b.Window)}, 0})
	}
	for i := range list {
		list[i].Used = max(list[i].Used, list[i].Limit)
	}
	s.told[res] = list
	return told
}

// note keeps a statement, of the two newest windows that are not over, and reports
// whether it did: answers may overtake each other, and used only grows.
func (s *shadow) note(res string, rate limits.Rate) (kept bool) {
	now := statement{rate, s.now()}
	if rate.Limit == 0 || now.reopens() <= now.heard {
		return false
	}
	list := s.told[res]
	for i := range list {
		if apart := rate.Reset.Sub(list[i].Reset).Abs(); apart <= sameReset {
			told := &list[i]
			told.Used, told.Limit = max(told.Used, rate.Used), rate.Limit
			if rate.Reset.After(told.Reset) {
				told.Reset = rate.Reset
			}
			if !rate.Date.IsZero() && (told.Date.IsZero() || now.late() < told.late()) {
				told.Date, told.heard = rate.Date, now.heard
			}
			told.heard = cmp.Or(told.heard, now.heard)
			return true
		}
	}
	list = append(list, now)
	slices.SortFunc(list, func(a, b statement) int { return a.Reset.Compare(b.Reset) })
	s.told[res] = list[max(0, len(list)-2):]
	return true
}

// named is the resource that an answer has named, or else its permit.
func named(answer, permit string) string {
	if name := cmp.Or(answer, permit); policy.IsResource(name) {
		return name
	}
	return policy.Core
}

// ghosts is this replica's part of what was perhaps counted in a primary window,
// by no answer that told of it.
func (s *shadow) ghosts(res string, r *limits.Rules) *ownLog {
	res = named(res, "")
	name := "unconfirmed:" + res
	own := s.logs[name]
	if own == nil {
		own = &ownLog{}
		s.logs[name] = own
	}
	own.covers(r.For(s.kind, res).Window)
	return own
}

// remembered is what was told last of a budget; the documented one before.
func (l *Ledger) remembered(s *shadow, res string, r *limits.Rules) (limits.Budget, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, ok := s.budgets[res]
	ok = ok && b.Reset.After(time.Now())
	if !ok {
		w := r.For(s.kind, res)
		b = limits.Budget{Resource: res, Limit: w.Max, Reset: time.Now().Add(w.Window), Window: w.Window}
	}
	for _, t := range s.told[res] { // the older window first
		reset := s.here(t)
		switch apart := reset.Sub(b.Reset); {
		case !reset.After(time.Now()):
			continue
		case !ok || apart > sameReset:
			b.Limit, b.Used, b.Reset, ok = t.Limit, t.Used, reset, true
		case apart >= -sameReset:
			b.Used = max(b.Used, t.Used)
		}
	}
	b.Used = min(b.Used, b.Limit)
	b.Remaining = b.Limit - b.Used
	return b, ok
}

// here is a window's reset on our clock, as far as its clock is known to be another
// (told.lua, show).
func (s *shadow) here(t statement) time.Time {
	late := t.late()
	if late > -sameReset.Microseconds() && late < sameReset.Microseconds() {
		late = 0
	}
	return time.UnixMicro(t.Reset.UnixMicro() + late - s.ahead)
}

// restore writes again what Redis has lost: what came after so many of this
// replica's writes, and what it was told. It returns the number that Redis has of
// them if that is another; then it has written nothing.
func (l *Ledger) restore(ctx context.Context, s *shadow, r *limits.Rules, have int64) (has int64, err error) {
	var acked int64
	answer, err := l.run(ctx, l.scripts.restore, s.name, func(process string) call {
		c := l.call(s, r, process, nil)
		acked, c.Step = c.Confirmed, l.own(s, r, have)
		return c
	}, func(answer reply) {
		if have < acked {
			s.restored(have, acked, answer.Writes)
		}
	})
	if err != nil || !answer.Missing {
		return have, err
	}
	return answer.Writes, nil
}

// retell tells Redis what this replica was told while it could not say so, and
// what of its writes is missing.
func (l *Ledger) retell(ctx context.Context, s *shadow, r *limits.Rules) error {
	l.mu.Lock()
	acked, heard := s.acked, s.heard
	s.heard = false
	l.mu.Unlock()
	has, err := l.restore(ctx, s, r, acked)
	if err == nil && has < acked {
		l.Log.Warn("the ledger has lost writes; they are written again", "account", s.name)
		_, err = l.restore(ctx, s, r, has)
	}
	if heard && (err != nil || has > acked) {
		l.mu.Lock()
		s.heard = true
		l.mu.Unlock()
	}
	return err
}

func (l *Ledger) hasHeard(s *shadow) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return s.heard
}

// restored numbers anew what was written after the first have writes. What came
// after those that restore knew of is still missing, and next in turn. The caller
// holds Ledger.mu.
func (s *shadow) restored(have, knew, write int64) {
	s.restores++
	s.acked = max(s.acked, write)
	for _, own := range s.logs {
		for i := range own.entries {
			switch e := &own.entries[i]; {
			case e.write > knew:
				e.write, s.acked = write+1, write+1
			case e.write > have:
				e.write = write
			}
		}
	}
}

// restoreCall is the argument of restore.lua.
type restoreCall struct {
	Have          int64        `json:"have"`
	CooldownUntil int64        `json:"cooldown_until"`
	Logs          []ownCall    `json:"logs,omitempty"`
	Windows       []windowCall `json:"windows,omitempty"`
	Permits       []permitCall `json:"permits,omitempty"`
}

type ownCall struct {
	Name    string      `json:"name"`
	Window  int64       `json:"window"`
	Merge   int64       `json:"merge"`
	Entries []entryCall `json:"entries,omitempty"`
}

type entryCall struct {
	At   int64 `json:"at"`
	Cost int64 `json:"cost"`
}

type windowCall struct {
	Resource resource  `json:"resource"`
	Rate     *rateCall `json:"rate,omitempty"`
	Assumed  bool      `json:"assumed"` // no answer reported the rate
	Received int64     `json:"received"`
}

// own is what this replica has written of an account after so many writes, what
// it was told, and its flights.
func (l *Ledger) own(s *shadow, r *limits.Rules, have int64) restoreCall {
	l.mu.Lock()
	defer l.mu.Unlock()
	args := restoreCall{Have: have, CooldownUntil: s.until, Permits: l.inAir(s, r)}
	now := s.now()
	for name, own := range s.logs {
		if own.total(now) == 0 {
			delete(s.logs, name)
			continue
		}
		record := ownCall{Name: name, Window: own.window, Merge: own.merge}
		for _, e := range own.entries {
			if e.write > have {
				record.Entries = append(record.Entries, entryCall{e.stamp, e.cost})
			}
		}
		args.Logs = append(args.Logs, record)
		if budget, res, _ := strings.Cut(name, ":"); budget == "unconfirmed" || budget == string(limits.Primary) {
			args.Windows = append(args.Windows, windowCall{Resource: resourceOf(r, s.kind, res)})
		}
	}
	for name, list := range s.told {
		// What was made up goes first: it was there before anything was told, and says
		// nothing of that.
		list = slices.SortedStableFunc(slices.Values(list), func(a, b statement) int { return cmp.Compare(min(a.heard, 1), min(b.heard, 1)) })
		for _, told := range list {
			args.Windows = append(args.Windows, windowCall{resourceOf(r, s.kind, name), rateCallOf(told.Rate), told.heard == 0, told.heard})
		}
	}
	return args
}
