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
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirgate/weir/internal/redisclient"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

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
		client, err := redisclient.Open(c.URL, func(node string) redisclient.OnConnect { return identify(node, l.meet) })
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
	// accountPrefix ends with the version of the stored format, so that replicas of other versions do not read it.
	accountPrefix = "weir:account:2:"
	// The keys that all replicas share have one hash tag, so that one node of a cluster has all of them.
	shared      = "weir:{weir}:"
	accountsKey = shared + "accounts"
	replicasKey = shared + "replicas"
	epochKey    = shared + "epoch"
	secretKey   = shared + "key"
	// timeout bounds every call. A ledger that does not answer within it counts as lost.
	timeout = 50 * time.Millisecond
	// keptBeyond is how long an account is kept beyond its longest window.
	keptBeyond = 2 * time.Hour
)

// resource is a primary window as scripts get it, with its documented limit and its length in microseconds.
type resource struct {
	Name   string `json:"name"`
	Limit  int    `json:"limit"`
	Window int64  `json:"window"`
}

// resourceOf returns the window of a resource. Unknown resources count as core.
func resourceOf(r *limits.Rules, kind policy.CallerKind, name string) resource {
	name = named(name, "")
	w := r.For(kind, name)
	return resource{name, w.Max, w.Window.Microseconds()}
}

func (l *Ledger) id(c limits.Claim) string { return l.Replica + ":" + strconv.FormatUint(c.ID, 36) }

// logName is a sliding log's name in Redis. Scopes may hold spaces; records in
// Redis are separated by them.
func logName(s *limits.Spend) string {
	return string(s.Budget) + ":" + strings.ReplaceAll(s.Scope, " ", "\x1f")
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

// renew renews a permit of the claim with that ID. Of a charged permit only the place is taken again.
func (l *Ledger) renew(ctx context.Context, s *shadow, r *limits.Rules, f limits.OpenPermit, charged bool, claimed uint64) error {
	args := permitCall{ID: l.id(f.Claim), Charged: charged, Resource: resourceOf(r, f.Kind, f.Resource), CPU: r.Milliseconds(f.Elapsed)}
	if !charged {
		args.Holds = holds(r, f.Claim, f.Elapsed)
	}
	return l.step(ctx, l.scripts.renew, s, r, args, func(reply) {
		known := s.flight(f.Claim, r)
		known.alone, known.charged = false, charged || known.charged
		known.elapsed = max(known.elapsed, f.Elapsed)
		if claimed != f.ID {
			s.standFor(known, claimed) // it may have landed, and is taken up again
			known.renewed = true
		}
	})
}
