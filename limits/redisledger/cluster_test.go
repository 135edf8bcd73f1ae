package redisledger

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
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
	address string
	process *exec.Cmd
}

// startNode starts a server that has not joined a cluster yet.
func startNode(t *testing.T) *node {
	t.Helper()
	address := testservers.FreeAddress(t)
	_, port, _ := net.SplitHostPort(address)
	_, bus, _ := net.SplitHostPort(testservers.FreeAddress(t))
	n := &node{redis.NewClient(&redis.Options{Addr: address}), address, exec.Command(cmp.Or(os.Getenv("WEIR_REDIS_SERVER"), "redis-server"),
		"--bind", "127.0.0.1", "--port", port, "--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-node-timeout", "1000",
		"--save", "", "--appendonly", "no", "--dir", t.TempDir())}
	if err := n.process.Start(); err != nil {
		t.Fatalf("start redis-server: %v; run make test", err)
	}
	t.Cleanup(func() {
		_ = n.Close()
		_ = n.process.Process.Kill()
		_ = n.process.Wait()
	})
	testservers.Eventually(t, "the server responds", func(ctx context.Context) bool { return n.Ping(ctx).Err() == nil })
	return n
}

// startCluster starts masters with equal numbers of slots, and a replica of each master.
func startCluster(t *testing.T, masters int) []*node {
	t.Helper()
	ctx := t.Context()
	nodes := make([]*node, 2*masters)
	for i := range nodes {
		nodes[i] = startNode(t)
	}
	run := func(n *node, args ...any) {
		if err := n.Do(ctx, args...).Err(); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
	for i, n := range nodes {
		if i < masters {
			run(n, "cluster", "addslotsrange", i*16384/masters, (i+1)*16384/masters-1)
		}
		run(n, "config", "set", "cluster-announce-ip", "127.0.0.1")
		host, port, _ := net.SplitHostPort(nodes[0].address)
		if i > 0 {
			bus, err := nodes[0].ConfigGet(ctx, "cluster-port").Result()
			if err != nil {
				t.Fatal(err)
			}
			run(n, "cluster", "meet", host, port, bus["cluster-port"])
		}
	}
	joined := func(ctx context.Context) bool {
		for _, n := range nodes {
			text, _ := n.ClusterInfo(ctx).Result()
			if !strings.Contains(text, "cluster_state:ok") || !strings.Contains(text, fmt.Sprint("cluster_known_nodes:", len(nodes))) {
				return false
			}
		}
		return true
	}
	testservers.Eventually(t, "all nodes have joined the cluster", joined)
	for i, n := range nodes[masters:] {
		id, err := nodes[i].Do(ctx, "cluster", "myid").Text()
		if err != nil {
			t.Fatal(err)
		}
		run(n, "cluster", "replicate", id)
		testservers.Eventually(t, "a replica has copied the data of its master", func(ctx context.Context) bool {
			text, _ := n.Info(ctx, "replication").Result()
			return strings.Contains(text, "master_link_status:up")
		})
	}
	return nodes
}

// The test uses accounts on all masters and kills one master.
func TestClusterFailoverKeepsSpends(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t, 3)
	rules := limits.Rules{Limits: policy.DefaultLimits()}
	l, err := New(Config{URL: fmt.Sprintf("redis+cluster://%s?addr=%s", nodes[0].address, nodes[1].address), Replica: "r1", Rules: rules, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	l.Join(t.Context())
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		l.Run(ctx)
		close(done)
	}()
	defer func() {
		stop()
		<-done
		_ = l.Close()
	}()
	const accounts = 12
	spent := make([]int, accounts)
	spend := func(i int) bool {
		p := limits.Permit{Claim: limits.Claim{
			ID: uint64(1 + i + accounts*spent[i]), Account: fmt.Sprint("account ", i), Kind: policy.User, Operation: "op", Resource: policy.Core, Points: 1,
		}}
		if d, err := l.Admit(ctx, p.Claim); err != nil || !d.Granted {
			return false
		}
		spent[i]++
		rate := limits.Rate{Limit: 5000, Used: spent[i], Reset: time.Now().Add(time.Hour), Date: time.Now(), Resource: policy.Core}
		_ = l.Settle(ctx, p, limits.Outcome{Sent: true, Answered: true, Ended: true, Rate: rate}) // sent after the outage
		return true
	}
	for i := range accounts {
		testservers.Eventually(t, "a permit is granted", func(context.Context) bool { return spend(i) })
	}
	var last string // reason why the last check failed
	defer func() { t.Log(last) }()
	used := func(ctx context.Context) bool {
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
	testservers.Eventually(t, "all spends are in Redis", used)

	_ = nodes[1].process.Process.Kill()
	testservers.Eventually(t, "Redis is lost", func(context.Context) bool { return !l.Lost().IsZero() })
	testservers.Eventually(t, "Redis is back", func(context.Context) bool { return l.Lost().IsZero() })
	for i := range accounts {
		testservers.Eventually(t, "a permit is granted again", func(context.Context) bool { return spend(i) })
	}
	testservers.Eventually(t, "all spends are in Redis again", used)
}
