package redisledger

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// callHook is a client hook that can change calls.
type callHook struct {
	mu     sync.Mutex
	change func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error
}

func (*callHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*callHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (s *callHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.mu.Lock()
		change := s.change
		s.mu.Unlock()
		if change == nil {
			return next(ctx, cmd)
		}
		return change(ctx, cmd, next)
	}
}

// changeAll changes all later calls. If change is nil, calls are not changed.
func (s *callHook) changeAll(change func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change = change
}

// changeNext changes the next call of a script.
func (s *callHook) changeNext(script *redis.Script, change func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change = func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
		if cmd.Name() != "evalsha" || cmd.Args()[1] != script.Hash() {
			return run(ctx, cmd)
		}
		s.mu.Lock()
		s.change = nil
		s.mu.Unlock()
		return change(ctx, cmd, run)
	}
}

var errDisconnected = errors.New("connection lost")

// loseReply runs a call and loses its reply.
func loseReply(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
	_ = run(ctx, cmd)
	cmd.SetErr(errDisconnected)
	return errDisconnected
}

// pair has two replicas on one Redis. The calls of the first replica pass through a hook.
type pair struct {
	*testing.T
	r1, r2      *Ledger
	hook        *callHook
	lastID      uint64
	clockOffset *atomic.Int64 // of Redis
}

func withTwoReplicas(t *testing.T, run func(p *pair)) {
	inBubble(t, func(t *testing.T, r1 *Ledger, offset *atomic.Int64) {
		p := &pair{T: t, r1: r1, hook: &callHook{}, clockOffset: offset}
		for _, script := range []*redis.Script{r1.scripts.exchange} {
			if err := script.Load(t.Context(), r1.Client).Err(); err != nil {
				t.Fatal(err)
			}
		}
		r1.Client.(*redis.Client).AddHook(p.hook)
		client := clientOf(t, r1.Client.(*redis.Client).Options().Dialer)
		client.AddHook(tick{offset})
		p.r2 = open(t, client, "r2", *r1.rules.Load(), testClock)
		run(p)
	})
}

func (p *pair) claim(points int) limits.Claim {
	p.lastID++
	return limits.Claim{ID: p.lastID, Account: "a", Kind: policy.User, Operation: "repos/get", Resource: policy.Core, Points: points}
}

func (p *pair) admit(l *Ledger, c limits.Claim) bool {
	p.Helper()
	d, err := l.Admit(p.Context(), c)
	if err != nil {
		p.Fatal(err)
	}
	return d.Granted
}

// settleAnswered settles a permit with a response. If ended is not set, the response body remains open.
func (p *pair) settleAnswered(l *Ledger, c limits.Claim, ended bool) {
	p.Helper()
	now := time.Now()
	rate := limits.Rate{Limit: 5000, Used: 1, Reset: now.Add(time.Hour).Truncate(time.Second), Date: now.Truncate(time.Second)}
	if err := l.Settle(p.Context(), limits.Permit{Claim: c}, limits.Outcome{Sent: true, Answered: true, Ended: ended, Rate: rate}); err != nil {
		p.Fatal(err)
	}
}

// spend admits and settles claims until a claim is refused, at most the given number. It returns the number of granted
// claims.
func (p *pair) spend(l *Ledger, points, most int, ended bool) (times int) {
	p.Helper()
	for ; times < most; times++ {
		c := p.claim(points)
		if !p.admit(l, c) {
			break
		}
		p.settleAnswered(l, c, ended)
	}
	return times
}

func (p *pair) heartbeat(l *Ledger) {
	p.Helper()
	if err := l.heartbeat(p.Context()); err != nil {
		p.Fatal(err)
	}
}

func (p *pair) disconnect(l *Ledger) { l.markLost(errDisconnected) }

// settle settles a claim of the first replica.
func (p *pair) settle(c limits.Claim, o limits.Outcome) {
	p.Helper()
	if err := p.r1.Settle(p.Context(), limits.Permit{Claim: c}, o); err != nil {
		p.Fatal(err)
	}
}

func plain(limited limits.LimitKind) limits.Outcome {
	return limits.Outcome{Sent: true, Answered: true, Limited: limited}
}

// onlyAccount returns the only account of the ledger.
func (l *Ledger) onlyAccount(t *testing.T) limits.Account {
	t.Helper()
	list, err := l.Accounts(t.Context(), 2)
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	return list[0]
}

// permitTime is the lifetime of a permit without renewal.
const permitTime = 30 * time.Second
