package redisledger

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/weirgate/weir/internal/redisclient"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// accountReply is the reply of read.lua: the account without the use of this replica.
type accountReply struct {
	Title    string                `json:"title"` // kind and name
	Now      int64                 `json:"now,string"`
	Enforced bool                  `json:"enforced"`
	Cooldown *limits.CooldownState `json:"cooldown"`
	Version  int64                 `json:"cooldown_version"`
	Windows  []limits.WindowState  `json:"windows"`
	Budgets  []budgetUse           `json:"budgets"`
	Leases   []struct {
		Replica string `json:"replica"`
		Budget  string `json:"budget"`
		Tokens  int64  `json:"tokens"`
		Ends    int64  `json:"ends,string"`
	} `json:"leases"`
}

// read returns the use of an account by other replicas, without changing the account in Redis. The replica learns the
// windows and the cool-down.
func (l *Ledger) read(ctx context.Context, a *account) (foreign map[string]limits.Use, err error) {
	foreign, _, err = l.readFor(ctx, a, "")
	return foreign, err
}

// readFor is like read. It also returns the leases of the other replicas for the account into, if that is set.
func (l *Ledger) readFor(ctx context.Context, a *account, into string) (foreign map[string]limits.Use, leases []adoptedCall, err error) {
	var answer accountReply
	var sent int64
	err = l.run(ctx, l.scripts.read, a.name, func(to server) any {
		l.mu.Lock()
		defer l.mu.Unlock()
		sent = l.now()
		return call{Replica: l.Replica, Into: into, reach: to.shard.reach(sent)}
	}, &answer)
	if err != nil {
		return nil, nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if kind, _, ok := strings.Cut(answer.Title, " "); ok && a.kind == "" {
		a.kind = policy.CallerKind(kind)
		a.part.Kind = a.kind
	}
	now, r := l.now(), l.rules.Load()
	a.part.Synchronize(answer.Now, sent, now)
	a.part.LearnEnforced(answer.Enforced)
	for _, w := range answer.Windows {
		a.part.LearnWindow(w.Budget, w, r, now)
	}
	if answer.Cooldown != nil && a.cooldown == 0 && a.part.CooldownChanges() == 0 { // otherwise the next round trip learns it
		a.part.LearnCooldown(answer.Cooldown, now)
		a.cooldown = answer.Version
	}
	local := func(at int64) int64 {
		if at <= answer.Now {
			return 0
		}
		return a.part.FromRedis(at)
	}
	foreign = map[string]limits.Use{}
	for _, b := range answer.Budgets {
		if b.Returns, b.Ends = local(b.Returns), local(b.Ends); b.Total() > 0 {
			foreign[b.Budget] = b.Use
		}
	}
	for _, b := range answer.Leases {
		replica, number, _ := strings.Cut(b.Replica, "#")
		if strings.Contains(number, partOf(into)) { // into has the original
			continue
		}
		name := fmt.Sprintf("%s#%s%02s", replica, partOf(a.name), number) // unlike a part that the replica has left itself
		leases = append(leases, adoptedCall{Replica: name, Budget: b.Budget, Tokens: b.Tokens, ends: local(b.Ends)})
	}
	return foreign, leases, nil
}

// partOf returns the beginning of the numbers of the parts that were adopted from an account.
func partOf(name string) string {
	sum := sha256.Sum256([]byte(name))
	return strconv.Itoa(1e6 + int(binary.BigEndian.Uint16(sum[:])))
}

// Budget implements [limits.Ledger]. The next round trip learns a resource that this replica has not used.
func (l *Ledger) Budget(caller policy.Caller, res string) (b limits.Budget, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[l.canonical(caller.Account)]
	if a == nil {
		return newAccount(caller.Account, caller.Kind).part.Budget(caller, res, l.rules.Load(), l.clock), false
	}
	if known = slices.Contains(a.part.Resources(), res); !known {
		a.touch(a.part.WindowBudget(res))
	}
	return a.part.Budget(caller, res, l.rules.Load(), l.clock), known
}

// Alone implements [limits.Ledger]. A replica has tokens of a window until activeTime after its last claim.
func (l *Ledger) Alone(account, res string, since time.Time) bool {
	account = l.Canonical(account)
	if time.Since(since) > activeTime || l.lostFor(context.Background(), l.keysOf(account)[0]) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[account]
	return a != nil && !a.rests && a.part.Others(a.part.WindowBudget(res)) == 0
}

// Resources implements [limits.Ledger]. While Redis is lost, it returns the resources that this replica knows.
func (l *Ledger) Resources(ctx context.Context, name string) ([]string, error) {
	l.mu.Lock()
	name = l.canonical(name)
	a := l.accounts[name]
	l.mu.Unlock()
	known := a != nil
	if !known {
		a = newAccount(name, "")
	}
	if !l.lostFor(ctx, l.keysOf(name)[0]) {
		if _, err := l.read(context.WithoutCancel(ctx), a); err != nil {
			return nil, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !known && a.kind != "" && l.accounts[name] == nil {
		a.used = time.Now()
		l.add(a)
	}
	return a.part.Resources(), nil
}

// quietAccount is an account that no replica used since its last entry into the index: replicas enter an account when they
// begin to use it, every minute, and when it begins to rest. foreign has no permits of other replicas.
type quietAccount struct {
	*account
	indexed float64 // second of Redis
	foreign map[string]limits.Use
}

// Accounts implements [limits.Operator]. It returns the most recently used accounts, ordered by name. It reads only accounts
// that a replica may have used since the last listing. In a cluster, accounts and the index of lost shards are as this replica
// knows them.
func (l *Ledger) Accounts(ctx context.Context, most int) ([]limits.Account, error) {
	limited, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	index := l.shared(accountsKey)
	var indexed []redis.Z
	var settled float64 // the replicas that used an account until this second of Redis have ended or entered it again
	_, err := l.onServer(limited, index, func(to server) (err error) {
		indexed, err = to.node.ZRevRangeWithScores(limited, index, 0, int64(most-1)).Result()
		l.mu.Lock()
		defer l.mu.Unlock()
		settled = float64(l.now()+to.shard.most)/1e6 - (indexInterval + activeTime).Seconds()
		return err
	})
	cluster := redisclient.IsCluster(l.Client)
	if err != nil && !cluster {
		return nil, unavailable(err)
	}
	seconds := map[string]float64{} // by title
	for _, z := range indexed {
		seconds[z.Member.(string)] = z.Score
	}
	l.mu.Lock()
	for _, a := range l.accounts {
		if title := a.title(); a.indexed.IsZero() || err != nil {
			seconds[title] = max(seconds[title], 0)
		}
	}
	maps.DeleteFunc(seconds, func(title string, _ float64) bool {
		_, name, _ := strings.Cut(title, " ")
		return l.canonical(name) != name
	})
	known := l.quiet
	l.mu.Unlock()
	titles := slices.SortedFunc(maps.Keys(seconds), func(x, y string) int {
		_, x, _ = strings.Cut(x, " ")
		_, y, _ = strings.Cut(y, " ")
		return strings.Compare(x, y)
	})
	titles = titles[:min(most, len(titles))]
	list, quiet := make([]limits.Account, len(titles)), make([]quietAccount, len(titles))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelCalls)
	for i, title := range titles {
		group.Go(func() (err error) {
			quiet[i] = known[title]
			if quiet[i].indexed != seconds[title] {
				quiet[i] = quietAccount{indexed: seconds[title]}
			}
			if list[i], err = l.describe(ctx, title, &quiet[i], settled); cluster && ctx.Err() == nil {
				err = nil
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.quiet = map[string]quietAccount{}
	for i, title := range titles {
		if quiet[i].account != nil {
			l.quiet[title] = quiet[i]
		}
	}
	return list, nil
}

// describe returns an account of the index, and reads it unless it is quiet. Then describe finds out whether the account is
// quiet now. If the account cannot be read, describe returns what this replica knows.
func (l *Ledger) describe(ctx context.Context, title string, quiet *quietAccount, settled float64) (limits.Account, error) {
	kind, name, _ := strings.Cut(title, " ")
	l.mu.Lock()
	a := l.accounts[name]
	if a == nil {
		a = quiet.account
	}
	if a == nil {
		a = newAccount(name, policy.CallerKind(kind))
	}
	reads := quiet.account == nil || a.awake[a]
	l.mu.Unlock()
	var err error
	if reads {
		quiet.account = nil
		if quiet.foreign, err = l.read(ctx, a); errors.Is(err, errUnreadable) { // the next round trip repairs the account
			err = nil
		} else if err == nil {
			quiet.account = a
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for budget, use := range quiet.foreign {
		if use.Held > 0 {
			quiet.account = nil
		} else if use.Ends != 0 && use.Ends <= now {
			delete(quiet.foreign, budget)
		}
	}
	if a.awake[a] || len(quiet.foreign) > 0 && quiet.indexed > settled {
		quiet.account = nil
	}
	return a.part.Describe(l.rules.Load(), quiet.foreign, l.clock), err
}
