package redisledger

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/limits/limitstest"
	"github.com/weirgate/weir/policy"
)

// WEIR_REPLICAS replicas saturate one account on a real Redis in virtual time. They must use windows as completely as a
// few replicas.
func TestNoLimitIsExceededByManyReplicas(t *testing.T) {
	t.Parallel()
	replicas := setting(t, "WEIR_REPLICAS", 8)
	sockets := [2]string{testservers.Redis(t), testservers.Redis(t)}
	table := limitstest.NewTable()
	hot := limitstest.Saturations()[0]
	s := hot.Scenario(replicas, 2, false)
	s.Clients = max(1, s.Clients)
	began := time.Now()
	report, _ := runWithFaults(t, sockets, s, faults{}, nil)
	if len(report.Violations) > 0 {
		t.Error(strings.Join(report.Violations, "\n"))
	}
	if full := report.Fullness(hot.Limit); full < hot.MinFullness {
		t.Errorf("used %.2f %% of a window, want %.2f %%", 100*full, 100*hot.MinFullness)
	}
	table.Add(&s, &report, hot.Limit)
	table.Print(t)
	client := clientOf(t, func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", sockets[0]) })
	text, err := client.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "cmdstat_evalsha:") {
			t.Logf("%d replicas, %d requests in %v, which took %v: %s", replicas, report.Requests, s.Duration, time.Since(began).Round(time.Millisecond), fmt.Sprint(line))
		}
	}
}

// In a cluster, a replica cannot distinguish a new account from a lost account.
func TestNewAccountInAClusterWaitsForOtherReplicas(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t, 1)
	l, err := New(Config{URL: "redis+cluster://" + nodes[0].address, Replica: "r1", Rules: limits.Rules{Limits: policy.DefaultLimits()}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	l.Join(t.Context())
	for _, c := range []struct {
		replicas, accounts int64
		wait               time.Duration
	}{
		{1, 1_000_000, 0}, {2, 1000, 1200 * time.Millisecond}, {10, 1000, 2 * time.Second}, {10, 10_000, 11 * time.Second}, {1000, 1_000_000, 30 * time.Second},
	} {
		l.replicas.Store(c.replicas)
		l.indexed = c.accounts
		began := time.Now()
		claim := limits.Claim{ID: 1, Account: fmt.Sprint(c), Kind: policy.User, Operation: "op", Resource: policy.Core, Points: 1}
		d, err := l.Admit(t.Context(), claim)
		if err != nil {
			t.Fatal(err)
		}
		if wait := d.Until.Sub(began); d.Granted != (c.wait == 0) || !d.Granted && (wait < c.wait-time.Second/10 || wait > c.wait+time.Second/10) {
			t.Errorf("%d replicas, %d accounts: got %+v, a wait of %v; want %v", c.replicas, c.accounts, d, wait, c.wait)
		}
	}
}
