package redisledger

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/limits/limitstest"
	"github.com/weirgate/weir/policy"
)

// TestMain checks fewer random histories with each property than other packages, because Redis is slower than memory: a third,
// or one on miniredis.
func TestMain(m *testing.M) {
	flag.Parse()
	checks, err := strconv.Atoi(flag.Lookup("rapid.checks").Value.String())
	if err != nil || !testservers.HasRedis() {
		checks = 1
	}
	_ = flag.Set("rapid.checks", strconv.Itoa(max(1, checks/3))) // never fails
	_ = flag.Set("test.parallel", "3")                           // the tests of two clusters mostly wait
	testservers.Main(m)
}

// database is an empty database of a Redis server that all tests share.
type database struct {
	socket string
	number int
}

func newDatabase(t testing.TB) (d database) {
	d.socket, d.number = testservers.RedisDatabase(t, 0)
	return d
}

func (d database) client(t testing.TB) *redis.Client {
	dial := func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", d.socket) }
	return newClient(t, redis.Options{DB: d.number, Dialer: dial})
}

// newClient returns a client with the options of production, except for time-outs. Replies take real time.
func newClient(t testing.TB, o redis.Options) *redis.Client {
	o.Addr, o.MaintNotificationsConfig = "127.0.0.1:0", &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	o.MaxRetries, o.DialerRetries, o.DisableIdentity, o.ContextTimeoutEnabled = -1, 1, true, true
	// A call that waits for a connection uses a timer that go-redis shares between the bubbles of synctest. The pool is
	// large enough for all calls of a test.
	o.PoolSize = 2000
	client := redis.NewClient(&o)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// intercept is a client hook that runs a function for each command.
type intercept func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error

func (intercept) DialHook(next redis.DialHook) redis.DialHook { return next }

func (intercept) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (f intercept) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return f(ctx, cmd, next) }
}

// testClock is a clock that reads the time from the last argument of the script.
const testClock = `
local function clock()
  return tonumber(ARGV[#ARGV])
end
`

// tick returns a hook that adds the time of the bubble plus an offset to every script.
func tick(offset *atomic.Int64) redis.Hook {
	return intercept(func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
		script, ok := cmd.(*redis.Cmd)
		if !ok || cmd.Name() != "evalsha" && cmd.Name() != "eval" {
			return run(ctx, cmd)
		}
		timed := redis.NewCmd(ctx, append(slices.Clone(cmd.Args()), time.Now().UnixMicro()+offset.Load())...)
		err := run(ctx, timed)
		script.SetVal(timed.Val())
		script.SetErr(err)
		return err
	})
}

// open returns the ledger of a replica. The scripts use the given clock.
func open(t testing.TB, client redis.UniversalClient, replica string, rules limits.Rules, clock string) *Ledger {
	l, err := New(Config{Client: client, Replica: replica, Rules: rules, Log: slog.New(slog.DiscardHandler)})
	noError(t, err)
	l.scripts = newScripts(clock)
	l.timeout = time.Minute // a real server does not use the time of the bubble
	l.flushDelay = 0        // outcomes are sent immediately
	noError(t, l.heartbeat(t.Context()))
	// In an old epoch, new accounts do not wait for restores.
	noError(t, client.HSet(t.Context(), epochKey, "since", 0, "process", "").Err())
	return l
}

// defaultRules returns the rules of most tests.
func defaultRules() limits.Rules { return limits.Rules{Limits: policy.DefaultLimits()} }

// callHook changes the calls of a replica. If change is nil, calls are not changed.
type callHook struct {
	mu     sync.Mutex
	change intercept
}

func (s *callHook) hook() redis.Hook {
	return intercept(func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
		s.mu.Lock()
		change := s.change
		s.mu.Unlock()
		if change == nil {
			return run(ctx, cmd)
		}
		return change(ctx, cmd, run)
	})
}

// changeAll changes all later calls.
func (s *callHook) changeAll(change intercept) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change = change
}

// changeNext changes the next call of a script.
func (s *callHook) changeNext(script *redis.Script, change intercept) {
	s.changeAll(func(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
		if cmd.Name() != "evalsha" || cmd.Args()[1] != script.Hash() {
			return run(ctx, cmd)
		}
		s.changeAll(nil)
		return change(ctx, cmd, run)
	})
}

var errDisconnected = errors.New("connection lost")

// fail does not run a call.
func fail(_ context.Context, cmd redis.Cmder, _ redis.ProcessHook) error {
	cmd.SetErr(errDisconnected)
	return errDisconnected
}

// loseReply runs a call and loses its reply.
func loseReply(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
	_ = run(ctx, cmd)
	return fail(ctx, cmd, run)
}

// pair has two replicas on one Redis. The calls of the first replica pass through a hook.
type pair struct {
	*testing.T
	database
	r1, r2      *Ledger
	hook        callHook
	lastID      uint64
	clockOffset atomic.Int64 // of Redis
}

// withTwoReplicas runs a test in virtual time, with two replicas on an empty database of a real server.
func withTwoReplicas(t *testing.T, run func(p *pair)) {
	t.Helper()
	d := newDatabase(t)
	synctest.Test(t, func(t *testing.T) {
		p := &pair{T: t, database: d}
		p.r1, p.r2 = p.open("r1", defaultRules()), p.open("r2", defaultRules())
		noError(t, p.r1.scripts.roundTrip.Load(t.Context(), p.r1.Client).Err())
		p.r1.Client.AddHook(p.hook.hook())
		run(p)
	})
}

// subtest calls withTwoReplicas in a subtest.
func subtest(t *testing.T, name string, run func(p *pair)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { withTwoReplicas(t, run) })
}

func (p *pair) open(replica string, rules limits.Rules) *Ledger {
	p.Helper()
	client := p.client(p.T)
	client.AddHook(tick(&p.clockOffset))
	return open(p.T, client, replica, rules, testClock)
}

// both returns both replicas.
func (p *pair) both() []*Ledger { return []*Ledger{p.r1, p.r2} }

// configure changes the rules of both replicas.
func (p *pair) configure(change func(r *limits.Rules)) {
	rules := *p.r1.rules.Load()
	change(&rules)
	for _, l := range p.both() {
		l.Configure(rules)
	}
}

func (p *pair) claim(points int) limits.Claim { return p.claimOf("a", points) }

func (p *pair) claimOf(account string, points int) limits.Claim {
	p.lastID++
	return limits.Claim{ID: p.lastID, Account: account, Kind: policy.User, Operation: "repos/get", Resource: policy.Core, Points: points}
}

// create returns a claim that creates content.
func create(id uint64) limits.Claim {
	return limits.Claim{ID: id, Account: "a", Kind: policy.User, Operation: "issues/create", Resource: policy.GraphQL, Points: 5, CreatesContent: true}
}

func (p *pair) decide(l *Ledger, c limits.Claim) limits.Decision {
	p.Helper()
	return l.Admit(p.Context(), c)
}

func (p *pair) admit(l *Ledger, c limits.Claim) bool {
	p.Helper()
	return p.decide(l, c).Granted
}

// mustAdmit fails the test if a claim is refused.
func (p *pair) mustAdmit(l *Ledger, c limits.Claim, when string) limits.Claim {
	p.Helper()
	d := p.decide(l, c)
	stopIf(p, !d.Granted, "%s: a claim was refused: %+v", when, d)
	return c
}

// settle settles a claim. Without Redis, the ledger may return an error.
func (p *pair) settle(l *Ledger, c limits.Claim, o limits.Outcome) {
	p.Helper()
	err := l.Settle(p.Context(), limits.Permit{Claim: c}, o)
	stopIf(p, err != nil && !l.isLost(), "%v", err)
}

func plain(limited policy.LimitKind) limits.Outcome {
	return limits.Outcome{Sent: true, Answered: true, Limited: limited}
}

// answered returns the outcome of a complete response.
func answered(rate policy.Rate) limits.Outcome {
	return limits.Outcome{Sent: true, Answered: true, Ended: true, Rate: rate}
}

// unusedWindow returns the rate headers of a window that has just begun.
func unusedWindow() policy.Rate {
	now := time.Now()
	return policy.Rate{Limit: 5000, Used: 1, Reset: now.Add(time.Hour).Truncate(time.Second), Date: now.Truncate(time.Second)}
}

// settleAnswered settles a permit with a response. If ended is not set, the response body remains open.
func (p *pair) settleAnswered(l *Ledger, c limits.Claim, ended bool) {
	p.Helper()
	o := answered(unusedWindow())
	o.Ended = ended
	p.settle(l, c, o)
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

// window is a window of the upstream, which counts the requests of all replicas.
type window struct {
	*pair
	limit, used int
	reset       time.Time
	open        bool                  // response bodies remain open
	change      func(c *limits.Claim) // nil, or changes each claim
}

// answer settles a claim with the rate headers of the window.
func (w *window) answer(l *Ledger, c limits.Claim) {
	w.Helper()
	w.used++
	o := answered(policy.Rate{Limit: w.limit, Used: w.used, Reset: w.reset, Date: time.Now()})
	o.Ended = !w.open
	w.settle(l, c, o)
}

// spend sends requests until a claim is refused, at most the given number. It returns the number of requests.
func (w *window) spend(l *Ledger, most int) (times int) {
	w.Helper()
	for ; times < most; times++ {
		c := w.claim(1)
		if w.change != nil {
			w.change(&c)
		}
		if !w.admit(l, c) {
			break
		}
		w.answer(l, c)
	}
	return times
}

func (p *pair) release(l *Ledger, c limits.Claim, aborted bool) {
	p.Helper()
	l.Release(p.Context(), limits.Permit{Claim: c}, aborted)
}

func (p *pair) heartbeat(replicas ...*Ledger) {
	p.Helper()
	for _, l := range replicas {
		noError(p, l.heartbeat(p.Context()))
	}
}

func (p *pair) disconnect(l *Ledger) { l.markLost("", errDisconnected) }

// loseData empties Redis, and restores the state of a replica.
func (p *pair) loseData(l *Ledger) {
	p.Helper()
	p.empty()
	reconcileAll(p.T, l)
}

// empty deletes all data of Redis.
func (p *pair) empty() {
	p.Helper()
	noError(p, p.r2.Client.FlushDB(p.Context()).Err())
}

// reconcileAll sends a heartbeat as in a new epoch. In tests without passing time, the ledger cannot distinguish
// epochs.
func reconcileAll(t *testing.T, l limitstest.Ledger) {
	l.(*Ledger).shards[""].losses++
	noError(t, l.(*Ledger).heartbeat(t.Context()))
}

// want fails the test if a count differs.
func (p *pair) want(name string, got, want int) {
	p.Helper()
	failIf(p, got != want, "%s: got %d, want %d", name, got, want)
}

// onlyAccount returns the only account of the ledger.
func (l *Ledger) onlyAccount(t *testing.T) limits.Account {
	t.Helper()
	list, err := l.Accounts(t.Context(), 2)
	stopIf(t, err != nil || len(list) != 1, "%v %v", list, err)
	return list[0]
}

// permitTime is the lifetime of a permit without renewal.
const permitTime = 30 * time.Second
