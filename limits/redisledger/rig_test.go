package redisledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/weirgate/weir/limits"
)

// rig is two real Redis servers, of which one is the master, and replicas of
// the gateway that lose their way to it. The other server gets copies of what
// the master has; when it takes over, what came after its last copy is lost.
type rig struct {
	t      *testing.T
	admins [2]*redis.Client // for the rig itself

	mu       sync.Mutex // guards what follows
	sockets  [2]string
	master   int
	cut      map[int]bool // replicas that cannot reach it
	conns    map[net.Conn]int
	failures int
	ahead    time.Duration // how much later Redis has it than the replicas
	trace    func(format string, args ...any)
}

func newRig(t *testing.T, sockets [2]string) *rig {
	r := &rig{t: t, sockets: sockets, cut: map[int]bool{}, conns: map[net.Conn]int{}, trace: func(string, ...any) {}}
	redis.SetLogger(silent{})
	t.Cleanup(func() { time.Sleep(2 * time.Second) }) // clients that were closed look for Redis once more
	for i, socket := range sockets {
		r.admins[i] = clientOf(t, func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", socket) })
		r.empty(i)
	}
	return r
}

// Write takes what the ledgers log.
func (r *rig) Write(text []byte) (int, error) {
	r.trace("%s", text)
	return len(text), nil
}

func (r *rig) empty(server int) {
	if err := r.admins[server].FlushAll(context.Background()).Err(); err != nil {
		r.t.Error(err)
	}
}

var errCut = errors.New("the network is cut")

// tracked is a connection that the rig may break.
type tracked struct {
	net.Conn
	rig *rig
}

func (c *tracked) Close() error {
	c.rig.mu.Lock()
	delete(c.rig.conns, c.Conn)
	c.rig.mu.Unlock()
	return c.Conn.Close()
}

func (r *rig) dial(replica int) (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cut[replica] {
		return nil, errCut
	}
	c, err := net.Dial("unix", r.sockets[r.master])
	if err != nil {
		return nil, err
	}
	r.conns[c] = replica
	return &tracked{c, r}, nil
}

// sever breaks the connections of the replicas that are chosen; the caller holds
// mu.
func (r *rig) sever(chosen func(replica int) bool) {
	for c, replica := range r.conns {
		if chosen(replica) {
			_ = c.Close()
			delete(r.conns, c)
		}
	}
}

// open is the way of one replica to the ledger.
func (r *rig) open(rules limits.Rules, replica int) *Ledger {
	var ledger *Ledger
	o := &redis.Options{
		Addr: "127.0.0.1:0", Dialer: func(context.Context, string, string) (net.Conn, error) { return r.dial(replica) },
		OnConnect: func(ctx context.Context, c *redis.Conn) error {
			return identify("", ledger.meet)(ctx, c)
		},
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		// Nobody waits for a connection: the client would do so with timers that it
		// shares between bubbles.
		MaxRetries: -1, DialerRetries: 1, DisableIdentity: true, PoolSize: 2000, ContextTimeoutEnabled: true,
	}
	client := redis.NewClient(o)
	ahead := new(atomic.Int64)
	ahead.Store(r.ahead.Microseconds())
	client.AddHook(tick{ahead})
	ledger, err := New(Config{Client: client, Replica: fmt.Sprint("r", replica), Rules: rules, Log: slog.New(slog.NewTextHandler(r, nil)).With("replica", replica)})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = client.Close() })
	ledger.scripts = newScripts(testClock)
	if _, err := ledger.Register(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	return ledger
}

// copyOver gives the other server what the master has now.
func (r *rig) copyOver() {
	ctx := context.Background()
	r.mu.Lock()
	defer r.mu.Unlock()
	from, to := r.admins[r.master], 1-r.master
	r.empty(to)
	names, err := from.Keys(ctx, "*").Result()
	if err != nil {
		r.t.Error(err)
		return
	}
	for _, name := range names {
		text, err := from.Dump(ctx, name).Result()
		if err == nil {
			err = r.admins[to].RestoreReplace(ctx, name, time.Hour, text).Err()
		}
		if err != nil {
			r.t.Error(err)
		}
	}
}

// failOver makes the other server the master, with what it has.
func (r *rig) failOver() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.master = 1 - r.master
	r.failures++
	r.sever(func(int) bool { return true })
	r.trace("fail over to server %d", r.master)
}

// part cuts the replicas that are chosen off for a while, from then on.
func (r *rig) part(chosen func(replica int) bool, replicas int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var names []string
	for i := range replicas {
		if r.cut[i] = chosen(i); r.cut[i] {
			names = append(names, fmt.Sprint(i))
		}
	}
	r.sever(func(replica int) bool { return r.cut[replica] })
	r.trace("cut off: %s", strings.Join(names, " "))
}

// trouble is what befalls a rig, until ctx ends: at random moments some or all
// replicas are cut off, the other server takes over, or an empty one does; and clocks
// may be apart. No
// replica is cut off before it could write again what was lost: what it alone
// knows, nobody else can.
type trouble struct {
	Cuts, Failovers, Losses bool
	Lag                     time.Duration // of what the other server has
	Ahead                   time.Duration // Redis's clock, of the replicas'
}

// healing is more than it takes until all replicas have written again what was
// lost.
const healing = 2 * time.Second

func (r *rig) befall(ctx context.Context, x trouble, rng *rand.Rand, replicas int) {
	pause := func(d time.Duration) bool {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		}
	}
	next := func(most time.Duration) bool { return pause(time.Duration(rng.Int64N(int64(most)))) }
	for next(12 * time.Second) {
		switch rng.IntN(3) {
		case 0:
			if !x.Cuts {
				continue
			}
			odds := 0.2 + rng.Float64()
			r.part(func(int) bool { return rng.Float64() < odds }, replicas)
			next([]time.Duration{time.Second, 5 * time.Second, 40 * time.Second}[rng.IntN(3)])
			r.part(func(int) bool { return false }, replicas)
		case 1:
			if x.Failovers {
				r.copyOver()
				next(x.Lag)
				r.failOver()
				pause(healing)
			}
		case 2:
			if x.Losses {
				r.empty(1 - r.master) // nobody else writes master
				r.failOver()
				pause(healing)
			}
		}
	}
}

// silent keeps clients from writing to standard error.
type silent struct{}

// Printf implements the clients' logger.
func (silent) Printf(context.Context, string, ...any) {}
