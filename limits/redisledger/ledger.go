package redisledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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
	accountPrefix = "weir:account:3:"
	// The keys that all replicas share have one hash tag, so that one node of a cluster stores all these keys.
	sharedPrefix = "weir:{weir}:"
	accountsKey  = sharedPrefix + "accounts"
	replicasKey  = sharedPrefix + "replicas"
	epochKey     = sharedPrefix + "epoch"
	secretKey    = sharedPrefix + "key"
	// callTimeout bounds every call. Redis is lost when a call has failed and no call has succeeded for lossTime. While
	// other calls succeed, a failed call is not a loss.
	callTimeout = time.Second
	lossTime    = time.Second
	// keptBeyond is the time for which Redis keeps an account beyond its longest window. An allowance lasts 19 hours.
	keptBeyond = 24 * time.Hour
	// refusedTime is the time for which Redis keeps the account of a token that the upstream never accepted.
	refusedTime = 2 * time.Minute
	// renewTTL is the interval between renewals of the TTL of an account (account.lua).
	renewTTL = time.Minute
	// indexedTime is the time after its last use for which an account is listed.
	indexedTime = 2 * time.Hour
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
	// Upstream ends the names of accounts and keys, so that ledgers of different APIs share nothing. It is empty for one API, whose
	// names are plain.
	Upstream string
	Rules    limits.Rules
	// Joined is called once if the replica started without Redis and Redis responds now. secret replaces the secret that
	// [Ledger.Join] returned.
	Joined func(secret []byte)
	// Closed refuses all claims while Redis is lost. By default, replicas use their leases.
	Closed bool
	Log    *slog.Logger
}

// Ledger implements [limits.Ledger] in Redis. A Ledger is safe for concurrent use. [Ledger.Run] must run at the same
// time.
type Ledger struct {
	Config
	rules      atomic.Pointer[limits.Rules]
	scripts    scripts
	clock      *limits.Clock
	timeout    time.Duration  // of each call
	flushDelay time.Duration  // of outcomes; 0 in tests
	background sync.WaitGroup // flushes
	replicas   atomic.Int64

	mu       sync.Mutex          // guards the fields below
	shards   map[string]*shard   // by address
	accounts map[string]*account // by canonical name; accounts that were merged remain until their leases are returned
	// awake contains the accounts that do not rest (account.idle), and unindexed those whose entry into the index is due.
	awake, unindexed map[*account]bool
	searched         time.Time // time of the last search for unused accounts
	forgotten        bool      // this replica has forgotten an account whose leases were not returned
	// quiet contains the accounts of the last listing that no replica used since the listing (Accounts).
	quiet   map[string]quietAccount
	aliases limits.Aliases
	// sharedAliases is the number of the last alias that this replica has read.
	sharedAliases int64
	// names are the texts of the last ShareNames, and renewedNames is the time of their last renewal.
	names        []string
	renewedNames time.Time
	seq          int64  // number of the last call about an account
	secret       string // in hexadecimal
	registered   bool   // Redis has confirmed the secret
	startedCold  bool   // the replica started without Redis
	// epoch is the epoch of Redis at the last registration. Redis is in a new epoch if its process changes or its epoch
	// key is lost. A new epoch means that Redis may have lost writes.
	epoch      string
	epochBegan time.Time
	leaving    bool
	indexed    int64 // accounts in the index
}

// New returns a ledger without waiting for Redis. It returns an error if the URL is invalid.
func New(c Config) (*Ledger, error) {
	l := &Ledger{
		Config: c, clock: limits.NewClock(), timeout: callTimeout, flushDelay: flushDelay,
		scripts: newScripts(redisClock), shards: map[string]*shard{}, accounts: map[string]*account{}, awake: map[*account]bool{},
		unindexed: map[*account]bool{},
	}
	l.replicas.Store(1)
	l.rules.Store(&c.Rules)
	if l.Client == nil {
		client, err := redisclient.Open(c.URL, func(node string) redisclient.OnConnect { return identify(node, l.meet) })
		if err != nil {
			return nil, err
		}
		l.Client = client
	}
	return l, nil
}

// Redis returns the client of the ledger. Another user of the client must end before Close.
func (l *Ledger) Redis() redis.UniversalClient { return l.Client }

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

// WriteLimits implements [limits.Ledger].
func (l *Ledger) WriteLimits(client string) policy.ClientWrites { return l.rules.Load().Writes[client] }

// now returns the time of this process.
func (l *Ledger) now() int64 { return l.clock.Now() }

// account returns the local state of an account, and creates the state if necessary. Ledger.mu must be held.
func (l *Ledger) account(name string, kind policy.CallerKind) *account {
	name = l.canonical(name)
	a := l.accounts[name]
	if a == nil {
		a = newAccount(name, kind)
		a.full = l.forgotten // this replica may have forgotten a lease of the account
		l.add(a)
	}
	a.used = time.Now()
	return a
}

// add adds the local state of an account. Ledger.mu must be held.
func (l *Ledger) add(a *account) { l.accounts[a.name], a.awake = a, l.awake }

// Admit implements [limits.Ledger]. If nothing that this replica knows refuses the claim, the next round trip sends the claim
// to Redis. Without Redis, the leases of this replica decide. Admit ignores the end of ctx, because a cancelled claim would
// leak its permit.
func (l *Ledger) Admit(ctx context.Context, c limits.Claim) limits.Decision {
	r := l.rules.Load()
	for {
		l.mu.Lock()
		a := l.account(c.Account, c.Kind)
		d, rested := a.part.Check(c, r, l.now()), a.rests
		switch {
		case !d.Granted && len(c.Clients) > 0: // the other replicas must know that the client waits
			a.touch(a.part.Touches(c, "", r)...)
		case slices.Contains([]limits.Reason{limits.Closed, limits.Cooldown, limits.Content, limits.Primary}, d.Reason):
			a.touch(a.part.WindowBudget(c.Resource)) // the next heartbeat learns whether an operator has ended the cool-down or opened the window
		}
		if d.Granted && a.part.Has(c) {
			d = a.part.Admit(c, r, l.now())
			l.mu.Unlock()
			return d
		}
		l.mu.Unlock()
		if !d.Granted && rested && l.roundTrip(ctx, a, &entry{}) == nil { // the other replicas may know better
			continue
		}
		if !d.Granted {
			return d
		}
		e := &entry{claim: &c}
		switch err := l.roundTrip(ctx, a, e); {
		case e.moved: // now the merged account decides
			continue
		case err == nil:
			return e.decision
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.Closed {
			return limits.Decision{Reason: Store, Wait: retryStore}
		}
		return l.account(c.Account, c.Kind).admitFromLeases(c, r, l.registered, l.now())
	}
}

// Settle implements [limits.Ledger]. Settle sends a limit error to Redis before it returns. The use and other reports are
// sent later: after flushDelay, and after the round trip in progress. Until then the lease holds the full cost of the
// request, but Redis may decide without a report about the use of another program. Settle returns an error if the other
// replicas do not learn a limit error now.
func (l *Ledger) Settle(ctx context.Context, p limits.Permit, o limits.Outcome) error {
	r := l.rules.Load()
	l.mu.Lock()
	a := l.account(p.Account, p.Kind)
	a.part.Settle(&p, &o, r, l.now())
	a.accepted = a.accepted || o.Sent && !o.Unauthorized
	a.touch(a.part.Touches(p.Claim, o.Rate.Resource, r)...)
	l.mu.Unlock()
	if o.Limited == policy.NotLimited {
		l.flush(ctx, a)
		return nil
	}
	err := l.roundTrip(ctx, a, &entry{})
	if name := l.Canonical(a.name); err == nil && name != a.name { // the reply has named the merged account
		l.mu.Lock()
		a = l.account(name, a.kind)
		l.mu.Unlock()
		err = l.roundTrip(ctx, a, &entry{})
	}
	return err
}

// Release implements [limits.Ledger].
func (l *Ledger) Release(ctx context.Context, p limits.Permit, aborted bool) {
	l.mu.Lock()
	a := l.account(p.Account, p.Kind)
	a.part.Release(p.ID, aborted, l.now())
	a.touch(a.part.Touches(p.Claim, "", l.rules.Load())...)
	l.mu.Unlock()
	l.flush(ctx, a)
}

// Renew implements [limits.Ledger]. The lease of the replica contains the permits, so a renewal needs no call.
func (l *Ledger) Renew(permits []limits.OpenPermit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range permits {
		a := l.account(p.Account, p.Kind)
		a.part.Renew(&p, l.rules.Load(), l.now())
		a.touch(a.part.Touches(p.Claim, "", l.rules.Load())...)
	}
}

// Open implements [limits.Operator].
func (l *Ledger) Open(ctx context.Context, name string) error {
	l.mu.Lock()
	name = l.canonical(name)
	a := l.accounts[name]
	if a == nil {
		a = newAccount(name, "")
	}
	l.mu.Unlock()
	if _, err := l.read(ctx, a); err != nil {
		return err
	}
	l.mu.Lock()
	err := a.part.Open(l.rules.Load(), l.now())
	for _, resource := range a.part.Resources() {
		a.touch(a.part.WindowBudget(resource))
	}
	l.mu.Unlock()
	if err != nil {
		return err
	}
	return l.roundTrip(ctx, a, &entry{})
}

// flush sends the touched budgets of an account after flushDelay, unless a claim is sent earlier. The next heartbeat repeats a failed call.
func (l *Ledger) flush(ctx context.Context, a *account) {
	switch {
	case l.lostFor(ctx, l.keysOf(a.name)[0]): // a heartbeat sends the use after the outage
		return
	case l.flushDelay == 0:
		_ = l.roundTrip(ctx, a, &entry{})
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.flushing || l.leaving {
		return
	}
	a.flushing = true
	l.background.Go(func() {
		<-time.After(l.flushDelay)
		l.mu.Lock()
		a.flushing = false
		unsent := len(a.touched) > 0
		l.mu.Unlock()
		if unsent {
			_ = l.roundTrip(context.WithoutCancel(ctx), a, &entry{})
		}
	})
}

var errLost = errors.New("connection lost")

func unavailable(err error) error { return fmt.Errorf("ledger in redis unavailable: %w", err) }
