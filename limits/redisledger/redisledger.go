// Package redisledger is the ledger that replicas share: the account machine of
// package limits as Lua scripts in Redis.
//
// One account is one hash, so that a script may touch all of it wherever Redis
// Cluster keeps it, and all of it lives and is lost together:
//
//	weir:{TAG}       TAG is the hash of the account's name
//	  n              its kind and name
//	  m              its time, places taken, cool-down (account.lua, loadmeta)
//	  w:RESOURCE     what is known of a primary window, and how much is in flight
//	  l:BUDGET:SCOPE a sliding log: window, total, what is held, its newest entry
//	  e:BUDGET:SCOPE its older entries, 24 bytes each
//	  x:ID           a lease: when it ends, and what it holds
//	weir:accounts    sorted set of the accounts' kinds and names by when they were last used
//
// Invariants: every script takes one round trip and decides on the whole
// account at once; Redis's clock is read once in each; every key has a TTL; no
// command is sent twice by the client, and one that is changes nothing (every
// change names a permit). A refused admission writes nothing.
//
// It trusts Redis with what accounts have spent; it never gives it a token. An
// account takes about 300 bytes, 100 for each permit in flight, and for each
// operation that was called within a window 70, plus 24 for every entry of its
// log: at most 257 of them, 6 KB.
package redisledger

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/limits/signals"
	"github.com/weirgate/weir/policy"
)

//go:embed clock.lua
var clock string

//go:embed account.lua
var account string

//go:embed admit.lua
var admit string

//go:embed settle.lua
var settle string

//go:embed release.lua
var release string

//go:embed renew.lua
var renew string

//go:embed read.lua
var read string

// scripts are the programs that run in Redis: the account machine, and one
// step of it.
type scripts struct{ admit, settle, release, renew, read *redis.Script }

func newScripts(clock string) scripts {
	step := func(text string) *redis.Script { return redis.NewScript(clock + account + text) }
	return scripts{step(admit), step(settle), step(release), step(renew), step(read)}
}

// Ledger implements [limits.Ledger] in Redis. It is safe for concurrent use.
type Ledger struct {
	client  redis.UniversalClient
	replica string
	rules   atomic.Pointer[limits.Rules]
	scripts scripts

	mu   sync.Mutex           // guards what follows
	seen map[string]time.Time // accounts, and when they were entered into the index
}

// New returns a ledger for this replica; its name must be no other's.
func New(client redis.UniversalClient, replica string, rules limits.Rules) *Ledger {
	l := &Ledger{client: client, replica: replica, scripts: newScripts(clock), seen: map[string]time.Time{}}
	l.Configure(rules)
	return l
}

// Configure replaces the rules. What is known of windows that have begun stays.
func (l *Ledger) Configure(rules limits.Rules) { l.rules.Store(&rules) }

const (
	prefix = "weir:"
	index  = prefix + "accounts"
	// timeout bounds every call: a ledger that does not answer is lost.
	timeout = 50 * time.Millisecond
	// keptBeyond is how long an account is kept beyond its longest window.
	keptBeyond = 2 * time.Hour
)

// keyOf is where an account is kept.
func keyOf(name string) string {
	sum := sha256.Sum256([]byte(name))
	return prefix + "{" + hex.EncodeToString(sum[:16]) + "}"
}

// run runs a step on an account.
func (l *Ledger) run(ctx context.Context, step *redis.Script, name string, args []any) *redis.Cmd {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	text, err := json.Marshal(args)
	if err != nil {
		panic(err) // numbers and strings
	}
	return step.Run(ctx, l.client, []string{keyOf(name)}, text)
}

// ttl is for an account, in milliseconds.
func ttl(r *limits.Rules) int64 {
	longest := max(r.Primary.Window, r.Search.Window, r.Points.Window, r.Limits.CPU.Window)
	for _, w := range r.Content {
		longest = max(longest, w.Window)
	}
	return (longest + keptBeyond).Milliseconds()
}

// resource is a window as scripts take it: its name, and what is documented.
// What is in nobody's list counts as core.
func resource(r *limits.Rules, kind policy.CallerKind, name string) []any {
	if !policy.IsResource(name) {
		name = policy.Core
	}
	w := r.For(kind, name)
	return []any{name, w.Max, w.Window.Microseconds()}
}

// title is the field by which an account is known to people.
func title(kind policy.CallerKind, name string) string { return string(kind) + " " + name }

func (l *Ledger) id(c limits.Claim) string { return l.replica + ":" + strconv.FormatUint(c.ID, 36) }

// logName is a sliding log's name in Redis. Scopes may hold spaces; records in
// Redis are separated by them.
func logName(s *limits.Spend) string {
	return string(s.Budget) + ":" + strings.ReplaceAll(s.Scope, " ", "\x1f")
}

// flag is a truth value as scripts take it.
func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Admit implements [limits.Ledger].
func (l *Ledger) Admit(ctx context.Context, c limits.Claim) (limits.Decision, error) {
	r := l.rules.Load()
	var room [limits.MaxSpends]limits.Spend
	args := make([]any, 0, 9+7*limits.MaxSpends)
	args = append(args, ttl(r), r.Headroom, r.Usable(int64(r.Concurrent)), title(c.Kind, c.Account), l.id(c))
	args = append(append(args, resource(r, c.Kind, c.Resource)...), flag(c.Batch))
	for _, s := range r.Spends(c, room[:0]) {
		args = append(args, logName(&s), string(s.Budget), s.Cost, s.Limit, s.Window.Microseconds(), s.Merge.Microseconds(), flag(s.Budget == limits.CPU))
	}
	answer, err := l.run(ctx, l.scripts.admit, c.Account, args).Slice()
	if err != nil {
		return limits.Decision{}, lost(err)
	}
	if answer[0] == int64(1) {
		l.meet(c)
		return limits.Decision{Granted: true}, nil
	}
	wait, err := strconv.ParseInt(fmt.Sprint(answer[1]), 10, 64)
	if err != nil {
		return limits.Decision{}, lost(err)
	}
	d := limits.Decision{Reason: limits.Reason(fmt.Sprint(answer[2]))}
	if wait != 0 {
		d.Until = time.Now().Add(time.Duration(wait) * time.Microsecond)
	}
	return d, nil
}

func lost(err error) error { return fmt.Errorf("the ledger in Redis does not answer: %w", err) }

// Settle implements [limits.Ledger].
func (l *Ledger) Settle(ctx context.Context, p limits.Permit, o limits.Outcome) error {
	r := l.rules.Load()
	named := o.Rate.Resource
	if named == "" {
		named = p.Resource
	}
	var room [limits.MaxSpends]limits.Spend
	args := make([]any, 0, 20+limits.MaxSpends)
	args = append(args, ttl(r), r.Headroom, r.Usable(int64(r.Concurrent)), title(p.Kind, p.Account), l.id(p.Claim))
	args = append(args, resource(r, p.Kind, named)...)
	args = append(args, flag(o.Sent), o.Resent, flag(o.Answered), flag(o.Ended), flag(o.Failed), r.Milliseconds(o.Elapsed))
	limited := ""
	switch o.Limited {
	case signals.PrimaryLimit:
		limited = "primary"
	case signals.SecondaryLimit:
		limited = "secondary"
	case signals.NotLimited:
	}
	args = append(args, limited, o.RetryAfter.Microseconds())
	var date int64
	if !o.Rate.Date.IsZero() {
		date = o.Rate.Date.UnixMicro()
	}
	args = append(args, o.Rate.Limit, o.Rate.Used, max(0, o.Rate.Reset.UnixMicro()), date)
	for _, s := range r.Spends(p.Claim, room[:0]) {
		args = append(args, logName(&s))
	}
	if err := l.run(ctx, l.scripts.settle, p.Account, args).Err(); err != nil {
		return lost(err)
	}
	if err := l.see(ctx, p.Kind, p.Account); err != nil {
		return lost(err)
	}
	return nil
}

// Release implements [limits.Ledger].
func (l *Ledger) Release(ctx context.Context, p limits.Permit, aborted bool) error {
	if err := l.run(ctx, l.scripts.release, p.Account, []any{ttl(l.rules.Load()), l.id(p.Claim), flag(aborted)}).Err(); err != nil {
		return lost(err)
	}
	return nil
}

// Renew implements [limits.Ledger].
func (l *Ledger) Renew(ctx context.Context, flights []limits.Flight) error {
	r := l.rules.Load()
	var room [limits.MaxSpends]limits.Spend
	for _, f := range flights {
		args := []any{ttl(r), title(f.Kind, f.Account), l.id(f.Claim)}
		args = append(append(args, resource(r, f.Kind, f.Resource)...), r.Milliseconds(f.Elapsed))
		for _, s := range r.Spends(f.Claim, room[:0]) {
			args = append(args, logName(&s), s.Cost, s.Window.Microseconds(), s.Merge.Microseconds(), flag(s.Budget == limits.CPU))
		}
		if err := l.run(ctx, l.scripts.renew, f.Account, args).Err(); err != nil {
			return lost(err)
		}
	}
	return nil
}

// Budget implements [limits.Ledger].
func (l *Ledger) Budget(ctx context.Context, name string, kind policy.CallerKind, res string) (limits.Budget, error) {
	r := l.rules.Load()
	a, err := l.read(ctx, name, resource(r, kind, res))
	if err != nil {
		return limits.Budget{}, err
	}
	return a.Budgets[0], nil
}

// Accounts implements [limits.Ledger], ordered by name.
func (l *Ledger) Accounts(ctx context.Context, most int) ([]limits.Account, error) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	names, err := l.client.ZRevRange(limited, index, 0, int64(most-1)).Result()
	if err != nil {
		return nil, lost(err)
	}
	names = l.withOwn(names, most)
	r := l.rules.Load()
	list := make([]limits.Account, 0, len(names))
	for _, name := range names {
		kind, name, _ := strings.Cut(name, " ")
		var windows []any
		for _, known := range policy.Resources() {
			windows = append(windows, resource(r, policy.CallerKind(kind), known)...)
		}
		a, err := l.read(ctx, name, windows)
		if err != nil {
			return nil, err
		}
		list = append(list, a)
	}
	return list, nil
}

// withOwn adds the accounts that this replica has not entered yet.
func (l *Ledger) withOwn(names []string, most int) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for title, at := range l.seen {
		if at.IsZero() {
			names = append(names, title)
		}
	}
	slices.SortFunc(names, func(x, y string) int {
		_, x, _ = strings.Cut(x, " ")
		_, y, _ = strings.Cut(y, " ")
		return strings.Compare(x, y)
	})
	names = slices.Compact(names)
	return names[:min(most, len(names))]
}

// meet notes an account that is used; it is entered into the index later, so
// that an admission stays one round trip.
func (l *Ledger) meet(c limits.Claim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := title(c.Kind, c.Account); l.seen[t].IsZero() {
		l.seen[t] = time.Time{}
	}
}

// seeEvery is how often an account in use is entered anew into the index.
const seeEvery = time.Minute

// see enters an account into the index, and drops those not seen for long.
func (l *Ledger) see(ctx context.Context, kind policy.CallerKind, name string) error {
	now := time.Now()
	l.mu.Lock()
	t := title(kind, name)
	if now.Sub(l.seen[t]) < seeEvery {
		l.mu.Unlock()
		return nil
	}
	maps.DeleteFunc(l.seen, func(_ string, at time.Time) bool { return !at.IsZero() && now.Sub(at) > keptBeyond })
	l.seen[t] = now
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err := l.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.ZAdd(ctx, index, redis.Z{Score: float64(now.Unix()), Member: t})
		p.ZRemRangeByScore(ctx, index, "-inf", strconv.FormatInt(now.Add(-keptBeyond).Unix(), 10))
		p.PExpire(ctx, index, keptBeyond)
		return nil
	})
	return err
}

// read tells the state of an account, with the windows that are named.
func (l *Ledger) read(ctx context.Context, name string, windows []any) (limits.Account, error) {
	r := l.rules.Load()
	args := append([]any{r.Headroom, r.Usable(int64(r.Concurrent))}, windows...)
	fields, err := l.run(ctx, l.scripts.read, name, args).StringSlice()
	if err != nil {
		return limits.Account{}, lost(err)
	}
	return parseAccount(name, fields, r)
}
