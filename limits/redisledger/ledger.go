package redisledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/redisclient"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

const (
	// accountPrefix ends with the version of the stored format, so that replicas of other versions do not read these
	// accounts.
	accountPrefix = "weir:account:2:"
	// The keys that all replicas share have one hash tag, so that one node of a cluster stores all these keys.
	sharedPrefix = "weir:{weir}:"
	accountsKey  = sharedPrefix + "accounts"
	replicasKey  = sharedPrefix + "replicas"
	epochKey     = sharedPrefix + "epoch"
	secretKey    = sharedPrefix + "key"
	// callTimeout bounds every call. If a call takes longer, Redis is lost.
	callTimeout = 50 * time.Millisecond
	// keptBeyond is the time for which Redis keeps an account beyond its longest window.
	keptBeyond = 2 * time.Hour
)

// Config configures a ledger.
type Config struct {
	// URL is the address of Redis (see [redisclient.Open]). If Client is set, URL is not used.
	URL string
	// Client is used instead of a client for URL. New adds a hook to a client for URL. Without that hook, the ledger
	// does not detect a change of the Redis process (meet).
	Client redis.UniversalClient
	// Replica is the unique name of this replica.
	Replica string
	Rules   limits.Rules
	// Closed refuses all claims while Redis is lost. By default, replicas use their offline leases.
	Closed bool
	Log    *slog.Logger
}

// Ledger implements [limits.Ledger] in Redis. A Ledger is safe for concurrent use. [Ledger.Run] must run at the same
// time.
type Ledger struct {
	Config
	rules      atomic.Pointer[limits.Rules]
	scripts    scripts
	timeout    time.Duration  // of each call
	flushDelay time.Duration  // of outcomes; 0 in tests
	background sync.WaitGroup // flushes
	// lostSince is the time at which Redis stopped responding, in nanoseconds since 1970; 0 if Redis responds.
	lostSince atomic.Int64
	replicas  atomic.Int64
	// mayHaveLost is set from the start of a new epoch until all accounts have been restored. Only Register, Run and
	// Leave use mayHaveLost, one after another.
	mayHaveLost bool

	// steps is held for reading while a step is made and sent, and for writing while trust changes the trusted
	// processes.
	steps sync.RWMutex

	mu       sync.Mutex // guards the fields below
	accounts map[string]*localAccount
	// trusted contains the Redis process (run_id) at each address to which steps may be sent. met contains new
	// processes that are not trusted yet.
	trusted, met map[string]string
	secret       string // in hexadecimal
	registered   bool   // Redis has confirmed the secret
	// epoch is the epoch of Redis at the last registration. Redis is in a new epoch if its process changes or its epoch
	// key is lost. A new epoch means that Redis may have lost writes.
	epoch   string
	leaving bool
	indexed int64 // accounts in the index
}

// New returns a ledger without waiting for Redis. It returns an error if the URL is invalid.
func New(c Config) (*Ledger, error) {
	l := &Ledger{
		Config: c, timeout: callTimeout, flushDelay: flushDelay,
		scripts: newScripts(redisClock), accounts: map[string]*localAccount{},
		trusted: map[string]string{}, met: map[string]string{},
	}
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

// Close waits for background calls and closes the connections.
func (l *Ledger) Close() error {
	l.mu.Lock()
	l.leaving = true // no background call starts
	l.mu.Unlock()
	l.background.Wait()
	return l.Client.Close()
}

// Configure replaces the rules. Open windows keep their state.
func (l *Ledger) Configure(rules limits.Rules) { l.rules.Store(&rules) }

// Admit implements [limits.Ledger]. The claim is sent to Redis in the next batch. While Redis is lost, the offline
// lease decides. Admit ignores the end of ctx, because a cancelled claim would leak its permit.
func (l *Ledger) Admit(ctx context.Context, c limits.Claim) (limits.Decision, error) {
	a := l.account(c.Account, c.Kind)
	if l.isLost() {
		return l.admitOffline(a, c), nil
	}
	e := &batchEntry{claim: &c}
	err := l.batch(ctx, a, e)
	if err != nil && l.isLost() {
		e.decision, err = l.admitOffline(a, c), nil
		if e.sent && !e.decision.Granted {
			l.returnUnknown(a, c) // Redis may have granted the claim
		}
	}
	return e.decision, err
}

// settlement is the outcome of a permit, or the end of its response body if outcome is nil.
type settlement struct {
	permit  limits.Permit
	outcome *limits.Outcome
	aborted bool
}

func (s *settlement) limited() bool {
	return s.outcome != nil && s.outcome.Limited != limits.NotLimited
}

// Settle implements [limits.Ledger]. Outcomes are sent to Redis within flushDelay, and limit errors immediately. Until
// then the permit holds the full cost of its request.
func (l *Ledger) Settle(ctx context.Context, p limits.Permit, o limits.Outcome) error {
	return l.finish(ctx, settlement{permit: p, outcome: &o})
}

// Release implements [limits.Ledger].
func (l *Ledger) Release(ctx context.Context, p limits.Permit, aborted bool) error {
	return l.finish(ctx, settlement{permit: p, aborted: aborted})
}

func (l *Ledger) finish(ctx context.Context, s settlement) error {
	a := l.account(s.permit.Account, s.permit.Kind)
	l.mu.Lock()
	offline := a.finishOffline(s, l.rules.Load())
	if !offline {
		l.record(a, s)
	}
	l.mu.Unlock()
	switch {
	case offline:
		return nil
	case l.flushDelay > 0 && !s.limited():
		return l.flushSoon(a)
	}
	return l.flush(ctx, a, false)
}

// Renew implements [limits.Ledger].
func (l *Ledger) Renew(ctx context.Context, permits []limits.OpenPermit) error {
	var failed error
	for _, p := range permits {
		a := l.account(p.Account, p.Kind)
		offline, charged := l.renewLocally(a, p)
		switch {
		case offline: // after the outage, a heartbeat sends the permit to Redis
		case l.isLost():
			failed = unavailable(errLost)
		default:
			if err := l.renew(ctx, a, p, charged); err != nil {
				failed = err
			}
		}
	}
	return failed
}

// renew renews a permit in Redis. If a charged permit has expired, only its concurrency slot is reserved again.
func (l *Ledger) renew(ctx context.Context, a *localAccount, p limits.OpenPermit, charged bool) error {
	r := l.rules.Load()
	args := permitCall{
		ID: l.permitName(p.ID), Charged: charged, Resource: resourceOf(r, p.Kind, p.Resource), CPU: r.Milliseconds(p.Elapsed),
	}
	if !charged {
		args.Holds = holds(r, p.Claim, p.Elapsed)
	}
	return l.step(ctx, l.scripts.renew, a, r, args, func(reply) {
		own := a.granted(p.Claim, r)
		own.offline, own.charged = false, charged || own.charged
		own.elapsed = max(own.elapsed, p.Elapsed)
	})
}

var errLost = errors.New("connection lost")

func unavailable(err error) error { return fmt.Errorf("ledger in redis unavailable: %w", err) }

// permitName returns the name of a permit in Redis.
func (l *Ledger) permitName(id uint64) string { return l.Replica + ":" + strconv.FormatUint(id, 36) }

// logName returns the name of a sliding log in Redis.
func logName(s *limits.Spend) string { return string(s.Budget) + ":" + s.Scope }

// resource is a primary window as scripts get it, with the documented limit and the length in microseconds.
type resource struct {
	Name   string `json:"name"`
	Limit  int    `json:"limit"`
	Window int64  `json:"window"`
}

func resourceOf(r *limits.Rules, kind policy.CallerKind, name string) resource {
	w := r.For(kind, name)
	return resource{name, w.Max, w.Window.Microseconds()}
}
