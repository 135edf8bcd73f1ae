package redisledger

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// readCall is the argument of read.lua.
type readCall struct {
	Headroom   float64 `json:"headroom"`
	Concurrent int64   `json:"concurrent"`
	// Windows have documented numbers. Other windows of the account have the numbers of Other.
	Windows []resource `json:"windows,omitempty"`
	Other   resource   `json:"other"`
	// WindowOnly selects a reply without logs and with the only window, even if that window was not used.
	WindowOnly bool `json:"window_only"`
}

// accountReply is the state of an account.
type accountReply struct {
	Title        string `json:"title"` // kind and name
	InUse        int    `json:"in_use"`
	Concurrent   int    `json:"concurrent"`
	BlockedUntil int64  `json:"blocked_until,string"`
	Windows      []struct {
		rateReply
		Resource string `json:"resource"`
		Held     int    `json:"held"`
	} `json:"windows"`
	Logs []struct {
		Log   string `json:"log"`
		Total int    `json:"total"`
		Held  int    `json:"held"`
		Reset int64  `json:"reset,string"`
	} `json:"logs"`
}

// account returns the state of an account, with times on the clock of this process.
func (answer *reply) account(name string, rules *limits.Rules) limits.Account {
	state, here := &answer.Account, time.Now()
	at := func(t int64) time.Time { return here.Add(time.Duration(t-answer.Now) * time.Microsecond) }
	kind, _, _ := strings.Cut(state.Title, " ")
	a := limits.Account{Name: name, Kind: policy.CallerKind(kind), InUse: state.InUse, Concurrent: state.Concurrent}
	if state.BlockedUntil != 0 {
		a.BlockedUntil = at(state.BlockedUntil)
	}
	for _, w := range state.Windows {
		b := limits.Budget{Resource: w.Resource, Limit: w.Limit, Used: min(w.Used, w.Limit), Held: w.Held, Reset: at(w.Reset), Unlimited: w.Unlimited}
		b.Remaining, b.Window = b.Limit-b.Used, rules.For(a.Kind, b.Resource).Window
		a.Budgets = append(a.Budgets, b)
	}
	slices.SortFunc(a.Budgets, func(x, y limits.Budget) int { return policy.CompareResources(x.Resource, y.Resource) })
	shown := len(a.Budgets)
	for _, log := range state.Logs {
		budget, scope, _ := strings.Cut(log.Log, ":")
		b := rules.LogBudget(limits.Reason(budget), scope, log.Total, log.Held)
		b.Reset = at(log.Reset)
		a.Budgets = append(a.Budgets, b)
	}
	slices.SortFunc(a.Budgets[shown:], func(x, y limits.Budget) int { return strings.Compare(x.Resource, y.Resource) })
	return a
}

// Budget implements [limits.Ledger] from local state. It calls Redis only for a resource without local state.
func (l *Ledger) Budget(ctx context.Context, name string, kind policy.CallerKind, res string) (limits.Budget, error) {
	r := l.rules.Load()
	a := l.account(name, kind)
	if b, ok := l.knownBudget(a, res, r); ok {
		return b, nil
	} else if l.isLost() {
		return limits.Budget{}, unavailable(errLost)
	}
	args := readCall{Headroom: r.Headroom, Windows: []resource{resourceOf(r, kind, res)}, WindowOnly: true}
	answer, err := l.read(context.WithoutCancel(ctx), name, args)
	read := answer.account(name, r)
	if err != nil || len(read.Budgets) == 0 {
		return limits.Budget{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	a.budgets[res] = read.Budgets[0]
	return read.Budgets[0], nil
}

// Resources implements [limits.Ledger]. While Redis is lost, it returns the resources that this replica knows.
func (l *Ledger) Resources(ctx context.Context, name string) ([]string, error) {
	names := map[string]bool{}
	l.mu.Lock()
	if a := l.accounts[name]; a != nil {
		for res := range a.budgets {
			names[res] = true
		}
		for res := range a.observed {
			names[res] = true
		}
	}
	l.mu.Unlock()
	if !l.isLost() {
		answer, err := l.read(context.WithoutCancel(ctx), name, readCall{})
		if err != nil {
			return nil, err
		}
		for _, w := range answer.Account.Windows {
			names[w.Resource] = true
		}
	}
	return slices.SortedFunc(maps.Keys(names), policy.CompareResources), nil
}

// Accounts implements [limits.Ledger]. It returns the most recently used accounts, ordered by name.
func (l *Ledger) Accounts(ctx context.Context, most int) ([]limits.Account, error) {
	limited, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	to, err := l.serverOf(limited, accountsKey)
	if err != nil {
		return nil, unavailable(err)
	}
	titles, err := to.node.ZRevRange(limited, accountsKey, 0, int64(most-1)).Result()
	if err != nil {
		return nil, unavailable(err)
	}
	l.mu.Lock()
	for _, a := range l.accounts {
		if a.indexed.IsZero() {
			titles = append(titles, a.title())
		}
	}
	l.mu.Unlock()
	slices.SortFunc(titles, func(x, y string) int {
		_, x, _ = strings.Cut(x, " ")
		_, y, _ = strings.Cut(y, " ")
		return strings.Compare(x, y)
	})
	titles = slices.Compact(titles)
	titles = titles[:min(most, len(titles))]
	r := l.rules.Load()
	list := make([]limits.Account, len(titles))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelCalls)
	for i, title := range titles {
		group.Go(func() error {
			kind, name, _ := strings.Cut(title, " ")
			args := readCall{
				Headroom: r.Headroom, Concurrent: r.Usable(int64(r.Concurrent)), Other: resourceOf(r, policy.CallerKind(kind), policy.Core),
			}
			for _, known := range policy.KnownResources() {
				args.Windows = append(args.Windows, resourceOf(r, policy.CallerKind(kind), known))
			}
			answer, err := l.read(ctx, name, args)
			a := answer.account(name, r)
			a.Name, a.Kind = name, policy.CallerKind(kind) // the account may have expired
			list[i] = a
			if unreadable(err) {
				return nil // the next step repairs the account
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return list, nil
}

// read returns the state of an account without changing the account.
func (l *Ledger) read(ctx context.Context, name string, args readCall) (reply, error) {
	return l.run(ctx, l.scripts.read, name, func(string) call { return call{Step: args} }, func(reply) {})
}
