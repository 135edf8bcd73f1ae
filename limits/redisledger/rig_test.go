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

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }
func noError(t testing.TB, err error)                 { t.Helper(); testservers.NoError(t, err) }
func stopIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.StopIf(t, c, f, a...) }

// rig injects faults into two Redis servers. The master serves the replicas, and the standby server gets copies of its
// data. A failover exchanges both roles. Writes since the last copy are then lost.
type rig struct {
	t      *testing.T
	admins [2]*redis.Client // connections of the rig to both servers

	mu          sync.Mutex // guards the fields below
	servers     [2]database
	master      int
	cut         map[int]bool // replicas without a connection to the master
	conns       map[net.Conn]int
	failovers   int
	clockOffset time.Duration // of Redis at the start
	clockSteps  atomic.Int64  // microseconds by which the clock of Redis has stepped, and clockOffset
	delay       time.Duration // longest delay of a reply
	rng         *rand.Rand
	ledgers     []*Ledger
	trace       func(format string, args ...any)
}

// newServers returns an empty database with the same number on two servers.
func newServers(t *testing.T) (d [2]database) {
	for i := range d {
		d[i].socket, _ = testservers.RedisDatabase(t, i)
	}
	_, number := testservers.RedisDatabase(t, 0)
	d[0].number, d[1].number = number, number
	return d
}

func newRig(t *testing.T, servers [2]database) *rig {
	r := &rig{t: t, servers: servers, cut: map[int]bool{}, conns: map[net.Conn]int{}, rng: rand.New(rand.NewPCG(1, 1)), trace: func(string, ...any) {}}
	redis.SetLogger(silent{})
	t.Cleanup(func() { time.Sleep(2 * time.Second) }) // closed clients try to connect once more
	for i, server := range servers {
		r.admins[i] = server.client(t)
		r.empty(i)
	}
	return r
}

// Write writes a log line of a ledger to the trace.
func (r *rig) Write(text []byte) (int, error) {
	r.trace("%s", text)
	return len(text), nil
}

func (r *rig) empty(server int) {
	err := r.admins[server].FlushDB(context.Background()).Err()
	failIf(r.t, err != nil, "%v", err)
}

var errCut = errors.New("connection cut")

// tracked is a connection that the rig can close.
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

// wait runs a command, and delays its reply by a random time below rig.delay.
func (r *rig) wait(ctx context.Context, cmd redis.Cmder, run redis.ProcessHook) error {
	err := run(ctx, cmd)
	r.mu.Lock()
	delay := time.Duration(0)
	if r.delay > 0 {
		delay = time.Duration(r.rng.Int64N(int64(r.delay)))
	}
	r.mu.Unlock()
	time.Sleep(delay)
	return err
}

func (r *rig) dial(replica int) (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cut[replica] {
		return nil, errCut
	}
	c, err := net.Dial("unix", r.servers[r.master].socket)
	if err != nil {
		return nil, err
	}
	r.conns[c] = replica
	return &tracked{c, r}, nil
}

// breakConnections closes the connections of the chosen replicas. rig.mu must be held.
func (r *rig) breakConnections(chosen func(replica int) bool) {
	for c, replica := range r.conns {
		if chosen(replica) {
			_ = c.Close()
			delete(r.conns, c)
		}
	}
}

// open returns the ledger of a replica.
func (r *rig) open(rules limits.Rules, replica int) *Ledger {
	var ledger *Ledger
	client := newClient(r.t, redis.Options{
		DB: r.servers[0].number, Dialer: func(context.Context, string, string) (net.Conn, error) { return r.dial(replica) },
		OnConnect: func(ctx context.Context, c *redis.Conn) error { return identify("", ledger.meet)(ctx, c) },
	})
	r.clockSteps.CompareAndSwap(0, r.clockOffset.Microseconds())
	client.AddHook(intercept(r.wait))
	client.AddHook(tick(&r.clockSteps))
	ledger, err := New(Config{Client: client, Replica: fmt.Sprint("r", replica), Rules: rules, Log: slog.New(slog.NewTextHandler(r, nil)).With("replica", replica)})
	noError(r.t, err)
	ledger.scripts = newScripts(testClock)
	ledger.Join(r.t.Context())
	r.mu.Lock()
	r.ledgers = append(r.ledgers, ledger)
	r.mu.Unlock()
	return ledger
}

// copyToStandby copies the data of the master to the standby server.
func (r *rig) copyToStandby() {
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
		failIf(r.t, err != nil, "%v", err)
	}
}

// failOver makes the standby server the master.
func (r *rig) failOver() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.master = 1 - r.master
	r.failovers++
	r.breakConnections(func(int) bool { return true })
	r.trace("failover to server %d", r.master)
}

// partition cuts the connections of the chosen replicas, and restores the connections of all other replicas.
func (r *rig) partition(chosen func(replica int) bool, replicas int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var names []string
	for i := range replicas {
		if r.cut[i] = chosen(i); r.cut[i] {
			names = append(names, fmt.Sprint(i))
		}
	}
	r.breakConnections(func(replica int) bool { return r.cut[replica] })
	r.trace("partitioned replicas: %s", strings.Join(names, " "))
}

// faults selects the faults that are injected at random times: partitions of replicas, failovers to the standby server,
// and failovers to an empty server. No partition begins before the replicas have restored lost data, because only the
// replicas have that data.
type faults struct {
	Cuts, Failovers, Losses bool
	Lag                     time.Duration // of the copies
	ClockOffset             time.Duration // of Redis
}

// restoreTime is enough for replicas to restore lost data.
const restoreTime = 2 * time.Second

// inject injects faults until ctx ends.
func (r *rig) inject(ctx context.Context, f faults, rng *rand.Rand, replicas int) {
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
			if !f.Cuts {
				continue
			}
			odds := 0.2 + rng.Float64()
			r.partition(func(int) bool { return rng.Float64() < odds }, replicas)
			next([]time.Duration{time.Second, 5 * time.Second, 40 * time.Second}[rng.IntN(3)])
			r.partition(func(int) bool { return false }, replicas)
		case 1:
			if f.Failovers {
				r.copyToStandby()
				next(f.Lag)
				r.failOver()
				pause(restoreTime)
			}
		case 2:
			if f.Losses {
				r.empty(1 - r.master) // only this goroutine changes master
				r.failOver()
				pause(restoreTime)
			}
		}
	}
}

// silent discards the log of the clients.
type silent struct{}

// Printf implements the logger of go-redis.
func (silent) Printf(context.Context, string, ...any) {}
