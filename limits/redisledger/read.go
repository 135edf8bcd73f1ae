package redisledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// reader takes the fields of an answer one after the other.
type reader struct {
	fields []string
	err    error
}

var errShort = errors.New("the ledger's answer is cut short")

func (r *reader) text() string {
	if len(r.fields) == 0 {
		r.err = errShort
		return ""
	}
	first := r.fields[0]
	r.fields = r.fields[1:]
	return first
}

func (r *reader) number() int64 {
	n, err := strconv.ParseInt(r.text(), 10, 64)
	r.err = errors.Join(r.err, err)
	return n
}

// parseAccount reads what read.lua tells. Times in it are Redis's; they are told
// on this process's clock.
func parseAccount(name string, fields []string, rules *limits.Rules) (limits.Account, error) {
	r := &reader{fields: fields}
	kind, _, _ := strings.Cut(r.text(), " ")
	a := limits.Account{Name: name, Kind: policy.CallerKind(kind), InUse: int(r.number()), Concurrent: int(r.number())}
	blocked, now := r.number(), r.number()
	here := time.Now()
	at := func(t int64) time.Time { return here.Add(time.Duration(t-now) * time.Microsecond) }
	if blocked != 0 {
		a.BlockedUntil = at(blocked)
	}
	for range r.number() {
		b := limits.Budget{Resource: r.text(), Limit: int(r.number())}
		b.Window = rules.For(a.Kind, b.Resource).Window
		used := int(r.number())
		b.Held = int(r.number())
		b.Used = min(used, b.Limit)
		b.Remaining = b.Limit - b.Used
		b.Reset = at(r.number())
		a.Budgets = append(a.Budgets, b)
	}
	shown := len(a.Budgets)
	for len(r.fields) > 0 && r.err == nil {
		budget, scope, _ := strings.Cut(r.text(), ":")
		total, held := int(r.number()), int(r.number())
		b := rules.LogBudget(limits.Reason(budget), strings.ReplaceAll(scope, "\x1f", " "), total, held)
		b.Reset = at(r.number())
		a.Budgets = append(a.Budgets, b)
	}
	slices.SortFunc(a.Budgets[shown:], func(x, y limits.Budget) int { return strings.Compare(x.Resource, y.Resource) })
	return a, r.err
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
	a, err := l.read(context.WithoutCancel(ctx), name, resource(r, kind, res)) // others want to know it, too
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
	to, err := l.serverOf(limited, index)
	if err != nil {
		return nil, lost(err)
	}
	names, err := to.node.ZRevRange(limited, index, 0, int64(most-1)).Result()
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
			var windows []any
			for _, known := range policy.Resources() {
				windows = append(windows, resource(r, policy.CallerKind(kind), known)...)
			}
			a, err := l.read(ctx, name, windows)
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
	to, err := l.serverOf(limited, index)
	if err != nil {
		return lost(err)
	}
	_, err = to.node.Pipelined(limited, func(p redis.Pipeliner) error {
		p.ZAdd(limited, index, redis.Z{Score: float64(now.Unix()), Member: s.title()})
		p.ZRemRangeByScore(limited, index, "-inf", strconv.FormatInt(now.Add(-keptBeyond).Unix(), 10))
		p.PExpire(limited, index, keptBeyond)
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

// read tells the state of an account, with the windows that are named.
func (l *Ledger) read(ctx context.Context, name string, windows []any) (limits.Account, error) {
	r := l.rules.Load()
	args := append([]any{r.Headroom, r.Usable(int64(r.Concurrent))}, windows...)
	answer, err := l.run(ctx, l.scripts.read, name, func(string) []any { return args }, func([]any) {})
	if err != nil {
		return limits.Account{}, err
	}
	fields := make([]string, len(answer))
	for i, v := range answer {
		fields[i] = fmt.Sprint(v)
	}
	return parseAccount(name, fields, r)
}
