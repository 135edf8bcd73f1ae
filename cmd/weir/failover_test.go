package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
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
	ctx, cancel := context.WithTimeout(f.Context(), 40*time.Second)
	defer cancel()
	for !holds(ctx) {
		if ctx.Err() != nil {
			f.Fatalf("it did not come true that %s", what)
		}
		pass(ctx, 50*time.Millisecond)
	}
}

// TestAttack41SentinelsPutAnotherRedisInPlace is four replicas under overload while the
// master of their Redis is killed, and while its place is taken by request: all
// replicas live, and the service must not see a limit broken.
func TestAttack41SentinelsPutAnotherRedisInPlace(t *testing.T) {
	w := &watched{}
	f := newFleet(t, 4, w.start)
	long := phase(t)
	ctx := f.overload()
	pass(ctx, long)
	f.judge("all is well")

	first := w.master(ctx)
	_ = w.servers[first].Process.Kill()
	began := time.Now()
	f.until("another master is named", func(ctx context.Context) bool { now := w.master(ctx); return now != "" && now != first })
	t.Logf("another master after %v", time.Since(began).Round(time.Millisecond))
	pass(ctx, 2500*time.Millisecond) // until they have found it, and learned from each other
	f.judge("the master was killed")
	pass(ctx, long)
	f.judge("another is in its place")
}

// TestAttack29PlacesOfAKilledReplicaComeBack kills a replica with requests in flight:
// another one sees their places come back when the lease ends.
func TestAttack29PlacesOfAKilledReplicaComeBack(t *testing.T) {
	t.Parallel() // it waits for a lease to end
	f := newFleet(t, 2, oneRedis)
	req, err := http.NewRequest(http.MethodPut, f.service+"/_service/faults", strings.NewReader(`{"delay_before":"60s"}`))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer stop()
	pass(ctx, 2*time.Second) // until nobody could have anything to tell
	const n = 3              // as many as may go before the first answer
	for range n {
		clients.Go(func() { f.ask(ctx, http.DefaultClient, &f.counts, "tok-owner", 0, requests[0], requests[0].path) })
	}
	inFlight := func(want int) func(context.Context) bool {
		return func(ctx context.Context) bool {
			admin := &adminClient{http.DefaultTransport, "http://" + f.replicas[1].admin, ""}
			l, err := admin.accounts(ctx)
			return err == nil && len(l.accounts) == 1 && l.accounts[0].InUse == want
		}
	}
	f.until("the requests are in flight", inFlight(n))
	_ = f.replicas[0].process.Process.Kill()
	killed := time.Now()
	f.until("their places have come back", inFlight(0))
	took := time.Since(killed)
	t.Logf("the places came back after %v", took.Round(time.Millisecond))
	if took > 35*time.Second { // a lease of 30 seconds, one look, and other tests' work
		t.Errorf("the places came back after %v", took)
	}
}
