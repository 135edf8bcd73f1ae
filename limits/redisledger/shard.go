package redisledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/weirgate/weir/internal/redisclient"
)

// shard is a server that stores keys: the only server, or a master of a cluster. The loss of a shard concerns only the
// accounts and the shared keys that the shard stores.
//
// A new process (run_id) of a server may have lost the last writes of the old process. Only the first call of a new process
// detects the loss (account.lua, begin), and that call must be made for the new process. Therefore no call is sent to a new
// process until all calls for the old process have ended.
type shard struct {
	address string // "" for the only server
	// calls is held for reading while a call is made and sent, and for writing while trust changes the trusted process.
	calls sync.RWMutex

	// Ledger.mu guards the fields below.
	//
	// process is the process to which calls may be sent, and met is a new process that is not trusted yet.
	process, met string
	// master is set while the cluster names the server as a master. The only server is always one.
	master    bool
	lost      time.Time // time at which the shard stopped responding; zero if it responds
	responded time.Time // time of the last response
	// The clock of Redis minus the local clock is between least and most, if timed is set (reach).
	least, most int64
	timed       bool
	// losses counts the events after which the shard may have lost writes. The accounts have been restored after the first
	// restored of these events.
	losses, restored int
}

// shard returns the shard at an address. Ledger.mu must be held.
func (l *Ledger) shard(address string) *shard {
	s := l.shards[address]
	if s == nil {
		s = &shard{address: address, master: address == ""}
		l.shards[address] = s
	}
	return s
}

// server is the node that stores a key, with its shard and the trusted process.
type server struct {
	node    redis.Cmdable
	shard   *shard
	process string
}

// addressOf returns the address of the server that stores a key. The address of the only server is "".
func (l *Ledger) addressOf(ctx context.Context, key string) (string, error) {
	_, address, err := redisclient.NodeOf(ctx, l.Client, key)
	return address, err
}

// onServer runs calls on the server that stores a key, and returns the address of the server. The process of the server
// does not change before do returns.
func (l *Ledger) onServer(ctx context.Context, key string, do func(to server) error) (address string, err error) {
	// The client does not redirect commands for the node. A node that no longer stores the account returns an error.
	node, address, err := redisclient.NodeOf(ctx, l.Client, key)
	if err != nil {
		return address, err
	}
	l.mu.Lock()
	s := l.shard(address)
	l.mu.Unlock()
	s.calls.RLock()
	defer s.calls.RUnlock()
	if address != "" && l.processOf(s) == "" {
		if err := node.Ping(ctx).Err(); err != nil { // a new connection calls meet
			return address, err
		}
	}
	err = do(server{node, s, l.processOf(s)})
	if redisclient.Moved(err) {
		_, _ = redisclient.Masters(ctx, l.Client)
	}
	return address, err
}

func (l *Ledger) processOf(s *shard) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return s.process
}

// isLost reports whether any shard is lost.
func (l *Ledger) isLost() bool { return !l.Lost().IsZero() }

// Lost returns the time at which the first of the lost shards stopped responding, or the zero time if Redis responds.
func (l *Ledger) Lost() (since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.shards {
		if !s.lost.IsZero() && (since.IsZero() || s.lost.Before(since)) {
			since = s.lost
		}
	}
	return since
}

// lostFor reports whether the shard of a key is lost. Before its registration a replica uses no shard, because its names of
// accounts may change.
func (l *Ledger) lostFor(ctx context.Context, key string) bool {
	address, err := l.addressOf(ctx, key)
	l.mu.Lock()
	defer l.mu.Unlock()
	return err != nil || l.startedCold && !l.registered || !l.shard(address).lost.IsZero()
}

// responds records the result of a call to an address. A shard is lost if a call has failed, and no call to the address
// has succeeded for lossTime.
func (l *Ledger) responds(address string, err error) {
	l.mu.Lock()
	s := l.shard(address)
	if err == nil {
		s.responded = time.Now()
	}
	lost := time.Since(s.responded) >= lossTime
	l.mu.Unlock()
	if lost {
		l.markLost(address, err)
	}
}

// markLost records that a shard does not respond.
func (l *Ledger) markLost(address string, err error) {
	l.mu.Lock()
	s, registered := l.shard(address), l.registered
	known := !s.lost.IsZero()
	if !known {
		s.lost = time.Now()
	}
	l.mu.Unlock()
	log := l.Log.With("error", err, "key", "store.url", "remedy", redisclient.Remedy(err))
	if address != "" {
		log = log.With("shard", address)
	}
	switch {
	case known:
	case !registered:
		log.Warn("redis connection failed")
	case l.Closed:
		log.Error("redis connection lost; refusing requests that need it")
	default:
		log.Error("redis connection lost; using the leases of this replica")
	}
}

// masters returns the clients of all shards by address. A server that has become a master may lack the last writes of its
// predecessor.
func (l *Ledger) masters(ctx context.Context) (map[string]redis.UniversalClient, error) {
	nodes, err := redisclient.Masters(ctx, l.Client)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for address := range nodes {
		if s := l.shard(address); !s.master {
			s.master = true
			s.losses++
		}
	}
	for address, s := range l.shards {
		if nodes[address] == nil { // its slots have moved to other servers
			s.master, s.lost = false, time.Time{}
		}
	}
	return nodes, nil
}

// forShards calls do for every shard at the same time. The failure of one shard stops no other shard.
func (l *Ledger) forShards(ctx context.Context, do func(s *shard, node redis.UniversalClient) error) error {
	nodes, err := l.masters(ctx)
	if err != nil {
		return unavailable(err)
	}
	var group errgroup.Group
	for address, node := range nodes {
		l.mu.Lock()
		s := l.shard(address)
		l.mu.Unlock()
		group.Go(func() error { return do(s, node) })
	}
	return group.Wait()
}

// isLostShard reports whether a shard is lost.
func (l *Ledger) isLostShard(s *shard) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !s.lost.IsZero()
}

// reconnect ends the outage of each lost shard that responds. The use of all leases is sent before any claim.
func (l *Ledger) reconnect(ctx context.Context) {
	_ = l.forShards(ctx, func(s *shard, node redis.UniversalClient) error {
		l.mu.Lock()
		since := s.lost
		l.mu.Unlock()
		if since.IsZero() {
			return nil
		}
		l.trust(s)
		limited, cancel := context.WithTimeout(ctx, l.timeout)
		defer cancel()
		if err := redisclient.PingIdle(limited, node); err != nil {
			return err
		}
		if err := l.renewShard(ctx, s, node); err != nil {
			return err
		}
		l.mu.Lock()
		s.lost = time.Time{}
		l.mu.Unlock()
		l.Log.Info("redis connection restored", "lost_for", time.Since(since))
		return nil
	})
}

// isHome reports whether a shard stores the keys that all replicas share.
func (l *Ledger) isHome(ctx context.Context, s *shard) bool {
	address, err := l.addressOf(ctx, sharedPrefix)
	return err == nil && address == s.address
}

// reachSlack is the longest time from the preparation of a call to its execution for which the clock of Redis counts.
const reachSlack = 500 * time.Millisecond

// reach returns the bounds for a call that is prepared now. Ledger.mu must be held.
func (s *shard) reach(now int64) reach {
	if !s.timed {
		return reach{}
	}
	return reach{now + s.least, now + s.most + reachSlack.Microseconds()}
}

// replied records the time of Redis in the reply to a call that was sent and answered at local times. The fastest calls know the
// difference of the clocks best, and it only drifts. Ledger.mu must be held.
func (s *shard) replied(sent, answered, redisTime int64) {
	least, most, slack := redisTime-answered, redisTime-sent, reachSlack.Microseconds()
	if s.timed {
		least = min(max(s.least, least), least+slack)
		most = max(min(s.most, most), most-slack)
	}
	s.least, s.most, s.timed = least, most, true
}

// identify returns a hook that passes the run_id of the server of each new connection to meet. Sentinels are ignored.
func identify(address string, meet func(address, process string) error) redisclient.OnConnect {
	return func(ctx context.Context, c *redis.Conn) error {
		text, err := c.Info(ctx, "server").Result()
		if err != nil {
			return err
		}
		info := map[string]string{}
		for line := range strings.Lines(text) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			info[key] = value
		}
		switch {
		case info["redis_mode"] == "sentinel":
			return nil
		case info["run_id"] == "":
			return errors.New("redis does not report its run_id")
		}
		return meet(address, info["run_id"])
	}
}

// meet records the Redis process of a new connection. If the process is not trusted yet, meet returns an error, so that
// the connection is closed.
func (l *Ledger) meet(address, process string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.shard(address)
	if s.process = cmp.Or(s.process, process); s.process == process {
		return nil
	}
	s.met = process
	return fmt.Errorf("redis process changed (run_id %s)", process)
}

// trust waits for running calls, and then trusts the new process of a shard, if there is one.
func (l *Ledger) trust(s *shard) {
	l.mu.Lock()
	met := s.met
	l.mu.Unlock()
	if met == "" {
		return
	}
	s.calls.Lock()
	defer s.calls.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	s.process, s.met = s.met, ""
	s.losses++
}
