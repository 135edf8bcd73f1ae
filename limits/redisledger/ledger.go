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
//	  r:REPLICA      how many of its writes are done
//	  a              what these were when it was last looked for replicas that are gone
//	weir:{weir}:replicas  sorted set of replicas by when they were last heard of
//	weir:{weir}:canary    which process keeps this, since when: another, or none, once writes may be lost
//	weir:{weir}:key       by which replicas name accounts alike
//	weir:{weir}:accounts  sorted set of the accounts' kinds and names by when they were last used
//
// Invariants: every script takes one round trip and decides on the whole
// account at once; what is told and asked of an account goes in turns, one after the
// other; Redis's clock is read once in each; every key has a TTL; no
// command is sent twice by the client, and one that is changes nothing (every
// change names a permit). A refused claim writes nothing.
//
// It trusts Redis with what accounts have spent; it never gives it a token. An
// account takes about 900 bytes, 160 for each permit in flight, and for each
// operation that was called within a window 120, plus 24 for every entry of its
// log: at most 257 of them, 6 KB.
package redisledger

import (
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/redisclient"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

//go:embed *.lua
var source embed.FS

// scripts are the programs that run in Redis: the account machine, and one
// step of it. Their time is Redis's only thread: records of numbers are kept as
// struct packs them, which takes half of what cmsgpack does; a lease has names, too.
type scripts struct{ turn, renew, read, restore, beat, mend, members *redis.Script }

func newScripts(clock string) scripts {
	const account, told = "account.lua", "observe.lua"
	step := func(files ...string) *redis.Script {
		text := clock
		for _, name := range files {
			part, err := source.ReadFile(name)
			if err != nil {
				panic(err) // embedded
			}
			text += string(part)
		}
		if files[0] == account {
			text += "\nend)()\n"
		}
		return redis.NewScript(withConstants(text))
	}
	return scripts{
		turn: step(account, told, "settle.lua", "admit.lua", "batch.lua"), renew: step(account, "renew.lua"),
		read: step(account, told, "read.lua"), restore: step(account, told, "restore.lua"),
		beat: step(account, "heartbeat.lua"), mend: step(account, "repair.lua"), members: step("register.lua"),
	}
}

var (
	definition = regexp.MustCompile(`(?m)^--:const (\w+) (\d+|'[^']*').*\n`)
	constant   = regexp.MustCompile(`\b[A-Z]{4,}\b`)
)

// withConstants puts the constants that a script defines in their places.
func withConstants(text string) string {
	values := map[string]string{}
	for _, m := range definition.FindAllStringSubmatch(text, -1) {
		values[m[1]] = m[2]
	}
	text = definition.ReplaceAllString(text, "")
	return constant.ReplaceAllStringFunc(text, func(name string) string { return cmp.Or(values[name], name) })
}

// redisClock reads Redis's clock.
const redisClock = `
local function clock()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end
`

// Config is what a ledger is made of.
type Config struct {
	// URL is where Redis is (see [redisclient.Open]); a Client stands in for it.
	URL    string
	Client redisclient.Client
	// Replica names this replica; no other may have the name.
	Replica string
	Rules   limits.Rules
	// Closed lets nothing go while Redis is lost. Else each replica goes on
	// with what it has set aside.
	Closed bool
	// Log hears when Redis is lost and found.
	Log *slog.Logger
}

// Ledger implements [limits.Ledger] in Redis. It is safe for concurrent use.
// [Ledger.Run] must run beside it.
type Ledger struct {
	Config
	rules   atomic.Pointer[limits.Rules]
	scripts scripts
	timeout time.Duration // of each call
	within  time.Duration // what became of a permit is told; at once where it is 0
	ahead   int           // how many permits of a kind are asked for before they are claimed, at most
	telling sync.WaitGroup
	// lostSince is when Redis stopped to answer, in nanoseconds since 1970; zero
	// while it answers.
	lostSince atomic.Int64
	replicas  atomic.Int64
	// replaced is set while a process that was not met before, or what it keeps, must
	// be told all; only Register and Run use it.
	replaced bool

	// steps is held for reading while a step is made and sent (server.go).
	steps sync.RWMutex

	mu       sync.Mutex // guards what follows
	accounts map[string]*shadow
	// trusted is the process that steps may be sent to at each address; met,
	// one that has answered there since.
	trusted, met map[string]string
	key          string // of the names of accounts, in hexadecimal
	begun        bool   // whether Redis has confirmed the key
	era          string // what the canary said last
	left         bool   // whether this replica wants nothing any more
	indexed      int64  // accounts in the index
	lastAhead    uint64 // the last ID of a permit that was asked for ahead
}

// New returns a ledger. It does not wait for Redis: an error means that the URL
// is none.
func New(c Config) (*Ledger, error) {
	l := &Ledger{Config: c, timeout: timeout, within: tellWithin, ahead: aheadMost, lastAhead: firstAhead(), scripts: newScripts(redisClock), accounts: map[string]*shadow{}, trusted: map[string]string{}, met: map[string]string{}}
	l.replicas.Store(1)
	l.Configure(c.Rules)
	if l.Client == nil {
		client, err := connect(c.URL, l.meet)
		if err != nil {
			return nil, err
		}
		l.Client = client
	}
	return l, nil
}

// Close closes the connections.
func (l *Ledger) Close() error {
	l.mu.Lock()
	l.left = true // nobody begins to tell
	l.mu.Unlock()
	l.telling.Wait()
	return l.Client.Close()
}

// Configure replaces the rules. What is known of windows that have begun stays.
func (l *Ledger) Configure(rules limits.Rules) { l.rules.Store(&rules) }

const (
	prefix = "weir:"
	// What concerns all replicas is kept in one place.
	shared  = prefix + "{weir}:"
	index   = shared + "accounts"
	members = shared + "replicas"
	canary  = shared + "canary"
	secret  = shared + "key"
	// timeout bounds every call: a ledger that does not answer is lost.
	timeout = 50 * time.Millisecond
	// keptBeyond is how long an account is kept beyond its longest window.
	keptBeyond = 2 * time.Hour
)

// keysOf are the keys of a step on an account: where the account is kept, and
// one that tells whether Redis may have lost writes. A cluster keeps the account
// alone where the step runs.
func (l *Ledger) keysOf(name string) []string {
	sum := sha256.Sum256([]byte(name))
	key := prefix + "{" + hex.EncodeToString(sum[:16]) + "}"
	if redisclient.IsCluster(l.Client) {
		return []string{key}
	}
	return []string{key, canary}
}

// step runs a step on an account. Its answer begins with 1 or 0, and how many
// writes of this replica are done; where some are missing (-1), they are
// restored first, and the step is run again. done takes note of what was
// written, under Ledger.mu, before anything is restored again.
func (l *Ledger) step(ctx context.Context, script *redis.Script, s *shadow, r *limits.Rules, done func(answer []any), own ...any) ([]any, error) {
	for try := 0; ; try++ {
		var restores int
		answer, err := l.run(ctx, script, s.name, func(process string) []any {
			l.mu.Lock()
			restores = s.restores
			l.mu.Unlock()
			return append(l.header(s, r, process), own...)
		}, func(answer []any) {
			if s.restores != restores {
				answer[1] = s.acked + 1 // it may have been lost, and was not restored
			}
			s.acked = max(s.acked, number(answer[1]))
			done(answer)
		})
		if err != nil || answer[0] != int64(-1) {
			return answer, err
		}
		if try == 2 {
			return nil, lost(errors.New("writes go on missing"))
		}
		l.Log.Warn("the ledger has lost writes; they are written again", "account", s.name)
		if _, err := l.restore(ctx, s, r, number(answer[1])); err != nil {
			return nil, err
		}
	}
}

// header is how the arguments of every step that changes something begin
// (account.lua, begin).
func (l *Ledger) header(s *shadow, r *limits.Rules, process string) []any {
	careful := redisclient.IsCluster(l.Client) && l.replicas.Load() > 1
	l.mu.Lock()
	defer l.mu.Unlock()
	return []any{ttl(r), s.title(), l.Replica, s.acked, process, truth(careful), l.learning().Microseconds()}
}

const (
	// learnLeast is how long an account grants nothing that may have been lost: all
	// replicas write again what they know meanwhile. It is longer the more accounts
	// they have to write, by what one takes Redis.
	learnLeast = time.Second
	learnEach  = 100 * time.Microsecond
	learnMost  = 30 * time.Second
)

// learning is how long an account grants nothing that may have been lost; the
// caller holds Ledger.mu.
func (l *Ledger) learning() time.Duration {
	return min(learnMost, learnLeast+time.Duration(l.indexed*l.replicas.Load())*learnEach)
}

// run runs a script once, with arguments that are made for the process that
// keeps the account; done takes note of what was written, under Ledger.mu. An
// error means that Redis is lost, unless the caller's own time was over.
func (l *Ledger) run(ctx context.Context, script *redis.Script, name string, args func(process string) []any, done func(answer []any)) ([]any, error) {
	l.steps.RLock()
	defer l.steps.RUnlock()
	limited, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	answer, err := l.send(limited, script, l.keysOf(name), args)
	looks := script == l.scripts.read
	if unreadable(err) && !looks {
		answer, err = l.mend(limited, name, args, err)
	}
	if err != nil {
		if ctx.Err() == nil && (!looks || !unreadable(err)) {
			l.lose(err)
		}
		return nil, lost(err)
	}
	if answer[0] != int64(-1) {
		l.mu.Lock()
		defer l.mu.Unlock()
		done(answer)
	}
	return answer, nil
}

func (l *Ledger) send(ctx context.Context, script *redis.Script, keys []string, args func(process string) []any) ([]any, error) {
	to, err := l.serverOf(ctx, keys[0])
	if err != nil {
		return nil, err
	}
	return script.Run(ctx, to.node, keys, appendArgument(make([]byte, 0, 1<<10), args(to.process))).Slice()
}

// number is a number in an answer; scripts write large ones as text.
func number(v any) int64 {
	switch v := v.(type) {
	case int64:
		return v
	case string:
		n, _ := strconv.ParseInt(v, 10, 64) // 0 for what no script writes
		return n
	}
	return 0
}

// ttl is for an account, in milliseconds.
func ttl(r *limits.Rules) int64 {
	longest := max(r.Primary.Window, r.Search.Window, r.Points.Window, r.CPU.Window)
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

func (l *Ledger) id(c limits.Claim) string { return l.Replica + ":" + strconv.FormatUint(c.ID, 36) }

// logName is a sliding log's name in Redis. Scopes may hold spaces; records in
// Redis are separated by them.
func logName(s *limits.Spend) string {
	return string(s.Budget) + ":" + strings.ReplaceAll(s.Scope, " ", "\x1f")
}

// truth is a truth value as scripts take it.
func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Admit implements [limits.Ledger]. It does not end with ctx: what is granted would be
// nobody's.
func (l *Ledger) Admit(ctx context.Context, c limits.Claim) (limits.Decision, error) {
	s := l.shadow(c.Account, c.Kind)
	if l.takeReady(s, &c) {
		return limits.Decision{Granted: true}, nil
	}
	if l.isLost() {
		return l.admitAlone(s, c, l.rules.Load()), nil
	}
	a := &ask{claim: &c}
	err := l.inTurn(ctx, s, a)
	if err == nil && !a.decision.Granted && a.decision.Until.IsZero() && l.giveBackAllAhead(s) {
		err = l.inTurn(ctx, s, a) // what waited here for others held it up, perhaps
	}
	if err != nil && l.isLost() {
		a.decision, err = l.admitAlone(s, c, l.rules.Load()), nil
		if a.sent && !a.decision.Granted {
			l.missed(s, &c)
		}
	}
	return a.decision, err
}

func lost(err error) error { return fmt.Errorf("the ledger in Redis does not answer: %w", err) }

// Settle implements [limits.Ledger]. What it notes Redis is told soon, a limit error at once:
// until then the permit holds all that it may cost.
func (l *Ledger) Settle(ctx context.Context, p limits.Permit, o limits.Outcome) error {
	s := l.shadow(p.Account, p.Kind)
	p = l.stand(s, p)
	alone := l.settleAlone(s, p, o, l.rules.Load())
	if !alone {
		l.keepOutcome(s, p, o)
	}
	if o.Limited != limits.NotLimited {
		l.distrustAhead(s)
	}
	if alone {
		return nil
	}
	if l.within > 0 && o.Limited == limits.NotLimited {
		return l.tellSoon(s)
	}
	return l.tellNow(ctx, s, false)
}

var errLost = errors.New("it is lost")

// dateOf is when an answer was made, zero when it did not say.
func dateOf(r limits.Rate) int64 {
	if r.Date.IsZero() {
		return 0
	}
	return r.Date.UnixMicro()
}

// Release implements [limits.Ledger].
func (l *Ledger) Release(ctx context.Context, p limits.Permit, aborted bool) error {
	s := l.shadow(p.Account, p.Kind)
	p = l.stand(s, p)
	if l.releaseAlone(s, p, aborted, l.rules.Load()) {
		return nil
	}
	l.keepEnd(s, p, aborted)
	if l.within > 0 {
		return l.tellSoon(s)
	}
	return l.tellNow(ctx, s, false)
}

// Renew implements [limits.Ledger].
func (l *Ledger) Renew(ctx context.Context, flights []limits.OpenPermit) error {
	r := l.rules.Load()
	var failed error
	for _, f := range flights {
		s := l.shadow(f.Account, f.Kind)
		claimed := f.ID
		f.Permit = l.stand(s, f.Permit)
		alone, charged := l.alive(s, f)
		switch {
		case alone: // handed over when Redis is found
		case l.isLost():
			failed = lost(errLost)
		default:
			if err := l.renew(ctx, s, r, f, charged, claimed); err != nil {
				failed = err
			}
		}
	}
	return failed
}

// renew renews the permit of the claim with that ID; of one that is charged only its place
// is taken up again.
func (l *Ledger) renew(ctx context.Context, s *shadow, r *limits.Rules, f limits.OpenPermit, charged bool, claimed uint64) error {
	args := append([]any{l.id(f.Claim)}, resource(r, f.Kind, f.Resource)...)
	args = append(args, r.Milliseconds(f.Elapsed), truth(charged))
	_, err := l.step(ctx, l.scripts.renew, s, r, func([]any) {
		known := s.flight(f.Claim, r)
		known.alone, known.charged = false, charged || known.charged
		known.elapsed = max(known.elapsed, f.Elapsed)
		if claimed != f.ID {
			s.standFor(known, claimed) // it may have landed, and is taken up again
			known.renewed = true
		}
	}, append(args, holds(r, f.Claim, f.Elapsed)...)...)
	return err
}
