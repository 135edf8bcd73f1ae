package redisledger

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/weirgate/weir/internal/redisclient"
	"github.com/weirgate/weir/limits"
)

const (
	// heartbeatInterval is the interval between registrations of a replica, and between renewals of its offline leases.
	heartbeatInterval = 500 * time.Millisecond
	// reconnectInterval is the interval between attempts to reach a lost Redis.
	reconnectInterval = 100 * time.Millisecond
	// registeredTime is the time for which a replica without heartbeats remains registered.
	registeredTime = offlineLeaseTime
	// parallelCalls bounds the accounts of one replica that are renewed or read at the same time.
	parallelCalls = 16
	// heartbeatAccounts bounds the accounts of one heartbeat. With more accounts, each account is renewed less often.
	heartbeatAccounts = 100
	// leaveTimeout bounds the time in which Leave releases leases.
	leaveTimeout = 2 * time.Second
)

func (l *Ledger) isLost() bool { return l.lostSince.Load() != 0 }

// Lost returns the time at which Redis stopped responding, or the zero time if Redis responds.
func (l *Ledger) Lost() time.Time {
	if since := l.lostSince.Load(); since != 0 {
		return time.Unix(0, since)
	}
	return time.Time{}
}

// Replicas returns the number of registered replicas.
func (l *Ledger) Replicas() int { return int(l.replicas.Load()) }

// markLost records that Redis does not respond.
func (l *Ledger) markLost(err error) {
	if !l.lostSince.CompareAndSwap(0, time.Now().UnixNano()) {
		return
	}
	l.mu.Lock()
	registered := l.registered
	l.mu.Unlock()
	switch {
	case !registered:
		l.Log.Warn("redis connection failed", "error", err)
	case l.Closed:
		l.Log.Error("redis connection lost; refusing requests that need it", "error", err)
	default:
		l.Log.Error("redis connection lost; using offline leases", "error", err)
	}
}

// Run sends heartbeats and reconnects to a lost Redis until ctx ends.
func (l *Ledger) Run(ctx context.Context) {
	heartbeat, reconnect := time.NewTicker(heartbeatInterval), time.NewTicker(reconnectInterval)
	defer heartbeat.Stop()
	defer reconnect.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-reconnect.C:
			if l.isLost() {
				l.reconnect(ctx)
			}
		case <-heartbeat.C:
			if l.isLost() {
				l.forgetIdle()
			} else {
				_ = l.heartbeat(ctx) // an error marks Redis as lost
			}
		}
	}
}

// reconnect ends the outage if Redis responds. Spends of the outage are sent before any claim.
func (l *Ledger) reconnect(ctx context.Context) {
	since := l.Lost()
	l.mayHaveLost = l.trust() || l.mayHaveLost
	limited, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	if redisclient.PingAll(limited, l.Client) && l.heartbeat(ctx) == nil {
		l.lostSince.Store(0)
		l.Log.Info("redis connection restored", "lost_for", time.Since(since))
	}
}

// heartbeat registers this replica and renews the accounts in use. In a new epoch, all accounts are restored first.
func (l *Ledger) heartbeat(ctx context.Context) error {
	newEpoch, err := l.registerReplica(ctx)
	if err != nil {
		return err
	}
	l.mayHaveLost = l.mayHaveLost || newEpoch
	list := l.accountsInUse(l.mayHaveLost)
	if l.mayHaveLost { // other replicas wait for the restores
		err = inParallel(ctx, list, l.restoreAccount)
	}
	if err == nil {
		err = inParallel(ctx, list, func(ctx context.Context, a *localAccount) error {
			return l.heartbeatAccount(ctx, a, l.mayHaveLost)
		})
	}
	if err == nil {
		l.mayHaveLost = false
	}
	return err
}

// restoreAccount restores the writes of an account that Redis may have lost, and sends the offline permits.
func (l *Ledger) restoreAccount(ctx context.Context, a *localAccount) error {
	l.adoptOffline(a)
	return l.reconcile(ctx, a)
}

// inParallel calls do for all accounts, and stops after the first error.
func inParallel(ctx context.Context, list []*localAccount, do func(context.Context, *localAccount) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelCalls)
	for _, a := range list {
		group.Go(func() error { return do(ctx, a) })
	}
	return group.Wait()
}

// accountsInUse returns the accounts that need a heartbeat, or all local accounts if all is set. Without all, while
// Redis responds, the result contains at most heartbeatAccounts accounts: the accounts with the oldest heartbeats.
func (l *Ledger) accountsInUse(all bool) []*localAccount {
	l.forgetIdle()
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []*localAccount
	for _, a := range l.accounts {
		if all || a.observedOffline || len(a.leases)+len(a.offline)+len(a.permits) > 0 {
			list = append(list, a)
		}
	}
	if !all && !l.isLost() && len(list) > heartbeatAccounts {
		slices.SortFunc(list, func(x, y *localAccount) int { return x.heartbeat.Compare(y.heartbeat) })
		list = list[:heartbeatAccounts]
	}
	for _, a := range list {
		a.heartbeat = time.Now()
	}
	return list
}

// heartbeatAccount sends the permits and spends of an outage, and renews the offline leases. If force is set, an
// account without changes is also renewed.
func (l *Ledger) heartbeatAccount(ctx context.Context, a *localAccount, force bool) error {
	r := l.rules.Load()
	if l.isLost() {
		l.setReconciling(a, true)
		defer l.setReconciling(a, false)
	}
	for _, p := range l.adoptOffline(a) {
		open := limits.OpenPermit{Permit: limits.Permit{Claim: p.claim}, Elapsed: p.elapsed}
		if err := l.renew(ctx, a, open, p.charged); err != nil {
			return err
		}
	}
	if err := l.flushAndRenew(ctx, a); err != nil {
		return err
	}
	if err := l.indexAccount(ctx, a, force); err != nil {
		return err
	}
	args := l.heartbeatCall(a, r)
	l.mu.Lock()
	observed := a.observedOffline
	l.mu.Unlock()
	if observed {
		if err := l.reconcile(ctx, a); err != nil {
			return err
		}
	} else if len(args.Leases) == 0 && !force {
		return nil
	}
	sent := time.Now()
	return l.step(ctx, l.scripts.heartbeat, a, r, args, func(answer reply) {
		a.clockOffset = answer.Now - time.Now().UnixMicro()
		a.leased(args, answer, r, sent.Add(offlineLeaseTime-offlineLeaseMargin))
	})
}

// setReconciling forbids offline permits while the spends of an outage are sent, and allows offline permits afterwards.
func (l *Ledger) setReconciling(a *localAccount, reconciling bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a.reconciling = reconciling
}

// indexInterval is the interval between entries of an account in use into the index.
const indexInterval = time.Minute

// indexAccount enters an account into the index if the entry is due or forced, and removes the accounts that were not
// used for keptBeyond.
func (l *Ledger) indexAccount(ctx context.Context, a *localAccount, force bool) error {
	now := time.Now()
	l.mu.Lock()
	due := force || now.Sub(a.indexed) >= indexInterval
	l.mu.Unlock()
	if !due {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	to, err := l.serverOf(limited, accountsKey)
	if err != nil {
		return unavailable(err)
	}
	_, err = to.node.Pipelined(limited, func(p redis.Pipeliner) error {
		p.ZAdd(limited, accountsKey, redis.Z{Score: float64(now.Unix()), Member: a.title()})
		p.ZRemRangeByScore(limited, accountsKey, "-inf", strconv.FormatInt(now.Add(-keptBeyond).Unix(), 10))
		p.PExpire(limited, accountsKey, keptBeyond)
		return nil
	})
	if err != nil {
		return unavailable(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	a.indexed = now
	return nil
}

// Register registers this replica, and retries until Redis responds or ctx ends. All replicas derive account names from
// the returned secret.
func (l *Ledger) Register(ctx context.Context) ([]byte, error) {
	for {
		l.trust()
		err := l.heartbeat(ctx)
		if err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(reconnectInterval):
		}
	}
	l.lostSince.Store(0)
	l.warnOfEviction(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	return hex.DecodeString(l.secret)
}

// warnOfEviction logs a warning if Redis may evict accounts.
func (l *Ledger) warnOfEviction(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	settings, err := l.Client.ConfigGet(limited, "maxmemory*").Result()
	if err != nil {
		return // some providers forbid the command
	}
	if policy := settings["maxmemory-policy"]; policy != "noeviction" && settings["maxmemory"] != "0" {
		l.Log.Warn("redis may evict accounts; set maxmemory-policy noeviction", "maxmemory_policy", policy)
	}
}

// registration is the argument of register.lua. registered is the reply of register.lua.
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

// registerReplica renews the registration of this replica, and reports whether the epoch of Redis has changed since the
// previous registration.
func (l *Ledger) registerReplica(ctx context.Context) (newEpoch bool, err error) {
	limited, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	l.steps.RLock()
	defer l.steps.RUnlock()
	answer, err := l.sendRegistration(limited)
	if err != nil {
		if ctx.Err() == nil {
			l.markLost(err)
		}
		return false, unavailable(err)
	}
	l.replicas.Store(answer.Replicas)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.indexed = max(answer.Accounts, l.indexed*49/50) // the estimate falls slowly after a loss of the index
	newEpoch = answer.Epoch != l.epoch
	l.epoch = answer.Epoch
	if l.registered && answer.Secret != l.secret { // replicas derive account names from different secrets
		l.Log.Error("another replica uses another secret for account names; restart one of them")
		return newEpoch, nil
	}
	l.secret, l.registered = answer.Secret, true
	return newEpoch, nil
}

func (l *Ledger) sendRegistration(ctx context.Context) (answer registered, err error) {
	to, err := l.serverOf(ctx, sharedPrefix)
	if err != nil {
		return answer, err
	}
	l.mu.Lock()
	if l.secret == "" {
		secret := make([]byte, 32)
		_, _ = rand.Read(secret) // never fails
		l.secret = hex.EncodeToString(secret)
	}
	argument, err := json.Marshal(registration{l.Replica, registeredTime.Milliseconds(), l.secret, to.process})
	l.mu.Unlock()
	if err != nil {
		return answer, err
	}
	text, err := l.scripts.register.Run(ctx, to.node, []string{replicasKey, epochKey, secretKey, accountsKey}, argument).Text()
	if err != nil {
		return answer, err
	}
	return answer, json.Unmarshal([]byte(text), &answer)
}

// Leave releases all leases of this replica and ends the registration, so that other replicas can use the quota
// immediately. If Redis is lost, Leave tries to reconnect for leaveTimeout. Leave must be called after [Ledger.Run] has
// returned, and no claim may follow. The remaining leases expire within five minutes.
func (l *Ledger) Leave(ctx context.Context) error {
	l.mu.Lock()
	l.leaving = true
	l.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	for {
		if l.isLost() {
			l.reconnect(limited)
		}
		err := unavailable(errLost)
		if !l.isLost() {
			err = inParallel(limited, l.accountsInUse(true), func(ctx context.Context, a *localAccount) error {
				return l.heartbeatAccount(ctx, a, false)
			})
		}
		if err == nil {
			break
		}
		select {
		case <-limited.Done():
			return err
		case <-time.After(reconnectInterval):
		}
	}
	ctx, cancel = context.WithTimeout(ctx, l.timeout)
	defer cancel()
	return l.Client.ZRem(ctx, replicasKey, l.Replica).Err()
}
