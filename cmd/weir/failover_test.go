package main

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// watched is a store of a master, a server that follows it, and three sentinels
// that put the one in the place of the other.
type watched struct {
	servers   map[string]*exec.Cmd // by address
	sentinels []string
}

// start starts all of them, and returns the URL of the store.
func (w *watched) start(f *fleet) string {
	master, follower := freeAddress(f.T), freeAddress(f.T)
	w.servers = map[string]*exec.Cmd{master: f.startRedis(master, "--repl-diskless-sync-delay", "0")}
	host, port, _ := net.SplitHostPort(master)
	w.servers[follower] = f.startRedis(follower, "--replicaof", host+" "+port)
	for i := range 3 {
		address := freeAddress(f.T)
		config := f.file(fmt.Sprint("sentinel", i, ".conf"), fmt.Sprintf("sentinel monitor fleet %s %s 2\nsentinel down-after-milliseconds fleet 500\n"+
			"sentinel failover-timeout fleet 2000\n", host, port))
		f.startRedis(address, config, "--sentinel")
		w.sentinels = append(w.sentinels, address)
	}
	f.until("the sentinels see each other and the follower", func(ctx context.Context) bool {
		return w.all(ctx, func(m map[string]string) bool {
			return m["num-slaves"] == "1" && m["num-other-sentinels"] == "2" && m["flags"] == "master"
		})
	})
	f.until("the follower follows", func(ctx context.Context) bool {
		c := redis.NewClient(&redis.Options{Addr: follower})
		defer func() { _ = c.Close() }()
		text, _ := c.Info(ctx, "replication").Result()
		return strings.Contains(text, "master_link_status:up")
	})
	return fmt.Sprintf("redis+sentinel://%s?master_name=fleet&addr=%s&addr=%s", w.sentinels[0], w.sentinels[1], w.sentinels[2])
}

// all asks every sentinel about the master.
func (w *watched) all(ctx context.Context, says func(map[string]string) bool) bool {
	return !slices.ContainsFunc(w.sentinels, func(address string) bool {
		c := redis.NewSentinelClient(&redis.Options{Addr: address})
		defer func() { _ = c.Close() }()
		m, err := c.Master(ctx, "fleet").Result()
		return err != nil || !says(m)
	})
}

// master is the address that the sentinels agree on; empty while they do not.
func (w *watched) master(ctx context.Context) (address string) {
	w.all(ctx, func(m map[string]string) bool {
		address = net.JoinHostPort(m["ip"], m["port"])
		return true
	})
	if w.all(ctx, func(m map[string]string) bool { return net.JoinHostPort(m["ip"], m["port"]) == address }) {
		return address
	}
	return ""
}

// until waits for something to come true.
func (f *fleet) until(what string, holds func(context.Context) bool) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), 30*time.Second)
	defer cancel()
	for !holds(ctx) {
		if ctx.Err() != nil {
			f.Fatalf("it did not come true that %s", what)
		}
		pass(ctx, 50*time.Millisecond)
	}
}

// TestSentinelsPutAnotherRedisInPlace is four replicas under overload while the
// master of their Redis is killed, and while its place is taken by request: all
// replicas live, and the service must not see a limit broken.
func TestSentinelsPutAnotherRedisInPlace(t *testing.T) {
	w := &watched{}
	f := newFleet(t, 4, w.start)
	long := phase(t)
	ctx, stop := context.WithCancel(t.Context())
	clients := f.overload(ctx)
	defer clients.Wait()
	defer stop()

	pass(ctx, 2*time.Second)
	f.judge("at the start")
	pass(ctx, long)
	f.judge("all is well")

	first := w.master(ctx)
	_ = w.servers[first].Process.Kill()
	began := time.Now()
	f.until("another master is named", func(ctx context.Context) bool { now := w.master(ctx); return now != "" && now != first })
	t.Logf("another master after %v", time.Since(began).Round(time.Millisecond))
	pass(ctx, 1500*time.Millisecond)
	f.judge("the master was killed")
	pass(ctx, long)
	f.judge("another is in its place")
}
