package redisledger

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirgate/weir/limits"
)

const (
	// beatEvery is how often a replica tells that it is there, and sets aside
	// anew what it may use without Redis.
	beatEvery = 500 * time.Millisecond
	// seekEvery is how often a Redis that was lost is looked for.
	seekEvery = 100 * time.Millisecond
	// standbyTime is how long what is set aside stands by (account.lua,
	// standby); the margin is for what the clocks may drift apart.
	standbyTime   = 5 * time.Minute
	standbyMargin = 10 * time.Second
	// registeredTime is how long a replica that is silent counts.
	registeredTime = standbyTime
	// beatsAtOnce bounds how many accounts are brought up to date side by side.
	beatsAtOnce = 16
	// beatsInTurn bounds how many are at one beat: where there are more, each has
	// its turn less often, and Redis has its time for permits.
	beatsInTurn = 100
	// ample is how many times what was used lately is set aside.
	ample = 2
	// activeTime is how long after its last use a class is set aside for.
	activeTime = time.Minute
)

// isLost reports whether Redis does not answer.
func (l *Ledger) isLost() bool { return l.lostSince.Load() != 0 }

// Lost is since when Redis does not answer; the zero time while it does.
func (l *Ledger) Lost() time.Time {
	if since := l.lostSince.Load(); since != 0 {
		return time.Unix(0, since)
	}
	return time.Time{}
}

// Replicas is how many replicas are registered.
func (l *Ledger) Replicas() int { return int(l.replicas.Load()) }

func (l *Ledger) lose(err error) {
	if !l.lostSince.CompareAndSwap(0, time.Now().UnixNano()) {
		return
	}
	l.mu.Lock()
	begun := l.begun
	l.mu.Unlock()
	switch {
	case !begun:
		l.Log.Warn("Redis does not answer yet", "error", err)
	case l.Closed:
		l.Log.Error("Redis is lost; this replica refuses what needs it", "error", err)
	default:
		l.Log.Error("Redis is lost; this replica goes on with what it has set aside", "error", err)
	}
}

// Run keeps this replica registered and its shares set aside, and looks for a
// Redis that was lost, until ctx ends.
func (l *Ledger) Run(ctx context.Context) {
	beat, seek := time.NewTicker(beatEvery), time.NewTicker(seekEvery)
	defer beat.Stop()
	defer seek.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-seek.C:
			if l.isLost() {
				l.seek(ctx)
			}
		case <-beat.C:
			if l.isLost() {
				l.forget()
			} else {
				_ = l.beat(ctx) // lost when it fails
			}
		}
	}
}

// seek returns to Redis if it answers: what was spent meanwhile is told before
// anything is asked for.
func (l *Ledger) seek(ctx context.Context) {
	since := l.Lost()
	l.replaced = l.trust() || l.replaced
	if l.answers(ctx) && l.beat(ctx) == nil {
		l.lostSince.Store(0)
		l.Log.Info("Redis is found", "lost_for", time.Since(since))
	}
}

// beat registers this replica, and brings every account in use up to date:
// those for which something is set aside, and all of them when Redis may have
// lost what was written. An error means that Redis has not answered all of it.
func (l *Ledger) beat(ctx context.Context) error {
	again, err := l.register(ctx)
	if err != nil {
		return err
	}
	l.replaced = l.replaced || again
	list := l.inUse(l.replaced)
	if l.replaced { // what others wait for goes first
		err = sideBySide(ctx, list, l.writeAgain)
	}
	if err == nil {
		err = sideBySide(ctx, list, func(ctx context.Context, s *shadow) error { return l.beatAccount(ctx, s, l.replaced) })
	}
	if err == nil {
		l.replaced = false
	}
	return err
}

// leaveTime bounds how long a replica takes to give back what it has set aside.
const leaveTime = 2 * time.Second

// Leave gives back what this replica has set aside, and ends its registration: the others
// need not wait until both are over. A Redis that is lost is looked for as long as that may
// take: when replicas end the machine has much to do. Nothing may be admitted after it, and
// [Ledger.Run] must have ended. What could not be given back is over in five minutes.
func (l *Ledger) Leave(ctx context.Context) error {
	l.mu.Lock()
	l.left = true
	accounts := slices.Collect(maps.Values(l.accounts))
	l.mu.Unlock()
	for _, s := range accounts {
		_ = l.inTurn(ctx, s, &ask{}) // one that is on its way may bring more
		l.giveBackAllAhead(s)        // else when Redis is found
	}
	gives, cancel := context.WithTimeout(ctx, leaveTime)
	defer cancel()
	for {
		err := l.giveBack(gives)
		if err == nil {
			break
		}
		select {
		case <-gives.Done():
			return err
		case <-time.After(seekEvery):
		}
	}
	ctx, cancel = context.WithTimeout(ctx, l.timeout)
	defer cancel()
	return l.Client.ZRem(ctx, replicasKey, l.Replica).Err()
}

// giveBack gives back what this replica has set aside, if Redis answers.
func (l *Ledger) giveBack(ctx context.Context) error {
	if l.isLost() {
		l.seek(ctx)
	}
	if l.isLost() {
		return lost(errLost)
	}
	return sideBySide(ctx, l.inUse(true), func(ctx context.Context, s *shadow) error { return l.beatAccount(ctx, s, false) })
}

// sideBySide does something for several accounts, until it fails for one.
func sideBySide(ctx context.Context, list []*shadow, do func(context.Context, *shadow) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(beatsAtOnce)
	for _, s := range list {
		group.Go(func() error { return do(ctx, s) })
	}
	return group.Wait()
}

// writeAgain writes what Redis may have lost of an account, and what it does not
// know of yet.
func (l *Ledger) writeAgain(ctx context.Context, s *shadow) error {
	r := l.rules.Load()
	l.handed(s, r)
	return l.retell(ctx, s, r)
}

// register keeps this replica registered. It reports whether the server, or what
// it holds, is another than the last time.
func (l *Ledger) register(ctx context.Context) (again bool, err error) {
	limited, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	l.steps.RLock()
	defer l.steps.RUnlock()
	to, err := l.serverOf(limited, shared)
	var argument []byte
	if err == nil {
		argument, err = json.Marshal(l.registration(to.process))
	}
	var text string
	if err == nil {
		text, err = l.scripts.register.Run(limited, to.node, []string{replicasKey, epochKey, secretKey, accountsKey}, argument).Text()
	}
	var known registered
	if err == nil {
		err = json.Unmarshal([]byte(text), &known)
	}
	if err == nil {
		return l.know(known.Replicas, known.Secret, known.Epoch, known.Accounts), nil
	}
	if ctx.Err() == nil {
		l.lose(err)
	}
	return false, lost(err)
}

// registration is the argument of register.lua, and registered its reply.
type registration struct {
	Replica string `json:"replica"`
	TTL     int64  `json:"ttl"` // milliseconds
	Secret  string `json:"secret"`
	Process string `json:"process"`
}

type registered struct {
	Replicas int64  `json:"replicas"`
	Secret   string `json:"secret"`
	Epoch    string `json:"epoch"`
	Accounts int64  `json:"accounts"`
}

func (l *Ledger) registration(process string) registration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.key == "" {
		fresh := make([]byte, 32)
		_, _ = rand.Read(fresh) // never fails (crypto/rand)
		l.key = hex.EncodeToString(fresh)
	}
	return registration{l.Replica, registeredTime.Milliseconds(), l.key, process}
}

// know takes in what all replicas share, and reports whether the server, or what
// it holds, is another than the last time. A key that changes under a running
// replica would give every account another name.
func (l *Ledger) know(replicas int64, key, era string, indexed int64) (again bool) {
	l.replicas.Store(replicas)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.indexed = max(indexed, l.indexed*49/50) // an index that is lost is remembered for a while
	again = era != l.era
	l.era = era
	if l.begun && key != l.key {
		l.Log.Error("another replica names accounts by another key: restart it, or this one")
		return again
	}
	l.key, l.begun = key, true
	return again
}

// Register asks Redis for the first time, until it answers or ctx ends. It returns
// the key by which all replicas name accounts alike.
func (l *Ledger) Register(ctx context.Context) ([]byte, error) {
	for {
		l.trust()
		err := l.beat(ctx)
		if err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(seekEvery):
		}
	}
	l.lostSince.Store(0)
	l.warnOfEviction(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	return hex.DecodeString(l.key)
}

// warnOfEviction tells when Redis may drop what the ledger needs.
func (l *Ledger) warnOfEviction(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	settings, err := l.Client.ConfigGet(limited, "maxmemory*").Result()
	if err != nil {
		return // some do not let themselves be asked
	}
	if policy := settings["maxmemory-policy"]; policy != "noeviction" && settings["maxmemory"] != "0" {
		l.Log.Warn("Redis may evict what accounts have spent: set maxmemory-policy noeviction", "maxmemory_policy", policy)
	}
}

// forget forgets the accounts that nothing is known of.
func (l *Ledger) forget() {
	r := l.rules.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, s := range l.accounts {
		s.forgetLanded(r)
		s.forgetAhead()
		idle := time.Since(s.used) > idleAfter && len(s.alone)+len(s.flights) == 0
		for log, own := range s.logs {
			if own.total(s.now()) == 0 {
				delete(s.logs, log)
			}
		}
		for res, list := range s.told {
			if s.told[res] = slices.DeleteFunc(list, func(t statement) bool { return t.reopens() <= s.now() }); len(s.told[res]) == 0 {
				delete(s.told, res)
			}
		}
		if idle && len(s.logs)+len(s.told) == 0 && s.until <= s.now() {
			delete(l.accounts, name)
		}
	}
}

// inUse lists accounts that something is known of: all of them, or those with
// something to tell or to set aside; of these the ones whose turn it is, unless
// Redis was lost.
func (l *Ledger) inUse(all bool) []*shadow {
	l.forget()
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []*shadow
	for _, s := range l.accounts {
		if all || s.heard || len(s.classes)+len(s.alone)+len(s.flights) > 0 {
			list = append(list, s)
		}
	}
	if !all && !l.isLost() && len(list) > beatsInTurn {
		slices.SortFunc(list, func(a, b *shadow) int { return a.turn.Compare(b.turn) })
		list = list[:beatsInTurn]
	}
	for _, s := range list {
		s.turn = time.Now()
	}
	return list
}

// beatAccount sets aside what this replica may use of an account alone, after
// telling what it has used so and what it could not tell before. Where there is
// nothing to set aside it does so only if it must.
func (l *Ledger) beatAccount(ctx context.Context, s *shadow, must bool) error {
	r := l.rules.Load()
	if l.isLost() {
		l.setReturning(s, true)
		defer l.setReturning(s, false)
	}
	if err := l.handOver(ctx, s, r); err != nil {
		return err
	}
	if err := l.tellKept(ctx, s, r); err != nil {
		return err
	}
	if err := l.see(ctx, s, must); err != nil {
		return err
	}
	args := l.wanted(s, r)
	if len(args.Classes) == 0 && !must && !l.hasHeard(s) {
		return nil
	}
	if l.hasHeard(s) {
		if err := l.retell(ctx, s, r); err != nil {
			return err
		}
	}
	sent := time.Now()
	return l.step(ctx, l.scripts.heartbeat, s, r, args, func(answer reply) {
		s.ahead = answer.Now - time.Now().UnixMicro()
		for i, granted := range answer.Leases[:min(len(answer.Leases), len(args.Classes))] {
			name := args.Classes[i].Name
			own := s.classes[name]
			if own == nil {
				continue
			}
			kept := own.units > 0
			s.aside(own, r, granted, answer, sent.Add(standbyTime-standbyMargin))
			if time.Since(own.used) > activeTime && own.inFlight == 0 && own.units == 0 && !kept {
				delete(s.classes, name) // nothing of it stands by
			}
		}
	})
}

// setReturning keeps an account from being used alone while what was used alone
// is told.
func (l *Ledger) setReturning(s *shadow, returning bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.returning = returning
}

// handOver gives the permits that were granted alone, and are in flight, to
// Redis. What they hold of this replica's share counts until Redis has set aside
// anew.
func (l *Ledger) handOver(ctx context.Context, s *shadow, r *limits.Rules) error {
	for _, f := range l.handed(s, r) {
		known := limits.OpenPermit{Permit: limits.Permit{Claim: f.claim}, Elapsed: f.elapsed}
		if err := l.renew(ctx, s, r, known, f.charged, f.claim.ID); err != nil {
			return err
		}
	}
	return nil
}

// handed makes the permits that were granted alone flights like others, and
// lists those that Redis does not know of.
func (l *Ledger) handed(s *shadow, r *limits.Rules) []flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.sweepAlone(r)
	for id, alone := range s.alone {
		f := &flight{claim: alone.claim, charged: alone.charged, elapsed: alone.elapsed, alone: true, share: alone, seen: time.Now()}
		switch {
		case alone.left != 0 && alone.charged:
			f.ended, f.aborted = true, true
		case alone.left != 0:
			f.outcome = &limits.Outcome{Sent: true, Elapsed: alone.elapsed, Resent: max(0, int(alone.copies)-1)}
		}
		s.flights[f.claim.ID] = f
		delete(s.alone, id)
	}
	var list []flight
	for _, f := range s.flights {
		if f.alone {
			list = append(list, *f)
		}
	}
	return list
}

// aside takes note of what is set aside for a class. What was used alone is
// told: it is as what was spent before. The caller holds Ledger.mu.
func (s *shadow) aside(c *class, r *limits.Rules, granted leaseReply, answer reply, until time.Time) {
	write, now := answer.Writes, answer.Now
	c.until, c.units, c.places, c.parts = until, granted.Units, granted.Places, granted.Logs
	for _, spend := range r.Spends(c.claim) {
		told := c.telling.log(&spend)
		s.log(&spend).spend(max(now, told.last()), told.total(now), write)
	}
	s.ghosts(c.claim.Resource, r).spend(now, c.telling.ghosts.total(now), write)
	c.telling, c.kept = used{}, used{}
	for _, f := range s.flights {
		if f.share != nil && f.share.class == c {
			f.share = nil
		}
	}
	c.held, c.unitsInFlight, c.inFlight = map[string]int64{}, 0, 0
	for _, f := range s.alone {
		if f.class == c {
			f.begin(r)
		}
	}
}

// heartbeatCall is the argument of heartbeat.lua.
type heartbeatCall struct {
	Headroom   float64     `json:"headroom"`
	Concurrent int64       `json:"concurrent"`
	Replicas   int64       `json:"replicas"`
	Classes    []classCall `json:"classes,omitempty"`
}

// classCall is what a replica wants of a class of claims, what it spent while it was offline, and what it keeps of
// its current lease.
type classCall struct {
	Name         string    `json:"name"`
	Resource     resource  `json:"resource"`
	UnitsWanted  int64     `json:"units_wanted"`
	Unconfirmed  int64     `json:"unconfirmed"`
	UnitsKept    int64     `json:"units_kept"`
	PlacesWanted int64     `json:"places_wanted"`
	PlacesKept   int64     `json:"places_kept"`
	Logs         []logCall `json:"logs"`
}

type logCall struct {
	Log       string `json:"log"`
	Limit     int64  `json:"limit"`
	Window    int64  `json:"window"`
	Merge     int64  `json:"merge"`
	Wanted    int64  `json:"wanted"`
	Spent     int64  `json:"spent"`
	Kept      int64  `json:"kept"`
	LastSpent int64  `json:"last_spent"`
}

// leaseReply is the lease that heartbeat.lua grants for a class.
type leaseReply struct {
	Units  int64            `json:"units"`
	Places int64            `json:"places"`
	Logs   map[string]int64 `json:"logs"`
}

// wanted is what heartbeat.lua needs to know of each class.
func (l *Ledger) wanted(s *shadow, r *limits.Rules) heartbeatCall {
	l.mu.Lock()
	defer l.mu.Unlock()
	args := heartbeatCall{Headroom: r.Headroom, Concurrent: r.Usable(int64(r.Concurrent)), Replicas: l.replicas.Load()}
	now := s.now()
	for name, own := range s.classes {
		wants := int64(0)
		if time.Since(own.used) < activeTime {
			wants = 1
		}
		spends := r.Spends(own.claim)
		own.tell(r, spends)
		units, places, parts := own.share(time.Now())
		if l.left {
			wants, units, places, parts = 0, 0, 0, nil
		}
		lately := own.lately(s, spends, now)
		// Units come back one window later: enough of them for as long.
		ratio := 1 + int64((r.For(s.kind, own.claim.Resource).Window+sameReset)/r.Points.Window)
		c := classCall{
			Name: name, Resource: resourceOf(r, s.kind, own.claim.Resource), UnitsWanted: wants * (1 + ample*lately*ratio),
			Unconfirmed: own.telling.ghosts.total(now), UnitsKept: units, PlacesWanted: wants * (1 + lately), PlacesKept: places,
		}
		for i := range spends {
			spend := &spends[i]
			told := own.telling.log(spend)
			c.Logs = append(c.Logs, logCall{
				Log: logName(spend), Limit: spend.Limit, Window: spend.Window.Microseconds(), Merge: spend.Merge.Microseconds(),
				Wanted: wants * (ample*(s.log(spend).total(now)+told.total(now)) + spend.Cost), Spent: told.total(now),
				Kept: parts[logName(spend)], LastSpent: told.last(),
			})
		}
		args.Classes = append(args.Classes, c)
	}
	return args
}

// lately is how many requests of the class this replica has made in the window
// of its points.
func (c *class) lately(s *shadow, spends []limits.Spend, now int64) int64 {
	for i := range spends {
		if spends[i].Budget == limits.Points {
			return (s.log(&spends[i]).total(now) + c.telling.log(&spends[i]).total(now)) / max(1, spends[i].Cost)
		}
	}
	return 0
}
