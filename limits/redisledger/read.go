package redisledger

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// readCall is the argument of read.lua.
type readCall struct {
	Headroom   float64    `json:"headroom"`
	Concurrent int64      `json:"concurrent"`
	Windows    []resource `json:"windows"`
	// WindowOnly reports the only window, also if it was not used, and no logs.
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

// account converts the times of Redis to the clock of this process.
func (answer *reply) account(name string, rules *limits.Rules) limits.Account {
	state, here := &answer.Account, time.Now()
	at := func(t int64) time.Time { return here.Add(time.Duration(t-answer.Now) * time.Microsecond) }
	kind, _, _ := strings.Cut(state.Title, " ")
	a := limits.Account{Name: name, Kind: policy.CallerKind(kind), InUse: state.InUse, Concurrent: state.Concurrent}
	if state.BlockedUntil != 0 {
		a.BlockedUntil = at(state.BlockedUntil)
	}
	for _, w := range state.Windows {
		b := limits.Budget{Resource: w.Resource, Limit: w.Limit, Used: min(w.Used, w.Limit), Held: w.Held, Reset: at(w.Reset)}
		b.Remaining, b.Window = b.Limit-b.Used, rules.For(a.Kind, b.Resource).Window
		a.Budgets = append(a.Budgets, b)
	}
	shown := len(a.Budgets)
	for _, log := range state.Logs {
		budget, scope, _ := strings.Cut(log.Log, ":")
		b := rules.LogBudget(limits.Reason(budget), strings.ReplaceAll(scope, "\x1f", " "), log.Total, log.Held)
		b.Reset = at(log.Reset)
		a.Budgets = append(a.Budgets, b)
	}
	slices.SortFunc(a.Budgets[shown:], func(x, y limits.Budget) int { return strings.Compare(x.Resource, y.Resource) })
	return a
}

// Budget implements [limits.Ledger], from what this replica was told last. Only
// of an account that it has not heard of yet Redis is asked; while it is lost,
// nobody can tell.
func (l *Ledger) Budget(ctx context.Context, name string, kind policy.CallerKind, res string) (limits.Budget, error) {
	r := l.rules.Load()
	if !policy.IsResource(res) {
		res = policy.Core
	}
	s := l.shadow(name, kind)
	if b, ok := l.remembered(s, res, r); ok {
		return b, nil
	} else if l.isLost() {
		return limits.Budget{}, lost(errLost)
	}
	a, err := l.read(context.WithoutCancel(ctx), name, true, resourceOf(r, kind, res)) // others want to know it, too
	if err != nil || len(a.Budgets) == 0 {
		return limits.Budget{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.budgets[res] = a.Budgets[0]
	return a.Budgets[0], nil
}

// Accounts implements [limits.Ledger], ordered by name.
func (l *Ledger) Accounts(ctx context.Context, most int) ([]limits.Account, error) {
	limited, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	to, err := l.serverOf(limited, accountsKey)
	if err != nil {
		return nil, lost(err)
	}
	names, err := to.node.ZRevRange(limited, accountsKey, 0, int64(most-1)).Result()
	if err != nil {
		return nil, lost(err)
	}
	names = l.withOwn(names, most)
	r := l.rules.Load()
	list := make([]limits.Account, len(names))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(readsAtOnce)
	for i, name := range names {
		group.Go(func() error {
			kind, name, _ := strings.Cut(name, " ")
			var windows []resource
			for _, known := range policy.Resources() {
				windows = append(windows, resourceOf(r, policy.CallerKind(kind), known))
			}
			a, err := l.read(ctx, name, false, windows...)
			a.Name, a.Kind = name, policy.CallerKind(kind) // the index may outlive the account by a little
			list[i] = a
			if unreadable(err) {
				return nil // until a step mends it, the others are told
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return list, nil
}

// readsAtOnce bounds how many accounts are read side by side, each in a round trip of
// its own: a thousand are to be looked at every second.
const readsAtOnce = 16

// withOwn adds the accounts that this replica has not entered yet.
func (l *Ledger) withOwn(names []string, most int) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.accounts {
		if s.seen.IsZero() {
			names = append(names, s.title())
		}
	}
	slices.SortFunc(names, func(x, y string) int {
		_, x, _ = strings.Cut(x, " ")
		_, y, _ = strings.Cut(y, " ")
		return strings.Compare(x, y)
	})
	names = slices.Compact(names)
	return names[:min(most, len(names))]
}

// seeEvery is how often an account in use is entered anew into the index.
const seeEvery = time.Minute

// see enters an account into the index, when it is due or may have been lost, and
// drops those not seen for long.
func (l *Ledger) see(ctx context.Context, s *shadow, must bool) error {
	now := time.Now()
	l.mu.Lock()
	due := must || now.Sub(s.seen) >= seeEvery
	l.mu.Unlock()
	if !due {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	to, err := l.serverOf(limited, accountsKey)
	if err != nil {
		return lost(err)
	}
	_, err = to.node.Pipelined(limited, func(p redis.Pipeliner) error {
		p.ZAdd(limited, accountsKey, redis.Z{Score: float64(now.Unix()), Member: s.title()})
		p.ZRemRangeByScore(limited, accountsKey, "-inf", strconv.FormatInt(now.Add(-keptBeyond).Unix(), 10))
		p.PExpire(limited, accountsKey, keptBeyond)
		return nil
	})
	if err != nil {
		return lost(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.seen = now
	return nil
}

// read returns the state of an account with some windows.
func (l *Ledger) read(ctx context.Context, name string, windowOnly bool, windows ...resource) (limits.Account, error) {
	r := l.rules.Load()
	args := readCall{r.Headroom, r.Usable(int64(r.Concurrent)), windows, windowOnly}
	answer, err := l.run(ctx, l.scripts.read, name, func(string) call { return call{Step: args} }, func(reply) {})
	if err != nil {
		return limits.Account{}, err
	}
	return answer.account(name, r), nil
}
