package redisledger

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// accountReply is the reply of read.lua: the account without the use of this replica.
type accountReply struct {
	Title    string        `json:"title"` // kind and name
	Now      int64         `json:"now,string"`
	Enforced bool          `json:"enforced"`
	Cooldown string        `json:"cooldown"`
	Version  int64         `json:"cooldown_version"`
	Windows  []windowReply `json:"windows"`
	Budgets  []struct {
		Budget  string `json:"budget"`
		Spent   int64  `json:"spent"`
		Held    int64  `json:"held"`
		Returns int64  `json:"returns,string"`
		Ends    int64  `json:"ends,string"`
	} `json:"budgets"`
}

// read returns the use of an account by other replicas, without changing the account in Redis. The replica learns the
// windows and the cool-down.
func (l *Ledger) read(ctx context.Context, a *account) (foreign map[string]limits.Use, err error) {
	var answer accountReply
	var sent int64
	err = l.run(ctx, l.scripts.read, a.name, func(to server) any {
		l.mu.Lock()
		defer l.mu.Unlock()
		sent = l.now()
		return call{Replica: l.Replica, reach: l.reach(to.address, sent)}
	}, &answer)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if kind, _, ok := strings.Cut(answer.Title, " "); ok && a.kind == "" {
		a.kind = policy.CallerKind(kind)
		a.part.Kind = a.kind
	}
	now, r := l.now(), l.rules.Load()
	offset := limits.Offset{Min: answer.Now - now, Max: answer.Now - sent}
	a.part.LearnEnforced(answer.Enforced)
	for _, w := range answer.Windows {
		a.part.LearnWindow(w.Budget, w.state(), offset, r, now)
	}
	if answer.Cooldown != "" && a.cooldown == 0 {
		if err := a.part.LearnCooldown(json.RawMessage(answer.Cooldown), offset, now); err != nil {
			return nil, unavailable(err)
		}
		a.cooldown = answer.Version
	}
	local := func(at int64) int64 {
		if at <= answer.Now {
			return 0
		}
		return at - offset.Min
	}
	foreign = map[string]limits.Use{}
	for _, b := range answer.Budgets {
		if b.Spent+b.Held > 0 {
			foreign[b.Budget] = limits.Use{Spent: b.Spent, Held: b.Held, Returns: local(b.Returns), Ends: local(b.Ends)}
		}
	}
	return foreign, nil
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
	if l.isLost() || time.Since(since) > activeTime {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[l.canonical(account)]
	return a != nil && a.part.Others(a.part.WindowBudget(res)) == 0
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
	if !l.isLost() {
		if _, err := l.read(context.WithoutCancel(ctx), a); err != nil {
			return nil, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !known && a.kind != "" && l.accounts[name] == nil {
		a.used = time.Now()
		l.accounts[name] = a
	}
	return a.part.Resources(), nil
}

// Accounts implements [limits.Operator]. It returns the most recently used accounts, ordered by name.
func (l *Ledger) Accounts(ctx context.Context, most int) ([]limits.Account, error) {
	limited, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	to, err := l.serverOf(limited, accountsKey)
	if err != nil {
		return nil, unavailable(err)
	}
	titles, err := to.node.ZRevRange(limited, l.shared(accountsKey), 0, int64(most-1)).Result()
	if err != nil {
		return nil, unavailable(err)
	}
	l.mu.Lock()
	for _, a := range l.accounts {
		if a.indexed.IsZero() {
			titles = append(titles, a.title())
		}
	}
	titles = slices.DeleteFunc(titles, func(title string) bool {
		_, name, _ := strings.Cut(title, " ")
		return l.canonical(name) != name
	})
	l.mu.Unlock()
	slices.SortFunc(titles, func(x, y string) int {
		_, x, _ = strings.Cut(x, " ")
		_, y, _ = strings.Cut(y, " ")
		return strings.Compare(x, y)
	})
	titles = slices.Compact(titles)
	titles = titles[:min(most, len(titles))]
	list := make([]limits.Account, len(titles))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelCalls)
	for i, title := range titles {
		group.Go(func() (err error) {
			list[i], err = l.describe(ctx, title)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return list, nil
}

// describe returns an account of the index.
func (l *Ledger) describe(ctx context.Context, title string) (limits.Account, error) {
	kind, name, _ := strings.Cut(title, " ")
	l.mu.Lock()
	a := l.accounts[name]
	if a == nil {
		a = newAccount(name, policy.CallerKind(kind))
	}
	l.mu.Unlock()
	foreign, err := l.read(ctx, a)
	if err != nil && !errors.Is(err, errUnreadable) { // the next round trip repairs an unreadable account
		return limits.Account{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return a.part.Describe(l.rules.Load(), foreign, l.clock), nil
}
