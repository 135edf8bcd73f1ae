package redisledger

import (
	"cmp"
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
)

const (
	// heartbeatInterval is the interval between registrations of a replica, and between round trips with unused tokens.
	heartbeatInterval = 500 * time.Millisecond
	// reconnectInterval is the interval between attempts to reach a lost Redis.
	reconnectInterval = 100 * time.Millisecond
	// registeredTime is the time for which a replica without heartbeats remains registered.
	registeredTime = spareTime
	// parallelCalls bounds the accounts of one replica that are renewed or read at the same time.
	parallelCalls = 16
	// heartbeatAccounts bounds the accounts of one heartbeat. With more accounts, each account is renewed less often.
	heartbeatAccounts = 100
	// forgetAfter is the shortest time for which an idle account remains in memory after its last use.
	forgetAfter = time.Minute
	// leaveTimeout bounds the time in which Leave returns leases.
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

// responds records the result of a call to an address. Redis is lost if a call has failed, and no call to the address
// has succeeded for lossTime.
func (l *Ledger) responds(address string, err error) {
	l.mu.Lock()
	if err == nil {
		l.responded[address] = time.Now()
	}
	lost := time.Since(l.responded[address]) >= lossTime
	l.mu.Unlock()
	if lost {
		l.markLost(err)
	}
}

// markLost records that Redis does not respond.
func (l *Ledger) markLost(err error) {
	if !l.lostSince.CompareAndSwap(0, time.Now().UnixNano()) {
		return
	}
	l.mu.Lock()
	registered := l.registered
	l.outages++
	l.mu.Unlock()
	switch {
	case !registered:
		l.Log.Warn("redis connection failed", "error", err)
	case l.Closed:
		l.Log.Error("redis connection lost; refusing requests that need it", "error", err)
	default:
		l.Log.Error("redis connection lost; using the leases of this replica", "error", err)
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
				_ = l.heartbeat(ctx) // repeated failures mark Redis as lost
			}
		}
	}
}

// reconnect ends the outage if Redis responds. The use of all leases is sent before any claim.
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

// heartbeat registers this replica and makes a round trip for each account in use. In a new epoch, or after the loss of a Redis
// process, all accounts are restored.
func (l *Ledger) heartbeat(ctx context.Context) error {
	newEpoch, err := l.registerReplica(ctx)
	if err != nil {
		return err
	}
	l.mayHaveLost = l.mayHaveLost || newEpoch
	list := l.accountsInUse(l.mayHaveLost)
	if err = inParallel(ctx, list, l.heartbeatAccount); err == nil {
		l.mayHaveLost = false
	}
	return err
}

// inParallel calls do for all accounts, and stops after the first error.
func inParallel(ctx context.Context, list []*account, do func(context.Context, *account) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelCalls)
	for _, a := range list {
		group.Go(func() error {
			if ctx.Err() != nil { // an account has failed, or the time is over
				return ctx.Err()
			}
			return do(ctx, a)
		})
	}
	return group.Wait()
}

// accountsInUse returns the accounts that need a heartbeat, or all local accounts if all is set. The next round trips then
// restore all accounts. Without all, while Redis responds, the result contains at most heartbeatAccounts accounts: the
// accounts with the oldest heartbeats.
func (l *Ledger) accountsInUse(all bool) []*account {
	l.forgetIdle()
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []*account
	for _, a := range l.accounts {
		a.full = a.full || all
		if a.full || a.due(l.now()) {
			list = append(list, a)
		}
	}
	if !all && !l.isLost() && len(list) > heartbeatAccounts {
		slices.SortFunc(list, func(x, y *account) int { return x.heartbeat.Compare(y.heartbeat) })
		list = list[:heartbeatAccounts]
	}
	for _, a := range list {
		a.heartbeat = time.Now()
	}
	return list
}

// leased returns the accounts that have a lease or changes.
func (l *Ledger) leased() (list []*account) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.accounts {
		if len(a.leases) > 0 || a.due(l.now()) {
			list = append(list, a)
		}
	}
	return list
}

// forgetIdle removes the local accounts that this replica does not use. An account remains until its leases are returned
// or, while Redis is lost, have ended.
func (l *Ledger) forgetIdle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, a := range l.accounts {
		returned := len(a.leases) == 0 && !a.due(l.now())
		ended := l.isLost() && time.Since(a.saved)+leaseMargin >= spareTime
		if time.Since(a.used) > forgetAfter && a.part.Idle(l.now()) && (returned || ended) {
			delete(l.accounts, name)
		}
	}
}

// heartbeatAccount makes a round trip for an account, and enters the account into the index.
func (l *Ledger) heartbeatAccount(ctx context.Context, a *account) error {
	if err := l.roundTrip(ctx, a, &entry{heartbeat: true}); err != nil {
		return err
	}
	return l.indexAccount(ctx, a, l.mayHaveLost)
}

// indexInterval is the interval between entries of an account in use into the index.
const indexInterval = time.Minute

// indexAccount enters an account into the index if the entry is due or forced, and removes the accounts that were not
// used for indexedTime.
func (l *Ledger) indexAccount(ctx context.Context, a *account, force bool) error {
	now := time.Now()
	l.mu.Lock()
	due := a.accepted && (force || now.Sub(a.indexed) >= indexInterval)
	l.mu.Unlock()
	if !due {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	index := l.shared(accountsKey)
	to, err := l.serverOf(limited, index)
	if err != nil {
		return unavailable(err)
	}
	l.mu.Lock()
	second := (l.now() + l.ahead[to.address]) / 1e6 // of Redis, because the clocks of the replicas may differ
	l.mu.Unlock()
	_, err = to.node.Pipelined(limited, func(p redis.Pipeliner) error {
		p.ZAdd(limited, index, redis.Z{Score: float64(second), Member: a.title()})
		p.ZRemRangeByScore(limited, index, "-inf", strconv.FormatInt(second-int64(indexedTime/time.Second), 10))
		p.PExpire(limited, index, indexedTime)
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

// Join registers this replica, and retries until Redis responds or ctx ends. All replicas derive account names from the
// returned secret. If Redis does not respond, the replica starts without Redis: it has another secret and may use a part
// of each limit, until [Ledger.Run] reaches Redis.
func (l *Ledger) Join(ctx context.Context) (secret []byte) {
	for {
		l.trust()
		err := l.heartbeat(ctx)
		if err == nil {
			l.lostSince.Store(0)
			l.warnOfEviction(ctx)
			break
		}
		select {
		case <-ctx.Done():
			l.markLost(err)
			l.mu.Lock()
			l.startedCold = true
			l.mu.Unlock()
			l.Log.Warn("started without redis; "+cmp.Or(l.ColdStart(), "all quota may be used until redis responds"),
				"cold_start", l.rules.Load().ColdStart, "error", err)
		case <-time.After(reconnectInterval):
			continue
		}
		break
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.createSecret()
	secret, err := hex.DecodeString(l.secret)
	if err != nil {
		panic(err) // encoded by this package
	}
	return secret
}

// ColdStart describes what this replica holds back because it started without Redis, or returns "".
func (l *Ledger) ColdStart() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.startedCold || l.registered {
		return ""
	}
	switch l.rules.Load().ColdStart {
	case "strict":
		return "holding back all quota until redis responds"
	case "trust":
		return "" // nothing is held back
	}
	return "holding back three quarters of each limit until redis responds"
}

// warnOfEviction logs a warning if Redis may evict accounts.
func (l *Ledger) warnOfEviction(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	policy, bounded, err := redisclient.Eviction(limited, l.Client)
	if err == nil && bounded && policy != "noeviction" { // some providers forbid the command
		l.Log.Warn("redis may evict accounts; set maxmemory-policy noeviction", "maxmemory_policy", policy)
	}
}

// registration is the argument of register.lua. registered is the reply of register.lua.
type registration struct {
	Replica string `json:"replica"`
	TTL     int64  `json:"ttl"` // milliseconds
	Secret  string `json:"secret"`
	Process string `json:"process"`
	reach
}

type registered struct {
	Now      int64  `json:"now,string"`
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
	l.calls.RLock()
	defer l.calls.RUnlock()
	answer, address, err := l.sendRegistration(limited)
	if ctx.Err() == nil {
		l.responds(address, err)
	}
	if err != nil {
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
	renamed := l.startedCold && !l.registered && answer.Secret != l.secret
	l.secret, l.registered = answer.Secret, true
	if renamed && l.Joined != nil {
		secret, err := hex.DecodeString(answer.Secret)
		if err != nil {
			return newEpoch, unavailable(err)
		}
		l.background.Go(func() { l.Joined(secret) })
	}
	return newEpoch, nil
}

// createSecret creates a secret, unless the replica has one. Ledger.mu must be held.
func (l *Ledger) createSecret() {
	if l.secret == "" {
		secret := make([]byte, 32)
		_, _ = rand.Read(secret) // never fails
		l.secret = hex.EncodeToString(secret)
	}
}

func (l *Ledger) sendRegistration(ctx context.Context) (answer registered, address string, err error) {
	to, err := l.serverOf(ctx, sharedPrefix)
	if err != nil {
		return answer, to.address, err
	}
	l.mu.Lock()
	l.createSecret()
	sent := l.now()
	argument, err := json.Marshal(registration{l.Replica, registeredTime.Milliseconds(), l.secret, to.process, l.reach(to.address, sent)})
	l.mu.Unlock()
	if err != nil {
		return answer, to.address, err
	}
	text, err := l.scripts.register.Run(ctx, to.node, []string{l.shared(replicasKey), epochKey, secretKey, l.shared(accountsKey)}, argument).Text()
	if err != nil {
		return answer, to.address, err
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		return answer, to.address, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.replied(to.address, sent, answer.Now)
	return answer, to.address, nil
}

// Leave returns all leases of this replica and ends the registration, so that other replicas can use the quota
// immediately. If Redis is lost, Leave tries to reconnect for leaveTimeout. Leave must be called after [Ledger.Run] has
// returned, and no claim may follow. The remaining leases end as those of a killed replica.
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
			err = inParallel(limited, l.leased(), func(ctx context.Context, a *account) error {
				return l.roundTrip(ctx, a, &entry{leave: true})
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
	return l.Client.ZRem(ctx, l.shared(replicasKey), l.Replica).Err()
}
