package redisledger

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
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
	// heartbeatAccounts bounds the accounts of one heartbeat that only renew their leases. With more accounts, each account is
	// renewed less often. restingAccounts bounds the accounts that begin to rest, of which each request causes at most one.
	heartbeatAccounts = 100
	restingAccounts   = 400
	// forgetAfter is the shortest time for which an unused account remains in memory after its last use, and the interval of
	// searches for such accounts.
	forgetAfter = time.Minute
	// indexBatch bounds the accounts that one call enters into the index.
	indexBatch = 1000
	// leaveTimeout bounds the time in which Leave returns leases.
	leaveTimeout = 2 * time.Second
)

// Replicas returns the number of registered replicas.
func (l *Ledger) Replicas() int { return int(l.replicas.Load()) }

// Run sends heartbeats and reconnects to lost shards until ctx ends. Attempts to reach a lost shard do not delay the
// heartbeats of the other shards.
func (l *Ledger) Run(ctx context.Context) {
	every := func(interval time.Duration, do func()) {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				do()
			}
		}
	}
	var reconnecting sync.WaitGroup
	defer reconnecting.Wait()
	reconnecting.Go(func() {
		every(reconnectInterval, func() {
			if l.isLost() {
				l.reconnect(ctx)
			}
		})
	})
	every(heartbeatInterval, func() { _ = l.heartbeat(ctx) }) // repeated failures mark a shard as lost
}

// heartbeat registers this replica and makes a round trip for each account in use, except those of lost shards. In a new epoch, or after a
// loss of the process of a shard, all accounts of the shard are restored. Before its registration, a replica makes a round trip for no
// account.
func (l *Ledger) heartbeat(ctx context.Context) error {
	l.forgetIdle()
	if !l.isRegistered() {
		if err := l.registerReplica(ctx); err != nil {
			return err
		}
	}
	return errors.Join(l.forShards(ctx, func(s *shard, node redis.UniversalClient) error {
		if l.isLostShard(s) {
			return nil
		}
		return l.renewShard(ctx, s, node)
	}), l.indexAccounts(ctx), l.keepNames(ctx))
}

// keepNames renews the names of accounts once in namesInterval, and after a loss.
func (l *Ledger) keepNames(ctx context.Context) error {
	l.mu.Lock()
	due := len(l.names) > 0 && time.Since(l.renewedNames) > namesInterval
	l.mu.Unlock()
	if !due || l.lostFor(ctx, l.shared(namesKey)) {
		return nil
	}
	_, err := l.renewNames(ctx)
	return err
}

func (l *Ledger) isRegistered() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.registered
}

// renewShard tests whether a shard responds, registers this replica if the shard is responsible for it, and makes a round trip for the
// accounts of the shard.
func (l *Ledger) renewShard(ctx context.Context, s *shard, node redis.UniversalClient) error {
	if l.isHome(ctx, s) {
		if err := l.registerReplica(ctx); err != nil {
			return err
		}
	} else {
		limited, cancel := context.WithTimeout(ctx, l.timeout)
		err := redisclient.Serves(limited, node)
		cancel()
		if ctx.Err() == nil {
			l.responds(s.address, err)
		}
		if err != nil {
			return unavailable(err)
		}
	}
	l.mu.Lock()
	losses := s.losses
	l.mu.Unlock()
	err := inParallel(ctx, l.accountsInUse(ctx, s), func(ctx context.Context, a *account) error {
		return l.roundTrip(ctx, a, &entry{heartbeat: true})
	})
	if err == nil {
		l.mu.Lock()
		s.restored = losses
		l.mu.Unlock()
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

// onShard returns those of the accounts that a shard stores.
func (l *Ledger) onShard(ctx context.Context, s *shard, list []*account) []*account {
	if s.address == "" {
		return list
	}
	return slices.DeleteFunc(list, func(a *account) bool {
		address, err := l.addressOf(ctx, l.keysOf(a.name)[0])
		return err != nil || address != s.address
	})
}

// accountsInUse returns the accounts of a shard that need a heartbeat, or all its accounts if the shard may have lost writes.
// The next round trips then restore all accounts. If the shard responds and has lost nothing, the result is bounded: it
// contains the accounts with the oldest heartbeats.
func (l *Ledger) accountsInUse(ctx context.Context, s *shard) []*account {
	l.mu.Lock()
	all := s.losses != s.restored
	list := slices.Collect(maps.Keys(l.awake))
	if all {
		list = slices.Collect(maps.Values(l.accounts))
	}
	l.mu.Unlock()
	list = l.onShard(ctx, s, list)
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	var due, idle []*account
	for _, a := range list {
		switch {
		case all:
			a.full = true
			a.wake()
			due = append(due, a)
		case a.idle(now) && len(a.leases) == 0:
			delete(l.awake, a)
		case a.idle(now):
			idle = append(idle, a)
		case a.due(now):
			due = append(due, a)
		}
	}
	if !all && s.lost.IsZero() {
		due, idle = oldest(due, heartbeatAccounts), oldest(idle, restingAccounts)
	}
	due = append(due, idle...)
	for _, a := range due {
		a.heartbeat = time.Now()
	}
	return due
}

// oldest returns the accounts with the oldest heartbeats.
func oldest(list []*account, most int) []*account {
	if len(list) <= most {
		return list
	}
	slices.SortFunc(list, func(x, y *account) int { return x.heartbeat.Compare(y.heartbeat) })
	return list[:most]
}

// forgetIdle removes the local accounts that this replica does not use, once in forgetAfter. An account remains until its
// leases are returned or have ended. An account that Redis could forget too early is renewed.
func (l *Ledger) forgetIdle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.searched) < forgetAfter {
		return
	}
	l.searched = time.Now()
	now := l.now()
	for name, a := range l.accounts {
		if !a.part.Idle(now) {
			if time.Since(a.saved) > keptBeyond/4 && !l.awake[a] {
				a.touch(a.part.SlotsBudget())
			}
			continue
		}
		returned, ended := !l.awake[a], time.Since(a.saved)+leaseMargin >= spareTime
		if time.Since(a.used) > forgetAfter && (returned || ended) {
			l.forgotten = l.forgotten || !returned
			delete(l.accounts, name)
			delete(l.awake, a)
			delete(l.unindexed, a)
		}
	}
}

// indexInterval is the interval between entries of an account in use into the index.
const indexInterval = time.Minute

// indexAccounts enters accounts into the index that had a round trip and whose entries are due, and removes the accounts
// that were not used for indexedTime. If the call fails, the next heartbeat repeats it.
func (l *Ledger) indexAccounts(ctx context.Context) error {
	l.mu.Lock()
	list := slices.Collect(maps.Keys(l.unindexed))
	l.mu.Unlock()
	index := l.shared(accountsKey)
	if len(list) == 0 || l.lostFor(ctx, index) {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	for part := range slices.Chunk(list, indexBatch) {
		_, err := l.onServer(limited, index, func(to server) error {
			l.mu.Lock()
			second := (l.now() + to.shard.most) / 1e6 // of Redis, because the clocks of the replicas may differ
			l.mu.Unlock()
			entries := make([]redis.Z, len(part))
			for i, a := range part {
				entries[i] = redis.Z{Score: float64(second), Member: a.title()}
			}
			_, err := to.node.Pipelined(limited, func(p redis.Pipeliner) error {
				p.ZAdd(limited, index, entries...)
				p.ZRemRangeByScore(limited, index, "-inf", strconv.FormatInt(second-int64(indexedTime/time.Second), 10))
				p.PExpire(limited, index, indexedTime)
				return nil
			})
			return err
		})
		if err != nil {
			return unavailable(err)
		}
		l.mu.Lock()
		for _, a := range part {
			a.indexed = time.Now()
			delete(l.unindexed, a)
		}
		l.mu.Unlock()
	}
	return nil
}

// Join registers this replica, and retries until all shards respond or ctx ends. All replicas derive account names from the
// returned secret. If Redis does not respond, the replica starts without Redis: it has another secret and may use a part
// of each limit, until [Ledger.Run] reaches Redis.
func (l *Ledger) Join(ctx context.Context) (secret []byte) {
	for {
		l.reconnect(ctx)
		err := l.heartbeat(ctx)
		if err == nil && !l.isLost() { // a young cluster has shards that do not serve yet
			l.warnOfEviction(ctx)
			break
		}
		select {
		case <-ctx.Done():
			if l.isRegistered() { // other shards are lost
				break
			}
			home, _ := l.addressOf(ctx, sharedPrefix)
			l.markLost(home, err)
			l.mu.Lock()
			l.startedCold = true
			l.mu.Unlock()
			l.Log.Warn("started without redis", "effect", cmp.Or(l.ColdStart(), "all quota may be used until redis responds"),
				"cold_start", l.rules.Load().ColdStart, "error", err, "key", "store.url", "remedy", redisclient.Remedy(err))
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

// registerReplica renews the registration of this replica. If the epoch of Redis has changed since the previous
// registration, all shards may have lost writes.
func (l *Ledger) registerReplica(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	answer, address, err := l.sendRegistration(limited)
	if ctx.Err() == nil {
		l.responds(address, err)
	}
	if err != nil {
		return unavailable(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.indexed = max(answer.Accounts, l.indexed*49/50) // the estimate falls slowly after a loss of the index
	if answer.Epoch != l.epoch {
		for _, s := range l.shards {
			s.losses++
		}
		l.epochBegan, l.renewedNames = time.Now(), time.Time{}
	}
	l.epoch = answer.Epoch
	if time.Since(l.epochBegan) < 2*lossTime { // the other replicas may not have registered again yet
		answer.Replicas = max(answer.Replicas, l.replicas.Load())
	}
	l.replicas.Store(answer.Replicas)
	if l.registered && answer.Secret != l.secret { // replicas derive account names from different secrets
		l.Log.Error("another replica uses another secret for account names; restart one of them")
		return nil
	}
	renamed := l.startedCold && !l.registered && answer.Secret != l.secret
	l.secret, l.registered = answer.Secret, true
	if renamed && l.Joined != nil {
		secret, err := hex.DecodeString(answer.Secret)
		if err != nil {
			return unavailable(err)
		}
		l.background.Go(func() { l.Joined(secret) })
	}
	return nil
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
	address, err = l.onServer(ctx, sharedPrefix, func(to server) error {
		l.mu.Lock()
		l.createSecret()
		sent := l.now()
		argument := registration{l.Replica, registeredTime.Milliseconds(), l.secret, to.process, to.shard.reach(sent)}
		l.mu.Unlock()
		keys := []string{
			l.shared(replicasKey), epochKey, secretKey, l.shared(accountsKey), l.shared(resourcesKey), l.shared(aliasesKey), l.shared(namesKey),
		}
		if err := runScript(ctx, to.node, l.scripts.register, keys, argument, &answer); err != nil {
			return err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		to.shard.replied(sent, l.now(), answer.Now)
		return nil
	})
	return answer, address, err
}

// Leave returns all leases of this replica and ends the registration, so that other replicas can use the quota
// immediately. If a shard is lost, Leave tries to reconnect for leaveTimeout. Leave must be called after [Ledger.Run] has
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
		err := l.forShards(limited, func(s *shard, _ redis.UniversalClient) error {
			if l.isLostShard(s) {
				return unavailable(errLost)
			}
			l.mu.Lock()
			list := slices.Collect(maps.Keys(l.awake))
			l.mu.Unlock()
			return inParallel(limited, l.onShard(limited, s, list), func(ctx context.Context, a *account) error {
				return l.roundTrip(ctx, a, &entry{leave: true})
			})
		})
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
