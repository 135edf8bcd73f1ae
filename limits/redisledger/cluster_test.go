package redisledger

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// node is a Redis server of a cluster.
type node struct {
	*redis.Client
	address, bus string
	process      *exec.Cmd
}

// startNode starts a server that has not joined a cluster yet.
func startNode(t *testing.T) *node {
	t.Helper()
	n := &node{address: testservers.FreeAddress(t), bus: testservers.FreeAddress(t)}
	n.Client = redis.NewClient(&redis.Options{Addr: n.address})
	n.process = exec.Command(testservers.RedisProgram(t),
		"--bind", "127.0.0.1", "--port", port(n.address), "--cluster-enabled", "yes", "--cluster-port", port(n.bus), "--cluster-node-timeout", "2000",
		"--cluster-announce-ip", "127.0.0.1", "--cluster-require-full-coverage", "no", "--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0", "--dir", t.TempDir())
	err := n.process.Start()
	stopIf(t, err != nil, "start redis-server: %v", err)
	t.Cleanup(func() {
		_ = n.Close()
		_ = n.process.Process.Kill()
		_ = n.process.Wait()
	})
	testservers.Eventually(t, "the server responds", func(ctx context.Context) bool { return n.Ping(ctx).Err() == nil })
	return n
}

func port(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}

// startCluster starts three masters with equal numbers of slots, and a replica of the second master.
func startCluster(t *testing.T) []*node {
	t.Helper()
	nodes := startMasters(t, startNode(t), startNode(t), startNode(t), startNode(t))
	runOn(t, nodes[masters], "cluster", "replicate", runOn(t, nodes[1], "cluster", "myid"))
	testservers.Eventually(t, "the replica has copied the data of its master", func(ctx context.Context) bool {
		text, _ := nodes[masters].Info(ctx, "replication").Result()
		return strings.Contains(text, "master_link_status:up")
	})
	return nodes
}

const masters = 3

func runOn(t *testing.T, n *node, args ...any) string {
	t.Helper()
	text, err := n.Do(t.Context(), args...).Text()
	stopIf(t, err != nil, "%v: %v", args, err)
	return text
}

// startMasters joins nodes to a cluster. The first three nodes are masters with equal numbers of slots.
func startMasters(t *testing.T, nodes ...*node) []*node {
	t.Helper()
	meetMasters(t, nodes)
	awaitCluster(t, nodes)
	return nodes
}

// meetMasters introduces nodes to each other, which takes seconds.
func meetMasters(t *testing.T, nodes []*node) {
	t.Helper()
	for i, n := range nodes {
		runOn(t, n, "cluster", "set-config-epoch", i+1) // with equal epochs, masters may refuse to vote in a failover
		if i < masters {
			runOn(t, n, "cluster", "addslotsrange", i*16384/masters, (i+1)*16384/masters-1)
		}
		if i > 0 {
			runOn(t, n, "cluster", "meet", "127.0.0.1", port(nodes[0].address), port(nodes[0].bus))
		}
	}
}

func awaitCluster(t *testing.T, nodes []*node) {
	t.Helper()
	testservers.Eventually(t, "all nodes have joined the cluster", func(ctx context.Context) bool {
		for _, n := range nodes {
			text, _ := n.ClusterInfo(ctx).Result()
			if !strings.Contains(text, "cluster_slots_assigned:16384") || !strings.Contains(text, fmt.Sprint("cluster_known_nodes:", len(nodes))) {
				return false
			}
		}
		return true
	})
}

// openCluster opens the ledger of a replica on a cluster.
func openCluster(t *testing.T, nodes []*node) *Ledger {
	t.Helper()
	url := fmt.Sprintf("redis+cluster://%s?addr=%s", nodes[0].address, nodes[1].address)
	l, err := New(Config{URL: url, Replica: "r1", Rules: defaultRules(), Log: slog.New(slog.DiscardHandler)})
	noError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	l.Join(t.Context())
	return l
}

func TestClusterLosesNoSpends(t *testing.T) {
	t.Parallel() // mostly waits
	nodes := startCluster(t)
	t.Run("a new account waits for other replicas", func(t *testing.T) { newAccountWaits(t, nodes) })
	for _, n := range nodes[:3] {
		noError(t, n.FlushAll(t.Context()).Err())
	}
	t.Run("a moved slot refuses nothing", func(t *testing.T) { movedSlotRefusesNothing(t, nodes) })
	t.Run("a failover keeps spends", func(t *testing.T) { failoverKeepsSpends(t, nodes) })
}

// In a cluster, a replica cannot distinguish a new account from a lost account.
func newAccountWaits(t *testing.T, nodes []*node) {
	l := openCluster(t, nodes)
	for _, c := range []struct {
		replicas, accounts int64
		wait               time.Duration
	}{
		{1, 1_000_000, 0}, {2, 1000, 1200 * time.Millisecond}, {10, 1000, 2 * time.Second},
		{10, 10_000, 11 * time.Second}, {1000, 1_000_000, 30 * time.Second},
	} {
		l.replicas.Store(c.replicas)
		l.indexed = c.accounts
		before := time.Now()
		claim := limits.Claim{ID: 1, Account: fmt.Sprint(c), Kind: policy.User, Operation: "op", Resource: policy.Core, Points: 1}
		d := l.Admit(t.Context(), claim)
		// Redis decides at some time between before and now.
		const rounding = 10 * time.Millisecond
		failIf(t, d.Granted != (c.wait == 0) || !d.Granted && (time.Now().Add(d.Wait).Before(before.Add(c.wait-rounding)) || d.Wait > c.wait+rounding), "%d replicas, %d accounts: got %+v, a wait of %v; want %v", c.replicas, c.accounts, d, d.Wait, c.wait)
	}
}

// movedSlotRefusesNothing moves the slot of an account that the client of the ledger knows at another master.
func movedSlotRefusesNothing(t *testing.T, nodes []*node) {
	l := openCluster(t, nodes)
	const name = "moved"
	slot := slotOf(name)
	to := (slot*masters/16384 + 1) % masters
	for _, n := range nodes[:masters] {
		runOn(t, n, "cluster", "setslot", slot, "node", runOn(t, nodes[to], "cluster", "myid"))
	}
	claim := limits.Claim{ID: 1, Account: name, Kind: policy.User, Operation: "op", Resource: policy.Core, Points: 1}
	d := l.Admit(t.Context(), claim)
	failIf(t, !d.Granted, "after the move: %+v", d)
}

// failoverKeepsSpends uses accounts on all masters and kills one master.
func failoverKeepsSpends(t *testing.T, nodes []*node) {
	l := openCluster(t, nodes)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { l.Run(ctx) })
	defer running.Wait()
	defer stop()
	const accounts = 12
	spent := make([]int, accounts)
	spendEverywhere := func(name string) {
		t.Helper()
		for i := range accounts {
			testservers.Eventually(t, name, func(ctx context.Context) bool {
				p := limits.Permit{Claim: limits.Claim{
					ID: uint64(1 + i + accounts*spent[i]), Account: fmt.Sprint("account ", i), Kind: policy.User, Operation: "op", Resource: policy.Core, Points: 1,
				}}
				if d := l.Admit(ctx, p.Claim); !d.Granted {
					return false
				}
				spent[i]++
				rate := policy.Rate{Limit: 5000, Used: spent[i], Reset: time.Now().Add(time.Hour), Date: time.Now(), Resource: policy.Core}
				_ = l.Settle(ctx, p, answered(rate)) // sent after the outage
				return true
			})
		}
	}
	var last string // reason why the last check failed
	defer func() { t.Log(last) }()
	allUsed := func(ctx context.Context) bool {
		list, err := l.Accounts(ctx, 100)
		if ctx.Err() == nil {
			last = fmt.Sprint(len(list), " accounts listed, error ", err)
		}
		if err != nil || len(list) != accounts {
			return false
		}
		for _, a := range list {
			i, _ := strconv.Atoi(strings.TrimPrefix(a.Name, "account "))
			for _, b := range a.Budgets {
				if b.Resource == "points:op" && b.Used != spent[i] {
					last = fmt.Sprintf("%s: %d used, %d spent", a.Name, b.Used, spent[i])
					return false
				}
			}
		}
		return true
	}
	spendEverywhere("a permit is granted")
	testservers.Eventually(t, "all spends are in Redis", allUsed)
	_ = nodes[1].process.Process.Kill()
	testservers.Eventually(t, "Redis is lost", func(context.Context) bool { return !l.Lost().IsZero() })
	testservers.Eventually(t, "Redis is back", func(context.Context) bool { return l.Lost().IsZero() })
	spendEverywhere("a permit is granted again")
	testservers.Eventually(t, "all spends are in Redis again", allUsed)
}

// The other shards continue without a pause, for accounts that are known and for new ones, while a shard without a replica
// is gone. Each shard is killed in turn, also the one that stores the keys of all replicas.
func TestLostShardConcernsItsAccountsOnly(t *testing.T) {
	t.Parallel()
	var clusters sync.WaitGroup // the three clusters together, because they mostly wait
	defer clusters.Wait()
	var all [masters][]*node
	for i := range all {
		all[i] = []*node{startNode(t), startNode(t), startNode(t)}
		meetMasters(t, all[i])
	}
	for killed, nodes := range all {
		awaitCluster(t, nodes)
		l := openCluster(t, nodes)
		clusters.Go(func() { loseShard(t, nodes, l, killed) })
	}
}

// loseShard kills a shard, and sends requests for accounts of all shards.
func loseShard(t *testing.T, nodes []*node, l *Ledger, killed int) {
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { l.Run(ctx) })
	defer running.Wait()
	defer stop()
	var id uint64
	request := func(name string) limits.Decision {
		id++
		p := limits.Permit{Claim: limits.Claim{ID: id, Account: name, Kind: policy.User, Operation: "op", Resource: policy.Core, Points: 1}}
		d := l.Admit(ctx, p.Claim)
		if d.Granted {
			rate := policy.Rate{Limit: 5000, Used: 1, Reset: time.Now().Add(time.Hour), Date: time.Now(), Resource: policy.Core}
			_ = l.Settle(ctx, p, answered(rate)) // sent later
		}
		return d
	}
	for i := range 30 {
		if d := request(fmt.Sprint("old ", i)); !d.Granted {
			t.Errorf("shard %d, before the loss: %+v", killed, d)
			return
		}
	}
	_ = nodes[killed].process.Process.Kill()
	began, next, refused := time.Now(), 0, 0
	for time.Since(began) < 4*time.Second { // the cluster marks a server as failed after two seconds
		l.Client.(*redis.ClusterClient).ReloadState(ctx) // which the client of the cluster does each minute
		for i := range 30 {
			for _, name := range []string{fmt.Sprint("old ", i), fmt.Sprint("new ", next)} {
				at, lost := time.Now(), slotOf(name)*masters/16384 == killed
				if d := request(name); !lost && (!d.Granted && d.Reason == Store || time.Since(at) > time.Second) {
					refused++
					t.Errorf("%v after the loss of shard %d: %s: %+v after %v", at.Sub(began), killed, name, d, time.Since(at))
				}
			}
			next++
		}
		if refused > 10 {
			return
		}
		testservers.Sleep(ctx, 200*time.Millisecond)
	}
	accounts, err := l.Accounts(ctx, 1000)
	failIf(t, err != nil || len(accounts) < 60, "shard %d: %d accounts listed, %v", killed, len(accounts), err)
}
