//go:build e2e

package e2e

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

	"github.com/weirgate/weir/internal/testservers"
)

// sentinels is a store of a Redis master, one follower, and three sentinels that promote the
// follower if the master fails.
type sentinels struct {
	servers   map[string]*exec.Cmd // by address
	addresses []string             // of the sentinels
}

// start starts all servers and returns the URL of the store.
func (s *sentinels) start(f *fleet) string {
	master, follower := testservers.FreeAddress(f.T), testservers.FreeAddress(f.T)
	s.servers = map[string]*exec.Cmd{master: f.startRedis(master, "--repl-diskless-sync-delay", "0")}
	host, port, _ := net.SplitHostPort(master)
	s.servers[follower] = f.startRedis(follower, "--replicaof", host+" "+port)
	for i := range 3 {
		address := testservers.FreeAddress(f.T)
		config := f.file(fmt.Sprint("sentinel", i, ".conf"), fmt.Sprintf("sentinel monitor fleet %s %s 2\nsentinel down-after-milliseconds fleet 500\n"+
			"sentinel failover-timeout fleet 2000\n", host, port))
		f.startRedis(address, config, "--sentinel")
		s.addresses = append(s.addresses, address)
	}
	f.eventually("the sentinels see each other and the follower", func(ctx context.Context) bool {
		return s.all(ctx, func(m map[string]string) bool {
			return m["num-slaves"] == "1" && m["num-other-sentinels"] == "2" && m["flags"] == "master"
		})
	})
	f.eventually("the follower is connected", func(ctx context.Context) bool {
		c := redis.NewClient(&redis.Options{Addr: follower})
		defer func() { _ = c.Close() }()
		text, _ := c.Info(ctx, "replication").Result()
		return strings.Contains(text, "master_link_status:up")
	})
	return fmt.Sprintf("redis+sentinel://%s?master_name=fleet&addr=%s&addr=%s", s.addresses[0], s.addresses[1], s.addresses[2])
}

// all reports whether a condition holds for the view that each sentinel has of the master.
func (s *sentinels) all(ctx context.Context, holds func(map[string]string) bool) bool {
	return !slices.ContainsFunc(s.addresses, func(address string) bool {
		c := redis.NewSentinelClient(&redis.Options{Addr: address})
		defer func() { _ = c.Close() }()
		m, err := c.Master(ctx, "fleet").Result()
		return err != nil || !holds(m)
	})
}

// master returns the address that the sentinels agree on, or "" while they disagree.
func (s *sentinels) master(ctx context.Context) (address string) {
	s.all(ctx, func(m map[string]string) bool {
		address = net.JoinHostPort(m["ip"], m["port"])
		return true
	})
	if s.all(ctx, func(m map[string]string) bool { return net.JoinHostPort(m["ip"], m["port"]) == address }) {
		return address
	}
	return ""
}

// TestLimitsHoldDuringSentinelFailover kills the Redis master of four overloaded replicas.
func TestLimitsHoldDuringSentinelFailover(t *testing.T) {
	s := &sentinels{}
	f := newFleet(t, 4, s.start)
	ctx, _ := f.saturate()
	sleep(ctx, phase(t))
	f.checkViolations("without faults")
	first := s.master(ctx)
	_ = s.servers[first].Process.Kill()
	began := time.Now()
	f.eventually("the sentinels name another master", func(ctx context.Context) bool {
		now := s.master(ctx)
		return now != "" && now != first
	})
	t.Logf("failover took %v", time.Since(began).Round(time.Millisecond))
	sleep(ctx, 2500*time.Millisecond) // the replicas connect to the new master and learn from each other
	f.checkViolations("after the master was killed")
	sleep(ctx, phase(t))
	f.checkViolations("after the failover")
}
