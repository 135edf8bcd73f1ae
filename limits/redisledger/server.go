package redisledger

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

// server is who keeps an account: whom to send its steps to, and the process
// (run_id) that answers there.
//
// Another process than before may have lost the last writes, and the first step
// that it is sent must say so: what a step before would add could no longer be
// told from what was kept (account.lua, begin). So a process that was not met
// before is asked nothing until every step that was made for the one before has
// ended; until then Redis counts as lost.
type server struct {
	node    redis.Cmdable
	process string
}

// serverOf finds who keeps an account.
func (l *Ledger) serverOf(ctx context.Context, key string) (server, error) {
	cluster, ok := l.Client.(*redis.ClusterClient)
	if !ok {
		return server{l.Client, l.process("")}, nil
	}
	// A step goes to the node that it is made for, whatever the cluster has
	// decided meanwhile; one that does not keep the account any more says so.
	node, err := cluster.MasterForKey(ctx, key)
	if err != nil {
		return server{}, err
	}
	address := node.Options().Addr
	if l.process(address) == "" {
		if err := node.Ping(ctx).Err(); err != nil { // a connection tells
			return server{}, err
		}
	}
	return server{node, l.process(address)}, nil
}

func (l *Ledger) process(address string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trusted[address]
}

// pinged is a client of one server or of several.
type pinged interface {
	Ping(ctx context.Context) *redis.StatusCmd
	PoolStats() *redis.PoolStats
}

// answers reports whether Redis does, over every connection that is open: those
// that lead nowhere are closed by it, so that no step meets one later.
func (l *Ledger) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	var group errgroup.Group
	ping := func(c pinged) {
		for range c.PoolStats().IdleConns + 1 {
			group.Go(func() error { return c.Ping(ctx).Err() })
		}
	}
	cluster, ok := l.Client.(*redis.ClusterClient)
	if !ok {
		ping(l.Client)
		return group.Wait() == nil
	}
	cluster.ReloadState(ctx)
	err := cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		ping(node)
		return nil
	})
	return group.Wait() == nil && err == nil
}

// meet takes note of the process that a new connection leads to. An error means
// that the connection must not be used.
func (l *Ledger) meet(address, process string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch l.trusted[address] {
	case process:
		return nil
	case "":
		l.trusted[address] = process
		return nil
	}
	l.met[address] = process
	return fmt.Errorf("another process (run_id %s) answers than before", process)
}

// trust lets steps go to the processes that were met, once those that were made
// for others have ended. It reports whether there are any.
func (l *Ledger) trust() (another bool) {
	l.steps.Lock()
	defer l.steps.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	another = len(l.met) > 0
	for address, process := range l.met {
		l.trusted[address] = process
		delete(l.met, address)
	}
	return another
}
